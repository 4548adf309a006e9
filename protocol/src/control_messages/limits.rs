//! What clients share, and what they may have, as the daemon tells servers: groups, static partitions, and changes
//! while they run.
//!
//! Texts are in the grammar of [`limits`](crate::limits); who reads them is `server`'s admission. Must not know what
//! a limit does to a client.

use crate::codec::message;

/// Instead of a partition's number: devices are partitioned, and the client has no partition.
pub const NO_PARTITION: u32 = u32::MAX;

message! {
    /// What a client shares with others, by the numbers of [`Packet::Group`](super::Packet::Group)s that came before.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Membership {
        /// Its group, by whose limits on memory and compute it is bound.
        pub group: Option<u32>,
        /// Its static partition, by whose compute it is bound instead, or [`NO_PARTITION`].
        pub partition: Option<u32>,
    }

    /// A group of clients, as a server is told of it, or told again when its limits change. With it comes
    /// the descriptor of the memory in which what it has taken is counted.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Group {
        /// The number by which clients are said to be in it.
        pub group: u32,
        /// The server's slot in the group's usage.
        pub slot: u32,
        /// The number that [`Packet::Changed`](super::Packet::Changed) gives back.
        pub request: u64,
        /// Its name, for logs.
        pub name: String,
        /// What its clients together may take of each device, as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is
        /// written. A device without limit has none for the group.
        pub memory: String,
        /// What its clients together get of each device's compute, if that is limited.
        pub percentage: Option<String>,
        /// Whether that is kept free for them.
        pub reserved: bool,
        /// The device that the percentage is for; `None` for all.
        pub device: Option<u32>,
        /// How long a kernel of its clients may run, as OPENMPS_KERNEL_TIME_LIMIT is written.
        pub kernel_time: Option<String>,
    }

    /// A change of what a client may have, at once. What is absent stays as it is.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Change {
        /// The number that [`Packet::Changed`](super::Packet::Changed) gives back.
        pub request: u64,
        /// The client's session.
        pub session: u64,
        /// Bytes that it may have of devices, by ordinal; `u64::MAX` is no limit.
        pub memory: Vec<(u32, u64)>,
        /// Its active thread percentage.
        pub percentage: Option<String>,
        /// Whether that is kept free for it.
        pub reserved: Option<bool>,
        /// CUDA_MPS_CLIENT_PRIORITY
        pub priority: Option<u32>,
        /// Milliseconds that a kernel of it may run; `u64::MAX` is no limit.
        pub kernel_time: Option<u64>,
    }
}

impl Change {
    /// Whether it changes nothing: what the client has taken is asked.
    #[must_use]
    pub fn asks_only(&self) -> bool {
        let nothing = Self {
            request: self.request,
            session: self.session,
            ..Self::default()
        };
        *self == nothing
    }
}
