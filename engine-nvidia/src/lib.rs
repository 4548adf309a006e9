//! The real driver, opened by absolute path.
//!
//! [`NvidiaEngine`] drives NVIDIA GPUs through `libcuda.so.1`: one context a device, which all clients
//! share; a non-blocking stream for each of a client's streams; a window of virtual addresses for each
//! client and device, backed by exportable physical memory; completion read from words that the GPU
//! writes. Everything of the driver is reached through the function pointers in `driver`.
//!
//! What is weaker than the software GPU, for now:
//! * The driver offers no way to end one client's kernel. A client that goes is waited for. An endless
//!   kernel of it keeps its session's thread and its memory, and after a while others are refused what
//!   would have to wait for it (`device::quiesce`).
//! * A fault ends the device's one context, and with it every client on the device: each is told, and
//!   further clients are refused with the error. A new executor is what helps.
//! * Kernels of clients in one executor can reach each other's memory. Who shares an executor is
//!   decided by the daemon.
//! * Modules of machine code alone print into this process' output (`code::output`), and have no `__managed__`
//!   variables (`code::rewrite`).
//! * Memory that a device was let reach on another stays within its reach.
//!
//! It must not know who the clients are, nor what carries their calls here.

mod client;
mod code;
mod device;
mod driver;
mod engine;
mod memory;
mod partition;
mod submit;
mod sync;

pub use driver::OpenError;
pub use driver::environment::{
    ENVIRONMENT, Unprepared, is_under_mps, mps_environment, prepare_environment,
};
pub use driver::locate::{CLIENT_MARK, installed};
pub use driver::nvml::{DeviceMode, Nvml, NvmlError, Refusal};
pub use engine::NvidiaEngine;
