//! Tensor maps: what is refused here, and what the server is asked.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{List, Out};
use crate::testing::*;

const FLOAT: CUtensorMapDataType = CUtensorMapDataType::FLOAT32;

/// What a test may want to be wrong.
#[derive(Clone, Copy)]
struct Call {
    rank: u32,
    address: u64,
    stride: u64,
    side: u32,
    has_dims: bool,
}

fn list<T: Copy>(values: &[T]) -> List<T> {
    // SAFETY: the tests' slices outlive the calls.
    unsafe { List::new(values.as_ptr(), values.len()) }
}

fn tiled(map: Out<CUtensorMap>, call: Call) -> Outcome {
    let (dims, strides) = ([64_u64; 5], [call.stride; 4]);
    let (sides, steps) = ([call.side; 5], [1_u32; 5]);
    cuTensorMapEncodeTiled(
        map,
        FLOAT,
        call.rank,
        address_of(std::ptr::without_provenance_mut(call.address as usize)),
        if call.has_dims {
            list(&dims)
        } else {
            List::null()
        },
        list(&strides),
        list(&sides),
        list(&steps),
        CUtensorMapInterleave::NONE,
        CUtensorMapSwizzle::NONE,
        CUtensorMapL2promotion::NONE,
        CUtensorMapFloatOOBfill::NONE,
    )
}

#[test]
fn a_tensor_map_is_made_once_and_moves() {
    let shared = start();
    let mine = context(1);
    let address = allocate(64 << 10);
    let call = Call {
        rank: 2,
        address,
        stride: 4096,
        side: 8,
        has_dims: true,
    };
    let mut map = CUtensorMap { opaque: [0; 16] };
    let asked = || *shared.tensor_maps.lock().unwrap();
    let before = asked();
    tiled(out(&mut map), call).unwrap();
    assert_eq!((map.opaque[0], map.opaque[1]), (address, 1), "of device 1");
    let mut again = CUtensorMap { opaque: [0; 16] };
    tiled(out(&mut again), call).unwrap();
    assert_eq!((again, asked()), (map, before + 1), "not asked for again");
    let other = Call {
        address: address + 16,
        ..call
    };
    tiled(out(&mut again), other).unwrap();
    assert_eq!(again.opaque[0], address + 16);
    let to = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
    cuTensorMapReplaceAddress(out(&mut map), address_of(to(address + 32))).unwrap();
    assert_eq!(map.opaque[..2], [address + 32, 1]);
    for wrong in [address + 8, 0x1000, 0] {
        let refused = cuTensorMapReplaceAddress(out(&mut map), address_of(to(wrong)));
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(
        map.opaque[0],
        address + 32,
        "what is refused changes nothing"
    );
    // NULL is a place that the device fills in.
    let nowhere = Call { address: 0, ..call };
    tiled(out(&mut map), nowhere).unwrap();
    assert_eq!(map.opaque[..2], [0, 1]);
    cuCtxDestroy(mine).unwrap();
    cuCtxSetCurrent(CUcontext::NULL).unwrap();
    assert_eq!(
        tiled(out(&mut map), call),
        Err(CUresult::ERROR_INVALID_CONTEXT)
    );
}

#[test]
fn tensor_maps_that_make_no_sense_are_refused() {
    let mine = context(0);
    let good = Call {
        rank: 2,
        address: allocate(64 << 10),
        stride: 4096,
        side: 8,
        has_dims: true,
    };
    let mut map = CUtensorMap { opaque: [7; 16] };
    for call in [
        Call { rank: 0, ..good },
        Call { rank: 6, ..good },
        Call {
            rank: u32::MAX,
            ..good
        },
        Call {
            address: 0x1000,
            ..good
        },
        Call {
            address: good.address + 8,
            ..good
        },
        Call {
            stride: 100,
            ..good
        },
        Call { side: 0, ..good },
        Call { side: 300, ..good },
        Call {
            has_dims: false,
            ..good
        },
    ] {
        let refused = tiled(out(&mut map), call);
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(tiled(Out::null(), good), Err(CUresult::ERROR_INVALID_VALUE));
    assert_eq!(map.opaque, [7; 16]);
    let (dims, strides, corners, steps) = ([64; 5], [4096; 4], [-1; 3], [1; 5]);
    for (rank, expected) in [
        (2, Err(CUresult::ERROR_INVALID_VALUE)),
        (4, Ok(())),
        (6, Err(CUresult::ERROR_INVALID_VALUE)),
    ] {
        let made = cuTensorMapEncodeIm2col(
            out(&mut map),
            FLOAT,
            rank,
            address_of(std::ptr::without_provenance_mut(good.address as usize)),
            list(&dims),
            list(&strides),
            list(&corners),
            list(&corners),
            8,
            64,
            list(&steps),
            CUtensorMapInterleave::NONE,
            CUtensorMapSwizzle::NONE,
            CUtensorMapL2promotion::NONE,
            CUtensorMapFloatOOBfill::NONE,
        );
        assert_eq!(made, expected, "rank {rank}");
        let made = cuTensorMapEncodeIm2colWide(
            out(&mut map),
            FLOAT,
            rank,
            address_of(std::ptr::without_provenance_mut(good.address as usize)),
            list(&dims),
            list(&strides),
            -1,
            1,
            8,
            64,
            list(&steps),
            CUtensorMapInterleave::NONE,
            CUtensorMapIm2ColWideMode::W,
            CUtensorMapSwizzle::NONE,
            CUtensorMapL2promotion::NONE,
            CUtensorMapFloatOOBfill::NONE,
        );
        assert_eq!(made, expected, "wide, rank {rank}");
    }
    cuCtxDestroy(mine).unwrap();
}
