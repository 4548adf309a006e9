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
//!   would have to wait for it (`gate`).
//! * A fault ends the device's one context, and with it every client on the device: each is told, and
//!   further clients are refused with the error. A new executor is what helps.
//! * Kernels of clients in one executor can reach each other's memory. Who shares an executor is
//!   decided by the daemon.
//! * Modules of machine code alone print into this process' output (`output`), and have no `__managed__`
//!   variables (`rewrite`).
//! * Memory that a device was let reach on another stays within its reach.
//!
//! It must not know who the clients are, nor what carries their calls here.

mod array;
mod chain;
mod cleared;
mod client;
mod clock;
mod code;
mod common;
mod context;
mod copy;
mod device;
mod driver;
mod durations;
mod engine;
mod environment;
mod facts;
mod fetch;
mod gate;
mod granules;
mod host;
mod image;
mod launch;
mod layout;
mod link;
mod local;
mod locate;
mod looks;
mod memory;
mod module;
#[cfg(target_env = "gnu")]
mod mutex;
mod names;
mod nvml;
mod output;
mod parts;
mod physical;
mod pinned;
mod place;
mod poller;
mod rewrite;
mod rhythm;
mod run;
mod shares;
mod stream;
mod sync;
mod tensor_map;
mod window;
mod words;
mod work;

pub use driver::OpenError;
pub use engine::NvidiaEngine;
pub use environment::{
    ENVIRONMENT, Unprepared, is_under_mps, mps_environment, prepare_environment,
};
pub use locate::{CLIENT_MARK, installed};
pub use nvml::{DeviceMode, Nvml};
