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
pub use files::{Files, restrict_files};
pub use filter::{Error, Profile, filter_calls};
pub use state::{Kernel, State};

/// Names whether there is to be any of this.
pub const VARIABLE: &str = "OPENMPS_SANDBOX";

/// Whether an operator has not turned it off: for a driver that needs more than is allowed, until the table
/// has it.
///
/// # Errors
/// When the variable is neither `on` nor `off`, in words.
pub fn is_wanted() -> Result<bool, String> {
    let value = std::env::var_os(VARIABLE);
    wanted(
        value
            .as_deref()
            .map(|value| value.to_string_lossy())
            .as_deref(),
    )
}

fn wanted(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("" | "on") => Ok(true),
        Some("off") => Ok(false),
        Some(text) => Err(format!("{VARIABLE}={text} is neither on nor off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_for_those_who_say_so() {
        assert_eq!(wanted(None), Ok(true));
        assert_eq!(wanted(Some("")), Ok(true));
        assert_eq!(wanted(Some("on")), Ok(true));
        assert_eq!(wanted(Some("off")), Ok(false));
        for wrong in ["0", "no", "OFF", "of"] {
            assert!(
                wanted(Some(wrong)).unwrap_err().contains(VARIABLE),
                "{wrong}"
            );
        }
    }
}
