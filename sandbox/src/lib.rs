//! What the kernel is told to refuse to the daemon and to its servers: system calls (seccomp) and files
//! (Landlock).
//!
//! Owns the one table of system calls (`calls`) and what a server may open (`files`). The daemon and a server's
//! process install these by themselves, once, where the process starts; a library or a test never does. Knows
//! nothing of clients, engines or CUDA: whoever calls says which [`Profile`] it is of.

pub mod calls;
mod document;
mod files;
mod filter;
mod state;

pub use document::document;
pub use files::{Files, Reach, restrict_files};
pub use filter::{Error, Profile, filter_calls};
pub use state::{Kernel, ProcessState};

/// Names whether there is to be any of this.
pub const VARIABLE: &str = "OPENMPS_SANDBOX";

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// No confinement: for a driver that needs more than is allowed, until the table has it.
    Off,
    /// Filters of system calls, and of files for servers on the software GPU.
    Usual,
    /// Beside NVIDIA's driver too, of both: what the driver of one GPU (580, an H200) was seen to need.
    Strict,
}

/// The variable's value asks for nothing that there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}={0} is neither on, off nor strict")]
pub struct UnknownSetting(String);

/// What the environment asks for.
///
/// # Errors
/// When the variable has another value.
pub fn setting() -> Result<Setting, UnknownSetting> {
    let value = std::env::var_os(VARIABLE);
    meaning(
        value
            .as_deref()
            .map(|value| value.to_string_lossy())
            .as_deref(),
    )
}

fn meaning(value: Option<&str>) -> Result<Setting, UnknownSetting> {
    match value {
        None | Some("" | "on") => Ok(Setting::Usual),
        Some("off") => Ok(Setting::Off),
        Some("strict") => Ok(Setting::Strict),
        Some(text) => Err(UnknownSetting(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_or_more_for_those_who_say_so() {
        assert_eq!(meaning(None), Ok(Setting::Usual));
        assert_eq!(meaning(Some("")), Ok(Setting::Usual));
        assert_eq!(meaning(Some("on")), Ok(Setting::Usual));
        assert_eq!(meaning(Some("off")), Ok(Setting::Off));
        assert_eq!(meaning(Some("strict")), Ok(Setting::Strict));
        for wrong in ["0", "no", "OFF", "of"] {
            let error = meaning(Some(wrong)).unwrap_err().to_string();
            assert!(error.contains(VARIABLE), "{error}");
        }
    }
}
