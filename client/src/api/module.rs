//! Modules.
//!
//! Owns how a program names an image: by address or by file. Called by the shells of `exports`; `library` finds
//! images by it. Must not know what is in an image.

use std::ffi::{CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, LazyLock};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdeviceptr, CUdeviceptr_v1, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode,
};

use super::Outcome;
use crate::code::image::Image;
use crate::code::image::find::{FoundImage, check_file, find};
use crate::code::image::jit::Jit;
use crate::context::resource_context;
use crate::handle::HandleKind;
use crate::pointers::{ImageStart, List, ListOut, Out, Text};
use crate::session::{Session, session};

/// Loads the image at an address of the program.
pub(super) fn image_at(
    session: &'static Session,
    image: ImageStart,
    jit: &mut Jit,
) -> Result<Arc<Image>, CUresult> {
    // SAFETY: the program passes a whole image, which stays as it is during the call.
    unsafe {
        let found = find(image.pointer()).inspect_err(|code| jit.log_no_image(*code))?;
        Image::load(session, &found, jit)
    }
}

/// Loads the image in a file.
pub(super) fn image_of_file(
    session: &'static Session,
    name: &Text,
    jit: &mut Jit,
) -> Result<Arc<Image>, CUresult> {
    let mut content =
        std::fs::read(OsStr::from_bytes(name.get()?)).map_err(|error| match error.kind() {
            std::io::ErrorKind::OutOfMemory => CUresult::ERROR_OUT_OF_MEMORY,
            _ => CUresult::ERROR_FILE_NOT_FOUND,
        })?;
    check_file(&content).inspect_err(|code| jit.log_no_image(*code))?;
    // Text ends in a NUL for whoever reads it; the other forms do not mind one more byte.
    content.push(0);
    let found = FoundImage::of(&content);
    // SAFETY: the bytes are those of `content`, which lives until the load is over.
    unsafe { Image::load(session, &found, jit) }
}

fn load(
    module: &Out<CUmodule>,
    image: impl FnOnce(&'static Session) -> Result<Arc<Image>, CUresult>,
) -> Outcome {
    let current = resource_context()?;
    module.required()?;
    let session = session()?;
    let image = image(session)?;
    let handle = session.code.modules.load(&current, image, 0)?;
    module.set(CUmodule::from_bits(handle))
}

pub(crate) fn cuModuleLoad(module: Out<CUmodule>, file_name: Text) -> Outcome {
    load(&module, |session| {
        image_of_file(session, &file_name, &mut Jit::none())
    })
}

pub(crate) fn cuModuleLoadData(module: Out<CUmodule>, image: ImageStart) -> Outcome {
    load(&module, |session| {
        image_at(session, image, &mut Jit::none())
    })
}

pub(crate) fn cuModuleLoadDataEx(
    module: Out<CUmodule>,
    image: ImageStart,
    num_options: u32,
    options: List<CUjit_option>,
    option_values: List<*mut c_void>,
) -> Outcome {
    load(&module, |session| {
        // SAFETY: the program promises `num_options` entries in both, writable values, and buffers
        // as large as it says, during the call.
        let mut jit =
            unsafe { Jit::read(num_options, options.pointer(), option_values.pointer())? };
        image_at(session, image, &mut jit)
    })
}

pub(crate) fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: ImageStart) -> Outcome {
    cuModuleLoadData(module, image)
}

pub(crate) fn cuModuleUnload(module: CUmodule) -> Outcome {
    let session = session()?;
    let context = session.code.modules.get(module.bits())?.context;
    session
        .code
        .modules
        .unload(&session.code.functions, module.bits())?;
    super::reference::delete_of_module(session, module.bits(), context)
}

pub(crate) fn cuModuleGetFunction(
    function: Out<CUfunction>,
    module: CUmodule,
    name: Text,
) -> Outcome {
    let session = session()?;
    function.required()?;
    let name = name.get()?;
    if name.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let module = session.code.modules.get(module.bits())?;
    let key = module.function(&session.code.functions, module.image.kernel(name)?)?;
    function.set(CUfunction::from_bits(key.handle(HandleKind::Function)))
}

pub(crate) fn cuModuleGetGlobal(
    dptr: Out<CUdeviceptr_v1>,
    bytes: Out<u32>,
    module: CUmodule,
    name: Text,
) -> Outcome {
    let (address, size) = session()?
        .code
        .modules
        .get(module.bits())?
        .variable(name.get()?)?;
    if !dptr.is_null() {
        dptr.set(super::narrow_address(address)?)?;
    }
    bytes.set_if(u32::try_from(size).unwrap_or(u32::MAX));
    Ok(())
}

pub(crate) fn cuModuleGetGlobal_v2(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    module: CUmodule,
    name: Text,
) -> Outcome {
    let (address, size) = session()?
        .code
        .modules
        .get(module.bits())?
        .variable(name.get()?)?;
    if dptr.is_null() {
        bytes.required()?;
    }
    dptr.set_if(address);
    bytes.set_if(size as usize);
    Ok(())
}

pub(crate) fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) -> Outcome {
    let module = session()?.code.modules.get(module.bits())?;
    count.set(module.image.descriptor.kernels.len() as u32)
}

pub(crate) fn cuModuleEnumerateFunctions(
    functions: ListOut<CUfunction>,
    num_functions: u32,
    module: CUmodule,
) -> Outcome {
    let session = session()?;
    let module = session.code.modules.get(module.bits())?;
    let count = num_functions.min(module.image.descriptor.kernels.len() as u32);
    let handles: Vec<CUfunction> = (0..count)
        .map(|index| {
            Ok(CUfunction::from_bits(
                module
                    .function(&session.code.functions, index)?
                    .handle(HandleKind::Function),
            ))
        })
        .collect::<Result<_, CUresult>>()?;
    functions.set(num_functions, handles)
}

pub(crate) fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> Outcome {
    mode.set(match *EAGER {
        true => CUmoduleLoadingMode::EAGER_LOADING,
        false => CUmoduleLoadingMode::LAZY_LOADING,
    })
}

/// Whether the program's user wants everything that is linked into it loaded at once, which runtimes
/// then do. Without CUDA_MODULE_LOADING code is loaded when it is needed.
static EAGER: LazyLock<bool> = LazyLock::new(|| {
    daemon_interface::environment::variable("CUDA_MODULE_LOADING")
        .is_some_and(|mode| mode == "EAGER")
});

/// A name as C has it, by its place in an image.
pub(super) fn c_name(image: &Image, index: u32) -> Result<*const std::ffi::c_char, CUresult> {
    image.name(index).map(|name: &CString| name.as_ptr())
}
