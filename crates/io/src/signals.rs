//! SIGTERM and SIGINT are read from a descriptor instead of interrupting the thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes the process exit quietly when it prints to a closed pipe, as in `ashlar pg ls | head`. Only for
/// commands that print and exit: a server must survive the loss of its log.
pub fn end_on_closed_pipe() {
    // SAFETY: this call sets a standard disposition; no handler of ours runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Blocks both signals in this thread and in threads it starts later, and opens a descriptor that reports
/// them.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set before anything reads it; the calls take pointers to
    // it that live as long as the calls; `signalfd` returns a new descriptor that nobody else
    // owns, or -1, which is checked.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
