//! Devices, contexts, and what is not built.
//!
//! They show what each thread's stack and each handle still mean after contexts end or fault.

use crate::pointers::List;
use cuda_abi::functions::Function;
use cuda_abi::types::*;

use crate::api::*;
use crate::testing::*;

#[test]
fn devices_answer_from_what_was_told() {
    start();
    let mut count = 0;
    assert_eq!(cuDeviceGetCount(out(&mut count)), Ok(()));
    assert_eq!(count, 2);
    let mut device = -1;
    assert_eq!(cuDeviceGet(out(&mut device), 1), Ok(()));
    assert_eq!(device, 1);
    assert_eq!(
        cuDeviceGet(out(&mut device), 2),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    let mut value = 0;
    for id in 1..=147 {
        assert_eq!(
            cuDeviceGetAttribute(out(&mut value), CUdevice_attribute(id), 0),
            Ok(()),
            "{id}"
        );
    }
    let beyond = cuDeviceGetAttribute(out(&mut value), CUdevice_attribute(148), 0);
    assert_eq!(beyond, Err(CUresult::ERROR_INVALID_VALUE));
    let mut found = -1;
    assert_eq!(
        cuDeviceGetByPCIBusId(out(&mut found), text("0000:1A:01.0\0")),
        Ok(())
    );
    assert_eq!(found, 1);
}

#[test]
fn the_multiprocessors_that_are_granted_are_told_of_each_context() {
    context(0);
    let mut granted = 0;
    cuDeviceGetAttribute(
        out(&mut granted),
        CUdevice_attribute::MULTIPROCESSOR_COUNT,
        0,
    )
    .unwrap();
    let mut affinity = CUexecAffinityParam::default();
    let kind = CUexecAffinityType::SM_COUNT;
    cuCtxGetExecAffinity(out(&mut affinity), kind).unwrap();
    assert_eq!(affinity.smCount, granted.cast_unsigned());
    assert_eq!(
        cuCtxGetExecAffinity(out(&mut affinity), CUexecAffinityType(7)),
        Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY)
    );
    let mut supported = 1;
    cuDeviceGetExecAffinitySupport(out(&mut supported), kind, 0).unwrap();
    assert_eq!(supported, 1);
    cuDeviceGetExecAffinitySupport(out(&mut supported), CUexecAffinityType(7), 0).unwrap();
    assert_eq!(supported, 0);
    assert_eq!(
        cuDeviceGetExecAffinitySupport(out(&mut supported), kind, 9),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
}

#[test]
fn a_context_has_as_many_multiprocessors_as_it_asked_for_and_is_granted() {
    context(0);
    let kind = CUexecAffinityType::SM_COUNT;
    let mut granted = 0;
    let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT;
    cuDeviceGetAttribute(out(&mut granted), attribute, 0).unwrap();
    let granted = granted.cast_unsigned();
    let make = |kind, count, params: i32| {
        let asked = [CUexecAffinityParam {
            r#type: kind,
            smCount: count,
        }];
        let mut made = CUcontext::NULL;
        // SAFETY: there is one parameter; beyond it nothing is read, as there is one type.
        let list = unsafe { List::new(asked.as_ptr(), asked.len()) };
        cuCtxCreate_v3(out(&mut made), list, params, 0, 0)?;
        let mut affinity = CUexecAffinityParam::default();
        cuCtxGetExecAffinity(out(&mut affinity), kind)?;
        cuCtxDestroy(made)?;
        Ok(affinity.smCount)
    };
    assert_eq!(make(kind, 1, 1), Ok(1));
    assert_eq!(make(kind, granted, 1), Ok(granted));
    assert_eq!(make(kind, granted + 7, 1), Ok(granted), "only narrows");
    assert_eq!(make(kind, 0, 0), Ok(granted));
    assert_eq!(make(kind, 0, 1), Err(CUresult::ERROR_INVALID_VALUE));
    assert_eq!(make(kind, 1, -1), Err(CUresult::ERROR_INVALID_VALUE));
    assert_eq!(
        make(CUexecAffinityType(7), 1, 1),
        Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY)
    );
}

#[test]
fn contexts_stack_by_thread_and_dead_ones_are_refused() {
    let first = context(0);
    let second = context(1);
    let mut current = CUcontext::NULL;
    let mut device = -1;
    cuCtxGetDevice(out(&mut device)).unwrap();
    assert_eq!(device, 1);
    let other = std::thread::spawn(|| {
        let mut device = 0;
        cuCtxGetDevice(out(&mut device))
    });
    assert_eq!(other.join().unwrap(), Err(CUresult::ERROR_INVALID_CONTEXT));
    cuCtxPopCurrent(out(&mut current)).unwrap();
    assert_eq!(current, second);
    cuCtxPushCurrent(second).unwrap();
    cuCtxDestroy(second).unwrap();
    assert_eq!(cuCtxDestroy(second), Err(CUresult::ERROR_INVALID_CONTEXT));
    cuCtxGetCurrent(out(&mut current)).unwrap();
    assert_eq!(
        current, first,
        "destroying takes it from this thread's stack"
    );
    for bogus in [0x1234, second.bits(), first.bits() ^ 1 << 60, u64::MAX] {
        let bogus = CUcontext::from_bits(bogus);
        assert_eq!(cuCtxSetCurrent(bogus), Err(CUresult::ERROR_INVALID_CONTEXT));
        assert_eq!(cuCtxDestroy(bogus), Err(CUresult::ERROR_INVALID_CONTEXT));
    }
    cuCtxDestroy(first).unwrap();
    assert_eq!(
        cuCtxGetDevice(out(&mut device)),
        Err(CUresult::ERROR_INVALID_CONTEXT)
    );
}

#[test]
fn a_context_destroyed_elsewhere_is_said_to_be() {
    let mine = context(0);
    let bits = mine.bits();
    std::thread::spawn(move || cuCtxDestroy(CUcontext::from_bits(bits)))
        .join()
        .unwrap()
        .unwrap();
    let mut address = 0;
    let allocated = cuMemAlloc_v2(out(&mut address), 16);
    assert_eq!(allocated, Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
    cuCtxPopCurrent(out(&mut CUcontext::NULL.clone())).unwrap();
}

#[test]
fn primary_contexts_are_counted_and_keep_their_handle() {
    start();
    // The only test that uses device 1's primary context.
    let (mut flags, mut active) = (0, -1);
    let mut state = || {
        cuDevicePrimaryCtxGetState(1, out(&mut flags), out(&mut active)).unwrap();
        active
    };
    assert_eq!(state(), 0);
    let mut first = CUcontext::NULL;
    let mut second = CUcontext::NULL;
    cuDevicePrimaryCtxRetain(out(&mut first), 1).unwrap();
    cuDevicePrimaryCtxRetain(out(&mut second), 1).unwrap();
    assert_eq!((first, state()), (second, 1));
    cuCtxSetCurrent(first).unwrap();
    let address = allocate(64);
    cuDevicePrimaryCtxRelease(1).unwrap();
    assert_eq!(read(address, 4), [0; 4]);
    cuDevicePrimaryCtxRelease(1).unwrap();
    assert_eq!(state(), 0);
    assert_eq!(
        cuDevicePrimaryCtxRelease(1),
        Err(CUresult::ERROR_INVALID_CONTEXT)
    );
    let mut version = 0;
    cuCtxGetApiVersion(first, out(&mut version)).unwrap();
    // It comes to life again where it is used, as runtime 11 does it.
    assert_eq!(
        cuMemFree_v2(address),
        Err(CUresult::ERROR_INVALID_VALUE),
        "it went with the context"
    );
    allocate(64);
    assert_eq!(state(), 1);
    cuDevicePrimaryCtxReset(1).unwrap();
    assert_eq!(state(), 0);
    assert_eq!(cuCtxDestroy(first), Err(CUresult::ERROR_INVALID_CONTEXT));
    cuCtxSetCurrent(CUcontext::NULL).unwrap();
}

#[test]
fn a_fault_is_that_contexts_alone_and_stays() {
    let well = context(0);
    let module = load("kernel store 8 8\n\0");
    let store = function(module, "store\0");
    let (mut to, mut value) = (allocate(8), 1_u64);
    let ill = context(1);
    let die = function(load("kernel die\n\0"), "die\0");
    assert_eq!(launch(die, CUstream::NULL, &mut []), Ok(()), "told later");
    assert_eq!(cuCtxSynchronize(), Err(CUresult::ERROR_ILLEGAL_ADDRESS));
    assert_eq!(
        launch(die, CUstream::NULL, &mut []),
        Err(CUresult::ERROR_ILLEGAL_ADDRESS)
    );
    assert_eq!(
        cuMemAlloc_v2(out(&mut 0), 8),
        Err(CUresult::ERROR_ILLEGAL_ADDRESS)
    );
    cuCtxDestroy(ill).unwrap();
    let mut current = CUcontext::NULL;
    cuCtxGetCurrent(out(&mut current)).unwrap();
    assert_eq!(current, well);
    launch(
        store,
        CUstream::NULL,
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    assert_eq!(cuCtxSynchronize(), Ok(()));
    cuCtxDestroy(well).unwrap();
    // The slot's next occupant is not ill.
    let next = context(1);
    assert_eq!(cuCtxSynchronize(), Ok(()));
    cuCtxDestroy(next).unwrap();
}

#[test]
fn what_is_not_built_is_said_once() {
    let shared = start();
    let before = crate::exports::unsupported::calls(Function::cuLinkDestroy);
    for _ in 0..3 {
        let answer = crate::exports::unsupported::absent(Function::cuLinkDestroy);
        assert_eq!(answer, Err(CUresult::ERROR_NOT_SUPPORTED));
    }
    assert_eq!(
        crate::exports::unsupported::calls(Function::cuLinkDestroy),
        before + 3
    );
    let mine = context(0);
    cuMemGetInfo_v2(out(&mut 0), out(&mut 0)).unwrap(); // comes after what was posted before
    let named = shared.not_supported.lock().unwrap().clone();
    let wanted = u32::from(Function::cuLinkDestroy.number());
    assert_eq!(named.iter().filter(|number| **number == wanted).count(), 1);
    cuCtxDestroy(mine).unwrap();
}
