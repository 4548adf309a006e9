//! Events, and the profiler's switches.
//!
//! Owns the flags of events and what the functions refuse. Called by the shells of `exports`. Must not know how far
//! a stream has come: `stream::event` and the session do.

use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
    CU_EVENT_RECORD_EXTERNAL, CUevent, CUoutput_mode, CUstream,
};
use protocol::operations::EventShare;

use super::Outcome;
use super::stream::query;
use crate::context::resource_context;
use crate::graph::node::Payload;
use crate::handle::{HandleKind, Key};
use crate::pointers::{Out, Text};
use crate::session::session;
use crate::stream;
use crate::stream::event::Event;

/// Between two looks at an event that other processes share.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

pub(crate) fn cuEventCreate(event: Out<CUevent>, flags: u32) -> Outcome {
    let current = resource_context()?;
    event.required()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    // An event that keeps time cannot be shared between processes.
    let shared = flags & CU_EVENT_INTERPROCESS != 0;
    if flags & !known != 0 || (shared && flags & CU_EVENT_DISABLE_TIMING == 0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let slot = match shared {
        true => Some(session()?.call(&EventShare { reserved: 0 })?.fields.event),
        false => None,
    };
    let key = session()?.events.create(&current, flags, slot)?;
    event.set(CUevent::from_bits(key.handle(HandleKind::Event)))
}

pub(crate) fn cuEventDestroy(event: CUevent) -> Outcome {
    let session = session()?;
    let key = Key::of(event.bits(), HandleKind::Event).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    session.events.destroy(key)
}

pub(crate) fn cuEventDestroy_v2(event: CUevent) -> Outcome {
    cuEventDestroy(event)
}

pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Outcome {
    cuEventRecordWithFlags(event, stream, 0)
}

pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> Outcome {
    let target = stream::target(stream)?;
    let events = &session()?.events;
    let known = events.get(event)?;
    match flags {
        0 => events.record(known, &target),
        CU_EVENT_RECORD_EXTERNAL => match target.current_capture()? {
            Some(capture) => capture.add(target.slot, Payload::Record(event.bits()).into()),
            None => Err(CUresult::ERROR_ILLEGAL_STATE),
        },
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuEventQuery(event: CUevent) -> Outcome {
    let session = session()?;
    let event = session.events.get(event)?;
    if let Some(slot) = event.shared() {
        let standing = Event::standing(session, slot, false)?;
        return match standing.completed >= standing.recorded {
            true => Ok(()),
            false => Err(CUresult::ERROR_NOT_READY),
        };
    }
    let place = event.place_to_query(true)?;
    stream::may_be_unsafe()?;
    match place {
        Some(place) => {
            session.check_open()?;
            query(place.slot, place.sequence, place.context)
        }
        None => Ok(()), // Never recorded: nothing is left to come.
    }
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Outcome {
    let session = session()?;
    let event = session.events.get(event)?;
    if let Some(slot) = event.shared() {
        // As it stands now: what is recorded meanwhile is not waited for.
        let until = Event::standing(session, slot, false)?.recorded;
        while Event::standing(session, slot, false)?.completed < until {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        return Ok(());
    }
    let place = event.place_to_query(true)?;
    stream::may_be_unsafe()?;
    match place {
        Some(place) => {
            session.wait(place.slot, place.sequence)?;
            session.pools.trim_after_synchronization(session);
            session.contexts.outcome(place.context)
        }
        None => Ok(()),
    }
}

pub(crate) fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> Outcome {
    let session = session()?;
    milliseconds.required()?;
    let events = &session.events;
    let time = events.elapsed(session, events.get(start)?, events.get(end)?)?;
    milliseconds.set(time)
}

pub(crate) fn cuEventElapsedTime_v2(
    milliseconds: Out<f32>,
    start: CUevent,
    end: CUevent,
) -> Outcome {
    cuEventElapsedTime(milliseconds, start, end)
}

pub(crate) fn cuProfilerStart() -> Outcome {
    // No profiler listens.
    session().map(drop)
}

pub(crate) fn cuProfilerStop() -> Outcome {
    session().map(drop)
}

pub(crate) fn cuProfilerInitialize(
    _config_file: Text,
    _output_file: Text,
    _output_mode: CUoutput_mode,
) -> Outcome {
    session()?;
    // Withdrawn with CUDA 12: NVIDIA's driver has nothing else to say either.
    Err(CUresult::ERROR_NOT_SUPPORTED)
}
