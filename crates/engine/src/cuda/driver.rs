//! The CUDA driver's objects behind safe functions: contexts, memory, streams, events, recordings, kernels.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use paceline_record::Nanos;

use super::turn::{TURNSTILE, Turn};
use crate::EngineError;

/// Turns a status into an error that names the call.
pub(super) fn check(status: sys::CUresult, call: &str) -> Result<(), EngineError> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver hands out a static string, or leaves null.
    let answer = unsafe {
        let _ = sys::cuGetErrorString(status, &mut text);
        if text.is_null() {
            format!("{status:?}")
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    Err(EngineError::Device { call: call.to_owned(), answer })
}

/// A GPU, and this process's primary context on it.
#[derive(Debug)]
pub(super) struct Device {
    pub number: usize,
    pub name: String,
    /// Compute capability: major and minor.
    pub capability: (i32, i32),
    context: sys::CUcontext,
    turn: Turn,
}

// SAFETY: a context may be made current on any thread; the driver locks it.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// How many there are, at least one; the driver's library must be there.
    pub fn count() -> Result<usize, EngineError> {
        let mut count = 0;
        // SAFETY: plain calls of the driver, with a place for the number.
        unsafe {
            let begun = sys::cuInit(0);
            check(begun, "cuInit").map_err(|error| match begun {
                sys::CUresult::CUDA_ERROR_NO_DEVICE => EngineError::NoGpu(error.to_string()),
                _ => error,
            })?;
            check(sys::cuDeviceGetCount(&mut count), "cuDeviceGetCount")?;
        }
        match count {
            0 => Err(EngineError::NoGpu("the driver has no GPU".into())),
            count => Ok(count as usize),
        }
    }

    /// The GPU with this number; the driver's library must be there. Refused while another thread uses one.
    pub fn open(number: usize) -> Result<Arc<Self>, EngineError> {
        let count = Self::count()?;
        let turn = TURNSTILE.enter()?;
        // SAFETY: plain calls of the driver, with places for their results.
        unsafe {
            if number >= count {
                return Err(EngineError::Unsupported(format!(
                    "GPU {number} was asked for, and the driver has {count}"
                )));
            }
            let mut device = 0;
            check(sys::cuDeviceGet(&mut device, number as i32), "cuDeviceGet")?;
            let mut name = [0; 128];
            check(sys::cuDeviceGetName(name.as_mut_ptr(), 128, device), "cuDeviceGetName")?;
            use sys::CUdevice_attribute_enum as Attribute;
            let attribute = |which: Attribute| -> Result<i32, EngineError> {
                let mut value = 0;
                check(sys::cuDeviceGetAttribute(&mut value, which, device), "cuDeviceGetAttribute")?;
                Ok(value)
            };
            let capability = (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            let mut context = ptr::null_mut();
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device), "cuDevicePrimaryCtxRetain")?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let device = Self { number, name, capability, context, turn };
            device.enter()?;
            Ok(Arc::new(device))
        }
    }

    /// Makes its context this thread's; refuses a thread that did not open it.
    pub fn enter(&self) -> Result<(), EngineError> {
        self.turn.check()?;
        self.make_current()
    }

    /// Makes its context this thread's, to give back what a program holds wherever that is dropped.
    pub fn make_current(&self) -> Result<(), EngineError> {
        // SAFETY: the context is alive as long as this value.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "cuCtxSetCurrent")
    }

    /// Bytes free, and bytes in total.
    pub fn memory(&self) -> Result<(u64, u64), EngineError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places for two numbers.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }
}

/// Bytes of device memory that this process holds in [`Memory`].
static HELD: AtomicU64 = AtomicU64::new(0);

/// Bytes on a device.
#[derive(Debug)]
pub(super) struct Memory {
    pub address: u64,
    pub bytes: usize,
}

impl Memory {
    /// Takes memory, filled with zeros.
    pub fn new(bytes: usize) -> Result<Self, EngineError> {
        let mut address = 0;
        let bytes = bytes.max(256);
        // SAFETY: the memory is ours; setting it is complete before anybody uses it.
        unsafe {
            check(
                sys::cuMemAlloc_v2(&mut address, bytes),
                &format!("taking {} MB of device memory", bytes >> 20),
            )?;
            HELD.fetch_add(bytes as u64, Ordering::Relaxed);
            let memory = Self { address, bytes };
            check(sys::cuMemsetD8Async(address, 0, bytes, ptr::null_mut()), "cuMemsetD8")?;
            check(sys::cuStreamSynchronize(ptr::null_mut()), "cuStreamSynchronize")?;
            Ok(memory)
        }
    }

    /// Bytes that this process holds, all programs together.
    pub fn held() -> u64 {
        HELD.load(Ordering::Relaxed)
    }

    /// Fills it with a byte.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<(), EngineError> {
        // SAFETY: the memory is ours.
        check(unsafe { sys::cuMemsetD8Async(self.address, byte, self.bytes, stream.0) }, "cuMemsetD8Async")
    }

    pub fn upload<T: Copy>(values: &[T]) -> Result<Self, EngineError> {
        let memory = Self::new(std::mem::size_of_val(values))?;
        write(memory.address, values)?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: nobody uses it any more; the driver waits for running work.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Copies values to the device, and waits: the call itself may return before the last bytes have arrived.
pub(super) fn write<T: Copy>(to: u64, from: &[T]) -> Result<(), EngineError> {
    // SAFETY: the caller's region is at least as long, as all callers check.
    unsafe {
        check(sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from)), "cuMemcpyHtoD")?;
        check(sys::cuStreamSynchronize(ptr::null_mut()), "cuStreamSynchronize")
    }
}

/// Copies values from the device, and waits.
pub(super) fn read<T: Copy>(into: &mut [T], from: u64) -> Result<(), EngineError> {
    // SAFETY: as above.
    check(
        unsafe { sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), from, std::mem::size_of_val(into)) },
        "cuMemcpyDtoH",
    )
}

/// Host memory that the device can copy from by itself.
#[derive(Debug)]
pub(super) struct Pinned {
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(bytes: usize) -> Result<Self, EngineError> {
        let mut at = ptr::null_mut();
        // SAFETY: a place for the address.
        check(unsafe { sys::cuMemAllocHost_v2(&mut at, bytes.max(64)) }, "cuMemAllocHost")?;
        Ok(Self { at, bytes: bytes.max(64) })
    }

    pub fn address(&self) -> *mut c_void {
        self.at
    }

    /// The first values of it.
    pub fn values<T: Copy>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes, "invariant: pinned memory is long enough");
        // SAFETY: aligned to a page, long enough, and ours; callers wait for running copies first.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: taken by `new`; copies have ended, as programs wait before they are dropped.
        let _ = unsafe { sys::cuMemFreeHost(self.at) };
    }
}

/// A queue of work on the device.
#[derive(Debug)]
pub(super) struct Stream(pub sys::CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new() -> Result<Self, EngineError> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for the handle.
        check(unsafe { sys::cuStreamCreate(&mut stream, flags) }, "cuStreamCreate")?;
        Ok(Self(stream))
    }

    pub fn wait(&self) -> Result<(), EngineError> {
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamSynchronize(self.0) }, "the device's work")
    }

    /// Whether all that was put on it is done.
    pub fn is_idle(&self) -> Result<bool, EngineError> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check(status, "the device's work").map(|()| true),
        }
    }

    /// Sets a 32-bit value.
    pub fn set(&self, at: u64, bits: u32) -> Result<(), EngineError> {
        // SAFETY: callers name memory of the program that owns this stream.
        check(unsafe { sys::cuMemsetD32Async(at, bits, 1, self.0) }, "cuMemsetD32Async")
    }

    /// Work put on this stream from now on waits for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        check(unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) }, "cuStreamWaitEvent")
    }

    /// Copies from pinned memory.
    pub fn copy_in(&self, to: u64, from: *const c_void, bytes: usize) -> Result<(), EngineError> {
        // SAFETY: callers keep the source until an event tells that it was read.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.0) }, "cuMemcpyHtoDAsync")
    }

    /// Copies from one place on the device to another.
    pub fn copy_on(&self, to: u64, from: u64, bytes: usize) -> Result<(), EngineError> {
        // SAFETY: both are memory of the program that owns this stream.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.0) }, "cuMemcpyDtoDAsync")
    }

    /// Copies to pinned memory.
    pub fn copy_out(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<(), EngineError> {
        // SAFETY: callers read it after a wait.
        check(unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, self.0) }, "cuMemcpyDtoHAsync")
    }

    /// Records what `body` puts on the stream instead of running it.
    pub fn record(&self, body: impl FnOnce() -> Result<(), EngineError>) -> Result<Recording, EngineError> {
        // SAFETY: plain calls; the graph is destroyed once it is instantiated.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            check(sys::cuStreamBeginCapture_v2(self.0, mode), "cuStreamBeginCapture")?;
            let done = body();
            let mut graph = ptr::null_mut();
            let ended = check(sys::cuStreamEndCapture(self.0, &mut graph), "cuStreamEndCapture");
            done?;
            ended?;
            let mut exec = ptr::null_mut();
            let made = check(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0), "cuGraphInstantiate");
            let _ = sys::cuGraphDestroy(graph);
            made?;
            Ok(Recording(exec))
        }
    }

    /// Runs a recording.
    pub fn replay(&self, recording: &Recording) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        check(unsafe { sys::cuGraphLaunch(recording.0, self.0) }, "cuGraphLaunch")
    }

    /// Marks this point of the stream.
    pub fn mark(&self, event: &Event) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        check(unsafe { sys::cuEventRecord(event.0, self.0) }, "cuEventRecord")
    }

    /// Marks this point of a stream that is being recorded, so that the time can be read after each replay.
    pub fn mark_recorded(&self, event: &Event) -> Result<(), EngineError> {
        let flags = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both are alive.
        check(unsafe { sys::cuEventRecordWithFlags(event.0, self.0, flags) }, "cuEventRecordWithFlags")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub(super) struct Event(pub sys::CUevent);

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    pub fn new() -> Result<Self, EngineError> {
        let mut event = ptr::null_mut();
        // SAFETY: a place for the handle.
        check(unsafe { sys::cuEventCreate(&mut event, 0) }, "cuEventCreate")?;
        Ok(Self(event))
    }

    pub fn wait(&self) -> Result<(), EngineError> {
        // SAFETY: the event is alive.
        check(unsafe { sys::cuEventSynchronize(self.0) }, "the device's work")
    }

    /// Time from another event to this one, both passed.
    pub fn since(&self, earlier: &Event) -> Result<Nanos, EngineError> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.0, self.0) };
        check(status, "cuEventElapsedTime")?;
        Ok(Nanos((f64::from(milliseconds.max(0.0)) * 1e6) as u64))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Work that one call runs again: a CUDA graph.
#[derive(Debug)]
pub(super) struct Recording(sys::CUgraphExec);

// SAFETY: used by one thread at a time.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// Loaded machine code.
#[derive(Debug)]
pub(super) struct Module(sys::CUmodule);

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub fn load(image: &[u8]) -> Result<Self, EngineError> {
        let mut module = ptr::null_mut();
        // SAFETY: the image is machine code with its lengths inside.
        check(unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) }, "cuModuleLoadData")?;
        Ok(Self(module))
    }

    pub fn function(&self, name: &str) -> Result<Function, EngineError> {
        let mut function = ptr::null_mut();
        let text = CString::new(name).expect("invariant: kernel names hold no zeros");
        // SAFETY: the module is alive.
        let status = unsafe { sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr()) };
        check(status, &format!("finding the kernel {name}"))?;
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: nobody uses its functions any more.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

/// A kernel; valid as long as its module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: functions may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The threads of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub grid: (u32, u32, u32),
    pub block: (u32, u32),
    /// Bytes of shared memory.
    pub shared: u32,
    /// Blocks of a column of the grid that share their memory.
    pub cluster: u32,
}

/// Bytes of shared memory that a block may use by default.
const USUAL_SHARED: u32 = 40 << 10;

impl Function {
    /// Puts a run on a stream. `args` are the kernel's arguments, each in memory as the kernel expects it.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, and the addresses among them valid until the run has ended.
    pub unsafe fn launch(
        self,
        stream: &Stream,
        shape: Shape,
        args: &mut [*mut c_void],
    ) -> Result<(), EngineError> {
        let Shape { grid, block, shared, cluster } = shape;
        if shared > USUAL_SHARED {
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is alive as long as its module.
            check(unsafe { sys::cuFuncSetAttribute(self.0, most, shared as i32) }, "cuFuncSetAttribute")?;
        }
        use sys::CUlaunchAttributeID as Id;
        let attribute = |id: Id| {
            // SAFETY: a union of plain numbers, set below.
            let value = unsafe { std::mem::zeroed() };
            sys::CUlaunchAttribute { id, pad: [0; 4], value }
        };
        // A kernel may start while the previous one in the stream ends; each waits for that one itself.
        let mut early = attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        early.value.programmaticStreamSerializationAllowed = 1;
        let mut together = attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        together.value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: cluster, z: 1 };
        let mut attributes = [early, together];
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: block.0,
            blockDimY: block.1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: 1 + u32::from(cluster > 1),
        };
        // SAFETY: the caller vouches; the configuration outlives the call.
        check(
            unsafe { sys::cuLaunchKernelEx(&config, self.0, args.as_mut_ptr(), ptr::null_mut()) },
            "cuLaunchKernelEx",
        )
    }
}
