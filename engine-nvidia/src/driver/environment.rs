//! What the driver reads from the environment when it starts.
//!
//! The process that drives the GPU must have these settings before `cuInit`. Whoever starts it as a
//! process of its own passes [`ENVIRONMENT`]; a program that is it calls [`prepare_environment`] first. Must not know
//! devices or clients.

use thiserror::Error;

/// Variables and their values.
///
/// * Thirty-two hardware queues: with the default of eight, unrelated streams wait for each other.
/// * Code is loaded with its module: loading it at the first launch may wait for running kernels.
/// * The driver must not take our own daemon, in whose pipe directory we run, for NVIDIA's.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    (CONNECTIONS, "32"),
    MODULE_LOADING,
    (PIPE_DIRECTORY, NO_DIRECTORY),
];

const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const MODULE_LOADING: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");
const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
const NO_DIRECTORY: &str = "/nonexistent/openmps";

/// What a pipe directory begins with that is NVIDIA's MPS' and not our daemon's: such a one is handed to the
/// process as a descriptor.
const HANDED: &str = "/proc/self/fd/";

/// What our daemon's environment may hold for its own clients, and a client of NVIDIA's MPS would keep to as well:
/// it would have the whole server held to one client's limits. The devices are chosen by that MPS, which counts
/// them anew.
const NOT_UNDER_MPS: &[&str] = &[
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_DEVICE_MEM_LIMIT",
    "CUDA_MPS_SM_PARTITION",
    "CUDA_VISIBLE_DEVICES",
];

/// As [`ENVIRONMENT`], for a process that is to be a client of NVIDIA's own MPS, whose pipe directory it was handed
/// as a descriptor: variables with their values, or without one where they must not be set. Hardware queues come
/// from one pool for all clients there, and with eight for each only one client is admitted; without a number the
/// driver takes its own for clients of an MPS, which is two.
pub fn mps_environment<'a>(
    pipe: &'a str,
    connections: Option<&'a str>,
) -> impl Iterator<Item = (&'static str, Option<&'a str>)> {
    let (loading, eager) = MODULE_LOADING;
    let set = [
        (CONNECTIONS, connections),
        (loading, Some(eager)),
        (PIPE_DIRECTORY, Some(pipe)),
        // A client writes no log there, and ours is none of its business.
        ("CUDA_MPS_LOG_DIRECTORY", Some(pipe)),
    ];
    let unset = NOT_UNDER_MPS.iter().map(|name| (*name, None));
    set.into_iter().chain(unset)
}

/// Whether the environment makes this process a client of NVIDIA's own MPS.
#[must_use]
pub fn is_under_mps() -> bool {
    let pipe = std::env::var_os(PIPE_DIRECTORY);
    pipe.is_some_and(|pipe| pipe.to_string_lossy().starts_with(HANDED))
}

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
        // SAFETY: the caller keeps that no other thread reads or writes the environment.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Whether the environment is as it must be.
pub(crate) fn check() -> Result<(), Unprepared> {
    if is_under_mps() {
        return check_under_mps();
    }
    for &(name, value) in ENVIRONMENT {
        if std::env::var_os(name).is_none_or(|set| set != value) {
            return Err(Unprepared { name, value });
        }
    }
    Ok(())
}

fn check_under_mps() -> Result<(), Unprepared> {
    let (name, value) = MODULE_LOADING;
    if std::env::var_os(name).is_none_or(|set| set != value) {
        return Err(Unprepared { name, value });
    }
    let mut unset = NOT_UNDER_MPS.iter();
    match unset.find(|name| std::env::var_os(name).is_some()) {
        Some(name) => Err(Unprepared {
            name,
            value: "unset",
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_mps_has_nobody_elses_limits_and_no_pool_of_queues_to_itself() {
        let all: Vec<_> = mps_environment("/proc/self/fd/9", None).collect();
        let of = |name: &str| all.iter().find(|(other, _)| *other == name).unwrap().1;
        assert_eq!(of("CUDA_MPS_PIPE_DIRECTORY"), Some("/proc/self/fd/9"));
        assert_eq!(of("CUDA_MODULE_LOADING"), Some("EAGER"));
        for name in [
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_VISIBLE_DEVICES",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
        let mut four = mps_environment("", Some("4"));
        assert_eq!(
            four.next(),
            Some(("CUDA_DEVICE_MAX_CONNECTIONS", Some("4")))
        );
    }
}
