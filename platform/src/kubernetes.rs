//! Kubernetes: GPUs' shares as resources of a node.
//!
//! Called by `openmps kubernetes`. Must not know the daemon's commands or sockets.
//!
//! * `resources`: what a node offers in each of the three modes, and what a container gets for what it
//!   was given;
//! * `sharing`: the device plugin's file of NVIDIA's form;
//! * `allocations`: which container allocation has which group of the daemon's, across restarts;
//! * `pods`: pods and nodes as the API writes them; `inspect`: who has how much, as a table;
//! * `authority`: what kubelets before 1.26 need; `extender`: gpushare's, as the API server knows it;
//!   `events`: faults of pods' programs, for the API server;
//! * with the feature `kubernetes`, `plugin`: the conversation with the kubelet, `proto`: its messages, `kubelet`:
//!   its connections.
//!
//! The daemon is asked through [`allocations::Groups`] alone.

pub mod allocations;
pub mod authority;
pub mod container_settings;
pub mod events;
pub mod extender;
pub mod inspect;
#[cfg(feature = "kubernetes")]
mod kubelet;
pub mod memory_unit;
#[cfg(feature = "kubernetes")]
pub mod plugin;
pub mod pods;
#[cfg(feature = "kubernetes")]
pub mod proto;
pub mod resources;
pub mod sharing;
