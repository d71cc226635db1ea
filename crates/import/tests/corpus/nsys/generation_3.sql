CREATE TABLE META_DATA_EXPORT(name TEXT, value TEXT);
CREATE TABLE DIAGNOSTIC_EVENT(timestamp, timestampType, source, severity, text TEXT, globalPid);
INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, 1, 1, 'Process started', 0), (2, 1, 1, 3, 'Dropped
events', 0),
(3, 1, 1, 2, 'No CPU counters', 0), (3, 1, 1, 2, 'No CPU counters', 0);
CREATE TABLE ENUM_DIAGNOSTIC_SEVERITY_LEVEL(id INTEGER PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_DIAGNOSTIC_SEVERITY_LEVEL VALUES (1, 'Info', 'Info'), (2, 'Warning', 'Warning'), (3, 'Error', 'Error');
CREATE TABLE ENUM_CUDA_MEMCPY_OPER(id INTEGER PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'CUDA_MEMCPY_KIND_HTOD', 'Host-to-Device'), (77, 'CUDA_MEMCPY_KIND_DTOH', 'x');
CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)'), (2, 'MPI_Allreduce'),
(3, 'MPI_Wait'), (4, 'MPI_Neighbor_allgather');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid,
demangledName, shortName, mangledName, graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 150, 0, 1, NULL, 7, 11, 50331648, 1, 1, NULL, NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind,
srcKind, dstKind);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10, 20, 0, 1, 7, 1, 50331648, 1000, 1, 0, 2), (20, 30, 0, 1, 7, 2, 50331648, 50, 77, 2, 1),
(30, 40, 0, 1, 7, 3, 50331648, -1, 8, 2, 2), (40, 41, 0, 1, 7, 3, 50331648, 1, NULL, NULL, NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (50, 52, 0, 1, 7, 4, 50331648, 0, 64);
CREATE TABLE MPI_RANKS(globalTid, rank); INSERT INTO MPI_RANKS VALUES (50331655, 2);
CREATE TABLE MPI_COLLECTIVES_EVENTS(start, end, globalTid, textId, commHandle, rootRank, size, recvSize, requestHandle);
INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (60, 70, 50331655, 2, 1, 0, 400, 400, 0), (70, 75, 50331655, 4, 1, 0, 4, 8, 0);
CREATE TABLE MPI_START_WAIT_EVENTS(start, end, globalTid, textId, requestHandle);
INSERT INTO MPI_START_WAIT_EVENTS VALUES (80, 90, 50331655, 3, 1);
CREATE TABLE PROFILER_OVERHEAD(start, end); INSERT INTO PROFILER_OVERHEAD VALUES (0, 2000000), (5, 3);
CREATE TABLE TARGET_INFO_CUDA_DEVICE(gpuId, cudaId, pid); INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (6, 0, 3);
CREATE TABLE TARGET_INFO_GPU(id, name, cuDevice); INSERT INTO TARGET_INFO_GPU VALUES (0, 'A', 0), (6, 'B', 6);
