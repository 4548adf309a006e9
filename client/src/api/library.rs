//! Libraries and their kernels, which belong to no context.
//!
//! Owns the checks for libraries, and for kernels where these differ from functions; `function` tells names and
//! parameters by it. Called by the shells of `exports`. Must not know which contexts have loaded a library.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel,
    CUlibrary, CUlibraryOption, CUmodule,
};

use super::Outcome;
use super::module::{c_name, image_at, image_of_file};
use crate::code::function::Function;
use crate::code::image::Image;
use crate::code::image::jit::Jit;
use crate::context::{self, resource_context, usable};
use crate::handle::HandleKind;
use crate::pointers::{ImageStart, List, ListOut, Out, Text};
use crate::session::{Session, session};

fn load(
    library: &Out<CUlibrary>,
    jit: (u32, &List<CUjit_option>, &List<*mut c_void>),
    image: impl FnOnce(&'static Session, &mut Jit) -> Result<Arc<Image>, CUresult>,
) -> Outcome {
    let session = session()?;
    library.required()?;
    let (count, options, values) = jit;
    // SAFETY: the program promises `count` entries in both, writable values, and buffers as large as
    // it says, during the call.
    let mut jit = unsafe { Jit::read(count, options.pointer(), values.pointer())? };
    let image = image(session, &mut jit)?;
    library.set(CUlibrary::from_bits(session.code.libraries.load(image)?))
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLibraryLoadData(
    library: Out<CUlibrary>,
    code: ImageStart,
    jit_options: List<CUjit_option>,
    jit_options_values: List<*mut c_void>,
    num_jit_options: u32,
    // That the program keeps the image changes nothing: the server has its own copy. Values may be
    // NULL beside options.
    _library_options: List<CUlibraryOption>,
    _library_option_values: List<*mut c_void>,
    _num_library_options: u32,
) -> Outcome {
    load(
        &library,
        (num_jit_options, &jit_options, &jit_options_values),
        |session, jit| image_at(session, code, jit),
    )
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLibraryLoadFromFile(
    library: Out<CUlibrary>,
    file_name: Text,
    jit_options: List<CUjit_option>,
    jit_options_values: List<*mut c_void>,
    num_jit_options: u32,
    _library_options: List<CUlibraryOption>,
    _library_option_values: List<*mut c_void>,
    _num_library_options: u32,
) -> Outcome {
    load(
        &library,
        (num_jit_options, &jit_options, &jit_options_values),
        |session, jit| image_of_file(session, &file_name, jit),
    )
}

pub(crate) fn cuLibraryUnload(library: CUlibrary) -> Outcome {
    let session = session()?;
    session.code.libraries.unload(
        &session.code.modules,
        &session.code.functions,
        library.bits(),
    )
}

pub(crate) fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, name: Text) -> Outcome {
    let session = session()?;
    kernel.required()?;
    let name = name.get()?;
    let library = session.code.libraries.get(library.bits())?;
    let key = library.kernel(&session.code.functions, library.image.kernel(name)?)?;
    kernel.set(CUkernel::from_bits(key.handle(HandleKind::Function)))
}

pub(crate) fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) -> Outcome {
    let session = session()?;
    module.required()?;
    let library = session.code.libraries.get(library.bits())?;
    module.set(CUmodule::from_bits(
        library.module_in(&session.code.modules, &resource_context()?)?,
    ))
}

pub(crate) fn cuLibraryGetGlobal(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> Outcome {
    let session = session()?;
    let library = session.code.libraries.get(library.bits())?;
    let name = name.get()?;
    library.image.variable(name)?;
    let module = library.module_in(&session.code.modules, &resource_context()?)?;
    let (address, size) = session.code.modules.get(module)?.variable(name)?;
    dptr.set_if(address);
    bytes.set_if(size as usize);
    Ok(())
}

pub(crate) fn cuLibraryGetManaged(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> Outcome {
    let session = session()?;
    let library = session.code.libraries.get(library.bits())?;
    let name = name.get()?;
    library.image.variable(name)?;
    // Runtime 13 asks before any context is current.
    let current = match context::top() {
        0 => usable(session.contexts, session.contexts.primary(0)?.handle())?,
        _ => resource_context()?,
    };
    let module = library.module_in(&session.code.modules, &current)?;
    let (address, size) = session
        .code
        .modules
        .get(module)?
        .managed_variable(session, name)?;
    dptr.set_if(address);
    bytes.set_if(size as usize);
    Ok(())
}

pub(crate) fn cuLibraryGetUnifiedFunction(
    fptr: Out<*mut c_void>,
    library: CUlibrary,
    symbol: Text,
) -> Outcome {
    fptr.required()?;
    symbol.get()?;
    session()?.code.libraries.get(library.bits())?;
    // No device here can call what the processor can; NVIDIA's driver gives this code for a kernel.
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuLibraryGetKernelCount(count: Out<u32>, library: CUlibrary) -> Outcome {
    let library = session()?.code.libraries.get(library.bits())?;
    count.set(library.image.descriptor.kernels.len() as u32)
}

pub(crate) fn cuLibraryEnumerateKernels(
    kernels: ListOut<CUkernel>,
    num_kernels: u32,
    library: CUlibrary,
) -> Outcome {
    let session = session()?;
    let library = session.code.libraries.get(library.bits())?;
    let count = num_kernels.min(library.image.descriptor.kernels.len() as u32);
    let handles: Vec<CUkernel> = (0..count)
        .map(|index| {
            Ok(CUkernel::from_bits(
                library
                    .kernel(&session.code.functions, index)?
                    .handle(HandleKind::Function),
            ))
        })
        .collect::<Result<_, CUresult>>()?;
    kernels.set(num_kernels, handles)
}

/// The kernel of a handle.
fn kernel(session: &'static Session, handle: CUkernel) -> Result<&'static Function, CUresult> {
    session.code.functions.get(handle.bits())
}

pub(crate) fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) -> Outcome {
    let session = session()?;
    function.required()?;
    let (handle, _) = session
        .code
        .in_context(kernel.bits(), &resource_context()?)?;
    function.set(CUfunction::from_bits(handle))
}

pub(crate) fn cuKernelGetLibrary(library: Out<CUlibrary>, handle: CUkernel) -> Outcome {
    let session = session()?;
    let kernel = kernel(session, handle)?;
    if !kernel.is_kernel() {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    library.set(CUlibrary::from_bits(kernel.owner()))
}

pub(crate) fn cuKernelGetName(name: Out<*const c_char>, handle: CUkernel) -> Outcome {
    let session = session()?;
    super::given(handle.bits())?;
    name.set(name_of(session, handle.bits())?)
}

/// The name of a function or kernel.
pub(super) fn name_of(session: &'static Session, handle: u64) -> Result<*const c_char, CUresult> {
    let function = session.code.functions.get(handle)?;
    let index = function.index();
    if function.is_kernel() {
        c_name(&session.code.libraries.get(function.owner())?.image, index)
    } else {
        c_name(&session.code.modules.get(function.owner())?.image, index)
    }
}

/// Offset and size of a parameter of a function or kernel.
pub(super) fn param_info(
    handle: u64,
    index: usize,
    offset: &Out<usize>,
    size: &Out<usize>,
) -> Outcome {
    let function = session()?.code.functions.get(handle)?;
    offset.required()?;
    let layout = function.layout().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let (at, bytes) = layout
        .params
        .get(index)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    offset.set(*at as usize)?;
    size.set_if(*bytes as usize);
    Ok(())
}

pub(crate) fn cuKernelGetParamInfo(
    kernel: CUkernel,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Outcome {
    param_info(kernel.bits(), param_index, &param_offset, &param_size)
}

pub(crate) fn cuKernelGetAttribute(
    value: Out<i32>,
    attribute: CUfunction_attribute,
    handle: CUkernel,
    device: CUdevice,
) -> Outcome {
    let session = session()?;
    let kernel = kernel(session, handle)?;
    session.device(device)?;
    value.required()?;
    value.set(kernel.attribute(attribute)?)
}

pub(crate) fn cuKernelSetAttribute(
    attribute: CUfunction_attribute,
    value: i32,
    handle: CUkernel,
    device: CUdevice,
) -> Outcome {
    let session = session()?;
    session.device(device)?;
    session.code.functions.set(handle.bits(), attribute, value)
}

pub(crate) fn cuKernelSetCacheConfig(
    handle: CUkernel,
    config: CUfunc_cache,
    device: CUdevice,
) -> Outcome {
    let session = session()?;
    kernel(session, handle)?;
    session.device(device)?;
    // A preference that a device may disregard, as the software GPU does.
    if config > CUfunc_cache::PREFER_EQUAL {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}
