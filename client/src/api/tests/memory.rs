//! Memory, copies and fills.
//!
//! They show that bytes arrive by each way and nothing beside them changes, and what is freed for whom.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::In;
use crate::testing::*;

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
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
fn opened_memory_lies_where_nothing_of_the_programs_can() {
    let mine = context(0);
    let unit = 2 << 20;
    let open = |address, bytes| {
        let mut opened = 0;
        let reserved = handle_of(*b"OMPSmem1", [address, bytes, 0, 0]);
        cuIpcOpenMemHandle_v2(out(&mut opened), CUipcMemHandle { reserved }, 1).map(|()| opened)
    };
    let session = crate::session::session().unwrap();
    // In a window that the client has had no address of so far.
    assert!(!session.is_in_device_window(FURTHER));
    let opened = open(FURTHER + unit, unit).unwrap();
    assert_eq!(opened, FURTHER + unit);
    assert!(session.is_in_device_window(opened));
    assert!(session.is_in_device_window(FURTHER + WINDOW - 1));
    let (mut base, mut size) = (0, 0);
    cuMemGetAddressRange_v2(out(&mut base), out(&mut size), opened + 5).unwrap();
    assert_eq!((base, size), (opened, unit as usize));
    // In another client's, which may have it elsewhere one day.
    let others = FURTHER + 2 * WINDOW;
    assert_eq!(open(others, unit), Ok(others));
    assert!(!session.is_in_device_window(others));
    for address in [opened, others] {
        cuIpcCloseMemHandle(address).unwrap();
        assert_eq!(
            cuIpcCloseMemHandle(address),
            Err(CUresult::ERROR_INVALID_VALUE)
        );
    }
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
    cuPointerGetAttribute(untyped(data), CUpointer_attribute::MEMORY_TYPE, host + 5).unwrap();
    assert_eq!(kind, CUmemorytype::HOST.0);
    cuPointerGetAttribute(untyped(data), CUpointer_attribute::MEMORY_TYPE, address).unwrap();
    assert_eq!(kind, CUmemorytype::DEVICE.0);
    let mut managed = u32::MAX;
    let data_of_managed = (&raw mut managed).cast();
    cuPointerGetAttribute(
        untyped(data_of_managed),
        CUpointer_attribute::IS_MANAGED,
        address,
    )
    .unwrap();
    assert_eq!(managed, 0, "all four bytes of it");
    let own = own.as_ptr() as u64;
    let unknown = cuPointerGetAttribute(untyped(data), CUpointer_attribute::MEMORY_TYPE, own);
    assert_eq!(unknown, Err(CUresult::ERROR_INVALID_VALUE));
    let mut flags = 0;
    cuMemHostGetFlags(out(&mut flags), address_of(pinned)).unwrap();
    cuMemFreeHost(address_of(pinned)).unwrap();
    assert_eq!(
        cuMemFreeHost(address_of(pinned)),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    cuCtxDestroy(mine).unwrap();
}

/// What UCX and NCCL ask before they share a block.
#[test]
fn memory_says_whether_it_has_a_handle_for_other_processes() {
    let mine = context(0);
    let (mut managed, mut pooled) = (0, 0);
    cuMemAllocManaged(out(&mut managed), 4096, CU_MEM_ATTACH_GLOBAL).unwrap();
    cuMemAllocAsync(out(&mut pooled), 4096, CUstream::NULL).unwrap();
    for (address, expected) in [(allocate(4096) + 5, 1), (managed, 0), (pooled, 0)] {
        let mut has = [9_u8; 2];
        let attribute = CUpointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE;
        cuPointerGetAttribute(untyped(has.as_mut_ptr().cast()), attribute, address).unwrap();
        assert_eq!(has, [expected, 9]);
    }
    cuMemFreeAsync(pooled, CUstream::NULL).unwrap();
    cuMemFree_v2(managed).unwrap();
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

/// Reserved and used bytes of a device's pool.
fn counts(pool: CUmemoryPool) -> (u64, u64) {
    let count = |attribute| {
        let mut bytes = u64::MAX;
        cuMemPoolGetAttribute(pool, attribute, untyped((&raw mut bytes).cast())).expect("a count");
        bytes
    };
    (
        count(CUmemPool_attribute::RESERVED_MEM_CURRENT),
        count(CUmemPool_attribute::USED_MEM_CURRENT),
    )
}

#[test]
fn a_pool_gives_a_block_to_whom_the_streams_order_allows_it() {
    let _gate = GATE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let shared = start();
    // A device of its own in this file, so that nobody else's blocks are in the pool.
    let mine = context(1);
    let mut pool = CUmemoryPool::NULL;
    cuDeviceGetDefaultMemPool(out(&mut pool), 1).unwrap();
    assert_eq!(counts(pool), (0, 0));
    let stream = || {
        let mut stream = CUstream::NULL;
        cuStreamCreate(out(&mut stream), CU_STREAM_NON_BLOCKING).expect("a stream");
        stream
    };
    let (first, second) = (stream(), stream());
    let alloc = |bytes, stream| {
        let mut address = 0;
        cuMemAllocAsync(out(&mut address), bytes, stream).map(|()| address)
    };
    shared.open_gate(false);
    let gate = function(load("kernel gate\0"), "gate\0");
    launch(gate, first, &mut []).unwrap();
    let block = alloc(5000, first).unwrap();
    assert_eq!(counts(pool), (5120, 5000));
    cuMemFreeAsync(block, first).unwrap();
    assert_eq!(
        cuMemFreeAsync(block, first),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    assert_eq!(counts(pool), (5120, 0));
    // The stream itself may have it at once, another only behind the free.
    assert_eq!(alloc(4000, first), Ok(block));
    cuMemFreeAsync(block, first).unwrap();
    let other = alloc(5000, second).unwrap();
    assert_ne!(other, block);
    let mut event = CUevent::NULL;
    cuEventCreate(out(&mut event), CU_EVENT_DISABLE_TIMING).unwrap();
    cuEventRecord(event, first).unwrap();
    cuStreamWaitEvent(second, event, 0).unwrap();
    assert_eq!(alloc(5000, second), Ok(block), "an event behind the free");
    let handle = (&raw mut pool).cast();
    cuPointerGetAttribute(
        untyped(handle),
        CUpointer_attribute::MEMPOOL_HANDLE,
        block + 9,
    )
    .unwrap();
    assert!(!pool.is_null());
    for address in [block, other] {
        cuMemFreeAsync(address, second).unwrap();
    }
    // Too large by far, a block stays where it is.
    let tiny = alloc(1, second).unwrap();
    assert_eq!(counts(pool).1, 1, "what was asked for");
    cuMemFreeAsync(tiny, second).unwrap();
    assert_eq!(counts(pool), (2 * 5120, 0));
    cuMemPoolTrimTo(pool, 0).unwrap();
    assert_eq!(counts(pool), (2 * 5120, 0), "work still uses them");
    shared.open_gate(true);
    cuStreamSynchronize(second).unwrap();
    assert_eq!(counts(pool), (0, 0), "the threshold is 0");
    // A threshold keeps what there is.
    let keep = |mut bytes: u64| {
        let value = (&raw mut bytes).cast();
        cuMemPoolSetAttribute(pool, CUmemPool_attribute::RELEASE_THRESHOLD, untyped(value))
            .unwrap();
    };
    keep(6000);
    for address in [alloc(5000, first).unwrap(), alloc(5000, first).unwrap()] {
        cuMemFreeAsync(address, first).unwrap();
    }
    cuStreamSynchronize(first).unwrap();
    assert!(counts(pool).0 <= 6000 && counts(pool).1 == 0);
    keep(0);
    assert_eq!(
        cuMemPoolDestroy(pool),
        Err(CUresult::ERROR_INVALID_VALUE),
        "a device's own"
    );
    cuCtxDestroy(mine).unwrap();
    assert_eq!(counts(pool), (0, 0), "the context took the rest with it");
}

#[test]
fn managed_memory_is_advised_prefetched_and_freed_as_device_memory_is() {
    let mine = context(0);
    let mut address = 0;
    assert_eq!(
        cuMemAllocManaged(out(&mut address), 100, CU_MEM_ATTACH_SINGLE),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    cuMemAllocManaged(out(&mut address), 100_000, CU_MEM_ATTACH_GLOBAL).unwrap();
    let mut word = 9_u32;
    let data = (&raw mut word).cast();
    cuPointerGetAttribute(untyped(data), CUpointer_attribute::IS_MANAGED, address + 5).unwrap();
    assert_eq!(word, 1);
    cuPointerGetAttribute(untyped(data), CUpointer_attribute::MEMORY_TYPE, address).unwrap();
    assert_eq!(word, CUmemorytype::DEVICE.0);
    let plain = allocate(1000);
    for wrong in [
        cuMemPrefetchAsync(plain, 1000, 0, CUstream::NULL),
        cuMemPrefetchAsync(address, 100_001, 0, CUstream::NULL),
        cuMemPrefetchAsync(address, 0, 0, CUstream::NULL),
        cuMemAdvise(address, 10, CUmem_advise(7), 0),
        cuMemAdvise(plain, 10, CUmem_advise::SET_READ_MOSTLY, 0),
    ] {
        assert_eq!(wrong, Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(
        cuMemPrefetchAsync(address, 1000, 9, CUstream::NULL),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    cuMemPrefetchAsync(address, 1000, 1, CUstream::NULL).unwrap();
    let mut where_to = -5_i32;
    let ask = |value: &mut i32, count| {
        // SAFETY: the room is as large as is said, and outlives the call.
        let data = unsafe { crate::pointers::BytesOut::new((&raw mut *value).cast()) };
        let last = CUmem_range_attribute::LAST_PREFETCH_LOCATION;
        cuMemRangeGetAttribute(data, 4, last, address, count)
    };
    ask(&mut where_to, 1000).unwrap();
    assert_eq!(where_to, 1);
    ask(&mut where_to, 1001).unwrap();
    assert_eq!(where_to, CU_DEVICE_INVALID, "not all of it");
    cuMemFree_v2(address).unwrap();
    assert_eq!(cuMemFree_v2(address), Err(CUresult::ERROR_INVALID_VALUE));
    cuCtxDestroy(mine).unwrap();
}
