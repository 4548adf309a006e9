//! Events: places in streams. They live in the client; the server only notes times.
//!
//! Owns the table of events and the place that each was last recorded at. `api::event` calls it.
//! It knows nothing of what stands at a place.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_EVENT_DISABLE_TIMING, CUevent};
use protocol::operations::{
    EVENT_SLOTS, EventAwait, EventForget, EventMark, EventMarkReply, EventPass, EventRecord,
};

use super::StreamTarget;
use super::capture::{CapturedEvent, WaitFor};
use crate::context::Current;
use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::session::connection::Connection;

/// One event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    flags: AtomicU32,
    /// The handle of its context.
    context: AtomicU64,
    /// The slot where its time is noted, and that slot's table key, if it keeps time.
    timer: Mutex<Option<Key>>,
    recorded: Mutex<Recorded>,
    /// The slot that it has for the server, if other processes may share it.
    shared: Mutex<Option<u32>>,
}

/// Where an event was last recorded.
#[derive(Clone, Debug, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    At(StreamPlace),
    /// In a capture.
    Captured(Arc<dyn CapturedEvent>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamPlace {
    pub slot: u32,
    pub sequence: u64,
    /// The slot of the stream's context.
    pub context: u32,
}

/// A slot for times; after its event is gone, the last record that may still write it.
#[derive(Debug, Default)]
struct Timer {
    last: Mutex<StreamPlace>,
}

/// All events of the process.
#[derive(Debug)]
pub(crate) struct Events {
    connection: &'static Connection,
    table: Slots<Event>,
    timers: Slots<Timer>,
}

impl Event {
    /// Whether it keeps time.
    pub(crate) fn has_timing(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CU_EVENT_DISABLE_TIMING == 0
    }

    /// Where it was last recorded.
    pub(crate) fn recorded(&self) -> Recorded {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a stream where it was last recorded.
    pub(crate) fn place(&self) -> Option<StreamPlace> {
        match *self.lock() {
            Recorded::At(place) => Some(place),
            Recorded::Never | Recorded::Captured(_) => None,
        }
    }

    /// The same, for who asks the event or waits for it. `breaks` is whether that breaks the capture
    /// in which it was recorded.
    ///
    /// # Errors
    /// CUDA_ERROR_CAPTURED_EVENT if it was recorded in a capture, CUDA_ERROR_INVALID_VALUE if that is
    /// over.
    pub(crate) fn place_to_query(&self, breaks: bool) -> Result<Option<StreamPlace>, CUresult> {
        match self.recorded() {
            Recorded::Never => Ok(None),
            Recorded::At(place) => Ok(Some(place)),
            Recorded::Captured(mark) => Err(mark.asked(breaks)),
        }
    }

    /// What is put into a stream to record it.
    pub(crate) fn record_request(&self) -> EventRecord {
        let timer = self.timer();
        EventRecord {
            event: timer.map_or(0, |timer| timer.index()),
            timing: u32::from(timer.is_some()),
        }
    }

    /// The slot that it has for the server, if other processes may share it.
    pub(crate) fn shared(&self) -> Option<u32> {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How an event that is shared stands: the number of its last record, and how far it is.
    pub(crate) fn standing(
        connection: &Connection,
        slot: u32,
        record: bool,
    ) -> Result<EventMarkReply, CUresult> {
        let mark = EventMark {
            event: slot,
            record: u32::from(record),
        };
        Ok(connection.call(&mark)?.fields)
    }

    /// Whether an event that is shared was ever recorded.
    fn is_recorded(connection: &Connection, slot: u32) -> Result<bool, CUresult> {
        Ok(Self::standing(connection, slot, false)?.recorded > 0)
    }

    fn timer(&self) -> Option<Key> {
        *self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    pub(crate) fn new(connection: &'static Connection) -> Self {
        Self {
            connection,
            table: Slots::new(0, u32::MAX),
            timers: Slots::new(0, EVENT_SLOTS),
        }
    }

    /// Makes an event in the current context.
    pub(crate) fn create(
        &self,
        current: &Current,
        flags: u32,
        shared: Option<u32>,
    ) -> Result<Key, CUresult> {
        let connection = current.connection();
        let timer = if flags & CU_EVENT_DISABLE_TIMING == 0 {
            let free = |_, timer: &Timer| {
                let last = *timer.last.lock().unwrap_or_else(PoisonError::into_inner);
                connection.reached(last.slot, last.sequence)
            };
            let timer = self.timers.insert(free, |_, _| {});
            Some(timer.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?)
        } else {
            None
        };
        let event = self.table.insert(
            |_, _| true,
            |_, event| {
                event.flags.store(flags, Ordering::Relaxed);
                event.context.store(current.handle(), Ordering::Relaxed);
                *event.timer.lock().unwrap_or_else(PoisonError::into_inner) = timer;
                *event.lock() = Recorded::Never;
                *event.shared.lock().unwrap_or_else(PoisonError::into_inner) = shared;
            },
        );
        if event.is_none() {
            self.drop_timer(timer);
        }
        event.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Ends an event.
    pub(crate) fn destroy(&self, key: Key) -> Result<(), CUresult> {
        let event = self
            .table
            .remove(key)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.drop_timer(event.timer());
        let shared = event.shared();
        self.table.release(key.index());
        match shared {
            Some(event) => self.connection.post(&EventForget { event }),
            None => Ok(()),
        }
    }

    fn drop_timer(&self, timer: Option<Key>) {
        if let Some(timer) = timer
            && self.timers.remove(timer).is_some()
        {
            self.timers.release(timer.index());
        }
    }

    /// Ends all events of a context.
    pub(crate) fn forget(&self, context: u64) {
        let keys: Vec<Key> = self
            .table
            .live()
            .filter(|(_, event)| event.context.load(Ordering::Relaxed) == context)
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            // Somebody else may have ended it meanwhile.
            let _ = self.destroy(key);
        }
    }

    /// The event of a handle.
    pub(crate) fn get(&self, handle: CUevent) -> Result<&Event, CUresult> {
        Key::of(handle.bits(), HandleKind::Event)
            .and_then(|key| self.table.get(key))
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Records an event at the end of a stream.
    pub(crate) fn record(&self, event: &Event, target: &StreamTarget) -> Result<(), CUresult> {
        if event.context.load(Ordering::Relaxed) != target.current.resource_context_handle() {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if let Some(capture) = target.current_capture()? {
            *event.lock() = Recorded::Captured(capture.mark(target.slot)?);
            return Ok(());
        }
        if let Some(slot) = event.shared() {
            return record_shared(slot, target);
        }
        // The event is held over the sending, so that of two records the later one is what it keeps;
        // and taken behind the stream, as a graph's launch takes both.
        let mut stream = target.guard();
        let mut recorded = event.lock();
        let sequence = stream.post(&event.record_request(), &[])?;
        let place = StreamPlace {
            slot: target.slot,
            sequence,
            context: target.current.slot(),
        };
        *recorded = Recorded::At(place);
        self.note_timer(event, place);
        Ok(())
    }

    /// Notes that an event was recorded by something that held the stream's guard.
    pub(crate) fn recorded_at(&self, event: &Event, place: StreamPlace) {
        *event.lock() = Recorded::At(place);
        self.note_timer(event, place);
    }

    fn note_timer(&self, event: &Event, place: StreamPlace) {
        if let Some(timer) = event.timer().and_then(|timer| self.timers.get(timer)) {
            *timer.last.lock().unwrap_or_else(PoisonError::into_inner) = place;
        }
    }

    /// The time from one event to another, in milliseconds.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when one keeps no time or was not recorded, CUDA_ERROR_NOT_READY
    /// when one is still to come.
    pub(crate) fn elapsed(
        &self,
        connection: &Connection,
        start: &Event,
        end: &Event,
    ) -> Result<f32, CUresult> {
        let time = |event: &Event| {
            let place = event.place_to_query(false)?.filter(|_| event.has_timing());
            let timer = event.timer().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
            Ok((place.ok_or(CUresult::ERROR_INVALID_HANDLE)?, timer))
        };
        let (start, end) = (time(start)?, time(end)?);
        for (place, _) in [&start, &end] {
            connection.check_fault(place.context)?;
            if !connection.reached(place.slot, place.sequence) {
                return Err(CUresult::ERROR_NOT_READY);
            }
        }
        let of = |timer: Key| connection.link().event_time(timer.index());
        let nanoseconds = of(end.1).wrapping_sub(of(start.1)) as i64;
        Ok((nanoseconds as f64 / 1e6) as f32)
    }
}

/// Records an event that other processes share. Whoever hears of it after this call finds it.
fn record_shared(slot: u32, target: &StreamTarget) -> Result<(), CUresult> {
    let number = Event::standing(target.current.connection(), slot, true)?.recorded;
    let pass = EventPass {
        event: slot,
        number,
    };
    target.enqueue(&pass, &[]).map(drop)
}

/// Makes a stream wait for an event as it stands now. `external` is CU_EVENT_WAIT_EXTERNAL.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE for `external` where nothing is captured, and those of captures.
pub(crate) fn wait_for_event(
    target: &StreamTarget,
    event: &Event,
    name: CUevent,
    external: bool,
) -> Result<(), CUresult> {
    if let Some(capture) = target.current_capture()? {
        let what = match event.recorded() {
            _ if external => WaitFor::External(name),
            // The records of one that others share are the server's to tell.
            Recorded::Never => match event.shared() {
                Some(slot) if Event::is_recorded(target.current.connection(), slot)? => {
                    WaitFor::Outside
                }
                _ => WaitFor::Nothing,
            },
            Recorded::At(_) => WaitFor::Outside,
            Recorded::Captured(mark) => WaitFor::CapturedEvent(mark),
        };
        return capture.wait(target.slot, what);
    }
    if external {
        return Err(CUresult::ERROR_ILLEGAL_STATE);
    }
    if let Some(slot) = event.shared() {
        let EventMarkReply {
            recorded,
            completed,
        } = Event::standing(target.current.connection(), slot, false)?;
        if completed >= recorded {
            return Ok(());
        }
        let wait = EventAwait {
            event: slot,
            number: recorded,
        };
        return target.enqueue(&wait, &[]).map(drop);
    }
    let place = match event.recorded() {
        Recorded::Never => return Ok(()), // There is nothing to wait for.
        Recorded::At(place) => place,
        Recorded::Captured(mark) => return mark.take_in(target.slot),
    };
    target.wait_for(place.slot, place.sequence)
}
