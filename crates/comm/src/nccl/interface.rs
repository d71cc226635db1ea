//! The part of NCCL's interface that is used: the real library, and the seam that tests put a fake behind.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys as driver;
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use paceline_record::Rank;

use super::DeviceValues;
use crate::CommError;

/// The name of a group, as NCCL makes it.
pub type UniqueId = [u8; 128];

/// A rank's place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// What an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Values that go in.
    pub from: u64,
    /// Where results go.
    pub into: u64,
    /// Values of each rank.
    pub len: usize,
    /// The stream that it is put on.
    pub stream: u64,
}

impl Call {
    pub(super) fn in_place(values: DeviceValues, stream: u64) -> Self {
        Self { from: values.address, into: values.address, len: values.len, stream }
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
    /// Reduce-scatter; `len` is that of a share.
    fn reduce_scatter(&self, comm: Handle, call: Call) -> Result<(), CommError>;
    /// All-gather; `len` is that of a share.
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

/// The real library.
#[derive(Debug)]
pub struct Library {
    _found: (),
}

/// The oldest version that will do, as the library counts.
const NEEDED: i32 = 22_700;

fn text(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

impl Library {
    /// Finds the library, or says what is missing.
    pub fn find() -> Result<Self, CommError> {
        let found = Self::version();
        if found < Some(NEEDED) {
            return Err(CommError::NoNccl { found: found.map(text) });
        }
        Ok(Self { _found: () })
    }

    /// The version that is there, as the library counts: 22807 is 2.28.7.
    pub fn version() -> Option<i32> {
        // SAFETY: the library is opened by name, and asked for a number.
        unsafe {
            if !sys::is_culib_present() {
                return None;
            }
            let mut version = 0;
            (sys::ncclGetVersion(&mut version) == ncclResult_t::ncclSuccess).then_some(version)
        }
    }
}

const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;
const MEAN: ncclRedOp_t = ncclRedOp_t::ncclAvg;

fn check(status: ncclResult_t, call: &'static str) -> Result<(), CommError> {
    if status == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: the library hands out static strings, and the last error of no group in particular.
    let answer = unsafe {
        let said = |text: *const std::ffi::c_char| match text.is_null() {
            true => String::new(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        };
        let (what, why) =
            (said(sys::ncclGetErrorString(status)), said(sys::ncclGetLastError(ptr::null_mut())));
        if why.is_empty() { what } else { format!("{what}: {}", why.trim()) }
    };
    Err(CommError::Nccl { call, answer })
}

fn check_driver(status: driver::CUresult, call: &'static str) -> Result<(), CommError> {
    if status == driver::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CommError::Nccl { call, answer: format!("{status:?}") })
}

impl Handle {
    fn comm(self) -> sys::ncclComm_t {
        self.0 as sys::ncclComm_t
    }
}

impl Call {
    fn from(self) -> *const c_void {
        self.from as *const c_void
    }

    fn into(self) -> *mut c_void {
        self.into as *mut c_void
    }

    fn stream(self) -> sys::cudaStream_t {
        self.stream as sys::cudaStream_t
    }
}

// SAFETY of the calls below: handles are those that `init_rank` gave; addresses and streams are those of the program that
// puts the operation on its stream, and stay valid until it has waited for it.
impl Interface for Library {
    fn unique_id(&self) -> Result<UniqueId, CommError> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: a place for the name.
        check(unsafe { sys::ncclGetUniqueId(&mut id) }, "ncclGetUniqueId")?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    fn context(&self) -> Result<usize, CommError> {
        let mut context = ptr::null_mut();
        // SAFETY: a place for the handle.
        check_driver(unsafe { driver::cuCtxGetCurrent(&mut context) }, "cuCtxGetCurrent")?;
        Ok(context as usize)
    }

    fn enter(&self, context: usize) -> Result<(), CommError> {
        // SAFETY: the context of a device is alive as long as the process that took it.
        check_driver(unsafe { driver::cuCtxSetCurrent(context as driver::CUcontext) }, "cuCtxSetCurrent")
    }

    fn init_rank(&self, world: u32, id: UniqueId, rank: Rank) -> Result<Handle, CommError> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
        let mut comm = ptr::null_mut();
        // SAFETY: a place for the handle.
        let status = unsafe { sys::ncclCommInitRank(&mut comm, world as i32, id, rank.0 as i32) };
        check(status, "ncclCommInitRank")?;
        Ok(Handle(comm as usize))
    }

    fn all_reduce(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        let Call { len, .. } = call;
        // SAFETY: as above.
        let status = unsafe {
            sys::ncclAllReduce(call.from(), call.into(), len, F32, MEAN, comm.comm(), call.stream())
        };
        check(status, "ncclAllReduce")
    }

    fn reduce_scatter(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        let Call { len, .. } = call;
        // SAFETY: as above.
        let status = unsafe {
            sys::ncclReduceScatter(call.from(), call.into(), len, F32, MEAN, comm.comm(), call.stream())
        };
        check(status, "ncclReduceScatter")
    }

    fn all_gather(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        // SAFETY: as above.
        let status = unsafe {
            sys::ncclAllGather(call.from(), call.into(), call.len, F32, comm.comm(), call.stream())
        };
        check(status, "ncclAllGather")
    }

    fn reduce(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        let (len, root) = (call.len, root.0 as i32);
        // SAFETY: as above.
        let status = unsafe {
            sys::ncclReduce(call.from(), call.into(), len, F32, MEAN, root, comm.comm(), call.stream())
        };
        check(status, "ncclReduce")
    }

    fn broadcast(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        let (len, root) = (call.len, root.0 as i32);
        // SAFETY: as above.
        let status = unsafe {
            sys::ncclBroadcast(call.from(), call.into(), len, F32, root, comm.comm(), call.stream())
        };
        check(status, "ncclBroadcast")
    }

    fn group_start(&self) -> Result<(), CommError> {
        // SAFETY: no operands.
        check(unsafe { sys::ncclGroupStart() }, "ncclGroupStart")
    }

    fn group_end(&self) -> Result<(), CommError> {
        // SAFETY: no operands.
        check(unsafe { sys::ncclGroupEnd() }, "ncclGroupEnd")
    }

    fn async_error(&self, comm: Handle) -> Result<(), CommError> {
        let mut status = ncclResult_t::ncclSuccess;
        // SAFETY: a place for the status.
        check(unsafe { sys::ncclCommGetAsyncError(comm.comm(), &mut status) }, "ncclCommGetAsyncError")?;
        if status == ncclResult_t::ncclInProgress {
            return Ok(());
        }
        check(status, "an exchange through NCCL")
    }

    fn abort(&self, comm: Handle) {
        // SAFETY: the group is not used again; there is nothing left to do about a refusal.
        let _ = unsafe { sys::ncclCommAbort(comm.comm()) };
    }

    fn destroy(&self, comm: Handle) {
        // SAFETY: as above.
        let _ = unsafe { sys::ncclCommDestroy(comm.comm()) };
    }
}
