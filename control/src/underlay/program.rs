//! Which program is NVIDIA's control daemon.
//!
//! It runs with the daemon's rights, so it is looked for where only root installs, or is what the operator named;
//! never on a PATH. Ours has the same name and may lie in the same places.
//!
//! Called by `underlay`. Must not run what it finds.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::safe_fs;

/// Names the program to be run, by an absolute path.
pub(super) const VARIABLE: &str = "OPENMPS_NVIDIA_MPS";

const NAME: &str = "nvidia-cuda-mps-control";

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
/// Why there is none that may be run, in words.
pub(super) fn find() -> Result<PathBuf, String> {
    match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => named(Path::new(&path)),
        None => first_in(FOLDERS.iter().map(Path::new)),
    }
}

fn named(path: &Path) -> Result<PathBuf, String> {
    let found = safe_fs::trusted_program(path).map_err(|why| format!("{VARIABLE}: {why}"))?;
    match is_this_program(&found) {
        true => Err(format!("{VARIABLE}: {} is OpenMPS' own", path.display())),
        false => Ok(found),
    }
}

fn first_in<'a>(folders: impl Iterator<Item = &'a Path> + Clone) -> Result<PathBuf, String> {
    let there = folders.clone().map(|folder| folder.join(NAME));
    let there = there.filter(|path| path.exists() && !is_this_program(path));
    let mut refused = None;
    for path in there {
        match safe_fs::trusted_program(&path) {
            Ok(found) => return Ok(found),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let folders: Vec<_> = folders.map(|folder| folder.display().to_string()).collect();
        format!(
            "there is no {NAME} of NVIDIA's in {}; {VARIABLE} names one elsewhere",
            folders.join(", ")
        )
    }))
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
            std::fs::write(folder.join(NAME), "").unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.join(NAME), mode).unwrap();
        };
        let first = || first_in(folders.iter().map(PathBuf::as_path));
        let none = first().unwrap_err();
        assert!(none.contains(VARIABLE) && none.contains("/d"), "{none}");
        std::fs::create_dir(&folders[0]).unwrap();
        symlink("/proc/self/exe", folders[0].join(NAME)).unwrap();
        assert_eq!(first(), Err(none), "ours is passed over");
        make(&folders[2], 0o757);
        let refused = first().unwrap_err();
        assert!(refused.contains("every user may write to it"), "{refused}");
        make(&folders[3], 0o755);
        let found = folders[3].join(NAME).canonicalize().unwrap();
        assert_eq!(first(), Ok(found));
    }

    #[test]
    fn ours_is_refused_by_name() {
        let own = std::env::current_exe().unwrap();
        let told = named(&own).unwrap_err();
        // As in a folder that every user may write to.
        assert!(told.starts_with(VARIABLE), "{told}");
    }
}
