//! Notifications of a device (CUDA driver API 12.4): registering for the one kind that there is, that the process' budget of the
//! device's memory was lowered below what it uses.
//!
//! Owns the registrations. That never happens here: a quota is never lowered below what is in use, so no function is called. Called by
//! the shells of `exports`. Must not know quotas.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUasyncCallback, CUasyncCallbackHandle, CUdevice};

use super::Outcome;
use crate::pointers::{CallbackData, Out};
use crate::session::session;

/// Registrations of a process at a time.
const MOST: usize = 4096;

/// Their devices by their handles, and how many there have been.
static REGISTERED: Mutex<(BTreeMap<u64, CUdevice>, u64)> = Mutex::new((BTreeMap::new(), 0));

pub(crate) fn cuDeviceRegisterAsyncNotification(
    device: CUdevice,
    callback_func: CUasyncCallback,
    _user_data: CallbackData,
    callback: Out<CUasyncCallbackHandle>,
) -> Outcome {
    session()?.device(device)?;
    callback_func.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    callback.required()?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let (devices, numbers) = &mut *registered;
    if devices.len() >= MOST {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    *numbers += 1;
    devices.insert(*numbers, device);
    callback.set(CUasyncCallbackHandle::from_bits(*numbers))
}

pub(crate) fn cuDeviceUnregisterAsyncNotification(
    device: CUdevice,
    callback: CUasyncCallbackHandle,
) -> Outcome {
    session()?.device(device)?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let (devices, _) = &mut *registered;
    if devices.get(&callback.bits()) != Some(&device) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    devices.remove(&callback.bits());
    Ok(())
}
