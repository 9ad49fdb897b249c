//! Percent encoding, and the parameters of a URL.

/// The parameters of a URL, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads what stands behind the `?`. `None`: it is not UTF-8.
    pub fn parse(text: &str) -> Option<Query> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| decode(&text.replace('+', " "));
            pairs.push((plain(name)?, plain(value)?));
        }
        Some(Query(pairs))
    }

    /// Returns the value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &value[..])
    }

    /// Whether there is such a parameter.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &name[..])
    }

    /// Returns how often a parameter is given.
    pub fn count(&self, name: &str) -> usize {
        self.names().filter(|key| *key == name).count()
    }
}

/// Replaces each `%HH`. `None`: the result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(plain).ok()
}

/// Encodes what is neither a letter, a digit nor one of `-_.~/`, as S3 does in listings.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b'*' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse("list-type=2&prefix=a%2Fb+c&acl&x=1&x=2&=&").expect("UTF-8");
        assert_eq!(query.get("prefix"), Some("a/b c"));
        assert_eq!(query.get("acl"), Some(""));
        assert_eq!(query.get("x"), Some("1"));
        assert_eq!((query.count("x"), query.has("y")), (2, false));
        assert_eq!(Query::parse("prefix=%FF"), None);
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        for text in ["", "a/b c", "%25", "ä\u{1}\u{10ffff}", "=+&?#"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        assert_eq!(encode("a b+ü"), "a%20b%2B%C3%BC");
        assert_eq!(decode("100%").as_deref(), Some("100%"));
        assert_eq!(decode("%zz%4"), Some("%zz%4".to_string()));
    }
}
