//! [`Buckets`]: all that the gateway calls. One value for each process; the state of buckets and objects lies in
//! the index pool, and any number of these work side by side.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::*;
use crate::door::Door;
use crate::failure::Failure;
use crate::names::Key;

/// What every request returns.
pub type Result<T> = std::result::Result<T, Failure>;

/// Encrypts secrets.
pub struct Sealer {}

impl Sealer {
    /// Creates it from the cluster's key.
    pub fn new(_cluster_key: &[u8]) -> Sealer {
        Sealer {}
    }
}

/// The buckets of an index pool.
pub struct Buckets<D: Door> {
    _door: Arc<D>,
}

/// A body on its way.
pub struct Upload<D: Door> {
    _service: Arc<Buckets<D>>,
}

fn later<T>() -> Result<T> {
    Err(Failure::NotImplemented { what: "this".into() })
}

#[allow(unused_variables, missing_docs)]
impl<D: Door> Upload<D> {
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        later()
    }

    pub async fn finish(self, expected: Expected) -> Result<ObjectInfo> {
        later()
    }
}

#[allow(unused_variables, missing_docs)]
impl<D: Door> Buckets<D> {
    pub fn new(door: Arc<D>, sealer: Sealer) -> Arc<Buckets<D>> {
        Arc::new(Buckets { _door: door })
    }

    pub async fn create_bucket(
        &self,
        client: &Client,
        name: &str,
        owner: &str,
        acl: CannedAcl,
        spread: Option<u16>,
    ) -> Result<Arc<Bucket>> {
        later()
    }

    pub async fn bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        later()
    }

    pub async fn set_acl(&self, client: &Client, name: &str, acl: CannedAcl) -> Result<()> {
        later()
    }

    pub async fn delete_bucket(&self, client: &Client, name: &str) -> Result<()> {
        later()
    }

    pub async fn list_buckets(
        &self,
        owner: &str,
        prefix: &str,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<Arc<Bucket>>, Option<String>)> {
        later()
    }

    pub async fn begin_put(
        self: &Arc<Self>,
        client: Client,
        bucket: Arc<Bucket>,
        key: Key,
        new: NewObject,
    ) -> Result<Upload<D>> {
        later()
    }

    pub async fn get(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
    ) -> Result<Found> {
        later()
    }

    pub async fn delete(
        &self,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
    ) -> Result<()> {
        later()
    }

    pub async fn list(&self, bucket: &Bucket, request: &ListRequest) -> Result<ListPage> {
        later()
    }

    pub async fn create_user(&self, name: &str) -> Result<User> {
        later()
    }

    pub async fn users(
        &self,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<User>, Option<String>)> {
        later()
    }

    pub async fn remove_user(&self, name: &str) -> Result<()> {
        later()
    }

    pub async fn add_key(&self, user: &str) -> Result<(AccessKey, String)> {
        later()
    }

    pub async fn keys(&self, user: &str) -> Result<Vec<AccessKey>> {
        later()
    }

    pub async fn remove_key(&self, id: &str) -> Result<()> {
        later()
    }

    pub async fn secret_of(&self, id: &str) -> Result<Option<(User, String)>> {
        later()
    }
}
