//! Streams.
//!
//! Owns the flags and priorities of streams, waiting for them, callbacks and attributes. Called by the shells of
//! `exports`; `event` waits by its query. Must not know what is in a stream.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_EVENT_WAIT_EXTERNAL, CU_STREAM_NON_BLOCKING, CUcontext, CUdevice, CUevent, CUgreenCtx,
    CUhostFn, CUstream, CUstreamAttrID, CUstreamAttrValue, CUstreamCallback,
};

use super::Outcome;
use crate::context::current;
use crate::graph::node::{HostNode, Payload};
use crate::handle::{HandleKind, Key};
use crate::pointers::{CallbackData, In, Out};
use crate::session::session;
use crate::stream::event;
use crate::stream::host_function::{self, HostCall};
use crate::stream::{self, GREATEST_PRIORITY, LEAST_PRIORITY, StreamTarget};

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
    let key = session()?.streams.create(&current, flags, priority)?;
    stream.set(CUstream::from_bits(key.handle(HandleKind::Stream)))
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> Outcome {
    let session = session()?;
    let key = Key::of(stream.bits(), HandleKind::Stream).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    session.streams.destroy(key)
}

pub(crate) fn cuStreamDestroy_v2(stream: CUstream) -> Outcome {
    cuStreamDestroy(stream)
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    target.check_query()?;
    for (slot, sequence) in ends_of(&target)? {
        session()?.wait(slot, sequence)?;
    }
    let session = session()?;
    session.contexts.outcome(target.current.slot())?;
    session.pools.trim_after_synchronization(session);
    Ok(())
}

/// The streams, and the places in them, that must be come to for all that a stream stands for until now. The
/// legacy stream stands for the blocking streams of its context too, as NVIDIA's driver has it: work that it
/// was given now would wait for theirs.
fn ends_of(target: &StreamTarget) -> Result<impl Iterator<Item = (u32, u64)>, CUresult> {
    let session = session()?;
    session.check_open()?;
    let legacy = target.slot == target.current.slot();
    let context = target.current.handle();
    let others = legacy.then(|| {
        session
            .streams
            .of_context(context)
            .filter(|(_, stream)| stream.flags() & CU_STREAM_NON_BLOCKING == 0)
            .map(|(key, stream)| (key.index(), stream.posted()))
            .filter(|(slot, _)| *slot != target.slot)
    });
    let own = (target.slot, target.stream.posted());
    Ok(std::iter::once(own).chain(others.into_iter().flatten()))
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
        return session.contexts.outcome(context);
    }
    let queries = FRUITLESS.fetch_add(1, Ordering::Relaxed);
    // Another server that has taken this client over waits for it.
    if queries.is_multiple_of(LOOK_EVERY) || session.link().is_called() {
        session.check_alive()?;
    }
    Err(CUresult::ERROR_NOT_READY)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    target.check_query()?;
    for (slot, sequence) in ends_of(&target)? {
        query(slot, sequence, target.current.slot())?;
    }
    Ok(())
}

pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Outcome {
    let target = stream::target(stream)?;
    let known = session()?.events.get(event)?;
    if flags > CU_EVENT_WAIT_EXTERNAL {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    event::wait_for_event(&target, known, event, flags == CU_EVENT_WAIT_EXTERNAL)
}

pub(crate) fn cuLaunchHostFunc(
    stream: CUstream,
    callback: CUhostFn,
    user_data: CallbackData,
) -> Outcome {
    let target = stream::target(stream)?;
    let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if let Some(capture) = target.current_capture()? {
        let data = user_data;
        return capture.add(
            target.slot,
            Payload::Host(HostNode { function, data }).into(),
        );
    }
    let call = HostCall::Function {
        function,
        data: user_data,
    };
    host_function::enqueue(&target, call).map(drop)
}

pub(crate) fn cuStreamAddCallback(
    stream: CUstream,
    callback: CUstreamCallback,
    user_data: CallbackData,
    flags: u32,
) -> Outcome {
    let target = stream::target(stream)?;
    let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    target.refuse_captured()?;
    let call = HostCall::Callback {
        function,
        stream,
        data: user_data,
    };
    host_function::enqueue(&target, call).map(drop)
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
    let current = stream::target(stream)?.current;
    // Of a green one the context that it uses.
    ctx.set(CUcontext::from_bits(current.resource_context_handle()))?;
    green_ctx.set_if(match current.context.is_green() {
        true => CUgreenCtx::from_bits(current.green_handle()),
        false => CUgreenCtx::NULL,
    });
    Ok(())
}

pub(crate) fn cuStreamGetGreenCtx(stream: CUstream, ctx: Out<CUgreenCtx>) -> Outcome {
    let current = stream::target(stream)?.current;
    ctx.set(match current.context.is_green() {
        true => CUgreenCtx::from_bits(current.green_handle()),
        false => CUgreenCtx::NULL,
    })
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: Out<CUdevice>) -> Outcome {
    let target = stream::target(stream)?;
    device.set(
        session()?
            .contexts
            .get(target.stream.context())?
            .context
            .device(),
    )
}

pub(crate) fn cuStreamGetAttribute(
    stream: CUstream,
    attribute: CUstreamAttrID,
    value: Out<CUstreamAttrValue>,
) -> Outcome {
    let target = stream::target(stream)?;
    value.set(target.stream.attribute(attribute)?)
}

pub(crate) fn cuStreamSetAttribute(
    stream: CUstream,
    attribute: CUstreamAttrID,
    param: In<CUstreamAttrValue>,
) -> Outcome {
    let target = stream::target(stream)?;
    let device = target.current.device()?;
    let value = param.get()?;
    target.stream.set_attribute(device, attribute, &value)
}

pub(crate) fn cuStreamCopyAttributes(dst_stream: CUstream, src_stream: CUstream) -> Outcome {
    let (to, from) = (stream::target(dst_stream)?, stream::target(src_stream)?);
    if to.stream.context() != from.stream.context() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    to.stream.copy_attributes(from.stream);
    Ok(())
}
