//! Events that clients share, by the slots that this client has for them: its own and others', and the records of them
//! that are on their way through its streams.
//!
//! Called by the session's operations and when it releases what waited. Others' events are found by tokens (`exports`).
//! Must not know the order of work: the completion tracker says how far a stream is.

use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::operations::{At, EventMarkReply, SHARED_EVENT_SLOTS};

use crate::ipc::elsewhere::ForeignObject;
use crate::ipc::event_links::EventLinks;
use crate::ipc::exports::{Export, ExportedObject, Found, Token, UserExports};
use crate::ipc::shared_event::SharedEvent;
use crate::session::observer::ClientObserver;
use crate::stream_scheduler::completion::{CompletionTracker, shared_event};

/// Records of shared events that a client may have posted in no stream yet; more are refused, so that it cannot fill
/// the server.
const MAX_MARKS: usize = 1 << 14;

/// A client's shared events.
#[derive(Debug)]
pub struct SharedEvents {
    user_exports: UserExports,
    links: Arc<EventLinks>,
    slots: Vec<Option<OpenEvent>>,
    /// Records of shared events that have a number and are not in a stream yet.
    marks: Vec<EventMark>,
    /// Those that are, and where.
    in_streams: Vec<(At, EventMark)>,
}

#[derive(Debug)]
struct OpenEvent {
    event: Arc<SharedEvent>,
    export: Option<Export>,
    /// The client has destroyed it.
    closed: bool,
}

/// A record of a shared event. It is past when this is dropped, however that comes.
#[derive(Debug)]
pub struct EventMark {
    event: Arc<SharedEvent>,
    number: u64,
}

impl Drop for EventMark {
    fn drop(&mut self) {
        self.event.complete(self.number);
    }
}

impl SharedEvents {
    /// Of a client that shares none yet.
    #[must_use]
    pub fn new(user_exports: UserExports, links: Arc<EventLinks>) -> Self {
        Self {
            user_exports,
            links,
            slots: Vec::new(),
            marks: Vec::new(),
            in_streams: Vec::new(),
        }
    }

    fn open_event(&self, slot: u32) -> Result<&OpenEvent, CUresult> {
        let open = self.slots.get(slot as usize).and_then(Option::as_ref);
        open.filter(|open| !open.closed)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Makes an event that can be shared, and gives its slot.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when all are taken.
    pub fn create(&mut self, observer: &Arc<ClientObserver>) -> Result<u32, CUresult> {
        self.add(observer, Arc::new(SharedEvent::new(observer.session())))
    }

    /// Gives an event a slot.
    fn add(
        &mut self,
        observer: &Arc<ClientObserver>,
        event: Arc<SharedEvent>,
    ) -> Result<u32, CUresult> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = match free {
            Some(slot) => slot,
            None if self.slots.len() < SHARED_EVENT_SLOTS as usize => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return Err(CUresult::ERROR_OUT_OF_MEMORY),
        };
        observer.progress.reset(shared_event(slot as u32));
        event.watch(observer, slot as u32);
        self.slots[slot] = Some(OpenEvent {
            event,
            export: None,
            closed: false,
        });
        Ok(slot as u32)
    }

    /// The token by which others open an event of this client's.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, and what the registry says.
    pub fn export(&mut self, slot: u32) -> Result<Token, CUresult> {
        let open = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let open = open.filter(|open| !open.closed);
        let open = open.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if let Some(export) = &open.export {
            return Ok(export.token());
        }
        let object = ExportedObject::Event(open.event.clone());
        let export = self.user_exports.offer(object)?;
        let token = export.token();
        open.export = Some(export);
        Ok(token)
    }

    /// Opens another client's event.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when there is none of this token, CUDA_ERROR_OUT_OF_MEMORY when all slots are taken, and as
    /// [`SharedEvent::import`].
    pub fn import(
        &mut self,
        observer: &Arc<ClientObserver>,
        token: &Token,
    ) -> Result<u32, CUresult> {
        match self.user_exports.find(token) {
            Some(Found::Here(ExportedObject::Event(event))) => self.add(observer, event),
            Some(Found::Elsewhere(ForeignObject::Event(foreign))) => {
                let event = SharedEvent::import(foreign, &self.links)?;
                self.add(observer, event)
            }
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Takes an event from the client, whose work may still wait for it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE
    pub fn begin_close(&mut self, slot: u32) -> Result<(), CUresult> {
        self.open_event(slot)?;
        if let Some(Some(open)) = self.slots.get_mut(slot as usize) {
            open.closed = true;
        }
        Ok(())
    }

    /// Frees the slot of an event for which nothing of this client waits any more.
    pub fn close(&mut self, slot: u32, observer: &Arc<ClientObserver>) {
        if let Some(place) = self.slots.get_mut(slot as usize)
            && let Some(open) = place.take()
        {
            open.event.unwatch(observer, slot);
        }
    }

    /// Says how far an event is, after a new record if one is wanted.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, and CUDA_ERROR_OUT_OF_MEMORY for more records than are posted or under way.
    pub fn mark(&mut self, slot: u32, record: bool) -> Result<EventMarkReply, CUresult> {
        let event = self.open_event(slot)?.event.clone();
        if record {
            if self.marks.len() >= MAX_MARKS {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            let number = event.record()?;
            self.marks.push(EventMark {
                event: event.clone(),
                number,
            });
        }
        let (recorded, completed) = event.progress();
        Ok(EventMarkReply {
            recorded,
            completed,
        })
    }

    /// Takes a record out that is to go into a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE
    pub fn remove_mark(&mut self, slot: u32, number: u64) -> Result<EventMark, CUresult> {
        // The event may be destroyed by now; its records stay.
        let open = self.slots.get(slot as usize).and_then(Option::as_ref);
        let event = &open.ok_or(CUresult::ERROR_INVALID_HANDLE)?.event;
        let mut marks = self.marks.iter();
        let at = marks.position(|mark| mark.number == number && Arc::ptr_eq(&mark.event, event));
        Ok(self
            .marks
            .swap_remove(at.ok_or(CUresult::ERROR_INVALID_HANDLE)?))
    }

    /// Notes where in a stream a record is.
    pub fn put_in_stream(&mut self, at: At, mark: EventMark, progress: &CompletionTracker) {
        self.in_streams.push((at, mark));
        if progress.wake_when(at.stream, at.sequence) {
            progress.set_ready();
        }
    }

    /// Completes the records that their streams have passed.
    pub fn complete_passed(&mut self, progress: &CompletionTracker) {
        // What is past passes by being dropped.
        self.in_streams
            .retain(|(at, _)| !progress.wake_when(at.stream, at.sequence));
    }
}
