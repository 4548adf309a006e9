//! What the user's environment says about the compile cache: the variables that CUDA documents.
//!
//! Owns how the variables are read, and what holds where they say nothing. Called once, when the compile cache is
//! made. Opens no file.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::log::log;

/// The most that a process keeps in memory.
const BYTES_OF_MEMORY: usize = 32 << 20;

/// CUDA_CACHE_MAXSIZE where it is not set, and the most that it may be.
const BYTES_OF_FILES: u64 = 1 << 30;
const MOST_BYTES_OF_FILES: u64 = 4 << 30;

/// CUDA_CACHE_PATH where it is not set, in the home folder.
const FOLDER: &str = ".nv/ComputeCache";

/// Our own folder in it: the driver keeps its entries there in another form.
const OWN: &str = "openmps";

/// What may be kept, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) bytes_of_memory: usize,
    pub(super) bytes_of_files: u64,
    /// None: no files.
    pub(super) folder: Option<PathBuf>,
}

impl Settings {
    /// Those of this process. One with more privileges than whoever started it (AT_SECURE) does not
    /// take its environment's word for where to write.
    pub(super) fn of_process() -> Self {
        if daemon_interface::environment::is_privileged() {
            return Self::memory_only();
        }
        let home_is_own = |home: &Path| {
            let metadata = std::fs::metadata(home);
            metadata.is_ok_and(|home| home.uid() == geteuid().as_raw())
        };
        Self::from(|name| std::env::var_os(name), home_is_own)
    }

    pub(super) fn memory_only() -> Self {
        Self {
            bytes_of_memory: BYTES_OF_MEMORY,
            bytes_of_files: BYTES_OF_FILES,
            folder: None,
        }
    }

    /// What these variables say. A home folder of somebody else's (as sudo may leave it) gets no files.
    fn from(
        variable: impl Fn(&str) -> Option<OsString>,
        home_is_own: impl Fn(&Path) -> bool,
    ) -> Self {
        let number = |name| {
            let value = variable(name)?;
            let number = parse(&value);
            if number.is_none() {
                log!("compile cache: {name}={} is not a number", value.display());
            }
            number
        };
        if number("CUDA_CACHE_DISABLE").unwrap_or(0) != 0 {
            return Self {
                bytes_of_memory: 0,
                bytes_of_files: 0,
                folder: None,
            };
        }
        let bytes_of_files = number("CUDA_CACHE_MAXSIZE")
            .unwrap_or(BYTES_OF_FILES)
            .min(MOST_BYTES_OF_FILES);
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let folder = match set("CUDA_CACHE_PATH") {
            // The program may change its folder later.
            Some(path) => std::path::absolute(path).ok(),
            None => set("HOME")
                .map(PathBuf::from)
                .filter(|home| home.is_absolute() && home_is_own(home))
                .map(|home| home.join(FOLDER)),
        };
        Self {
            bytes_of_memory: BYTES_OF_MEMORY.min(bytes_of_files as usize),
            bytes_of_files,
            folder: folder.map(|folder| folder.join(OWN)),
        }
    }
}

fn parse(value: &OsStr) -> Option<u64> {
    value.to_str()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings under these variables, where only /home/me is one's own.
    fn of(variables: &[(&str, &str)]) -> Settings {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Settings::from(variable, |home| home == "/home/me")
    }

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        of(variables).folder
    }

    #[test]
    fn files_are_where_cuda_says_and_only_in_ones_own_home() {
        let default = Some("/home/me/.nv/ComputeCache/openmps".into());
        let own = Some("/cache/openmps".into());
        let home = ("HOME", "/home/me");
        assert_eq!(folder(&[home]), default);
        assert_eq!(folder(&[home, ("CUDA_CACHE_PATH", "")]), default);
        assert_eq!(folder(&[home, ("CUDA_CACHE_PATH", "/cache")]), own);
        assert_eq!(folder(&[("CUDA_CACHE_PATH", "/cache")]), own);
        assert_eq!(folder(&[("HOME", "/home/you")]), None);
        assert_eq!(folder(&[("HOME", "")]), None);
        assert_eq!(folder(&[]), None);
        let relative = folder(&[("CUDA_CACHE_PATH", "cache")]).unwrap();
        assert!(relative.is_absolute() && relative.ends_with("cache/openmps"));
    }

    #[test]
    fn sizes_are_cudas_and_bound_memory_too() {
        let sizes = |value| {
            let settings = of(&[("CUDA_CACHE_MAXSIZE", value)]);
            (settings.bytes_of_memory, settings.bytes_of_files)
        };
        assert_eq!(sizes("1000000"), (1_000_000, 1_000_000));
        assert_eq!(sizes("268435456"), (32 << 20, 256 << 20));
        assert_eq!(sizes("99999999999"), (32 << 20, 4 << 30));
        assert_eq!(sizes("0"), (0, 0));
        for none in ["-1", "much", ""] {
            assert_eq!(sizes(none), (32 << 20, 1 << 30));
        }
    }

    #[test]
    fn a_disabled_cache_keeps_nothing() {
        let disabled = of(&[("HOME", "/home/me"), ("CUDA_CACHE_DISABLE", "1")]);
        assert_eq!(disabled.folder, None);
        assert_eq!((disabled.bytes_of_memory, disabled.bytes_of_files), (0, 0));
        for enabled in ["0", "no", ""] {
            let settings = of(&[("HOME", "/home/me"), ("CUDA_CACHE_DISABLE", enabled)]);
            assert_eq!(settings, of(&[("HOME", "/home/me")]));
        }
    }
}
