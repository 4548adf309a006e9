//! Why an image is not taken, with the log of whoever says so.
//!
//! Given by all that make modules of images. Must not know what they do.

use cuda_abi::CUresult;

/// Why an image was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: CUresult,
    pub(crate) log: String,
}

impl From<CUresult> for Refused {
    fn from(code: CUresult) -> Self {
        Self {
            code,
            log: code.to_string(),
        }
    }
}
