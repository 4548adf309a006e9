//! Functions of modules.
//!
//! Owns attributes and names as CUDA tells them of a module's functions. Called by the shells of `exports`. Posts
//! nothing itself, and must not know launches.

use std::ffi::c_char;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUmodule,
    CUsharedconfig,
};

use super::Outcome;
use super::library::{name_of, param_info};
use crate::context::current;
use crate::pointers::Out;
use crate::session::session;

pub(crate) fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction) -> Outcome {
    let session = session()?;
    module.required()?;
    super::given(function.bits())?;
    let found = session.code.functions.get(function.bits())?;
    if found.is_kernel() {
        let (_, found) = session.code.in_context(function.bits(), &current()?)?;
        return module.set(CUmodule::from_bits(found.owner()));
    }
    module.set(CUmodule::from_bits(found.owner()))
}

pub(crate) fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) -> Outcome {
    let session = session()?;
    super::given(function.bits())?;
    name.set(name_of(session, function.bits())?)
}

pub(crate) fn cuFuncGetParamInfo(
    function: CUfunction,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Outcome {
    super::given(function.bits())?;
    param_info(function.bits(), param_index, &param_offset, &param_size)
}

pub(crate) fn cuFuncGetAttribute(
    value: Out<i32>,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> Outcome {
    let function = session()?.code.functions.get(function.bits())?;
    value.required()?;
    value.set(function.attribute(attribute)?)
}

pub(crate) fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: i32,
) -> Outcome {
    let session = session()?;
    session
        .code
        .functions
        .set(function.bits(), attribute, value)
}

pub(crate) fn cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache) -> Outcome {
    session()?.code.functions.get(function.bits())?;
    if config > CUfunc_cache::PREFER_EQUAL {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

pub(crate) fn cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig) -> Outcome {
    session()?.code.functions.get(function.bits())?;
    if config > CUsharedconfig::EIGHT_BYTE_BANK_SIZE {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

pub(crate) fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, function: CUfunction) -> Outcome {
    session()?.code.functions.get(function.bits())?;
    // A module is loaded whole.
    state.set(CUfunctionLoadingState::LOADED)
}

pub(crate) fn cuFuncLoad(function: CUfunction) -> Outcome {
    let session = session()?;
    session
        .code
        .in_context(function.bits(), &current()?)
        .map(drop)
}
