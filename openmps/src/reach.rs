//! Why a user cannot come to a daemon's socket: of the folders on the way to it, the one that is closed.
//!
//! Called by `run` and `doctor::checks` where a connection failed. Must not change a folder.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first folder on the way to a file that this user may not pass.
fn closed_folder(file: &Path) -> Option<PathBuf> {
    let is_denied = |path: &&Path| {
        let looked = std::fs::symlink_metadata(path);
        looked.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    let mut way: Vec<&Path> = file.ancestors().collect();
    way.reverse();
    let first = way.into_iter().find(is_denied)?;
    first.parent().map(Path::to_owned)
}

/// What is to be done about a socket that this user may not connect to, if it is a folder's fault.
pub fn how_to_reach(socket: &Path) -> Option<String> {
    let folder = closed_folder(socket)?;
    let user = rustix::process::geteuid().as_raw();
    let mode = std::fs::metadata(&folder).map_or(0, |facts| facts.permissions().mode() & 0o7777);
    Some(format!(
        "user {user} may not pass {} (mode {mode:04o}): folders on the way to the socket need mode 0755 \
         (chmod 755 {})",
        folder.display(),
        folder.display()
    ))
}
