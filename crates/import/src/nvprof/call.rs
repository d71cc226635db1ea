//! Names of CUPTI's call numbers, for calls that training makes.

use std::collections::HashMap;

/// Calls of the runtime, without `cuda`.
const RUNTIME: &str = "\
    3 GetDeviceCount, 4 GetDeviceProperties, 8 ConfigureCall, 9 SetupArgument, 10 GetLastError, 11 PeekAtLastError, \
    13 Launch, 213 Launch, 15 FuncGetAttributes, 16 SetDevice, 17 GetDevice, 20 Malloc, 21 MallocPitch, 22 Free, \
    25 MallocHost, 26 FreeHost, 27 HostAlloc, 30 MemGetInfo, 31 Memcpy, 32 Memcpy2D, 39 MemcpyToSymbol, \
    40 MemcpyFromSymbol, 41 MemcpyAsync, 44 Memcpy2DAsync, 49 Memset, 51 MemsetAsync, 126 ThreadSynchronize, \
    129 StreamCreate, 130 StreamDestroy, 201 StreamDestroy, 131 StreamSynchronize, 132 StreamQuery, \
    133 EventCreate, 134 EventCreateWithFlags, 135 EventRecord, 136 EventDestroy, 137 EventSynchronize, \
    138 EventQuery, 139 EventElapsedTime, 144 Memcpy3D, 147 StreamWaitEvent, 152 HostRegister, 153 HostUnregister, \
    160 MemcpyPeer, 161 MemcpyPeerAsync, 164 DeviceReset, 165 DeviceSynchronize, 197 StreamAddCallback, \
    198 StreamCreateWithFlags, 200 DeviceGetAttribute, 202 StreamCreateWithPriority, 206 MallocManaged, \
    211 LaunchKernel, 214 LaunchKernel, 251 OccupancyMaxActiveBlocksPerMultiprocessorWithFlags, \
    252 MemPrefetchAsync, 269 LaunchCooperativeKernel, 270 LaunchCooperativeKernel, \
    272 LaunchCooperativeKernelMultiDevice, 273 FuncSetAttribute, 284 LaunchHostFunc, 285 LaunchHostFunc, \
    311 GraphLaunch, 373 MallocAsync, 375 FreeAsync, 430 LaunchKernelExC, 431 LaunchKernelExC";

/// Calls of the driver, without `cu`.
const DRIVER: &str = "\
    1 Init, 10 CtxCreate, 235 CtxCreate, 17 CtxSynchronize, 18 ModuleLoad, 19 ModuleLoadData, 20 ModuleLoadDataEx, \
    21 ModuleLoadFatBinary, 22 ModuleUnload, 39 MemHostAlloc, 115 Launch, 116 LaunchGrid, 117 LaunchGridAsync, \
    118 EventCreate, 119 EventRecord, 120 EventQuery, 121 EventSynchronize, 124 StreamCreate, 125 StreamQuery, \
    126 StreamSynchronize, 216 MemsetD8Async, 220 MemsetD32Async, 243 MemAlloc, 245 MemFree, 249 MemsetD8, \
    251 MemsetD32, 276 MemcpyHtoD, 277 MemcpyHtoDAsync, 278 MemcpyDtoH, 279 MemcpyDtoHAsync, 280 MemcpyDtoD, \
    281 MemcpyDtoDAsync, 294 MemAllocHost, 295 StreamWaitEvent, 305 Memcpy, 306 MemcpyAsync, 307 LaunchKernel, \
    442 LaunchKernel, 318 MemcpyPeer, 319 MemcpyPeerAsync, 371 MemAllocManaged, 386 DevicePrimaryCtxRetain, \
    477 LaunchCooperativeKernel, 478 LaunchCooperativeKernel, 514 GraphLaunch, 652 LaunchKernelEx, \
    653 LaunchKernelEx";

/// Names of the calls in a table by their numbers: `cudaLaunchKernel` is number 211 in `RUNTIME`.
pub(super) fn names(table: &str) -> HashMap<i64, String> {
    let (calls, prefix) = if table == "RUNTIME" { (RUNTIME, "cuda") } else { (DRIVER, "cu") };
    let call = |call: &str| {
        let (id, name) = call.split_once(' ')?;
        Some((id.parse().ok()?, format!("{prefix}{name}")))
    };
    calls.split(", ").filter_map(call).collect()
}
