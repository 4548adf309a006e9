//! The software GPU: real PTX on the CPU.
//!
//! [`ptx_vm`] compiles a parsed PTX module and runs thread blocks; it knows nothing of devices, streams
//! or clients. What stands above it places memory, orders work and gives blocks to threads:
//!
//! ```text
//! soft_engine     the engine: attaches clients to devices
//! client          one client's objects by handle; what an operation does to them
//! stream          order within a stream, completions, faults
//! family          a grid, what its kernel has launched, and when all of that is over
//! grid copy       the two kinds of work: thread blocks, bytes
//! module image    images, compiled once for all; modules with their variables
//! device          what devices say of themselves, and what clients share of them
//! scheduler       which client's work goes next, and on how many threads
//! work            a task handed out in pieces to several threads
//! client_state    what all of a client's work shares
//! launch_pool     how much of what kernels launched is under way
//! context         what dies together when a kernel faults
//! services        what kernels print, and the device heap
//! memory          windows, what is committed, what a device has left
//! ```
//!
//! A file names only those below it, so that each can be read by itself.

mod array;
mod block_cost;
mod client;
mod client_state;
mod code_files;
mod context;
mod copy;
mod device;
mod device_graph;
mod family;
mod grid;
mod image;
mod launch_pool;
mod memory;
mod module;
mod multiprocessor;
mod rest;
mod scheduler;
mod services;
mod soft_engine;
mod stream;
mod work;

pub use code_files::{CodeFiles, FOLDER, Say};
pub use device::{CAPABILITIES, Config, uuid};
pub use image::{Assembled, assemble};
pub use soft_engine::SoftEngine;
