//! Devices and their clients as lists show them: what a server tells the daemon of its devices, and what the daemon
//! tells whoever asks.
//!
//! `daemon-interface` asks, `control` answers. Must not know how lists are shown.

use super::account::DeviceAccount;
use super::fault::FaultCount;
use super::takeover::Takeovers;
use crate::codec::message;

/// What a server is called that waits, without clients, for the end of another one.
pub const STANDBY_LABEL: &str = "standby";

message! {
    /// What of the devices and their clients somebody wants to see.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ViewRequest {
        /// All that it may see, as an operator; else what is its own, as one who uses devices.
        pub all: bool,
        /// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, as it stands in the environment: what a client there would get.
        pub memory_limit: Option<String>,
    }

    /// Devices and their clients, as somebody may see them.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct View {
        /// The version of the driver that has the devices.
        pub driver: String,
        /// The devices, by ordinal.
        pub devices: Vec<ViewedDevice>,
        /// Who uses them: an entry for each device that a process uses.
        pub processes: Vec<ViewedProcess>,
        /// When this was so, in nanoseconds of CLOCK_MONOTONIC.
        pub time: u64,
        /// The faults that there were in the daemon's life, for who asks for all as an operator.
        pub faults: Vec<FaultCount>,
        /// What was taken over in the daemon's life, for who asks for all as an operator.
        pub takeovers: Takeovers,
    }

    /// A device, and what may be had of it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ViewedDevice {
        /// The device.
        pub device: ListedDevice,
        /// Whether it is a program.
        pub software: bool,
        /// Its compute mode, where the daemon keeps it: of the software GPU.
        pub mode: Option<u32>,
        /// Bytes of its memory that there are for the asker.
        pub total: u64,
        /// Of these, what is taken.
        pub used: u64,
        /// Of these, what can still be had.
        pub free: u64,
        /// What the clients have had of it that the asker is shown, and for who asks for all also those that have left.
        pub account: DeviceAccount,
        /// Since when nothing has ended on it though it has work, where that is for long: nanoseconds of CLOCK_MONOTONIC.
        pub still_since: Option<u64>,
    }

    /// A process that uses a device.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ViewedProcess {
        /// The device's ordinal.
        pub device: u32,
        /// Its process id as the asker knows it, or 0 where that is not known.
        pub pid: i32,
        /// Whether it is the asker itself.
        pub is_asker: bool,
        /// Whether it is a server, and no client.
        pub is_server: bool,
        /// Bytes of the device that it has taken, if that is counted.
        pub used: Option<u64>,
        /// Its program's name.
        pub name: String,
        /// Its user.
        pub uid: u32,
        /// Its group's name.
        pub group: Option<String>,
        /// Bytes of the device that it may have.
        pub limit: u64,
        /// What it has had of the device.
        pub account: DeviceAccount,
        /// Its session's number, or its first session's: no other has had it in the daemon's life. 0 for servers.
        pub session: u64,
        /// The process id of its server.
        pub server: i32,
        /// What it is called by itself or whoever may: foreign text, 128 bytes at most, without control characters. Of a server that
        /// stands by, [`STANDBY_LABEL`].
        pub label: Option<String>,
        /// The id of the container that it is in, by its cgroup: 64 hexadecimal digits.
        pub container: Option<String>,
        /// The uid of its pod, by its cgroup.
        pub pod: Option<String>,
        /// How often its session was taken over; of a server, what it has taken over.
        pub takeovers: Takeovers,
    }

    /// What lists show of a device.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ListedDevice {
        /// `GPU-…`
        pub uuid: String,
        /// Its name.
        pub name: String,
        /// PCI domain, bus and device; the function is 0.
        pub pci: [u32; 3],
        /// Bytes of its memory.
        pub total_memory: u64,
        /// Its multiprocessors.
        pub multiprocessors: u32,
        /// The multiprocessors that a static partition is made of, or 0 where that is not known.
        pub chunk: u32,
        /// How many of these there are, or 0 where that is not known.
        pub chunks: u32,
        /// Its compute capability, major and minor, or zeros where that is not known.
        pub capability: [u32; 2],
    }
}
