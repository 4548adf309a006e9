//! Streams that write values to memory, and that wait for values in memory.
//!
//! Owns the checks of such operations. Called by the shells of `exports`, and by `api::graph::batch` for nodes.
//! Must not know how an engine waits for a value.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice_attribute, CUdeviceptr, CUstream, CUstreamBatchMemOpParams};
use protocol::operations::ValueWait;

use super::Outcome;
use crate::context::Current;
use crate::graph::batch::{Batch, Operation};
use crate::graph::node::Payload;
use crate::pointers::List;
use crate::session::session;
use crate::stream;

/// CUstreamWaitValue_flags: a comparison, and whether remote writes are flushed.
const WAIT_NOR: u32 = 3;
const WAIT_FLUSH: u32 = 1 << 30;
/// CUstreamWriteValue_flags: without a barrier before it.
const WRITE_NO_BARRIER: u32 = 1;

/// CUstreamBatchMemOpType.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;

/// Operations of one list at most.
pub(super) const MOST: u32 = 255;

/// Refuses devices whose engine cannot look into memory for a stream.
pub(super) fn check_device(current: &Current) -> Outcome {
    match current
        .device()?
        .attribute(CUdevice_attribute::CAN_USE_64_BIT_STREAM_MEM_OPS)
    {
        0 => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// Refuses addresses that are not aligned to the value, or in no allocation.
fn check_address(address: u64, bytes: u32) -> Outcome {
    let range = session()?.ranges.find(address);
    let there = range.is_some_and(|range| range.contains(address, u64::from(bytes)));
    match there && address.is_multiple_of(u64::from(bytes)) {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

fn wait(address: u64, value: u64, bytes: u32, flags: u32) -> Result<Operation, CUresult> {
    if flags & !WAIT_FLUSH > WAIT_NOR {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_address(address, bytes)?;
    if flags & WAIT_FLUSH != 0 {
        // Only devices that others write to from afar can flush.
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    Ok(Operation::Wait(ValueWait {
        address,
        value,
        bytes,
        flags,
    }))
}

fn write(to: u64, value: u64, bytes: u32, flags: u32) -> Result<Operation, CUresult> {
    if flags & !WRITE_NO_BARRIER != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_address(to, bytes)?;
    Ok(Operation::Write { to, value, bytes })
}

/// The operation that a program describes, checked.
pub(super) fn checked(
    CUstreamBatchMemOpParams(words): &CUstreamBatchMemOpParams,
) -> Result<Operation, CUresult> {
    // Kind; address; value; flags. A flush and a barrier have their flags beside the kind.
    let (kind, beside) = (words[0] as u32, (words[0] >> 32) as u32);
    let (address, value, flags) = (words[1], words[2], words[3] as u32);
    let low = value & u64::from(u32::MAX);
    match kind {
        WAIT_32 => wait(address, low, 4, flags),
        WAIT_64 => wait(address, value, 8, flags),
        WRITE_32 => write(address, low, 4, flags),
        WRITE_64 => write(address, value, 8, flags),
        FLUSH => Err(CUresult::ERROR_NOT_SUPPORTED),
        BARRIER if beside <= 1 => Ok(Operation::Nothing),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Puts operations into a stream, after all of them have been checked; into a graph as one node.
fn post_batch(stream: CUstream, params: Vec<CUstreamBatchMemOpParams>, flags: u32) -> Outcome {
    let target = stream::target(stream)?;
    check_device(&target.current)?;
    let operations = params.iter().map(checked);
    let operations: Box<[Operation]> = operations.collect::<Result<_, _>>()?;
    if let Some(capture) = target.current_capture()? {
        let batch = Batch {
            context: target.stream.context(),
            flags,
            params: params.into(),
            operations,
        };
        return capture.add(target.slot, Payload::Batch(Arc::new(batch)).into());
    }
    operations.iter().try_for_each(|it| it.enqueue(&target))
}

macro_rules! memory_operations {
    ($($kind:ident $type:ty: $old:ident $new:ident;)*) => {$(
        pub(crate) fn $old(stream: CUstream, addr: CUdeviceptr, value: $type, flags: u32) -> Outcome {
            let words = [u64::from($kind), addr, u64::from(value), u64::from(flags), 0, 0];
            post_batch(stream, vec![CUstreamBatchMemOpParams(words)], 0)
        }

        pub(crate) fn $new(stream: CUstream, addr: CUdeviceptr, value: $type, flags: u32) -> Outcome {
            $old(stream, addr, value, flags)
        }
    )*};
}

memory_operations! {
    WAIT_32 u32: cuStreamWaitValue32 cuStreamWaitValue32_v2;
    WAIT_64 u64: cuStreamWaitValue64 cuStreamWaitValue64_v2;
    WRITE_32 u32: cuStreamWriteValue32 cuStreamWriteValue32_v2;
    WRITE_64 u64: cuStreamWriteValue64 cuStreamWriteValue64_v2;
}

pub(crate) fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    param_array: List<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Outcome {
    if flags != 0 || count > MOST {
        stream::target(stream)?;
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    post_batch(stream, param_array.get(count)?, flags)
}

pub(crate) fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    param_array: List<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Outcome {
    cuStreamBatchMemOp(stream, count, param_array, flags)
}
