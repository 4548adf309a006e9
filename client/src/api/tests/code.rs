//! Modules, libraries and launches.
//!
//! They show that parameters and attributes travel whole, and what is refused before a record is posted.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, List, ListOut};
use crate::testing::*;

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
    let (mut size, mut less, mut more) = (16_usize, 8_usize, 17_usize);
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
            parameters(std::ptr::null_mut()),
            parameters(extra),
        )
    };
    by_extra(store, extra.as_mut_ptr()).unwrap();
    assert_eq!(read(to, 8), 42_u64.to_le_bytes());
    // What a shorter block leaves out is zero.
    extra[3] = (&raw mut less).cast();
    by_extra(store, extra.as_mut_ptr()).unwrap();
    assert_eq!(read(to, 8), [0; 8]);
    extra[3] = (&raw mut more).cast();
    assert_eq!(
        by_extra(store, extra.as_mut_ptr()),
        Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES)
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
            parameters(none),
            parameters(none),
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
        (one, [513, 1, 1], 0, CUresult::ERROR_INVALID_VALUE),
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
        cuLaunchCooperativeKernel(
            plain,
            blocks,
            1,
            1,
            512,
            1,
            1,
            0,
            CUstream::NULL,
            parameters(none),
        )
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
        id: CUlaunchAttributeID::PRIORITY,
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
        parameters(each.as_mut_ptr()),
        parameters(std::ptr::null_mut()),
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
    assert_eq!(launched.data[..8], [8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(launched.data[8..72], value);
    assert_eq!(launched.data[72..], [5, 0, 0, 0]);
    drop(launches);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn what_fits_of_clusters_is_the_servers_answer() {
    let _shared = start();
    let mine = context(0);
    let kernel = function(load("kernel in_clusters 4\n\0"), "in_clusters\0");
    let mut value = [0; 64];
    (value[0], value[4], value[8]) = (2, 1, 1);
    let mut attributes = [CUlaunchAttribute {
        id: CUlaunchAttributeID::CLUSTER_DIMENSION,
        pad: [0; 4],
        value: CUlaunchAttributeValue(value),
    }];
    let mut config = CUlaunchConfig {
        gridDimX: 64,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: 1,
    };
    let mut count = 0;
    let mut ask = |config: &CUlaunchConfig| {
        let asked = cuOccupancyMaxActiveClusters(out(&mut count), kernel, In::of(config));
        asked.map(|()| count)
    };
    assert_eq!(ask(&config), Ok(7));
    // Without clusters nobody needs to be asked.
    config.numAttrs = 0;
    assert_ne!(ask(&config), Ok(7));
    config.blockDimY = 0;
    assert_eq!(ask(&config), Err(CUresult::ERROR_INVALID_VALUE));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn clusters_are_checked_at_the_call() {
    let shared = start();
    let mine = context(0);
    let module = load("kernel any_clusters\nkernel pairs:2x1x1\nkernel said:\nkernel few:<4\n\0");
    let try_launch = |kernel: CUfunction, blocks: u32, cluster: Option<[u32; 3]>| {
        let mut value = [0; 64];
        for (to, side) in value.chunks_mut(4).zip(cluster.unwrap_or_default()) {
            to.copy_from_slice(&side.to_le_bytes());
        }
        let mut attributes = [CUlaunchAttribute {
            id: CUlaunchAttributeID::CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue(value),
        }];
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: CUstream::NULL,
            attrs: attributes.as_mut_ptr(),
            numAttrs: cluster.is_some().into(),
        };
        cuLaunchKernelEx(
            In::of(&config),
            kernel,
            parameters(std::ptr::null_mut()),
            parameters(std::ptr::null_mut()),
        )
    };
    let wrong = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    let [any, pairs, said, few] =
        ["any_clusters\0", "pairs\0", "said\0", "few\0"].map(|name| function(module, name));
    let cases = [
        (any, 7, None, Ok(())),
        (any, 6, Some([3, 1, 1]), Ok(())),
        (any, 6, Some([0, 0, 0]), Ok(())),
        (any, 6, Some([4, 1, 1]), wrong),
        (any, 6, Some([0, 1, 1]), wrong),
        (any, 16, Some([16, 1, 1]), wrong),
        (pairs, 8, None, Ok(())),
        (pairs, 7, None, wrong),
        (pairs, 8, Some([2, 1, 1]), Ok(())),
        (pairs, 8, Some([4, 1, 1]), wrong),
        (pairs, 8, Some([1, 1, 1]), wrong),
        (said, 8, None, wrong),
        (said, 8, Some([0, 0, 0]), wrong),
        (said, 8, Some([1, 1, 1]), Ok(())),
        (said, 8, Some([4, 1, 1]), Ok(())),
        (few, 8, Some([4, 1, 1]), Ok(())),
        (few, 8, Some([8, 1, 1]), wrong),
    ];
    for (index, (kernel, blocks, cluster, wanted)) in cases.into_iter().enumerate() {
        assert_eq!(
            try_launch(kernel, blocks, cluster),
            wanted,
            "{index}: {blocks} {cluster:?}"
        );
    }
    let get = |kernel, attribute| {
        let mut value = -1;
        cuFuncGetAttribute(out(&mut value), attribute, kernel).map(|()| value)
    };
    let [width, height, depth] = [
        CUfunction_attribute::REQUIRED_CLUSTER_WIDTH,
        CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT,
        CUfunction_attribute::REQUIRED_CLUSTER_DEPTH,
    ];
    let must = CUfunction_attribute::CLUSTER_SIZE_MUST_BE_SET;
    let of = |kernel| [width, height, depth, must].map(|attribute| get(kernel, attribute).unwrap());
    assert_eq!(
        (of(any), of(pairs), of(said)),
        ([0; 4], [2, 1, 1, 1], [0, 0, 0, 1])
    );
    // What it was compiled for stays.
    assert_eq!(
        cuFuncSetAttribute(pairs, width, 4),
        Err(CUresult::ERROR_NOT_PERMITTED)
    );
    // What is set is wanted by every launch, once it is whole.
    cuFuncSetAttribute(any, width, 4).unwrap();
    assert_eq!(try_launch(any, 8, None), wrong);
    cuFuncSetAttribute(any, height, 1).unwrap();
    cuFuncSetAttribute(any, depth, 1).unwrap();
    assert_eq!(try_launch(any, 8, None), Ok(()));
    assert_eq!(try_launch(any, 6, None), wrong);
    assert_eq!(try_launch(any, 8, Some([2, 1, 1])), wrong);
    for side in [width, height, depth] {
        cuFuncSetAttribute(any, side, 0).unwrap();
    }
    assert_eq!(try_launch(any, 7, None), Ok(()));
    cuFuncSetAttribute(
        any,
        CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        1,
    )
    .unwrap();
    assert_eq!(try_launch(any, 16, Some([16, 1, 1])), Ok(()));
    assert_eq!(try_launch(any, 32, Some([32, 1, 1])), wrong);
    // A kernel that was compiled for clusters has them in what fits, too.
    let config = CUlaunchConfig {
        gridDimX: 64,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: CUstream::NULL,
        attrs: std::ptr::null_mut(),
        numAttrs: 0,
    };
    let mut count = 0;
    cuOccupancyMaxActiveClusters(out(&mut count), pairs, In::of(&config)).unwrap();
    assert_eq!(count, 7, "the server's answer");
    cuCtxSynchronize().unwrap();
    let launches = shared.launches.lock().unwrap();
    let launched = |name: &str| {
        launches
            .iter()
            .filter(|launched| launched.name == name)
            .count()
    };
    assert_eq!(
        ["any_clusters", "pairs", "said", "few"].map(launched),
        [6, 2, 2, 1]
    );
    drop(launches);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn libraries_need_no_context_and_become_modules_in_each() {
    start();
    let mut library = CUlibrary::NULL;
    let image = "kernel store 8 8\nvariable counter 16\nkernel other 4\n\0";
    // SAFETY: no options, so no arrays.
    let none = || unsafe { List::new(std::ptr::null(), 0) };
    // SAFETY: no options, so no arrays.
    let no_values = || unsafe { List::new(std::ptr::null(), 0) };
    // SAFETY: no options, so no arrays.
    let no_options = || unsafe { List::new(std::ptr::null(), 0) };
    cuLibraryLoadData(
        out(&mut library),
        image_start(image.as_ptr().cast()),
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
    // SAFETY: `kernels` has room for the three that are asked for.
    let list = unsafe { ListOut::new(kernels.as_mut_ptr(), kernels.len()) };
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
            List::new(options.as_ptr(), 2),
            List::new(values.as_mut_ptr().cast_const(), 2),
        )
    };
    let failed = cuModuleLoadDataEx(out(&mut module), image_start(image), 2, options, list);
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
    cuModuleLoadData(out(&mut module), image_start(large.as_ptr().cast())).unwrap();
    function(module, "last\0");
    let nowhere = cuModuleLoad(out(&mut module), text("/nonexistent/image.ptx\0"));
    assert_eq!(nowhere, Err(CUresult::ERROR_FILE_NOT_FOUND));
    cuCtxDestroy(mine).unwrap();
}
