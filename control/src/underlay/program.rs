//! Which program is NVIDIA's control daemon.
//!
//! It runs with the daemon's rights, so it is looked for where only root installs, or is what the operator named;
//! never on a PATH. Ours has the same name and may lie in the same places.
//!
//! Called by `underlay`. Must not run what it finds.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::NoProgram;
use super::variables::{PROGRAM, PROGRAM_VARIABLE};
use crate::files::safe_path::trusted_program;

/// Where NVIDIA's installer, distributions and container runtimes put it.
const FOLDERS: [&str; 5] = [
    "/usr/bin",
    "/usr/local/nvidia/bin",
    "/opt/nvidia/bin",
    "/run/current-system/sw/bin",
    "/usr/local/bin",
];

/// The program, by its path without links.
///
/// # Errors
/// Why there is none that may be run.
pub(super) fn find() -> Result<PathBuf, NoProgram> {
    match std::env::var_os(PROGRAM_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => named(Path::new(&path)),
        None => first_in(FOLDERS.iter().map(Path::new)),
    }
}

fn named(path: &Path) -> Result<PathBuf, NoProgram> {
    let found = trusted_program(path).map_err(NoProgram::Named)?;
    match is_this_program(&found) {
        true => Err(NoProgram::Ours(path.to_owned())),
        false => Ok(found),
    }
}

fn first_in<'a>(folders: impl Iterator<Item = &'a Path> + Clone) -> Result<PathBuf, NoProgram> {
    let there = folders.clone().map(|folder| folder.join(PROGRAM));
    let there = there.filter(|path| path.exists() && !is_this_program(path));
    let mut refused = None;
    for path in there {
        match trusted_program(&path) {
            Ok(found) => return Ok(found),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.map_or_else(
        || {
            let folders: Vec<_> = folders.map(|folder| folder.display().to_string()).collect();
            NoProgram::NotFound(folders.join(", "))
        },
        NoProgram::Refused,
    ))
}

/// Whether a path leads to the file that this process runs, by whatever name.
fn is_this_program(path: &Path) -> bool {
    let file = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let own = file(Path::new("/proc/self/exe"));
    own.is_some() && file(path) == own
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_first_program_is_taken_that_is_not_ours_and_nobody_else_can_replace() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b", "c", "d"].map(|name| root.path().join(name));
        let make = |folder: &Path, mode| {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(PROGRAM), "").unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.join(PROGRAM), mode).unwrap();
        };
        let first = || first_in(folders.iter().map(PathBuf::as_path));
        let none = first().unwrap_err().to_string();
        assert!(
            none.contains(PROGRAM_VARIABLE) && none.contains("/d"),
            "{none}"
        );
        std::fs::create_dir(&folders[0]).unwrap();
        symlink("/proc/self/exe", folders[0].join(PROGRAM)).unwrap();
        assert_eq!(
            first().unwrap_err().to_string(),
            none,
            "ours is passed over"
        );
        make(&folders[2], 0o757);
        let refused = first().unwrap_err().to_string();
        assert!(refused.contains("every user may write to it"), "{refused}");
        make(&folders[3], 0o755);
        let found = folders[3].join(PROGRAM).canonicalize().unwrap();
        assert_eq!(first().unwrap(), found);
    }

    #[test]
    fn ours_is_refused_by_name() {
        let own = std::env::current_exe().unwrap();
        let told = named(&own).unwrap_err().to_string();
        // As in a folder that every user may write to.
        assert!(told.starts_with(PROGRAM_VARIABLE), "{told}");
    }
}
