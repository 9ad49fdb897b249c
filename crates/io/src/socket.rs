//! Sockets for the reactor: in blocking mode (io_uring waits, never the thread), without Nagle's delay, and
//! with kernel timeouts that detect a silent peer.

use std::os::fd::{AsFd, OwnedFd};

use format::door::CloseReason;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, listen as listen_on, socket_with,
    sockopt,
};

use crate::Error;
use crate::address::Address;

/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// How long a peer may be silent before its connection ends, in seconds.
const SILENCE_SECONDS_MAX: u64 = 5;

/// The same limit for connections with a monitor.
const MONITOR_SILENCE_SECONDS_MAX: u32 = 2;

/// Opens a listening socket. Returns it with the bound address.
pub(crate) fn listen(text: &str) -> Result<(OwnedFd, String), Error> {
    let address = Address::parse(text)?.resolve()?;
    let failed = |error: Errno| Error::new(format!("cannot listen on {text}"), error);
    let (family, place) = address.to_socket()?;
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(failed)?;
    if let Address::Tcp(_) = address {
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
    }
    match (bind(&socket, &place), &address) {
        (Ok(()), _) => {}
        (Err(Errno::ADDRINUSE), Address::Unix(path)) if is_left_over(&address) => {
            std::fs::remove_file(path).map_err(|error| Error::new(text, error))?;
            bind(&socket, &place).map_err(failed)?;
        }
        (Err(error), _) => return Err(failed(error)),
    }
    listen_on(&socket, BACKLOG).map_err(failed)?;
    let Address::Tcp(_) = address else { return Ok((socket, text.to_string())) };
    let bound = getsockname(&socket).map_err(failed)?;
    let bound = std::net::SocketAddr::try_from(bound).map_err(failed)?;
    Ok((socket, format!("tcp:{bound}")))
}

/// Whether a Unix socket was left over by a process that has ended (connects to it are refused).
fn is_left_over(address: &Address) -> bool {
    matches!(connect(address), Err(Errno::CONNREFUSED))
}

/// Starts to connect. The flag in the result says whether the connect has already finished.
pub(crate) fn connect(address: &Address) -> Result<(OwnedFd, bool), Errno> {
    let (family, place) = address.to_socket().map_err(|_| Errno::INVAL)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    let finished = match rustix::net::connect(&socket, &place) {
        Ok(()) => true,
        Err(Errno::INPROGRESS) => false,
        Err(error) => return Err(error),
    };
    rustix::io::ioctl_fionbio(&socket, false)?;
    if family != AddressFamily::UNIX {
        tune_tcp(&socket);
    }
    Ok((socket, finished))
}

/// Sets the options that every TCP connection gets. Ignores options that the kernel refuses.
pub(crate) fn tune_tcp(socket: impl AsFd) {
    let second = std::time::Duration::from_secs(1);
    let _ = sockopt::set_tcp_nodelay(&socket, true);
    let _ = sockopt::set_socket_keepalive(&socket, true);
    let _ = sockopt::set_tcp_keepidle(&socket, second * 2);
    let _ = sockopt::set_tcp_keepintvl(&socket, second);
    let _ = sockopt::set_tcp_keepcnt(&socket, (SILENCE_SECONDS_MAX - 2) as u32);
    let _ = sockopt::set_tcp_user_timeout(&socket, SILENCE_SECONDS_MAX as u32 * 1000);
}

/// Shortens the silence timeouts, for connections with a monitor: a program that waits for the monitor to
/// report which OSDs are down must quickly notice if the host of the monitor itself is down. These
/// connections carry little data and are always read, so a second of packet loss is rare on them.
pub(crate) fn notice_silence_soon(socket: impl AsFd) {
    let second = std::time::Duration::from_secs(1);
    let _ = sockopt::set_tcp_keepidle(&socket, second);
    let _ = sockopt::set_tcp_keepintvl(&socket, second);
    let _ = sockopt::set_tcp_user_timeout(&socket, MONITOR_SILENCE_SECONDS_MAX * 1000);
}

/// Converts a socket error to the reason for closing the connection.
pub(crate) fn close_reason(error: Errno) -> CloseReason {
    match error {
        Errno::CONNREFUSED | Errno::NOENT => CloseReason::Refused,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::AGAIN => {
            CloseReason::TimedOut
        }
        _ => CloseReason::Reset,
    }
}
