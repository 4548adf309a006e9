//! The executor on real kernels: PTX that nvcc made from `tests/kernels/*.cu`, results checked against
//! plain Rust.

mod calls;
mod faults;
mod gpu;
mod instructions;
mod kernels;
mod textures;
mod wild;
