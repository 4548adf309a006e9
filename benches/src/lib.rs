//! What the benchmarks share.

pub mod opencl;
