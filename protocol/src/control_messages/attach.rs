//! How a client gets its session: what it says of itself to the daemon, what the daemon tells the server of it,
//! and what the server gives it.
//!
//! None of what a client says is trusted to say who it is. Group and partition are numbers here, which
//! [`limits`](super::limits) gives a meaning. Read and written by `client`, `control` and `server`. Must not know how
//! packets travel.

use super::limits::Membership;
use super::time_line::TimeLineRequest;
use super::version::Version;
use super::view::ViewRequest;
use crate::codec::{alternatives, alternatives_as_fields, message};
use crate::device_facts::DeviceFacts;

/// A bit of [`Hello::features`]: the client knows [`Packet::Queued`](super::Packet::Queued).
pub const FEATURE_QUEUED: u64 = 1;

/// A bit of [`Hello::features`]: the command client knows [`Packet::Remark`](super::Packet::Remark).
pub const FEATURE_REMARK: u64 = 2;

/// A bit of [`Hello::features`]: the client can go on with another server, to which it says again what it has.
pub const FEATURE_TAKEOVER: u64 = 4;

/// The status that a server exits with whose device was lost and whose clients are to go on at another server: EX_TEMPFAIL of
/// sysexits.h.
pub const HANDS_OVER: u8 = 75;

message! {
    /// What a program says of itself when it asks for a session. None of it is trusted to say who it is.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ClientFields {
        /// The program's name, for lists and logs.
        pub program: String,
        /// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, as it stands in the environment.
        pub percentage: Option<String>,
        /// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, as it stands in the environment.
        pub memory_limit: Option<String>,
        /// CUDA_MPS_CLIENT_PRIORITY, as it stands in the environment.
        pub priority: Option<String>,
        /// Reserved for what distinguishes several sessions of one process; 0.
        pub context: u32,
        /// CUDA_MPS_SM_PARTITION, as it stands in the environment. Travels in a Hello alone: in an Admit
        /// it is a number, see [`Membership`].
        pub partition: Option<String>,
        /// OPENMPS_LABEL, as it stands in the environment, or its beginning. Travels in a Hello alone: servers do not know it.
        pub label: Option<String>,
        /// What it belongs to: those of one job may open each other's memory. Travels in a Hello alone, as the label.
        pub job: Option<String>,
        /// OPENMPS_KERNEL_TIME_LIMIT, as it stands in the environment.
        pub kernel_time: Option<String>,
        /// OPENMPS_ISOLATION, as it stands in the environment; in an Admit, whether its kernels are fenced, see
        /// [`is_fenced`](crate::limits::is_fenced).
        pub isolation: Option<String>,
    }

    /// A client's first packet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Hello {
        /// The version that the client speaks at most.
        pub version: Version,
        /// Of its table, see [`fingerprint`](super::fingerprint).
        pub fingerprint: u64,
        /// Bits of what it can do: [`FEATURE_QUEUED`], [`FEATURE_REMARK`], [`FEATURE_TAKEOVER`].
        pub features: u64,
        /// What it wants.
        pub purpose: Purpose,
    }

    /// Says that a client has a session. With it come the descriptors ring, status, staging, host.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Welcome {
        /// The version that the session speaks.
        pub version: Version,
        /// The session's number.
        pub session: u64,
        /// The server's process id in its own namespace, for lists and logs.
        pub server_pid: i32,
        /// What it is told of each device.
        pub facts: Vec<DeviceFacts>,
        /// Where the page-locked host memory lies, in server and client.
        pub host_base: u64,
        /// Its bytes, which is the size of its memfd.
        pub host_bytes: u64,
    }

    /// Hands a client to a server. With it come the descriptors client socket, pidfd, ring, status,
    /// staging, host; the files of its device windows; the status of its former server; and one more if it is recorded.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Admit {
        /// The session's number.
        pub session: u64,
        /// The client's process id as the daemon sees it, or 0.
        pub pid: i32,
        /// The client's user, by the kernel's word.
        pub uid: u32,
        /// The client's group, by the kernel's word.
        pub gid: u32,
        /// The inode of the client's pid namespace, or 0 where it cannot be seen.
        pub namespace: u64,
        /// The version to speak with it.
        pub version: Version,
        /// Of the client's table.
        pub fingerprint: u64,
        /// The client's feature bits.
        pub features: u64,
        /// What it says of itself.
        pub client: ClientFields,
        /// Whose budget and compute it shares.
        pub member: Membership,
        /// The number of who has it recorded, whose connection comes as the last descriptor.
        pub time_line: Option<u64>,
        /// How many files of device windows come with it, if another server may take the session over: one a device.
        pub files: u32,
        /// Where its windows lay in its former server, as [`Packet::Attached`](super::Packet::Attached) said; none of a new
        /// session.
        pub bases: Vec<u64>,
        /// How often the session was handed to a further server, this time included; 0 of a new session. Of two servers none has the
        /// same number for it, also where the client has not heard of one of them.
        pub takeover: u64,
        /// The number of its former server if the process of that has not ended yet: nothing is done to the session's memory until
        /// [`Packet::FormerEnded`](super::Packet::FormerEnded) has come.
        pub former: Option<u64>,
    }
}

alternatives! {
    /// What somebody who connects to the daemon wants.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Purpose: u8 {
        /// A session.
        Client(client: ClientFields) = 0,
        /// To have a command carried out.
        Command {
            /// The line, as typed.
            line: String,
        } = 1,
        /// To be shown devices and clients: a [`Packet::View`](super::Packet::View) follows, or several.
        View(request: ViewRequest) = 2,
        /// To have clients recorded until the connection ends: [`Packet::RecordedClient`](super::Packet::RecordedClient) and
        /// [`Packet::Recorded`](super::Packet::Recorded) follow.
        TimeLines(request: TimeLineRequest) = 3,
    }
}

alternatives! {
    /// How a session ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Ending: u8 {
        /// The client said so.
        Detached = 0,
        /// The process ended.
        ProcessEnded = 1,
        /// The socket was closed.
        SocketClosed = 2,
        /// The same process attached again.
        Replaced = 3,
        /// The client broke the protocol.
        Malformed = 4,
        /// The server was told to stop.
        Shutdown = 5,
        /// The server could not go on with it.
        Failed = 6,
        /// The operator asked for it.
        Terminated = 7,
        /// A kernel of it ran for longer than it may, and the device cannot end a kernel by itself.
        KernelTime = 8,
    }
}

alternatives_as_fields!(Purpose: u8, Ending: u8);
