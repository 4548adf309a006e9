//! Active thread percentages of single contexts, by the environment.
//!
//! Owns the reading of two variables and no value of them. Called by `attach`, and by contexts that are made. Must
//! not know what a percentage grants.

use cuda_abi::CUresult;

/// The active thread percentage for the next context, where each context has its own: then the
/// environment is read whenever one is made.
pub(crate) fn percentage_now() -> Result<Option<f32>, CUresult> {
    if !percentage_for_each() {
        return Ok(None);
    }
    let Some(text) = daemon_interface::environment::variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    else {
        return Ok(None);
    };
    let read = protocol::limits::percentage(&text.to_string_lossy());
    read.map(Some).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// Whether each context has a percentage of its own.
pub(crate) fn percentage_for_each() -> bool {
    daemon_interface::environment::variable(
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    )
    .is_some_and(|value| !value.is_empty() && value != "0")
}
