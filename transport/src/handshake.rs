//! The packets by which a client, the daemon and a server find each other.
//!
//! A packet begins with a magic number, its kind and the sender's protocol version; that prefix, and
//! all of [`Packet::Refused`], hold for every version there will ever be, so that two builds that do
//! not understand each other can at least say so. Within a major version a packet only ever gains
//! trailing fields: what is beyond the known ones is passed over.
//!
//! Descriptors travel beside the packets; each kind says which, in order. Knows nothing of sockets.

mod codec;

use crate::socket::PACKET_MAX;
use cuda_abi::operations::{OPERATIONS, OperationClass};

/// The protocol's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Different majors do not understand each other.
    pub major: u16,
    /// Both sides take the lower one.
    pub minor: u16,
}

/// The version that this build speaks.
pub const VERSION: Version = Version { major: 2, minor: 0 };

/// Major versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherMajor {
    /// What the other side speaks.
    pub theirs: Version,
}

impl std::fmt::Display for OtherMajor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "protocol versions differ: the other side speaks {}.{}, this side {}.{}; \
             use libcuda.so.1 and openmps of one release",
            self.theirs.major, self.theirs.minor, VERSION.major, VERSION.minor
        )
    }
}

impl std::error::Error for OtherMajor {}

/// The version that two sides speak with each other.
///
/// # Errors
/// When they are of different majors; the error's text names both versions.
pub fn negotiate(theirs: Version) -> Result<Version, OtherMajor> {
    agree(VERSION, theirs)
}

fn agree(ours: Version, theirs: Version) -> Result<Version, OtherMajor> {
    if theirs.major != ours.major {
        return Err(OtherMajor { theirs });
    }
    Ok(Version {
        major: ours.major,
        minor: ours.minor.min(theirs.minor),
    })
}

/// A number that tells whether two builds have the same table of operations (FNV-1a over its rows).
#[must_use]
pub fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for operation in OPERATIONS {
        let row = operation.row();
        let class = match row.class {
            OperationClass::Post => 0,
            OperationClass::Create => 1,
            OperationClass::Stream => 2,
            OperationClass::Call => 3,
        };
        add(row.name.as_bytes());
        add(&row.number.to_le_bytes());
        add(&[0, row.version, class]);
        add(&(row.slots as u64).to_le_bytes());
    }
    hash
}

/// Why a packet was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is none of ours.
    Magic,
    /// It is of another major version: answer with [`Packet::Refused`] and this error's text.
    Version(OtherMajor),
    /// Its kind is not known.
    Kind(u16),
    /// It ends early, or a field holds what it cannot.
    Damaged,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => f.write_str("packet is none of OpenMPS"),
            Self::Version(versions) => versions.fmt(f),
            Self::Kind(kind) => write!(f, "packet of unknown kind {kind}"),
            Self::Damaged => f.write_str("packet ends early or holds a damaged field"),
        }
    }
}

impl std::error::Error for Unreadable {}

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
}

/// What somebody who connects to the daemon wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A session.
    Client(ClientFields),
    /// To have a command carried out.
    Command {
        /// The line, as typed.
        line: String,
    },
    /// To be shown devices and clients: a [`Packet::View`] follows, or several.
    View(ViewRequest),
}

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
}

/// A bit of [`Hello::features`]: the client knows [`Packet::Queued`].
pub const FEATURE_QUEUED: u64 = 1;

/// A bit of [`Hello::features`]: the command client knows [`Packet::Remark`].
pub const FEATURE_REMARK: u64 = 2;

/// A client's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that the client speaks at most.
    pub version: Version,
    /// Of its table, see [`fingerprint`].
    pub fingerprint: u64,
    /// Bits of what it can do: [`FEATURE_QUEUED`], [`FEATURE_REMARK`].
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
    /// `DeviceFacts::encode_all`
    pub facts: Vec<u8>,
    /// Where the page-locked host memory lies, in server and client.
    pub host_base: u64,
    /// Its bytes, which is the size of its memfd.
    pub host_bytes: u64,
}

/// Hands a client to a server. With it come the descriptors client socket, pidfd, ring, status,
/// staging, host.
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
}

/// Instead of a partition's number: devices are partitioned, and the client has no partition.
pub const NO_PARTITION: u32 = u32::MAX;

/// What a client shares with others, by the numbers of [`Packet::Group`]s that came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Its group, by whose limits on memory and compute it is bound.
    pub group: Option<u32>,
    /// Its static partition, by whose compute it is bound instead, or [`NO_PARTITION`].
    pub partition: Option<u32>,
}

/// A group of clients, as a server is told of it, or told again when its limits change. With it comes
/// the descriptor of its [`crate::ledger::Ledger`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The number by which clients are said to be in it.
    pub group: u32,
    /// The server's slot in the ledger.
    pub slot: u32,
    /// The number that [`Packet::Changed`] gives back.
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
}

/// A change of what a client may have, at once. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The number that [`Packet::Changed`] gives back.
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

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client said so.
    Detached,
    /// The process ended.
    ProcessEnded,
    /// The socket was closed.
    SocketClosed,
    /// The same process attached again.
    Replaced,
    /// The client broke the protocol.
    Malformed,
    /// The server was told to stop.
    Shutdown,
    /// The server could not go on with it.
    Failed,
    /// The operator asked for it.
    Terminated,
}

impl Ending {
    const ALL: [Self; 8] = [
        Self::Detached,
        Self::ProcessEnded,
        Self::SocketClosed,
        Self::Replaced,
        Self::Malformed,
        Self::Shutdown,
        Self::Failed,
        Self::Terminated,
    ];
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

/// Any packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Client to daemon, first.
    Hello(Hello),
    /// Daemon to command client; a long text comes in several, see [`command_output`].
    CommandOutput {
        /// The status that the command client exits with; counts in the last one.
        exit: u8,
        /// Whether nothing follows.
        last: bool,
        /// A part of the text.
        text: String,
    },
    /// Daemon to command client, before the output: what people are to read and tools are not, for
    /// standard error. Sent only to those who said [`FEATURE_REMARK`].
    Remark {
        /// A line, without its end.
        text: String,
    },
    /// Server to client.
    Welcome(Welcome),
    /// Daemon or server to client: there is no session.
    Refused {
        /// A CUresult, 805 to 810.
        code: u32,
        /// Why, in words.
        text: String,
    },
    /// Daemon to server.
    Admit(Admit),
    /// Daemon to server: end.
    Shutdown {
        /// Without waiting for clients.
        force: bool,
        /// Milliseconds that clients have to finish.
        grace: u32,
    },
    /// Server to daemon, first.
    Ready {
        /// The server's process id.
        pid: i32,
        /// Its devices.
        devices: Vec<ListedDevice>,
    },
    /// Server to daemon: a client was welcomed.
    Attached {
        /// Its session.
        session: u64,
    },
    /// Server to daemon: a client is gone and everything that it had is free.
    Gone {
        /// Its session.
        session: u64,
        /// How it ended.
        how: Ending,
    },
    /// Server to daemon: a client's context is dead.
    Fault {
        /// Its session.
        session: u64,
        /// A CUresult.
        code: u32,
        /// What happened, for the log.
        text: String,
    },
    /// Daemon to server: end a client's session; its calls give 810 from then on.
    Terminate {
        /// The session.
        session: u64,
    },
    /// Daemon to client: it has to wait, for as long as others of its kind need. Sent only to those
    /// who said [`FEATURE_QUEUED`]; a Welcome or Refused follows.
    Queued {
        /// For what, in words.
        text: String,
    },
    /// Server to daemon: it lost a device and takes no more clients; others need another server.
    Lost {
        /// The CUresult that the device gave.
        code: u32,
    },
    /// Daemon to server: a group of clients, or its new limits.
    Group(Group),
    /// Daemon to server: a group is no more. It has no clients.
    GroupGone {
        /// Its number.
        group: u32,
    },
    /// Daemon to server: other limits for a client.
    Change(Change),
    /// Server to daemon: what came of a [`Packet::Group`] or [`Packet::Change`].
    Changed {
        /// The number that came with it.
        request: u64,
        /// 0, or the CUresult for which nothing has changed.
        code: u32,
        /// Why, in words.
        text: String,
        /// Bytes of each device that the client has taken; of a group, which its ledger tells,
        /// nothing.
        used: Vec<u64>,
    },
    /// Daemon to server, before anything else if the server waits for it: the pipe directory of NVIDIA's MPS
    /// beneath, and what keeps that MPS running, as descriptors.
    Underlay {
        /// Why there is none, in words; nothing if there is one.
        text: String,
    },
    /// Daemon to who asked for a view; processes may come in several, see [`view_packets`].
    View {
        /// Whether nothing follows.
        last: bool,
        /// A part of the view: all devices are in the first one.
        view: View,
    },
}

/// Processes of a packet: their names have 256 characters at most, of four bytes each.
const PROCESSES: usize = 48;

/// The packets that carry a view.
#[must_use]
pub fn view_packets(mut view: View) -> Vec<Packet> {
    let mut parts = Vec::new();
    while view.processes.len() > PROCESSES {
        let rest = view.processes.split_off(PROCESSES);
        let part = std::mem::replace(
            &mut view,
            View {
                processes: rest,
                ..View::default()
            },
        );
        parts.push(part);
    }
    parts.push(view);
    let last = parts.len() - 1;
    let packets = parts.into_iter().enumerate();
    packets
        .map(|(at, view)| Packet::View {
            last: at == last,
            view,
        })
        .collect()
}

/// The packet that carries a remark on a command, as much of it as fits.
#[must_use]
pub fn remark(text: &str) -> Packet {
    let text = &text[..text.floor_char_boundary(PART)];
    Packet::Remark {
        text: text.to_owned(),
    }
}

/// Bytes of text in a packet at most: leaves room for its other fields.
const PART: usize = PACKET_MAX - 64;

/// The packets that carry a command's output.
#[must_use]
pub fn command_output(exit: u8, text: &str) -> Vec<Packet> {
    let mut packets = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_at(rest.floor_char_boundary(PART));
        rest = after;
        let last = rest.is_empty();
        packets.push(Packet::CommandOutput {
            exit,
            last,
            text: part.to_owned(),
        });
        if last {
            return packets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_take_the_lower_minor_and_another_major_is_refused_in_words() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(agree(version(1, 3), version(1, 7)), Ok(version(1, 3)));
        assert_eq!(agree(version(1, 7), version(1, 3)), Ok(version(1, 3)));
        let refused = agree(version(1, 7), version(9, 3)).unwrap_err().to_string();
        let ours = format!("{}.{}", VERSION.major, VERSION.minor);
        assert!(
            refused.contains("9.3") && refused.contains(&ours),
            "{refused}"
        );
    }

    #[test]
    fn a_packet_of_another_major_is_told_apart_and_a_refusal_is_always_read() {
        let mut hello = Packet::Hello(Hello {
            version: Version { major: 9, minor: 4 },
            fingerprint: 0,
            features: 0,
            purpose: Purpose::Command {
                line: String::new(),
            },
        })
        .encode();
        let theirs = Version { major: 9, minor: 4 };
        let other = Err(Unreadable::Version(OtherMajor { theirs }));
        assert_eq!(Packet::decode(&hello), other);
        // Even when nothing behind the prefix can be understood.
        hello.truncate(10);
        assert_eq!(Packet::decode(&hello), other);
        let refused = Packet::Refused {
            code: 805,
            text: "why".into(),
        };
        let mut bytes = refused.encode();
        bytes[6] = 9;
        assert_eq!(Packet::decode(&bytes), Ok(refused));
        assert_eq!(Packet::decode(b"GET / HTTP"), Err(Unreadable::Magic));
        let [low, high] = VERSION.major.to_le_bytes();
        assert_eq!(
            Packet::decode(&[b'O', b'M', b'P', b'S', 99, 0, low, high, 0, 0]),
            Err(Unreadable::Kind(99))
        );
    }
}
