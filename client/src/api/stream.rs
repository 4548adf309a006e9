//! Streams.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUdevice, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUgreenCtx, CUhostFn, CUstream, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::cell::Cell;
use std::ffi::c_void;

use super::Outcome;
use crate::context::current;
use crate::event;
use crate::handle::{Key, Kind};
use crate::host::{self, Call};
use crate::params::Out;
use crate::session::session;
use crate::stream::{self, GREATEST_PRIORITY, LEAST_PRIORITY, Target};

pub(crate) fn cuStreamCreate(stream: Out<CUstream>, flags: u32) -> Outcome {
    cuStreamCreateWithPriority(stream, flags, LEAST_PRIORITY)
}

pub(crate) fn cuStreamCreateWithPriority(
    stream: Out<CUstream>,
    flags: u32,
    priority: i32,
) -> Outcome {
    let current = current()?;
    stream.required()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let key = current.session.streams.create(&current, flags, priority)?;
    stream.set(CUstream::from_bits(key.handle(Kind::Stream)))
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> Outcome {
    let session = session()?;
    let key = Key::of(stream.bits(), Kind::Stream).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    session.streams.destroy(session, key)
}

pub(crate) fn cuStreamDestroy_v2(stream: CUstream) -> Outcome {
    cuStreamDestroy(stream)
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    target.wait(end_of(&target)?)?;
    let session = target.current.session;
    session.pools.synchronized(session);
    Ok(())
}

/// The place that a stream must come to for all that was posted until now.
fn end_of(target: &Target) -> Result<u64, CUresult> {
    target.current.session.check_open()?;
    Ok(target.stream.posted())
}

/// Queries that found nothing done, of all threads: now and then one of them looks whether there
/// still is a server, or a loop of queries would never end.
static FRUITLESS: AtomicU32 = AtomicU32::new(0);

/// How many fruitless queries there are between two looks.
const LOOK_EVERY: u32 = 1024;

/// Says whether a place has been reached, as queries do.
pub(super) fn query(target_slot: u32, sequence: u64, context: u32) -> Outcome {
    let session = session()?;
    if session.reached(target_slot, sequence) {
        return session.outcome(context);
    }
    if FRUITLESS
        .fetch_add(1, Ordering::Relaxed)
        .is_multiple_of(LOOK_EVERY)
    {
        session.check_alive()?;
    }
    Err(CUresult::ERROR_NOT_READY)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    query(target.slot, end_of(&target)?, target.current.slot())
}

pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Outcome {
    let target = stream::target(stream)?;
    let event = target.current.session.events.get(event)?;
    if flags > 1 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    event::make_wait(&target, event)
}

pub(crate) fn cuLaunchHostFunc(
    stream: CUstream,
    callback: CUhostFn,
    user_data: *mut c_void,
) -> Outcome {
    let target = stream::target(stream)?;
    let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let call = Call::Function {
        function,
        data: user_data,
    };
    host::enqueue(&target, call).map(drop)
}

pub(crate) fn cuStreamAddCallback(
    stream: CUstream,
    callback: CUstreamCallback,
    user_data: *mut c_void,
    flags: u32,
) -> Outcome {
    let target = stream::target(stream)?;
    let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let call = Call::Callback {
        function,
        stream,
        data: user_data,
    };
    host::enqueue(&target, call).map(drop)
}

pub(crate) fn cuStreamGetPriority(stream: CUstream, priority: Out<i32>) -> Outcome {
    priority.set(stream::target(stream)?.stream.priority())
}

pub(crate) fn cuStreamGetFlags(stream: CUstream, flags: Out<u32>) -> Outcome {
    flags.set(stream::target(stream)?.stream.flags())
}

pub(crate) fn cuStreamGetId(stream: CUstream, stream_id: Out<u64>) -> Outcome {
    stream_id.set(stream::target(stream)?.stream.id())
}

pub(crate) fn cuStreamGetCtx(stream: CUstream, ctx: Out<CUcontext>) -> Outcome {
    ctx.set(CUcontext::from_bits(
        stream::target(stream)?.stream.context(),
    ))
}

pub(crate) fn cuStreamGetCtx_v2(
    stream: CUstream,
    ctx: Out<CUcontext>,
    green_ctx: Out<CUgreenCtx>,
) -> Outcome {
    cuStreamGetCtx(stream, ctx)?;
    green_ctx.set_if(CUgreenCtx::NULL);
    Ok(())
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: Out<CUdevice>) -> Outcome {
    let target = stream::target(stream)?;
    device.set(
        target
            .current
            .session
            .context(target.stream.context())?
            .context
            .device(),
    )
}

// Captures are not built yet: no stream is ever captured, and that is what the questions answer.

pub(crate) fn cuStreamIsCapturing(stream: CUstream, status: Out<CUstreamCaptureStatus>) -> Outcome {
    stream::target(stream)?;
    status.set(CUstreamCaptureStatus::NONE)
}

pub(crate) fn cuStreamGetCaptureInfo(
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    _id: Out<u64>,
) -> Outcome {
    cuStreamIsCapturing(stream, status)
}

pub(crate) fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    _id: Out<u64>,
    _graph: Out<CUgraph>,
    _dependencies: Out<*const CUgraphNode>,
    _num_dependencies: Out<usize>,
) -> Outcome {
    cuStreamIsCapturing(stream, status)
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    _id: Out<u64>,
    _graph: Out<CUgraph>,
    _dependencies: Out<*const CUgraphNode>,
    _edge_data: Out<*const CUgraphEdgeData>,
    _num_dependencies: Out<usize>,
) -> Outcome {
    cuStreamIsCapturing(stream, status)
}

thread_local! {
    /// Which calls this thread's captures forbid.
    static CAPTURE_MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) -> Outcome {
    session()?;
    let wanted = mode.get()?;
    if wanted > CUstreamCaptureMode::RELAXED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    mode.set(CAPTURE_MODE.replace(wanted))
}
