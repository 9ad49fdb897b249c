//! Writes in flight in version order: tells the mark, the version up to which all have ended.
//!
//! ```text
//!   counters   ...  41  42 | 43  44  45  46
//!                    ended | no  yes no  yes      mark = 42, newest = 46
//! ```

use std::collections::VecDeque;

use base::Version;

use crate::Record;

pub struct Window {
    /// Counter of the newest version up to which all writes have ended.
    mark: u64,
    /// Whether the writes after the mark have ended, in version order. The first has not.
    ended: VecDeque<bool>,
}

impl Window {
    pub fn new(mark: u64) -> Window {
        Window { mark, ended: VecDeque::new() }
    }

    /// A write with the next version began.
    pub fn begin(&mut self, version: Version) {
        self.ended.push_back(false);
        assert!(version.counter == self.mark + self.ended.len() as u64);
    }

    /// The write with this version ended.
    pub fn end(&mut self, version: Version) {
        assert!(version.counter > self.mark);
        let index = (version.counter - self.mark - 1) as usize;
        assert!(!self.ended[index]);
        self.ended[index] = true;
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.mark += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// The mark as a version: what lies behind the activation was written in the newest epoch.
    pub fn mark(&self, newest: Version, record: Option<&Record>) -> Version {
        if self.ended.is_empty() {
            return newest;
        }
        match record {
            Some(record) if record.adopted.counter >= self.mark => record.adopted,
            _ => Version { epoch: newest.epoch, counter: self.mark },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Epoch;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    #[test]
    fn the_mark_stops_before_the_oldest_unfinished_write() {
        let mut window = Window::new(7);
        for counter in 8..=10 {
            window.begin(version(counter));
        }
        window.end(version(9));
        assert_eq!(window.mark(version(10), None), version(7));
        window.end(version(8));
        assert_eq!(window.mark(version(10), None), version(9));
        window.end(version(10));
        assert_eq!(window.mark(version(10), None), version(10));
        assert!(window.is_empty());
    }
}
