//! What a packet and an address can hold, and how many descriptors a process may have.
//!
//! Both ends keep to the first two; the daemon and servers raise the last when they start. Must not know what is
//! sent.

pub use protocol::control_messages::PACKET_MAX;

/// The most descriptors in a packet: a session's four, the client's socket and pidfd, those of eight devices' windows,
/// its former server's, and who records it.
pub const DESCRIPTORS_MAX: usize = 16;

/// The most descriptors that the kernel lets anybody send with a packet (SCM_MAX_FD).
pub(super) const PASSED_MAX: usize = 253;

/// The longest path in bytes: `sun_path` has 108, one of them for the end.
pub const PATH_MAX: usize = 107;

/// Lets this process have as many descriptors as the machine allows: each client costs its daemon and
/// its server some.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
