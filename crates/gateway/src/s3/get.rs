//! Objects: get, head, delete.

use base::MIB;
use bucket::{Action, ByteRange, Conditions, Data, Door, ETag, Failure, Found, ObjectInfo, may};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};

use super::conditions::{date_of_ms, range_of};
use super::{Answer, Asked, Payload, Shared, check_version_id};
use crate::errors::Refusal;
use crate::stored::StoredBody;

/// Headers of the answer that a signed request may set, by their parameters.
const OVERRIDES: &[(&str, &str)] = &[
    ("response-cache-control", "cache-control"),
    ("response-content-disposition", "content-disposition"),
    ("response-content-encoding", "content-encoding"),
    ("response-content-language", "content-language"),
    ("response-content-type", "content-type"),
    ("response-expires", "expires"),
];

/// The type of an object that was put without one.
const CONTENT_TYPE_DEFAULT: &str = "binary/octet-stream";

/// So much of large data is read ahead of the client: four pieces.
const READ_AHEAD: u64 = 4 * MIB;

/// Which part of an object is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    All,
    Range(ByteRange),
    /// The part of this number, of an object that has one.
    Only,
}

/// Returns a tag as it stands in headers and listings.
pub fn quoted(etag: ETag) -> String {
    let hex: String = etag.md5.iter().map(|byte| format!("{byte:02x}")).collect();
    match etag.parts {
        0 => format!("\"{hex}\""),
        parts => format!("\"{hex}-{parts}\""),
    }
}

impl<D: Door> Shared<D> {
    /// GetObject and HeadObject.
    pub async fn get_object(&self, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let key = asked.key()?;
        let bucket = self.bucket_asked(asked, Action::ReadObject(&key)).await?;
        check_version_id(asked.exchange.query.get("versionId"))?;
        let customer_key = asked
            .headers
            .keys()
            .find(|name| name.as_str().starts_with("x-amz-server-side-encryption-customer-"));
        if customer_key.is_some() {
            return Err(Refusal::not_implemented("Encryption with a key of the client"));
        }
        let overrides = asked.overrides()?;
        let conditions = asked.conditions()?;
        let part = asked.part()?;
        let range = match part {
            Part::Range(range) => Some(range),
            Part::All | Part::Only => None,
        };
        let mut range = range;
        let mut part = part;
        let mut validated = None;
        if let (Some(_), Some(condition)) = (range, asked.header("if-range")?) {
            let whole = self.buckets.head(&bucket, &key, &Conditions::default(), None).await;
            let is_same = |info: &ObjectInfo| {
                condition == quoted(info.etag) || condition == date_of_ms(info.modified_ms)
            };
            validated = whole.ok().map(|whole| whole.info).filter(is_same);
            // Of another object the client has no part.
            range = range.filter(|_| validated.is_some());
        }
        let get = async |range| match asked.exchange.method {
            Method::HEAD => self.buckets.head(&bucket, &key, &conditions, range).await,
            _ => {
                let kept = asked.memory.kept();
                self.buckets.get(&bucket, &key, &conditions, range, kept).await
            }
        };
        let mut found = get(range).await;
        // It was replaced between both looks.
        let is_other = |info: &ObjectInfo| found.as_ref().is_ok_and(|it| it.info != *info);
        if range.is_some() && validated.as_ref().is_some_and(is_other) {
            range = None;
            found = get(None).await;
        }
        if range.is_none() && matches!(part, Part::Range(_)) {
            part = Part::All;
        }
        let found = match found {
            Ok(found) => found,
            Err(Failure::NotModified) => {
                let mut refusal = Refusal::from(Failure::NotModified);
                let none = Conditions::default();
                if let Ok(found) = self.buckets.head(&bucket, &key, &none, None).await {
                    let modified = date_of_ms(found.info.modified_ms);
                    refusal = refusal.with_header("etag", quoted(found.info.etag));
                    refusal = refusal.with_header("last-modified", modified);
                }
                return Err(refusal);
            }
            Err(failure) => return Err(self.no_such_key(asked, &bucket, failure)),
        };
        let mut answer = answer_of(&found, part);
        if asked.header("x-amz-checksum-mode")?.is_some_and(|mode| mode == "ENABLED")
            && part == Part::All
            && let Some(checksum) = &found.info.checksum
        {
            answer.set_checksum(checksum);
        }
        for (name, value) in overrides {
            answer.set(name, value);
        }
        if asked.exchange.method != Method::HEAD {
            answer.body = asked.payload_of(found).await?;
        }
        Ok(answer)
    }

    /// Who may not list a bucket does not learn which keys it lacks.
    fn no_such_key(&self, asked: &Asked<'_>, bucket: &bucket::Bucket, failure: Failure) -> Refusal {
        let is_absent = matches!(failure, Failure::NoSuchKey | Failure::Hidden { .. });
        match may(asked.user, bucket, Action::ListBucket) || !is_absent {
            true => Refusal::from(failure),
            false => Refusal::access_denied(),
        }
    }

    /// DeleteObject.
    pub async fn delete_object(&self, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let key = asked.key()?;
        for name in ["x-amz-if-match-size", "x-amz-if-match-last-modified-time"] {
            if asked.headers.contains_key(name) {
                return Err(Refusal::not_implemented(&format!("The header {name}")));
            }
        }
        let bucket = self.bucket_asked(asked, Action::DeleteObject(&key)).await?;
        check_version_id(asked.exchange.query.get("versionId"))?;
        let conditions =
            Conditions { if_match: asked.conditions()?.if_match, ..Conditions::default() };
        self.buckets.delete(&asked.exchange.client, &bucket, &key, &conditions).await?;
        Ok(Answer::new(StatusCode::NO_CONTENT))
    }
}

impl Asked<'_> {
    /// Returns the bytes that were found.
    async fn payload_of<D: Door>(&self, found: Found<D>) -> Result<Payload, Refusal> {
        let Found { info, range, data, .. } = found;
        let reader = match data {
            Data::None => return Ok(Payload::Bytes(Bytes::new())),
            Data::Inline(bytes) => return Ok(Payload::Bytes(bytes)),
            Data::Stored(reader) => reader,
        };
        // Whole MiBs are compared with their checksums.
        let first = range.start / MIB * MIB;
        let end = range.end.next_multiple_of(MIB).min(info.size);
        if !self.memory.grow_to((end - first).min(READ_AHEAD) as usize) {
            let message = "Too many bodies are on their way. Please reduce your request rate.";
            return Err(Refusal::slow_down(message));
        }
        let length = range.end - range.start;
        let body = StoredBody::begin(reader, length, self.exchange.clone()).await?;
        Ok(Payload::Stored(body.boxed_unsync()))
    }

    fn part(&self) -> Result<Part, Refusal> {
        let range = self.header("range")?;
        match (self.exchange.query.get("partNumber"), range) {
            (Some(_), Some(_)) => {
                let message = "Cannot specify both Range header and partNumber query parameter";
                Err(Refusal::invalid_request(message))
            }
            (Some("1"), None) => Ok(Part::Only),
            (Some(number), None) if (2..=10_000).contains(&number.parse().unwrap_or(0)) => {
                let message = "The requested partnumber is not satisfiable";
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                Err(Refusal::new(status, "InvalidPartNumber", message))
            }
            (Some(_), None) => Err(Refusal::invalid_argument(
                "Part number must be an integer between 1 and 10000, inclusive",
            )),
            (None, range) => Ok(range.and_then(range_of).map_or(Part::All, Part::Range)),
        }
    }

    fn overrides(&self) -> Result<Vec<(&'static str, &str)>, Refusal> {
        let value = |(parameter, header): &(&str, &'static str)| {
            self.exchange.query.get(parameter).map(|value| (*header, value))
        };
        let overrides: Vec<_> = OVERRIDES.iter().filter_map(value).collect();
        if self.user.is_none() && !overrides.is_empty() {
            return Err(Refusal::invalid_request(
                "Request specific response headers cannot be used for anonymous GET requests.",
            ));
        }
        Ok(overrides)
    }
}

/// Returns the answer for an object, without its body.
fn answer_of<D: Door>(found: &Found<D>, part: Part) -> Answer {
    let Found { info, metadata, range, .. } = found;
    let mut answer = Answer::new(StatusCode::OK);
    answer.set("content-type", CONTENT_TYPE_DEFAULT);
    for (name, value) in &metadata.headers {
        answer.set(name, value);
    }
    for (name, value) in &metadata.user {
        answer.set(&format!("x-amz-meta-{name}"), &header_text(value));
    }
    set_info(&mut answer, info);
    answer.set("content-length", &(range.end - range.start).to_string());
    if part != Part::All && info.size > 0 {
        answer.status = StatusCode::PARTIAL_CONTENT;
        let last = range.end - 1;
        answer.set("content-range", &format!("bytes {}-{last}/{}", range.start, info.size));
    }
    answer
}

fn set_info(answer: &mut Answer, info: &ObjectInfo) {
    answer.set("accept-ranges", "bytes");
    answer.set("etag", &quoted(info.etag));
    answer.set("last-modified", &date_of_ms(info.modified_ms));
}

/// Returns a value of metadata for a header: what is not ASCII as RFC 2047 has it, as S3 does.
fn header_text(value: &str) -> String {
    match value.is_ascii() {
        true => value.to_string(),
        false => format!("=?UTF-8?B?{}?=", base64_simd::STANDARD.encode_to_string(value)),
    }
}
