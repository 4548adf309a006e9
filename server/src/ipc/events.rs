//! Events that clients share, by the numbers that this client has for them: its own and others', and the records of them
//! that are on their way through its streams.
//!
//! Programs open others' events and never destroy them: PyTorch does with each tensor that it receives. So where a client has few slots left, such
//! events whose makers have destroyed them are closed for it, and what comes in their slots has other numbers.
//!
//! Called by the session's operations and when it releases what waited. Others' events are found by tokens (`exports`).
//! Must not know the order of work: the completion tracker says how far a stream is.

use std::sync::Arc;

use cuda_abi::CUresult;
use engine::Bound;
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

/// Slots beyond which forgotten events are closed.
const MANY: usize = SHARED_EVENT_SLOTS as usize / 4 * 3;

/// A client's shared events.
#[derive(Debug)]
pub struct SharedEvents {
    user_exports: UserExports,
    links: Arc<EventLinks>,
    /// What may be held of this server's memory for the client.
    held: Arc<Bound>,
    slots: Vec<EventSlot>,
    /// Records of shared events that have a number and are not in a stream yet.
    marks: Vec<EventMark>,
    /// Those that are, and where.
    in_streams: Vec<(At, EventMark)>,
}

#[derive(Debug, Default)]
struct EventSlot {
    open: Option<OpenEvent>,
    /// How many events that the client had forgotten it was taken from.
    taken: u32,
}

#[derive(Debug)]
struct OpenEvent {
    event: Arc<SharedEvent>,
    /// The client has made it.
    is_own: bool,
    export: Option<Export>,
    /// The client has destroyed it.
    closed: bool,
    /// It is closed though the client has not destroyed it.
    is_forgotten: bool,
}

impl Drop for OpenEvent {
    fn drop(&mut self) {
        if self.is_own {
            self.event.destroy();
        }
    }
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
    pub fn new(user_exports: UserExports, links: Arc<EventLinks>, held: Arc<Bound>) -> Self {
        Self {
            user_exports,
            links,
            held,
            slots: Vec::new(),
            marks: Vec::new(),
            in_streams: Vec::new(),
        }
    }

    /// The slot of an event, unless it was taken from that one.
    fn slot(&self, event: u32) -> Option<&EventSlot> {
        let slot = self.slots.get((event % SHARED_EVENT_SLOTS) as usize)?;
        (slot.taken == event / SHARED_EVENT_SLOTS).then_some(slot)
    }

    fn slot_mut(&mut self, event: u32) -> Option<&mut EventSlot> {
        let at = (event % SHARED_EVENT_SLOTS) as usize;
        let slot = self.slots.get_mut(at)?;
        (slot.taken == event / SHARED_EVENT_SLOTS).then_some(slot)
    }

    /// The slot in which it stands how far an event has come; none that there is, if it was taken from that one: its records are past.
    #[must_use]
    pub fn counted_at(&self, event: u32) -> u32 {
        match self.is_taken(event) {
            true => SHARED_EVENT_SLOTS,
            false => event % SHARED_EVENT_SLOTS,
        }
    }

    /// Whether the slot of an event was taken from it, as the client had forgotten it, or is about to be.
    #[must_use]
    pub fn is_forgotten(&self, event: u32) -> bool {
        let open = self.slot(event).and_then(|slot| slot.open.as_ref());
        self.is_taken(event) || open.is_some_and(|open| open.is_forgotten)
    }

    fn is_taken(&self, event: u32) -> bool {
        let slot = self.slots.get((event % SHARED_EVENT_SLOTS) as usize);
        slot.is_some_and(|slot| event / SHARED_EVENT_SLOTS < slot.taken)
    }

    fn open_event(&self, event: u32) -> Result<&OpenEvent, CUresult> {
        let open = self.slot(event).and_then(|slot| slot.open.as_ref());
        open.filter(|open| !open.closed)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Makes an event that can be shared, and gives its number.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when all are taken.
    pub fn create(&mut self, observer: &Arc<ClientObserver>) -> Result<u32, CUresult> {
        let event = SharedEvent::new(observer.session(), self.held.clone());
        self.add(observer, Arc::new(event), true)
    }

    /// Gives an event a slot, and a number.
    fn add(
        &mut self,
        observer: &Arc<ClientObserver>,
        event: Arc<SharedEvent>,
        is_own: bool,
    ) -> Result<u32, CUresult> {
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        let free = self.slots.iter().position(|slot| slot.open.is_none());
        let at = match free {
            Some(at) => at,
            None if self.slots.len() < SHARED_EVENT_SLOTS as usize => {
                self.slots.push(EventSlot::default());
                self.slots.len() - 1
            }
            None => return Err(full),
        };
        let slot = self.slots.get_mut(at).ok_or(full)?;
        let at = at as u32;
        observer.progress.reset(shared_event(at));
        event.watch(observer, at);
        slot.open = Some(OpenEvent {
            event,
            is_own,
            export: None,
            closed: false,
            is_forgotten: false,
        });
        Ok(at + SHARED_EVENT_SLOTS * slot.taken)
    }

    /// Takes an event from the client that it has forgotten, if it has many: another client's that is over. [`SharedEvents::close`] frees its slot
    /// as that of one that it has destroyed.
    pub fn begin_close_forgotten(&mut self) -> Option<u32> {
        let open = self.slots.iter().filter(|slot| slot.open.is_some());
        if open.count() <= MANY {
            return None;
        }
        let most = u32::MAX / SHARED_EVENT_SLOTS;
        (0..).zip(&mut self.slots).find_map(|(at, slot)| {
            let open = slot.open.as_mut();
            let open = open.filter(|open| !open.is_own && !open.closed && open.event.is_over())?;
            if slot.taken >= most {
                return None;
            }
            (open.closed, open.is_forgotten) = (true, true);
            Some(at + SHARED_EVENT_SLOTS * slot.taken)
        })
    }

    /// The token by which others open an event of this client's.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, and what the registry says.
    pub fn export(&mut self, event: u32) -> Result<Token, CUresult> {
        let open = self.open_event(event)?;
        if let Some(export) = &open.export {
            return Ok(export.token());
        }
        let object = ExportedObject::Event(open.event.clone());
        let export = self.user_exports.offer(object)?;
        let token = export.token();
        let slot = self.slot_mut(event);
        let open = slot.and_then(|slot| slot.open.as_mut());
        open.ok_or(CUresult::ERROR_INVALID_HANDLE)?.export = Some(export);
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
        match self.user_exports.find(token)? {
            Some(Found::Here(ExportedObject::Event(event))) => self.add(observer, event, false),
            Some(Found::Elsewhere(ForeignObject::Event(foreign))) => {
                let event = SharedEvent::import(foreign, &self.links)?;
                self.add(observer, event, false)
            }
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Takes an event from the client, whose work may still wait for it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE
    pub fn begin_close(&mut self, event: u32) -> Result<(), CUresult> {
        self.open_event(event)?;
        let slot = self.slot_mut(event);
        if let Some(open) = slot.and_then(|slot| slot.open.as_mut()) {
            open.closed = true;
        }
        Ok(())
    }

    /// Frees the slot of an event for which nothing of this client waits any more.
    pub fn close(&mut self, event: u32, observer: &Arc<ClientObserver>) {
        if let Some(slot) = self.slot_mut(event)
            && let Some(open) = slot.open.take()
        {
            slot.taken += u32::from(open.is_forgotten);
            open.event.unwatch(observer, event % SHARED_EVENT_SLOTS);
        }
    }

    /// Says how far an event is, after a new record if one is wanted.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, and CUDA_ERROR_OUT_OF_MEMORY for more records than are posted or under way.
    pub fn mark(&mut self, event: u32, record: bool) -> Result<EventMarkReply, CUresult> {
        let event = self.open_event(event)?.event.clone();
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
    pub fn remove_mark(&mut self, event: u32, number: u64) -> Result<EventMark, CUresult> {
        // The event may be destroyed by now; its records stay.
        let open = self.slot(event).and_then(|slot| slot.open.as_ref());
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
