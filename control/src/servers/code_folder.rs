//! Where a server that becomes another user keeps code for later servers of that user, who has no folder of its own that
//! root would look for: in the state directory, which is root's.
//!
//! Called in the server's process, while it is root. Must not know what is kept there.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::compute_mode::SoftwareModes;
use crate::files::error::FileError;
use crate::files::safe_path::{make_own_directory, make_own_directory_in_safe_place};

/// The folder of all users' folders, in the state directory.
const FOLDER: &str = "code";

/// Makes the folder of the user that this process is to be, or finds it.
///
/// # Errors
/// With the directory that cannot be had, or that somebody else could change.
pub fn make(uid: u32, gid: u32) -> Result<PathBuf, FileError> {
    make_in(&SoftwareModes::directory(), uid, gid)
}

fn make_in(state: &Path, uid: u32, gid: u32) -> Result<PathBuf, FileError> {
    let state = make_own_directory_in_safe_place(state, 0o755)?;
    let all = state.join(FOLDER);
    make_own_directory(&all, 0o711)?;
    let own = all.join(uid.to_string());
    let open = || {
        let mut options = File::options();
        options.read(true);
        options.custom_flags((OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed());
        options.open(&own)
    };
    let of = |error| FileError::make(&own, error);
    let folder = match open() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Nobody else writes to the folder above it.
            make_own_directory(&own, 0o700)?;
            open().map_err(of)?
        }
        folder => folder.map_err(of)?,
    };
    if folder.metadata().map_err(of)?.uid() != uid {
        fchown(&folder, Some(uid), Some(gid)).map_err(of)?;
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_user_has_a_folder_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        // Another user's only as root.
        let other = if uid == 0 { 1000 } else { uid };
        for uid in [uid, other, other] {
            let folder = make_in(&state, uid, gid).unwrap();
            let metadata = std::fs::metadata(&folder).unwrap();
            assert_eq!((metadata.uid(), metadata.mode() & 0o777), (uid, 0o700));
        }
        let all = state.join(FOLDER);
        let above = std::fs::metadata(&all).unwrap();
        assert_eq!(above.mode() & 0o777, 0o711);
        // Where others may write, nothing is made.
        std::fs::set_permissions(&all, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_in(&state, uid, gid).is_err());
    }

    #[test]
    fn what_lies_in_its_place_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let folder = make_in(place.path(), uid, gid).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(make_in(place.path(), uid, gid).is_err());
    }
}
