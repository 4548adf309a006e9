//! A connection that has said nothing yet, and how many of them there may be.
//!
//! Used by `connections` and the event loop. Plain data: it must not know a packet.

use std::time::Instant;

use transport::socket::Connection;

/// Silent connections at a time, where there are descriptors for as many. Beyond it the oldest gives way.
const MAX_HALF_OPEN: usize = 2048;

/// Descriptors that are for those who say something, and for servers.
const NOT_FOR_SILENCE: u64 = 64;

/// How many connections may be silent at a time with so many descriptors: never so many that nobody else
/// could be served.
pub(super) fn most_half_open(descriptors: u64) -> usize {
    let half = descriptors.saturating_sub(NOT_FOR_SILENCE) / 2;
    usize::try_from(half.max(1)).map_or(MAX_HALF_OPEN, |half| half.min(MAX_HALF_OPEN))
}

/// A connection that has said nothing yet.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) connection: Connection,
    /// The group to whose socket it came.
    pub(super) group: Option<u32>,
    /// When it is given up.
    pub(super) deadline: Instant,
}
