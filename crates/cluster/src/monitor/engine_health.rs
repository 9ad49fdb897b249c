//! What is wrong with engines, as OSDs report it.

use base::{OsdId, PoolId};

use super::status::{Check, Severity};
use crate::message::OsdReport;

/// Returns what is wrong with the engine of this OSD.
pub(super) fn engine_checks(osd: OsdId, report: &OsdReport) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |code, severity, message, hint: &'static str| {
        checks.push(Check { code, severity, message, hint: hint.into() });
    };
    if !report.damaged_pools.is_empty() {
        let pools: Vec<String> = report.damaged_pools.iter().map(PoolId::to_string).collect();
        add(
            "engine_damaged",
            Severity::Error,
            format!("records of objects on {osd} are damaged, in pool {}", pools.join(", ")),
            "PGs of the pool leave this OSD where enough others remain: lower the pool's minimum size if too \
             few do. When all have left, and two others remain in each, it removes what it has of the pool, \
             and is filled anew; else `ashlar osd out` moves its copies elsewhere. Where there is no other \
             OSD for them, lower the minimum size to 1, stop the OSD, and give it an empty engine with \
             `ashlar osd new-engine`: it is filled when it starts. Where no other copy is there, objects \
             that cannot be read are lost: put or remove them. Check the disk's health and \
             the host's kernel log",
        );
    }
    let Some(engine) = &report.engine else { return checks };
    if engine.waits_for_space {
        add(
            "engine_full",
            Severity::Error,
            format!("the file system with the records of objects of {osd} is full"),
            "make space in it: nothing is lost, but changes of objects are refused, and later all writes of \
             this OSD wait",
        );
    } else if engine.low_on_space {
        add(
            "engine_low",
            Severity::Error,
            format!("the file system with the records of objects of {osd} has little space left"),
            "what adds to objects there is refused, copies that are being filled wait, and if the OSD's \
             blocks are in the same file system they take no more of it: remove objects or records (space \
             comes back as they are compacted away), make space in the file system, or add OSDs",
        );
    }
    if engine.stall == "stopped" {
        add(
            "engine_stopped",
            Severity::Warn,
            format!("the engine of {osd} takes no records until its compactions have caught up"),
            "if it stays so, its file system is too slow: use a faster disk for `--objects`",
        );
    }
    if engine.background_errors > 0 {
        add(
            "engine_errors",
            Severity::Warn,
            format!(
                "{} flushes or compactions of the engine of {osd} have failed since it started",
                engine.background_errors
            ),
            "check the space of its file system, its disk's health and the host's kernel log",
        );
    }
    checks
}

/// Returns what is said of an OSD that has no engine, while there are pools of objects.
pub(super) fn engine_missing(osd: OsdId) -> Check {
    Check {
        code: "engine_missing",
        severity: Severity::Info,
        message: format!("{osd} has no engine: pools of objects have no PGs there"),
        hint: "an OSD on a block device gets one when it is started with --objects DIR; else its log says \
               why it has none"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use format::engine::Compression;

    use super::*;
    use crate::message::{EngineReport, FamilyReport};

    #[test]
    fn what_is_wrong_with_an_engine_is_named_and_nothing_else() {
        let codes = |engine: Option<EngineReport>, damaged: &[PoolId]| {
            let damaged_pools = damaged.iter().copied().collect();
            let engine = engine.map(Box::new);
            let report = OsdReport { engine, damaged_pools, ..OsdReport::default() };
            let checks = engine_checks(OsdId::FIRST, &report);
            checks.iter().map(|check| check.code).collect::<Vec<_>>()
        };
        assert_eq!(codes(None, &[]), Vec::<&str>::new());
        assert_eq!(codes(None, &[PoolId::FIRST]), ["engine_damaged"]);
        let family = FamilyReport {
            pool: PoolId::FIRST,
            compression: Compression::None,
            disk_bytes: 1,
            memory_bytes: 1,
            records: 1,
            compaction_bytes_left: 1,
            damaged: false,
        };
        let sound = EngineReport {
            families: vec![family.clone()],
            stall: "slowed".into(),
            ..EngineReport::default()
        };
        assert_eq!(codes(Some(sound), &[]), Vec::<&str>::new());
        let bad = EngineReport {
            families: vec![family],
            stall: "stopped".into(),
            background_errors: 2,
            waits_for_space: true,
            ..EngineReport::default()
        };
        let all = ["engine_damaged", "engine_full", "engine_stopped", "engine_errors"];
        assert_eq!(codes(Some(bad), &[PoolId::FIRST]), all);
        let low = EngineReport { low_on_space: true, ..EngineReport::default() };
        assert_eq!(codes(Some(low), &[]), ["engine_low"]);
    }
}
