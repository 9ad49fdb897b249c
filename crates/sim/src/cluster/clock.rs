//! Clocks of hosts: each starts at a random time and runs slightly fast or slow.
//!
//! Invariant: for a time `local` of a clock, [`Clock::world`] is the earliest time of the world at which the
//! clock shows `local` or later.

use std::collections::BTreeMap;

use base::{Duration, Time};

use crate::random::{Chance, Random};

const MILLION: u128 = 1_000_000;

/// A host; each has its own clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Host {
    /// The host of a monitor, by its index.
    Monitor(usize),
    /// The host of a client, by its index.
    Client(usize),
    /// A host of OSDs, by its number.
    Osds(usize),
}

/// The largest drift of a clock, in millionths. Leases allow for 10 %.
const DRIFT_MAX: u64 = 80_000;

/// One clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// The local time at the world's time zero, in nanoseconds.
    offset: u64,
    /// The clock's speed, in millionths of the world's.
    rate: u64,
}

impl Clock {
    /// The clock that shows the world's time.
    pub const TRUE: Clock = Clock { offset: 0, rate: 1_000_000 };

    /// Draws a clock. With `drifts`, the clock may run fast or slow.
    pub fn draw(random: &mut Random, drifts: bool) -> Clock {
        let offset = random.scale(1..Duration::from_secs(1_000_000).as_nanos());
        let drift = if !drifts {
            0
        } else if random.chance(Chance::percent(40)) {
            // Lease margins are tightest at the extremes.
            *random.pick(&[0, 2 * DRIFT_MAX])
        } else {
            random.below(2 * DRIFT_MAX + 1)
        };
        let rate = if drifts { 1_000_000 - DRIFT_MAX + drift } else { 1_000_000 };
        Clock { offset, rate }
    }

    /// Returns the local time at a time of the world.
    pub fn local(self, world: Time) -> Time {
        let passed = u128::from(world.as_nanos()) * u128::from(self.rate) / MILLION;
        Time::from_nanos(self.offset + u64::try_from(passed).expect("runs are shorter"))
    }

    /// Returns the world's time at which the clock first shows `local` or later.
    pub fn world(self, local: Time) -> Time {
        let passed = u128::from(local.as_nanos().saturating_sub(self.offset)) * MILLION;
        let world = passed.div_ceil(u128::from(self.rate));
        Time::from_nanos(u64::try_from(world).unwrap_or(u64::MAX))
    }
}

/// The clock of each host.
pub struct Clocks(BTreeMap<Host, Clock>);

impl Clocks {
    /// Draws one clock for each host, in order.
    pub fn draw(random: &mut Random, drift: bool, hosts: impl Iterator<Item = Host>) -> Clocks {
        Clocks(hosts.map(|host| (host, Clock::draw(random, drift))).collect())
    }

    /// Returns the clock of a host. Requires: the clock was drawn.
    pub fn of(&self, host: Host) -> Clock {
        self.0[&host]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_when_it_is_due_and_not_before() {
        let mut random = Random::new(1, "clock");
        for _ in 0..2000 {
            let clock = Clock::draw(&mut random, true);
            let local = clock.local(Time::ZERO) + Duration::from_nanos(random.below(1 << 50));
            let world = clock.world(local);
            assert!(clock.local(world) >= local, "{clock:?}");
            if world > Time::ZERO {
                let before = Time::from_nanos(world.as_nanos() - 1);
                assert!(clock.local(before) < local, "{clock:?}");
            }
        }
        assert_eq!(Clock::TRUE.local(Time::from_nanos(7)), Time::from_nanos(7));
        assert_eq!(Clock::TRUE.world(Time::from_nanos(7)), Time::from_nanos(7));
    }

    #[test]
    fn clocks_drift_both_ways_within_what_leases_allow() {
        let mut random = Random::new(2, "clock");
        let clocks: Vec<Clock> = (0..500).map(|_| Clock::draw(&mut random, true)).collect();
        let span = |clock: &Clock| {
            let second = Time::from_nanos(1_000_000_000);
            clock.local(second).since(clock.local(Time::ZERO)).as_millis()
        };
        assert_eq!(clocks.iter().map(span).min(), Some(920));
        assert_eq!(clocks.iter().map(span).max(), Some(1080));
        assert!((0..50).all(|_| span(&Clock::draw(&mut random, false)) == 1000));
    }
}
