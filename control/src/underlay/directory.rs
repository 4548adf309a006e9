//! The private directories of an underlay.
//!
//! Who comes to the sockets of an MPS is its client, past all limits of ours. NVIDIA's opens them to every user, and
//! `/proc/net/unix` tells every user their path, so that no name is secret: what keeps programs out is a directory
//! above them that is the daemon's user's alone. Servers of other users get a descriptor of the one below it instead
//! of a path. Nothing of it lies in the pipe directory, which containers are given, whose root may be the machine's.
//!
//! Called by `underlay` and `daemon::underlay`. Must not know NVIDIA's protocol.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use transport::socket::PATH_MAX;

use super::error::{DirectoryError, MakeError};
use super::variables::DIRECTORY_VARIABLE;
use crate::files::error::FileError;
use crate::files::safe_path::{make_own_directory, make_own_directory_in_safe_place};

/// The longest name of a socket that NVIDIA's makes.
const LONGEST_SOCKET: &str = "/control_privileged";

/// The directories of one underlay.
#[derive(Debug)]
pub(crate) struct UnderlayDirectory {
    /// All of it, for this user alone.
    pub(crate) whole: PathBuf,
    /// NVIDIA's pipe directory, for who has come that far.
    pub(crate) pipe: PathBuf,
    /// Its log directory, for this user alone.
    pub(crate) log: PathBuf,
    /// The way to the pipe directory for servers.
    pub(crate) directory: OwnedFd,
}

impl UnderlayDirectory {
    /// Makes the directories.
    ///
    /// # Errors
    /// With the path.
    pub(crate) fn make() -> Result<Self, DirectoryError> {
        Self::make_in(&base()?)
    }

    fn make_in(base: &Path) -> Result<Self, DirectoryError> {
        let in_base = |error: FileError| DirectoryError::Make(error.into());
        let base = make_own_directory_in_safe_place(base, 0o700).map_err(in_base)?;
        let whole = anew_in(&base).map_err(DirectoryError::Make)?;
        let made = Self::fill(whole.clone());
        if made.is_err() {
            let _ = std::fs::remove_dir_all(&whole);
        }
        made.map_err(DirectoryError::Make)
    }

    fn fill(whole: PathBuf) -> Result<Self, MakeError> {
        let (pipe, log) = (whole.join("pipe"), whole.join("log"));
        let longest = pipe.as_os_str().len() + LONGEST_SOCKET.len();
        if longest > PATH_MAX {
            return Err(MakeError::PathTooLong {
                path: pipe,
                longest,
            });
        }
        // Searched by servers of other users.
        make_own_directory(&pipe, 0o711)?;
        make_own_directory(&log, 0o700)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(&pipe, flags, Mode::empty()).map_err(|source| MakeError::Open {
                path: pipe.clone(),
                source,
            })?;
        Ok(Self {
            whole,
            pipe,
            log,
            directory,
        })
    }
}

/// The directory in which those of underlays are made: where nothing is left after a start of the machine.
fn base() -> Result<PathBuf, DirectoryError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(named) = variable(DIRECTORY_VARIABLE).map(PathBuf::from) {
        return match named.is_absolute() {
            true => Ok(named),
            false => Err(DirectoryError::NotAbsolute(named)),
        };
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok("/run/openmps-underlay".into());
    }
    let of_the_user = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let of_the_user = of_the_user.filter(|path| path.is_absolute());
    Ok(match of_the_user {
        Some(directory) => directory.join("openmps-underlay"),
        None => format!("/tmp/openmps-underlay-{}", user.as_raw()).into(),
    })
}

/// A directory that was not there before: daemons of several pid namespaces may have the same number.
fn anew_in(base: &Path) -> Result<PathBuf, MakeError> {
    let own = std::process::id();
    for number in 1..=u32::from(u16::MAX) {
        let path = base.join(format!("{own}-{number}"));
        if !path.exists() {
            make_own_directory(&path, 0o700)?;
            return Ok(path);
        }
    }
    Err(MakeError::Full(base.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_who_was_handed_the_descriptor_comes_to_the_sockets() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("base");
        let place = UnderlayDirectory::make_in(&base).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&base), 0o700);
        assert_eq!(mode(&place.whole), 0o700);
        assert_eq!((mode(&place.pipe), mode(&place.log)), (0o711, 0o700));
        let by_descriptor = rustix::fs::fstat(&place.directory).unwrap();
        let by_path = rustix::fs::stat(&place.pipe).unwrap();
        assert_eq!(by_descriptor.st_ino, by_path.st_ino);
        let other = UnderlayDirectory::make_in(&base).unwrap();
        assert_ne!(place.whole, other.whole);
    }

    #[test]
    fn a_path_that_is_too_long_for_sockets_is_said_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("x".repeat(90));
        let told = UnderlayDirectory::make_in(&base).unwrap_err().to_string();
        assert!(
            told.contains("107") && told.contains(DIRECTORY_VARIABLE),
            "{told}"
        );
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0);
    }
}
