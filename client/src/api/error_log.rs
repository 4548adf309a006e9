//! The log of failed calls, as programs read it (CUDA driver API, "Error Log Management").
//!
//! Owns the checks. Called by the shells of `exports`, also before cuInit. Must not know what is logged.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use cuda_abi::CUresult;
use cuda_abi::types::{CUlogIterator, CUlogsCallback, CUlogsCallbackHandle};

use super::Outcome;
use crate::error_log;
use crate::pointers::{CallbackData, Out, Text, TextOut};

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

fn without_flags(flags: u32) -> Outcome {
    if flags == 0 { Ok(()) } else { Err(WRONG) }
}

/// Where the program wants to begin; NULL is at the oldest message.
fn begin(iterator: &Out<CUlogIterator>) -> Result<Option<CUlogIterator>, CUresult> {
    if iterator.is_null() {
        return Ok(None);
    }
    iterator.get().map(Some)
}

pub(crate) fn cuLogsCurrent(iterator: Out<CUlogIterator>, flags: u32) -> Outcome {
    without_flags(flags)?;
    iterator.required()?;
    iterator.set(error_log::end()?)
}

pub(crate) fn cuLogsDumpToFile(
    iterator: Out<CUlogIterator>,
    path_to_file: Text,
    flags: u32,
) -> Outcome {
    without_flags(flags)?;
    let path = OsStr::from_bytes(path_to_file.get()?);
    let (text, end) = error_log::lines(begin(&iterator)?)?;
    let file = OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        crate::log::log!("cuLogsDumpToFile: {}: {error}", path.display());
        WRONG
    })?;
    iterator.set_if(end);
    Ok(())
}

pub(crate) fn cuLogsDumpToMemory(
    iterator: Out<CUlogIterator>,
    buffer: TextOut,
    size: Out<usize>,
    flags: u32,
) -> Outcome {
    without_flags(flags)?;
    let room = size.get()?;
    buffer.set(room, "")?;
    // One for the NUL.
    let fits = error_log::lines_that_fit(begin(&iterator)?, room - 1);
    let (text, end) = fits.inspect_err(|_| size.set_if(0))?;
    buffer.set(room, &text)?;
    size.set_if(text.len());
    iterator.set_if(end);
    Ok(())
}

pub(crate) fn cuLogsRegisterCallback(
    callback_func: CUlogsCallback,
    user_data: CallbackData,
    callback: Out<CUlogsCallbackHandle>,
) -> Outcome {
    let function = callback_func.ok_or(WRONG)?;
    let number = error_log::register(function, user_data)?;
    // Who wants no handle never ends it.
    callback.set_if(CUlogsCallbackHandle::from_bits(number));
    Ok(())
}

pub(crate) fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) -> Outcome {
    error_log::unregister(callback.bits())
}
