//! How a session goes from a server that is gone to another one: what the former left in the status memory, and how the
//! client follows.
//!
//! Ring, staging and host memory stay what they are. The status memory is another, as nobody can write to that of the
//! former server: the next one copies it before it calls the client. Used by both ends. Must not know how objects are
//! made.

#![allow(
    clippy::disallowed_types,
    reason = "models are of the ring, without sessions"
)]

use super::journal::{JOURNAL_MAX, Journal};
use super::layout::{KEPT, NO_KERNEL_BEGUN, NOTHING_BEGUN, REPLY_SLOTS, SPILLED, SessionMapping};
use super::{STATUS_BYTES, SessionMemory, replies};
use crate::doorbell::Peer;
use crate::memory::{Mapping, MemoryError, Sealed};
use crate::ring::RingMemory;
use crate::socket::Connection;
use crate::sync::{AtomicU64, Ordering};
use cuda_abi::CUresult;
use protocol::control_messages::{Packet, Welcome};
use protocol::operations::JOURNAL_PACKET;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long the next server's welcome may take that has called the client.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// How far a session was when its server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// The packet with which the client sends its journal to this server, and to no other.
    pub journal: Vec<u8>,
    /// Where in the ring the last record ends that the server took.
    pub taken: u64,
    /// Up to where records are done: those behind are still in the ring.
    pub retired: u64,
    /// Work was under way of which the ring has no record any more.
    pub is_spilled: bool,
    /// Of the work under way no kernel was begun.
    pub has_begun_no_kernel: bool,
    /// Nothing of it was.
    pub has_begun_nothing: bool,
    /// How far each stream had come, by its slot.
    pub completed: Vec<u64>,
    /// What each context died of, by its slot, or success.
    pub faults: Vec<CUresult>,
    /// The serial number of the last call that was answered, by reply slot.
    pub answered: Vec<u64>,
}

impl Former {
    /// Reads the former server's status, which does not change any more, and copies it to a new session's.
    pub(super) fn read(
        mapping: &SessionMapping,
        status: &Sealed,
        takeover: u64,
    ) -> Result<Self, MemoryError> {
        let from = Arc::new(Mapping::map_read_only(status)?);
        let mut bytes = vec![0; STATUS_BYTES];
        from.copy_out(0, &mut bytes);
        mapping.status.copy_in(0, &bytes);
        // The new server has ended nothing, nobody asked it for a recording yet, and its thread may run anywhere.
        mapping.closed().store(0, Ordering::Relaxed);
        mapping.recording().store(0, Ordering::Relaxed);
        mapping.set_peer(Peer::Apart);
        // As long as nothing of it was begun here, for a third server.
        let flags = mapping.under_way().load(Ordering::Relaxed);
        // The first server's is 1. What the status says is not counted from: of a server between this one and that status the client
        // may have heard.
        let number = takeover.wrapping_add(1);
        mapping.kept().store(number, Ordering::Relaxed);
        let load = |word: &AtomicU64| word.load(Ordering::Acquire);
        let faults = mapping.faults().iter();
        Ok(Self {
            journal: journal_packet(number),
            taken: load(mapping.taken()),
            retired: load(mapping.retired()),
            is_spilled: flags & SPILLED != 0,
            has_begun_no_kernel: flags & NO_KERNEL_BEGUN != 0,
            has_begun_nothing: flags & NOTHING_BEGUN != 0,
            completed: mapping.completions().iter().map(load).collect(),
            faults: faults.map(|word| CUresult(load(word) as u32)).collect(),
            answered: (0..REPLY_SLOTS)
                .map(|slot| load(&mapping.reply(slot).0[0]))
                .collect(),
        })
    }
}

/// The packet with which a client sends its journal to the server of this number.
fn journal_packet(number: u64) -> Vec<u8> {
    [JOURNAL_PACKET, &number.to_le_bytes()].concat()
}

fn receive_welcome(connection: &Connection) -> Option<(Welcome, SessionMemory)> {
    connection.set_receive_timeout(Some(WELCOME_TIMEOUT)).ok()?;
    let (bytes, fds) = connection.receive().ok()?;
    connection.set_receive_timeout(None).ok()?;
    let Ok(Packet::Welcome(welcome)) = Packet::decode(&bytes) else {
        return None;
    };
    let memory = SessionMemory::from_fds(fds, welcome.host_bytes).ok()?;
    Some((welcome, memory))
}

/// What a client knows of the servers that it had.
#[derive(Debug, Default)]
pub(super) struct Takeovers {
    welcome: OnceLock<Welcome>,
    /// Up to which count of texts that kernels printed the program has them all.
    shown: AtomicU64,
    /// The number of the server whose call was followed, or 0.
    followed: AtomicU64,
    /// One thread follows at a time.
    following: Mutex<()>,
}

impl Takeovers {
    pub(super) fn set_welcome(&self, welcome: Welcome) {
        let _ = self.welcome.set(welcome);
    }

    pub(super) fn set_shown(&self, count: u64) {
        self.shown.store(count, Ordering::Release);
    }

    /// Whether a server calls whose call was not followed.
    pub(super) fn is_called(&self, mapping: &SessionMapping) -> bool {
        mapping.called().load(Ordering::Acquire) != self.followed.load(Ordering::Acquire)
    }

    /// Follows the call to another server, if there is one. Whether there is still a server.
    pub(super) fn follow(
        &self,
        mapping: &SessionMapping,
        connection: &Connection,
        journal: &Journal,
    ) -> bool {
        let _one = self
            .following
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            let called = mapping.called().load(Ordering::Acquire);
            if called == self.followed.load(Ordering::Acquire) {
                return true;
            }
            if self.go_over(called, mapping, connection, journal).is_none() {
                // The next server need not wait for this client.
                connection.hang_up();
                return false;
            }
            self.followed.store(called, Ordering::Release);
        }
    }

    /// Gives the next server, which has this number, what it needs. `None` if the session cannot go on.
    fn go_over(
        &self,
        number: u64,
        mapping: &SessionMapping,
        connection: &Connection,
        journal: &Journal,
    ) -> Option<()> {
        let mut entries = journal.lock();
        // What kernels have printed and nobody has taken went with the server.
        let printed = mapping.output_count().load(Ordering::Acquire);
        if entries.is_irreplaceable || printed != self.shown.load(Ordering::Acquire) {
            return None;
        }
        let (welcome, memory) = loop {
            let (welcome, memory) = receive_welcome(connection)?;
            let status = Mapping::map_read_only(&memory.status).ok()?;
            // Of servers that ended before this client came to them there may be welcomes too.
            if status.word(KEPT).load(Ordering::Acquire) == number {
                break (welcome, memory);
            }
        };
        let before = self.welcome.get()?;
        let is_same = welcome.session == before.session
            && welcome.host_base == before.host_base
            && welcome.facts == before.facts;
        if !is_same {
            return None;
        }
        // Before the status is the next server's: what the former one answered, and nobody has read yet.
        for (slot, serial) in entries.unanswered() {
            if replies::is_there(mapping, slot as usize, serial) {
                let (status, answer) = replies::answer(mapping, slot as usize);
                entries.answered(serial, (status == CUresult::SUCCESS).then_some(answer));
            }
        }
        let (taken, retired) = (mapping.taken(), mapping.retired());
        let (taken, retired) = (
            taken.load(Ordering::Acquire),
            retired.load(Ordering::Acquire),
        );
        let written = entries.write(taken, retired).ok()?;
        if written.bytes() > JOURNAL_MAX {
            return None;
        }
        mapping.status.replace_read_only(&memory.status).ok()?;
        let packet = journal_packet(number);
        connection.send(&packet, &[written.as_fd()]).ok()
    }
}
