//! What clients are told of requests that fail: one table from the failures of buckets to the codes and
//! statuses of S3.

use bucket::Failure;
use hyper::StatusCode;

use crate::xml::Xml;

/// The answer to a request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Its status.
    pub status: StatusCode,
    /// S3's code.
    pub code: &'static str,
    /// What is wrong, for people.
    pub message: String,
    /// More headers of the answer.
    pub headers: Vec<(&'static str, String)>,
    /// More elements of the error document.
    pub details: Vec<(&'static str, String)>,
}

impl Refusal {
    /// Creates a refusal without further headers.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { status, code, message, headers: Vec::new(), details: Vec::new() }
    }

    /// Adds a header.
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Refusal {
        self.headers.push((name, value.into()));
        self
    }

    /// Adds an element to the document.
    pub fn with_detail(mut self, name: &'static str, value: impl Into<String>) -> Refusal {
        self.details.push((name, value.into()));
        self
    }

    /// An argument is wrong.
    pub fn invalid_argument(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidArgument", message)
    }

    /// A request is wrong as a whole.
    pub fn invalid_request(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidRequest", message)
    }

    /// What is asked for is not there yet.
    pub fn not_implemented(what: &str) -> Refusal {
        let message = format!("{what} is not implemented");
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// The caller may not do this.
    pub fn access_denied() -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied")
    }

    /// A body is not the one that was signed.
    pub fn content_sha256_mismatch() -> Refusal {
        let message =
            "The provided 'x-amz-content-sha256' header does not match what was computed.";
        Refusal::new(StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch", message)
    }

    /// Too much is under way.
    pub fn slow_down(message: impl Into<String>) -> Refusal {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message);
        refusal.with_header("retry-after", "1")
    }

    /// Returns the error document.
    pub fn document(&self, resource: &str, request_id: &str) -> String {
        let mut xml = Xml::new();
        xml.open("Error");
        xml.text("Code", self.code);
        xml.text("Message", &self.message);
        for (name, value) in &self.details {
            xml.text(name, value);
        }
        xml.text("Resource", resource);
        xml.text("RequestId", request_id);
        xml.close("Error");
        xml.finish()
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        let message = failure.to_string();
        let (status, code) = match &failure {
            Failure::NoSuchBucket => (StatusCode::NOT_FOUND, "NoSuchBucket"),
            Failure::NoSuchKey | Failure::Hidden { .. } => (StatusCode::NOT_FOUND, "NoSuchKey"),
            Failure::NoSuchVersion => (StatusCode::NOT_FOUND, "NoSuchVersion"),
            Failure::NoSuchUpload => (StatusCode::NOT_FOUND, "NoSuchUpload"),
            Failure::InvalidPart { .. } => (StatusCode::BAD_REQUEST, "InvalidPart"),
            Failure::InvalidPartOrder => (StatusCode::BAD_REQUEST, "InvalidPartOrder"),
            Failure::PartTooSmall { .. } => (StatusCode::BAD_REQUEST, "EntityTooSmall"),
            Failure::BucketTaken => (StatusCode::CONFLICT, "BucketAlreadyExists"),
            Failure::BucketOwned => (StatusCode::CONFLICT, "BucketAlreadyOwnedByYou"),
            Failure::BucketNotEmpty => (StatusCode::CONFLICT, "BucketNotEmpty"),
            Failure::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, "PreconditionFailed"),
            Failure::NotModified => (StatusCode::NOT_MODIFIED, "NotModified"),
            Failure::Conflict => (StatusCode::CONFLICT, "ConditionalRequestConflict"),
            Failure::RangeUnsatisfiable { .. } => {
                (StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange")
            }
            Failure::Invalid { .. } => (StatusCode::BAD_REQUEST, "InvalidArgument"),
            Failure::InvalidBucketName => (StatusCode::BAD_REQUEST, "InvalidBucketName"),
            Failure::KeyTooLong => (StatusCode::BAD_REQUEST, "KeyTooLongError"),
            Failure::TooLarge { .. } => (StatusCode::BAD_REQUEST, "EntityTooLarge"),
            Failure::IncompleteBody => (StatusCode::BAD_REQUEST, "IncompleteBody"),
            Failure::BadDigest { .. } => (StatusCode::BAD_REQUEST, "BadDigest"),
            Failure::AccessDenied => (StatusCode::FORBIDDEN, "AccessDenied"),
            Failure::Full => (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage"),
            Failure::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            Failure::Damaged { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            Failure::NotImplemented { .. } => (StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
        };
        let refusal = Refusal::new(status, code, message);
        match failure {
            Failure::Hidden { version_id } => refusal
                .with_header("x-amz-delete-marker", "true")
                .with_header("x-amz-version-id", version_id),
            Failure::RangeUnsatisfiable { size } => refusal
                .with_header("content-range", format!("bytes */{size}"))
                .with_detail("ActualObjectSize", size.to_string()),
            Failure::Unavailable { .. } => refusal.with_header("retry-after", "1"),
            _ => refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_codes_of_s3() {
        for (failure, status, code) in [
            (Failure::NoSuchKey, 404, "NoSuchKey"),
            (Failure::BucketOwned, 409, "BucketAlreadyOwnedByYou"),
            (Failure::PreconditionFailed, 412, "PreconditionFailed"),
            (Failure::Full, 507, "InsufficientStorage"),
            (Failure::Unavailable { why: "x".into() }, 503, "ServiceUnavailable"),
        ] {
            let refusal = Refusal::from(failure);
            assert_eq!((refusal.status.as_u16(), refusal.code), (status, code));
        }
        let range = Refusal::from(Failure::RangeUnsatisfiable { size: 7 });
        assert_eq!(range.headers, [("content-range", "bytes */7".to_string())]);
    }

    #[test]
    fn an_error_document_names_code_resource_and_request() {
        let refusal = Refusal::invalid_argument("a < b").with_detail("ArgumentName", "x");
        let text = refusal.document("/b/k&", "12AB");
        let expected = "<Error><Code>InvalidArgument</Code><Message>a &lt; b</Message>\
                        <ArgumentName>x</ArgumentName><Resource>/b/k&amp;</Resource>\
                        <RequestId>12AB</RequestId></Error>";
        assert!(text.ends_with(expected), "{text}");
    }
}
