//! The content of a log line, without the time and the process. Logic has no clock and no files, so it
//! returns a trace event to its owner as an effect.
//!
//! Events are rare: they mark the beginning or end of a state, never a single request. So logic
//! creates them at every level, and the writer of the log drops those below the chosen level.

use std::fmt;

/// The importance of a line. A log at one level also contains the lines of the levels before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Somebody must act.
    Error,
    /// A fault that the cluster handles by itself.
    Warn,
    /// A change that an operator may look for later.
    Info,
    /// Intermediate steps, for finding the cause of a problem.
    Debug,
}

impl Level {
    /// All levels, the most important first.
    pub const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// Returns the name of the level in settings and log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// Returns the level with this name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Returns the index of the level in [`Level::ALL`].
    pub const fn index(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        Level::named(text).ok_or_else(|| "one of error, warn, info, debug".to_string())
    }
}

/// An event that is worth a line in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// The importance of the event.
    pub level: Level,
    /// What happened. The wording never varies, so that a log can be searched for it.
    pub what: &'static str,
    /// Details: the ids and numbers that the event concerns.
    pub fields: Vec<(&'static str, Field)>,
}

/// One value of a [`TraceEvent`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    /// An id, a reason, a name.
    Text(String),
    /// A count, or milliseconds where the name ends in `_ms`.
    Number(u64),
}

impl TraceEvent {
    /// Creates an event of [`Level::Error`].
    pub fn error(what: &'static str) -> TraceEvent {
        TraceEvent::new(Level::Error, what)
    }

    /// Creates an event of [`Level::Warn`].
    pub fn warn(what: &'static str) -> TraceEvent {
        TraceEvent::new(Level::Warn, what)
    }

    /// Creates an event of [`Level::Info`].
    pub fn info(what: &'static str) -> TraceEvent {
        TraceEvent::new(Level::Info, what)
    }

    /// Creates an event of [`Level::Debug`].
    pub fn debug(what: &'static str) -> TraceEvent {
        TraceEvent::new(Level::Debug, what)
    }

    /// Creates an event without fields.
    pub fn new(level: Level, what: &'static str) -> TraceEvent {
        TraceEvent { level, what, fields: Vec::new() }
    }

    /// Adds a field with an id or a text.
    pub fn with(self, name: &'static str, text: impl fmt::Display) -> TraceEvent {
        self.and(name, Field::Text(text.to_string()))
    }

    /// Adds a field with a number.
    pub fn number(self, name: &'static str, number: impl Into<u64>) -> TraceEvent {
        self.and(name, Field::Number(number.into()))
    }

    fn and(mut self, name: &'static str, field: Field) -> TraceEvent {
        assert!(!["time", "level", "who", "what"].contains(&name), "every line has these");
        self.fields.push((name, field));
        self
    }

    /// Adds a field with a list, unless the list is empty.
    pub fn list<T: fmt::Display>(
        self,
        name: &'static str,
        all: impl IntoIterator<Item = T>,
    ) -> TraceEvent {
        let texts: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
        if texts.is_empty() { self } else { self.with(name, texts.join(",")) }
    }

    /// Returns the value of a field as text.
    pub fn field(&self, name: &str) -> Option<String> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, field)| match field {
            Field::Text(text) => text.clone(),
            Field::Number(number) => number.to_string(),
        })
    }
}

/// Writes what happened, then `name=value` for each field; text with blanks is quoted.
impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        for (index, (name, field)) in self.fields.iter().enumerate() {
            f.write_str(if index == 0 { "  " } else { " " })?;
            match field {
                Field::Number(number) => write!(f, "{name}={number}")?,
                Field::Text(text) if is_plain(text) => write!(f, "{name}={text}")?,
                Field::Text(text) => write!(f, "{name}={text:?}")?,
            }
        }
        Ok(())
    }
}

fn is_plain(text: &str) -> bool {
    let is_quoted = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=';
    !text.is_empty() && !text.contains(is_quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_an_order() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(Level::ALL[usize::from(level.index())], level);
        }
        assert!(Level::ALL.is_sorted());
        "loud".parse::<Level>().expect_err("there is no such level");
    }

    #[test]
    fn an_event_is_one_line_whatever_its_texts_hold() {
        let event = TraceEvent::warn("PG is not served")
            .with("pg", "1.4")
            .number("waited_ms", 2000u32)
            .list("members", [3, 1])
            .list("learners", [0u8; 0])
            .with("why", "osd.2 is \"down\"\nfor good");
        let text = event.to_string();
        assert_eq!(
            text,
            "PG is not served  pg=1.4 waited_ms=2000 members=3,1 \
             why=\"osd.2 is \\\"down\\\"\\nfor good\""
        );
        assert_eq!(event.field("members").as_deref(), Some("3,1"));
        assert_eq!(event.field("learners"), None);
        assert_eq!(TraceEvent::info("it ends").to_string(), "it ends");
        assert_eq!(TraceEvent::info("it ends").with("why", "").to_string(), "it ends  why=\"\"");
    }
}
