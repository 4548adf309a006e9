//! Launches that are prepared call by call, of several devices, and events of whole contexts.
//!
//! They show what is kept between the calls, and what such a launch or event comes behind.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::time::Duration;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{List, Out};
use crate::testing::*;

const WRONG: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

#[test]
fn a_launch_is_prepared_call_by_call() {
    let shared = start();
    let mine = context(0);
    let module = load("kernel prepared_by_calls 8 4 4\n\0");
    let kernel = function(module, "prepared_by_calls\0");
    // As it is from the beginning: one thread, zeroes.
    cuLaunch(kernel).unwrap();
    assert_eq!(cuFuncSetSharedSize(kernel, 1 << 20), WRONG);
    for (x, y, z) in [
        (0, 1, 1),
        (1, -1, 1),
        (513, 1, 1),
        (i32::MAX, i32::MAX, i32::MAX),
    ] {
        assert_eq!(cuFuncSetBlockShape(kernel, x, y, z), WRONG);
    }
    cuFuncSetBlockShape(kernel, 32, 2, 1).unwrap();
    cuFuncSetSharedSize(kernel, 100).unwrap();
    cuParamSetv(kernel, 0, bytes(&7_u64.to_le_bytes()), 8).unwrap();
    cuParamSeti(kernel, 8, 0xabcd).unwrap();
    cuParamSetf(kernel, 12, 1.5).unwrap();
    assert_eq!(cuParamSetSize(kernel, 1 << 20), WRONG);
    cuParamSetSize(kernel, 16).unwrap();
    for offset in [-1, 1 << 20] {
        assert_eq!(cuParamSeti(kernel, offset, 1), WRONG);
    }
    // SAFETY: NULL is what the test is about.
    let null = unsafe { crate::pointers::Bytes::new(std::ptr::null::<c_void>()) };
    assert_eq!(cuParamSetv(kernel, 0, null, 8), WRONG);
    cuLaunch(kernel).unwrap();
    cuLaunchGrid(kernel, 2, 3).unwrap();
    let mut stream = CUstream::NULL;
    cuStreamCreate(out(&mut stream), 0).unwrap();
    cuParamSeti(kernel, 8, 5).unwrap();
    cuLaunchGridAsync(kernel, 4, 1, stream).unwrap();
    assert_eq!(cuLaunchGrid(kernel, 0, 1), WRONG);
    assert_eq!(cuLaunchGrid(kernel, -1, 1), WRONG);
    cuCtxSynchronize().unwrap();
    let launches: Vec<_> = shared
        .launches
        .lock()
        .unwrap()
        .iter()
        .filter(|launch| launch.name == "prepared_by_calls")
        .cloned()
        .collect();
    let params = |middle: u32| {
        let mut block = 7_u64.to_le_bytes().to_vec();
        block.extend(middle.to_le_bytes());
        block.extend(1.5_f32.to_le_bytes());
        block
    };
    let grids: Vec<_> = launches.iter().map(|launch| launch.request.grid).collect();
    assert_eq!(grids, [[1, 1, 1], [1, 1, 1], [2, 3, 1], [4, 1, 1]]);
    assert_eq!(
        (launches[0].request.block, &launches[0].data),
        ([1; 3], &vec![0; 16])
    );
    let launches = &launches[1..];
    for (launch, middle) in launches.iter().zip([0xabcd, 0xabcd, 5]) {
        assert_eq!(
            (launch.request.block, launch.request.shared),
            ([32, 2, 1], 100)
        );
        assert_eq!(launch.data, params(middle));
    }
    assert_eq!(launches[0].stream, launches[1].stream);
    assert_ne!(launches[1].stream, launches[2].stream);
    cuModuleUnload(module).unwrap();
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuFuncSetBlockShape(kernel, 1, 1, 1), gone);
    assert_eq!((cuParamSetSize(kernel, 1), cuLaunch(kernel)), (gone, gone));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn a_launch_of_several_devices_has_a_stream_of_each() {
    let contexts = [context(0), context(1)];
    let mut launches = Vec::new();
    for ctx in contexts {
        cuCtxSetCurrent(ctx).unwrap();
        let mut stream = CUstream::NULL;
        cuStreamCreate(out(&mut stream), 0).unwrap();
        launches.push(CUDA_LAUNCH_PARAMS {
            function: function(load("kernel together\n\0"), "together\0"),
            gridDimX: 2,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 4,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            kernelParams: std::ptr::null_mut(),
        });
    }
    let go = |launches: &[CUDA_LAUNCH_PARAMS], count, flags| {
        // SAFETY: the slice outlives the call.
        let list = unsafe { List::new(launches.as_ptr(), launches.len()) };
        cuLaunchCooperativeKernelMultiDevice(list, count, flags)
    };
    go(&launches, 2, 0).unwrap();
    go(&launches, 1, 3).unwrap();
    assert_eq!(go(&launches, 0, 0), WRONG);
    assert_eq!(go(&launches, 3, 0), WRONG, "there are two devices");
    assert_eq!(go(&launches, 2, 4), WRONG);
    assert_eq!(
        cuLaunchCooperativeKernelMultiDevice(List::null(), 1, 0),
        WRONG
    );
    let twice = [launches[0], launches[0]];
    assert_eq!(go(&twice, 2, 0), Err(CUresult::ERROR_INVALID_DEVICE));
    let mut other = launches.clone();
    other[1].gridDimX = 1;
    assert_eq!(go(&other, 2, 0), WRONG, "all have one shape");
    other[0].hStream = CUstream::NULL;
    assert_eq!(go(&other, 1, 0), Err(CUresult::ERROR_INVALID_HANDLE));
    for ctx in contexts {
        cuCtxSetCurrent(ctx).unwrap();
        cuCtxSynchronize().unwrap();
        cuCtxDestroy(ctx).unwrap();
    }
}

#[test]
fn an_event_of_a_context_comes_after_all_of_its_work() {
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = start();
    shared.open_gate(false);
    let mine = context(0);
    let module = load("kernel gate\nkernel store 8 8\n\0");
    let (held, store) = (function(module, "gate\0"), function(module, "store\0"));
    let mut streams = [CUstream::NULL; 2];
    for stream in &mut streams {
        cuStreamCreate(out(stream), CU_STREAM_NON_BLOCKING).unwrap();
    }
    let mut events = [CUevent::NULL; 2];
    for event in &mut events {
        cuEventCreate(out(event), CU_EVENT_DISABLE_TIMING).unwrap();
    }
    launch(held, streams[0], &mut []).unwrap();
    cuCtxRecordEvent(mine, events[0]).unwrap();
    assert_eq!(cuEventQuery(events[0]), Err(CUresult::ERROR_NOT_READY));
    assert_eq!(
        cuStreamQuery(streams[1]),
        Ok(()),
        "nothing is put into streams"
    );
    // What a context waits for, all of its streams do, those too that come later.
    cuCtxWaitEvent(mine, events[0]).unwrap();
    let mut later = CUstream::NULL;
    cuStreamCreate(out(&mut later), CU_STREAM_NON_BLOCKING).unwrap();
    let (mut to, mut value) = (allocate(16), 3_u64);
    let mut beside = to + 8;
    launch(
        store,
        streams[1],
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    launch(
        store,
        later,
        &mut [(&raw mut beside).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    assert_eq!(cuStreamQuery(streams[1]), Err(CUresult::ERROR_NOT_READY));
    assert_eq!(cuStreamQuery(later), Err(CUresult::ERROR_NOT_READY));
    shared.open_gate(true);
    cuEventSynchronize(events[0]).unwrap();
    cuCtxSynchronize().unwrap();
    assert_eq!(
        read(to, 16),
        [3_u64.to_le_bytes(), 3_u64.to_le_bytes()].concat()
    );
    // Wrong contexts and events; events belong to their context.
    let other = context(0);
    let refused = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuCtxRecordEvent(other, events[0]), refused);
    assert_eq!(
        cuCtxWaitEvent(other, events[0]),
        Ok(()),
        "any may be waited for"
    );
    assert_eq!(cuCtxRecordEvent(mine, CUevent::NULL), refused);
    assert_eq!(
        cuCtxRecordEvent(CUcontext::NULL, events[0]),
        Err(CUresult::ERROR_INVALID_CONTEXT)
    );
    // A capture in the context is broken by either.
    cuCtxSetCurrent(mine).unwrap();
    cuStreamBeginCapture(streams[0]).unwrap();
    assert_eq!(
        cuCtxRecordEvent(mine, events[1]),
        Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    );
    let mut graph = CUgraph::NULL;
    assert_eq!(
        cuStreamEndCapture(streams[0], out(&mut graph)),
        Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)
    );
    cuCtxDestroy(other).unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn small_functions_answer_as_nvidias_do() {
    start();
    let mut mask = 7;
    let mut luid = [0; 8];
    let none = Err(CUresult::ERROR_NOT_SUPPORTED);
    assert_eq!(
        cuDeviceGetLuid(address_of(luid.as_mut_ptr().cast()), out(&mut mask), 0),
        none
    );
    assert_eq!(
        cuDeviceGetLuid(address_of(luid.as_mut_ptr().cast()), Out::null(), 99),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    let mut null =
        |device| cuDeviceGetLuid(address_of(std::ptr::null_mut()), out(&mut mask), device);
    assert_eq!(
        (null(0), null(99)),
        (WRONG, Err(CUresult::ERROR_INVALID_DEVICE))
    );
    let file = || text("file\0");
    assert_eq!(cuProfilerInitialize(file(), file(), CUoutput_mode(0)), none);
}

#[test]
fn pointers_have_attributes_without_a_context() {
    start();
    let mine = context(0);
    let address = allocate(64);
    cuCtxSetCurrent(CUcontext::NULL).unwrap();
    let (mut of, mut kind, mut sync) = (0_u64, 9_u32, 9_u32);
    let wanted = [
        CUpointer_attribute::CONTEXT,
        CUpointer_attribute::MEMORY_TYPE,
        CUpointer_attribute::SYNC_MEMOPS,
    ];
    let mut all = |address| {
        let data = [
            (&raw mut of).cast::<c_void>(),
            (&raw mut kind).cast(),
            (&raw mut sync).cast(),
        ];
        // SAFETY: three attributes and room for each, during the call.
        let lists = unsafe { (List::new(wanted.as_ptr(), 3), List::new(data.as_ptr(), 3)) };
        cuPointerGetAttributes(3, lists.0, lists.1, address).unwrap();
        (of, kind, sync)
    };
    assert_eq!(all(address), (mine.bits(), CUmemorytype::DEVICE.0, 0));
    assert_eq!(all(0), (0, 0, 0), "an address of nobody's");
    let set = |value: *const u32, attribute, address| {
        cuPointerSetAttribute(untyped(value.cast_mut().cast()), attribute, address)
    };
    let attribute = CUpointer_attribute::SYNC_MEMOPS;
    set(&1, attribute, address + 63).unwrap();
    assert_eq!(all(address).2, 1);
    set(&0, attribute, address).unwrap();
    assert_eq!(all(address).2, 0);
    assert_eq!(set(&1, attribute, address + 64), WRONG);
    assert_eq!(set(std::ptr::null(), attribute, address), WRONG);
    assert_eq!(set(&1, CUpointer_attribute::MEMORY_TYPE, address), WRONG);
    cuCtxSetCurrent(mine).unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn synchronous_operations_wait_where_they_were_told_to() {
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = start();
    let mine = context(0);
    let module = load("kernel gate\n\0");
    let held = function(module, "gate\0");
    let (address, plain) = (allocate(64), allocate(64));
    let on = 1_u32;
    cuPointerSetAttribute(
        untyped((&raw const on).cast_mut().cast()),
        CUpointer_attribute::SYNC_MEMOPS,
        address,
    )
    .unwrap();
    let operations: [(&str, &(dyn Fn() -> Outcome + Sync)); 3] = [
        ("a fill", &|| cuMemsetD8_v2(address, 1, 64)),
        ("a copy to it", &|| cuMemcpyDtoD_v2(address, plain, 64)),
        ("a copy from it", &|| cuMemcpyDtoD_v2(plain, address, 64)),
    ];
    let bits = mine.bits();
    for (what, operation) in operations {
        shared.open_gate(false);
        launch(held, CUstream::NULL, &mut []).unwrap();
        // What was not told so comes back before the kernel ends.
        cuMemsetD8_v2(plain, 2, 64).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                cuCtxSetCurrent(CUcontext::from_bits(bits)).unwrap();
                operation().unwrap();
                cuStreamQuery(CUstream::NULL)
            });
            // Long enough for one that does not wait to be told so.
            std::thread::sleep(Duration::from_millis(20));
            shared.open_gate(true);
            assert_eq!(waits.join().unwrap(), Ok(()), "{what} came back too early");
        });
    }
    cuCtxDestroy(mine).unwrap();
}
