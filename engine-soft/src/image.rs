//! From the bytes that a program brings to a compiled module: finds the PTX in them and has it
//! compiled, or says in CUDA's codes and in words why not.

use engine::CUresult;
use ptx::image;

use crate::device::BINARY_VERSION;
use crate::exec;

/// Why an image is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The status.
    pub(crate) code: CUresult,
    /// The JIT log.
    pub(crate) log: String,
}

/// Compiles an image.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for what is no image, CUDA_ERROR_NO_BINARY_FOR_GPU for one without PTX
/// for this device, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, and CUDA_ERROR_INVALID_PTX for PTX that is
/// wrong or asks for what is not built.
pub(crate) fn compile(bytes: &[u8]) -> Result<exec::Module, Refused> {
    let source = image::select(bytes, BINARY_VERSION)
        .map_err(|error| Refused::new(CUresult(error.cuda_error()), &error))?;
    let invalid = CUresult::ERROR_INVALID_PTX;
    let module = ptx::parse(&source.text).map_err(|error| Refused::new(invalid, &error))?;
    exec::Module::load(&module, &exec::Options::default())
        .map_err(|error| Refused::new(invalid, &error))
}

impl Refused {
    fn new(code: CUresult, why: &dyn std::fmt::Display) -> Self {
        Self {
            code,
            log: format!("error: {why}\n"),
        }
    }
}
