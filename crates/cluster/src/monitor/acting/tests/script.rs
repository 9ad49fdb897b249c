//! Scripts of the successive entries of one PG: `tests/script/next_entry/*.txt`. A block has
//! commands, a line `----`, and the resulting entries. `UPDATE=1` rewrites the resulting entries.
//!
//! ```text
//!   pool copies=3 min_size=2 plan=1,2,3 osds=4    a PG as planned, all OSDs up in their first run
//!   down 2          the OSD's process is gone, which has been detected
//!   heard 1 3       these OSDs have answered a probe that was sent just now
//!   up 2 [suspect]  the OSD has restarted; suspect: with damage that may have cost writes
//!   plan 1,4,3      the PG has a new plan
//!   complete 4      the primary reports in this epoch that the learner holds everything
//!   stalled 3       the OSD's disk hangs; `answers 3`: the disk responds again
//! ```
//!
//! After each block, entries are computed until nothing changes. `osd.2.1` is OSD 2 in its first run; `-` is
//! an empty position.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

/// A PG, and the condition of its OSDs.
struct Script {
    scene: Scene,
    entry: PgEntry,
    /// The number of the last event.
    event: u64,
}

fn numbers(text: &str) -> impl Iterator<Item = u32> {
    text.split(',').map(|number| number.parse().expect("numbers, with commas between"))
}

impl Script {
    fn begin(words: &[&str]) -> Script {
        let value = |name: &str| {
            let of = |word: &&str| word.strip_prefix(name)?.strip_prefix('=').map(str::to_string);
            words.iter().find_map(of).unwrap_or_else(|| panic!("pool says {name}=..."))
        };
        let number = |name: &str| numbers(&value(name)).next().expect("it has one");
        let plan: Vec<u32> = numbers(&value("plan")).collect();
        let min_size = number("min_size") as usize;
        let scene = Scene::new(number("osds"), &plan, min_size);
        let members: Vec<Member> = plan.iter().map(|number| member(*number, 1)).collect();
        let mut entry = entry(number("copies") as usize, plan[0], &members, &[]);
        entry.epoch = Epoch::new(1);
        Script { scene, entry, event: 10 }
    }

    fn run(&mut self, command: &str, arguments: &[&str]) {
        self.event += 1;
        let event = self.event;
        if command == "plan" {
            self.scene.targets = numbers(arguments[0]).map(osd).collect();
            return;
        }
        let is_suspect = arguments.contains(&"suspect");
        for name in arguments.iter().filter(|word| **word != "suspect") {
            let osd = osd(name.parse().expect("the number of an OSD"));
            let standing = self.scene.standings.get_mut(&osd).expect("there is such an OSD");
            match command {
                "down" => (standing.up, standing.heard, standing.noticed) = (false, 0, event),
                "up" => {
                    standing.incarnation = standing.incarnation.next();
                    (standing.up, standing.heard, standing.suspect) = (true, event, is_suspect);
                    if is_suspect {
                        standing.noticed = event;
                    }
                }
                "heard" => standing.heard = event,
                "stalled" => {
                    standing.disk.stalled = true;
                    standing.disk.since = Time::from_nanos(event);
                    standing.noticed = event;
                }
                "answers" => standing.disk = DiskStanding::default(),
                "complete" => {
                    let learner = self.entry.learner(osd).expect("it is a learner");
                    self.scene.complete.insert(learner.member);
                }
                _ => panic!("there is no command {command}"),
            }
        }
    }

    /// Returns the entries that follow now, one per line.
    fn entries(&mut self) -> String {
        let mut lines = String::new();
        while let Some(next) = self.scene.next(&self.entry) {
            next.check().expect("an entry that can be");
            assert_eq!(next.epoch, self.entry.epoch.next());
            self.entry = next;
            // The `complete` reports were for the previous epoch.
            self.scene.complete.clear();
            lines.push_str(&self.line());
            assert!(lines.lines().count() < 10, "it never comes to rest:\n{lines}");
        }
        if lines.is_empty() { "no change\n".to_string() } else { lines }
    }

    /// Returns the current entry as a line.
    fn line(&self) -> String {
        let name = |member: &Member| format!("{}.{}", member.osd, member.incarnation);
        let positions = self.entry.positions.iter();
        let positions: Vec<String> =
            positions.map(|member| member.as_ref().map_or_else(|| "-".to_string(), name)).collect();
        let primary = self.entry.primary_osd().expect("somebody leads");
        let epoch = self.entry.epoch.get();
        let mut line = format!("epoch {epoch}: {}; {primary} leads", positions.join(" "));
        for learner in &self.entry.learners {
            let Learner { member, position } = learner;
            write!(line, "; {} learns for {position}", name(member)).expect("text has room");
        }
        line + "\n"
    }
}

/// Returns the script with the entries that result from its commands.
fn run(text: &str) -> String {
    let mut script: Option<Script> = None;
    let mut after = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        after.push_str(line);
        after.push('\n');
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.split_first() {
            None => {}
            Some((first, _)) if first.starts_with('#') => {}
            Some((&"pool", arguments)) => script = Some(Script::begin(arguments)),
            Some((&"----", _)) => {
                let script = script.as_mut().expect("a script begins with pool");
                let is_first = script.event == 10;
                after.push_str(&if is_first { script.line() } else { script.entries() });
                // Skip the recorded entries.
                while lines.next_if(|line| !line.is_empty()).is_some() {}
            }
            Some((command, arguments)) => {
                script.as_mut().expect("a script begins with pool").run(command, arguments);
            }
        }
    }
    after
}

#[test]
#[allow(clippy::disallowed_methods)] // Scripts are files.
fn entries_follow_as_the_scripts_say() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/script/next_entry");
    let files = std::fs::read_dir(&dir).expect("scripts are there");
    let mut paths: Vec<_> = files.map(|file| file.expect("it can be read").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let before = std::fs::read_to_string(&path).expect("a script can be read");
        let after = run(&before);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &after).expect("a script can be written");
        } else {
            let again =
                "if meant: UPDATE=1 cargo test -p cluster entries_follow_as_the_scripts_say";
            assert_eq!(after, before, "{}: {again}", path.display());
        }
    }
}
