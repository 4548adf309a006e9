//! What this server's clients share, for clients of the user's other servers: exported by the engine, and leased.
//!
//! Called for the main thread when the daemon asks, on a thread of its own, since it may wait. Must not know who asks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{Engine, ExportedMemory, MemoryHandle};
use protocol::control_messages::{SharedDevice, SharedObject};
use transport::socket::DESCRIPTORS_MAX;

use crate::ipc::descriptors::{Descriptors, Leased};
use crate::ipc::elsewhere::Answer;
use crate::ipc::event_links::EventLinks;
use crate::ipc::event_table::RECORDS;
use crate::ipc::exports::{ExportedObject, Token};
use crate::ipc::shared_event::ExportedEvent;
use crate::log::Log;

/// How long what is shared may take to be cleared.
const CLEARED_WITHIN: Duration = Duration::from_millis(1500);

/// Objects that are exported at a time.
const MOST_AT_ONCE: usize = 64;

/// Who exports.
#[derive(Debug)]
pub struct ExportsForOthers {
    engine: Arc<dyn Engine>,
    descriptors: Arc<Descriptors>,
    event_links: Arc<EventLinks>,
    under_way: AtomicUsize,
}

/// Why another server does not get something.
#[derive(Debug, thiserror::Error)]
enum NotExported {
    #[error("its owner has just freed it")]
    Freed,
    #[error("too many are asked for at a time")]
    TooMany,
    #[error("it lies in {0} pieces, which are too many")]
    Pieces(usize),
    #[error("{0}")]
    Code(#[from] CUresult),
}

impl ExportsForOthers {
    /// Exports nothing yet.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        descriptors: Arc<Descriptors>,
        event_links: Arc<EventLinks>,
    ) -> Self {
        Self {
            engine,
            descriptors,
            event_links,
            under_way: AtomicUsize::new(0),
        }
    }

    /// What another server gets of an object. May wait for its memory to be cleared. Nothing, and a line in the log, if it cannot be
    /// had there.
    #[must_use]
    pub fn export(&self, log: &dyn Log, token: Token, object: &ExportedObject) -> Option<Answer> {
        let before = self.under_way.fetch_add(1, Ordering::AcqRel);
        let exported = match before < MOST_AT_ONCE {
            true => self.try_export(token, object),
            false => Err(NotExported::TooMany),
        };
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        let say = |why: &NotExported| {
            log.line(
                false,
                &format!(
                    "What a client of another server opens can be opened in this one only: {why}"
                ),
            );
        };
        exported.inspect_err(say).ok()
    }

    fn try_export(&self, token: Token, object: &ExportedObject) -> Result<Answer, NotExported> {
        match object {
            ExportedObject::Block(block) => {
                let import = block.import().map_err(|_| NotExported::Freed)?;
                let ExportedMemory { pieces, offset } = self.export_memory(&block.held)?;
                let object = SharedObject::Block {
                    device: self.device(block.device)?,
                    bytes: block.range.bytes,
                    offset,
                    pieces: pieces.iter().map(|piece| piece.bytes).collect(),
                };
                let pieces = pieces.into_iter().map(|piece| piece.descriptor);
                let leased = Leased::Block(import);
                self.lease((block.session, token), leased, object, pieces)
            }
            ExportedObject::Physical(memory) => {
                let pieces = self.export_memory(&memory.held)?.pieces;
                let object = SharedObject::Physical {
                    device: self.device(memory.charge.device)?,
                    bytes: memory.charge.bytes,
                };
                let pieces = pieces.into_iter().map(|piece| piece.descriptor);
                let leased = Leased::Physical(memory.clone());
                self.lease((memory.charge.session(), token), leased, object, pieces)
            }
            ExportedObject::Event(event) => {
                let ExportedEvent {
                    side,
                    descriptors,
                    part,
                } = event.export(&self.event_links)?;
                let object = SharedObject::Event {
                    side,
                    records: RECORDS,
                };
                let leased = Leased::Event(part);
                self.lease((event.session(), token), leased, object, descriptors)
            }
        }
    }

    fn export_memory(&self, memory: &MemoryHandle) -> Result<ExportedMemory, NotExported> {
        let exported = self.engine.export_memory(memory, CLEARED_WITHIN)?;
        let count = exported.pieces.len();
        // And the lease.
        match count < DESCRIPTORS_MAX {
            true => Ok(exported),
            false => Err(NotExported::Pieces(count)),
        }
    }

    fn device(&self, number: u32) -> Result<SharedDevice, CUresult> {
        let facts = self.engine.devices().get(number as usize);
        let uuid = facts.ok_or(CUresult::ERROR_INVALID_DEVICE)?.uuid;
        Ok(SharedDevice { number, uuid })
    }

    fn lease(
        &self,
        (session, token): (u64, Token),
        leased: Leased,
        object: SharedObject,
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Answer, NotExported> {
        let lease = self.descriptors.lease(session, token, leased)?;
        Ok((object, std::iter::once(lease).chain(descriptors).collect()))
    }
}
