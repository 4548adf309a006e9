//! What waits to be sent to the daemon.
//!
//! Made and sent by `daemon_packets`, kept by the main loop. Must not know what a packet says.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use protocol::control_messages::Packet;

use crate::session::observer::Cancellation;

/// A packet for a daemon that has not read all that came before.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) packet: Vec<u8>,
    /// What goes with it.
    pub(super) descriptors: Vec<OwnedFd>,
    /// Who waits until the daemon has it.
    pub(super) told: Option<Arc<Cancellation>>,
}

impl Unsent {
    pub(super) fn new(packet: &Packet) -> Self {
        Self {
            packet: packet.encode(),
            descriptors: Vec::new(),
            told: None,
        }
    }
}
