//! The output of `up`: progress, and commands to try next.

use std::path::Path;

use base::OsdId;
use cluster::message::Failure;
use serde_json::json;

use super::protocol::Work;
use crate::output::{Format, Progress, print_json};

/// A cluster that is ready.
pub struct Ready {
    /// Commands to suggest to the user.
    pub next: Vec<String>,
    /// OSDs that fail to start.
    pub osds_failed: Vec<OsdId>,
}

/// Shows the progress of long tasks, one at a time.
pub struct WorkShow {
    format: Format,
    shown: Option<(String, Progress)>,
}

impl WorkShow {
    /// Creates a display that shows nothing until the first call of `work`.
    pub fn new(format: Format) -> WorkShow {
        WorkShow { format, shown: None }
    }

    /// Shows the progress of a task.
    pub fn work(&mut self, work: &Work) {
        if self.shown.as_ref().is_none_or(|(title, _)| *title != work.title) {
            let progress = Progress::new(self.format, work.title.clone(), work.total_bytes);
            self.shown = Some((work.title.clone(), progress));
        }
        if let Some((_, progress)) = &mut self.shown {
            progress.set(work.done_bytes);
        }
    }

    /// Prints a line (text output only); it replaces the progress bar.
    pub fn line(&mut self, line: &str) {
        self.shown = None;
        if self.format == Format::Text {
            note!("{line}");
        }
    }
}

/// Prints that the cluster is ready, and which commands to try next.
pub fn print_ready(dir: &Path, format: Format, what: &str, ready: &Ready) -> Result<(), Failure> {
    if format == Format::Json {
        let Ready { next, osds_failed } = ready;
        let answer = json!({ "dir": dir, "ready": true, "osds_failed": osds_failed, "next": next });
        return print_json(&answer);
    }
    print_line!("The cluster in {} {what}.", dir.display())?;
    print_line!("What to type next:")?;
    for line in &ready.next {
        print_line!("  {line}")?;
    }
    Ok(())
}
