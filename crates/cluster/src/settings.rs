//! Settings of a cluster: the parser, the help and the table in `docs/internals/state.md` all derive from
//! one definition of each setting.
//!
//! A setting that differs from its default is stored under `config/NAME` in the state store. Only the
//! leading monitor reads it there, and it sends OSDs the settings that they use. A value out of range never
//! takes effect, whoever wrote it.

use std::collections::BTreeMap;

use base::Duration;
use base::trace::Level;

/// Maximum duration of a setting, in milliseconds: one day.
const SPAN_MS_MAX: u64 = 24 * 3600 * 1000;

/// A setting of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    /// How long a session may be without a connection.
    SessionTimeout,
    /// How often an OSD reports.
    OsdReport,
    /// How long OSDs may take to reconnect after a monitor's start.
    OsdReturn,
    /// Length of the leases that allow a primary to serve.
    Lease,
    /// How long an OSD may be without a connection to the monitor before it is down.
    OsdGrace,
    /// How long an OSD may be silent before it is probed.
    OsdSilent,
    /// How long an OSD may be down before its PGs are planned elsewhere.
    OsdOutAfter,
    /// How long a disk operation may take before a warning.
    DiskSlow,
    /// How long a disk must be many times slower than those of its peers before a warning.
    DiskSlower,
    /// How much of an OSD may be in use before a warning.
    NearlyFull,
    /// How often statistics are reported and stored.
    StatsInterval,
    /// The log level of daemons.
    LogLevel,
    /// Hours between two scrubs of a PG that read no data.
    ScrubLight,
    /// Hours between two scrubs of a PG that read all data.
    ScrubDeep,
    /// How much an OSD reads for scrubs.
    ScrubRate,
    /// The hour of day from which scrubs run.
    ScrubFrom,
    /// The hour of day up to which scrubs run.
    ScrubTo,
    /// Whether scrubs repair what they find.
    ScrubRepair,
    /// Whether scrubs are paused.
    ScrubPaused,
}

/// The unit of a setting's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A duration in milliseconds; may be written `10s`.
    Milliseconds,
    /// A percentage; may be written `85%`.
    Percent,
    /// Hours; may be written `24h` or `7d`.
    Hours,
    /// An hour of the day, UTC.
    HourOfDay,
    /// Mebibytes a second.
    MebibytesPerSecond,
    /// Yes or no, as 1 or 0; may be written `on` and `off`.
    Switch,
    /// A log level, by its index in [`Level::ALL`]; written and shown by its name.
    Level,
}

/// The definition of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Definition {
    /// The setting's name; its last word is the unit.
    pub name: &'static str,
    /// The unit of the setting's number.
    pub unit: Unit,
    /// The default value.
    pub default: u64,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// The setting's description, in one line.
    pub help: &'static str,
    /// Whether the setting is sent to OSDs.
    pub is_for_osds: bool,
}

/// Settings that differ from their defaults, by name.
pub type Changed = BTreeMap<String, u64>;

impl Setting {
    /// Every setting.
    pub const ALL: [Setting; 19] = [
        Setting::SessionTimeout,
        Setting::OsdReport,
        Setting::OsdReturn,
        Setting::Lease,
        Setting::OsdGrace,
        Setting::OsdSilent,
        Setting::OsdOutAfter,
        Setting::DiskSlow,
        Setting::DiskSlower,
        Setting::NearlyFull,
        Setting::StatsInterval,
        Setting::LogLevel,
        Setting::ScrubLight,
        Setting::ScrubDeep,
        Setting::ScrubRate,
        Setting::ScrubFrom,
        Setting::ScrubTo,
        Setting::ScrubRepair,
        Setting::ScrubPaused,
    ];

    /// Returns the definition of the setting. Parsers, help texts and documents derive from it.
    pub const fn definition(self) -> Definition {
        match self {
            Setting::SessionTimeout => Definition {
                name: "session_timeout_ms",
                unit: Unit::Milliseconds,
                default: 10_000,
                min: 1_000,
                max: SPAN_MS_MAX,
                help: "a client that is gone or silent for this long is detached if another wants its volume",
                is_for_osds: false,
            },
            Setting::OsdReport => Definition {
                name: "osd_report_ms",
                unit: Unit::Milliseconds,
                default: 1_000,
                min: 100,
                max: 60_000,
                help: "interval between an OSD's reports; status warns after five intervals without one",
                is_for_osds: true,
            },
            Setting::OsdReturn => Definition {
                name: "osd_return_ms",
                unit: Unit::Milliseconds,
                default: 5_000,
                min: 100,
                max: SPAN_MS_MAX,
                help: "after a monitor starts, OSDs that were up have this long to reconnect",
                is_for_osds: false,
            },
            Setting::Lease => Definition {
                name: "lease_ms",
                unit: Unit::Milliseconds,
                default: 300,
                min: 90,
                max: 900,
                help: "duration of the leases that primaries need to serve; renewed three times per duration",
                is_for_osds: true,
            },
            Setting::OsdGrace => Definition {
                name: "osd_grace_ms",
                unit: Unit::Milliseconds,
                default: 300,
                min: 0,
                max: 60_000,
                help: "an OSD whose connection broke is marked down unless it reconnects within this time",
                is_for_osds: false,
            },
            Setting::OsdSilent => Definition {
                name: "osd_silent_ms",
                unit: Unit::Milliseconds,
                default: 2_000,
                min: 200,
                max: 60_000,
                help: "an OSD that is silent for this long is probed, and marked down if it does not answer",
                is_for_osds: false,
            },
            Setting::OsdOutAfter => Definition {
                name: "osd_out_after_ms",
                unit: Unit::Milliseconds,
                default: 600_000,
                min: 1_000,
                max: SPAN_MS_MAX,
                help: "an OSD that is down for this long is taken out: its PGs move to others",
                is_for_osds: false,
            },
            Setting::DiskSlow => Definition {
                name: "disk_slow_ms",
                unit: Unit::Milliseconds,
                default: 1_000,
                min: 100,
                max: 60_000,
                help: "status warns while a read, write or flush of an OSD's disk takes longer than this",
                is_for_osds: true,
            },
            Setting::DiskSlower => Definition {
                name: "disk_slower_ms",
                unit: Unit::Milliseconds,
                default: 60_000,
                min: 1_000,
                max: SPAN_MS_MAX,
                help: "a disk ten times slower than its peers for this long is reported, and reads avoid it",
                is_for_osds: false,
            },
            Setting::NearlyFull => Definition {
                name: "nearly_full_percent",
                unit: Unit::Percent,
                default: 85,
                min: 1,
                max: 99,
                help: "status warns about an OSD that is fuller than this",
                is_for_osds: false,
            },
            Setting::StatsInterval => Definition {
                name: "stats_interval_ms",
                unit: Unit::Milliseconds,
                default: 2_000,
                min: 200,
                max: 60_000,
                help: "interval at which OSDs send statistics to the monitor, which stores the sums",
                is_for_osds: true,
            },
            Setting::LogLevel => Definition {
                name: "log_level",
                unit: Unit::Level,
                default: Level::Info.index() as u64,
                min: Level::Error.index() as u64,
                max: Level::Debug.index() as u64,
                help: "log level of OSDs and monitors; if set, it overrides the level they were started with",
                is_for_osds: true,
            },
            Setting::ScrubLight => Definition {
                name: "scrub_light_hours",
                unit: Unit::Hours,
                default: 168,
                min: 0,
                max: 87600,
                help: "each PG's members are compared by versions and checksums this often; 0: never",
                is_for_osds: true,
            },
            Setting::ScrubDeep => Definition {
                name: "scrub_deep_hours",
                unit: Unit::Hours,
                default: 720,
                min: 0,
                max: 87600,
                help: "each PG's data is read and compared with its checksums this often; 0: never",
                is_for_osds: true,
            },
            Setting::ScrubRate => Definition {
                name: "scrub_rate_mib_per_second",
                unit: Unit::MebibytesPerSecond,
                default: 64,
                min: 1,
                max: 100000,
                help: "maximum read rate of the scrubs that an OSD leads, while no client sends requests",
                is_for_osds: true,
            },
            Setting::ScrubFrom => Definition {
                name: "scrub_from_hour",
                unit: Unit::HourOfDay,
                default: 0,
                min: 0,
                max: 23,
                help: "scheduled scrubs run between this hour (UTC) and `scrub_to_hour`; if equal: any time",
                is_for_osds: true,
            },
            Setting::ScrubTo => Definition {
                name: "scrub_to_hour",
                unit: Unit::HourOfDay,
                default: 0,
                min: 0,
                max: 23,
                help: "see `scrub_from_hour`",
                is_for_osds: true,
            },
            Setting::ScrubRepair => Definition {
                name: "scrub_repair",
                unit: Unit::Switch,
                default: 1,
                min: 0,
                max: 1,
                help: "scrubs repair damage if it is clear what is right; off: they only report it",
                is_for_osds: true,
            },
            Setting::ScrubPaused => Definition {
                name: "scrub_paused",
                unit: Unit::Switch,
                default: 0,
                min: 0,
                max: 1,
                help: "on: all scrubs pause, even requested ones; off: they continue where they stopped",
                is_for_osds: true,
            },
        }
    }

    /// Returns the setting's name.
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// Returns the setting with this name.
    pub fn named(name: &str) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// Checks that the setting may have this value; an error lists the allowed values.
    pub fn check(self, value: u64) -> Result<u64, String> {
        let Definition { min, max, .. } = self.definition();
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        Err(format!("{} must be {}, not {value}", self.name(), self.range_text()))
    }

    /// Parses a value: a number, with or without its unit. An error describes the problem.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        let Definition { unit, name, .. } = self.definition();
        if unit == Unit::Level {
            let level = text.parse::<Level>();
            return level
                .map(|level| level.index().into())
                .map_err(|levels| format!("{text:?} is not a valid {name}: write {levels}"));
        }
        let (digits, suffix) =
            text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        if unit == Unit::Switch {
            let value = match text {
                "on" | "1" => 1,
                "off" | "0" => 0,
                _ => return Err(format!("{text:?} is not a valid {name}: write on or off")),
            };
            return Ok(value);
        }
        let scale = match (unit, suffix) {
            (Unit::Hours, "h") | (Unit::MebibytesPerSecond, "MiB" | "MiB/s") => Some(1),
            (Unit::Hours, "d") => Some(24),
            (_, "") | (Unit::Milliseconds, "ms") | (Unit::Percent, "%") => Some(1),
            (Unit::Milliseconds, "s") => Some(1_000),
            (Unit::Milliseconds, "m" | "min") => Some(60_000),
            (Unit::Milliseconds, "h") => Some(3_600_000),
            _ => None,
        };
        let number = digits.parse::<u64>().ok();
        let value = number.zip(scale).and_then(|(number, scale)| number.checked_mul(scale));
        let value = value.ok_or_else(|| {
            let example = match unit {
                Unit::Milliseconds => "a duration, such as 500ms, 30s, 20m or 1h",
                Unit::Percent => "a percentage, such as 85%",
                Unit::Hours => "a number of hours or days, such as 168, 12h or 30d",
                Unit::HourOfDay => "an hour from 0 to 23, such as 22",
                Unit::MebibytesPerSecond => "a rate in MiB/s, such as 64 or 64MiB",
                Unit::Level | Unit::Switch => unreachable!("read above"),
            };
            format!("{text:?} is not a valid {name}: write {example}")
        })?;
        self.check(value)
    }

    /// Describes the allowed values, for operators.
    pub fn range_text(self) -> String {
        let Definition { unit, min, max, .. } = self.definition();
        match unit {
            Unit::Milliseconds => {
                format!("from {min} to {max} milliseconds (10000, `10s`, `20m`, `1h`)")
            }
            Unit::Percent => format!("from {min} to {max} percent"),
            Unit::Hours => format!("from {min} to {max} hours (168, `12h`, `30d`)"),
            Unit::HourOfDay => format!("an hour from {min} to {max}"),
            Unit::MebibytesPerSecond => format!("from {min} to {max} MiB a second"),
            Unit::Switch => "on or off".to_owned(),
            Unit::Level => format!("from {min} ({}) to {max} ({})", level(min), level(max)),
        }
    }

    /// Formats a value for people and programs.
    pub fn text_of(self, value: u64) -> String {
        match self.definition().unit {
            Unit::Level => level(value).to_string(),
            Unit::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
            Unit::Milliseconds
            | Unit::Percent
            | Unit::Hours
            | Unit::HourOfDay
            | Unit::MebibytesPerSecond => value.to_string(),
        }
    }

    /// Returns the log level of daemons, if one was set.
    pub fn log_level_in(changed: &Changed) -> Option<Level> {
        let is_set = changed.contains_key(Setting::LogLevel.name());
        is_set.then(|| level(Setting::LogLevel.value_in(changed)))
    }

    /// Returns the setting's value, given the settings that differ from their defaults. A value out of range
    /// is ignored: a monitor of another version may have sent it.
    pub fn value_in(self, changed: &Changed) -> u64 {
        let value = changed.get(self.name()).copied();
        value.and_then(|value| self.check(value).ok()).unwrap_or(self.definition().default)
    }

    /// Returns the setting's value as a duration.
    pub fn span_in(self, changed: &Changed) -> Duration {
        Duration::from_millis(self.value_in(changed))
    }
}

/// Returns the log level with this value.
fn level(value: u64) -> Level {
    let index = usize::try_from(value).unwrap_or(usize::MAX);
    Level::ALL.get(index).copied().unwrap_or(Level::Debug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_ranges_and_names_end_in_their_unit() {
        for setting in Setting::ALL {
            let definition = setting.definition();
            assert_eq!(setting.check(definition.default), Ok(definition.default));
            assert_eq!(Setting::named(definition.name), Some(setting));
            let suffix = match definition.unit {
                Unit::Milliseconds => "_ms",
                Unit::Percent => "_percent",
                Unit::Level => "_level",
                Unit::Hours => "_hours",
                Unit::HourOfDay => "_hour",
                Unit::MebibytesPerSecond => "_mib_per_second",
                Unit::Switch => "",
            };
            assert!(definition.name.ends_with(suffix), "{}", definition.name);
        }
        assert_eq!(Setting::named("colour"), None);
    }

    #[test]
    fn values_are_read_with_and_without_their_unit() {
        assert_eq!(Setting::SessionTimeout.parse("2000"), Ok(2000));
        assert_eq!(Setting::SessionTimeout.parse("2s"), Ok(2000));
        assert_eq!(Setting::SessionTimeout.parse("1500ms"), Ok(1500));
        assert_eq!(Setting::SessionTimeout.parse("1min"), Ok(60_000));
        assert_eq!(Setting::OsdOutAfter.parse("20m"), Ok(1_200_000));
        assert_eq!(Setting::OsdOutAfter.parse("600s"), Ok(600_000));
        assert_eq!(Setting::OsdOutAfter.parse("2h"), Ok(7_200_000));
        assert_eq!(Setting::NearlyFull.parse("70%"), Ok(70));
        for wrong in
            ["", "s", "-1", "1d", "25h", "2%", "99999999999999999999", "999", "100000000000s"]
        {
            assert!(Setting::SessionTimeout.parse(wrong).is_err(), "{wrong}");
        }
        let error = Setting::OsdOutAfter.parse("soon").unwrap_err();
        assert!(error.ends_with("write a duration, such as 500ms, 30s, 20m or 1h"), "{error}");
        let error = Setting::NearlyFull.parse("100").unwrap_err();
        assert_eq!(error, "nearly_full_percent must be from 1 to 99 percent, not 100");
    }

    #[test]
    fn a_level_is_written_by_its_name() {
        assert_eq!(Setting::LogLevel.parse("debug"), Ok(3));
        assert_eq!(Setting::LogLevel.text_of(3), "debug");
        let error = Setting::LogLevel.parse("7").unwrap_err();
        assert_eq!(error, "\"7\" is not a valid log_level: write one of error, warn, info, debug");
        assert_eq!(Setting::log_level_in(&Changed::new()), None);
        // A level that is set takes effect, even if it is the default.
        let changed = |value| Changed::from([("log_level".to_string(), value)]);
        assert_eq!(Setting::log_level_in(&changed(2)), Some(Level::Info));
        assert_eq!(Setting::log_level_in(&changed(9)), Some(Level::Info), "it is none");
    }

    #[test]
    fn a_value_out_of_range_is_not_in_force() {
        let changed = Changed::from([("osd_report_ms".to_string(), 5)]);
        assert_eq!(Setting::OsdReport.value_in(&changed), 1_000);
        let changed = Changed::from([("osd_report_ms".to_string(), 500)]);
        assert_eq!(Setting::OsdReport.span_in(&changed), Duration::from_millis(500));
    }
}
