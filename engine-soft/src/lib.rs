//! The software GPU: real PTX on the CPU.
//!
//! [`exec`] compiles a parsed PTX module and runs thread blocks; it knows nothing of devices, streams
//! or clients. What stands above it places memory, orders work and gives blocks to threads.

pub mod exec;
