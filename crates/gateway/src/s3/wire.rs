//! The S3 library, and all that names its types: it verifies signatures, undoes `aws-chunked`, and reads and
//! writes the XML of operations on buckets. What it does not check is checked in front of it (`front.rs`, `body.rs`)
//! or here.
//!
//! Invariants
//!   1. Authentication is always set: without it the library checks nobody.
//!   2. Operations of the library are for signed requests alone. What anonymous requests may do is decided for
//!      each route, by the bucket's ACL.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use bucket::{Action, CannedAcl, Door, Failure};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto;
use s3s::host::{S3Host, VirtualHost};
use s3s::route::S3Route;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::checksums::Announced;
use super::route::{Route, route};
use super::{Answer, Asked, Payload, Shared};
use crate::errors::Refusal;
use crate::exchange::Exchange;
use crate::front::bucket_of_host;
use crate::limits::XML_SIZE_MAX;
use crate::memory::RequestMemory;

/// The body of an answer.
pub type AnswerBytes = s3s::Body;

/// Buckets in a page of ListBuckets, if the client does not say.
const BUCKETS_COUNT_MAX: usize = 10_000;
/// Everybody, in ACLs.
const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
/// How far the clock of a client may be off.
const SKEW_SECONDS_MAX: u32 = 900;

/// S3 on buckets.
pub struct Wire<D: Door> {
    service: S3Service,
    shared: Arc<Shared<D>>,
}

impl<D: Door> Wire<D> {
    /// Wires the library.
    pub fn new(shared: Arc<Shared<D>>) -> Wire<D> {
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_SIZE_MAX;
        config.post_object_max_file_size = 64 << 20;
        config.presigned_url_max_skew_time_secs = SKEW_SECONDS_MAX;
        let mut builder = S3ServiceBuilder::new(Operations(shared.clone()));
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        builder.set_auth(Operations(shared.clone()));
        builder.set_access(SignedOnly);
        builder.set_route(Operations(shared.clone()));
        if !shared.domains.is_empty() {
            builder.set_host(Hosts(shared.domains.clone()));
        }
        Wire { service: builder.build(), shared }
    }

    /// Answers a request. Requires: `front` has checked it.
    pub async fn answer<B>(
        &self,
        request: Request<B>,
        exchange: &Arc<Exchange>,
    ) -> Response<AnswerBytes>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Error + Send + Sync + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let body = s3s::Body::http_body(body);
        let route = route(&parts.method, exchange, &parts.headers);
        let body = match matches!(route, None | Some(Route::DeleteMany)) {
            true => match document_of(&parts.headers, body).await {
                Ok(body) => body,
                Err(refusal) => return refused(&exchange.refusal_of(refusal), exchange),
            },
            false => body,
        };
        parts.extensions.insert(exchange.clone());
        let headers = parts.headers.clone();
        let response = self.service.call(Request::from_parts(parts, body)).await;
        match response {
            Ok(response) => finished(response, &headers, exchange),
            Err(error) => {
                let what = format!("the answer cannot be written: {error:?}");
                let failure = Failure::Damaged { what };
                refused(&Refusal::from(failure), exchange)
            }
        }
    }

    /// Returns what all requests share.
    pub fn shared(&self) -> &Arc<Shared<D>> {
        &self.shared
    }
}

impl Exchange {
    /// Returns what to say of a body that failed: what was wrong with it, if that is known.
    fn refusal_of(&self, refusal: Refusal) -> Refusal {
        self.fault().map_or(refusal, Refusal::from)
    }
}

/// Returns the response for a request that failed.
pub fn refused(refusal: &Refusal, exchange: &Exchange) -> Response<AnswerBytes> {
    response_of(Answer::refusal(refusal, exchange))
}

/// Returns the response of an answer.
pub fn response_of(answer: Answer) -> Response<AnswerBytes> {
    let mut response = Response::new(bytes_of(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

fn bytes_of(body: Payload) -> AnswerBytes {
    match body {
        Payload::Bytes(bytes) => s3s::Body::from(bytes),
        Payload::Stored(body) => s3s::Body::http_body_unsync(body),
    }
}

/// Completes the error documents of the library, which know neither the request nor the clock.
fn finished(
    response: Response<AnswerBytes>,
    headers: &HeaderMap,
    exchange: &Exchange,
) -> Response<AnswerBytes> {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let Some(bytes) = response.body().bytes() else { return response };
    let Ok(text) = std::str::from_utf8(&bytes) else { return response };
    if text.contains("<RequestId>") {
        return response;
    }
    let between = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let code = between("Code").unwrap_or_default();
    exchange.on_code(code);
    let mut xml = crate::xml::Xml::new();
    xml.open("Error");
    xml.text("Code", code);
    xml.text("Message", &unescaped(between("Message").unwrap_or(code)));
    if code == "RequestTimeTooSkewed" {
        let date = headers.get("x-amz-date").and_then(|value| value.to_str().ok());
        xml.text("RequestTime", date.or(exchange.query.get("X-Amz-Date")).unwrap_or_default());
        xml.text("ServerTime", &io::log::time_text(crate::clock::wall_us() / 1000));
        let skew = u64::from(SKEW_SECONDS_MAX) * 1000;
        xml.text("MaxAllowedSkewMilliseconds", &skew.to_string());
    }
    xml.text("Resource", &exchange.path);
    xml.text("RequestId", &exchange.id);
    xml.close("Error");
    let (mut parts, _) = response.into_parts();
    parts.headers.remove("content-length");
    Response::from_parts(parts, s3s::Body::from(xml.finish()))
}

fn unescaped(text: &str) -> String {
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    entities.iter().fold(text.to_string(), |text, (entity, c)| text.replace(entity, c))
}

/// Reads a body that is a document, and compares it with the digests in the headers.
async fn document_of(headers: &HeaderMap, body: s3s::Body) -> Result<s3s::Body, Refusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text("x-amz-content-sha256").is_some_and(|text| text.starts_with("STREAMING-")) {
        return Err(Refusal::invalid_request("A document cannot be sent in chunks"));
    }
    let too_long =
        |message: &str| Refusal::new(StatusCode::BAD_REQUEST, "MaxMessageLengthExceeded", message);
    let bytes = match Limited::new(body, XML_SIZE_MAX).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(too_long("Your request was too big."));
        }
        Err(_) => return Err(Refusal::from(Failure::IncompleteBody)),
    };
    compare_digests(headers, &bytes)?;
    Ok(s3s::Body::from(bytes))
}

fn compare_digests(headers: &HeaderMap, bytes: &[u8]) -> Result<(), Refusal> {
    let request = (Method::POST, String::new());
    let nothing =
        Exchange::new(String::new(), None, request, Default::default(), Default::default());
    let asked = Asked { exchange: &nothing, headers, user: None, memory: RequestMemory::none() };
    let bad = |which| Err(Refusal::from(Failure::BadDigest { which }));
    if asked.content_md5()?.is_some_and(|md5| Md5::checksum(bytes) != md5) {
        return bad("Content-MD5");
    }
    // What is no digest is a word such as `UNSIGNED-PAYLOAD`, which the library checks.
    let signed = asked.header("x-amz-content-sha256")?.filter(|text| text.len() == 64);
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    if signed.is_some_and(|signed| !signed.eq_ignore_ascii_case(&hex(&Sha256::checksum(bytes)))) {
        return Err(Refusal::content_sha256_mismatch());
    }
    let Announced::Header(told) = asked.announced()? else { return Ok(()) };
    let value = match told.kind {
        bucket::ChecksumKind::Crc32 => Crc32::checksum(bytes).to_vec(),
        bucket::ChecksumKind::Crc32c => Crc32c::checksum(bytes).to_vec(),
        bucket::ChecksumKind::Sha1 => Sha1::checksum(bytes).to_vec(),
        bucket::ChecksumKind::Sha256 => Sha256::checksum(bytes).to_vec(),
        bucket::ChecksumKind::Crc64Nvme => Crc64Nvme::checksum(bytes).to_vec(),
    };
    match value == told.value {
        true => Ok(()),
        false => bad(super::checksums::header_name(told.kind)),
    }
}

impl From<Refusal> for S3Error {
    fn from(refusal: Refusal) -> S3Error {
        let code = S3ErrorCode::from_bytes(refusal.code.as_bytes());
        let mut error =
            S3Error::with_message(code.unwrap_or(S3ErrorCode::InternalError), refusal.message);
        error.set_status_code(refusal.status);
        let mut answer = Answer::new(refusal.status);
        for (name, value) in &refusal.headers {
            answer.set(name, value);
        }
        answer.set("content-type", "application/xml");
        error.set_headers(answer.headers);
        error
    }
}

/// Hosts below which a bucket's name may stand.
struct Hosts(Vec<String>);

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        match bucket_of_host(&self.0, host) {
            Some(bucket) => Ok(VirtualHost::new(host).with_bucket(bucket)),
            None => Ok(VirtualHost::new(host)),
        }
    }
}

/// Operations of the library are for signed requests alone.
struct SignedOnly;

#[async_trait]
impl S3Access for SignedOnly {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        match context.credentials() {
            Some(_) => Ok(()),
            None => Err(Refusal::access_denied().into()),
        }
    }
}

/// What the library calls.
struct Operations<D: Door>(Arc<Shared<D>>);

#[async_trait]
impl<D: Door> S3Auth for Operations<D> {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.users.signer(access_key).await.map_err(Refusal::from)? {
            Some(signer) => Ok(SecretKey::from(signer.secret)),
            None => Err(unknown_key().into()),
        }
    }
}

fn unknown_key() -> Refusal {
    let message = "The AWS Access Key Id you provided does not exist in our records.";
    Refusal::new(StatusCode::FORBIDDEN, "InvalidAccessKeyId", message)
}

fn exchange_of(extensions: &Extensions) -> S3Result<Arc<Exchange>> {
    let found = extensions.get::<Arc<Exchange>>().cloned();
    found.ok_or_else(|| S3Error::new(S3ErrorCode::InternalError))
}

impl<D: Door> Operations<D> {
    /// Returns the user who signed a request.
    async fn user<T>(&self, request: &S3Request<T>) -> S3Result<Option<String>> {
        let Some(credentials) = &request.credentials else { return Ok(None) };
        let signer = self.0.users.signer(&credentials.access_key).await.map_err(Refusal::from)?;
        let signer = signer.ok_or_else(unknown_key)?;
        exchange_of(&request.extensions)?.on_user(&signer.user);
        Ok(Some(signer.user))
    }

    async fn signed_user<T>(&self, request: &S3Request<T>) -> S3Result<String> {
        Ok(self.user(request).await?.ok_or_else(Refusal::access_denied)?)
    }

    async fn bucket<T>(
        &self,
        request: &S3Request<T>,
        name: &str,
        action: Action<'_>,
    ) -> S3Result<Arc<bucket::Bucket>> {
        let user = self.user(request).await?;
        let owner = request.headers.get("x-amz-expected-bucket-owner");
        let owner = owner.map(|value| value.to_str().unwrap_or_default());
        Ok(self.0.bucket(user.as_deref(), name, action, owner).await?)
    }

    async fn routed(&self, request: S3Request<s3s::Body>) -> S3Result<Result<Answer, Refusal>> {
        let exchange = exchange_of(&request.extensions)?;
        let user = self.user(&request).await?;
        let memory = request.extensions.get::<Arc<RequestMemory>>().cloned();
        let memory = memory.unwrap_or_else(RequestMemory::none);
        let (headers, user) = (&request.headers, user.as_deref());
        let asked = Asked { exchange: &exchange, headers, user, memory };
        let trailers = || request.trailing_headers.as_ref().and_then(|trailers| trailers.take());
        let Some(route) = route(&request.method, &exchange, &request.headers) else {
            return Err(S3Error::new(S3ErrorCode::InternalError));
        };
        Ok(match route {
            Route::List => self.0.list(&asked).await,
            Route::ListV2 => self.0.list_v2(&asked).await,
            Route::Get => self.0.get_object(&asked).await,
            Route::Put => self.0.put_object(&asked, request.input, trailers).await,
            Route::Delete => self.0.delete_object(&asked).await,
            Route::DeleteMany => match request.input.collect().await {
                Ok(document) => self.0.delete_objects(&asked, &document.to_bytes()).await,
                Err(_) => Err(Refusal::from(Failure::IncompleteBody)),
            },
            Route::NotThere if asked.user.is_none() => Err(Refusal::access_denied()),
            Route::NotThere => Err(Refusal::not_implemented("A request about this")),
        })
    }
}

#[async_trait]
impl<D: Door> S3Route for Operations<D> {
    fn is_match(
        &self,
        method: &Method,
        _uri: &Uri,
        headers: &HeaderMap,
        extensions: &mut Extensions,
    ) -> bool {
        let exchange = extensions.get::<Arc<Exchange>>();
        exchange.is_some_and(|exchange| route(method, exchange, headers).is_some())
    }

    /// The routes ask what an anonymous request may do with the bucket.
    async fn check_access(&self, _request: &mut S3Request<s3s::Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<s3s::Body>) -> S3Result<S3Response<s3s::Body>> {
        let exchange = exchange_of(&request.extensions)?;
        let answer = match self.routed(request).await? {
            Ok(answer) => answer,
            Err(refusal) => Answer::refusal(&refusal, &exchange),
        };
        let mut response = S3Response::new(bytes_of(answer.body));
        response.status = Some(answer.status);
        response.headers = answer.headers;
        Ok(response)
    }
}

fn canned(acl: Option<&str>) -> Result<CannedAcl, Refusal> {
    match acl {
        None | Some("private") => Ok(CannedAcl::Private),
        Some("public-read") => Ok(CannedAcl::PublicRead),
        Some(acl) => Err(Refusal::not_implemented(&format!("The ACL {acl}"))),
    }
}

/// Refuses ACLs that are not one of the canned ones.
fn check_grants(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")) {
        true => Err(Refusal::not_implemented("A grant in an ACL")),
        false => Ok(()),
    }
}

fn owner_of(name: &str) -> dto::Owner {
    dto::Owner { display_name: Some(name.to_string()), id: Some(name.to_string()) }
}

fn grant(grantee: dto::Grantee, permission: &'static str) -> dto::Grant {
    let permission = Some(dto::Permission::from_static(permission));
    dto::Grant { grantee: Some(grantee), permission }
}

fn time_of_ms(ms: u64) -> dto::Timestamp {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms);
    dto::Timestamp::from(time)
}

#[async_trait]
impl<D: Door> S3 for Operations<D> {
    async fn create_bucket(
        &self,
        request: S3Request<dto::CreateBucketInput>,
    ) -> S3Result<S3Response<dto::CreateBucketOutput>> {
        let user = self.signed_user(&request).await?;
        let exchange = exchange_of(&request.extensions)?;
        let input = &request.input;
        check_grants(&request.headers)?;
        let acl = canned(input.acl.as_ref().map(|acl| acl.as_str()))?;
        if input.object_lock_enabled_for_bucket == Some(true) {
            return Err(Refusal::not_implemented("Object lock").into());
        }
        if let Some(ownership) = &input.object_ownership
            && ownership.as_str() != "BucketOwnerEnforced"
        {
            let what = format!("The object ownership {}", ownership.as_str());
            return Err(Refusal::not_implemented(&what).into());
        }
        if let Some(configuration) = &input.create_bucket_configuration {
            if configuration.bucket.is_some() || configuration.location.is_some() {
                return Err(Refusal::not_implemented("A directory bucket").into());
            }
            let told = configuration.location_constraint.as_ref().map(|told| told.as_str());
            if told.is_some_and(|told| !told.is_empty() && told != self.0.region) {
                let message = "The specified location-constraint is not valid";
                let status = StatusCode::BAD_REQUEST;
                return Err(Refusal::new(status, "InvalidLocationConstraint", message).into());
            }
        }
        let client = &exchange.client;
        let created = self.0.buckets.create_bucket(client, &input.bucket, &user, acl, None).await;
        created.map_err(Refusal::from)?;
        let location = Some(format!("/{}", input.bucket));
        Ok(S3Response::new(dto::CreateBucketOutput { location }))
    }

    async fn head_bucket(
        &self,
        request: S3Request<dto::HeadBucketInput>,
    ) -> S3Result<S3Response<dto::HeadBucketOutput>> {
        self.bucket(&request, &request.input.bucket, Action::ListBucket).await?;
        let bucket_region = Some(self.0.region.clone());
        Ok(S3Response::new(dto::HeadBucketOutput { bucket_region, ..Default::default() }))
    }

    async fn delete_bucket(
        &self,
        request: S3Request<dto::DeleteBucketInput>,
    ) -> S3Result<S3Response<dto::DeleteBucketOutput>> {
        let exchange = exchange_of(&request.extensions)?;
        let name = &request.input.bucket;
        self.bucket(&request, name, Action::Administer).await?;
        let deleted = self.0.buckets.delete_bucket(&exchange.client, name).await;
        deleted.map_err(Refusal::from)?;
        let status = StatusCode::NO_CONTENT;
        Ok(S3Response::with_status(dto::DeleteBucketOutput::default(), status))
    }

    async fn list_buckets(
        &self,
        request: S3Request<dto::ListBucketsInput>,
    ) -> S3Result<S3Response<dto::ListBucketsOutput>> {
        let user = self.signed_user(&request).await?;
        let input = &request.input;
        let count_max = match input.max_buckets {
            None => BUCKETS_COUNT_MAX,
            Some(count) if (1..=BUCKETS_COUNT_MAX as i32).contains(&count) => count as usize,
            Some(_) => {
                let message = "Argument max-buckets must be an integer between 1 and 10000";
                return Err(Refusal::invalid_argument(message).into());
            }
        };
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let mut next = input.continuation_token.clone().filter(|token| !token.is_empty());
        let is_elsewhere = input.bucket_region.as_ref().is_some_and(|told| *told != self.0.region);
        let mut buckets = Vec::new();
        while !is_elsewhere && buckets.len() < count_max {
            let left = (count_max - buckets.len()).min(1000);
            let page = self.0.buckets.list_buckets(&user, prefix, next.as_deref(), left).await;
            let (more, end) = page.map_err(Refusal::from)?;
            buckets.extend(more);
            next = end;
            if next.is_none() {
                break;
            }
        }
        let row = |bucket: Arc<bucket::Bucket>| dto::Bucket {
            bucket_region: Some(self.0.region.clone()),
            creation_date: Some(time_of_ms(bucket.created_ms)),
            name: Some(bucket.name.clone()),
        };
        Ok(S3Response::new(dto::ListBucketsOutput {
            buckets: Some(buckets.into_iter().map(row).collect()),
            continuation_token: next.filter(|_| !is_elsewhere),
            owner: Some(owner_of(&user)),
            prefix: input.prefix.clone(),
        }))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<dto::GetBucketLocationInput>,
    ) -> S3Result<S3Response<dto::GetBucketLocationOutput>> {
        self.bucket(&request, &request.input.bucket, Action::Administer).await?;
        // The first region has no name here.
        let region = Some(self.0.region.clone()).filter(|region| region != "us-east-1");
        let location_constraint = region.map(dto::BucketLocationConstraint::from);
        Ok(S3Response::new(dto::GetBucketLocationOutput { location_constraint }))
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<dto::GetBucketVersioningInput>,
    ) -> S3Result<S3Response<dto::GetBucketVersioningOutput>> {
        let bucket = self.bucket(&request, &request.input.bucket, Action::Administer).await?;
        let status = match bucket.versioning {
            bucket::Versioning::Off => None,
            bucket::Versioning::Enabled => Some(dto::BucketVersioningStatus::ENABLED),
            bucket::Versioning::Suspended => Some(dto::BucketVersioningStatus::SUSPENDED),
        };
        let status = status.map(dto::BucketVersioningStatus::from_static);
        let output = dto::GetBucketVersioningOutput { status, ..Default::default() };
        Ok(S3Response::new(output))
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<dto::GetBucketAclInput>,
    ) -> S3Result<S3Response<dto::GetBucketAclOutput>> {
        let bucket = self.bucket(&request, &request.input.bucket, Action::Administer).await?;
        let owner = owner_of(&bucket.owner);
        let person = dto::Grantee {
            display_name: owner.display_name.clone(),
            email_address: None,
            id: owner.id.clone(),
            type_: dto::Type::from_static(dto::Type::CANONICAL_USER),
            uri: None,
        };
        let mut grants = vec![grant(person, dto::Permission::FULL_CONTROL)];
        if bucket.acl == CannedAcl::PublicRead {
            let everybody = dto::Grantee {
                display_name: None,
                email_address: None,
                id: None,
                type_: dto::Type::from_static(dto::Type::GROUP),
                uri: Some(ALL_USERS.to_string()),
            };
            grants.push(grant(everybody, dto::Permission::READ));
        }
        let output = dto::GetBucketAclOutput { grants: Some(grants), owner: Some(owner) };
        Ok(S3Response::new(output))
    }

    async fn put_bucket_acl(
        &self,
        request: S3Request<dto::PutBucketAclInput>,
    ) -> S3Result<S3Response<dto::PutBucketAclOutput>> {
        let exchange = exchange_of(&request.extensions)?;
        let input = &request.input;
        self.bucket(&request, &input.bucket, Action::Administer).await?;
        check_grants(&request.headers)?;
        if input.access_control_policy.is_some() {
            return Err(Refusal::not_implemented("An ACL that is not a canned one").into());
        }
        let Some(acl) = &input.acl else {
            let message = "Your request was missing a required header";
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(status, "MissingSecurityHeader", message).into());
        };
        let acl = canned(Some(acl.as_str()))?;
        let set = self.0.buckets.set_acl(&exchange.client, &input.bucket, acl).await;
        set.map_err(Refusal::from)?;
        Ok(S3Response::new(dto::PutBucketAclOutput::default()))
    }
}
