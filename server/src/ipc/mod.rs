//! What clients of one server share: exports found by tokens, imports, shared events, and the
//! descriptors by which physical memory travels between processes.
//!
//! Called by sessions; the main loop looks after closed descriptors.

pub mod descriptors;
pub mod exports;
pub mod imports;
