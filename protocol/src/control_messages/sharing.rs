//! What a client of one server shares, as another server of the same user takes it for a client of its own.
//!
//! The daemon passes it on; `docs/neighbours.md` has who asks whom. Must not know how memory is mapped.

use crate::codec::{alternatives, alternatives_as_fields, message};

message! {
    /// A device, as two servers of one user know it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SharedDevice {
        /// Its number.
        pub number: u32,
        /// Its UUID, by which it is told that both see the same one under that number.
        pub uuid: [u8; 16],
    }
}

alternatives! {
    /// Something that a client shares. With it come descriptors: first its lease, as long as somebody has which its server keeps it; then
    /// those that are said.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum SharedObject: u8 {
        /// A block of device memory. With it comes a descriptor of each piece.
        Block {
            /// Its device.
            device: SharedDevice,
            /// Its bytes.
            bytes: u64,
            /// How many bytes behind the beginning of the first piece it begins.
            offset: u64,
            /// The bytes of each piece of memory that it lies in, in order.
            pieces: Vec<u64>,
        } = 0,
        /// Physical memory. With it comes one descriptor.
        Physical {
            /// Its device.
            device: SharedDevice,
            /// Its bytes.
            bytes: u64,
        } = 1,
        /// An event. With it come the table of its records, what wakes the server that made it, and what wakes the one that gets this.
        Event {
            /// Which of the servers that have it the one is that gets this.
            side: u16,
            /// How many records the table has room for.
            records: u64,
        } = 2,
    }
}

alternatives_as_fields!(SharedObject: u8);
