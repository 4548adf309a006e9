//! Streams that write values to memory, and that wait for values in memory.

use cuda_abi::CUresult;
use cuda_abi::operations::{ValueWait, Write};
use cuda_abi::types::{CUdevice_attribute, CUdeviceptr, CUstream, CUstreamBatchMemOpParams};

use super::Outcome;
use crate::params::List;
use crate::stream::{self, Target};

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
const MOST: u32 = 256;

/// One operation, checked.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Wait(ValueWait),
    Write {
        to: u64,
        value: u64,
        bytes: u32,
    },
    /// Nothing: what it asks for holds anyway.
    Nothing,
}

/// Refuses devices whose engine cannot look into memory for a stream.
fn check_device(target: &Target) -> Outcome {
    match target
        .current
        .device()?
        .attribute(CUdevice_attribute::CAN_USE_64_BIT_STREAM_MEM_OPS)
    {
        0 => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// Refuses addresses that are not aligned to the value, or in no allocation.
fn check_address(target: &Target, address: u64, bytes: u32) -> Outcome {
    let range = target.current.session.ranges.find(address);
    let there = range.is_some_and(|range| range.contains(address, u64::from(bytes)));
    match there && address.is_multiple_of(u64::from(bytes)) {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

fn wait(
    target: &Target,
    address: u64,
    value: u64,
    bytes: u32,
    flags: u32,
) -> Result<Operation, CUresult> {
    if flags & !WAIT_FLUSH > WAIT_NOR {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_address(target, address, bytes)?;
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

fn write(
    target: &Target,
    to: u64,
    value: u64,
    bytes: u32,
    flags: u32,
) -> Result<Operation, CUresult> {
    if flags & !WRITE_NO_BARRIER != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_address(target, to, bytes)?;
    Ok(Operation::Write { to, value, bytes })
}

/// Puts an operation into a stream.
fn enqueue(target: &Target, operation: &Operation) -> Outcome {
    match operation {
        Operation::Wait(wait) => target.enqueue(wait, &[]).map(drop),
        Operation::Write { to, value, bytes } => {
            let all = value.to_le_bytes();
            let data = &all[..*bytes as usize];
            target.enqueue(&Write { to: *to }, &[data]).map(drop)
        }
        Operation::Nothing => Ok(()),
    }
}

fn one(stream: CUstream, check: impl FnOnce(&Target) -> Result<Operation, CUresult>) -> Outcome {
    let target = stream::target(stream)?;
    check_device(&target)?;
    enqueue(&target, &check(&target)?)
}

macro_rules! memory_operations {
    ($($operation:ident $bytes:literal $type:ty: $old:ident $new:ident;)*) => {$(
        pub(crate) fn $old(stream: CUstream, addr: CUdeviceptr, value: $type, flags: u32) -> Outcome {
            one(stream, |target| $operation(target, addr, u64::from(value), $bytes, flags))
        }

        pub(crate) fn $new(stream: CUstream, addr: CUdeviceptr, value: $type, flags: u32) -> Outcome {
            $old(stream, addr, value, flags)
        }
    )*};
}

memory_operations! {
    wait 4 u32: cuStreamWaitValue32 cuStreamWaitValue32_v2;
    wait 8 u64: cuStreamWaitValue64 cuStreamWaitValue64_v2;
    write 4 u32: cuStreamWriteValue32 cuStreamWriteValue32_v2;
    write 8 u64: cuStreamWriteValue64 cuStreamWriteValue64_v2;
}

pub(crate) fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    param_array: List<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Outcome {
    let target = stream::target(stream)?;
    if flags != 0 || count > MOST {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_device(&target)?;
    // All are checked before the first is done.
    let operations: Vec<Operation> = param_array
        .get(count)?
        .iter()
        .map(|CUstreamBatchMemOpParams(words)| {
            // Kind; address; value; flags. A flush and a barrier have their flags beside the kind.
            let (kind, beside) = (words[0] as u32, (words[0] >> 32) as u32);
            let (address, value, flags) = (words[1], words[2], words[3] as u32);
            match kind {
                WAIT_32 => wait(&target, address, value & u64::from(u32::MAX), 4, flags),
                WAIT_64 => wait(&target, address, value, 8, flags),
                WRITE_32 => write(&target, address, value & u64::from(u32::MAX), 4, flags),
                WRITE_64 => write(&target, address, value, 8, flags),
                FLUSH => Err(CUresult::ERROR_NOT_SUPPORTED),
                BARRIER if beside <= 1 => Ok(Operation::Nothing),
                _ => Err(CUresult::ERROR_INVALID_VALUE),
            }
        })
        .collect::<Result<_, _>>()?;
    let mut operations = operations.iter();
    operations.try_for_each(|operation| enqueue(&target, operation))
}

pub(crate) fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    param_array: List<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Outcome {
    cuStreamBatchMemOp(stream, count, param_array, flags)
}
