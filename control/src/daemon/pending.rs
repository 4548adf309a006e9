//! An answer that waits.
//!
//! Kept by `answers` and the event loop. Plain data: it must not know what it waits for.

use std::time::Instant;

use transport::socket::Connection;

use crate::commands::{Answer, Awaited, Caller};

#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) connection: Connection,
    pub(super) answer: Answer,
    pub(super) until: Awaited,
    /// Who asked for what, if it is to be carried out again.
    pub(super) again: Option<(Caller, String)>,
    /// When the answer is given all the same.
    pub(super) deadline: Option<Instant>,
}
