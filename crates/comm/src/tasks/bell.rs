//! What members call their launcher and its porter by.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::CommError;

/// Lets members call the launcher, which waits for many things at once.
pub struct Bell {
    file: OwnedFd,
}

impl Bell {
    /// A bell that processes started from now on inherit.
    pub fn create() -> Result<Self, CommError> {
        let file = rustix::event::eventfd(0, EventfdFlags::NONBLOCK);
        Ok(Self { file: file.map_err(CommError::system("create an event"))? })
    }

    /// A bell for this process alone.
    pub fn private() -> Result<Self, CommError> {
        let file = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Self { file: file.map_err(CommError::system("create an event"))? })
    }

    /// The bell that this process has inherited under this number.
    pub fn attach(descriptor: RawFd) -> Result<Self, CommError> {
        // SAFETY: it is used in this call only, and where nothing is open under this number the system says so.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0);
        Ok(Self { file: file.map_err(CommError::system("find the launcher's event"))? })
    }

    /// The number of the file descriptor that members inherit.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Calls the launcher.
    pub fn ring(&self) {
        // It fails only where it has been rung four billion times and nobody looked.
        let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
    }

    /// Notes that the launcher has heard it.
    pub fn silence(&self) -> io::Result<()> {
        match rustix::io::read(&self.file, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
