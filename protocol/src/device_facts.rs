//! What a client is shown of the devices when it attaches, so that it never asks again.
//!
//! Engines make the facts, the server changes what this client sees differently, and they travel in a
//! [`Welcome`](crate::control_messages::Welcome). Must not know how an engine finds them.

use std::ops::Range;

use crate::codec::message;
use cuda_abi::types::DEVICE_ATTRIBUTES;

message! {
    /// The facts of one device.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct DeviceFacts {
        /// The name that cuDeviceGetName gives.
        pub name: String,
        /// The bytes that cuDeviceGetUuid gives.
        pub uuid: [u8; 16],
        /// Bytes of memory that the client may have at most: its quota, or the whole device's.
        pub total_memory: u64,
        /// Value of each device attribute, by its number; a number beyond the list is not known.
        pub attributes: Vec<i32>,
        /// The first of the addresses on the device that this client begins with. It gets more as its
        /// memory grows: see [`WindowOf`](crate::operations::WindowOf).
        pub window: u64,
        /// Bytes of that window.
        pub window_bytes: u64,
    }
}

/// Where all addresses lie that clients get of a server: 64 TiB, which Linux leaves empty.
pub const ARENA: Range<u64> = 0x1100_0000_0000..0x5100_0000_0000;

/// Where among the attributes a device says what it can do that no attribute of CUDA's tells: 0 is
/// the number of none of them.
pub const ABILITIES: u32 = 0;
/// Bit of [`ABILITIES`]: kernels can reach the memory of other devices that have this bit.
pub const REACHES_PEERS: i32 = 1;
/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
pub const MULTIPROCESSOR_COUNT: u32 = 16;
/// Behind CUDA's attributes: how many multiprocessors the device has, of which [`MULTIPROCESSOR_COUNT`]
/// tells the client's part. 0 where percentages count for nothing, as in a static partition.
pub const ALL_MULTIPROCESSORS: u32 = DEVICE_ATTRIBUTES.len() as u32 + 1;
/// Behind CUDA's attributes: in which steps a device's multiprocessors can be parted; 0 for one by one.
pub const MULTIPROCESSOR_STEP: u32 = DEVICE_ATTRIBUTES.len() as u32 + 2;
/// Behind CUDA's attributes: how many of a device's multiprocessors can be parted in these steps; 0 for all.
pub const MULTIPROCESSORS_PARTED: u32 = DEVICE_ATTRIBUTES.len() as u32 + 3;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
pub const COMPUTE_MODE: u32 = 20;
/// CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
pub const PCI_BUS_ID: u32 = 33;
/// CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
pub const PCI_DEVICE_ID: u32 = 34;
/// CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
pub const PCI_DOMAIN_ID: u32 = 50;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
pub const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
pub const COMPUTE_CAPABILITY_MINOR: u32 = 76;

impl DeviceFacts {
    /// The value of an attribute, if the device knows it.
    #[must_use]
    pub fn attribute(&self, number: u32) -> Option<i32> {
        self.attributes.get(number as usize).copied()
    }

    /// Whether kernels can reach the memory of other devices that say the same of themselves.
    #[must_use]
    pub fn reaches_peers(&self) -> bool {
        self.attribute(ABILITIES)
            .is_some_and(|abilities| abilities & REACHES_PEERS != 0)
    }
}
