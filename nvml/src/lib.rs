//! libnvidia-ml.so.1: NVIDIA's management library (NVML), with a client's own view of the devices.
//! Loaded by programs, nvidia-smi among them. Must not know CUDA, engines or sessions.
//!
//! From the program's side inwards:
//!
//! * [`exports`]: the C entry points, made from the table (`cuda_abi::nvml`); nothing but shells;
//! * [`params`], [`structs`]: the program's pointers and the structures that they lead to;
//! * [`api`]: one function for each that is answered here, by family;
//! * [`state`]: whether the library is initialised, and the devices that there are;
//! * [`daemon`]: asking the control daemon, anew for everything that can change;
//! * [`usage_samples`]: what was used between two answers of the daemon's;
//! * [`sensors`]: the driver's own library, for what a device measures.
//!
//! The library is a guest in somebody else's process: it prints nothing, keeps no thread, no lock and no
//! descriptor, waits for nobody without an end, and turns its own panics into errors. It works in a fork's
//! child as in its parent.

mod api;
mod daemon;
mod exports;
mod log;
mod params;
mod sensors;
mod state;
mod structs;
mod usage_samples;

/// Tells a daemon that looks for the driver's own library that this file is not it.
#[used]
static MARK: [u8; 22] = *b"OpenMPS client runtime";
