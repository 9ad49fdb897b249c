//! An echo over loopback TCP that imitates a load: a fixed number of requests in flight on one connection;
//! all requests have one size, all answers another.
//!
//! ```text
//!   near end: owes `depth` requests ──▶ far end: owes an answer for each complete request
//!        ▲ complete answer: owes one more request, until the time is over ────┘
//! ```
//!
//! Each end is a thread. Each system call sends as many owed bytes as possible, or receives all bytes that
//! have arrived: no program can move the same bytes over one connection with fewer calls.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};

use base::histogram::Histogram;
use base::{Duration, Time};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::measured::{Measured, cpu_time};
use crate::{Error, clock};

/// Maximum number of bytes of small messages that one system call sends or receives.
const BATCH_SIZE_MAX: usize = 256 << 10;

/// The shape of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoLoad {
    /// Bytes of a request; at least 1.
    pub request_size: usize,
    /// Bytes of its answer; at least 1.
    pub answer_size: usize,
    /// Requests in flight; at least 1.
    pub depth: usize,
    /// How long to run.
    pub time: Duration,
}

/// Measures the latency of requests and answers over loopback TCP between two threads.
pub fn echo(load: &EchoLoad) -> Result<Measured, Error> {
    assert!(load.request_size > 0 && load.answer_size > 0 && load.depth > 0);
    let failed = |error: std::io::Error| Error::new("loopback echo", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (load, far_load) = (*load, *load);
    let far = std::thread::spawn(move || -> std::io::Result<()> {
        let (socket, _) = listener.accept()?;
        answer_all(End::new(socket, far_load.request_size, far_load.answer_size, load.depth)?)
    });
    let result = TcpStream::connect(address).and_then(|socket| {
        ask_all(End::new(socket, load.answer_size, load.request_size, load.depth)?, &load)
    });
    let far = far.join().expect("the echo does not panic");
    result.and_then(|measured| far.map(|()| measured)).map_err(failed)
}

fn answer_all(mut end: End) -> std::io::Result<()> {
    while let Some(count) = end.turn()? {
        end.owe(count);
    }
    Ok(())
}

fn ask_all(mut end: End, load: &EchoLoad) -> std::io::Result<Measured> {
    let mut histogram = Histogram::default();
    let (begin, cpu_begin) = (clock::now(), cpu_time());
    let mut now = begin;
    let mut in_flight: VecDeque<Time> = (0..load.depth).map(|_| begin).collect();
    end.owe(load.depth);
    while !in_flight.is_empty() {
        let Some(count) = end.turn()? else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        now = clock::now();
        // Answers come in the order of their requests.
        for began in in_flight.drain(..count) {
            histogram.record(now.since(began));
        }
        if now.since(begin) < load.time {
            in_flight.extend((0..count).map(|_| now));
            end.owe(count);
        }
    }
    Ok(Measured { histogram, elapsed: now.since(begin), cpu: cpu_time().since(cpu_begin) })
}

/// One end of the connection.
struct End {
    socket: TcpStream,
    incoming: Vec<u8>,
    incoming_size: usize,
    /// Bytes received of the message that is still incomplete.
    received: usize,
    outgoing: Vec<u8>,
    outgoing_size: usize,
    /// Bytes that still have to be sent.
    owed: usize,
}

impl End {
    fn new(
        socket: TcpStream,
        incoming_size: usize,
        outgoing_size: usize,
        depth: usize,
    ) -> std::io::Result<End> {
        socket.set_nodelay(true)?;
        // Room for one message, or for a batch of small ones.
        let buffer = |size: usize| vec![0; size.max(BATCH_SIZE_MAX.min(depth * size))];
        Ok(End {
            socket,
            incoming: buffer(incoming_size),
            incoming_size,
            received: 0,
            outgoing: buffer(outgoing_size),
            outgoing_size,
            owed: 0,
        })
    }

    fn owe(&mut self, count: usize) {
        self.owed += count * self.outgoing_size;
    }

    /// Sends as much as the socket accepts, then waits for incoming bytes (or, if bytes are still owed,
    /// also for room to send). Returns the number of messages that became complete, or `None` if the other
    /// end closed the connection.
    fn turn(&mut self) -> std::io::Result<Option<usize>> {
        while self.owed > 0 && self.send()? {}
        let mut flags = RecvFlags::empty();
        if self.owed > 0 {
            // Both ends may owe more bytes than the socket buffers hold. If both only sent, both would
            // block.
            poll(&mut [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)], None)?;
            flags = RecvFlags::DONTWAIT;
        }
        assert!(self.received < self.incoming_size);
        match recv(&self.socket, &mut self.incoming[self.received..], flags) {
            Ok((_, 0)) => return Ok(None),
            Ok((_, size)) => self.received += size,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        let count = self.received / self.incoming_size;
        self.received %= self.incoming_size;
        Ok(Some(count))
    }

    /// Sends some of the owed bytes. Returns whether the socket had room.
    fn send(&mut self) -> std::io::Result<bool> {
        // Continue in the middle of the current message.
        let at = (self.outgoing_size - self.owed % self.outgoing_size) % self.outgoing_size;
        let end = self.outgoing.len().min(at + self.owed);
        match send(&self.socket, &self.outgoing[at..end], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        {
            Ok(size) => {
                self.owed -= size;
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_of_any_shape_ends_and_answers_each_request() {
        let time = Duration::from_millis(20);
        for (request_size, answer_size, depth) in [
            (4096, 4096, 1),
            (4096, 4096, 32),
            // More data in both directions than the buffers of the connection hold.
            (64 << 10, 64 << 10, 1024),
            (4 << 20, 4096, 16),
            (4096, 4 << 20, 16),
            (1, 3, 5),
        ] {
            let load = EchoLoad { request_size, answer_size, depth, time };
            let measured = echo(&load).expect("loopback works");
            assert!(measured.histogram.count() >= depth as u64, "{load:?}");
            assert!(measured.elapsed >= time, "{load:?}");
        }
    }
}
