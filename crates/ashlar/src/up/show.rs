//! The output of `up`: progress, and commands to try next.

use std::path::Path;

use base::OsdId;
use cluster::message::Failure;
use serde_json::json;

use super::protocol::{GatewayAccess, GatewayKey, NextSteps, Work};
use crate::output::{Format, Progress, print_json};

/// A cluster that is ready.
pub struct Ready {
    /// What to tell the user.
    pub steps: NextSteps,
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
        let Ready { steps: NextSteps { next, gateway }, osds_failed } = ready;
        let mut answer =
            json!({ "dir": dir, "ready": true, "osds_failed": osds_failed, "next": next });
        if let Some(gateway) = gateway {
            answer["gateway"] = json!(gateway);
        }
        return print_json(&answer);
    }
    print_line!("The cluster in {} {what}.", dir.display())?;
    print_line!("What to type next:")?;
    for line in &ready.steps.next {
        print_line!("  {line}")?;
    }
    match &ready.steps.gateway {
        Some(gateway) => print_gateway(gateway),
        None => Ok(()),
    }
}

fn print_gateway(gateway: &GatewayAccess) -> Result<(), Failure> {
    let GatewayAccess { url, region, key } = gateway;
    let Some(GatewayKey { access_key, secret_key }) = key else {
        return print_line!("S3 at {url}: `ashlar user key add USER` makes an access key.");
    };
    print_line!("S3 at {url}. The keys of user `admin` are shown only now:")?;
    print_line!("  export AWS_ENDPOINT_URL={url} AWS_REGION={region}")?;
    print_line!("  export AWS_ACCESS_KEY_ID={access_key}")?;
    print_line!("  export AWS_SECRET_ACCESS_KEY={secret_key}")?;
    print_line!("  aws s3 mb s3://photos")
}
