//! The trace of a run: its hash shows whether a seed repeats exactly; its text shows what happened.

use std::fmt::{self, Write};

use base::{Time, TraceEvent};

/// Hashes everything that happens, and on request prints it to standard output.
pub struct Trace {
    hash: u64,
    verbose: bool,
    line: String,
}

impl Trace {
    /// Creates an empty trace; `verbose` prints every line.
    pub fn new(verbose: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, verbose, line: String::new() }
    }

    /// Adds a line.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        self.line.clear();
        self.line.write_fmt(line).expect("a string takes everything");
        for chunk in self.line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = mix(self.hash, u64::from_le_bytes(word));
        }
        self.hash = mix(self.hash, self.line.len() as u64);
        if self.verbose {
            println!("{}", self.line);
        }
    }

    /// Prints a line of a process's log. Log lines are not hashed, because they are not part of the
    /// run.
    pub fn log(&self, now: Time, process: impl fmt::Debug, event: &TraceEvent) {
        if self.verbose {
            println!("{now:?} {process:?} logs {}: {event}", event.level);
        }
    }

    /// Returns the hash of all lines so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_every_line_and_their_order() {
        let hash = |lines: &[&str]| {
            let mut trace = Trace::new(false);
            for line in lines {
                trace.line(format_args!("{line}"));
            }
            trace.hash()
        };
        assert_eq!(hash(&["a", "b"]), hash(&["a", "b"]));
        assert_ne!(hash(&["a", "b"]), hash(&["b", "a"]));
        assert_ne!(hash(&["ab"]), hash(&["a", "b"]));
        assert_ne!(hash(&["a"]), hash(&["a", ""]));
    }
}
