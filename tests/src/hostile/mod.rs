//! What the hostile suite's attackers are made of: a client that speaks the protocol by itself, descriptors of
//! every kind, and a file system that does not answer.

pub mod client;
pub mod descriptors;
pub mod fuse;
