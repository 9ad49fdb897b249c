//! A minimal async runtime, for commands and tests: runs one future on this thread, which sleeps while the future waits.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end and returns its value.
pub fn block_on<F: Future>(future: F) -> F::Output {
    run(future, None).expect("it has no time limit")
}

/// Runs a future for this time at most. Returns its value; `None`: it has not ended, and is dropped.
pub fn block_on_for<F: Future>(future: F, time_max: Duration) -> Option<F::Output> {
    run(future, Some(Instant::now() + time_max))
}

fn run<F: Future>(future: F, end: Option<Instant>) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return Some(value),
            Poll::Pending => match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => std::thread::park(),
                Some(Duration::ZERO) => return None,
                Some(left) => std::thread::park_timeout(left),
            },
        }
    }
}
