//! The table of packets, and what stands before each: a magic number, its kind and the sender's protocol version.
//!
//! That prefix, and all of [`Packet::Refused`], hold for every version there will ever be, so that two builds that do
//! not understand each other can at least say so. What is beyond the known fields is
//! passed over, so that a later minor version can add some. Descriptors travel beside the packets; each kind says which, in order.
//!
//! Called by all who send or receive packets. Must not know sockets.

use super::account::DeviceAccount;
use super::attach::{Admit, Ending, Hello, Welcome};
use super::fault::Guilt;
use super::limits::{Change, Group};
use super::sharing::SharedObject;
use super::takeover::Takeovers;
use super::time_line::{RecordedClient, RecordedPart};
use super::version::{OtherMajor, VERSION, Version, negotiate};
use super::view::{ListedDevice, View};
use crate::codec::{ByteCodec as _, Damaged, Reader, alternatives};

/// The longest packet in bytes. The kernel would take more; the facts of 32 devices are far less.
pub const PACKET_MAX: usize = 64 << 10;

/// "OMPS", as bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"OMPS");

const HELLO: u16 = 1;
const WELCOME: u16 = 3;
const REFUSED: u16 = 4;

alternatives! {
    /// Any packet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Packet: u16 {
        /// Client to daemon, first.
        Hello(hello: Hello) = HELLO,
        /// Daemon to command client; a long text comes in several, see [`command_output`](super::command_output).
        CommandOutput {
            /// The status that the command client exits with; counts in the last one.
            exit: u8,
            /// Whether nothing follows.
            last: bool,
            /// A part of the text.
            text: String,
        } = 2,
        /// Server to client.
        Welcome(welcome: Welcome) = WELCOME,
        /// Daemon or server to client: there is no session.
        Refused {
            /// A CUresult, 805 to 810.
            code: u32,
            /// Why, in words.
            text: String,
        } = REFUSED,
        /// Daemon to server.
        Admit(admit: Admit) = 5,
        /// Daemon to server: end.
        Shutdown {
            /// Without waiting for clients.
            force: bool,
            /// Milliseconds that clients have to finish.
            grace: u32,
        } = 6,
        /// Server to daemon, first.
        Ready {
            /// The server's process id.
            pid: i32,
            /// Its devices.
            devices: Vec<ListedDevice>,
            /// Bytes of each that nobody has, the server being ready; none where only this server can have any.
            free: Vec<u64>,
        } = 7,
        /// Server to daemon: a client was welcomed.
        Attached {
            /// Its session.
            session: u64,
            /// Where the windows lie that it begins with, one a device and the host's; none of a session that no other
            /// server can take over.
            bases: Vec<u64>,
        } = 8,
        /// Server to daemon: a client is gone and everything that it had is free.
        Gone {
            /// Its session.
            session: u64,
            /// How it ended.
            how: Ending,
            /// What it has had of each device; nothing if it was never welcomed.
            accounts: Vec<DeviceAccount>,
        } = 9,
        /// Server to daemon: a client's context is dead.
        Fault {
            /// Its session.
            session: u64,
            /// A CUresult.
            code: u32,
            /// What happened, for the log.
            text: String,
            /// Whose it is.
            guilt: Guilt,
        } = 10,
        /// Server to daemon: it lost a device and takes no more clients; others need another server.
        Lost {
            /// The CUresult that the device gave.
            code: u32,
        } = 11,
        /// Daemon to server: end a client's session; its calls give 810 from then on.
        Terminate {
            /// The session.
            session: u64,
        } = 12,
        /// Daemon to client: it has to wait, for as long as others of its kind need. Sent only to those
        /// who said [`FEATURE_QUEUED`](super::FEATURE_QUEUED); a Welcome or Refused follows.
        Queued {
            /// For what, in words.
            text: String,
        } = 13,
        /// Daemon to server: a group of clients, or its new limits.
        Group(group: Group) = 14,
        /// Daemon to server: a group is no more. It has no clients.
        GroupGone {
            /// Its number.
            group: u32,
        } = 15,
        /// Daemon to server: other limits for a client.
        Change(change: Change) = 16,
        /// Server to daemon: what came of a [`Packet::Group`] or [`Packet::Change`].
        Changed {
            /// The number that came with it.
            request: u64,
            /// 0, or the CUresult for which nothing has changed.
            code: u32,
            /// Why, in words.
            text: String,
            /// What the client has had of each device; of a group nothing.
            accounts: Vec<DeviceAccount>,
        } = 17,
        /// Daemon to command client, before the output: what people are to read and tools are not, for
        /// standard error. Sent only to those who said [`FEATURE_REMARK`](super::FEATURE_REMARK).
        Remark {
            /// A line, without its end.
            text: String,
        } = 18,
        /// Daemon to who asked for a view; processes may come in several, see [`view_packets`](super::view_packets).
        View {
            /// Whether nothing follows.
            last: bool,
            /// A part of the view: all devices are in the first one.
            view: View,
        } = 19,
        /// Daemon to server, before anything else if the server waits for it: the pipe directory of NVIDIA's MPS
        /// beneath, and what keeps that MPS running, as descriptors.
        Underlay {
            /// Why there is none, in words; nothing if there is one.
            text: String,
        } = 20,
        /// Daemon to server: a client is to be recorded. With it comes the connection of who asked for it, as a descriptor.
        Record {
            /// The number of the question.
            time_line: u64,
            /// The client's session.
            session: u64,
        } = 21,
        /// Daemon to who asked for time lines: a client is recorded from now on.
        RecordedClient(client: RecordedClient) = 22,
        /// Server to who asked for time lines.
        Recorded {
            /// The client's session.
            session: u64,
            /// A part of what is recorded of it.
            part: RecordedPart,
        } = 23,
        /// Server to daemon: nothing has ended on a device for long, though it has work, or something has again.
        Still {
            /// The device's ordinal.
            device: u32,
            /// Since when, in nanoseconds of CLOCK_MONOTONIC; `None` when it goes on.
            since: Option<u64>,
            /// What each client has there, for the log.
            text: String,
        } = 24,
        /// Server to daemon: it has taken a session over from a server that ended, and goes on with it.
        TakenOver {
            /// The session.
            session: u64,
            /// What came of that.
            takeovers: Takeovers,
        } = 25,
        /// Server to daemon: a client has a chunk of device memory that its next server can map again. Daemon to that server,
        /// before [`Packet::Admit`]: it has this one. With it comes what keeps it, as a descriptor.
        ChunkMade {
            /// The client's session.
            session: u64,
            /// The device's number.
            device: u32,
            /// Where it is mapped.
            base: u64,
            /// Its bytes.
            bytes: u64,
        } = 26,
        /// Server to daemon: a client has such a chunk no longer.
        ChunkGone {
            /// The client's session.
            session: u64,
            /// The device's number.
            device: u32,
            /// Where it was mapped.
            base: u64,
        } = 27,
        /// Server to daemon, its last: it has lost a device, or is to hand its clients over, and what these are shown of its work does not
        /// change any more. Its process ends now. Another server can prepare their sessions, but for what touches their memory.
        HandsOver = 28,
        /// Daemon to server: the process of a former server has ended, and the sessions that were prepared go on.
        FormerEnded {
            /// The number that [`Admit`] had.
            former: u64,
        } = 29,
        /// Server to daemon: a client has got addresses of a device beside its first ones, which its next server is to give it
        /// again. Daemon to that server, before [`Packet::Admit`]: it has these. With it comes what their memory lies in, as a
        /// descriptor, if that is a file.
        WindowMade {
            /// The client's session.
            session: u64,
            /// The device's number.
            device: u32,
            /// The first address.
            base: u64,
            /// How many bytes.
            bytes: u64,
        } = 30,
        /// Server to daemon: a client has such addresses no longer.
        WindowGone {
            /// The client's session.
            session: u64,
            /// The first address.
            base: u64,
        } = 31,
        /// Daemon to server: its clients are to go over to another server as soon as none of them loses anything by that. It answers
        /// by [`Packet::HandsOver`] or [`Packet::Stays`], within some seconds.
        HandOver = 32,
        /// Server to daemon: its clients cannot go over now, and stay.
        Stays {
            /// Why, in words, for the log.
            text: String,
        } = 33,
        /// Server to daemon: a client of a user opens what no client of this server shares. Daemon to the other servers that this user
        /// has: the same, by a number of its own. They answer by [`Packet::ExportFound`] or [`Packet::ExportNotFound`], and so does
        /// the daemon, if anybody: who has heard nothing after some seconds takes that for an answer.
        SeekExport {
            /// The number of the question.
            question: u64,
            /// The user.
            uid: u32,
            /// What the object is found by.
            token: [u64; 4],
        } = 34,
        /// What was asked for. Its descriptors come with it.
        ExportFound {
            /// The number of the question.
            question: u64,
            /// What it is.
            object: SharedObject,
        } = 35,
        /// Nobody has what was asked for, or it cannot be another server's.
        ExportNotFound {
            /// The number of the question.
            question: u64,
        } = 36,
    }
}

/// Whether the version in a packet's prefix is its first field: what a client offers, or what is agreed on. Other
/// packets have this build's there.
const fn states_version(kind: u16) -> bool {
    matches!(kind, HELLO | WELCOME)
}

impl Packet {
    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        MAGIC.put(&mut out);
        self.tag().put(&mut out);
        if !states_version(self.tag()) {
            VERSION.put(&mut out);
        }
        self.put_fields(&mut out);
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// When it is not one, not of this major version, or damaged. A Refused is read whatever its
    /// version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut from = Reader::new(bytes);
        if u32::get(&mut from) != Ok(MAGIC) {
            return Err(Unreadable::Magic);
        }
        let kind = u16::get(&mut from)?;
        let mut fields = from.clone();
        let version = Version::get(&mut from)?;
        if kind != REFUSED {
            negotiate(version).map_err(Unreadable::Version)?;
        }
        if !states_version(kind) {
            fields = from;
        }
        Self::get_fields(kind, &mut fields)?.ok_or(Unreadable::Kind(kind))
    }
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

impl From<Damaged> for Unreadable {
    fn from(_: Damaged) -> Self {
        Self::Damaged
    }
}

#[cfg(test)]
mod tests {
    use super::super::Purpose;
    use super::*;

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
