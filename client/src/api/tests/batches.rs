//! Batches of boxes and of managed ranges, and pools that are shared.
//!
//! They show what a batch carries out and which ranges and pools it is refused for.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, List, Out};
use crate::testing::*;

const WRONG: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

fn list<T: Copy>(values: &[T]) -> List<T> {
    // SAFETY: the tests' slices outlive the calls.
    unsafe { List::new(values.as_ptr(), values.len()) }
}

fn stream() -> CUstream {
    let mut stream = CUstream::NULL;
    cuStreamCreate(out(&mut stream), 0).unwrap();
    stream
}

#[test]
fn boxes_are_copied_in_a_batch() {
    let mine = context(0);
    let stream = stream();
    let (from, to) = (allocate(64 * 8), allocate(64 * 8));
    let content: Vec<u8> = (0..64 * 8).map(|at| (at % 251) as u8).collect();
    cuMemcpyHtoD_v2(from, bytes(&content), content.len()).unwrap();
    cuMemsetD8_v2(to, 0, 64 * 8).unwrap();
    let side = |address, row, layer| CUmemcpy3DOperand {
        r#type: 1,
        op: [address, row, layer, 0],
    };
    let good = CUDA_MEMCPY3D_BATCH_OP {
        src: side(from, 16, 8),
        dst: side(to, 0, 0),
        extent: [10, 4, 2],
        srcAccessOrder: 1,
        flags: 0,
    };
    let second = CUDA_MEMCPY3D_BATCH_OP {
        src: side(from + 5, 0, 0),
        dst: side(to + 100, 0, 0),
        extent: [7, 1, 1],
        ..good
    };
    let go =
        |list: List<_>, count, flags, stream| cuMemcpy3DBatchAsync_v2(count, list, flags, stream);
    go(list(&[good, second]), 2, 0, stream).unwrap();
    cuStreamSynchronize(stream).unwrap();
    let copied = read(to, 107);
    for z in 0..2 {
        for y in 0..4 {
            let (there, here) = ((z * 4 + y) * 10, (z * 8 + y) * 16);
            assert_eq!(copied[there..there + 10], content[here..here + 10]);
        }
    }
    assert_eq!(copied[80..100], [0; 20]);
    assert_eq!(copied[100..], content[5..12]);
    for wrong in [
        CUDA_MEMCPY3D_BATCH_OP {
            extent: [10, 4, 0],
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            srcAccessOrder: 0,
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            srcAccessOrder: 4,
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP { flags: 2, ..good },
        CUDA_MEMCPY3D_BATCH_OP {
            src: side(from, 9, 8),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            src: side(from, 16, 3),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            src: side(0, 16, 8),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            src: side(from, 1 << 60, 1 << 10),
            ..good
        },
        CUDA_MEMCPY3D_BATCH_OP {
            src: CUmemcpy3DOperand {
                r#type: 3,
                op: [from, 0, 0, 0],
            },
            ..good
        },
    ] {
        let mut failed = 0;
        let both = [good, wrong];
        let refused = cuMemcpy3DBatchAsync(2, list(&both), out(&mut failed), 0, stream);
        assert_eq!((refused, failed), (WRONG, 1), "{wrong:?}");
    }
    assert_eq!(go(list(&[good]), 0, 0, stream), WRONG);
    assert_eq!(go(list(&[good]), 1, 1, stream), WRONG);
    assert_eq!(go(list(&[good]), 1, 0, CUstream::NULL), WRONG);
    assert_eq!(go(List::null(), 1, 0, stream), WRONG);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn managed_ranges_go_in_a_batch() {
    let mine = context(0);
    let stream = stream();
    let mut managed = 0;
    cuMemAllocManaged(out(&mut managed), 8192, CU_MEM_ATTACH_GLOBAL).unwrap();
    let device = allocate(4096);
    let places = [0, 1].map(|id| CUmemLocation {
        r#type: CU_MEM_LOCATION_TYPE_DEVICE,
        id,
    });
    let both = [managed, managed + 4096];
    let sizes = [4096_usize; 2];
    let prefetch = |dptrs: &[u64], count, indices: &[usize], flags, stream| {
        cuMemPrefetchBatchAsync(
            list(dptrs),
            list(&sizes),
            count,
            list(&places),
            list(indices),
            indices.len(),
            flags,
            stream,
        )
    };
    prefetch(&both, 2, &[0, 1], 0, stream).unwrap();
    for (address, expected) in [(managed, 0), (managed + 4096, 1)] {
        let mut place = [0; 4];
        let attribute = CUmem_range_attribute::LAST_PREFETCH_LOCATION;
        cuMemRangeGetAttribute(room(&mut place), 4, attribute, address, 4096).unwrap();
        assert_eq!(i32::from_ne_bytes(place), expected);
    }
    assert_eq!(prefetch(&[device], 1, &[0], 0, stream), WRONG);
    assert_eq!(prefetch(&both, 0, &[0], 0, stream), WRONG);
    assert_eq!(prefetch(&both, 2, &[1], 0, stream), WRONG);
    assert_eq!(prefetch(&both, 2, &[], 0, stream), WRONG);
    assert_eq!(prefetch(&both, 1, &[0, 1], 0, stream), WRONG);
    assert_eq!(prefetch(&both, 2, &[0], 1, stream), WRONG);
    assert_eq!(prefetch(&both, 2, &[0], 0, CUstream::NULL), WRONG);
    let discard = |dptrs: &[u64], count, flags, stream| {
        cuMemDiscardBatchAsync(list(dptrs), list(&sizes), count, flags, stream)
    };
    discard(&both, 2, 0, stream).unwrap();
    assert_eq!(discard(&[device], 1, 0, stream), WRONG);
    assert_eq!(discard(&both, 0, 0, stream), WRONG);
    assert_eq!(discard(&both, 2, 1, stream), WRONG);
    assert_eq!(discard(&both, 2, 0, CUstream::NULL), WRONG);
    let none = cuMemBatchDecompressAsync(List::null(), 0, 0, Out::null(), stream);
    assert_eq!(none, Err(CUresult::ERROR_NOT_SUPPORTED));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn a_pool_is_shared_only_if_it_was_made_so() {
    let mine = context(0);
    let properties = |handles| CUmemPoolProps {
        allocType: CUmemAllocationType::PINNED,
        handleTypes: handles,
        location: CUmemLocation {
            r#type: CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let pool = |handles| {
        let mut pool = CUmemoryPool::NULL;
        cuMemPoolCreate(out(&mut pool), In::of(&properties(handles))).unwrap();
        pool
    };
    let posix = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    let (plain, shared) = (pool(CUmemAllocationHandleType::NONE), pool(posix));
    let last = std::cell::Cell::new(-1_i32);
    let export = |pool, kind, flags| {
        cuMemPoolExportToShareableHandle(untyped(last.as_ptr().cast()), pool, kind, flags)
    };
    assert_eq!(export(plain, posix, 0), WRONG);
    assert_eq!(export(shared, CUmemAllocationHandleType::NONE, 0), WRONG);
    assert_eq!(export(shared, posix, 1), WRONG);
    assert_eq!(export(CUmemoryPool::NULL, posix, 0), WRONG);
    export(shared, posix, 0).unwrap();
    let fd = last.get();
    let null = cuMemPoolExportToShareableHandle(untyped(std::ptr::null_mut()), shared, posix, 0);
    assert_eq!(null, WRONG);
    let mut imported = CUmemoryPool::NULL;
    let mut import = |fd: i32, kind, flags| {
        let handle = std::ptr::without_provenance_mut::<c_void>(fd as usize);
        cuMemPoolImportFromShareableHandle(out(&mut imported), address_of(handle), kind, flags)
    };
    let other = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(
        import(std::os::fd::AsRawFd::as_raw_fd(&other), posix, 0),
        WRONG
    );
    assert_eq!(import(-1, posix, 0), WRONG);
    assert_eq!(import(fd, posix, 1), WRONG);
    assert_eq!(import(fd, CUmemAllocationHandleType::NONE, 0), WRONG);
    import(fd, posix, 0).unwrap();
    // It has memory and settings where it was made, and only there.
    let mut address = 0;
    let stream = stream();
    let mut bytes = 0_u64;
    let data = (&raw mut bytes).cast::<c_void>();
    let attribute = CUmemPool_attribute::RELEASE_THRESHOLD;
    for refused in [
        cuMemAllocFromPoolAsync(out(&mut address), 64, imported, stream),
        cuMemPoolGetAttribute(imported, attribute, untyped(data)),
        cuMemPoolSetAttribute(imported, attribute, untyped(data)),
        cuMemPoolTrimTo(imported, 0),
        cuDeviceSetMemPool(0, imported),
        export(imported, posix, 0),
    ] {
        assert_eq!(refused, WRONG);
    }
    cuMemAllocFromPoolAsync(out(&mut address), 1000, plain, stream).unwrap();
    let mut token = CUmemPoolPtrExportData { reserved: [0; 64] };
    assert_eq!(cuMemPoolExportPointer(out(&mut token), address), WRONG);
    cuMemFreeAsync(address, stream).unwrap();
    cuMemAllocFromPoolAsync(out(&mut address), 1000, shared, stream).unwrap();
    let mut types = 0_u64;
    let wanted = CUpointer_attribute::ALLOWED_HANDLE_TYPES;
    cuPointerGetAttribute(untyped((&raw mut types).cast()), wanted, address).unwrap();
    assert_eq!(types, 1);
    assert_eq!(cuMemPoolExportPointer(Out::null(), address), WRONG);
    assert_eq!(cuMemPoolExportPointer(out(&mut token), address + 16), WRONG);
    let forged = cuMemPoolImportPointer(out(&mut address), imported, In::of(&token));
    assert_eq!(forged, WRONG);
    cuMemPoolDestroy(imported).unwrap();
    assert_eq!(cuMemPoolDestroy(imported), WRONG);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn a_range_has_no_dma_buffer() {
    let mine = context(0);
    let address = allocate(64 << 10).next_multiple_of(4096);
    let mut fd = -1_i32;
    let kind = CUmemRangeHandleType::DMA_BUF_FD;
    let mut get = |address, size, kind| {
        cuMemGetHandleForAddressRange(address_of((&raw mut fd).cast()), address, size, kind, 0)
    };
    assert_eq!(get(address, 4096, kind), Err(CUresult::ERROR_NOT_SUPPORTED));
    assert_eq!(get(address + 1, 4096, kind), WRONG);
    assert_eq!(get(address, 0, kind), WRONG);
    assert_eq!(get(address, 1 << 30, kind), WRONG);
    assert_eq!(get(address, 4096, CUmemRangeHandleType(9)), WRONG);
    cuCtxDestroy(mine).unwrap();
}
