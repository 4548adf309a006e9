//! The functions that hand out entry points: cuGetProcAddress and cuGetExportTable.
//!
//! Owns which function a name gives. Called by their own shells, also before there is a session. They stand here and not in
//! `api`, which must not know where the shells are.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::proc_address::{Answer, lookup};
use cuda_abi::types::{CUdriverProcAddressQueryResult, CUuuid};

use super::address;
use crate::api::Outcome;
use crate::export_tables;
use crate::pointers::{In, Out, Text};

pub(crate) fn cuGetProcAddress(
    symbol: Text,
    pointer: Out<*mut c_void>,
    driver_version: i32,
    flags: u64,
) -> Outcome {
    pointer.required()?;
    match lookup(symbol.get()?, driver_version, flags) {
        Answer::Found(entry) => pointer.set(address(entry).cast_mut()),
        Answer::Unknown | Answer::VersionTooLow => Err(CUresult::ERROR_NOT_FOUND),
        Answer::InvalidFlags | Answer::VersionTooHigh => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGetProcAddress_v2(
    symbol: Text,
    pointer: Out<*mut c_void>,
    driver_version: i32,
    flags: u64,
    symbol_found: Out<CUdriverProcAddressQueryResult>,
) -> Outcome {
    pointer.required()?;
    let (found, status) = match lookup(symbol.get()?, driver_version, flags) {
        Answer::Found(entry) => (
            address(entry).cast_mut(),
            CUdriverProcAddressQueryResult::SUCCESS,
        ),
        Answer::Unknown => (
            std::ptr::null_mut(),
            CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND,
        ),
        Answer::VersionTooLow => (
            std::ptr::null_mut(),
            CUdriverProcAddressQueryResult::VERSION_NOT_SUFFICIENT,
        ),
        Answer::InvalidFlags | Answer::VersionTooHigh => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    symbol_found.set_if(status);
    pointer.set(found)
}

pub(crate) fn cuGetExportTable(table: Out<*const c_void>, id: In<CUuuid>) -> Outcome {
    table.required()?;
    let id = id.get()?;
    let found = export_tables::get(&id.0);
    table.set(found.unwrap_or_default())?;
    found.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}
