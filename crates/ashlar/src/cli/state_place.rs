//! Where monitors keep the cluster's state.

/// The syntax of a location for the state on the command line, for help texts.
pub const STATE: &str = "embedded|etcd:URL,...[/PREFIX]";

/// Where a monitor's state is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatePlace {
    /// In a file in the monitor's directory.
    Embedded,
    /// In etcd; holds the text that `EtcdPlace::parse` accepts.
    Etcd(String),
}

/// Parses a location for the state.
pub fn parse_state(text: &str) -> Result<StatePlace, String> {
    if text == "embedded" {
        return Ok(StatePlace::Embedded);
    }
    let urls = text
        .strip_prefix("etcd:")
        .ok_or_else(|| format!("{text:?} is not a location for the state: write {STATE}"))?;
    match io::etcd::EtcdPlace::parse(urls, "default") {
        Ok(_) => Ok(StatePlace::Etcd(urls.to_owned())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_places_are_parsed() {
        assert_eq!(parse_state("embedded"), Ok(StatePlace::Embedded));
        let urls = "http://10.0.0.1:2379,http://10.0.0.2:2379/east";
        assert_eq!(parse_state(&format!("etcd:{urls}")), Ok(StatePlace::Etcd(urls.into())));
        for text in ["", "etcd", "etcd:", "etcd:10.0.0.1", "redis:x", "http://10.0.0.1:2379"] {
            assert!(parse_state(text).is_err(), "{text}");
        }
    }
}
