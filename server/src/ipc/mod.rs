//! What clients of one user share: exports found by tokens, here or at another server of the user's, blocks, events, and the
//! descriptors by which physical memory travels between processes.
//!
//! Called by sessions; the main loop looks after closed descriptors, and speaks with the daemon for those who ask other servers.

pub mod blocks;
pub mod descriptors;
pub mod elsewhere;
pub mod event_links;
pub mod event_table;
pub mod events;
pub mod exports;
pub mod for_others;
pub mod foreign_block;
mod ready_numbers;
pub mod shared_event;
