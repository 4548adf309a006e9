//! What containers, container engines and clusters expect of an MPS.
//!
//! Called by `openmps` alone. Must not know daemons or engines.
//!
//! Everything here turns facts into text: facts of devices come in, specifications, tables and messages
//! go out. It asks no daemon and opens no device; `openmps` does that and hands over what it found. (The
//! device plugin talks with the kubelet, and asks the daemon through a trait.)
//!
//! * `gpus`: devices and processes, as all below want them; `yaml`: files, with the lines of values;
//! * `smi`: what takes nvidia-smi's place;
//! * `cdi`: specifications of the Container Device Interface;
//! * `compose`: what the daemon's image says when it starts;
//! * `cloudpods`: Cloudpods' files, and what is made of them.
//! * `kubernetes`: GPUs' shares as resources of a node; with the feature of that name, the device plugin.

#![forbid(unsafe_code)]

pub mod cdi;
pub mod cloudpods;
pub mod compose;
pub mod gpus;
pub mod kubernetes;
pub mod smi;
pub mod yaml;
