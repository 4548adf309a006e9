//! What the daemon needs of the program that it is part of: it holds no CUDA itself.
//!
//! Filled by `openmps/src/main.rs`, called by `startup` and `underlay`. Must not know which engine there is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compute_mode;

/// The version of the driver API that is offered, as NVIDIA's programs print it.
pub const BINARY_VERSION: u32 = 13000;

/// This program, whatever has become of its file.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// The name that the daemon has in process lists.
pub const DAEMON_NAME: &str = "nvidia-cuda-mps-control";

/// What a daemon needs of the program that it is part of.
#[derive(Clone, Copy, Debug)]
pub struct HostProgram {
    /// Gives the command that runs a program, this one or what takes its place, as a server, without arguments of its own: its name
    /// will be [`crate::servers::process::SERVER_NAME`], and it is to call [`crate::servers::process::connect_to_daemon`]. On the underlay its
    /// driver is to take this for the pipe directory of NVIDIA's MPS, and it calls [`crate::servers::process::receive_underlay`].
    pub start_server: fn(&Path, Option<&str>) -> Command,
    /// Gives the command that runs this program as [`crate::underlay::supervise`].
    pub supervise_underlay: fn() -> Command,
    /// The driver library that a server opens, if there is one.
    pub driver: fn() -> Option<PathBuf>,
    /// Opens the devices' compute modes.
    pub open_modes: compute_mode::OpenModes,
    /// Whether a server may drive hardware, whose driver makes system calls that nobody here knows.
    pub drives_hardware: fn() -> bool,
}
