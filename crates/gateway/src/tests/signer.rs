//! Signs requests as clients do: SigV4 by header, in a URL, and of chunks.

use s3s::crypto::{Checksum as _, Sha256};

/// SHA-256 of nothing.
pub const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An access key and what it signs for.
#[derive(Clone)]
pub struct Signer {
    pub key: String,
    pub secret: String,
    pub region: String,
    /// `YYYYMMDDTHHMMSSZ`.
    pub date: String,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::checksum(bytes))
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    match key.len() > 64 {
        true => block[..32].copy_from_slice(&Sha256::checksum(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let keyed = |pad: u8, text: &[u8]| {
        let front: Vec<u8> = block.iter().map(|byte| byte ^ pad).collect();
        Sha256::checksum(&[&front[..], text].concat()).to_vec()
    };
    keyed(0x5c, &keyed(0x36, text))
}

/// Encodes all but the characters that need no encoding.
pub fn encoded(text: &str, keeps_slash: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if keeps_slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Signer {
    fn scope(&self) -> String {
        format!("{}/{}/s3/aws4_request", &self.date[..8], self.region)
    }

    fn sign(&self, text: &str) -> String {
        let key = hmac(format!("AWS4{}", self.secret).as_bytes(), &self.date.as_bytes()[..8]);
        let key = hmac(&hmac(&hmac(&key, self.region.as_bytes()), b"s3"), b"aws4_request");
        hex(&hmac(&key, text.as_bytes()))
    }

    fn canonical(
        method: &str,
        path: &str,
        query: &[(String, String)],
        headers: &[(String, String)],
        payload: &str,
    ) -> (String, String) {
        let mut pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name, false), encoded(value, false)))
            .collect();
        pairs.sort();
        let mut headers = headers.to_vec();
        headers.sort();
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let names: Vec<&str> = headers.iter().map(|(name, _)| &name[..]).collect();
        let signed = names.join(";");
        let path = encoded(path, true);
        let text = format!("{method}\n{path}\n{}\n{lines}\n{signed}\n{payload}", pairs.join("&"));
        (text, signed)
    }

    fn text_to_sign(&self, canonical: &str) -> String {
        let hash = sha256(canonical.as_bytes());
        format!("AWS4-HMAC-SHA256\n{}\n{}\n{hash}", self.date, self.scope())
    }

    /// Returns the header `authorization`, and the signature in it. `headers` are all that are signed;
    /// `path` is not
    /// encoded.
    pub fn header(
        &self,
        method: &str,
        path: &str,
        query: &[(String, String)],
        headers: &[(String, String)],
        payload: &str,
    ) -> (String, String) {
        let (canonical, signed) = Signer::canonical(method, path, query, headers, payload);
        let signature = self.sign(&self.text_to_sign(&canonical));
        let (key, scope) = (&self.key, self.scope());
        let text = format!(
            "AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        );
        (text, signature)
    }

    /// Returns a presigned path with its query.
    pub fn presigned(&self, method: &str, host: &str, path: &str, expires: u64) -> String {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let mut query = vec![
            pair("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            pair("X-Amz-Credential", &format!("{}/{}", self.key, self.scope())),
            pair("X-Amz-Date", &self.date),
            pair("X-Amz-Expires", &expires.to_string()),
            pair("X-Amz-SignedHeaders", "host"),
        ];
        let headers = [pair("host", host)];
        let (canonical, _) = Signer::canonical(method, path, &query, &headers, "UNSIGNED-PAYLOAD");
        query.push(pair("X-Amz-Signature", &self.sign(&self.text_to_sign(&canonical))));
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name, false), encoded(value, false)))
            .collect();
        format!("{}?{}", encoded(path, true), pairs.join("&"))
    }

    /// Returns a body in signed chunks, with signed trailers if there are any.
    pub fn chunks(&self, seed: &str, chunks: &[&[u8]], trailers: &[(&str, &str)]) -> Vec<u8> {
        let (mut previous, mut body) = (seed.to_string(), Vec::new());
        for chunk in chunks.iter().copied().chain([&b""[..]]) {
            let text = format!(
                "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{previous}\n{EMPTY}\n{}",
                self.date,
                self.scope(),
                sha256(chunk)
            );
            previous = self.sign(&text);
            let line = format!("{:x};chunk-signature={previous}\r\n", chunk.len());
            body.extend(line.into_bytes());
            body.extend(chunk);
            if !chunk.is_empty() || trailers.is_empty() {
                body.extend(b"\r\n");
            }
        }
        if !trailers.is_empty() {
            let plain: String =
                trailers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
            let text = format!(
                "AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{previous}\n{}",
                self.date,
                self.scope(),
                sha256(plain.as_bytes())
            );
            for (name, value) in trailers {
                body.extend(format!("{name}:{value}\r\n").into_bytes());
            }
            let signature = self.sign(&text);
            body.extend(format!("x-amz-trailer-signature:{signature}\r\n\r\n").into_bytes());
        }
        body
    }
}

/// The example of Amazon's documentation.
#[test]
fn the_signer_has_the_signature_of_the_documentation() {
    let signer = Signer {
        key: "AKIAIOSFODNN7EXAMPLE".to_string(),
        secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_string(),
        region: "us-east-1".to_string(),
        date: "20130524T000000Z".to_string(),
    };
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    let headers = [
        pair("host", "examplebucket.s3.amazonaws.com"),
        pair("range", "bytes=0-9"),
        pair("x-amz-content-sha256", EMPTY),
        pair("x-amz-date", &signer.date),
    ];
    let (_, signature) = signer.header("GET", "/test.txt", &[], &headers, EMPTY);
    assert_eq!(signature, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    let url = signer.presigned("GET", "examplebucket.s3.amazonaws.com", "/test.txt", 86400);
    let expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    assert!(url.ends_with(expected), "{url}");
}
