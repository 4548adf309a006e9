//! The kernel's limits of this process (setrlimit), which servers inherit: raised as far as that is allowed.
//!
//! Owns how much a client needs at least, so that too little is said when the daemon starts, and not left for each client
//! to find out. Called by `startup` and, in a server's process, by `servers::process`. Must not know what either does next.

use std::sync::Arc;

use engine::arena::{EXTENT, HOST_BYTES};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// SIGXFSZ: a file would become longer than this process may make any.
const SIGXFSZ: i32 = 25;

/// A resource of which every client takes some at once.
struct Needed {
    resource: Resource,
    /// What the first client takes.
    bytes: u64,
    /// What is limited, and what of a client's that is.
    what: &'static str,
    /// Who limits it: a shell, a service manager.
    limits: [&'static str; 2],
}

const NEEDED: [Needed; 2] = [
    Needed {
        resource: Resource::Fsize,
        bytes: HOST_BYTES,
        what: "the length of files, of which a client's host memory is one",
        limits: ["ulimit -f", "LimitFSIZE"],
    },
    Needed {
        resource: Resource::As,
        bytes: HOST_BYTES + EXTENT,
        what: "addresses, of which a server has some for each client",
        limits: ["ulimit -v", "LimitAS"],
    },
];

/// Why no client could be served with what this process may have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResourceError {
    #[error(
        "no client can be served: the system limits {what}, to {most} bytes, and a client needs {bytes}; \
         `{shell} unlimited` in a shell or `{service}=infinity` in a service lifts that"
    )]
    TooLittle {
        what: &'static str,
        /// Bytes that there may be.
        most: u64,
        /// Bytes that a client takes.
        bytes: u64,
        /// What lifts the limit in a shell.
        shell: &'static str,
        /// The same for a service manager.
        service: &'static str,
    },
    #[error("cannot handle signal {SIGXFSZ}: {0}")]
    Signal(#[from] std::io::Error),
}

/// Has this process get as much as it may, and looks whether that is enough for a client.
///
/// # Errors
/// With what to do.
pub(crate) fn raise() -> Result<(), ResourceError> {
    transport::socket::raise_descriptor_limit();
    for needed in &NEEDED {
        let maximum = getrlimit(needed.resource).maximum;
        let all = Rlimit {
            current: maximum,
            maximum,
        };
        // What cannot be raised is looked at next.
        let _ = setrlimit(needed.resource, all);
        is_enough(needed, getrlimit(needed.resource).current)?;
    }
    Ok(survive_file_size_limit()?)
}

/// Looks at a limit; none is enough.
fn is_enough(needed: &Needed, most: Option<u64>) -> Result<(), ResourceError> {
    let &Needed { bytes, what, .. } = needed;
    let [shell, service] = needed.limits;
    match most {
        Some(most) if most < bytes => Err(ResourceError::TooLittle {
            what,
            most,
            bytes,
            shell,
            service,
        }),
        _ => Ok(()),
    }
}

/// Has a file that may not become longer be an error of what writes to it, such as a log line that is lost, and not
/// the end of this process.
pub(crate) fn survive_file_size_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_leaves_room_for_no_client_is_named_with_what_lifts_it() {
        for needed in &NEEDED {
            for most in [None, Some(u64::MAX), Some(needed.bytes)] {
                is_enough(needed, most).unwrap();
            }
            for most in [0, 1 << 20, needed.bytes - 1] {
                let said = is_enough(needed, Some(most)).unwrap_err().to_string();
                for word in [&most.to_string(), needed.limits[0], needed.limits[1]] {
                    assert!(said.contains(word), "{said}");
                }
            }
        }
    }
}
