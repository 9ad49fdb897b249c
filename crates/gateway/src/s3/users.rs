//! Who has which access key. What the cluster says is remembered for a second by [`Buckets::secret_of`].

use std::sync::Arc;

use bucket::{Buckets, Door, Failure};

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
}

impl<D: Door> Users<D> {
    /// Asks these buckets.
    pub fn new(buckets: Arc<Buckets<D>>) -> Users<D> {
        Users { buckets }
    }

    /// Returns who has this key. `None`: nobody.
    pub async fn signer(&self, key: &str) -> Result<Option<Signer>, Failure> {
        if key.len() > KEY_SIZE_MAX {
            return Ok(None);
        }
        let found = self.buckets.secret_of(key).await?;
        Ok(found.map(|(user, secret)| Signer { user: user.name, secret }))
    }
}
