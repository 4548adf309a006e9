//! SOCK_SEQPACKET sockets that carry descriptors, and who is at the other end.
//!
//! Descriptors sent over a stream socket are lost when a read crosses a packet's boundary, hence
//! packets. Everything is close-on-exec. Who a peer is comes from the kernel, never from what it
//! says. Knows nothing of what the packets mean.
//!
//! A descriptor can be a trap: the last close of one can wait for as long as its sender chose
//! (SO_LINGER), and whoever closes a socket closes what is in its queue. So a socket that strangers can
//! reach says what it does with descriptors: it has the kernel refuse them ([`Listener::refuse_descriptors`]),
//! or it is closed where nobody waits.

mod address;
mod connection;
mod error;
mod limits;
mod listener;
mod passed_descriptors;
mod peer;
mod poll;
mod user_namespace;

pub use connection::{Connection, Received};
pub use error::SocketError;
pub use limits::{DESCRIPTORS_MAX, PACKET_MAX, PATH_MAX, raise_descriptor_limit};
pub use listener::Listener;
pub use peer::Peer;
pub use poll::poll;
pub use user_namespace::{is_from_outside, overflow_uid};
