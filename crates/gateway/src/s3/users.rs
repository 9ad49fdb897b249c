//! Who has which access key: what the cluster says, remembered for a second.
//!
//! Invariants
//!   1. A key that was removed signs nothing a second later.
//!   2. The table is bounded: made-up keys do not fill the memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bucket::{Buckets, Door, Failure};

/// An answer counts for so long.
const VALID: Duration = Duration::from_secs(1);
/// The most answers that are remembered.
const COUNT_MAX: usize = 10_000;
/// The longest key that is looked up.
const KEY_SIZE_MAX: usize = 128;

/// A user and the secret of the key that was asked for.
#[derive(Clone)]
pub struct Signer {
    /// The user's name.
    pub user: String,
    /// The secret.
    pub secret: String,
}

/// Access keys.
pub struct Users<D: Door> {
    buckets: Arc<Buckets<D>>,
    known: Mutex<BTreeMap<String, (Instant, Option<Signer>)>>,
}

impl<D: Door> Users<D> {
    /// Knows nothing yet.
    pub fn new(buckets: Arc<Buckets<D>>) -> Users<D> {
        Users { buckets, known: Mutex::default() }
    }

    /// Returns who has this key. `None`: nobody.
    pub async fn signer(&self, key: &str) -> Result<Option<Signer>, Failure> {
        if key.len() > KEY_SIZE_MAX {
            return Ok(None);
        }
        // It is as old as the sending of its look.
        let now = Instant::now();
        let known = |(since, signer): &(Instant, Option<Signer>)| {
            (now.saturating_duration_since(*since) < VALID).then(|| signer.clone())
        };
        if let Some(signer) = self.lock().get(key).and_then(known) {
            return Ok(signer);
        }
        let found = self.buckets.secret_of(key).await?;
        let signer = found.map(|(user, secret)| Signer { user: user.name, secret });
        let mut table = self.lock();
        if table.len() >= COUNT_MAX {
            table.retain(|_, (since, _)| now.saturating_duration_since(*since) < VALID);
        }
        if table.len() < COUNT_MAX {
            table.insert(key.to_string(), (now, signer.clone()));
        }
        Ok(signer)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, Option<Signer>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
