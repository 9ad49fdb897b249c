//! A pool of 4+2 on small OSDs, as many as a first try has, takes whole blocks and whole stripes.

#[test]
fn twelve_small_osds_with_parity_take_every_write_of_whole_blocks_and_stripes() {
    for seed in 1..=2 {
        let count = sim::cluster::run_whole_stripes(seed);
        let count = count.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // 48 MiB in stripes of 512 KiB, then in blocks of 128 KiB.
        assert_eq!(count, 96 + 384, "seed {seed}");
    }
}
