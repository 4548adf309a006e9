//! Green contexts.
//!
//! They show how resources are split and described, and that a green context uses what its device has.

use cuda_abi::types::*;
use protocol::operations::CONTEXT_GREEN;

use crate::api::*;
use crate::pointers::{In, List, ListOut, Out};
use crate::testing::*;

const WRONG: Outcome = Err(CUresult::ERROR_INVALID_VALUE);
const NO_SUCH: Outcome = Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
const DOES_NOT_FIT: Outcome = Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
const NO_CONTEXT: Outcome = Err(CUresult::ERROR_INVALID_CONTEXT);

fn nothing() -> CUdevResource {
    CUdevResource {
        r#type: CUdevResourceType::INVALID,
        _internal_padding: [0; 92],
        smCount: 0,
        minSmPartitionSize: 0,
        smCoscheduledAlignment: 0,
        _rest: [0; 36],
    }
}

fn whole(device: i32) -> CUdevResource {
    let mut resource = nothing();
    cuDeviceGetDevResource(device, out(&mut resource), CUdevResourceType::SM).unwrap();
    resource
}

/// As many groups as there is room for, and what is left over.
fn split(
    from: &CUdevResource,
    room: u32,
    flags: u32,
    least: u32,
) -> Result<(Vec<CUdevResource>, CUdevResource), CUresult> {
    let mut groups = vec![nothing(); room as usize];
    let (mut count, mut rest) = (room, nothing());
    // SAFETY: there is room for as many as `count` says.
    let list = unsafe { ListOut::new(groups.as_mut_ptr(), groups.len()) };
    cuDevSmResourceSplitByCount(
        list,
        out(&mut count),
        In::of(from),
        out(&mut rest),
        flags,
        least,
    )?;
    groups.truncate(count as usize);
    Ok((groups, rest))
}

fn describe(resources: &[CUdevResource]) -> Result<CUdevResourceDesc, CUresult> {
    let mut desc = CUdevResourceDesc::NULL;
    // SAFETY: the slice outlives the call.
    let list = unsafe { List::new(resources.as_ptr(), resources.len()) };
    cuDevResourceGenerateDesc(out(&mut desc), list, resources.len() as u32)?;
    Ok(desc)
}

fn green(device: i32, resources: &[CUdevResource]) -> CUgreenCtx {
    let mut green = CUgreenCtx::NULL;
    cuGreenCtxCreate(out(&mut green), describe(resources).unwrap(), device, 1).unwrap();
    green
}

#[test]
fn resources_are_split_and_described() {
    start();
    // The test's devices have 4 multiprocessors, in steps of one.
    let all = whole(0);
    assert_eq!((all.r#type, all.smCount), (CUdevResourceType::SM, 4));
    assert_eq!((all.minSmPartitionSize, all.smCoscheduledAlignment), (1, 1));
    let (groups, rest) = split(&all, 9, 0, 1).unwrap();
    assert_eq!(
        groups.iter().map(|group| group.smCount).collect::<Vec<_>>(),
        [1; 4]
    );
    assert_eq!((rest.r#type, rest.smCount), (CUdevResourceType::INVALID, 0));
    let (groups, rest) = split(&all, 1, 0, 3).unwrap();
    assert_eq!((groups.len(), groups[0].smCount, rest.smCount), (1, 3, 1));
    let mut count = 0;
    let count_only = cuDevSmResourceSplitByCount(
        // SAFETY: NULL asks for the count.
        unsafe { ListOut::new(std::ptr::null_mut(), 0) },
        out(&mut count),
        In::of(&all),
        Out::null(),
        0,
        2,
    );
    assert_eq!((count_only, count), (Ok(()), 2));
    let refused = |from: &CUdevResource, flags, least| split(from, 4, flags, least).map(drop);
    assert_eq!(refused(&all, 0, 5), DOES_NOT_FIT);
    assert_eq!(refused(&all, 3, 1), WRONG);
    assert_eq!(refused(&all, 8, 1), WRONG);
    assert_eq!(refused(&nothing(), 0, 1), NO_SUCH);
    assert_eq!(
        refused(&groups[0], 0, 1),
        DOES_NOT_FIT,
        "what was split is not split again"
    );
    let forged = CUdevResource {
        smCount: 4,
        ..groups[0]
    };
    assert_eq!(refused(&forged, 0, 1), DOES_NOT_FIT);
    assert_eq!(describe(&[forged]).map(drop), DOES_NOT_FIT);
    assert_eq!(describe(&[groups[0], groups[0]]).map(drop), DOES_NOT_FIT);
    assert_eq!(describe(&[]).map(drop), WRONG);
    assert!(describe(&[groups[0], rest]).is_ok());
    let (of_other, _) = split(&whole(1), 1, 0, 1).unwrap();
    assert_eq!(describe(&[rest, of_other[0]]).map(drop), DOES_NOT_FIT);
    let mut resource = nothing();
    let mut ask = |device, kind| cuDeviceGetDevResource(device, out(&mut resource), kind);
    assert_eq!(
        ask(9, CUdevResourceType::SM),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    assert_eq!(ask(0, CUdevResourceType(2)), NO_SUCH);
    assert_eq!(
        cuDeviceGetDevResource(0, Out::null(), CUdevResourceType::SM),
        WRONG
    );
}

#[test]
fn a_green_context_uses_what_its_device_has() {
    let shared = start();
    let mut primary = CUcontext::NULL;
    cuDevicePrimaryCtxRetain(out(&mut primary), 1).unwrap();
    cuCtxSetCurrent(primary).unwrap();
    let module = load("kernel in_green 8 8\n\0");
    let kernel = function(module, "in_green\0");
    let mut event = CUevent::NULL;
    cuEventCreate(out(&mut event), CU_EVENT_DISABLE_TIMING).unwrap();
    let (groups, rest) = split(&whole(1), 1, 0, 1).unwrap();
    let (part, other) = (green(1, &groups), green(1, &[rest]));
    assert_ne!(part, other);
    let mut resource = nothing();
    let sm = CUdevResourceType::SM;
    cuGreenCtxGetDevResource(part, out(&mut resource), sm).unwrap();
    assert_eq!(resource.smCount, 1);
    let mut ctx = CUcontext::NULL;
    cuCtxFromGreenCtx(out(&mut ctx), other).unwrap();
    cuCtxGetDevResource(ctx, out(&mut resource), sm).unwrap();
    assert_eq!(resource.smCount, 3);
    cuCtxGetDevResource(CUcontext::NULL, out(&mut resource), sm).unwrap();
    assert_eq!(resource.smCount, 4, "of the current one");
    assert_eq!(cuCtxDestroy(ctx), NO_CONTEXT, "it goes with its green one");
    // Streams, and what they are said to be.
    let mut stream = CUstream::NULL;
    assert_eq!(cuGreenCtxStreamCreate(out(&mut stream), part, 0, 0), WRONG);
    cuGreenCtxStreamCreate(out(&mut stream), part, CU_STREAM_NON_BLOCKING, 0).unwrap();
    let (mut of, mut home) = (CUgreenCtx::NULL, CUcontext::NULL);
    cuStreamGetGreenCtx(stream, out(&mut of)).unwrap();
    assert_eq!(of, part);
    cuStreamGetCtx_v2(stream, out(&mut home), out(&mut of)).unwrap();
    assert_eq!((home, of), (primary, part));
    cuStreamGetGreenCtx(CUstream::NULL, out(&mut of)).unwrap();
    assert_eq!(of, CUgreenCtx::NULL);
    // Code, memory and events of the primary context are its own.
    let (mut to, mut value) = (allocate(8), 0x77_u64);
    launch(
        kernel,
        stream,
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    cuEventRecord(event, stream).unwrap();
    cuGreenCtxRecordEvent(part, event).unwrap();
    cuGreenCtxWaitEvent(other, event).unwrap();
    cuEventSynchronize(event).unwrap();
    let made = shared.contexts.lock().unwrap().clone();
    let of_part = made.iter().rev().find(|made| made.share == 250_000);
    assert_ne!(of_part.expect("a quarter").flags & CONTEXT_GREEN, 0);
    // And what is made while it is current outlives it.
    cuCtxSetCurrent(ctx).unwrap();
    let mut late = allocate(8);
    let mut owner = CUcontext::NULL;
    let wanted = CUpointer_attribute::CONTEXT;
    cuPointerGetAttribute(untyped((&raw mut owner).cast()), wanted, late).unwrap();
    assert_eq!(owner, primary);
    launch(
        kernel,
        CUstream::NULL,
        &mut [(&raw mut late).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    cuCtxSynchronize().unwrap();
    cuGreenCtxDestroy(other).unwrap();
    assert_eq!(cuGreenCtxDestroy(other), NO_CONTEXT);
    cuCtxSetCurrent(primary).unwrap();
    cuMemsetD8_v2(late, 1, 8).unwrap();
    cuMemFree_v2(late).unwrap();
    cuGreenCtxDestroy(part).unwrap();
    // Wrong ones.
    let desc = describe(&groups).unwrap();
    let mut none = CUgreenCtx::NULL;
    for (desc, device, flags) in [
        (desc, 1, 0),
        (desc, 1, 3),
        (desc, 0, 1),
        (CUdevResourceDesc::NULL, 1, 1),
    ] {
        assert_eq!(cuGreenCtxCreate(out(&mut none), desc, device, flags), WRONG);
    }
    let nowhere = cuGreenCtxCreate(out(&mut none), desc, 9, 1);
    assert_eq!(nowhere, Err(CUresult::ERROR_INVALID_DEVICE));
    let plain = CUgreenCtx::from_bits(primary.bits());
    assert_eq!(cuCtxFromGreenCtx(out(&mut ctx), plain), NO_CONTEXT);
    assert_eq!(cuGreenCtxDestroy(CUgreenCtx::NULL), NO_CONTEXT);
    cuModuleUnload(module).unwrap();
    cuDevicePrimaryCtxRelease(1).unwrap();
}
