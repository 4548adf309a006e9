//! Notifications of a device: what is registered, and what is refused.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::testing::*;

unsafe extern "C" fn never(_: *mut c_void, _: *mut c_void, _: CUasyncCallbackHandle) {
    unreachable!("no budget is lowered below what is used");
}

#[test]
fn a_registration_ends_once_and_on_its_device() {
    start();
    let data = || data_of_call(std::ptr::null_mut());
    let mut handle = CUasyncCallbackHandle::NULL;
    let register = |device, function, handle: &mut CUasyncCallbackHandle| {
        cuDeviceRegisterAsyncNotification(device, function, data(), out(handle))
    };
    assert_eq!(
        register(0, None, &mut handle),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    assert_eq!(
        register(99, Some(never), &mut handle),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    register(0, Some(never), &mut handle).unwrap();
    let end = |device, handle| cuDeviceUnregisterAsyncNotification(device, handle);
    assert_eq!(end(99, handle), Err(CUresult::ERROR_INVALID_DEVICE));
    assert_eq!(
        end(0, CUasyncCallbackHandle::NULL),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    end(0, handle).unwrap();
    assert_eq!(end(0, handle), Err(CUresult::ERROR_INVALID_VALUE));
}
