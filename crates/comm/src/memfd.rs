//! Files in memory without a name, which processes inherit: how workers come by the memory that they share.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use paceline_record::Bytes;
use paceline_system::memory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, getrlimit};

use crate::CommError;

/// Areas begin at multiples of this.
pub(crate) const PAGE: usize = 4096;

/// No process can change the size any more, so no access to a mapping can fail.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Bytes that a file in memory may have.
pub(crate) fn room() -> Bytes {
    // Beyond this the system would not answer but send a signal.
    let file = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    Bytes(memory::available().map_or(u64::MAX, |left| left.0).min(file))
}

/// Takes memory, all of it at once.
pub(crate) fn create(bytes: usize) -> Result<OwnedFd, CommError> {
    // Not closed on exec: that is how workers come by it. Older systems do not know the first flag.
    let create = |flags| rustix::fs::memfd_create("paceline", flags);
    let file = create(MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| create(MemfdFlags::ALLOW_SEALING))
        .map_err(CommError::system("create shared memory"))?;
    let allocate = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64);
    retry_on_intr(allocate).map_err(CommError::system("allocate shared memory"))?;
    rustix::fs::fcntl_add_seals(&file, SEALS).map_err(CommError::system("seal shared memory"))?;
    Ok(file)
}

/// The file that this process has inherited under a number, and its length.
pub(crate) fn inherited<'a>(descriptor: RawFd) -> Result<(BorrowedFd<'a>, usize), CommError> {
    let refused = |why: String| CommError::segment(format!("file descriptor {descriptor} is none: {why}"));
    if descriptor < 0 {
        return Err(refused("it is negative".into()));
    }
    // SAFETY: nobody closes it, and where nothing is open under this number the system says so.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|error| refused(error.to_string()))?;
    if !seals.contains(SEALS) {
        return Err(refused("its size is not fixed".into()));
    }
    let length =
        rustix::fs::fstat(file).map_err(CommError::system("look at shared memory"))?.st_size as usize;
    if length < PAGE {
        return Err(refused(format!("it has {length} bytes")));
    }
    Ok((file, length))
}
