//! What a kernel asks of whoever runs it: printing, assertions, the device heap. The engine implements it.
//!
//! Called by `ops::system`. Must not know files, streams or the client: `engine-soft/src/services.rs` does.

use std::fmt;

/// What kernels ask of their context beside memory. Called from within [`crate::Cluster::run`], by any
/// number of threads; must not block for long.
pub trait Services: Send + Sync + fmt::Debug {
    /// Takes the text of one call of `printf`.
    fn print(&self, text: Vec<u8>);

    /// Takes the message of a failed assertion; its thread faults afterwards.
    fn assertion_failed(&self, text: Vec<u8>);

    /// So many bytes of the device heap, aligned to 16; 0 if there is no room.
    fn allocate(&self, bytes: u64) -> u64;

    /// Gives memory back to the heap. False if it is none that was given.
    fn free(&self, address: u64) -> bool;
}

/// Nobody reads, and there is no heap.
impl Services for () {
    fn print(&self, _: Vec<u8>) {}

    fn assertion_failed(&self, _: Vec<u8>) {}

    fn allocate(&self, _: u64) -> u64 {
        0
    }

    fn free(&self, _: u64) -> bool {
        false
    }
}
