//! Files of a daemon's where other users may have been first, or may write beside it; `safe_path` has the directories.
//!
//! The pipe and log directories are below `/tmp` by default, and the daemon is often root: whoever can put
//! a link in its way makes it write, or open to everybody, what that user could not. So nothing that is
//! made, replaced, appended to or believed is reached through what somebody else could have put there: a
//! link counts if root or this user made it, a directory if nobody else may change it. Logs, the pid file, saved groups and
//! compute modes are written by it; it must not know what is in them.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use transport::socket::is_from_outside;

use super::error::FileError;

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Links that are followed on one way.
pub(super) const MAX_LINKS: u32 = 40;

/// Makes something that is to have a mode whatever the umask says. A mode that is set afterwards, by
/// name, could meet a link that the directory's owner put there meanwhile.
pub fn with_mode<T>(mode: u32, make: impl FnOnce() -> T) -> T {
    // The umask is the process's, and tests have threads.
    static UMASK: Mutex<()> = Mutex::new(());
    let _one = UMASK.lock();
    let former = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777 & !mode));
    let made = make();
    rustix::process::umask(former);
    made
}

pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether somebody is root or this user.
pub(crate) fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == user()
}

pub(super) fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// Whether an open file is root's, this user's, or of somebody from outside our user namespace.
///
/// # Errors
/// Whose it is, what that user could do, and what to do about it.
pub(crate) fn check_trusted_owner(
    path: &Path,
    file: &File,
    harm: &'static str,
) -> Result<(), FileError> {
    let owner = match file.metadata() {
        Ok(found) => found.uid(),
        Err(error) => return Err(FileError::unreachable(path, error)),
    };
    if is_trusted(owner) || is_from_outside(owner) {
        return Ok(());
    }
    Err(FileError::OthersFile {
        path: path.to_owned(),
        owner,
        harm,
    })
}

/// Opens a file for appending, and makes it, readable for all, if need be. Others that could write to it,
/// as to one of a former release's, cannot any more.
///
/// # Errors
/// What the system says; a link that somebody else put there is an error.
pub(crate) fn append(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o644);
    let file = open_in_place(path, &mut options)?;
    let found = file.metadata()?;
    if found.is_file() && found.uid() == user() && found.mode() & 0o022 != 0 {
        file.set_permissions(Permissions::from_mode(found.mode() & 0o7755))?;
    }
    Ok(file)
}

/// Opens a file or character device by its name, through links of root's and this user's alone.
pub(crate) fn open_in_place(
    path: &Path,
    options: &mut std::fs::OpenOptions,
) -> std::io::Result<File> {
    // A FIFO must hold up nobody.
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match options.open(&path) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                path = through(&path)?;
            }
            Err(error) => return Err(error),
            Ok(file) => {
                let kind = file.metadata()?.file_type();
                return match kind.is_file() || kind.is_char_device() {
                    true => Ok(file),
                    false => Err(std::io::Error::other("it is not a file")),
                };
            }
        }
    }
    Err(std::io::Error::other("too many links"))
}

/// Where a link of root's or this user's leads.
fn through(path: &Path) -> std::io::Result<PathBuf> {
    let link = File::options()
        .read(true)
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::PATH))
        .open(path)?;
    let owner = link.metadata()?.uid();
    if !is_trusted(owner) {
        return Err(std::io::Error::other(format!(
            "it is a link of user {owner}'s, which is not followed: remove it"
        )));
    }
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes();
    let target = PathBuf::from(OsString::from_vec(target));
    Ok(path
        .parent()
        .map_or_else(|| target.clone(), |folder| folder.join(&target)))
}

/// Writes a file that only this user can read, in place of what was there.
///
/// # Errors
/// With the path.
pub(crate) fn write_trusted(path: &Path, text: &str) -> Result<(), FileError> {
    write(path, text, 0o600)
}

/// Writes a file with a mode, in place of what was there: all of it or nothing.
///
/// # Errors
/// With the path.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = create_in_place_of(&new, mode)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&new);
        FileError::write(path, error)
    })
}

/// Makes a file in place of whatever has its name.
pub(crate) fn create_in_place_of(path: &Path, mode: u32) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    with_mode(mode, || {
        File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
    })
}

/// What is in a file that [`write_trusted`] wrote, if it is there.
///
/// # Errors
/// With the path, when somebody else could have written it.
pub(crate) fn read_trusted(path: &Path) -> Result<Option<String>, FileError> {
    let mut text = String::new();
    let mut read = || -> std::io::Result<bool> {
        let flags = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() || found.uid() != user() || found.mode() & 0o077 != 0 {
            return Ok(false);
        }
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(true)
    };
    match read() {
        Ok(true) => Ok(Some(text)),
        Ok(false) => Err(untrusted_file(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::read(path, error)),
    }
}

/// What is in a file that [`write()`] wrote for others to read, if it is there.
///
/// # Errors
/// With the path.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    let mut text = String::new();
    let read = open_in_place(path, File::options().read(true))
        .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::read(path, error)),
    }
}

/// That a file is not what a daemon of this user's wrote.
pub(crate) fn untrusted_file(path: &Path) -> FileError {
    FileError::NotOurs {
        path: path.to_owned(),
        user: user(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory of the test's own. Made as everything else is whose mode matters: other tests' threads change
    /// the process's umask.
    fn folder() -> tempfile::TempDir {
        with_mode(0o755, tempfile::tempdir).unwrap()
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// What only root can set up: nobody else can give files away.
    #[test]
    fn a_link_of_another_users_is_not_appended_to() {
        if user() != 0 {
            eprintln!("skipped: only root can make another user's files");
            return;
        }
        let root = folder();
        let precious = root.path().join("precious");
        std::fs::write(&precious, "kept").unwrap();
        let log = root.path().join("x.log");
        symlink(&precious, &log).unwrap();
        append(&log).expect("our own link");
        std::os::unix::fs::lchown(&log, Some(1000), None).unwrap();
        let told = append(&log).unwrap_err().to_string();
        assert!(told.contains("a link of user 1000's"), "{told}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    }

    #[test]
    fn a_fifo_is_no_file_to_append_to() {
        let root = folder();
        let fifo = root.path().join("x.log");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        assert!(append(&fifo).is_err(), "nobody reads it");
        let _reader = File::options().read(true).write(true).open(&fifo).unwrap();
        assert!(append(&fifo).is_err());
    }

    #[test]
    fn what_replaces_a_file_follows_no_link() {
        let root = folder();
        let (precious, path) = (root.path().join("precious"), root.path().join("x.json"));
        std::fs::write(&precious, "kept").unwrap();
        for name in ["x.json", "x.new"] {
            symlink(&precious, root.path().join(name)).unwrap();
        }
        assert!(read_trusted(&path).is_err(), "a link");
        write_trusted(&path, "{}").unwrap();
        assert_eq!(read_trusted(&path).unwrap().as_deref(), Some("{}"));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
        write(&path, "1", 0o644).unwrap();
        assert_eq!(mode_of(&path), 0o644);
        assert!(
            read_trusted(&path).is_err(),
            "others could have been told of it"
        );
    }
}
