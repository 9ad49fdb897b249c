//! [`Buckets`]: all that the gateway calls. One value for each process; the state of buckets and objects lies in
//! the index pool, and any number of these work side by side.
//!
//! Invariants
//!   1. A change is a task: it goes on when its caller is dropped, and then sends nothing more.
//!   2. A client waits for 30 s at most.

use std::sync::Arc;

use crate::api::{
    AccessKey, Bucket, ByteRange, CannedAcl, Client, Completion, Conditions, Found, Kept, ListPage,
    ListRequest, NewObject, NewPart, NewUpload, ObjectInfo, OpenUpload, PartInfo, Settings,
    UploadId, User,
};
use crate::buckets::check_bucket_name;
#[cfg(test)]
use crate::collector::{Collected, Collector};
use crate::core::{Core, Result, encode};
use crate::door::Door;
use crate::failure::Failure;
use crate::multipart::{PartUpload, UploadPage, UploadsRequest};
use crate::names::{IndexName, Key};
use crate::put::Upload;
use crate::sealer::Sealer;
use crate::views::VIEW_AGE_MAX;

/// The buckets of an index pool, with users and their keys.
pub struct Buckets<D: Door> {
    core: Arc<Core<D>>,
}

impl<D: Door> Buckets<D> {
    /// Creates it. Nothing is read.
    pub fn new(door: Arc<D>, sealer: Sealer, settings: Settings) -> Arc<Buckets<D>> {
        Arc::new(Buckets { core: Arc::new(Core::new(door, sealer, settings)) })
    }

    /// Gives back, for as long as it is polled, what no object names any more: data that was replaced or
    /// deleted, and that of uploads that never ended. Every gateway runs this; one of them does the work.
    pub async fn collect(&self) {
        self.core.clone().collect().await;
    }

    /// Goes over all strays once, as a collector that has the lease does every 30 s. A collector is a value:
    /// what it saw before tells it which uploads stand still.
    #[cfg(test)]
    pub(crate) async fn collect_once(&self, collector: &mut Collector) -> Result<Collected> {
        self.core.collect_once(collector).await
    }

    /// Creates a bucket. `spread`: in how many shards its keys lie; a power of two from 1 to 4,096.
    pub async fn create_bucket(
        &self,
        client: &Client,
        name: &str,
        owner: &str,
        acl: CannedAcl,
        spread: Option<u16>,
    ) -> Result<Arc<Bucket>> {
        let (core, of_client) = (self.core.clone(), client.clone());
        check_bucket_name(name)?;
        let (name, owner) = (name.to_owned(), owner.to_owned());
        let object = encode(&IndexName::Bucket(name.clone()))?;
        let work = async move { core.create_bucket(&of_client, &name, &owner, acl, spread).await };
        self.core.answer(client, self.core.run(&object, work)).await
    }

    /// Returns a bucket as it was a second ago or later. One that is being deleted is there.
    pub async fn bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        check_bucket_name(name)?;
        let object = encode(&IndexName::Bucket(name.to_owned()))?;
        let view = self.core.view(name, VIEW_AGE_MAX);
        let view = self.core.read_within(Some(&object), view).await?;
        let (_, record) = view.found.ok_or(Failure::NoSuchBucket)?;
        Ok(record.bucket)
    }

    /// Sets who else may read a bucket.
    pub async fn set_acl(&self, client: &Client, name: &str, acl: CannedAcl) -> Result<()> {
        check_bucket_name(name)?;
        let (core, of_client, name) = (self.core.clone(), client.clone(), name.to_owned());
        let object = encode(&IndexName::Bucket(name.clone()))?;
        let work = async move { core.set_acl(&of_client, &name, acl).await };
        self.core.answer(client, self.core.run(&object, work)).await
    }

    /// Deletes a bucket that has no objects.
    pub async fn delete_bucket(&self, client: &Client, name: &str) -> Result<()> {
        check_bucket_name(name)?;
        let (core, of_client, name) = (self.core.clone(), client.clone(), name.to_owned());
        let object = encode(&IndexName::Bucket(name.clone()))?;
        let work = async move { core.delete_bucket(&of_client, &name).await };
        self.core.answer(client, self.core.run(&object, work)).await
    }

    /// Lists the buckets of a user in the order of their names: those that begin with `prefix`, behind
    /// `after`. The second value is the `after` of the next page.
    pub async fn list_buckets(
        &self,
        owner: &str,
        prefix: &str,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<Arc<Bucket>>, Option<String>)> {
        let buckets = self.core.list_buckets(owner, prefix, after, count_max);
        self.core.read_within(None, buckets).await
    }

    /// Begins to put an object.
    pub async fn begin_put(
        self: &Arc<Self>,
        client: Client,
        bucket: Arc<Bucket>,
        key: Key,
        new: NewObject,
    ) -> Result<Upload<D>> {
        Upload::new(self.core.clone(), client, bucket, key, new)
    }

    /// Returns an object, for GET. `kept`: what is kept until no byte of it is held any more.
    pub async fn get(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
        kept: Kept,
    ) -> Result<Found<D>> {
        let (object, core) = (bucket.key_name(key)?, self.core.clone());
        let get = core.get(bucket, key, conditions, range, kept);
        self.core.read_within(Some(&object), get).await
    }

    /// Returns what is known of an object, for HEAD: as `get`, without its bytes.
    pub async fn head(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
    ) -> Result<Found<D>> {
        let object = bucket.key_name(key)?;
        self.core.read_within(Some(&object), self.core.head(bucket, key, conditions, range)).await
    }

    /// Begins an upload in parts.
    pub async fn begin_upload(
        &self,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        new: NewUpload,
    ) -> Result<UploadId> {
        self.core.begin_upload(client, bucket, key, new).await
    }

    /// Begins to put a part of an upload.
    pub async fn begin_part(
        &self,
        client: Client,
        bucket: &Bucket,
        key: &Key,
        part: (UploadId, u16),
        new: NewPart,
    ) -> Result<PartUpload<D>> {
        let waits = client.clone();
        let begin = self.core.begin_part(client, bucket, key, part, new);
        self.core.answer(&waits, begin).await
    }

    /// Makes the parts of an upload an object.
    pub async fn complete_upload(
        &self,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
        completion: Completion,
    ) -> Result<ObjectInfo> {
        self.core.complete_upload(client, bucket, key, upload, completion).await
    }

    /// Gives an upload up: its parts are gone.
    pub async fn abort_upload(
        &self,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
    ) -> Result<()> {
        self.core.abort_upload(client, bucket, key, upload).await
    }

    /// Returns an open upload and a page of its parts: those behind a number. The last value is the
    /// `after` of the next page.
    pub async fn parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
        after: u16,
        count_max: usize,
    ) -> Result<(OpenUpload, Vec<PartInfo>, Option<u16>)> {
        let list = self.core.list_parts(bucket, key, upload, after, count_max);
        let object = bucket.key_name(key)?;
        self.core.read_within(Some(&object), list).await
    }

    /// Lists the open uploads of a bucket.
    pub async fn uploads(&self, bucket: &Bucket, request: &UploadsRequest) -> Result<UploadPage> {
        self.core.read_within(None, self.core.list_uploads(bucket, request)).await
    }

    /// Deletes an object. One that is not there is deleted already.
    pub async fn delete(
        &self,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
    ) -> Result<()> {
        self.core.delete(client, bucket, key, conditions).await
    }

    /// Lists objects of a bucket.
    pub async fn list(&self, bucket: &Bucket, request: &ListRequest) -> Result<ListPage> {
        self.core.read_within(None, self.core.list(bucket, request)).await
    }

    /// Creates a user.
    pub async fn create_user(&self, name: &str) -> Result<User> {
        self.core.create_user(name).await
    }

    /// Lists users in the order of their names, behind `after`. The second value is the `after` of the next
    /// page.
    pub async fn users(
        &self,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<User>, Option<String>)> {
        self.core.users(after, count_max).await
    }

    /// Removes a user who has neither buckets nor access keys.
    pub async fn remove_user(&self, name: &str) -> Result<()> {
        self.core.remove_user(name).await
    }

    /// Gives a user an access key. The secret is told here alone.
    pub async fn add_key(&self, user: &str) -> Result<(AccessKey, String)> {
        self.core.add_key(user).await
    }

    /// Returns the access keys of a user.
    pub async fn keys(&self, user: &str) -> Result<Vec<AccessKey>> {
        self.core.keys(user).await
    }

    /// Removes an access key. Other gateways may accept it for a second.
    pub async fn remove_key(&self, id: &str) -> Result<()> {
        self.core.remove_key(id).await
    }

    /// Returns the user and the secret of an access key. `None`: there is no such key.
    pub async fn secret_of(&self, id: &str) -> Result<Option<(User, String)>> {
        let Ok(object) = encode(&IndexName::AccessKey(id.to_owned())) else { return Ok(None) };
        self.core.read_within(Some(&object), self.core.secret_of(id)).await
    }
}
