//! What the process has of its system: how many descriptors it may have open, its host's name.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open descriptors to what the process may set it to, and gives it. Programs
/// that serve many connections call it when they start; those that share their process do not.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised,
        // The old limit holds, and is what the caller counts with.
        Err(_) => limit,
    };
    limit.current.unwrap_or(u64::MAX)
}

/// What the system calls this host.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_becomes_what_is_allowed() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_descriptor_limit(), allowed.unwrap_or(u64::MAX));
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
    }
}
