//! Baselines to compare with: plain io_uring on a file, and an echo over loopback TCP.
//!
//! None of our storage code is involved: any program on this machine pays at least this cost.

mod echo;
mod journaled;
mod load;
mod measured;
mod raw;

pub use echo::{EchoLoad, echo};
pub use journaled::journaled;
pub use load::{RANGE_SIZE_MAX, RawLoad};
pub use measured::{Measured, cpu_time};
pub use raw::raw;

#[cfg(test)]
mod tests {
    use base::Duration;

    use super::*;

    #[test]
    fn limits_are_measured() {
        let path = std::env::temp_dir().join(format!("ashlar-bench-{}", std::process::id()));
        std::fs::File::create(&path).and_then(|file| file.set_len(8 << 20)).expect("writable");
        let mut load = RawLoad {
            path: path.clone(),
            size: 8 << 20,
            is_read: false,
            is_linear: false,
            block_size: 4096,
            depth: 32,
            time: Duration::from_millis(20),
            durable: false,
        };
        for (is_read, is_linear, block_size, depth) in
            [(false, false, 4096, 1), (true, false, 4096, 32), (false, true, 1 << 20, 4)]
        {
            load = RawLoad { is_read, is_linear, block_size, depth, ..load };
            let measured = raw(&load).expect("the file takes it");
            assert!(measured.histogram.count() >= depth as u64);
            assert!(measured.elapsed >= load.time);
            assert!(measured.ops_per_second() > 0.0);
        }
        let small =
            RawLoad { is_linear: false, is_read: false, block_size: 4096, depth: 8, ..load };
        let measured = journaled(&small).expect("the file takes it");
        assert!(measured.histogram.count() >= small.depth as u64);
        assert!(journaled(&RawLoad { size: 100, ..small.clone() }).is_err());
        assert!(raw(&RawLoad { size: 100, ..small }).is_err());
        std::fs::remove_file(path).expect("ours");
    }
}
