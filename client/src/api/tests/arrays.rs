//! Arrays, textures and surfaces.
//!
//! They show that bytes go in and out by rows and boxes, and that descriptions are told as they were given.

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::In;
use crate::testing::*;

fn described(width: usize, height: usize, depth: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CUarray_format::UNSIGNED_INT8,
        NumChannels: 4,
        Flags: 0,
    }
}

fn array(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CUarray {
    let mut array = CUarray::NULL;
    cuArray3DCreate_v2(out(&mut array), In::of(descriptor)).unwrap();
    array
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 11 + at / 253) as u8).collect()
}

#[test]
fn arrays_say_what_they_are_and_end_once() {
    let mine = context(0);
    let descriptor = described(7, 5, 3);
    let made = array(&descriptor);
    let mut said = CUDA_ARRAY3D_DESCRIPTOR::default();
    cuArray3DGetDescriptor_v2(out(&mut said), made).unwrap();
    assert_eq!(said, descriptor);
    let mut flat = CUDA_ARRAY_DESCRIPTOR::default();
    cuArrayGetDescriptor_v2(out(&mut flat), made).unwrap();
    assert_eq!((flat.Width, flat.Height, flat.NumChannels), (7, 5, 4));
    cuArrayDestroy(made).unwrap();
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuArrayDestroy(made), gone);
    assert_eq!(cuArray3DGetDescriptor_v2(out(&mut said), made), gone);
    let mut none = CUarray::NULL;
    let three = CUDA_ARRAY3D_DESCRIPTOR {
        NumChannels: 3,
        ..descriptor
    };
    let refused = cuArray3DCreate_v2(out(&mut none), In::of(&three));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
    // Arrays go with their context.
    let other = array(&descriptor);
    cuCtxDestroy(mine).unwrap();
    let again = context(0);
    assert_eq!(cuArrayDestroy(other), gone);
    cuCtxDestroy(again).unwrap();
}

#[test]
fn runs_rectangles_and_boxes_go_in_and_out() {
    let mine = context(0);
    let made = array(&described(25, 9, 4));
    let content = pattern(25 * 4 * 9 * 4);
    let mut back = vec![0; content.len()];
    // Runs in the first row, and none beyond it.
    cuMemcpyHtoA_v2(made, 0, bytes(&content), 100).unwrap();
    cuMemcpyAtoH_v2(room(&mut back[..40]), made, 60, 40).unwrap();
    assert_eq!(back[..40], content[60..100]);
    for (offset, count) in [(4, 100), (0, 104), (2, 8), (4, 6), (100, 4)] {
        let beyond = cuMemcpyAtoH_v2(room(&mut back), made, offset, count);
        assert_eq!(
            beyond,
            Err(CUresult::ERROR_INVALID_VALUE),
            "{offset} {count}"
        );
    }
    let device = allocate(3000);
    cuMemcpyAtoD_v2(device, made, 20, 80).unwrap();
    assert_eq!(read(device, 80), content[20..100]);
    let other = array(&described(11, 40, 0));
    cuMemcpyAtoA_v2(other, 8, made, 40, 36).unwrap();
    cuMemcpyDtoA_v2(other, 8, device + 44, 16).unwrap();
    cuMemcpyAtoH_v2(room(&mut back[..36]), other, 8, 36).unwrap();
    assert_eq!(back[..16], content[64..80]);
    assert_eq!(back[16..36], content[56..76]);
    // A rectangle in the middle, of a slice that was filled before.
    let fill = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::HOST,
        srcHost: content.as_ptr().cast(),
        srcDevice: 0,
        srcArray: CUarray::NULL,
        srcPitch: 100,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::ARRAY,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: made,
        dstPitch: 0,
        WidthInBytes: 100,
        Height: 9,
    };
    cuMemcpy2D_v2(In::of(&fill)).unwrap();
    let mut copy = CUDA_MEMCPY2D {
        srcXInBytes: 8,
        srcY: 2,
        srcMemoryType: CUmemorytype::ARRAY,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: made,
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstDevice: 0,
        dstArray: CUarray::NULL,
        dstPitch: 40,
        WidthInBytes: 40,
        Height: 6,
    };
    cuMemcpy2D_v2(In::of(&copy)).unwrap();
    for row in 0..6 {
        let from = (row + 2) * 100 + 8;
        assert_eq!(back[row * 40..][..40], content[from..from + 40]);
    }
    // Not at an element, beyond the side, no array.
    for (x, width, array) in [(2, 40, made), (64, 40, made), (8, 40, CUarray::NULL)] {
        copy.srcXInBytes = x;
        copy.WidthInBytes = width;
        copy.srcArray = array;
        assert!(cuMemcpy2D_v2(In::of(&copy)).is_err(), "{x}");
    }
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn levels_are_arrays_that_go_with_the_whole() {
    let mine = context(0);
    let mut whole = CUmipmappedArray::NULL;
    let descriptor = described(16, 8, 0);
    cuMipmappedArrayCreate(out(&mut whole), In::of(&descriptor), 99).unwrap();
    let (mut third, mut again) = (CUarray::NULL, CUarray::NULL);
    cuMipmappedArrayGetLevel(out(&mut third), whole, 2).unwrap();
    cuMipmappedArrayGetLevel(out(&mut again), whole, 2).unwrap();
    assert_eq!(third, again);
    let beyond = cuMipmappedArrayGetLevel(out(&mut again), whole, 5);
    assert_eq!(beyond, Err(CUresult::ERROR_INVALID_VALUE));
    let mut said = CUDA_ARRAY3D_DESCRIPTOR::default();
    cuArray3DGetDescriptor_v2(out(&mut said), third).unwrap();
    assert_eq!((said.Width, said.Height), (4, 2));
    let content = pattern(32);
    cuMemcpyHtoA_v2(third, 0, bytes(&content), 16).unwrap();
    let mut back = vec![0; 16];
    cuMemcpyAtoH_v2(room(&mut back), third, 0, 16).unwrap();
    assert_eq!(back, content[..16]);
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuArrayDestroy(third), gone);
    cuMipmappedArrayDestroy(whole).unwrap();
    assert_eq!(cuArray3DGetDescriptor_v2(out(&mut said), third), gone);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn textures_keep_their_descriptions() {
    let mine = context(0);
    let made = array(&described(16, 8, 0));
    let mut resource = CUDA_RESOURCE_DESC::default();
    resource.res[0] = made.bits();
    let sampler = CUDA_TEXTURE_DESC {
        maxAnisotropy: 4,
        ..CUDA_TEXTURE_DESC::default()
    };
    // SAFETY: NULL is what means that there is none.
    let no_view = || unsafe { In::new(std::ptr::null()) };
    let create = |resource: &CUDA_RESOURCE_DESC, object: &mut u64| {
        cuTexObjectCreate(out(object), In::of(resource), In::of(&sampler), no_view())
    };
    let mut object = 0;
    create(&resource, &mut object).unwrap();
    let (mut said, mut how) = (CUDA_RESOURCE_DESC::default(), CUDA_TEXTURE_DESC::default());
    cuTexObjectGetResourceDesc(out(&mut said), object).unwrap();
    cuTexObjectGetTextureDesc(out(&mut how), object).unwrap();
    assert_eq!((said, how), (resource, sampler));
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuSurfObjectDestroy(object), gone, "another kind");
    cuTexObjectDestroy(object).unwrap();
    assert_eq!(cuTexObjectDestroy(object), gone);

    // Linear memory begins where textures can; it may be described longer than it is, and is told so.
    let memory = allocate(4096);
    let start = memory.next_multiple_of(512);
    let mut linear = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::LINEAR,
        ..CUDA_RESOURCE_DESC::default()
    };
    let float = u64::from(CUarray_format::FLOAT.0) | 1 << 32;
    linear.res[..3].copy_from_slice(&[start, float, 1024]);
    for bytes in [1024, 1 << 20] {
        linear.res[2] = bytes;
        create(&linear, &mut object).unwrap();
        cuTexObjectGetResourceDesc(out(&mut said), object).unwrap();
        assert_eq!(said, linear);
        cuTexObjectDestroy(object).unwrap();
    }
    assert_eq!(cuSurfObjectDestroy(0), Ok(()));
    for (address, bytes) in [(start + 16, 64), (0, 64), (start, 0)] {
        linear.res[0] = address;
        linear.res[2] = bytes;
        let refused = create(&linear, &mut object);
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE), "{address:x}");
    }
    resource.res[0] = 1;
    assert_eq!(create(&resource, &mut object), gone);
    let mut most = 0;
    let format = CUarray_format::FLOAT;
    cuDeviceGetTexture1DLinearMaxWidth(out(&mut most), format, 1, 0).unwrap();
    assert!(most >= 1 << 27);
    cuCtxDestroy(mine).unwrap();
}
