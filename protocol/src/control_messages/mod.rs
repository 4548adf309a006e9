//! The packets by which client, daemon and server find each other, and what daemon and server tell each other
//! afterwards.
//!
//! A packet is declared once, in [`Packet`]'s table, its fields where they belong: [`attach`], [`limits`], [`account`], [`fault`], [`takeover`], [`view`],
//! [`time_line`], [`sharing`].
//! Both directions come from there. Knows nothing of sockets.

mod account;
mod attach;
mod fault;
mod limits;
mod packet;
mod parts;
mod sharing;
mod takeover;
mod time_line;
mod version;
mod view;

pub use account::DeviceAccount;
pub use attach::{
    Admit, ClientFields, Ending, FEATURE_QUEUED, FEATURE_REMARK, FEATURE_TAKEOVER, HANDS_OVER,
    Hello, Purpose, Welcome,
};
pub use fault::{FaultCount, Guilt};
pub use limits::{Change, Group, Membership, NO_PARTITION};
pub use packet::{PACKET_MAX, Packet, Unreadable};
pub use parts::{command_output, remark, view_packets};
pub use sharing::{SharedDevice, SharedObject};
pub use takeover::Takeovers;
pub use time_line::{RecordedClient, RecordedPart, TimeLineRequest};
pub use version::{OtherMajor, VERSION, Version, fingerprint, negotiate};
pub use view::{ListedDevice, STANDBY_LABEL, View, ViewRequest, ViewedDevice, ViewedProcess};
