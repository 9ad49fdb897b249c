//! Newer sessions of images that this OSD saw before it had the map that they act on.
//!
//! A client may take over an image because it broke the lock or because the previous session has ended. The
//! client receives its session only after a revision of the map contains the fence of the previous session,
//! and all its requests carry that revision or a later one. So an OSD that sees the new session but has an
//! older map must assume that older sessions of this image are fenced. If several clients share the image, an
//! older session may not be fenced; such a session only waits until the OSD has the map.
//!
//! ```text
//!   session 7 needs revision 12, map has 11 ──▶ image: 7, 12 ──▶ sessions below 7 wait ──▶ map 12: forgotten
//! ```
//!
//! Invariants
//!   1. A takeover is forgotten only when the map has its revision, or its pool has been removed.
//!   2. At most [`TAKEOVER_COUNT_MAX`] images are tracked one by one. Further images share one entry per
//!      pool; such entries exist for at most [`UNKNOWN_COUNT_MAX`] pools that the map does not have.

use std::collections::BTreeMap;

use base::{ImageId, MapRevision, PoolId, SessionId};

/// Maximum number of images whose newest sessions are tracked one by one; takeovers of further images hold
/// back all sessions of their pool.
const TAKEOVER_COUNT_MAX: usize = 1024;
/// Maximum number of pools that the map does not have and that still get such a shared entry: a cluster has
/// no more pools.
const UNKNOWN_COUNT_MAX: usize = 256;

/// The newest sessions that were seen and whose map has not arrived yet.
#[derive(Default)]
pub struct SessionTakeovers {
    /// By image; the entry with `None` applies to all images of the pool.
    shown: BTreeMap<(PoolId, Option<ImageId>), Takeover>,
}

/// A session that acts on a map that this OSD does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takeover {
    /// The newest session that was seen.
    pub session: SessionId,
    /// The lowest map revision that the session requires. The map of this revision contains every fence set
    /// before the session began.
    pub revision: MapRevision,
}

impl SessionTakeovers {
    /// Records a session that acts on a newer revision than the map. Returns whether further sessions may be
    /// held back from now on. `is_known`: whether the map has the pool.
    pub fn show(
        &mut self,
        (pool, image): (PoolId, ImageId),
        takeover: Takeover,
        is_known: bool,
    ) -> bool {
        let key = (pool, Some(image));
        if let Some(known) = self.shown.get_mut(&key) {
            if takeover.session < known.session {
                return false;
            }
            let is_newer = takeover.session > known.session;
            if is_newer || takeover.revision < known.revision {
                *known = takeover;
            }
            return is_newer;
        }
        if self.shown.len() < TAKEOVER_COUNT_MAX {
            self.shown.insert(key, takeover);
            return true;
        }
        let before = self.shown.get(&(pool, None)).copied();
        let is_over = self.shown.len() >= TAKEOVER_COUNT_MAX + UNKNOWN_COUNT_MAX;
        if before.is_none() && !is_known && is_over {
            return false;
        }
        let rest = before.map_or(takeover, |rest| Takeover {
            session: rest.session.max(takeover.session),
            revision: rest.revision.max(takeover.revision),
        });
        self.shown.insert((pool, None), rest);
        before != Some(rest)
    }

    /// Returns whether a session must wait for the map because a newer session of its image was seen.
    pub fn hold_back(&self, pool: PoolId, image: Option<ImageId>, session: SessionId) -> bool {
        if self.shown.is_empty() || session == SessionId::ZERO {
            return false;
        }
        let is_older = |image| {
            let takeover = self.shown.get(&(pool, image));
            takeover.is_some_and(|takeover| session < takeover.session)
        };
        is_older(None) || image.is_some_and(|image| is_older(Some(image)))
    }

    /// Handles a new map: the pool has reached this revision.
    pub fn on_map(&mut self, pool: PoolId, revision: MapRevision) {
        self.shown.retain(|(of, _), takeover| *of != pool || takeover.revision > revision);
    }

    /// Forgets a pool that was removed.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.shown.retain(|(of, _), _| *of != pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId::FIRST;

    fn image(number: u32) -> ImageId {
        ImageId::new(number).expect("not 0")
    }

    fn takeover(session: u64, revision: u64) -> Takeover {
        Takeover { session: SessionId::new(session), revision: MapRevision::new(revision) }
    }

    fn is_held(session_takeovers: &SessionTakeovers, number: u32, session: u64) -> bool {
        session_takeovers.hold_back(POOL, Some(image(number)), SessionId::new(session))
    }

    #[test]
    fn only_older_sessions_of_the_same_image_wait_until_the_map_has_come() {
        let mut session_takeovers = SessionTakeovers::default();
        assert!(session_takeovers.show((POOL, image(1)), takeover(7, 12), true));
        assert!(
            !session_takeovers.show((POOL, image(1)), takeover(7, 13), true),
            "nobody else waits"
        );
        assert!(
            !session_takeovers.show((POOL, image(1)), takeover(6, 14), true),
            "it is no newer one"
        );
        assert!(is_held(&session_takeovers, 1, 6));
        assert!(!is_held(&session_takeovers, 1, 7));
        assert!(!is_held(&session_takeovers, 1, 8));
        assert!(!is_held(&session_takeovers, 2, 6));
        assert!(!is_held(&session_takeovers, 1, 0), "tasks of monitors are nobody's session");
        session_takeovers.on_map(POOL, MapRevision::new(11));
        assert!(is_held(&session_takeovers, 1, 6));
        session_takeovers.on_map(POOL, MapRevision::new(12));
        assert!(!is_held(&session_takeovers, 1, 6));
    }

    #[test]
    fn the_newest_session_counts_by_the_lowest_revision_that_it_named() {
        let mut session_takeovers = SessionTakeovers::default();
        session_takeovers.show((POOL, image(1)), takeover(5, 20), true);
        // The session acts on an older map, which contains every fence that was set before it began.
        assert!(session_takeovers.show((POOL, image(1)), takeover(7, 14), true));
        session_takeovers.show((POOL, image(1)), takeover(7, 13), true);
        assert!(is_held(&session_takeovers, 1, 5));
        session_takeovers.on_map(POOL, MapRevision::new(13));
        assert!(!is_held(&session_takeovers, 1, 5));
    }

    #[test]
    fn more_images_than_are_kept_apart_hold_back_their_whole_pool() {
        let mut session_takeovers = SessionTakeovers::default();
        let count = TAKEOVER_COUNT_MAX as u32;
        for number in 1..=count {
            assert!(session_takeovers.show((POOL, image(number)), takeover(7, 12), true));
        }
        assert!(session_takeovers.show((POOL, image(count + 1)), takeover(9, 11), true));
        assert!(session_takeovers.show((POOL, image(count + 2)), takeover(8, 15), true));
        assert!(is_held(&session_takeovers, count + 1, 8));
        assert!(is_held(&session_takeovers, count + 3, 8));
        assert!(session_takeovers.hold_back(POOL, None, SessionId::new(8)));
        assert_eq!(session_takeovers.shown.len(), TAKEOVER_COUNT_MAX + 1);
        session_takeovers.on_map(POOL, MapRevision::new(12));
        assert_eq!(session_takeovers.shown.len(), 1);
        session_takeovers.forget_pool(POOL);
        assert!(!is_held(&session_takeovers, count + 3, 8));
    }

    #[test]
    fn takeovers_in_unknown_pools_are_kept_up_to_a_bound() {
        let mut session_takeovers = SessionTakeovers::default();
        for number in 1..=TAKEOVER_COUNT_MAX as u32 {
            session_takeovers.show((POOL, image(number)), takeover(7, 12), true);
        }
        let pool = |number: u32| PoolId::new(number).expect("not 0");
        for number in 2..1000 {
            session_takeovers.show((pool(number), image(1)), takeover(7, 12), false);
        }
        assert_eq!(session_takeovers.shown.len(), TAKEOVER_COUNT_MAX + UNKNOWN_COUNT_MAX);
        // The map that arrives may be older than the fence.
        session_takeovers.on_map(pool(2), MapRevision::new(11));
        assert!(session_takeovers.hold_back(pool(2), Some(image(5)), SessionId::new(6)));
        assert!(
            session_takeovers.show((POOL, image(9999)), takeover(9, 12), true),
            "one that is known"
        );
        assert!(is_held(&session_takeovers, 9999, 8));
    }
}
