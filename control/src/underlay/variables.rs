//! What operators set of the underlay, by name: errors name it, and those who read it are `mode`, `directory`, `program`
//! and the engine in a server. Names only: must not know what they mean.

/// Names the directory in which those of underlays are made.
pub(super) const DIRECTORY_VARIABLE: &str = "OPENMPS_UNDERLAY_DIRECTORY";

/// Names the program to be run, by an absolute path.
pub(super) const PROGRAM_VARIABLE: &str = "OPENMPS_NVIDIA_MPS";

/// The program that is looked for where none is named.
pub(super) const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Names how many hardware queues each server on the underlay has.
pub(crate) const CONNECTIONS_VARIABLE: &str = "OPENMPS_UNDERLAY_CONNECTIONS";

/// The hardware queues that a context can have.
pub(crate) const MOST_CONNECTIONS: u32 = 32;
