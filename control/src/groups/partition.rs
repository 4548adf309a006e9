//! Static partitions: parts of a device's multiprocessors that are one partition's clients' alone,
//! whether these use them or not. They are made before the clients that name them.
//!
//! A partition is a group with a reserved part of one device and no budget. It is made of chunks, the
//! smallest part that the device's engine gives out.
//!
//! Called by commands and `daemon::partitions`. Must not know how multiprocessors are kept apart.

use protocol::control_messages::ListedDevice;

/// A static partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The device's ordinal.
    pub device: u32,
    /// Its number among the device's, from 1, never used again.
    pub id: u32,
    /// What it is made of.
    pub chunks: u32,
    /// Its multiprocessors.
    pub multiprocessors: u32,
}

/// The chunks that a device has, and the multiprocessors of each.
#[must_use]
pub fn chunks(device: &ListedDevice) -> (u32, u32) {
    let chunk = device.chunk.max(1);
    let even = device.multiprocessors / chunk;
    // A server of an older release does not say how many there are.
    let count = if device.chunks == 0 {
        even
    } else {
        device.chunks.min(even)
    };
    (count, chunk)
}

/// What a device's partitions leave.
#[must_use]
pub fn free_chunks(device: &ListedDevice, partitions: &[&Partition]) -> u32 {
    let used: u32 = partitions.iter().map(|one| one.chunks).sum();
    chunks(device).0.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_the_engine_gives_them_out() {
        let device = |multiprocessors, chunk| ListedDevice {
            multiprocessors,
            chunk,
            ..ListedDevice::default()
        };
        assert_eq!(chunks(&device(132, 8)), (16, 8));
        assert_eq!(chunks(&device(3, 1)), (3, 1));
        assert_eq!(chunks(&device(3, 0)), (3, 1));
        let counted = |chunks| ListedDevice {
            chunks,
            ..device(132, 8)
        };
        assert_eq!(chunks(&counted(15)), (15, 8));
        assert_eq!(chunks(&counted(99)), (16, 8));
        let partition = |chunks| Partition {
            device: 0,
            id: 1,
            chunks,
            multiprocessors: chunks * 8,
        };
        assert_eq!(
            free_chunks(&device(132, 8), &[&partition(4), &partition(5)]),
            7
        );
    }
}
