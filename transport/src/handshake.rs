//! The packets by which a client, the daemon and a server find each other.
//!
//! A packet begins with a magic number, its kind and the sender's protocol version; that prefix, and
//! all of [`Packet::Refused`], hold for every version there will ever be, so that two builds that do
//! not understand each other can at least say so. Within a major version a packet only ever gains
//! trailing fields: what is beyond the known ones is passed over.
//!
//! Descriptors travel beside the packets; each kind says which, in order. Knows nothing of sockets.

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
pub const VERSION: Version = Version { major: 1, minor: 0 };

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
}

/// A client's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that the client speaks at most.
    pub version: Version,
    /// Of its table, see [`fingerprint`].
    pub fingerprint: u64,
    /// Bits of what it can do; none are given out yet.
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
}

impl Ending {
    const ALL: [Self; 7] = [
        Self::Detached,
        Self::ProcessEnded,
        Self::SocketClosed,
        Self::Replaced,
        Self::Malformed,
        Self::Shutdown,
        Self::Failed,
    ];
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
        /// The names of its devices.
        devices: Vec<String>,
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
}

/// The packets that carry a command's output.
#[must_use]
pub fn command_output(exit: u8, text: &str) -> Vec<Packet> {
    // Leaves room for the packet's other fields.
    const PART: usize = PACKET_MAX - 64;
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

/// "OMPS", as bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"OMPS");

const REFUSED: u16 = 4;

impl Packet {
    const fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::CommandOutput { .. } => 2,
            Self::Welcome(_) => 3,
            Self::Refused { .. } => REFUSED,
            Self::Admit(_) => 5,
            Self::Shutdown { .. } => 6,
            Self::Ready { .. } => 7,
            Self::Attached { .. } => 8,
            Self::Gone { .. } => 9,
            Self::Fault { .. } => 10,
        }
    }

    /// The version in the prefix: what a Hello or Welcome states, else this build's.
    const fn version(&self) -> Version {
        match self {
            Self::Hello(hello) => hello.version,
            Self::Welcome(welcome) => welcome.version,
            _ => VERSION,
        }
    }

    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(256));
        out.u32(MAGIC);
        out.u16(self.kind());
        out.version(self.version());
        match self {
            Self::Hello(hello) => {
                out.u64(hello.fingerprint);
                out.u64(hello.features);
                match &hello.purpose {
                    Purpose::Client(client) => {
                        out.u8(0);
                        out.client(client);
                    }
                    Purpose::Command { line } => {
                        out.u8(1);
                        out.text(line);
                    }
                }
            }
            Self::CommandOutput { exit, last, text } => {
                out.u8(*exit);
                out.u8(u8::from(*last));
                out.text(text);
            }
            Self::Welcome(welcome) => {
                out.u64(welcome.session);
                out.u32(welcome.server_pid.cast_unsigned());
                out.bytes(&welcome.facts);
                out.u64(welcome.host_base);
                out.u64(welcome.host_bytes);
            }
            Self::Refused { code, text } => {
                out.u32(*code);
                out.text(text);
            }
            Self::Admit(admit) => {
                out.u64(admit.session);
                out.u32(admit.pid.cast_unsigned());
                out.u32(admit.uid);
                out.u32(admit.gid);
                out.u64(admit.namespace);
                out.version(admit.version);
                out.u64(admit.fingerprint);
                out.u64(admit.features);
                out.client(&admit.client);
            }
            Self::Shutdown { force, grace } => {
                out.u8(u8::from(*force));
                out.u32(*grace);
            }
            Self::Ready { pid, devices } => {
                out.u32(pid.cast_unsigned());
                out.u32(devices.len() as u32);
                for name in devices {
                    out.text(name);
                }
            }
            Self::Attached { session } => out.u64(*session),
            Self::Gone { session, how } => {
                out.u64(*session);
                out.u8(*how as u8);
            }
            Self::Fault {
                session,
                code,
                text,
            } => {
                out.u64(*session);
                out.u32(*code);
                out.text(text);
            }
        }
        out.0
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// When it is not one, not of this major version, or damaged. A Refused is read whatever its
    /// version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut from = Reader(bytes);
        if from.u32().ok() != Some(MAGIC) {
            return Err(Unreadable::Magic);
        }
        let kind = from.u16()?;
        let version = from.version()?;
        if kind != REFUSED {
            negotiate(version).map_err(Unreadable::Version)?;
        }
        Ok(match kind {
            1 => Self::Hello(Hello {
                version,
                fingerprint: from.u64()?,
                features: from.u64()?,
                purpose: match from.u8()? {
                    0 => Purpose::Client(from.client()?),
                    1 => Purpose::Command { line: from.text()? },
                    _ => return Err(Unreadable::Damaged),
                },
            }),
            2 => Self::CommandOutput {
                exit: from.u8()?,
                last: from.bool()?,
                text: from.text()?,
            },
            3 => Self::Welcome(Welcome {
                version,
                session: from.u64()?,
                server_pid: from.u32()?.cast_signed(),
                facts: from.bytes()?.to_vec(),
                host_base: from.u64()?,
                host_bytes: from.u64()?,
            }),
            REFUSED => Self::Refused {
                code: from.u32()?,
                text: from.text()?,
            },
            5 => Self::Admit(Admit {
                session: from.u64()?,
                pid: from.u32()?.cast_signed(),
                uid: from.u32()?,
                gid: from.u32()?,
                namespace: from.u64()?,
                version: from.version()?,
                fingerprint: from.u64()?,
                features: from.u64()?,
                client: from.client()?,
            }),
            6 => Self::Shutdown {
                force: from.bool()?,
                grace: from.u32()?,
            },
            7 => {
                let pid = from.u32()?.cast_signed();
                let mut devices = Vec::new();
                // The count is not trusted: the loop ends when the bytes do.
                for _ in 0..from.u32()? {
                    devices.push(from.text()?);
                }
                Self::Ready { pid, devices }
            }
            8 => Self::Attached {
                session: from.u64()?,
            },
            9 => {
                let session = from.u64()?;
                let number = usize::from(from.u8()?);
                let how = *Ending::ALL.get(number).ok_or(Unreadable::Damaged)?;
                Self::Gone { session, how }
            }
            10 => Self::Fault {
                session: from.u64()?,
                code: from.u32()?,
                text: from.text()?,
            },
            other => return Err(Unreadable::Kind(other)),
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn version(&mut self, value: Version) {
        self.u16(value.major);
        self.u16(value.minor);
    }
    fn bytes(&mut self, value: &[u8]) {
        // What is longer than a packet does not leave the process; sending it fails.
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value);
    }
    fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }
    fn optional(&mut self, value: Option<&str>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.text(value);
        }
    }
    fn client(&mut self, value: &ClientFields) {
        self.text(&value.program);
        self.optional(value.percentage.as_deref());
        self.optional(value.memory_limit.as_deref());
        self.optional(value.priority.as_deref());
        self.u32(value.context);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, Unreadable> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn bool(&mut self) -> Result<bool, Unreadable> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Unreadable::Damaged),
        }
    }
    fn version(&mut self) -> Result<Version, Unreadable> {
        Ok(Version {
            major: self.u16()?,
            minor: self.u16()?,
        })
    }
    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let count = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(count).ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(head)
    }
    fn text(&mut self) -> Result<String, Unreadable> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable::Damaged)?;
        Ok(text.to_owned())
    }
    fn optional(&mut self) -> Result<Option<String>, Unreadable> {
        if self.bool()? {
            self.text().map(Some)
        } else {
            Ok(None)
        }
    }
    fn client(&mut self) -> Result<ClientFields, Unreadable> {
        Ok(ClientFields {
            program: self.text()?,
            percentage: self.optional()?,
            memory_limit: self.optional()?,
            priority: self.optional()?,
            context: self.u32()?,
        })
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
        let refused = agree(version(1, 7), version(2, 3)).unwrap_err().to_string();
        assert!(
            refused.contains("2.3") && refused.contains("1.0"),
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
        assert_eq!(
            Packet::decode(b"OMPS\x63\0\x01\0\0\0"),
            Err(Unreadable::Kind(99))
        );
    }
}
