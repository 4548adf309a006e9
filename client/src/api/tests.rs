//! The api against the server of `testing`.

use std::ffi::c_void;
use std::sync::PoisonError;

use cuda_abi::functions::Function;
use cuda_abi::types::*;

use super::*;
use crate::params::{In, List, ListOut};
use crate::testing::*;

fn gate() -> std::sync::MutexGuard<'static, ()> {
    let held = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    start().open_gate(false);
    held
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
}

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
fn memory_is_freed_once_and_copies_stay_in_an_allocation() {
    let mine = context(0);
    let address = allocate(1000);
    let content = pattern(1000);
    cuMemcpyHtoD_v2(address, bytes(&content), 1000).unwrap();
    assert_eq!(read(address, 1000), content);
    let beyond = cuMemcpyHtoD_v2(address + 1, bytes(&content), 1000);
    assert_eq!(beyond, Err(CUresult::ERROR_INVALID_VALUE));
    let (mut base, mut size) = (0, 0);
    cuMemGetAddressRange_v2(out(&mut base), out(&mut size), address + 999).unwrap();
    assert_eq!((base, size), (address, 1000));
    assert_eq!(
        cuMemFree_v2(address + 1),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    cuMemFree_v2(address).unwrap();
    assert_eq!(cuMemFree_v2(address), Err(CUresult::ERROR_INVALID_VALUE));
    assert_eq!(cuMemFree_v2(0), Ok(()));
    let mut none = 0;
    assert_eq!(
        cuMemAlloc_v2(out(&mut none), 0),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    assert_eq!(
        cuMemAlloc_v2(out(&mut none), 1 << 40),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn large_copies_go_through_staging_both_ways() {
    let mine = context(0);
    // More than all of staging.
    let count = (40 << 20) + 12345;
    let address = allocate(count);
    let content = pattern(count);
    cuMemcpyHtoD_v2(address, bytes(&content), count).unwrap();
    assert!(read(address, count) == content);
    cuMemsetD8_v2(address, 0x5a, 70_000).unwrap();
    let back = read(address, 70_001);
    assert!(back[..70_000].iter().all(|byte| *byte == 0x5a));
    assert_eq!(back[70_000], content[70_000]);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn pinned_memory_is_the_same_for_all() {
    let mine = context(0);
    let mut pinned: *mut c_void = std::ptr::null_mut();
    cuMemHostAlloc(out(&mut pinned), 4096, 0).unwrap();
    let address = allocate(4096);
    // SAFETY: the memory has just been allocated, and only this test knows of it.
    let slice = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 4096) };
    slice.copy_from_slice(&pattern(4096));
    cuMemcpyHtoDAsync_v2(address, bytes(slice), 4096, CUstream::NULL).unwrap();
    cuStreamSynchronize(CUstream::NULL).unwrap();
    assert_eq!(read(address, 4096), pattern(4096));
    cuMemsetD8_v2(address, 9, 4096).unwrap();
    cuMemcpyDtoH_v2(room(slice), address, 4096).unwrap();
    assert_eq!(slice, vec![9; 4096]);
    // Without a direction.
    let (host, mut own) = (pinned.addr() as u64, vec![0; 4096]);
    cuMemcpy(own.as_mut_ptr() as u64, host, 4096).unwrap();
    assert_eq!(own, slice);
    let mut kind = 0_u32;
    let data = (&raw mut kind).cast();
    cuPointerGetAttribute(data, CUpointer_attribute::MEMORY_TYPE, host + 5).unwrap();
    assert_eq!(kind, CUmemorytype::HOST.0);
    cuPointerGetAttribute(data, CUpointer_attribute::MEMORY_TYPE, address).unwrap();
    assert_eq!(kind, CUmemorytype::DEVICE.0);
    let mut managed = u32::MAX;
    let data_of_managed = (&raw mut managed).cast();
    cuPointerGetAttribute(data_of_managed, CUpointer_attribute::IS_MANAGED, address).unwrap();
    assert_eq!(managed, 0, "all four bytes of it");
    let own = own.as_ptr() as u64;
    let unknown = cuPointerGetAttribute(data, CUpointer_attribute::MEMORY_TYPE, own);
    assert_eq!(unknown, Err(CUresult::ERROR_INVALID_VALUE));
    let mut flags = 0;
    cuMemHostGetFlags(out(&mut flags), pinned).unwrap();
    cuMemFreeHost(pinned).unwrap();
    assert_eq!(cuMemFreeHost(pinned), Err(CUresult::ERROR_INVALID_VALUE));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn rectangles_and_boxes_keep_what_is_around_them() {
    let mine = context(0);
    let content = pattern(64 * 32);
    let address = allocate(64 * 32);
    cuMemsetD8_v2(address, 0xee, 64 * 32).unwrap();
    // A rectangle of 10 × 5 from (3, 2) of a host picture of pitch 32 to (20, 7) at pitch 64.
    let mut copy = CUDA_MEMCPY2D {
        srcXInBytes: 3,
        srcY: 2,
        srcMemoryType: CUmemorytype::HOST,
        srcHost: content.as_ptr().cast(),
        srcDevice: 0,
        srcArray: CUarray::NULL,
        srcPitch: 32,
        dstXInBytes: 20,
        dstY: 7,
        dstMemoryType: CUmemorytype::DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: address,
        dstArray: CUarray::NULL,
        dstPitch: 64,
        WidthInBytes: 10,
        Height: 5,
    };
    cuMemcpy2D_v2(In::of(&copy)).unwrap();
    let mut expected = vec![0xee; 64 * 32];
    for y in 0..5 {
        expected[(7 + y) * 64 + 20..][..10].copy_from_slice(&content[(2 + y) * 32 + 3..][..10]);
    }
    assert_eq!(read(address, 64 * 32), expected);
    copy.srcPitch = 9;
    assert_eq!(
        cuMemcpy2D_v2(In::of(&copy)),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    copy.srcPitch = 32;
    copy.Height = 30;
    assert_eq!(
        cuMemcpy2D_v2(In::of(&copy)),
        Err(CUresult::ERROR_INVALID_VALUE),
        "beyond the end"
    );
    let mut back = vec![0; 4 * 3 * 2];
    // A box of 4 × 3 × 2 from (1, 1, 1) of slices of 8 rows of 64 bytes, packed.
    let box_copy = CUDA_MEMCPY3D {
        srcXInBytes: 20,
        srcY: 7,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: address,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: 64,
        srcHeight: 10,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstDevice: 0,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: 4,
        dstHeight: 3,
        WidthInBytes: 4,
        Height: 3,
        Depth: 2,
    };
    cuMemcpy3D_v2(In::of(&box_copy)).unwrap();
    let mut expected_box: Vec<u8> = Vec::new();
    for z in 0..2 {
        for y in 0..3 {
            expected_box.extend(&expected[(z * 10 + 7 + y) * 64 + 20..][..4]);
        }
    }
    assert_eq!(back, expected_box);
    cuMemsetD2D16_v2(address, 64, 0x0102, 3, 2).unwrap();
    assert_eq!(read(address + 64, 8), [2, 1, 2, 1, 2, 1, 0xee, 0xee]);
    assert_eq!(
        cuMemsetD32_v2(address + 2, 0, 1),
        Err(CUresult::ERROR_INVALID_VALUE),
        "not aligned"
    );
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn launches_carry_their_parameters_either_way() {
    let mine = context(0);
    let module = load("kernel store 8 8\nkernel odd 1 4 2 8\n\0");
    let store = function(module, "store\0");
    let (mut to, mut value) = (allocate(8), 0x1122_3344_5566_7788_u64);
    launch(
        store,
        CUstream::NULL,
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    assert_eq!(read(to, 8), value.to_le_bytes());
    let mut block = [to, 42];
    let (mut size, mut less) = (16_usize, 8_usize);
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
        block.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
        (&raw mut size).cast(),
        std::ptr::null_mut(),
    ];
    let by_extra = |function, extra: *mut *mut c_void| {
        cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            CUstream::NULL,
            std::ptr::null_mut(),
            extra,
        )
    };
    by_extra(store, extra.as_mut_ptr()).unwrap();
    assert_eq!(read(to, 8), 42_u64.to_le_bytes());
    extra[3] = (&raw mut less).cast();
    assert_eq!(
        by_extra(store, extra.as_mut_ptr()),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    assert_eq!(
        by_extra(store, std::ptr::null_mut()),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    let (mut offset, mut bytes) = (0, 0);
    let odd = function(module, "odd\0");
    cuFuncGetParamInfo(odd, 3, out(&mut offset), out(&mut bytes)).unwrap();
    assert_eq!((offset, bytes), (16, 8));
    let past = cuFuncGetParamInfo(odd, 4, out(&mut offset), out(&mut bytes));
    assert_eq!(past, Err(CUresult::ERROR_INVALID_VALUE));
    let mut missing = CUfunction::NULL;
    let missing = cuModuleGetFunction(out(&mut missing), module, text("nothing\0"));
    assert_eq!(missing, Err(CUresult::ERROR_NOT_FOUND));
    cuModuleUnload(module).unwrap();
    assert_eq!(
        launch(store, CUstream::NULL, &mut []),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(cuModuleUnload(module), Err(CUresult::ERROR_INVALID_HANDLE));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn wrong_shapes_are_refused_at_once() {
    let mine = context(0);
    let module = load("kernel plain\n\0");
    let plain = function(module, "plain\0");
    let shaped = |grid: [u32; 3], block: [u32; 3], shared| {
        let none = std::ptr::null_mut();
        cuLaunchKernel(
            plain,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared,
            CUstream::NULL,
            none,
            none,
        )
    };
    let one = [1, 1, 1];
    assert_eq!(shaped(one, [512, 1, 1], 48 << 10 >> 1), Ok(()));
    for (grid, block, shared, error) in [
        ([0, 1, 1], one, 0, CUresult::ERROR_INVALID_VALUE),
        (one, [1, 0, 1], 0, CUresult::ERROR_INVALID_VALUE),
        ([1, 65536, 1], one, 0, CUresult::ERROR_INVALID_VALUE),
        (one, [1, 1, 65], 0, CUresult::ERROR_INVALID_VALUE),
        (one, [64, 64, 1], 0, CUresult::ERROR_INVALID_VALUE),
        (one, [513, 1, 1], 0, CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES),
        (one, one, 48 << 10, CUresult::ERROR_INVALID_VALUE),
    ] {
        assert_eq!(
            shaped(grid, block, shared),
            Err(error),
            "{grid:?} {block:?} {shared}"
        );
    }
    // With leave for more shared memory, the same launch goes.
    let most = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(
        cuFuncSetAttribute(plain, most, 200 << 10),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    cuFuncSetAttribute(plain, most, 48 << 10).unwrap();
    assert_eq!(shaped(one, one, 48 << 10), Ok(()));
    let cooperative = |blocks| {
        let none = std::ptr::null_mut();
        cuLaunchCooperativeKernel(plain, blocks, 1, 1, 512, 1, 1, 0, CUstream::NULL, none)
    };
    assert_eq!(cooperative(16), Ok(()));
    assert_eq!(
        cooperative(17),
        Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    );
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn launch_attributes_travel_whole() {
    let shared = start();
    let mine = context(0);
    let module = load("kernel with_attributes 4\n\0");
    let mut value = [7_u8; 64];
    value[63] = 9;
    let mut attributes = [CUlaunchAttribute {
        id: CUlaunchAttributeID::CLUSTER_DIMENSION,
        pad: [0; 4],
        value: CUlaunchAttributeValue(value),
    }];
    let config = CUlaunchConfig {
        gridDimX: 4,
        gridDimY: 3,
        gridDimZ: 2,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: 1,
    };
    let mut parameter = 5_u32;
    let mut each: [*mut c_void; 1] = [(&raw mut parameter).cast()];
    let kernel = function(module, "with_attributes\0");
    cuLaunchKernelEx(
        In::of(&config),
        kernel,
        each.as_mut_ptr(),
        std::ptr::null_mut(),
    )
    .unwrap();
    cuCtxSynchronize().unwrap();
    let launches = shared.launches.lock().unwrap();
    let launched = launches
        .iter()
        .find(|launched| launched.name == "with_attributes")
        .unwrap();
    assert_eq!(
        (launched.request.grid, launched.request.attributes),
        ([4, 3, 2], 1)
    );
    assert_eq!(launched.data[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(launched.data[8..72], value);
    assert_eq!(launched.data[72..], [5, 0, 0, 0]);
    drop(launches);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn streams_and_events_keep_their_order() {
    let _gate = gate();
    let shared = start();
    let mine = context(0);
    let module = load("kernel gate\nkernel store 8 8\n\0");
    let (held, store) = (function(module, "gate\0"), function(module, "store\0"));
    let mut streams = [CUstream::NULL; 2];
    let mut events = [CUevent::NULL; 3];
    streams
        .iter_mut()
        .for_each(|stream| cuStreamCreate(out(stream), CU_STREAM_NON_BLOCKING).unwrap());
    events
        .iter_mut()
        .for_each(|event| cuEventCreate(out(event), 0).unwrap());
    let mut time = 0.0;
    let unrecorded = cuEventElapsedTime(out(&mut time), events[0], events[1]);
    assert_eq!(unrecorded, Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(cuEventQuery(events[0]), Ok(()));
    cuEventRecord(events[0], streams[0]).unwrap();
    launch(held, streams[0], &mut []).unwrap();
    cuEventRecord(events[1], streams[0]).unwrap();
    cuStreamWaitEvent(streams[1], events[1], 0).unwrap();
    let (mut to, mut value) = (allocate(8), 77_u64);
    launch(
        store,
        streams[1],
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    cuEventRecord(events[2], streams[1]).unwrap();
    cuEventSynchronize(events[0]).unwrap();
    for event in &events[1..] {
        assert_eq!(cuEventQuery(*event), Err(CUresult::ERROR_NOT_READY));
    }
    assert_eq!(cuStreamQuery(streams[1]), Err(CUresult::ERROR_NOT_READY));
    assert_eq!(
        cuEventElapsedTime(out(&mut time), events[0], events[1]),
        Err(CUresult::ERROR_NOT_READY)
    );
    assert_eq!(
        read(to, 8),
        [0; 8],
        "another stream is not held up, and sees nothing yet"
    );
    shared.open_gate(true);
    cuEventSynchronize(events[2]).unwrap();
    assert_eq!(cuStreamQuery(streams[0]), Ok(()));
    assert_eq!(read(to, 8), 77_u64.to_le_bytes());
    cuEventElapsedTime(out(&mut time), events[0], events[1]).unwrap();
    assert!(time >= 1.0, "{time}");
    cuStreamDestroy(streams[0]).unwrap();
    assert_eq!(
        cuStreamDestroy(streams[0]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        cuStreamQuery(streams[0]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        cuEventQuery(events[1]),
        Ok(()),
        "an event outlives its stream"
    );
    cuEventDestroy(events[0]).unwrap();
    assert_eq!(cuEventQuery(events[0]), Err(CUresult::ERROR_INVALID_HANDLE));
    cuCtxDestroy(mine).unwrap();
    assert_eq!(cuEventQuery(events[1]), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(
        cuStreamQuery(streams[1]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
}

#[test]
fn a_full_stream_makes_its_poster_wait_and_no_other() {
    let _gate = gate();
    let shared = start();
    let mine = context(0);
    let module = load("kernel gate\nkernel nothing\n\0");
    let (held, nothing) = (function(module, "gate\0"), function(module, "nothing\0"));
    let mut streams = [CUstream::NULL; 2];
    streams
        .iter_mut()
        .for_each(|stream| cuStreamCreate(out(stream), CU_STREAM_NON_BLOCKING).unwrap());
    launch(held, streams[0], &mut []).unwrap();
    let bits = (nothing.bits(), streams[0].bits());
    let poster = std::thread::spawn(move || {
        let (nothing, stream) = (CUfunction::from_bits(bits.0), CUstream::from_bits(bits.1));
        for _ in 0..3000 {
            launch(nothing, stream, &mut []).unwrap();
        }
    });
    for _ in 0..3000 {
        launch(nothing, streams[1], &mut []).unwrap();
    }
    cuStreamSynchronize(streams[1]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!poster.is_finished(), "only so many may be on their way");
    shared.open_gate(true);
    poster.join().unwrap();
    cuCtxSynchronize().unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn the_threads_own_stream_is_another_in_each_thread() {
    let mine = context(0);
    let id = |stream| {
        let mut id = 0;
        cuStreamGetId(stream, out(&mut id)).unwrap();
        id
    };
    let (legacy, own) = (id(CUstream::NULL), id(CUstream::PER_THREAD));
    assert_eq!(legacy, id(CUstream::LEGACY));
    assert_ne!(legacy, own);
    assert_eq!(own, id(CUstream::PER_THREAD));
    assert_eq!(crate::stream::per_thread(|| id(CUstream::NULL)), own);
    assert_eq!(crate::stream::per_thread(|| id(CUstream::LEGACY)), legacy);
    assert_eq!(
        id(CUstream::NULL),
        legacy,
        "the twin's meaning ends with it"
    );
    let bits = mine.bits();
    let other = std::thread::spawn(move || {
        cuCtxSetCurrent(CUcontext::from_bits(bits)).unwrap();
        id(CUstream::PER_THREAD)
    });
    assert_ne!(other.join().unwrap(), own);
    cuCtxDestroy(mine).unwrap();
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
    // The slot's next tenant is not ill.
    let next = context(1);
    assert_eq!(cuCtxSynchronize(), Ok(()));
    cuCtxDestroy(next).unwrap();
}

#[test]
fn libraries_need_no_context_and_become_modules_in_each() {
    start();
    let mut library = CUlibrary::NULL;
    let image = "kernel store 8 8\nvariable counter 16\nkernel other 4\n\0";
    // SAFETY: no options, so no arrays.
    let none = || unsafe { List::new(std::ptr::null()) };
    // SAFETY: as above.
    let no_values = || unsafe { List::new(std::ptr::null()) };
    // SAFETY: as above.
    let no_options = || unsafe { List::new(std::ptr::null()) };
    cuLibraryLoadData(
        out(&mut library),
        image.as_ptr().cast(),
        none(),
        no_values(),
        0,
        no_options(),
        no_values(),
        1,
    )
    .unwrap();
    let mut kernel = CUkernel::NULL;
    cuLibraryGetKernel(out(&mut kernel), library, text("store\0")).unwrap();
    let most = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    cuKernelSetAttribute(most, 50 << 10, kernel, 0).unwrap();
    let mut functions = Vec::new();
    for device in 0..2 {
        let mine = context(device);
        let (mut to, mut value) = (allocate(8), 5 + device as u64);
        let as_function = CUfunction::from_bits(kernel.bits());
        launch(
            as_function,
            CUstream::NULL,
            &mut [(&raw mut to).cast(), (&raw mut value).cast()],
        )
        .unwrap();
        assert_eq!(read(to, 8), value.to_le_bytes());
        let mut function = CUfunction::NULL;
        cuKernelGetFunction(out(&mut function), kernel).unwrap();
        assert!(!functions.contains(&function));
        functions.push(function);
        let mut set = 0;
        cuFuncGetAttribute(out(&mut set), most, function).unwrap();
        assert_eq!(set, 50 << 10, "what was set before it was made");
        let (mut address, mut bytes) = (0, 0);
        cuLibraryGetGlobal(
            out(&mut address),
            out(&mut bytes),
            library,
            text("counter\0"),
        )
        .unwrap();
        assert_eq!(bytes, 16);
        assert_eq!(read(address, 16), [0; 16]);
        cuCtxDestroy(mine).unwrap();
        let mut name = std::ptr::null();
        assert_eq!(
            cuFuncGetName(out(&mut name), function),
            Err(CUresult::ERROR_INVALID_HANDLE)
        );
    }
    let mut count = 0;
    cuLibraryGetKernelCount(out(&mut count), library).unwrap();
    let mut kernels = [CUkernel::NULL; 3];
    // SAFETY: room for three.
    let list = unsafe { ListOut::new(kernels.as_mut_ptr()) };
    cuLibraryEnumerateKernels(list, 3, library).unwrap();
    assert_eq!((count, kernels[0], kernels[2]), (2, kernel, CUkernel::NULL));
    let mut name = std::ptr::null();
    cuKernelGetName(out(&mut name), kernels[1]).unwrap();
    // SAFETY: the name lives as long as the library.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"other");
    cuLibraryUnload(library).unwrap();
    assert_eq!(
        cuKernelGetName(out(&mut name), kernel),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        cuLibraryUnload(library),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
}

#[test]
fn images_tell_their_errors_and_long_ones_are_described_in_full() {
    let mine = context(0);
    let mut log = [0_u8; 64];
    let options = [
        CUjit_option::ERROR_LOG_BUFFER,
        CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(64),
    ];
    let mut module = CUmodule::NULL;
    let image = c"fail line 3: bad\n".as_ptr().cast();
    // SAFETY: both arrays have two entries.
    let (options, list) = unsafe {
        (
            List::new(options.as_ptr()),
            List::new(values.as_mut_ptr().cast_const()),
        )
    };
    let failed = cuModuleLoadDataEx(out(&mut module), image, 2, options, list);
    assert_eq!(failed, Err(CUresult::ERROR_INVALID_PTX));
    assert!(log.starts_with(b"line 3: bad\0"));
    assert_eq!(values[1].addr(), 12);
    let long = load("kernel store 8 8\npad\n\0");
    let mut count = 0;
    cuModuleGetFunctionCount(out(&mut count), long).unwrap();
    assert_eq!(count, 4001);
    function(long, "padding_3999\0");
    // Larger than what may be on its way at once.
    let mut large = vec![b'\n'; 20 << 20];
    large.extend(b"kernel last\n\0");
    cuModuleLoadData(out(&mut module), large.as_ptr().cast()).unwrap();
    function(module, "last\0");
    let nowhere = cuModuleLoad(out(&mut module), text("/nonexistent/image.ptx\0"));
    assert_eq!(nowhere, Err(CUresult::ERROR_FILE_NOT_FOUND));
    cuCtxDestroy(mine).unwrap();
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
fn what_is_not_built_is_said_once() {
    let shared = start();
    let before = crate::absent::calls(Function::cuLinkDestroy);
    for _ in 0..3 {
        let answer = crate::absent::absent(Function::cuLinkDestroy);
        assert_eq!(answer, Err(CUresult::ERROR_NOT_SUPPORTED));
    }
    assert_eq!(crate::absent::calls(Function::cuLinkDestroy), before + 3);
    let mine = context(0);
    cuMemGetInfo_v2(out(&mut 0), out(&mut 0)).unwrap(); // comes after what was posted before
    let named = shared.not_supported.lock().unwrap().clone();
    let wanted = u32::from(Function::cuLinkDestroy.number());
    assert_eq!(named.iter().filter(|number| **number == wanted).count(), 1);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn many_threads_use_their_streams_at_once() {
    let mine = context(0);
    let module = load("kernel store 8 8\n\0");
    let store = function(module, "store\0");
    let bits = (mine.bits(), store.bits());
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            std::thread::spawn(move || {
                cuCtxSetCurrent(CUcontext::from_bits(bits.0)).unwrap();
                let store = CUfunction::from_bits(bits.1);
                let mut stream = CUstream::NULL;
                cuStreamCreate(out(&mut stream), 0).unwrap();
                let mut to = allocate(8);
                for round in 0..500 {
                    let mut value = number * 1000 + round;
                    launch(
                        store,
                        stream,
                        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
                    )
                    .unwrap();
                }
                cuStreamSynchronize(stream).unwrap();
                let last = u64::from_le_bytes(read(to, 8).try_into().unwrap());
                cuStreamDestroy(stream).unwrap();
                cuMemFree_v2(to).unwrap();
                assert_eq!(last, number * 1000 + 499);
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    cuCtxDestroy(mine).unwrap();
}

/// Not a test of anything: says what a launch costs the thread that posts it. Run with
/// `cargo test -p client --release -- --ignored --nocapture posting`.
#[test]
#[ignore = "it measures"]
fn posting() {
    let mine = context(0);
    let module = load("kernel plain 8 8 4\n\0");
    let plain = function(module, "plain\0");
    let (mut a, mut b, mut c) = (1_u64, 2_u64, 3_u32);
    let mut params: [*mut c_void; 3] = [
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut c).cast(),
    ];
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..200 {
        let begin = std::time::Instant::now();
        for _ in 0..500 {
            launch(plain, CUstream::NULL, &mut params).unwrap();
        }
        times.push(begin.elapsed().as_nanos() as f64 / 500.0);
        cuCtxSynchronize().unwrap();
    }
    times.sort_by(f64::total_cmp);
    println!(
        "a launch: {:.0} ns at best, {:.0} ns in the middle",
        times[0], times[100]
    );
    cuCtxDestroy(mine).unwrap();
}
