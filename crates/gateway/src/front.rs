//! What is refused before the S3 library sees a request, and what it does not check itself.
//!
//! | guard | answer |
//! |---|---|
//! | signatures of version 2, by header or in the URL | `InvalidRequest` |
//! | a presigned URL that lives for more than seven days | `AuthorizationQueryParametersError` |
//! | a header twice that decides about routing or the signature | `InvalidRequest` |
//! | another region in the scope of the signature | `AuthorizationHeaderMalformed` |
//! | a header that says what to do and is not signed | `AccessDenied` |
//! | a form (POST) | `NotImplemented` |
//! | headers of more than 16 KiB | `RequestHeaderSectionTooLarge` |

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};

use crate::errors::Refusal;
use crate::exchange::Target;
use crate::limits::{HEADERS_SIZE_MAX, PRESIGNED_SECONDS_MAX};
use crate::percent::{Query, decode};

/// Headers that must not come twice: one of the two would be checked, and the other one used.
const SINGLE: &[&str] = &[
    "host",
    "authorization",
    "content-length",
    "content-md5",
    "range",
    "if-match",
    "if-none-match",
    "x-amz-content-sha256",
    "x-amz-copy-source",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
];

/// Headers with `x-amz-` that need not be signed: the first one decides about what is compared, and proxies
/// add the others.
const UNSIGNED: &[&str] = &["x-amz-content-sha256", "x-amz-cf-id", "x-amz-id-2"];

/// Returns what a request is about. `domains`: hosts below which a bucket's name may stand.
pub fn target(domains: &[String], host: Option<&str>, path: &str) -> Result<Target, Refusal> {
    let invalid = || {
        let message = "The path of the URL is not UTF-8, or does not begin with a slash";
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidURI", message)
    };
    let path = decode(path).ok_or_else(invalid)?;
    let path = path.strip_prefix('/').ok_or_else(invalid)?;
    let filled = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
    if let Some(bucket) = host.and_then(|host| bucket_of_host(domains, host)) {
        return Ok(Target { bucket: Some(bucket), key: filled(path) });
    }
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    match filled(bucket) {
        None if !key.is_empty() => Err(Refusal::from(bucket::Failure::InvalidBucketName)),
        bucket => Ok(Target { bucket, key: filled(key) }),
    }
}

/// Returns the bucket that a host names, if it is below one of these domains.
pub fn bucket_of_host(domains: &[String], host: &str) -> Option<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let below = |domain: &String| name.strip_suffix(&**domain)?.strip_suffix('.');
    domains.iter().find_map(below).filter(|bucket| !bucket.is_empty()).map(str::to_string)
}

/// Refuses what the S3 library would accept.
pub fn check(parts: &Parts, query: &Query, region: &str) -> Result<(), Refusal> {
    let headers = &parts.headers;
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if size > HEADERS_SIZE_MAX {
        let message = "Your request header section exceeds the maximum allowed size";
        let refusal =
            Refusal::new(StatusCode::BAD_REQUEST, "RequestHeaderSectionTooLarge", message);
        return Err(refusal.with_detail("MaxSizeAllowed", HEADERS_SIZE_MAX.to_string()));
    }
    if let Some(name) = SINGLE.iter().find(|name| headers.get_all(**name).iter().count() > 1) {
        return Err(Refusal::invalid_request(format!("The header {name} comes twice")));
    }
    let authorization = match headers.get("authorization") {
        None => None,
        Some(value) => Some(value.to_str().map_err(|_| {
            Refusal::invalid_request("The header authorization has other bytes than ASCII")
        })?),
    };
    let is_presigned = query.has("X-Amz-Signature") || query.has("X-Amz-Algorithm");
    if let Some(text) = authorization {
        check_header(text, headers, region)?;
        if is_presigned {
            return Err(Refusal::invalid_argument(
                "Only one way to sign a request is allowed: a header, or parameters of the URL",
            ));
        }
    }
    if query.has("AWSAccessKeyId") || query.has("Signature") {
        return Err(old_signature());
    }
    if is_presigned {
        check_presigned(query, headers, region)?;
    }
    let is_form = |value: &HeaderValue| {
        let value = value.as_bytes().trim_ascii_start().to_ascii_lowercase();
        value.starts_with(b"multipart/")
    };
    if parts.method == Method::POST && headers.get_all("content-type").iter().any(is_form) {
        return Err(Refusal::not_implemented("An upload by a form"));
    }
    Ok(())
}

fn old_signature() -> Refusal {
    Refusal::invalid_request(
        "The authorization mechanism you have provided is not supported. Please use \
         AWS4-HMAC-SHA256.",
    )
}

/// Checks `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/s3/aws4_request, SignedHeaders=A;B, Signature=S`.
fn check_header(text: &str, headers: &HeaderMap, region: &str) -> Result<(), Refusal> {
    let Some(fields) = text.strip_prefix("AWS4-HMAC-SHA256") else { return Err(old_signature()) };
    let field = |name: &str| {
        let mut fields = fields.split(',').filter_map(|field| field.trim().split_once('='));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let malformed = |message: String| {
        Refusal::new(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", message)
    };
    let credential = field("Credential").unwrap_or_default();
    let Some(told) = region_of(credential) else {
        let message = "The authorization header is malformed: it has no credential scope";
        return Err(malformed(message.to_string()));
    };
    if told != region {
        let message = format!(
            "The authorization header is malformed: the region {told:?} is wrong; expecting {region:?}"
        );
        return Err(malformed(message).with_detail("Region", region));
    }
    check_signed(field("SignedHeaders").unwrap_or_default(), headers)
}

fn check_presigned(query: &Query, headers: &HeaderMap, region: &str) -> Result<(), Refusal> {
    let wrong = |message: String| {
        Refusal::new(StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError", message)
    };
    for name in [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    ] {
        if query.count(name) != 1 {
            return Err(wrong(format!("The URL must have the parameter {name} exactly once")));
        }
    }
    let expires = query.get("X-Amz-Expires").unwrap_or_default().parse::<u64>();
    match expires {
        Ok(seconds) if seconds <= PRESIGNED_SECONDS_MAX => {}
        Ok(_) => {
            let message = "X-Amz-Expires must be less than a week (in seconds); that is, the given \
                           X-Amz-Expires must be less than 604800 seconds";
            return Err(wrong(message.to_string()));
        }
        Err(_) => return Err(wrong("X-Amz-Expires should be a number".to_string())),
    }
    let told = region_of(query.get("X-Amz-Credential").unwrap_or_default());
    if told != Some(region) {
        let message = format!(
            "Error parsing the X-Amz-Credential parameter; the region {:?} is wrong; expecting \
             {region:?}",
            told.unwrap_or_default()
        );
        return Err(wrong(message).with_detail("Region", region));
    }
    check_signed(query.get("X-Amz-SignedHeaders").unwrap_or_default(), headers)
}

/// Returns the region of `KEY/DATE/REGION/s3/aws4_request`.
fn region_of(credential: &str) -> Option<&str> {
    let mut parts = credential.rsplit('/');
    let (end, service, region, _date) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let has_key = parts.next().is_some_and(|key| !key.is_empty());
    (end == "aws4_request" && service == "s3" && has_key).then_some(region)
}

/// Refuses headers that say what to do and that anybody on the way could have added.
fn check_signed(signed: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let is_signed = |name: &str| signed.split(';').any(|one| one.eq_ignore_ascii_case(name));
    let needs =
        |name: &&str| *name == "host" || name.starts_with("x-amz-") && !UNSIGNED.contains(name);
    let mut names = headers.keys().map(|name| name.as_str()).chain(["host"]).filter(needs);
    match names.find(|name| !is_signed(name)) {
        None => Ok(()),
        Some(name) => {
            let message = "There were headers present in the request which were not signed";
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", message);
            Err(refusal.with_detail("HeadersNotSigned", name))
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    const SCOPE: &str = "AKID/20261128/us-east-1/s3/aws4_request";

    fn checked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default()).expect("UTF-8");
        check(&parts, &query, "us-east-1")
    }

    fn code(method: &str, uri: &str, headers: &[(&str, &str)]) -> &'static str {
        checked(method, uri, headers).map_or_else(|refusal| refusal.code, |()| "")
    }

    fn header(scope: &str, signed: &str) -> String {
        format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={signed}, Signature=00")
    }

    #[test]
    fn good_requests_pass() {
        let signed = header(SCOPE, "host;x-amz-content-sha256;x-amz-date");
        let headers =
            [("host", "h"), ("authorization", &signed), ("x-amz-date", "20261128T000000Z")];
        assert_eq!(checked("GET", "/b/k", &headers), Ok(()));
        let uri = format!(
            "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={SCOPE}&X-Amz-Date=x\
             &X-Amz-Expires=604800&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
        );
        assert_eq!(checked("GET", &uri, &[("host", "h")]), Ok(()));
        assert_eq!(checked("GET", "/b/k", &[]), Ok(()));
    }

    #[test]
    fn signatures_of_version_2_are_refused() {
        assert_eq!(code("GET", "/", &[("authorization", "AWS AKID:x")]), "InvalidRequest");
        assert_eq!(
            code("GET", "/b/k?AWSAccessKeyId=A&Expires=1&Signature=x", &[]),
            "InvalidRequest"
        );
        assert_eq!(code("GET", "/b/k?Signature=x", &[]), "InvalidRequest");
    }

    #[test]
    fn a_presigned_url_lives_for_a_week_at_most() {
        let code = |expires: &str, scope: &str| {
            let uri = format!(
                "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={scope}&X-Amz-Date=x\
                 &X-Amz-Expires={expires}&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
            );
            self::code("GET", &uri, &[("host", "h")])
        };
        assert_eq!(code("604800", SCOPE), "");
        for expires in ["604801", "-1", "99999999999999999999", "", "1&X-Amz-Expires=604800"] {
            assert_eq!(code(expires, SCOPE), "AuthorizationQueryParametersError", "{expires}");
        }
        let far = SCOPE.replace("us-east-1", "eu-west-1");
        assert_eq!(code("60", &far), "AuthorizationQueryParametersError");
    }

    #[test]
    fn a_host_twice_is_refused() {
        assert_eq!(code("GET", "/", &[("host", "a"), ("host", "b")]), "InvalidRequest");
        let both = [("x-amz-date", "a"), ("x-amz-date", "b")];
        assert_eq!(code("GET", "/", &both), "InvalidRequest");
    }

    #[test]
    fn another_region_is_refused_with_the_right_one() {
        let far = header(&SCOPE.replace("us-east-1", "eu-west-1"), "host");
        let refusal = checked("GET", "/", &[("authorization", &far)]).expect_err("refused");
        assert_eq!(refusal.code, "AuthorizationHeaderMalformed");
        assert_eq!(refusal.details, [("Region", "us-east-1".to_string())]);
        for scope in ["AKID", "", "/20261128/us-east-1/s3/aws4_request", "a/b/us-east-1/s3/x"] {
            let text = header(scope, "host");
            let code = code("GET", "/", &[("authorization", &text)]);
            assert_eq!(code, "AuthorizationHeaderMalformed", "{scope}");
        }
    }

    #[test]
    fn headers_that_say_what_to_do_are_signed() {
        let of = |signed: &str, more: &str| {
            let text = header(SCOPE, signed);
            code("PUT", "/b/k", &[("authorization", &text), (more, "x")])
        };
        assert_eq!(of("host", "x-amz-acl"), "AccessDenied");
        assert_eq!(of("host;x-amz-acl", "x-amz-acl"), "");
        assert_eq!(of("x-amz-acl", "x-amz-acl"), "AccessDenied");
        assert_eq!(of("host", "x-amz-content-sha256"), "");
    }

    #[test]
    fn long_headers_are_refused() {
        let of = |size: usize| code("GET", "/", &[("x", &"y".repeat(size))]);
        assert_eq!(of(HEADERS_SIZE_MAX - 1), "");
        assert_eq!(of(HEADERS_SIZE_MAX), "RequestHeaderSectionTooLarge");
    }

    #[test]
    fn forms_are_refused() {
        let form = [("content-type", "multipart/form-data; boundary=x")];
        assert_eq!(code("POST", "/b", &form), "NotImplemented");
        let form = [("content-type", "Multipart/form-data; boundary=\u{e4}")];
        assert_eq!(code("POST", "/b", &form), "NotImplemented");
        let form = [("content-type", "text/plain"), form[0]];
        assert_eq!(code("POST", "/b", &form), "NotImplemented");
    }

    #[test]
    fn the_target_is_in_the_path_or_in_the_host() {
        let domains = ["s3.example.com".to_string()];
        let of = |host: &str, path: &str| {
            let target = target(&domains, Some(host), path).map_err(|refusal| refusal.code)?;
            Ok((target.bucket.unwrap_or_default(), target.key.unwrap_or_default()))
        };
        let is = |bucket: &str, key: &str| Ok((bucket.to_string(), key.to_string()));
        assert_eq!(of("h", "/"), is("", ""));
        assert_eq!(of("h", "/b"), is("b", ""));
        assert_eq!(of("h", "/b/"), is("b", ""));
        assert_eq!(of("h", "/b//a/../%41+%2B"), is("b", "/a/../A++"));
        assert_eq!(of("s3.example.com:9000", "/b/k"), is("b", "k"));
        assert_eq!(of("B.S3.Example.com:9000", "/b/k"), is("b", "b/k"));
        assert_eq!(of("a.b.s3.example.com.", "/"), is("a.b", ""));
        assert_eq!(of("xs3.example.com", "/b"), is("b", ""));
        assert_eq!(of("h", "//k"), Err("InvalidBucketName"));
        assert_eq!(of("h", "/b/%FF"), Err("InvalidURI"));
        assert_eq!(of("h", "*"), Err("InvalidURI"));
    }
}
