//! Digests in headers and trailers: `Content-MD5` and `x-amz-checksum-*`.

use bucket::{Checksum, ChecksumKind};
use hyper::{HeaderMap, StatusCode};

use super::{Answer, Asked};
use crate::errors::Refusal;

/// All kinds, with the names of their headers.
pub const KINDS: [(ChecksumKind, &str, &str); 5] = [
    (ChecksumKind::Crc32, "x-amz-checksum-crc32", "CRC32"),
    (ChecksumKind::Crc32c, "x-amz-checksum-crc32c", "CRC32C"),
    (ChecksumKind::Sha1, "x-amz-checksum-sha1", "SHA1"),
    (ChecksumKind::Sha256, "x-amz-checksum-sha256", "SHA256"),
    (ChecksumKind::Crc64Nvme, "x-amz-checksum-crc64nvme", "CRC64NVME"),
];

/// Returns the name of the header of a checksum.
pub fn header_name(kind: ChecksumKind) -> &'static str {
    let found = KINDS.iter().find(|(one, ..)| *one == kind);
    found.expect("all kinds are in the table").1
}

/// Returns the name of a kind in listings.
pub fn algorithm_name(kind: ChecksumKind) -> &'static str {
    let found = KINDS.iter().find(|(one, ..)| *one == kind);
    found.expect("all kinds are in the table").2
}

fn size_of(kind: ChecksumKind) -> usize {
    match kind {
        ChecksumKind::Crc32 | ChecksumKind::Crc32c => 4,
        ChecksumKind::Crc64Nvme => 8,
        ChecksumKind::Sha1 => 20,
        ChecksumKind::Sha256 => 32,
    }
}

/// Where the checksum of a body comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announced {
    /// The client tells none.
    None,
    /// It is in a header.
    Header(Checksum),
    /// It comes behind the body.
    Trailer(ChecksumKind),
}

impl Announced {
    /// Returns the kind that is computed and kept: that of the client, or what S3 keeps on its own.
    pub fn kind(&self) -> ChecksumKind {
        match self {
            Announced::None => ChecksumKind::Crc64Nvme,
            Announced::Header(checksum) => checksum.kind,
            Announced::Trailer(kind) => *kind,
        }
    }

    /// Returns the checksum, now that the body and its trailers came.
    ///
    /// Errors: `MalformedTrailerError`: the trailers are not those that were announced.
    pub fn finish(self, trailers: Option<HeaderMap>) -> Result<Option<Checksum>, Refusal> {
        let wrong = || {
            let message = "The request contained trailing data that was not well-formed or did not \
                           conform to our published schema";
            Refusal::new(StatusCode::BAD_REQUEST, "MalformedTrailerError", message)
        };
        let trailers = trailers.unwrap_or_default();
        match self {
            Announced::Trailer(kind) => {
                let name = header_name(kind);
                let is_only = trailers.len() == 1;
                let value = trailers.get(name).filter(|_| is_only).ok_or_else(wrong)?;
                Ok(Some(checksum_of(kind, value.as_bytes())?))
            }
            _ if !trailers.is_empty() => Err(wrong()),
            Announced::Header(checksum) => Ok(Some(checksum)),
            Announced::None => Ok(None),
        }
    }
}

fn checksum_of(kind: ChecksumKind, text: &[u8]) -> Result<Checksum, Refusal> {
    match base64_simd::STANDARD.decode_to_vec(text) {
        Ok(value) if value.len() == size_of(kind) => Ok(Checksum { kind, value }),
        _ => {
            let name = header_name(kind);
            Err(Refusal::invalid_request(format!("Value for {name} header is invalid.")))
        }
    }
}

impl Asked<'_> {
    /// Returns which checksum the client sends.
    pub fn announced(&self) -> Result<Announced, Refusal> {
        let mut headers = KINDS.iter().filter(|(_, name, _)| self.headers.contains_key(*name));
        let header = headers.next();
        let trailer = self.trailer()?;
        if headers.next().is_some() || header.is_some() && trailer.is_some() {
            return Err(Refusal::invalid_request(
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
            ));
        }
        let announced = match (header, trailer) {
            (Some((kind, name, _)), _) => {
                let value = self.header(name)?.unwrap_or_default();
                Announced::Header(checksum_of(*kind, value.as_bytes())?)
            }
            (None, Some(kind)) => Announced::Trailer(kind),
            (None, None) => Announced::None,
        };
        self.check_algorithm(&announced)?;
        Ok(announced)
    }

    /// Returns which checksum comes behind the body.
    fn trailer(&self) -> Result<Option<ChecksumKind>, Refusal> {
        let Some(text) = self.header("x-amz-trailer")? else { return Ok(None) };
        let is_it = |name: &str| text.trim().eq_ignore_ascii_case(name);
        let kind = KINDS.iter().find(|(_, name, _)| is_it(name));
        let kind = kind.ok_or_else(|| {
            Refusal::invalid_request(
                "The value specified in the x-amz-trailer header is not supported",
            )
        })?;
        Ok(Some(kind.0))
    }

    fn check_algorithm(&self, announced: &Announced) -> Result<(), Refusal> {
        if self.header("x-amz-checksum-type")?.is_some_and(|text| text != "FULL_OBJECT") {
            return Err(Refusal::invalid_request(
                "Only the checksum type FULL_OBJECT is possible for an object that is put at once",
            ));
        }
        let Some(text) = self.header("x-amz-sdk-checksum-algorithm")? else { return Ok(()) };
        let kind = KINDS.iter().find(|(.., name)| text.eq_ignore_ascii_case(name));
        let kind = kind.ok_or_else(|| {
            Refusal::invalid_request("Checksum algorithm provided is unsupported.")
        })?;
        match announced {
            Announced::None => Err(Refusal::invalid_request(
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                 x-amz-trailer headers were found.",
            )),
            announced if announced.kind() == kind.0 => Ok(()),
            _ => Err(Refusal::invalid_request(
                "Value for x-amz-sdk-checksum-algorithm header is invalid.",
            )),
        }
    }

    /// Returns `Content-MD5`.
    pub fn content_md5(&self) -> Result<Option<[u8; 16]>, Refusal> {
        let Some(text) = self.header("content-md5")? else { return Ok(None) };
        let decoded = base64_simd::STANDARD.decode_to_vec(text.as_bytes());
        let md5 = decoded.ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        let message = "The Content-MD5 you specified is not valid.";
        let invalid = || Refusal::new(StatusCode::BAD_REQUEST, "InvalidDigest", message);
        md5.ok_or_else(invalid).map(Some)
    }
}

impl Answer {
    /// Tells a checksum of a whole object.
    pub fn set_checksum(&mut self, checksum: &Checksum) {
        let value = base64_simd::STANDARD.encode_to_string(&checksum.value);
        self.set(header_name(checksum.kind), &value);
        self.set("x-amz-checksum-type", "FULL_OBJECT");
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;
    use crate::exchange::{Exchange, Target};
    use crate::memory::RequestMemory;
    use crate::percent::Query;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            (name, HeaderValue::from_str(value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    fn announced(pairs: &[(&str, &str)]) -> Result<Announced, &'static str> {
        let request = (Method::PUT, "/b/k".to_string());
        let (target, query) = (Target::default(), Query::default());
        let exchange = Exchange::new("1".to_string(), None, request, target, query);
        let memory = RequestMemory::none();
        let asked = Asked { exchange: &exchange, headers: &map(pairs), user: None, memory };
        asked.announced().map_err(|refusal| refusal.code)
    }

    #[test]
    fn a_checksum_comes_in_a_header_or_behind_the_body() {
        assert_eq!(announced(&[]), Ok(Announced::None));
        let crc = Checksum { kind: ChecksumKind::Crc32, value: vec![0, 0, 0, 1] };
        let header = [("x-amz-checksum-crc32", "AAAAAQ==")];
        assert_eq!(announced(&header), Ok(Announced::Header(crc.clone())));
        let trailer = announced(&[
            ("x-amz-trailer", "x-amz-checksum-crc32"),
            ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ]);
        assert_eq!(trailer, Ok(Announced::Trailer(ChecksumKind::Crc32)));
        let found = trailer.expect("just seen").finish(Some(map(&header)));
        assert_eq!(found, Ok(Some(crc)));
    }

    #[test]
    fn contradictions_and_bad_values_are_refused() {
        for pairs in [
            &[("x-amz-checksum-crc32", "AAAA")][..],
            &[("x-amz-checksum-crc32", "AAAAAQ==="), ("x-amz-checksum-type", "FULL_OBJECT")],
            &[("x-amz-checksum-crc32", "AAAAAQ=="), ("x-amz-checksum-crc32c", "AAAAAQ==")],
            &[("x-amz-checksum-crc32", "AAAAAQ=="), ("x-amz-trailer", "x-amz-checksum-crc32")],
            &[("x-amz-checksum-crc32", "AAAAAQ=="), ("x-amz-sdk-checksum-algorithm", "SHA1")],
            &[("x-amz-sdk-checksum-algorithm", "CRC32")],
            &[("x-amz-trailer", "x-amz-meta-a")],
            &[("x-amz-checksum-type", "COMPOSITE")],
        ] {
            assert_eq!(announced(pairs), Err("InvalidRequest"), "{pairs:?}");
        }
    }

    #[test]
    fn trailers_are_those_that_were_announced() {
        let finish = |announced: Announced, pairs: &[(&str, &str)]| {
            announced.finish(Some(map(pairs))).map_err(|refusal| refusal.code)
        };
        let trailer = Announced::Trailer(ChecksumKind::Crc32);
        let crc32 = ("x-amz-checksum-crc32", "AAAAAQ==");
        let malformed = Err("MalformedTrailerError");
        assert_eq!(finish(trailer.clone(), &[]), malformed);
        assert_eq!(finish(trailer.clone(), &[("x-amz-checksum-crc32c", "AAAAAQ==")]), malformed);
        assert_eq!(finish(trailer.clone(), &[crc32, ("x-other", "1")]), malformed);
        assert_eq!(finish(Announced::None, &[crc32]), malformed);
        let bad = finish(trailer, &[("x-amz-checksum-crc32", "AAAA")]);
        assert_eq!(bad, Err("InvalidRequest"));
    }
}
