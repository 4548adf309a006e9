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
pub use state::{Kernel, State};

/// Names whether there is to be any of this.
pub const VARIABLE: &str = "OPENMPS_SANDBOX";

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: for a driver that needs more than is allowed, until the table has it.
    Nothing,
    /// Filters of system calls, and of files for servers on the software GPU.
    Usual,
    /// Beside NVIDIA's driver too, of both: what the driver of one GPU (580, an H200) was seen to need.
    Strict,
}

/// What the environment asks for.
///
/// # Errors
/// When the variable has another value, in words.
pub fn wanted() -> Result<Wanted, String> {
    let value = std::env::var_os(VARIABLE);
    meaning(
        value
            .as_deref()
            .map(|value| value.to_string_lossy())
            .as_deref(),
    )
}

fn meaning(value: Option<&str>) -> Result<Wanted, String> {
    match value {
        None | Some("" | "on") => Ok(Wanted::Usual),
        Some("off") => Ok(Wanted::Nothing),
        Some("strict") => Ok(Wanted::Strict),
        Some(text) => Err(format!("{VARIABLE}={text} is neither on, off nor strict")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_or_more_for_those_who_say_so() {
        assert_eq!(meaning(None), Ok(Wanted::Usual));
        assert_eq!(meaning(Some("")), Ok(Wanted::Usual));
        assert_eq!(meaning(Some("on")), Ok(Wanted::Usual));
        assert_eq!(meaning(Some("off")), Ok(Wanted::Nothing));
        assert_eq!(meaning(Some("strict")), Ok(Wanted::Strict));
        for wrong in ["0", "no", "OFF", "of"] {
            assert!(
                meaning(Some(wrong)).unwrap_err().contains(VARIABLE),
                "{wrong}"
            );
        }
    }
}
