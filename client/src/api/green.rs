//! Green contexts: parts of a device's multiprocessors, within what this client has of it, and streams whose
//! kernels stay in them.
//!
//! A resource tells in its own bytes where it is, and a description of resources is its handle: neither is
//! kept here. A program that writes into them deceives itself alone; the server grants no more than the
//! client's part.
//!
//! Called by the shells of `exports`. It counts multiprocessors as the client has them; which of the device's they
//! are, it must not know.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType,
    CUdevice, CUdevice_attribute, CUevent, CUgreenCtx, CUstream,
};
use protocol::device_facts::{MULTIPROCESSOR_STEP, MULTIPROCESSORS_PARTED};

use super::{Outcome, context_events};
use crate::context::{Current, current_as_it_is, usable};
use crate::handle::{HandleKind, Key};
use crate::pointers::{In, List, ListOut, Out};
use crate::session::{Session, session};
use crate::stream::{GREATEST_PRIORITY, LEAST_PRIORITY};

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;
const NO_SUCH: CUresult = CUresult::ERROR_INVALID_RESOURCE_TYPE;
const DOES_NOT_FIT: CUresult = CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION;

/// CU_GREEN_CTX_DEFAULT_STREAM, which must be asked for.
const DEFAULT_STREAM: u32 = 1;

/// CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, and all flags of a split, of which one may be given.
const ONE_BY_ONE: u32 = 1;
const SPLIT_FLAGS: u32 = 7;

/// Multiprocessors that a group has at least where kernels need not be scheduled together.
const PAIR: u32 = 2;

/// More groups than a device has multiprocessors, and more resources than a description may join.
const MOST: u32 = 4096;

/// What the bytes of a resource of ours begin with.
const MARK: u32 = u32::from_le_bytes(*b"oSM1");

/// Some of the multiprocessors that the client has of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SmPart {
    device: CUdevice,
    /// Its first one's place among the client's.
    first: u32,
    count: u32,
    /// It came of a split, and is not split again.
    was_split: bool,
}

impl SmPart {
    /// What this client has of a device.
    fn whole(session: &Session, device: CUdevice) -> Result<Self, CUresult> {
        let count = session
            .device(device)?
            .attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
        Ok(Self {
            device,
            first: 0,
            count: count.max(0).cast_unsigned(),
            was_split: false,
        })
    }

    /// As programs have it. `step` is in which steps it can be split.
    fn resource(&self, step: u32) -> CUdevResource {
        let mut padding = [0; 92];
        let words = [
            MARK,
            self.device.cast_unsigned(),
            self.first,
            self.count,
            u32::from(self.was_split),
        ];
        for (bytes, word) in padding.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        // What came of a split tells of no steps, as with NVIDIA's driver.
        let step = if self.was_split { 0 } else { step };
        CUdevResource {
            r#type: match self.count {
                0 => CUdevResourceType::INVALID,
                _ => CUdevResourceType::SM,
            },
            _internal_padding: padding,
            smCount: self.count,
            minSmPartitionSize: step,
            smCoscheduledAlignment: step,
            _rest: [0; 36],
        }
    }

    /// The part that a resource is.
    fn of(session: &Session, resource: &CUdevResource) -> Result<Self, CUresult> {
        if resource.r#type != CUdevResourceType::SM {
            return Err(NO_SUCH);
        }
        let mut words = [0; 5];
        let bytes = resource._internal_padding.as_chunks().0;
        for (word, bytes) in words.iter_mut().zip(bytes) {
            *word = u32::from_le_bytes(*bytes);
        }
        let [mark, device, first, count, was_split] = words;
        let part = Self {
            device: device.cast_signed(),
            first,
            count,
            was_split: was_split != 0,
        };
        let is_ours = mark == MARK && count == resource.smCount && count > 0;
        let whole = Self::whole(session, part.device).map_err(|_| DOES_NOT_FIT)?;
        let fits = u64::from(first) + u64::from(count) <= u64::from(whole.count);
        (is_ours && fits).then_some(part).ok_or(DOES_NOT_FIT)
    }
}

/// In which steps a device's multiprocessors are split, and how many of them are in these.
fn steps(session: &Session, device: CUdevice) -> Result<(u32, u32), CUresult> {
    let facts = &session.device(device)?.facts;
    let told = |place| facts.attribute(place).unwrap_or(0).max(0).cast_unsigned();
    let parted = match told(MULTIPROCESSORS_PARTED) {
        0 => u32::MAX,
        parted => parted,
    };
    Ok((told(MULTIPROCESSOR_STEP).max(1), parted))
}

/// How many multiprocessors a group has that is to have so many at least, and how many such groups there are
/// among `all`, of which `parted` are in steps.
///
/// # Errors
/// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION for more than there are.
fn groups(all: u32, parted: u32, step: u32, least: u32) -> Result<(u32, u32), CUresult> {
    if least > all {
        return Err(DOES_NOT_FIT);
    }
    let size = least.max(1).next_multiple_of(step);
    match parted.min(all) / size {
        // All of it is one group.
        0 => Ok((all, 1)),
        count => Ok((size, count)),
    }
}

pub(crate) fn cuDeviceGetDevResource(
    device: CUdevice,
    result: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Outcome {
    let session = session()?;
    let whole = SmPart::whole(session, device)?;
    result.required()?;
    match kind {
        CUdevResourceType::SM => result.set(whole.resource(steps(session, device)?.0)),
        _ => Err(NO_SUCH),
    }
}

/// The resource of a context.
fn resource_of(current: &Current, result: &Out<CUdevResource>, kind: CUdevResourceType) -> Outcome {
    result.required()?;
    if kind != CUdevResourceType::SM {
        return Err(NO_SUCH);
    }
    let device = current.context.device();
    let whole = SmPart::whole(session()?, device)?;
    let own = current
        .context
        .multiprocessors()
        .load(std::sync::atomic::Ordering::Relaxed);
    let part = match own {
        0 => whole,
        count => SmPart {
            first: current.context.first_multiprocessor(),
            count: count.min(whole.count),
            was_split: current.context.is_green(),
            ..whole
        },
    };
    result.set(part.resource(steps(session()?, device)?.0))
}

pub(crate) fn cuCtxGetDevResource(
    ctx: CUcontext,
    result: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Outcome {
    let current = match ctx.is_null() {
        true => current_as_it_is()?,
        false => session()?.contexts.get(ctx.bits())?,
    };
    resource_of(&current, &result, kind)
}

pub(crate) fn cuDevSmResourceSplitByCount(
    result: ListOut<CUdevResource>,
    nb_groups: Out<u32>,
    input: In<CUdevResource>,
    remaining: Out<CUdevResource>,
    use_flags: u32,
    min_count: u32,
) -> Outcome {
    let session = session()?;
    nb_groups.required()?;
    let input = input.get()?;
    if use_flags & !SPLIT_FLAGS != 0 || use_flags.count_ones() > 1 {
        return Err(WRONG);
    }
    let part = SmPart::of(session, &input)?;
    if part.was_split {
        return Err(DOES_NOT_FIT);
    }
    let (step, parted) = steps(session, part.device)?;
    // Finer parts than the device's own can be described, but not kept apart.
    let step = match use_flags {
        ONE_BY_ONE => step.min(PAIR),
        _ => step,
    };
    let (size, most) = groups(part.count, parted, step, min_count)?;
    if result.is_null() {
        return nb_groups.set(most);
    }
    let count = nb_groups.get()?.min(most);
    let cut = |first, count| SmPart {
        first: part.first + first,
        count,
        was_split: true,
        ..part
    };
    let cut_off = (0..count).map(|group| cut(group * size, size).resource(0));
    result.set(count, cut_off)?;
    let taken = count * size;
    remaining.set_if(cut(taken, part.count - taken).resource(0));
    nb_groups.set(count)
}

pub(crate) fn cuDevResourceGenerateDesc(
    desc: Out<CUdevResourceDesc>,
    resources: List<CUdevResource>,
    nb_resources: u32,
) -> Outcome {
    let session = session()?;
    desc.required()?;
    if nb_resources == 0 || nb_resources > MOST {
        return Err(WRONG);
    }
    let resources = resources.get(nb_resources)?;
    let parts: Result<Vec<SmPart>, CUresult> = resources
        .iter()
        .map(|resource| SmPart::of(session, resource))
        .collect();
    let mut parts = parts?;
    parts.sort_unstable_by_key(|part| part.first);
    let first = *parts.first().ok_or(WRONG)?;
    let apart = parts
        .windows(2)
        .all(|pair| pair[0].first + pair[0].count <= pair[1].first);
    if !apart || parts.iter().any(|part| part.device != first.device) {
        return Err(DOES_NOT_FIT);
    }
    let count: u32 = parts.iter().map(|part| part.count).sum();
    desc.set(describe(first.device, first.first, count)?)
}

/// The description of a part: all of it in the handle.
fn describe(device: CUdevice, first: u32, count: u32) -> Result<CUdevResourceDesc, CUresult> {
    let small = |value: u32| u16::try_from(value).map_err(|_| DOES_NOT_FIT);
    let device = u8::try_from(device).map_err(|_| DOES_NOT_FIT)?;
    let low = u32::from(small(first)?) << 8 | u32::from(device);
    let key = Key::new(low, u32::from(small(count)?));
    Ok(CUdevResourceDesc::from_bits(
        key.handle(HandleKind::Resources),
    ))
}

/// Device, first multiprocessor and count of a description.
fn described(desc: CUdevResourceDesc) -> Option<(CUdevice, u32, u32)> {
    let key = Key::of(desc.bits(), HandleKind::Resources)?;
    let low = key.index();
    Some(((low & 0xff).cast_signed(), low >> 8, key.generation()))
}

pub(crate) fn cuGreenCtxCreate(
    ctx: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> Outcome {
    let session = session()?;
    session.device(device)?;
    ctx.required()?;
    let (of, first, count) = described(desc).ok_or(WRONG)?;
    if flags != DEFAULT_STREAM || of != device || count == 0 {
        return Err(WRONG);
    }
    let made = session.contexts.create_green(device, first, count)?;
    ctx.set(CUgreenCtx::from_bits(made.green_handle()))
}

pub(crate) fn cuGreenCtxDestroy(ctx: CUgreenCtx) -> Outcome {
    session()?.contexts.destroy_green(ctx.bits())
}

/// A green context, ready for use.
fn green(ctx: CUgreenCtx) -> Result<Current, CUresult> {
    let session = session()?;
    usable(
        session.contexts,
        session.contexts.green(ctx.bits())?.handle(),
    )
}

pub(crate) fn cuCtxFromGreenCtx(context: Out<CUcontext>, ctx: CUgreenCtx) -> Outcome {
    let current = session()?.contexts.green(ctx.bits())?;
    context.set(CUcontext::from_bits(current.handle()))
}

pub(crate) fn cuGreenCtxGetDevResource(
    ctx: CUgreenCtx,
    result: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Outcome {
    resource_of(&session()?.contexts.green(ctx.bits())?, &result, kind)
}

pub(crate) fn cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: Out<u64>) -> Outcome {
    green_ctx_id.set(session()?.contexts.green(green_ctx.bits())?.id())
}

pub(crate) fn cuGreenCtxRecordEvent(ctx: CUgreenCtx, event: CUevent) -> Outcome {
    context_events::record(&green(ctx)?, event)
}

pub(crate) fn cuGreenCtxWaitEvent(ctx: CUgreenCtx, event: CUevent) -> Outcome {
    context_events::wait(&green(ctx)?, event)
}

pub(crate) fn cuGreenCtxStreamCreate(
    stream: Out<CUstream>,
    green_ctx: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> Outcome {
    let current = green(green_ctx)?;
    stream.required()?;
    // Its work may run beside that of the default stream, and must be said to.
    if flags != CU_STREAM_NON_BLOCKING {
        return Err(WRONG);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let key = session()?.streams.create(&current, flags, priority)?;
    stream.set(CUstream::from_bits(key.handle(HandleKind::Stream)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_whole_steps() {
        // As NVIDIA's driver has it on an H200, but for what is in no group of 8.
        assert_eq!(groups(132, 120, 8, 0), Ok((8, 15)));
        assert_eq!(groups(132, 120, 8, 8), Ok((8, 15)));
        assert_eq!(groups(132, 120, 8, 9), Ok((16, 7)));
        assert_eq!(groups(132, 120, 8, 17), Ok((24, 5)));
        assert_eq!(groups(132, 120, 8, 66), Ok((72, 1)));
        assert_eq!(groups(132, 120, 8, 131), Ok((132, 1)));
        assert_eq!(groups(132, 120, 8, 132), Ok((132, 1)));
        assert_eq!(groups(132, 120, 8, 133), Err(DOES_NOT_FIT));
        assert_eq!(groups(4, u32::MAX, 1, 2), Ok((2, 2)));
        assert_eq!(groups(3, u32::MAX, 1, 2), Ok((2, 1)));
    }

    #[test]
    fn a_description_says_what_it_describes() {
        let desc = describe(3, 120, 12).unwrap();
        assert_eq!(described(desc), Some((3, 120, 12)));
        assert_eq!(described(CUdevResourceDesc::NULL), None);
        assert!(describe(0, 1 << 16, 1).is_err() && describe(0, 0, 1 << 16).is_err());
    }
}
