//! What several targets share.
#![allow(
    clippy::missing_panics_doc,
    clippy::expect_used,
    reason = "a panic is how a target says what it found"
)]

pub mod kernels;
pub mod live_server;
