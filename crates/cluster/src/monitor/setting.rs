//! Settings in the monitor: showing them, changing them, and sending them to the OSDs that use them.

use base::ConnectionId;
use serde_json::{Value, json};

use super::committed_state::Batch;
use super::job::{Done, Plan};
use super::{Effect, Monitor, clipped, failure};
use crate::message::{Failure, FromMonitor};
use crate::records::{Key, Record, Rest, SettingRecord};
use crate::settings::{Changed, Definition, Setting, Unit};

/// Returns the setting with this name.
pub(super) fn setting_named(name: &str) -> Result<Setting, Failure> {
    Setting::named(name).ok_or_else(|| {
        let name = clipped(name.to_string());
        let hint = "`ashlar config ls` lists the settings";
        failure("not_found", format!("there is no setting {name}"), hint)
    })
}

impl Monitor {
    pub(super) fn plan_config_set(&self, name: &str, text: Option<&str>) -> Result<Plan, Failure> {
        let setting = setting_named(name)?;
        let key = Key::Setting(name.to_string());
        let committed = &self.committed;
        let known = committed.setting(name);
        let mut batch = Batch::new(committed);
        let value = match text {
            Some(text) => setting
                .parse(text)
                .map_err(|why| failure("invalid", clipped(why), setting.definition().help))?,
            None => setting.definition().default,
        };
        let answer = Done::Answer(Ok(row_of(setting, value)));
        match (text, known) {
            (None, None) => return Ok(Plan::Done(answer)),
            (None, Some(_)) => batch.delete(committed, key),
            (Some(_), known) => {
                let rest = known.map_or_else(Rest::new, |record| record.rest.clone());
                let record = SettingRecord { name: name.to_string(), value, rest };
                batch.put(committed, Record::Setting(record));
            }
        }
        Ok(Plan::Write { batch, done: Some(answer) })
    }

    pub(super) fn setting_rows(&self) -> Value {
        Setting::ALL.into_iter().map(|setting| self.setting_row(setting)).collect()
    }

    pub(super) fn setting_row(&self, setting: Setting) -> Value {
        row_of(setting, self.setting(setting))
    }

    /// Sends the settings in force to an OSD that has joined, or to another monitor.
    pub(super) fn send_settings(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let of_osds = |(name, value): (&String, &u64)| {
            let setting = Setting::named(name)?;
            setting.definition().is_for_osds.then(|| (name.clone(), *value))
        };
        let changed: Changed =
            self.committed.changed_settings().iter().filter_map(of_osds).collect();
        self.connections.send(connection, &FromMonitor::Settings { changed }, effects);
    }

    /// Applies a changed setting to everything that uses it.
    pub(super) fn on_settings_changed(&mut self, effects: &mut Vec<Effect>) {
        self.look_at_all(self.now);
        effects.push(Effect::LogLevel(Setting::log_level_in(self.committed.changed_settings())));
        let joined = self.osds.values().filter_map(|live| live.connection);
        let joined = joined.chain(self.connections.with_monitors());
        for connection in joined.collect::<Vec<_>>() {
            self.send_settings(connection, effects);
        }
    }
}

fn row_of(setting: Setting, value: u64) -> Value {
    let Definition { name, unit, default, min, max, help, .. } = setting.definition();
    let shown = |value: u64| match unit {
        Unit::Level | Unit::Switch => json!(setting.text_of(value)),
        Unit::Milliseconds
        | Unit::Percent
        | Unit::Hours
        | Unit::HourOfDay
        | Unit::MebibytesPerSecond => json!(value),
    };
    json!({
        "name": name,
        "value": shown(value),
        "default": shown(default),
        "min": shown(min),
        "max": shown(max),
        "help": help,
    })
}
