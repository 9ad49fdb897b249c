//! Where in etcd the state is stored: the endpoints, and the prefix of the keys.

use super::keys::PREFIX_SIZE_MAX;
use crate::Error;

/// The endpoints of an etcd cluster and the prefix of our keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdPlace {
    endpoints: Vec<String>,
    prefix: String,
}

impl EtcdPlace {
    /// Parses `http://HOST:PORT[,http://HOST:PORT]...[/PREFIX]`; `prefix` is the default prefix. An error
    /// is a human-readable sentence.
    pub fn parse(text: &str, prefix: &str) -> Result<EtcdPlace, Error> {
        let wrong = |why: &str| {
            Error::new(
                format!("{text:?} is not an etcd address"),
                format!("{why}; write http://HOST:PORT,http://HOST:PORT[/PREFIX]"),
            )
        };
        let last = text.rsplit("://").next().unwrap_or(text);
        let (urls, prefix) = match last.split_once('/') {
            Some((_, path)) => (&text[..text.len() - path.len() - 1], path.trim_matches('/')),
            None => (text, prefix),
        };
        let mut endpoints = Vec::new();
        for url in urls.split(',') {
            let Some(address) = url.strip_prefix("http://") else {
                let is_tls = url.starts_with("https://");
                return Err(wrong(if is_tls {
                    "TLS to etcd is not supported"
                } else {
                    "an endpoint must begin with http://"
                }));
            };
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) || address.contains('/') {
                return Err(wrong("an endpoint must have a host and a port"));
            }
            if endpoints.iter().any(|endpoint| endpoint == url) {
                return Err(wrong("an endpoint must be listed only once"));
            }
            endpoints.push(url.to_string());
        }
        if prefix.is_empty() || prefix.len() > PREFIX_SIZE_MAX {
            return Err(wrong(&format!("a prefix must have 1 to {PREFIX_SIZE_MAX} bytes")));
        }
        Ok(EtcdPlace { endpoints, prefix: prefix.to_string() })
    }

    /// Returns the URLs of members of one etcd cluster.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Returns `PREFIX`: every key begins with `PREFIX/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_prefix_are_parsed() {
        let parse = |text: &str| EtcdPlace::parse(text, "ashlar/x");
        let place = parse("http://10.0.0.1:2379,http://[::1]:2,http://host:3").unwrap();
        assert_eq!(place.endpoints(), ["http://10.0.0.1:2379", "http://[::1]:2", "http://host:3"]);
        assert_eq!(place.prefix(), "ashlar/x");
        let place = parse("http://a:1,http://b:2/clusters/east/").unwrap();
        assert_eq!(place.endpoints(), ["http://a:1", "http://b:2"]);
        assert_eq!(place.prefix(), "clusters/east");
        let long = format!("http://a:1/{}", "p".repeat(PREFIX_SIZE_MAX + 1));
        for wrong in
            ["", "a:1", "http://a", "http://a:x", "http://:1", "http://a:1,", "http://a:1/", &long]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let error = parse("http://a:1,http://b:1,http://a:1").unwrap_err();
        assert!(error.0.contains("once"), "{error}");
        let error = parse("https://a:1").unwrap_err();
        assert!(error.0.contains("TLS"), "{error}");
        let error = parse("http://a:1/b,http://c:1").unwrap_err();
        assert!(error.0.contains("host and a port"), "{error}");
    }
}
