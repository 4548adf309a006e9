//! Initialisation, version, errors, entry points.
//!
//! Owns the texts of errors, and which function an entry point's name gives. Called by the shells of `exports`,
//! also before there is a session. Must not know how the daemon is found: `session::attach` does.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::LazyLock;

use cuda_abi::CUresult;
use cuda_abi::errors::RESULTS;
use cuda_abi::proc_address::{Answer, DRIVER_VERSION, lookup};
use cuda_abi::types::{CUdriverProcAddressQueryResult, CUuuid};

use super::Outcome;
use crate::export_tables;
use crate::exports::address;
use crate::pointers::{In, Out, Text};
use crate::session::attach;

pub(crate) fn cuInit(flags: u32) -> Outcome {
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    attach::attach()
}

pub(crate) fn cuDriverGetVersion(driver_version: Out<i32>) -> Outcome {
    driver_version.set(DRIVER_VERSION)
}

/// Name and text of each status, as C has them.
static TEXTS: LazyLock<HashMap<u32, (CString, CString)>> = LazyLock::new(|| {
    // The table's texts are literals without a NUL.
    let c = |text: &str| CString::new(text).unwrap_or_default();
    RESULTS
        .iter()
        .map(|(code, name, text)| (code.0, (c(name), c(text))))
        .collect()
});

fn text_of(
    error: CUresult,
    out: &Out<*const c_char>,
    pick: impl Fn(&(CString, CString)) -> &CString,
) -> Outcome {
    match TEXTS.get(&error.0) {
        Some(texts) => out.set(pick(texts).as_ptr()),
        None => {
            out.set_if(std::ptr::null());
            Err(CUresult::ERROR_INVALID_VALUE)
        }
    }
}

pub(crate) fn cuGetErrorName(error: CUresult, text: Out<*const c_char>) -> Outcome {
    text_of(error, &text, |(name, _)| name)
}

pub(crate) fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) -> Outcome {
    text_of(error, &text, |(_, text)| text)
}

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
