//! What clients of one server share: exports found by tokens, blocks, events, and the
//! descriptors by which physical memory travels between processes.
//!
//! Called by sessions; the main loop looks after closed descriptors.

pub mod blocks;
pub mod descriptors;
pub mod events;
pub mod exports;
