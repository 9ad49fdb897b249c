//! Assertions that are weaker than `assert!`, and marks of rare branches.
//!
//! | word | the condition | in a release build |
//! |---|---|---|
//! | `assert!` | is proven: if it fails, stopping is safer than going on | panics |
//! | [`never!`](crate::never) | is believed to be false; the caller handles both | counts, and continues |
//! | [`maybe!`](crate::maybe) | is sometimes true, sometimes false: both are correct | nothing |
//!
//! Put [`mark!`](crate::mark) into a rarely taken branch, and [`check!`](crate::check) into the one test that
//! takes the branch: the test fails once it no longer reaches the branch. Marks are counted by name, for each
//! thread, and only where debug assertions are on.

use std::cell::Cell;
#[cfg(debug_assertions)]
use std::{cell::RefCell, collections::BTreeMap};

thread_local! {
    static NEVER_COUNT: Cell<u64> = const { Cell::new(0) };
}

#[cfg(debug_assertions)]
thread_local! {
    static MARKS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns whether a condition is true that is believed to be always false. The caller handles the case that
/// it is true: `if never!(queue.is_empty()) { return }`. A true condition panics if debug assertions are on;
/// otherwise it is counted.
#[macro_export]
macro_rules! never {
    ($condition:expr) => {{
        let is_true: bool = $condition;
        if is_true {
            $crate::assertions::never_happened(stringify!($condition));
        }
        is_true
    }};
}

/// Documents that a condition is sometimes true and sometimes false, where a reader could believe otherwise.
/// The condition must be a `bool` and is never evaluated.
#[macro_export]
macro_rules! maybe {
    ($condition:expr) => {
        if false {
            let _: bool = $condition;
        }
    };
}

/// Counts that a branch is taken. One test of the same crate calls `check!` with the same name.
#[macro_export]
macro_rules! mark {
    ($name:ident) => {
        $crate::assertions::count_mark(stringify!($name))
    };
}

/// Fails the test at its end if the test does not take the branch with this mark after this point.
#[macro_export]
macro_rules! check {
    ($name:ident) => {
        let _check = $crate::assertions::Check::begin(stringify!($name));
    };
}

/// Handles a condition of [`never!`](crate::never) that is true: counts it, and panics if debug assertions
/// are on.
#[cold]
pub fn never_happened(condition: &'static str) {
    NEVER_COUNT.with(|count| count.set(count.get() + 1));
    if cfg!(debug_assertions) {
        panic!("a condition believed to be impossible is true: {condition}");
    }
}

/// Returns how often, on this thread, a condition of [`never!`](crate::never) was true.
pub fn never_count() -> u64 {
    NEVER_COUNT.with(Cell::get)
}

/// Counts a mark.
#[cfg(debug_assertions)]
pub fn count_mark(name: &'static str) {
    // A buffer may be dropped while its thread ends, after the counts were destroyed.
    let _ = MARKS.try_with(|marks| *marks.borrow_mut().entry(name).or_default() += 1);
}

/// Does nothing: marks are not counted in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn count_mark(_name: &'static str) {}

#[cfg(debug_assertions)]
fn mark_count(name: &str) -> u64 {
    MARKS.with(|marks| marks.borrow().get(name).copied().unwrap_or(0))
}

/// Checks on drop that the branch with a mark was taken since this value was created.
#[must_use]
pub struct Check {
    #[cfg(debug_assertions)]
    name: &'static str,
    #[cfg(debug_assertions)]
    count_before: u64,
}

#[cfg(debug_assertions)]
impl Check {
    /// Begins to watch the branch with this mark.
    pub fn begin(name: &'static str) -> Check {
        Check { name, count_before: mark_count(name) }
    }
}

#[cfg(debug_assertions)]
impl Drop for Check {
    fn drop(&mut self) {
        // A test that is already failing reports its own reason.
        if !std::thread::panicking() {
            assert!(
                mark_count(self.name) > self.count_before,
                "the mark {} was not reached",
                self.name
            );
        }
    }
}

#[cfg(not(debug_assertions))]
impl Check {
    /// Does nothing: marks are not counted in this build.
    pub fn begin(_name: &'static str) -> Check {
        Check {}
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn never_gives_its_condition_and_counts_when_it_is_true() {
        assert!(!crate::never!(1 > 2));
        assert_eq!(never_count(), 0);
        let result = catch_unwind(|| crate::never!(2 > 1));
        // With debug assertions `never!` panics; otherwise the caller receives `true`.
        assert_eq!(result.ok(), (!cfg!(debug_assertions)).then_some(true));
        assert_eq!(never_count(), 1);
    }

    #[test]
    fn maybe_never_evaluates_its_condition() {
        let evaluations = Cell::new(0);
        crate::maybe!({
            evaluations.set(1);
            true
        });
        assert_eq!(evaluations.get(), 0);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_check_fails_unless_its_mark_is_met_after_it() {
        let count = |name| catch_unwind(|| drop(Check::begin(name))).is_ok();
        count_mark("met before");
        assert!(!count("met before"));
        let check = Check::begin("met after");
        count_mark("met after");
        drop(check);
    }
}
