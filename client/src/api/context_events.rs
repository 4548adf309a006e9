//! Events of all the work of a context.
//!
//! Owns how one event comes to mean all streams of a context. Called by the shells of `exports`, and by `green` for
//! green contexts. Must not know what the streams do.

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUevent};

use super::Outcome;
use crate::context::{Current, usable};
use crate::session::session;
use crate::stream::StreamTarget;
use crate::stream::event::wait_for_event;

/// Records an event behind all that a context's streams have been given until now.
pub(super) fn record(current: &Current, event: CUevent) -> Outcome {
    let session = session()?;
    let known = session.events.get(event)?;
    session.captures.refuse_in_captured(current.handle())?;
    let gathering = session.streams.all_work_stream(current)?;
    for (key, stream) in session.streams.of_context(current.handle()) {
        gathering.wait_for(key.index(), stream.posted())?;
    }
    session.events.record(known, &gathering)
}

/// Makes all that a context's streams are given from now on wait for an event, those too that are
/// made later.
pub(super) fn wait(current: &Current, event: CUevent) -> Outcome {
    let session = session()?;
    let known = session.events.get(event)?;
    if known.shared().is_some() {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    session.captures.refuse_in_captured(current.handle())?;
    // Before the streams are gone through: one that is made meanwhile finds it.
    if let Some(place) = known.place_to_query(false)? {
        current
            .context
            .add_fence(session, place.slot, place.sequence);
    }
    for (key, stream) in session.streams.of_context(current.handle()) {
        let target = StreamTarget {
            streams: session.streams,
            current: *current,
            slot: key.index(),
            stream,
        };
        wait_for_event(&target, known, event, false)?;
    }
    Ok(())
}

/// The context of a handle, ready for use.
fn context(ctx: CUcontext) -> Result<Current, CUresult> {
    let session = session()?;
    session.contexts.get(ctx.bits())?;
    usable(session.contexts, ctx.bits())
}

pub(crate) fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent) -> Outcome {
    record(&context(ctx)?, event)
}

pub(crate) fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent) -> Outcome {
    wait(&context(ctx)?, event)
}
