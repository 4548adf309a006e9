//! What the hostile suite's attackers are made of: a client that speaks the protocol by itself, descriptors of
//! every kind, journals that are lies, and a file system that does not answer.
//!
//! Called by `tests/hostile` and `attacker`. Must not know what is expected of the daemon.

pub mod client;
pub mod descriptors;
pub mod fuse;
pub mod journal;
