//! The limit on open descriptors, and the host name.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open file descriptors to the hard limit, and returns the new limit. Programs with
/// many connections call this at startup; libraries must not.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        // The old limit stays in force.
        Err(_) => limit,
    };
    limit.current.unwrap_or(u64::MAX)
}

/// Returns the name of this host, or `localhost` if it has none.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_allowed() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_descriptor_limit(), allowed.unwrap_or(u64::MAX));
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
    }
}
