//! Peering, step by step: each file of `script/` holds commands and their output.
//!
//! A command stands on a line of its own, then `----`, then its output up to an empty line. Lines that start
//! with `#` are comments. `UPDATE=1 cargo test --profile ci -p pg script` rewrites the outputs: check the
//! differences before you keep them.
//!
//! | command | what happens |
//! |---|---|
//! | `osds N copies M` | N empty OSDs; the first M must have copies |
//! | `map` | the monitor makes the next entry if there is a reason; all read it; leases expire |
//! | `step` | all stores make progress, then the next message of each connection arrives |
//! | `steps` | steps until nothing is under way |
//! | `settle` | everything happens, except faults, until nothing is left to do |
//! | `write OSD BLOCK UNITS` | a client writes some units of a block at its primary |
//! | `large`, `small` | data of later entries is out of line, or inline |
//! | `deliver FROM TO` | the next message between two OSDs arrives |
//! | `store OSD`, `journal OSD` | the store makes everything durable; only its journal entries |
//! | `start OSD`, `kill OSD` | the process starts; the process ends, and the store keeps what is written |
//! | `crash OSD KEEP` | the power fails; the store keeps this many entries beyond those that are durable |
//! | `cut A B`, `heal` | two OSDs cannot connect; all can again |
//! | `fill OSD` | the OSD's node lets this primary fill two blocks at a time |
//! | `plan OSD...` | where copies must be from now on |
//! | `state` | the state of each OSD, and its blocks |
//!
//! OSDs are counted from 1. Each command also prints the messages that were sent and the operations that
//! ended.

use std::fmt::Write;

use base::Version;
use format::wire::{Content, Filling, ListedBlock, MemberState, Outcome, PeerBody, Refusal};

use super::world::World;
use crate::{Record, Serving};

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let path = concat!("src/tests/script/", stringify!($name), ".txt");
            check(path, include_str!(concat!("script/", stringify!($name), ".txt")));
        }
    )*};
}

scripts! {
    three_members_start
    a_member_with_a_hole_gets_what_it_lost
    the_newest_version_is_at_one_member_only
    a_learner_is_filled_and_bound
    the_primary_dies_between_adopt_and_activate
}

/// Runs a script and compares the output with the file; or rewrites the file.
#[expect(clippy::disallowed_methods, reason = "a script is rewritten on request")]
fn check(path: &str, script: &str) {
    let mut run = Run::default();
    let mut text = String::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let output = run.run(line);
        text.push_str("----\n");
        text.push_str(&output);
        text.push('\n');
        // The old output, up to an empty line.
        if matches!(lines.clone().next(), Some("----" | "")) {
            lines.by_ref().find(|line| line.is_empty());
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")), text).unwrap();
        return;
    }
    for (index, (is, said)) in text.lines().zip(script.lines()).enumerate() {
        assert_eq!(is, said, "{path}:{}: if meant, run again with UPDATE=1", index + 1);
    }
    assert_eq!(text, script, "{path}: if meant, run again with UPDATE=1");
}

#[derive(Default)]
struct Run {
    world: Option<World>,
    /// Messages that were printed.
    printed: usize,
    /// Operations that have not ended.
    open: Vec<usize>,
}

impl Run {
    /// Carries out a command; returns its output.
    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<usize>().expect("a number");
        let index = |osd: &str| number(osd).checked_sub(1).expect("OSDs are counted from 1");
        let mut output = String::new();
        if let ["osds", osds, "copies", copies] = words[..] {
            let mut world = World::new(7, number(osds), number(copies));
            world.large_percent = 0;
            self.world = Some(world);
            return output;
        }
        let world = self.world.as_mut().expect("a script begins with its OSDs");
        let before = world.entry.epoch;
        match words[..] {
            ["map"] => {
                world.monitor();
                world.leases_end();
                for index in 0..world.osds.len() {
                    world.learn(index);
                }
                world.connect();
            }
            ["step"] => world.exchange(),
            ["steps"] => {
                while step_is_due(world) {
                    world.exchange();
                }
            }
            ["settle"] => world.settle(),
            ["write", osd, block, units] => {
                let (first, count) = units.split_once('+').expect("units are FIRST+COUNT");
                let (first, count) = (number(first) as u32, number(count) as u32);
                self.open.push(world.write(index(osd), number(block) as u32, first, count));
            }
            ["large"] => world.large_percent = 100,
            ["small"] => world.large_percent = 0,
            ["fill", osd] => world.with(index(osd), |pg, actions| pg.fill(2, actions)),
            ["deliver", from, to] => {
                let (from, to) = (index(from), index(to));
                let mail = world.mail();
                match mail.contains(&(from, to, true)) {
                    true => world.deliver(from, to, true),
                    false => world.deliver(to, from, false),
                }
            }
            ["store", osd] => world.store_goes_on(index(osd)),
            ["journal", osd] => world.osds[index(osd)].store.advance(64, usize::MAX),
            ["start", osd] => world.start(index(osd)),
            ["kill", osd] => world.kill(index(osd)),
            ["crash", osd, keep] => world.crash(index(osd), number(keep)),
            ["cut", one, other] => {
                let (one, other) = (index(one), index(other));
                world.cut.push((one, other));
                world.disconnect(one, other);
                world.disconnect(other, one);
            }
            ["heal"] => world.cut.clear(),
            ["plan", ref osds @ ..] => world.plan = osds.iter().map(|osd| index(osd)).collect(),
            ["state"] => print_state(world, &mut output),
            _ => panic!("no command: {line}"),
        }
        if world.entry.epoch != before || words == ["map"] {
            print_entry(world, &mut output);
        }
        for (from, to, body) in &world.sent[self.printed..] {
            writeln!(output, "{} to {}: {}", from + 1, to + 1, brief(body)).unwrap();
        }
        self.printed = world.sent.len();
        self.open.retain(|number| match world.history.outcome(*number) {
            None => true,
            Some(outcome) => {
                writeln!(output, "operation {number}: {}", ended(outcome)).unwrap();
                false
            }
        });
        output
    }
}

fn step_is_due(world: &World) -> bool {
    let is_idle = |osd: &super::world::Osd| osd.pg.is_none() || osd.store.ready() == 0;
    let wait = world.osds.iter().all(|osd| is_idle(osd) && osd.store.is_idle());
    !world.mail().is_empty() || !wait
}

fn print_entry(world: &World, output: &mut String) {
    let entry = &world.entry;
    let name = |member: &format::wire::Member| member.osd.get();
    write!(output, "epoch {}:", entry.epoch).unwrap();
    for position in &entry.positions {
        match position {
            Some(member) if Some(member.osd) == entry.primary_osd() => {
                write!(output, " {} (primary)", name(member)).unwrap();
            }
            Some(member) => write!(output, " {}", name(member)).unwrap(),
            None => write!(output, " empty").unwrap(),
        }
    }
    for learner in &entry.learners {
        let position = learner.position.index();
        write!(output, ", {} learns for position {position}", name(&learner.member)).unwrap();
    }
    output.push('\n');
}

fn print_state(world: &World, output: &mut String) {
    for (index, osd) in world.osds.iter().enumerate() {
        let serving = match osd.pg.as_ref().map(|pg| pg.serving()) {
            None => "down".to_owned(),
            Some(Serving::Idle { why }) => format!("idle: {why}"),
            Some(Serving::Ended { why }) => format!("ended: {why}"),
            Some(other) => format!("{other:?}").to_lowercase(),
        };
        let record = osd.store.now.note.as_ref().map(|note| Record::decode(note).unwrap());
        let record = record.map_or("no record".to_owned(), |record| {
            format!("record of epoch {}, adopted {}", record.entry.epoch, record.adopted)
        });
        write!(output, "osd.{}: {serving}; {record}; blocks", index + 1).unwrap();
        for (key, block) in &osd.store.now.blocks {
            write!(output, " {}={}", key.stripe.get(), block.version).unwrap();
        }
        output.push('\n');
    }
}

fn ended(outcome: &Result<Outcome, Refusal>) -> String {
    match outcome {
        Ok(Outcome::Written { version, .. }) => format!("written as {version}"),
        Ok(other) => format!("{other:?}"),
        Err(refusal) => format!("refused: {refusal:?}"),
    }
}

/// A message in a few words.
fn brief(body: &PeerBody) -> String {
    let newer = |version: &Version| match *version {
        Version::ZERO => "all".to_owned(),
        version => format!("newer than {version}"),
    };
    match body {
        PeerBody::Query { .. } => "Query".into(),
        PeerBody::Draining => "Draining".into(),
        PeerBody::State(state) => format!("State: {}", brief_state(state)),
        PeerBody::List { newer_than, .. } => format!("List: {}", newer(newer_than)),
        PeerBody::Listed { blocks, .. } => format!("Listed:{}", brief_list(blocks)),
        PeerBody::Fetch { key, .. } => format!("Fetch: block {}", key.stripe.get()),
        PeerBody::Fetched { content, .. } => format!("Fetched: {}", brief_content(content)),
        PeerBody::Repair { key, content, .. } => {
            format!("Repair: block {}, {}", key.stripe.get(), brief_content(content))
        }
        PeerBody::Repaired { .. } => "Repaired".into(),
        PeerBody::Drop { version, .. } => format!("Drop: from {version}"),
        PeerBody::Activate { adopted, filling, .. } => {
            format!("Activate: adopted {adopted}{}", brief_filling(filling))
        }
        PeerBody::Activated => "Activated".into(),
        PeerBody::Write { version, mark, key, .. } => {
            format!("Write: {version} to block {}, mark {mark}", key.stripe.get())
        }
        PeerBody::Part { version, mark, key, content, differences, .. } => {
            let stripe = key.stripe.get();
            let delta =
                if differences.iter().any(|word| *word != 0) { ", wants delta" } else { "" };
            let content = brief_content(content);
            format!("Part: {version} of stripe {stripe}, {content}{delta}, mark {mark}")
        }
        PeerBody::Parity { version, mark, key, changes, .. } => {
            let parts: Vec<u8> = changes.iter().map(|change| change.part.get()).collect();
            format!(
                "Parity: {version} of stripe {}, parts {parts:?}, mark {mark}",
                key.stripe.get()
            )
        }
        PeerBody::Skip { version, mark, .. } => format!("Skip: {version}, mark {mark}"),
        PeerBody::Delta { version, part, .. } => format!("Delta: {version}, part {}", part.get()),
        PeerBody::PartBehind { part } => format!("PartBehind: part {}", part.get()),
        PeerBody::ParityDelta { version, part, .. } => {
            format!("ParityDelta: {version}, part {}", part.get())
        }
        PeerBody::DeltaWanted { version, part } => {
            format!("DeltaWanted: {version}, part {}", part.get())
        }
        PeerBody::ParityLost { key } => format!("ParityLost: stripe {}", key.stripe.get()),
        PeerBody::Forward { key, content, replaces, .. } => {
            let content = brief_content(content);
            format!("Forward: stripe {}, {content}, above {replaces}", key.stripe.get())
        }
        PeerBody::Mark { mark, .. } => format!("Mark: {mark}"),
        PeerBody::Written { version, durable } => {
            format!("Written: {version}{}", if *durable { "" } else { ", not durable" })
        }
        PeerBody::Sync { .. } => "Sync".into(),
        PeerBody::Synced { .. } => "Synced".into(),
        PeerBody::Progress { filling, complete, .. } => {
            format!("Progress: mark {complete}{}", brief_filling(filling))
        }
        PeerBody::Noted { .. } => "Noted".into(),
        PeerBody::Failed { why } => format!("Failed: {why}"),
        PeerBody::Stale(_) => "Stale".into(),
        PeerBody::Scrub { key, deep, .. } => {
            format!("Scrub: block {}{}", key.stripe.get(), if *deep { ", deep" } else { "" })
        }
        PeerBody::Scrubbed { digest, .. } => format!("Scrubbed: {}", digest.version()),
        PeerBody::Mend { key, content, .. } => {
            format!("Mend: block {}, {}", key.stripe.get(), brief_content(content))
        }
        PeerBody::Recall { .. } => "Recall".into(),
        PeerBody::Recalled { .. } => "Recalled".into(),
        PeerBody::Keep { .. } => "Keep".into(),
        PeerBody::Batch { version, mark, .. } => format!("Batch: {version}, mark {mark}"),
        PeerBody::Page { version, .. } => format!("Page: mark {version}"),
        PeerBody::ListHeads { .. } => "ListHeads".into(),
        PeerBody::Headed { .. } => "Headed".into(),
        PeerBody::ObjectForward { after, version, .. } => {
            format!("Object forward: {after} to {version}")
        }
        PeerBody::Gather { after, version, .. } => format!("Gather: {after} to {version}"),
        PeerBody::Gathered { .. } => "Gathered".into(),
        PeerBody::Tried { is_done, .. } => if *is_done { "Tried" } else { "Tried: no room" }.into(),
    }
}

fn brief_state(state: &MemberState) -> String {
    let mut text = format!(
        "record of epoch {}, complete up to {}, held {}",
        state.record_epoch, state.complete, state.held
    );
    if state.is_suspect {
        text.push_str(", suspect");
    }
    text + &brief_filling(&state.filling)
}

fn brief_filling(filling: &Option<Filling>) -> String {
    let Some(filling) = filling else { return String::new() };
    let cursor = filling.cursor.map_or("none".to_owned(), |key| key.stripe.get().to_string());
    let listing = if filling.listing { ", by full listing" } else { "" };
    format!(", filling: complete {}, cursor {cursor}{listing}", filling.complete)
}

fn brief_list(blocks: &[ListedBlock]) -> String {
    let block = |block: &ListedBlock| format!(" {}={}", block.key.stripe.get(), block.version);
    match blocks {
        [] => " nothing".into(),
        _ => blocks.iter().map(block).collect(),
    }
}

fn brief_content(content: &Content) -> String {
    match content {
        Content::Gone => "gone".into(),
        Content::Tombstone { version } => format!("tombstone {version}"),
        Content::Block { version, .. } => version.to_string(),
    }
}
