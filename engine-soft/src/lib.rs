//! The software GPU: real PTX on the CPU.
//!
//! [`exec`] compiles a parsed PTX module and runs thread blocks; it knows nothing of devices, streams
//! or clients. What stands above it places memory, orders work and gives blocks to threads:
//!
//! ```text
//! device     the engine, its facts, what clients share
//! client     one client's objects by handle; what an operation does to them
//! context    what dies together when a kernel faults
//! module     images, compiled once for all; modules with their variables
//! stream     order within a stream, completions, faults
//! grid copy  the two kinds of work: thread blocks, bytes
//! work       a task handed out in pieces to several threads
//! scheduler  which client's work goes next, and on how many threads
//! services   what kernels print, and the device heap
//! memory     windows, what is committed, what a device has left
//! ```

mod array;
mod backing;
mod client;
mod context;
mod copy;
mod device;
pub mod exec;
mod grid;
mod image;
mod memory;
mod module;
mod scheduler;
mod services;
mod stream;
mod sync;
mod work;

pub use device::{CAPABILITIES, Config, SoftEngine, uuid};
pub use image::{Assembled, assemble};
