//! The executor on real kernels: PTX that nvcc made from `tests/kernels/*.cu`, results checked against
//! plain Rust.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(
    clippy::precedence,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "one line says what an instruction does, as close to its definition as can be"
)]

mod asynchronous;
mod byte_matrices;
mod calls;
mod clusters;
mod columns;
mod counts;
mod decided;
mod faults;
mod fences;
mod following;
mod forms;
mod gpu;
mod instructions;
mod kernels;
mod lane_rows;
mod limits;
mod lone_lanes;
mod matrices;

mod near;
mod newer;
mod recorded;
mod repeats;
mod rounding;
mod same_loads;
mod searches;
mod segments;
mod sparse;
mod sparse_scaled;
mod sums;
mod tensors;
mod textures;
mod turns;
mod wild;
