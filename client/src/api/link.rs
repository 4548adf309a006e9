//! Linking device code at run time.
//!
//! Owns the reading of a link's inputs. Called by the shells of `exports`. Must not know how inputs are joined:
//! `code::linker` keeps them and the server links.

use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt;

use cuda_abi::CUresult;
use cuda_abi::types::{CUjit_option, CUjitInputType, CUlinkState};

use super::Outcome;
use crate::code::image::find::{find, is_wrapper};
use crate::code::image::jit::Jit;
use crate::context::current;
use crate::pointers::{Bytes, List, Out, Text};
use crate::session::session;

pub(crate) fn cuLinkCreate(
    num_options: u32,
    options: List<CUjit_option>,
    option_values: List<*mut c_void>,
    state_out: Out<CUlinkState>,
) -> Outcome {
    cuLinkCreate_v2(num_options, options, option_values, state_out)
}

pub(crate) fn cuLinkCreate_v2(
    num_options: u32,
    options: List<CUjit_option>,
    option_values: List<*mut c_void>,
    state_out: Out<CUlinkState>,
) -> Outcome {
    current()?;
    state_out.required()?;
    // SAFETY: the program promises `num_options` entries in both, writable values, and buffers as large
    // as it says, until it destroys the link.
    let jit = unsafe { Jit::read(num_options, options.pointer(), option_values.pointer())? };
    let link = session()?.code.links.create(jit);
    state_out.set(CUlinkState::from_bits(link))
}

fn known(kind: CUjitInputType) -> Result<u32, CUresult> {
    if kind > CUjitInputType::NVVM {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(kind.0)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLinkAddData(
    state: CUlinkState,
    kind: CUjitInputType,
    data: Bytes,
    size: usize,
    name: Text,
    num_options: u32,
    options: List<CUjit_option>,
    option_values: List<*mut c_void>,
) -> Outcome {
    cuLinkAddData_v2(
        state,
        kind,
        data,
        size,
        name,
        num_options,
        options,
        option_values,
    )
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    data: Bytes,
    size: usize,
    name: Text,
    _num_options: u32,
    // Options of one input are hints about how it is compiled.
    _options: List<CUjit_option>,
    _option_values: List<*mut c_void>,
) -> Outcome {
    let session = session()?;
    let kind = known(kind)?;
    let start = data.pointer();
    if start.is_null() || size == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // A missing name is as good as none.
    let name = name.get().unwrap_or_default();
    // SAFETY: the program promises `size` readable bytes there, during the call.
    let bytes = unsafe { std::slice::from_raw_parts(start, size) };
    if is_wrapper(bytes) {
        // SAFETY: it is a wrapper of the program's, which leads to a whole fatbin.
        let found = unsafe { find(start)?.copy()? };
        return session
            .code
            .links
            .add(session, state.bits(), kind, name, &found);
    }
    session
        .code
        .links
        .add(session, state.bits(), kind, name, bytes)
}

pub(crate) fn cuLinkAddFile(
    state: CUlinkState,
    kind: CUjitInputType,
    path: Text,
    num_options: u32,
    options: List<CUjit_option>,
    option_values: List<*mut c_void>,
) -> Outcome {
    cuLinkAddFile_v2(state, kind, path, num_options, options, option_values)
}

pub(crate) fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: Text,
    _num_options: u32,
    _options: List<CUjit_option>,
    _option_values: List<*mut c_void>,
) -> Outcome {
    let session = session()?;
    let kind = known(kind)?;
    let path = path.get()?;
    let content =
        std::fs::read(OsStr::from_bytes(path)).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    let links = &session.code.links;
    links.add(session, state.bits(), kind, path, &content)
}

pub(crate) fn cuLinkComplete(
    state: CUlinkState,
    cubin_out: Out<*mut c_void>,
    size_out: Out<usize>,
) -> Outcome {
    let session = session()?;
    cubin_out.required()?;
    let (image, bytes) = session.code.links.complete(session, state.bits())?;
    size_out.set_if(bytes);
    cubin_out.set(image.cast_mut().cast())
}

pub(crate) fn cuLinkDestroy(state: CUlinkState) -> Outcome {
    session()?.code.links.destroy(state.bits())
}
