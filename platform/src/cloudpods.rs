//! Cloudpods: its two files, what they ask for, and what is made of it.
//!
//! * `files`: `host.conf` and `host_container_device.yml`, with a message for whatever is wrong in them;
//! * `plan`: which devices are divided into how many parts, and the commands that say so to a daemon;
//! * `bus`: what the kernel's directories tell of a device;
//! * `list`: `isolated-device-list`; `container`: what a container is given.
//!
//! Called by `openmps cloudpods`. Must not know how a daemon is started: it says the commands that it is to be
//! given.

mod bus;
mod container;
mod files;
mod list;
mod plan;

pub use container::{Container, ContainerError, Mount, Variable, container};
pub use files::{HOST_CONF, HostConf, SharedDeviceLine, device_entries};
pub use list::{Shape, VirtualDevice, table, virtual_devices};
pub use plan::{Plan, SharedDevice};
