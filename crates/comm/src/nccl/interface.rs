//! The part of NCCL's interface that is used: the real library, and the seam that tests put a fake behind.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{mem, ptr};

use cudarc::driver::sys as driver;
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use libloading::Library as Object;
use paceline_record::Rank;

use super::{DeviceValues, Stream};
use crate::CommError;

/// The name of a group, as NCCL makes it.
pub type UniqueId = [u8; 128];

/// A rank's place in a group, as whoever implements [`Interface`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(usize);

impl Handle {
    /// A handle of this number.
    ///
    /// # Safety
    /// It must come from [`Interface::init_rank`] and be handed to the same interface only: the library takes it for an
    /// address.
    pub unsafe fn new(number: usize) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> usize {
        self.0
    }

    fn comm(self) -> sys::ncclComm_t {
        self.0 as sys::ncclComm_t
    }
}

/// What an operation works on. It is made of [`DeviceValues`] and a [`Stream`] alone, so that its addresses are vouched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub(super) from: u64,
    pub(super) into: u64,
    pub(super) len: usize,
    pub(super) stream: u64,
}

impl Call {
    pub(super) fn in_place(values: DeviceValues, stream: Stream) -> Self {
        Self { from: values.address, into: values.address, len: values.len, stream: stream.0 }
    }

    /// Address of the values that go in.
    pub fn from(self) -> u64 {
        self.from
    }

    /// Address that results go to.
    pub fn into(self) -> u64 {
        self.into
    }

    /// Values of each rank.
    #[expect(clippy::len_without_is_empty, reason = "a call of no values is a call all the same")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Handle of the stream that it is put on.
    pub fn stream(self) -> u64 {
        self.stream
    }

    fn source(self) -> Source {
        self.from as Source
    }

    fn target(self) -> Target {
        self.into as Target
    }

    fn queue(self) -> Queue {
        self.stream as Queue
    }
}

/// NCCL's calls, over 32-bit floats; reductions are means.
pub trait Interface: Send + Sync {
    /// Names a new group.
    fn unique_id(&self) -> Result<UniqueId, CommError>;
    /// The device that is current on this thread.
    fn context(&self) -> Result<usize, CommError>;
    /// Makes a device this thread's.
    fn enter(&self, context: usize) -> Result<(), CommError>;
    /// Joins a group, and waits for the others.
    fn init_rank(&self, world: u32, id: UniqueId, rank: Rank) -> Result<Handle, CommError>;
    /// All-reduce.
    fn all_reduce(&self, comm: Handle, call: Call) -> Result<(), CommError>;
    /// Reduce-scatter; `len` is that of a slice.
    fn reduce_scatter(&self, comm: Handle, call: Call) -> Result<(), CommError>;
    /// All-gather; `len` is that of a slice.
    fn all_gather(&self, comm: Handle, call: Call) -> Result<(), CommError>;
    /// Reduce to one rank.
    fn reduce(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError>;
    /// Broadcast from one rank.
    fn broadcast(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError>;
    /// Begins operations that are put on the stream as one.
    fn group_start(&self) -> Result<(), CommError>;
    /// Ends them.
    fn group_end(&self) -> Result<(), CommError>;
    /// What has gone wrong since, on this rank or another.
    fn async_error(&self, comm: Handle) -> Result<(), CommError>;
    /// Leaves a group whose operations will not end by themselves.
    fn abort(&self, comm: Handle);
    /// Leaves a group.
    fn destroy(&self, comm: Handle);
}

/// What NCCL answers: 0 where all is well. A number, as a newer library may give answers that our declarations lack.
type Status = c_uint;

const SUCCESS: Status = ncclResult_t::ncclSuccess as Status;
const IN_PROGRESS: Status = ncclResult_t::ncclInProgress as Status;

/// Declares functions of the library with the types that its header gives them.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Takes them out of the library, or names the first that it lacks.
            fn take(object: &Object) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: so NCCL declares it.
                        let found = unsafe { object.get(stringify!($name)) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    ncclGetErrorString(Status) -> *const c_char;
    ncclGetLastError(sys::ncclComm_t) -> *const c_char;
    ncclGetUniqueId(*mut sys::ncclUniqueId) -> Status;
    ncclCommInitRank(*mut sys::ncclComm_t, c_int, sys::ncclUniqueId, c_int) -> Status;
    ncclCommGetAsyncError(sys::ncclComm_t, *mut Status) -> Status;
    ncclCommAbort(sys::ncclComm_t) -> Status;
    ncclCommDestroy(sys::ncclComm_t) -> Status;
    ncclGroupStart() -> Status;
    ncclGroupEnd() -> Status;
    ncclAllReduce(Source, Target, usize, ncclDataType_t, ncclRedOp_t, sys::ncclComm_t, Queue) -> Status;
    ncclReduceScatter(Source, Target, usize, ncclDataType_t, ncclRedOp_t, sys::ncclComm_t, Queue) -> Status;
    ncclAllGather(Source, Target, usize, ncclDataType_t, sys::ncclComm_t, Queue) -> Status;
    ncclReduce(Source, Target, usize, ncclDataType_t, ncclRedOp_t, c_int, sys::ncclComm_t, Queue) -> Status;
    ncclBroadcast(Source, Target, usize, ncclDataType_t, c_int, sys::ncclComm_t, Queue) -> Status;
}

type Source = *const c_void;
type Target = *mut c_void;
type Queue = sys::cudaStream_t;

/// The real library.
pub struct Library(Functions);

/// Its names: that of the interface, which every package brings, and that of packages for building.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that will do, as the library counts.
const NEEDED: c_int = 22_700;

/// A version as people write it; up to 2.8, 2804 was 2.8.4.
fn text(version: c_int) -> String {
    let step = if version < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", version / step, version % step / 100, version % 100)
}

/// Opens the first of these that can be loaded.
pub(super) fn open(names: &[&str]) -> Result<Object, CommError> {
    let mut found = None;
    for name in names {
        // SAFETY: the library's initialisers run, as they would in any program that uses it.
        match unsafe { Object::new(*name) } {
            Ok(object) => return Ok(object),
            Err(libloading::Error::DlOpen { source }) => {
                let why = source.to_string();
                let is_missing = why.contains(name) && why.ends_with("No such file or directory");
                found = found.or((!is_missing).then(|| format!("that cannot be loaded ({why})")));
            }
            Err(_) => {}
        }
    }
    Err(CommError::NoNccl { found })
}

impl Library {
    /// Finds the library, or says what is missing.
    pub fn find() -> Result<Self, CommError> {
        Self::take(open(&NAMES)?)
    }

    /// Takes what is used out of a library that is new enough.
    pub(super) fn take(object: Object) -> Result<Self, CommError> {
        let refused = |found: String| CommError::NoNccl { found: Some(found) };
        let version = version(&object).ok_or_else(|| refused("of unknown version".into()))?;
        if version < NEEDED {
            return Err(refused(text(version)));
        }
        let lacks = |name| refused(format!("{} without {name}", text(version)));
        let functions = Functions::take(&object).map_err(lacks)?;
        // It stays loaded until the process ends: threads of its own may outlive every group.
        mem::forget(object);
        Ok(Self(functions))
    }

    fn check(&self, status: Status, call: &'static str) -> Result<(), CommError> {
        if status == SUCCESS {
            return Ok(());
        }
        let Functions { ncclGetErrorString, ncclGetLastError, .. } = self.0;
        // SAFETY: the library hands out static strings, and the last error of no group in particular.
        let answer = unsafe {
            let said = |text: *const c_char| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            let (what, why) = (said(ncclGetErrorString(status)), said(ncclGetLastError(ptr::null_mut())));
            if why.is_empty() { what } else { format!("{what}: {}", why.trim()) }
        };
        Err(CommError::Nccl { call, answer })
    }
}

/// The version of a library, as it counts: 22807 is 2.28.7.
fn version(object: &Object) -> Option<c_int> {
    type Ask = unsafe extern "C" fn(*mut c_int) -> Status;
    let mut version = 0;
    // SAFETY: so NCCL declares it; it writes one number.
    let status = unsafe { object.get::<Ask>("ncclGetVersion").ok()?(&mut version) };
    (status == SUCCESS).then_some(version)
}

const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;
const MEAN: ncclRedOp_t = ncclRedOp_t::ncclAvg;

fn check_driver(status: driver::CUresult, call: &'static str) -> Result<(), CommError> {
    if status == driver::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CommError::Nccl { call, answer: format!("{status:?}") })
}

// SAFETY of the calls below: a handle is one that `init_rank` gave, and addresses and streams are good until the operation
// is done: whoever made `Handle`, `DeviceValues` and `Stream` has vouched for it.
impl Interface for Library {
    fn unique_id(&self) -> Result<UniqueId, CommError> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: a place for the name.
        self.check(unsafe { (self.0.ncclGetUniqueId)(&mut id) }, "ncclGetUniqueId")?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    fn context(&self) -> Result<usize, CommError> {
        // SAFETY: it looks for the driver alone. Without it nothing is on a device.
        if !unsafe { driver::is_culib_present() } {
            return Ok(0);
        }
        let mut context = ptr::null_mut();
        // SAFETY: a place for the handle.
        check_driver(unsafe { driver::cuCtxGetCurrent(&mut context) }, "cuCtxGetCurrent")?;
        Ok(context as usize)
    }

    fn enter(&self, context: usize) -> Result<(), CommError> {
        if context == 0 {
            return Ok(());
        }
        // SAFETY: the context of a device is alive as long as the process that took it.
        check_driver(unsafe { driver::cuCtxSetCurrent(context as driver::CUcontext) }, "cuCtxSetCurrent")
    }

    fn init_rank(&self, world: u32, id: UniqueId, rank: Rank) -> Result<Handle, CommError> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut comm = ptr::null_mut();
        // SAFETY: a place for the handle.
        let status = unsafe { (self.0.ncclCommInitRank)(&mut comm, world as i32, id, rank.0 as i32) };
        self.check(status, "ncclCommInitRank")?;
        // SAFETY: it is what the library gave for this rank.
        Ok(unsafe { Handle::new(comm as usize) })
    }

    fn all_reduce(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        let Call { len, .. } = call;
        // SAFETY: as above.
        let status = unsafe {
            (self.0.ncclAllReduce)(call.source(), call.target(), len, F32, MEAN, comm.comm(), call.queue())
        };
        self.check(status, "ncclAllReduce")
    }

    fn reduce_scatter(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        let Call { len, .. } = call;
        // SAFETY: as above.
        let status = unsafe {
            (self.0.ncclReduceScatter)(
                call.source(),
                call.target(),
                len,
                F32,
                MEAN,
                comm.comm(),
                call.queue(),
            )
        };
        self.check(status, "ncclReduceScatter")
    }

    fn all_gather(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        // SAFETY: as above.
        let status = unsafe {
            (self.0.ncclAllGather)(call.source(), call.target(), call.len, F32, comm.comm(), call.queue())
        };
        self.check(status, "ncclAllGather")
    }

    fn reduce(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        let (len, root) = (call.len, root.0 as i32);
        // SAFETY: as above.
        let status = unsafe {
            (self.0.ncclReduce)(call.source(), call.target(), len, F32, MEAN, root, comm.comm(), call.queue())
        };
        self.check(status, "ncclReduce")
    }

    fn broadcast(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        let (len, root) = (call.len, root.0 as i32);
        // SAFETY: as above.
        let status = unsafe {
            (self.0.ncclBroadcast)(call.source(), call.target(), len, F32, root, comm.comm(), call.queue())
        };
        self.check(status, "ncclBroadcast")
    }

    fn group_start(&self) -> Result<(), CommError> {
        // SAFETY: no operands.
        self.check(unsafe { (self.0.ncclGroupStart)() }, "ncclGroupStart")
    }

    fn group_end(&self) -> Result<(), CommError> {
        // SAFETY: no operands.
        self.check(unsafe { (self.0.ncclGroupEnd)() }, "ncclGroupEnd")
    }

    fn async_error(&self, comm: Handle) -> Result<(), CommError> {
        let mut status = SUCCESS;
        // SAFETY: a place for the status.
        let asked = unsafe { (self.0.ncclCommGetAsyncError)(comm.comm(), &mut status) };
        self.check(asked, "ncclCommGetAsyncError")?;
        if status == IN_PROGRESS {
            return Ok(());
        }
        self.check(status, "an exchange through NCCL")
    }

    fn abort(&self, comm: Handle) {
        // SAFETY: the group is not used again; there is nothing left to do about a refusal.
        let _ = unsafe { (self.0.ncclCommAbort)(comm.comm()) };
    }

    fn destroy(&self, comm: Handle) {
        // SAFETY: as above.
        let _ = unsafe { (self.0.ncclCommDestroy)(comm.comm()) };
    }
}
