//! What the driver reads from the environment when it starts.
//!
//! The process that drives the GPU must have these settings before `cuInit`. Whoever starts it as a
//! process of its own passes [`ENVIRONMENT`]; a program that is it calls [`prepare_environment`] first.

use thiserror::Error;

/// Variables and their values.
///
/// * Thirty-two hardware queues: with the default of eight, unrelated streams wait for each other.
/// * Code is loaded with its module: loading it at the first launch may wait for running kernels.
/// * The driver must not take our own daemon, in whose pipe directory we run, for NVIDIA's.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_MODULE_LOADING", "EAGER"),
    (PIPE_DIRECTORY, NO_DIRECTORY),
];

const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
const NO_DIRECTORY: &str = "/nonexistent/openmps";

/// A variable of [`ENVIRONMENT`] is not set as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{name} is not {value} in the environment of the process that drives the GPU")]
pub struct Unprepared {
    /// The variable.
    pub name: &'static str,
    /// What it must be.
    pub value: &'static str,
}

/// Sets [`ENVIRONMENT`] in this process.
///
/// # Safety
/// No other thread may read or write the environment meanwhile: call it first thing in `main`.
pub unsafe fn prepare_environment() {
    for (name, value) in ENVIRONMENT {
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Whether the environment is as it must be.
pub(crate) fn check() -> Result<(), Unprepared> {
    for &(name, value) in ENVIRONMENT {
        if std::env::var_os(name).is_none_or(|set| set != value) {
            return Err(Unprepared { name, value });
        }
    }
    Ok(())
}
