//! CUDA's own interface: one table of the driver's functions, one of NVML's, C types and error codes.
//!
//! What our own programs say to each other is `protocol`'s. This crate uses no other.
//!
//! Used by every other crate that speaks CUDA. Must not know engines, servers or how anything travels.

#![forbid(unsafe_code)]

pub mod errors;
pub mod functions;
pub mod library_paths;
pub mod nvml;
pub mod proc_address;
pub mod types;

pub use errors::CUresult;
pub use functions::Function;
