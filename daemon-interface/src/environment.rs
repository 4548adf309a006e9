//! The environment of the program that a library of ours is in, and whether it is to be believed: a privileged
//! program's was written by whoever started it.
//!
//! `client` and `nvml` read no variable but through this. Must not know what a variable means. Called by `client` and
//! `nvml` before they read a variable.

use std::ffi::{OsString, c_ulong};

// SAFETY: as the C library declares it; it takes any number.
unsafe extern "C" {
    /// What the kernel told this process at its start.
    safe fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Whether it has more rights than whoever started it (set-uid, set-gid, file capabilities), who wrote its
/// environment.
#[must_use]
pub fn is_privileged() -> bool {
    const AT_SECURE: c_ulong = 23;
    getauxval(AT_SECURE) != 0
}

/// A variable of the environment, which a privileged program does not believe: the dynamic linker believes
/// none of its own then either.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged() {
        return None;
    }
    std::env::var_os(name)
}
