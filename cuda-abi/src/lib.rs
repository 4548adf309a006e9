//! The one table: every CUDA driver function, the operations that travel, C types and error codes.
#![forbid(unsafe_code)]

pub mod descriptor;
pub mod facts;
pub mod limits;
pub mod operations;
pub mod wire;
pub mod words;

/// A driver status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CUresult(pub u32);

impl CUresult {
    /// CUDA_SUCCESS
    pub const SUCCESS: Self = Self(0);
}
