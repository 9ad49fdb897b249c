//! PutObject.

use std::error::Error;

use bucket::{Action, BODY_MAX, Door, Expected, Metadata, NewObject, USER_METADATA_MAX, Upload};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::{HeaderMap, StatusCode};

use super::get::quoted;
use super::{Answer, Asked, Shared};
use crate::errors::Refusal;

/// Headers that are given back as they came.
const KEPT: &[&str] = &[
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];

/// Headers that ask for what is not there. Ignoring one would be a silent success.
const NOT_IMPLEMENTED: &[&str] = &[
    "x-amz-bucket-key-enabled",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
    "x-amz-grant-",
];

type BodyError = Box<dyn Error + Send + Sync>;

impl<D: Door> Shared<D> {
    /// PutObject. `trailers` returns what came behind the body, once it was read.
    pub async fn put_object<B>(
        &self,
        asked: &Asked<'_>,
        mut body: B,
        trailers: impl FnOnce() -> Option<HeaderMap>,
    ) -> Result<Answer, Refusal>
    where
        B: Body<Data = Bytes, Error = BodyError> + Unpin,
    {
        let key = asked.key()?;
        let bucket = self.bucket_asked(asked, Action::WriteObject(&key)).await?;
        asked.check_put()?;
        if asked.exchange.query.get("partNumber").is_some() {
            let message = "A part number is there, and no upload id";
            return Err(Refusal::invalid_argument(message));
        }
        let (announced, md5) = (asked.announced()?, asked.content_md5()?);
        let length = asked.length()?;
        let new = NewObject {
            owner: asked.user.unwrap_or_default().to_string(),
            conditions: asked.conditions()?,
            metadata: asked.metadata()?,
            length: Some(length),
            checksum: announced.kind(),
            kept: asked.memory.kept(),
        };
        let client = asked.exchange.client.clone();
        let mut upload = self.buckets.begin_put(client, bucket, key, new).await?;
        // A client that waits for `100 Continue` gets it with the first poll of the body: not before it is
        // known that the upload may begin.
        let came = pass(asked, &mut body, &mut upload, length).await?;
        if came != length {
            return Err(Refusal::from(bucket::Failure::IncompleteBody));
        }
        let checksum = announced.finish(trailers())?;
        // The S3 library compared the SHA-256 that is signed.
        let info = upload.finish(Expected { md5, checksum }).await?;
        let mut answer = Answer::new(StatusCode::OK);
        answer.set("etag", &quoted(info.etag));
        if let Some(checksum) = &info.checksum {
            answer.set_checksum(checksum);
        }
        Ok(answer)
    }
}

/// Passes a body on. Returns how many bytes it had.
async fn pass<B, D>(
    asked: &Asked<'_>,
    body: &mut B,
    upload: &mut Upload<D>,
    length: u64,
) -> Result<u64, Refusal>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
    D: Door,
{
    let mut came = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| asked.body_failed(&*error))?;
        let Ok(bytes) = frame.into_data() else { continue };
        came += bytes.len() as u64;
        if came > length {
            return Err(Refusal::from(bucket::Failure::IncompleteBody));
        }
        upload.write(bytes).await?;
    }
    Ok(came)
}

impl Asked<'_> {
    /// Returns what to say of a body that failed.
    fn body_failed(&self, error: &(dyn Error + 'static)) -> Refusal {
        if let Some(fault) = self.exchange.fault() {
            return Refusal::from(fault);
        }
        // The types of these errors are private.
        let text = error.to_string();
        let bad = |code, message: &str| Refusal::new(StatusCode::BAD_REQUEST, code, message);
        if text.contains("SignatureMismatch") {
            let message = "The signature of a chunk of the body is not the one that was calculated";
            Refusal::new(StatusCode::FORBIDDEN, "SignatureDoesNotMatch", message)
        } else if text.contains("Sha256Mismatch") {
            Refusal::content_sha256_mismatch()
        } else if text.contains("Trailer") {
            bad("MalformedTrailerError", "The trailers of the body are too long, or too many")
        } else if text.contains("FormatError") || text.contains("ChunkMetaTooLarge") {
            bad("InvalidRequest", "The body does not have the form that its headers declare")
        } else {
            Refusal::from(bucket::Failure::IncompleteBody)
        }
    }

    /// Returns the length of the object.
    fn length(&self) -> Result<u64, Refusal> {
        let is_chunked = self.header("x-amz-content-sha256")?.unwrap_or_default();
        let name = match is_chunked.starts_with("STREAMING-") {
            true => "x-amz-decoded-content-length",
            false => "content-length",
        };
        let Some(text) = self.header(name)? else {
            let message = "You must provide the Content-Length HTTP header.";
            return Err(Refusal::new(StatusCode::LENGTH_REQUIRED, "MissingContentLength", message));
        };
        let length = text.parse::<u64>();
        let length =
            length.map_err(|_| Refusal::invalid_argument(format!("{name} is not a number")))?;
        match length <= BODY_MAX {
            true => Ok(length),
            false => Err(Refusal::from(bucket::Failure::TooLarge { size_max: BODY_MAX })),
        }
    }

    /// Refuses what is asked for and is not there.
    fn check_put(&self) -> Result<(), Refusal> {
        let mut names = self.headers.keys().map(|name| name.as_str());
        let is_missing = |name: &&str| NOT_IMPLEMENTED.iter().any(|start| name.starts_with(start));
        if let Some(name) = names.find(is_missing) {
            return Err(Refusal::not_implemented(&format!("The header {name}")));
        }
        match self.header("x-amz-acl")? {
            None | Some("private" | "bucket-owner-full-control") => {}
            Some(acl) => {
                return Err(Refusal::not_implemented(&format!("The ACL {acl} of an object")));
            }
        }
        match self.header("x-amz-storage-class")? {
            None | Some("STANDARD") => Ok(()),
            Some(class) => Err(Refusal::not_implemented(&format!("The storage class {class}"))),
        }
    }

    fn metadata(&self) -> Result<Metadata, Refusal> {
        let mut metadata = Metadata::default();
        for name in KEPT {
            let Some(value) = self.header(name)? else { continue };
            let value = match *name {
                "content-encoding" => without_chunks(value),
                _ => value.to_string(),
            };
            if !value.is_empty() {
                metadata.headers.insert((*name).to_string(), value);
            }
        }
        let mut size = 0;
        for header in self.headers.keys() {
            let Some(name) = header.as_str().strip_prefix("x-amz-meta-") else { continue };
            let mut values = Vec::new();
            for value in self.headers.get_all(header) {
                let text = std::str::from_utf8(value.as_bytes());
                let text =
                    text.map_err(|_| Refusal::invalid_argument(format!("{header} is not UTF-8")))?;
                values.push(text);
            }
            let value = values.join(",");
            size += name.len() + value.len();
            metadata.user.insert(name.to_string(), value);
        }
        if size > USER_METADATA_MAX {
            let message = "Your metadata headers exceed the maximum allowed metadata size";
            let refusal = Refusal::new(StatusCode::BAD_REQUEST, "MetadataTooLarge", message);
            return Err(refusal
                .with_detail("Size", size.to_string())
                .with_detail("MaxSizeAllowed", USER_METADATA_MAX.to_string()));
        }
        Ok(metadata)
    }
}

/// Returns an encoding without `aws-chunked`, which is that of the transfer.
fn without_chunks(encoding: &str) -> String {
    let parts = encoding.split(',').map(str::trim);
    let kept = parts.filter(|part| !part.is_empty() && !part.eq_ignore_ascii_case("aws-chunked"));
    kept.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_transfer_is_not_that_of_the_object() {
        assert_eq!(without_chunks("aws-chunked"), "");
        assert_eq!(without_chunks("aws-chunked,gzip"), "gzip");
        assert_eq!(without_chunks("gzip, AWS-chunked"), "gzip");
        assert_eq!(without_chunks("gzip,br"), "gzip,br");
    }
}
