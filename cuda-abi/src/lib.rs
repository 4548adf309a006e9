//! The one table: every CUDA driver function, the operations that travel, C types and error codes.
#![forbid(unsafe_code)]

pub mod arrays;
pub mod coverage;
pub mod descriptor;
pub mod errors;
pub mod facts;
pub mod functions;
pub mod installed;
pub mod limits;
pub mod linked;
pub mod nvml;
pub mod operations;
pub mod proc_address;
pub mod tensor_maps;
pub mod textures;
pub mod types;
pub mod wire;
pub mod words;

pub use errors::CUresult;
pub use functions::Function;
