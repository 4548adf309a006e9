//! Links. The server of `testing` takes an image for a list of lines, so a link's parts are such lists.
//!
//! They show that a link's image holds its parts, and that a wrong part is told at once.

use std::ffi::c_void;

use cuda_abi::types::*;
use protocol::linked_image;

use crate::api::*;
use crate::pointers::List;
use crate::testing::*;

fn list<T: Copy>(values: &[T]) -> List<T> {
    // SAFETY: the tests' slices outlive the calls.
    unsafe { List::new(values.as_ptr(), values.len()) }
}

fn add(state: CUlinkState, part: &[u8]) -> Outcome {
    cuLinkAddData_v2(
        state,
        CUjitInputType::PTX,
        bytes(part),
        part.len(),
        text("part\0"),
        0,
        list(&[]),
        list(&[]),
    )
}

#[test]
fn what_a_link_gives_is_an_image_of_its_parts() {
    let mine = context(0);
    let mut state = CUlinkState::NULL;
    cuLinkCreate_v2(0, list(&[]), list(&[]), out(&mut state)).unwrap();
    add(state, b"kernel one 8").unwrap();
    add(state, b"kernel two 4 4\n").unwrap();
    let (mut image, mut size) = (std::ptr::null_mut::<c_void>(), 0);
    cuLinkComplete(state, out(&mut image), out(&mut size)).unwrap();
    // SAFETY: the image lives as long as the link.
    let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) };
    let parts = linked_image::decode(bytes).unwrap();
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1].bytes, b"kernel two 4 4\n");
    // Loaded from its address alone.
    let mut module = CUmodule::NULL;
    cuModuleLoadData(out(&mut module), image_start(image)).unwrap();
    let mut count = 0;
    cuModuleGetFunctionCount(out(&mut count), module).unwrap();
    assert_eq!(count, 2);
    assert_eq!(
        add(state, b"kernel late"),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    cuLinkDestroy(state).unwrap();
    assert_eq!(cuLinkDestroy(state), Err(CUresult::ERROR_INVALID_HANDLE));
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn wrong_parts_are_told_at_once_with_a_log() {
    let mine = context(0);
    let mut errors = [0xff_u8; 64];
    let options = [
        CUjit_option::ERROR_LOG_BUFFER,
        CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let values: [*mut c_void; 2] = [
        errors.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(errors.len()),
    ];
    let mut state = CUlinkState::NULL;
    cuLinkCreate_v2(2, list(&options), list(&values), out(&mut state)).unwrap();
    let refused = add(state, b"fail no such thing");
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_PTX));
    assert!(errors.starts_with(b"no such thing\0"), "{errors:?}");
    // Nothing was added.
    let (mut image, mut size) = (std::ptr::null_mut::<c_void>(), 0);
    let empty = cuLinkComplete(state, out(&mut image), out(&mut size));
    assert_eq!(empty, Err(CUresult::ERROR_INVALID_VALUE));
    let kind = CUjitInputType(77);
    let part = b"kernel one";
    let strange = cuLinkAddData_v2(
        state,
        kind,
        bytes(part),
        part.len(),
        text("part\0"),
        0,
        list(&[]),
        list(&[]),
    );
    assert_eq!(strange, Err(CUresult::ERROR_INVALID_VALUE));
    let nowhere = cuLinkAddFile_v2(
        state,
        CUjitInputType::PTX,
        text("/nowhere/at.all\0"),
        0,
        list(&[]),
        list(&[]),
    );
    assert_eq!(nowhere, Err(CUresult::ERROR_FILE_NOT_FOUND));
    cuLinkDestroy(state).unwrap();
    cuCtxDestroy(mine).unwrap();
}
