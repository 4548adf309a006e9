//! What a client has had of a device: what servers count, and the daemon shows and adds up.
//!
//! Made by servers, added up by `control`, read by whoever shows usage. Must not know how it is counted.

use crate::codec::message;

message! {
    /// What a client has had of one device since it came. Times are in nanoseconds; all but `memory` and `queued`
    /// only grow.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceAccount {
        /// Bytes of the device's memory that it has now.
        pub memory: u64,
        /// Kernels that it launched, those of graphs among them.
        pub kernels: u64,
        /// Time in which kernels of it ran, one or several.
        pub kernel_time: u64,
        /// The same for each multiprocessor, added up; where the device does not tell, `kernel_time` times all that it may have.
        pub multiprocessor_time: u64,
        /// Copies, fills and writes that the device was given; a long copy of pageable memory comes in several.
        pub copies: u64,
        /// Time in which the device made some of these.
        pub copy_time: u64,
        /// Bytes that it copied from host memory to the device.
        pub bytes_to_device: u64,
        /// Bytes that it copied from the device to host memory.
        pub bytes_from_device: u64,
        /// Bytes that it copied within the device, or filled.
        pub bytes_within_device: u64,
        /// Modules that it loaded.
        pub loads: u64,
        /// Time that these took.
        pub load_time: u64,
        /// Time in which it had work that could have run and nothing of the device, since other clients had it.
        pub waited: u64,
        /// Contexts of it that died of a fault.
        pub faults: u64,
        /// Operations of its streams that the server has taken and that are not complete now.
        pub queued: u64,
        /// Time in which a limit of its own held its work back: its part of the device was used up, or it is below normal priority and
        /// others were at work. The latter is in `waited` too.
        pub throttled: u64,
        /// Images and kernels whose compiled code a server found on disk, on the software GPU.
        pub code_from_disk: u64,
        /// Images and kernels that the server compiled, on the software GPU.
        pub code_compiled: u64,
    }
}

impl DeviceAccount {
    /// Adds what another has had.
    pub fn add(&mut self, other: &Self) {
        let Self {
            memory,
            kernels,
            kernel_time,
            multiprocessor_time,
            copies,
            copy_time,
            bytes_to_device,
            bytes_from_device,
            bytes_within_device,
            loads,
            load_time,
            waited,
            faults,
            queued,
            throttled,
            code_from_disk,
            code_compiled,
        } = self;
        let sums = [
            (memory, other.memory),
            (kernels, other.kernels),
            (kernel_time, other.kernel_time),
            (multiprocessor_time, other.multiprocessor_time),
            (copies, other.copies),
            (copy_time, other.copy_time),
            (bytes_to_device, other.bytes_to_device),
            (bytes_from_device, other.bytes_from_device),
            (bytes_within_device, other.bytes_within_device),
            (loads, other.loads),
            (load_time, other.load_time),
            (waited, other.waited),
            (faults, other.faults),
            (queued, other.queued),
            (throttled, other.throttled),
            (code_from_disk, other.code_from_disk),
            (code_compiled, other.code_compiled),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }
}
