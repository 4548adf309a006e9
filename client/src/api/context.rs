//! Contexts, primary and other, and each thread's stack of them.
//!
//! Owns the checks of flags and the limits and settings that CUDA shows. Called by the shells of `exports`. Must
//! not know what goes with a context that ends: `session::context_lifecycle` does.

use std::sync::atomic::Ordering;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_CTX_FLAGS_MASK, CU_CTX_MAP_HOST, CU_CTX_SCHED_MASK, CUcontext, CUctxCreateParams, CUdevice,
    CUdevice_attribute, CUexecAffinityParam, CUexecAffinityType, CUfunc_cache, CUlimit,
    CUsharedconfig,
};

use super::{Outcome, given};
use crate::context::{self, API_VERSION, Current, current, current_as_it_is};
use crate::pointers::{In, List, Out};
use crate::session::session;
use crate::stream::host_function;
use crate::stream::{GREATEST_PRIORITY, LEAST_PRIORITY};

/// Refuses flags that CUDA does not have.
fn check_flags(flags: u32) -> Outcome {
    // Bits of scheduling: none, spin, yield or sleep.
    let scheduling = flags & CU_CTX_SCHED_MASK;
    if flags & !CU_CTX_FLAGS_MASK != 0 || !matches!(scheduling, 0 | 1 | 2 | 4) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxRetain(ctx: Out<CUcontext>, device: CUdevice) -> Outcome {
    let primary = session()?.contexts.primary(device)?;
    ctx.required()?;
    primary.retain()?;
    ctx.set(CUcontext::from_bits(primary.handle()))
}

pub(crate) fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Outcome {
    session()?.contexts.primary(device)?.release()
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Outcome {
    cuDevicePrimaryCtxRelease(device)
}

pub(crate) fn cuDevicePrimaryCtxReset(device: CUdevice) -> Outcome {
    session()?.contexts.primary(device)?.reset()
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Outcome {
    cuDevicePrimaryCtxReset(device)
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: Out<u32>,
    active: Out<i32>,
) -> Outcome {
    let primary = session()?.contexts.primary(device)?;
    flags.required()?;
    active.required()?;
    flags.set(primary.context.flags().load(Ordering::Relaxed))?;
    active.set(i32::from(primary.context.is_made()))
}

pub(crate) fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: u32) -> Outcome {
    let primary = session()?.contexts.primary(device)?;
    check_flags(flags)?;
    primary.context.flags().store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) -> Outcome {
    cuDevicePrimaryCtxSetFlags(device, flags)
}

pub(crate) fn cuCtxCreate(ctx: Out<CUcontext>, flags: u32, device: CUdevice) -> Outcome {
    create(ctx, 0, flags, device)
}

fn create(ctx: Out<CUcontext>, multiprocessors: u32, flags: u32, device: CUdevice) -> Outcome {
    let session = session()?;
    ctx.required()?;
    check_flags(flags)?;
    let made = session.contexts.create(device, flags, multiprocessors)?;
    let handle = made.handle();
    context::push(handle)?;
    ctx.set(CUcontext::from_bits(handle))
}

pub(crate) fn cuCtxCreate_v2(ctx: Out<CUcontext>, flags: u32, device: CUdevice) -> Outcome {
    cuCtxCreate(ctx, flags, device)
}

pub(crate) fn cuCtxCreate_v3(
    ctx: Out<CUcontext>,
    params: List<CUexecAffinityParam>,
    num_params: i32,
    flags: u32,
    device: CUdevice,
) -> Outcome {
    create(ctx, affinity(&params, num_params)?, flags, device)
}

/// The multiprocessors that a context asks for, or 0.
fn affinity(params: &List<CUexecAffinityParam>, count: i32) -> Result<u32, CUresult> {
    // There is one type, so more than one parameter is one too many.
    match params.get(u32::try_from(count.min(2)).map_err(|_| CUresult::ERROR_INVALID_VALUE)?)?[..] {
        [] => Ok(0),
        [one] if one.r#type != CUexecAffinityType::SM_COUNT => {
            Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY)
        }
        [one] if one.smCount > 0 => Ok(one.smCount),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuCtxCreate_v4(
    ctx: Out<CUcontext>,
    params: In<CUctxCreateParams>,
    flags: u32,
    device: CUdevice,
) -> Outcome {
    // NULL is as good as no parameters.
    if let Ok(params) = params.get() {
        if !params.cigParams.is_null() {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the caller of cuCtxCreate_v4 gives as many parameters there as it says beside it.
        let list = unsafe {
            List::new(
                params.execAffinityParams.cast_const(),
                usize::try_from(params.numExecAffinityParams).unwrap_or(0),
            )
        };
        let multiprocessors = affinity(&list, params.numExecAffinityParams)?;
        return create(ctx, multiprocessors, flags, device);
    }
    cuCtxCreate(ctx, flags, device)
}

pub(crate) fn cuCtxDestroy(ctx: CUcontext) -> Outcome {
    let session = session()?;
    given(ctx.bits())?;
    session.contexts.destroy(ctx.bits())
}

pub(crate) fn cuCtxDestroy_v2(ctx: CUcontext) -> Outcome {
    cuCtxDestroy(ctx)
}

pub(crate) fn cuCtxAttach(ctx: Out<CUcontext>, flags: u32) -> Outcome {
    let current = current_as_it_is()?;
    ctx.required()?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    current.retain()?;
    ctx.set(CUcontext::from_bits(current.handle()))
}

pub(crate) fn cuCtxDetach(ctx: CUcontext) -> Outcome {
    let session = session()?;
    let context = session.contexts.get(ctx.bits())?;
    if context.detach()? {
        return session.contexts.destroy(ctx.bits());
    }
    Ok(())
}

pub(crate) fn cuCtxPushCurrent(ctx: CUcontext) -> Outcome {
    let session = session()?;
    given(ctx.bits())?;
    session.contexts.get(ctx.bits())?;
    context::push(ctx.bits())
}

pub(crate) fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Outcome {
    cuCtxPushCurrent(ctx)
}

pub(crate) fn cuCtxPopCurrent(ctx: Out<CUcontext>) -> Outcome {
    session()?;
    ctx.set_if(CUcontext::from_bits(context::pop()?));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent_v2(ctx: Out<CUcontext>) -> Outcome {
    cuCtxPopCurrent(ctx)
}

pub(crate) fn cuCtxSetCurrent(ctx: CUcontext) -> Outcome {
    host_function::check_outside_host_function()?;
    let session = session()?;
    if ctx.is_null() {
        // Takes the top away, if there is one.
        return context::pop().map(drop).or(Ok(()));
    }
    session.contexts.get(ctx.bits())?;
    context::replace(ctx.bits());
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(ctx: Out<CUcontext>) -> Outcome {
    host_function::check_outside_host_function()?;
    session()?;
    ctx.set(CUcontext::from_bits(context::top()))
}

/// The context of a parameter that may be NULL for the current one.
fn given_or_current(ctx: CUcontext) -> Result<Current, CUresult> {
    if ctx.is_null() {
        current_as_it_is()
    } else {
        session()?.contexts.get(ctx.bits())
    }
}

pub(crate) fn cuCtxGetDevice(device: Out<CUdevice>) -> Outcome {
    let current = current_as_it_is()?;
    device.set(current.context.device())
}

pub(crate) fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) -> Outcome {
    let context = given_or_current(ctx)?;
    device.set(context.context.device())
}

pub(crate) fn cuCtxGetFlags(flags: Out<u32>) -> Outcome {
    let current = current_as_it_is()?;
    // Page-locked memory is always mapped.
    flags.set(current.context.flags().load(Ordering::Relaxed) | CU_CTX_MAP_HOST)
}

pub(crate) fn cuCtxSetFlags(flags: u32) -> Outcome {
    let current = current_as_it_is()?;
    check_flags(flags)?;
    current.context.flags().store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetId(ctx: CUcontext, id: Out<u64>) -> Outcome {
    let context = given_or_current(ctx)?;
    // A slot and its generation are a number that no other context has or had.
    id.set(context.id())
}

pub(crate) fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) -> Outcome {
    given_or_current(ctx)?;
    version.set(API_VERSION)
}

pub(crate) fn cuCtxSynchronize() -> Outcome {
    current()?.drain()
}

pub(crate) fn cuCtxSynchronize_v2(ctx: CUcontext) -> Outcome {
    if ctx.is_null() {
        return cuCtxSynchronize();
    }
    let session = session()?;
    let context = session.contexts.get(ctx.bits())?;
    session.check_fault(context.slot())?;
    context.drain()
}

pub(crate) fn cuCtxGetLimit(value: Out<usize>, limit: CUlimit) -> Outcome {
    let current = current_as_it_is()?;
    value.required()?;
    value.set(current.limit(limit)? as usize)
}

pub(crate) fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Outcome {
    let current = current_as_it_is()?;
    current.set_limit(limit, value as u64)
}

/// The multiprocessors that the client's percentage grants, or as many of them as the context was made
/// with, as under MPS.
pub(crate) fn cuCtxGetExecAffinity(
    exec_affinity: Out<CUexecAffinityParam>,
    kind: CUexecAffinityType,
) -> Outcome {
    let current = current_as_it_is()?;
    exec_affinity.required()?;
    if kind != CUexecAffinityType::SM_COUNT {
        return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    let granted = current
        .device()?
        .attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
    let granted = granted.max(0).cast_unsigned();
    let own = current.context.multiprocessors().load(Ordering::Relaxed);
    exec_affinity.set(CUexecAffinityParam {
        r#type: kind,
        smCount: if own == 0 { granted } else { own.min(granted) },
    })
}

pub(crate) fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) -> Outcome {
    let current = current_as_it_is()?;
    config.set(CUfunc_cache(
        current.context.cache().load(Ordering::Relaxed),
    ))
}

pub(crate) fn cuCtxSetCacheConfig(config: CUfunc_cache) -> Outcome {
    let current = current_as_it_is()?;
    if config > CUfunc_cache::PREFER_EQUAL {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    current.context.cache().store(config.0, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetSharedMemConfig(config: Out<CUsharedconfig>) -> Outcome {
    let current = current_as_it_is()?;
    config.set(CUsharedconfig(
        current.context.bank_width().load(Ordering::Relaxed),
    ))
}

pub(crate) fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Outcome {
    let current = current_as_it_is()?;
    if config > CUsharedconfig::EIGHT_BYTE_BANK_SIZE {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    current
        .context
        .bank_width()
        .store(config.0, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Outcome {
    current_as_it_is()?;
    least.set_if(LEAST_PRIORITY);
    greatest.set_if(GREATEST_PRIORITY);
    Ok(())
}

pub(crate) fn cuCtxResetPersistingL2Cache() -> Outcome {
    // Nothing persists there: no access policy is passed on.
    current_as_it_is().map(drop)
}
