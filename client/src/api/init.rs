//! Initialisation, version, errors.
//!
//! Owns the texts of errors. Called by the shells of `exports`, also before there is a session. Must not know how the daemon is found: `session::attach` does.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use cuda_abi::CUresult;
use cuda_abi::errors::RESULTS;
use cuda_abi::proc_address::DRIVER_VERSION;

use super::Outcome;
use crate::pointers::Out;
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
