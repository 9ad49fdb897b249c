//! What a gateway allows its clients: how many, how long, and how much memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The largest chunk of a body in `aws-chunked` form: it is held as a whole until its signature is compared.
pub const CHUNK_SIZE_MAX: u64 = 16 << 20;
/// The most bytes of a body that is one XML document.
pub const XML_SIZE_MAX: usize = 4 << 20;
/// The most bytes of names and values of a request's headers. The HTTP library limits its buffer, and with
/// it only roughly what a header has.
pub const HEADERS_SIZE_MAX: usize = 16 << 10;
/// The most bytes of an answer that a connection gets at once.
pub const PIECE_SIZE_MAX: usize = 64 << 10;
/// The bytes that an entry of a listing is expected to have, until it is known.
pub const LISTED_SIZE: usize = 1 << 10;
/// The longest life of a presigned URL, in seconds: seven days.
pub const PRESIGNED_SECONDS_MAX: u64 = 604_800;

/// The limits of a gateway.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; more are told to come back later.
    pub connections_max: usize,
    /// Requests at once; more are told to come back later.
    pub requests_max: usize,
    /// Bytes of all bodies that are held at once, and of all listings.
    pub memory: usize,
    /// Bytes of bodies that one connection holds, but for a chunk that is longer.
    pub memory_of_request: usize,
    /// From the first byte of a request to the last one of its header.
    pub header_time: Duration,
    /// A connection may have no request for so long. Clients keep idle connections for a minute or more.
    pub idle_time: Duration,
    /// A body may pause for so long; and in each such time it brings [`Limits::body_size_min`].
    pub body_time: Duration,
    /// So many bytes come in each [`Limits::body_time`], or the rest of the body does.
    pub body_size_min: u64,
    /// A client takes [`PIECE_SIZE_MAX`] bytes of each answer, or its rest, at least this often.
    pub write_time: Duration,
    /// From the first byte of a connection to the end of its TLS handshake.
    pub handshake_time: Duration,
    /// Requests may go on for so long after a stop was asked for.
    pub stop_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 4096,
            requests_max: 1024,
            memory: 256 << 20,
            memory_of_request: 4 << 20,
            header_time: Duration::from_secs(20),
            idle_time: Duration::from_secs(90),
            body_time: Duration::from_secs(30),
            body_size_min: 4096,
            write_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(10),
            stop_time: Duration::from_secs(30),
        }
    }
}

/// A number of things of which only so many may be taken at once.
#[derive(Clone, Debug)]
pub struct Supply {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// A part of a [`Supply`]; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    supply: Supply,
    count: usize,
}

impl Supply {
    /// Creates a supply of so many.
    pub fn new(max: usize) -> Supply {
        Supply { taken: Arc::new(AtomicUsize::new(0)), max }
    }

    /// Takes so many. `None`: fewer are left.
    pub fn take(&self, count: usize) -> Option<Share> {
        let more = |taken: usize| taken.checked_add(count).filter(|taken| *taken <= self.max);
        let ordering = Ordering::AcqRel;
        self.taken.fetch_update(ordering, Ordering::Acquire, more).ok()?;
        Some(Share { supply: self.clone(), count })
    }

    /// Returns how many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Share {
    /// Becomes a share of so many. False: fewer are left, and nothing changed.
    pub fn resize(&mut self, count: usize) -> bool {
        if let Some(more) = count.checked_sub(self.count) {
            let Some(mut share) = self.supply.take(more) else { return false };
            // Its count is part of this one now.
            share.count = 0;
        } else {
            self.supply.taken.fetch_sub(self.count - count, Ordering::AcqRel);
        }
        self.count = count;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.supply.taken.fetch_sub(self.count, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_and_shrinks() {
        let supply = Supply::new(10);
        let mut share = supply.take(4).expect("there are ten");
        assert!(share.resize(9));
        assert_eq!(supply.taken(), 9);
        assert!(!share.resize(11));
        assert_eq!(supply.taken(), 9);
        assert!(share.resize(2));
        assert_eq!(supply.taken(), 2);
        drop(share);
        assert_eq!(supply.taken(), 0);
    }

    #[test]
    fn no_more_is_taken_than_there_is_and_all_comes_back() {
        let supply = Supply::new(10);
        let seven = supply.take(7).expect("there are ten");
        assert!(supply.take(4).is_none());
        let three = supply.take(3).expect("just enough");
        assert!(supply.take(1).is_none());
        assert!(supply.take(usize::MAX).is_none());
        drop((seven, three));
        assert_eq!(supply.taken(), 0);
    }
}
