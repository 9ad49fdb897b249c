//! Disks that hang: they end no operation, and no error says so. Some hang for long, some only take seconds
//! for what they do. An OSD may say that it is stalled only where its disk was, and that it is no longer only
//! when the disk has answered for long enough. Nobody counts on one that has said so.

use base::{Duration, Time};

use super::Process;
use super::drill::WHOLE_FOR;
use super::world::{Item, World};
use crate::random::{Chance, Random};

/// No disk hangs that ends everything so soon.
const SLOW_MAX: Duration = Duration::from_secs(4);
/// It says so when an operation is older than five seconds, by a clock that may be fast.
const STALL_MIN: Duration = Duration::from_millis(4500);
/// It has answered for ten seconds, by such a clock, when it says that it does.
const ANSWERED_MIN: Duration = Duration::from_millis(8500);
/// A probe that met this took more than a second.
const SEEN_MIN: Duration = Duration::from_millis(2500);
/// An operation that met a disk that hangs is looked at again after so long.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Disks hang for long so often in a run: each time doubles the time for which they must answer.
const LONG_COUNT_MAX: u32 = 3;

/// How disks hang in a run.
pub(super) struct Hangs {
    random: Random,
    /// Of events.
    chance: Chance,
    long_count: u32,
}

/// How a disk hangs, and what its OSD says of that.
#[derive(Clone, Copy, Default)]
pub(super) struct Hang {
    since: Time,
    until: Time,
    /// The end of the last one that every probe must have noticed.
    answers_since: Time,
    /// Before that it had answered for long enough: its OSD may have found so before it could say it.
    had_answered: bool,
    /// Its OSD has said so since then.
    pub(super) said_since: Option<Time>,
    /// This run began after the disk hung: it must show that it answers.
    pub(super) is_tried: bool,
}

impl Hangs {
    pub(super) fn draw(seed: u64) -> Hangs {
        let mut random = Random::new(seed, "hangs");
        let happens = random.chance(Chance::percent(40));
        let chance = if happens { Chance(random.scale(20..400) as u32) } else { Chance::NEVER };
        Hangs { random, chance, long_count: 0 }
    }

    /// Whether the member of the drill stays, and its disk hangs.
    pub(super) fn takes_drill(&mut self) -> bool {
        self.random.chance(Chance::percent(50))
    }
}

impl Hang {
    /// When an operation that would end now is looked at again.
    pub(super) fn again_at(&self, now: Time) -> Option<Time> {
        (now < self.until).then(|| self.until.min(now + LOOK_EVERY))
    }
}

impl World {
    /// After an event: a disk may begin to hang.
    pub(super) fn hang_some(&mut self) {
        if !self.hangs.random.chance(self.hangs.chance) {
            return;
        }
        let index = self.hangs.random.index(self.osds.len());
        let is_long = self.hangs.random.chance(Chance::percent(50));
        let span = match is_long && self.hangs.long_count < LONG_COUNT_MAX {
            true => self.hangs.random.range(5_500..14_000),
            false => self.hangs.random.range(500..SLOW_MAX.as_millis()),
        };
        if self.is_running(Process::Osd(index)) {
            self.hang(index, Duration::from_millis(span));
        }
    }

    /// The disk of an OSD ends nothing for so long, and if it hangs already, until then at least.
    pub(super) fn hang(&mut self, index: usize, span: Duration) {
        let now = self.now;
        let hang = &mut self.osds[index].hang;
        if hang.until <= now {
            if hang.until.since(hang.since) > SEEN_MIN {
                hang.answers_since = hang.until;
            }
            hang.had_answered = now.since(hang.answers_since) >= ANSWERED_MIN;
            hang.since = now;
        }
        hang.until = hang.until.max(now + span);
        self.trace.line(format_args!("{now:?} the disk of osd {index} hangs for {span:?}"));
        self.hangs.long_count += u32::from(span > SLOW_MAX);
        self.fault(if span > SLOW_MAX { "disk hung" } else { "disk took seconds" });
    }

    /// No disk hangs any more.
    pub(super) fn end_hangs(&mut self) {
        for osd in &mut self.osds {
            osd.hang.until = osd.hang.until.min(self.now);
        }
    }

    /// An OSD ends to begin anew: its disk hung.
    pub(super) fn begins_anew(&mut self, index: usize) -> Result<(), String> {
        let osd = &mut self.osds[index];
        let node = osd.node.as_ref().expect("it says so");
        osd.stalls = Some(node.stalls());
        if osd.in_flight > 0 {
            let count = osd.in_flight;
            return Err(format!(
                "osd {index} opens its store again while {count} operations are under way"
            ));
        }
        self.fault("OSD began anew after its disk hung");
        self.osd_stopped(index);
        // A probe may meet a disk that hangs once more.
        if self.hangs.random.chance(Chance::percent(50)) {
            let after = Duration::from_millis(self.hangs.random.range(6_000..11_000));
            self.schedule(after, Item::Hang(index, Duration::from_millis(3_500)));
        }
        Ok(())
    }

    /// An OSD says something to a monitor: is it true of its disk?
    pub(super) fn judge_stall(&mut self, index: usize, text: &str) -> Result<(), String> {
        if !text.contains("\"stalled\":") {
            return Ok(());
        }
        let now = self.now;
        let osd = &mut self.osds[index];
        let hang = &mut osd.hang;
        let span = hang.until.since(hang.since).min(now.since(hang.since));
        let is_stalled = text.contains("\"stalled\":true");
        match (hang.said_since, is_stalled) {
            (None, true) if !hang.is_tried && span < STALL_MIN => {
                return Err(format!("osd {index} says that its disk hangs: {span:?}"));
            }
            (None, true) => hang.said_since = Some(now),
            (Some(_), false) => {
                let answers = now.since(hang.until);
                let is_early = answers < ANSWERED_MIN && !hang.had_answered;
                if hang.is_tried && span > SEEN_MIN && is_early {
                    return Err(format!(
                        "osd {index} counts as one whose disk answers, {answers:?} after it hung"
                    ));
                }
                hang.said_since = None;
                hang.is_tried = false;
            }
            (None, false) | (Some(_), true) => {}
        }
        if let Some(id) = osd.id {
            self.watch.says_it_is_stalled(id, osd.hang.said_since);
        }
        Ok(())
    }

    /// All disks hang together, or one takes three seconds: no member leaves. Or a host stands still for
    /// long: nobody says that its disk hangs. What lacks afterwards, if disks are too full: a member may have
    /// left its PGs for a moment, and they got others. Requires: the cluster is whole, and no fault happens.
    pub(super) fn hang_together(&mut self) -> Result<Option<String>, String> {
        if self.hangs.random.chance(Chance::percent(75))
            || self.wait_until_whole_for(WHOLE_FOR)?.is_some()
        {
            return Ok(None);
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(None) };
        self.net.calm_down(50_000);
        let kind = self.hangs.random.index(3);
        let victim = self.hangs.random.index(self.osds.len());
        if self.osds[victim].is_gone {
            return self.detach_all().map(|()| None);
        }
        for _ in 0..20 {
            self.ask_for_drill(attached)?;
        }
        match kind {
            0 => {
                self.fault("all disks hung");
                (0..self.osds.len()).for_each(|index| self.hang(index, Duration::from_secs(8)));
            }
            1 => self.hang(victim, Duration::from_secs(3)),
            _ => self.freeze(Process::Osd(victim), Duration::from_secs(20)),
        }
        let withdrawal_count = self.watch.withdrawal_count;
        let end = self.now + Duration::from_secs(9);
        for _ in 0..300 {
            self.ask_for_drill(attached)?;
        }
        self.pass(Duration::from_millis(300))?;
        // One that has nothing to do cannot know that its disk hangs.
        let knows = |osd: &super::disks::Osd| osd.node.is_none() || osd.in_flight > 0;
        let is_judged = kind == 1 || kind == 0 && self.osds.iter().all(knows);
        while self.now < end {
            self.pass(Duration::from_millis(100))?;
            self.ask_for_drill(attached)?;
        }
        self.wait("an operation is never answered after disks hung", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.pass(Duration::from_secs(2))?;
        // Copies move meanwhile, from one member to another.
        if is_judged && self.watch.withdrawal_count > withdrawal_count {
            return Err("a member left while all disks hung, or one took three seconds".into());
        }
        self.detach_all()?;
        let lack = self.wait_until_whole_for(WHOLE_FOR)?;
        self.must_be_whole &= lack.is_none();
        Ok(lack)
    }
}
