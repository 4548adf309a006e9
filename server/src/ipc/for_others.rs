//! What this server's clients share, for clients of the user's other servers: exported by the engine, and leased.
//!
//! The main thread has it done when the daemon asks, by a few threads, since it may wait. Must not know who asks.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{Engine, ExportedMemory, MemoryHandle};
use parking_lot::Mutex;
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

/// Threads that export, as long as there is something to be exported; and how much may wait for them.
const THREADS: usize = 16;
const MOST_WAITING: usize = 1 << 12;

/// Something that another server asks for.
#[derive(Debug)]
pub struct Wanted {
    /// The daemon's number of the question.
    pub question: u64,
    /// By which it was found.
    pub token: Token,
    /// What it is.
    pub object: ExportedObject,
}

/// Who exports.
#[derive(Debug)]
pub struct ExportsForOthers {
    engine: Arc<dyn Engine>,
    descriptors: Arc<Descriptors>,
    event_links: Arc<EventLinks>,
    work: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    waiting: VecDeque<Wanted>,
    threads: usize,
}

/// Why another server does not get something.
#[derive(Debug, thiserror::Error)]
enum NotExported {
    #[error("its owner has just freed it")]
    Freed,
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
            work: Mutex::default(),
        }
    }

    /// Has something exported, unless there is too much of that: then it is given back. Otherwise says whether a thread is to be started
    /// for it, that calls [`ExportsForOthers::export_all`].
    ///
    /// # Errors
    /// What is too much.
    pub fn begin(&self, wanted: Wanted) -> Result<bool, Wanted> {
        let mut work = self.work.lock();
        if work.waiting.len() >= MOST_WAITING {
            return Err(wanted);
        }
        work.waiting.push_back(wanted);
        let is_short = work.threads < THREADS;
        work.threads += usize::from(is_short);
        Ok(is_short)
    }

    /// Exports until nothing waits for that. May wait for memory to be cleared. `answer` is told what comes of each question; nothing,
    /// with a line in the log, of what cannot be had by another server.
    pub fn export_all(&self, log: &dyn Log, answer: impl Fn(u64, Option<Answer>)) {
        while let Some(wanted) = self.next() {
            let exported = self.export(wanted.token, &wanted.object);
            if let Err(why) = &exported {
                let text = format!(
                    "What a client of another server opens can be opened in this one only: {why}"
                );
                log.line(false, &text);
            }
            answer(wanted.question, exported.ok());
        }
    }

    /// The thread that was to be started is none. What waits does until another one is.
    pub fn has_no_thread(&self) {
        self.work.lock().threads -= 1;
    }

    fn next(&self) -> Option<Wanted> {
        let mut work = self.work.lock();
        let next = work.waiting.pop_front();
        if next.is_none() {
            work.threads -= 1;
        }
        next
    }

    fn export(&self, token: Token, object: &ExportedObject) -> Result<Answer, NotExported> {
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
