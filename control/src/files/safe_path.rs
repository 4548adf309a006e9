//! Directories and programs that nobody but root and this user can put something else in the place of: made where they are
//! missing, looked at step by step where they are there. Who claims the pipe directory, makes groups' directories or runs
//! NVIDIA's programs calls it; files in them are `safe_fs`. Must not know what is in a directory, nor what a program
//! does.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use transport::socket::is_from_outside;

use super::error::{FileError, ProgramError};
use super::safe_fs::{MAX_LINKS, flags, is_trusted, user, with_mode};

/// Makes a directory with a mode, or finds it there. It must be this user's own, and no link.
///
/// # Errors
/// With the path.
pub(crate) fn make_own_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    let made = with_mode(mode, || DirBuilder::new().mode(mode).create(path));
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(FileError::make(path, error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(|error| FileError::make(path, error))?;
    let owner = user();
    if !found.is_dir() || found.uid() != owner || found.mode() & 0o777 & !mode != 0 {
        return Err(FileError::NotOwnDirectory {
            path: path.to_owned(),
            user: owner,
        });
    }
    Ok(())
}

/// As [`make_own_directory`], where nobody but root and this user can put another in its place: those above it are looked at,
/// and made where they are missing.
///
/// # Errors
/// With the directory or link that somebody else could change.
pub(crate) fn make_own_directory_in_safe_place(
    path: &Path,
    mode: u32,
) -> Result<PathBuf, FileError> {
    let name = path.file_name();
    let (Some(above), Some(name)) = (path.parent(), name) else {
        return Err(FileError::NoName(path.to_owned()));
    };
    let may_own = |owner| is_trusted(owner) || is_from_outside(owner);
    let own = safe_directory(above, may_own)?.join(name);
    make_own_directory(&own, mode)?;
    Ok(own)
}

/// A program to be run with this process's rights: its path without links, if nobody but root and this user can put
/// another in its place or change it.
///
/// # Errors
/// With what somebody else could change; nothing is made.
pub(crate) fn trusted_program(path: &Path) -> Result<PathBuf, ProgramError> {
    if !path.is_absolute() {
        return Err(ProgramError::NotAbsolute(path.to_owned()));
    }
    let found = path
        .canonicalize()
        .map_err(|error| FileError::unreachable(path, error))?;
    for at in found.ancestors() {
        let metadata =
            std::fs::symlink_metadata(at).map_err(|error| FileError::unreachable(at, error))?;
        let (owner, path) = (metadata.uid(), at.to_owned());
        if !is_trusted(owner) && !is_from_outside(owner) {
            return Err(ProgramError::OthersFile { path, owner });
        }
        match at == found {
            true if !metadata.is_file() => return Err(ProgramError::NotFile(path)),
            true if metadata.mode() & 0o002 != 0 => return Err(ProgramError::WorldWritable(path)),
            true => {}
            false => keeps_what_is_in_it(at, &metadata)?,
        }
    }
    match rustix::fs::access(&found, rustix::fs::Access::EXEC_OK) {
        Ok(()) => Ok(found),
        Err(source) => Err(ProgramError::NotExecutable {
            path: found,
            source,
        }),
    }
}

/// Makes a directory, and those above it that are missing, which every user can reach and nobody but root
/// and this user can put anything in the place of. One that is there and closed is opened to all.
///
/// # Errors
/// With the directory or link that somebody else could change.
pub fn open_directory(path: &Path) -> Result<(), FileError> {
    let at = safe_directory(path, is_trusted)?;
    // Nobody else can have put another in its place since.
    let flags = flags(OFlags::NOFOLLOW | OFlags::DIRECTORY);
    let opened = File::options().read(true).custom_flags(flags).open(&at);
    opened
        .and_then(|directory| {
            let mode = directory.metadata()?.mode();
            match mode & 0o755 == 0o755 {
                true => Ok(()),
                false => directory.set_permissions(Permissions::from_mode(mode & 0o7777 | 0o755)),
            }
        })
        .map_err(|source| FileError::OpenToAll { path: at, source })
}

/// Makes the directory of a daemon of root's, and those above it that are missing, or finds it there: one in
/// which no other user can put anything in the place of the daemon's files, nor of itself. One that is there keeps
/// its mode. A sticky one that everybody may write to is taken, as a container's volume in memory is such a one:
/// what the daemon has made there stays, but another user may be there before it.
///
/// # Errors
/// With the directory or link that somebody else could change.
pub(crate) fn root_directory(path: &Path) -> Result<(), FileError> {
    safe_directory(path, |owner| is_trusted(owner) || is_from_outside(owner)).map(drop)
}

/// Makes a directory, and those above it that are missing, or finds it there, where nobody but root, this
/// user and those who are trusted with directories can put anything in its place. Gives the path without links.
fn safe_directory(path: &Path, may_own: impl Fn(u32) -> bool) -> Result<PathBuf, FileError> {
    let mut left: VecDeque<OsString> = VecDeque::new();
    let before = |left: &mut VecDeque<OsString>, path: &Path| {
        for part in path.components().rev() {
            left.push_front(part.as_os_str().to_owned());
        }
    };
    let whole = std::path::absolute(path).map_err(|error| FileError::unreachable(path, error))?;
    before(&mut left, &whole);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let next = match Path::new(&name).components().next() {
            Some(Component::RootDir) => PathBuf::from("/"),
            Some(Component::ParentDir) => at.parent().unwrap_or(&at).to_owned(),
            Some(Component::Normal(name)) => at.join(name),
            _ => continue,
        };
        let failed = |error: std::io::Error| FileError::unreachable(&next, error);
        let found = match std::fs::symlink_metadata(&next) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = with_mode(0o755, || DirBuilder::new().mode(0o755).create(&next));
                made.map_err(|error| FileError::make(&next, error))?;
                std::fs::symlink_metadata(&next)
            }
            other => other,
        };
        let found = found.map_err(failed)?;
        let is_safe = match found.is_symlink() {
            true => is_trusted(found.uid()),
            false => may_own(found.uid()),
        };
        if !is_safe {
            return Err(FileError::OthersDirectory {
                path: next,
                owner: found.uid(),
            });
        }
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(FileError::TooManyLinks(path.to_owned()));
            }
            before(&mut left, &std::fs::read_link(&next).map_err(failed)?);
            continue;
        }
        keeps_what_is_in_it(&next, &found)?;
        at = next;
    }
    Ok(at)
}

/// Whether what is in a directory of root's or this user's stays what it is: a group that may write there
/// was trusted by its owner, and in a sticky one everybody can change their own only.
fn keeps_what_is_in_it(path: &Path, found: &Metadata) -> Result<(), FileError> {
    if !found.is_dir() {
        return Err(FileError::NotDirectory(path.to_owned()));
    }
    if found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0 {
        return Err(FileError::WorldWritable(path.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    /// A directory of the test's own. Made as everything else is whose mode matters: other tests' threads change
    /// the process's umask.
    fn folder() -> tempfile::TempDir {
        with_mode(0o755, tempfile::tempdir).unwrap()
    }

    fn make(path: impl AsRef<Path>) {
        with_mode(0o755, || std::fs::create_dir_all(path)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_are_made_for_all_and_through_our_own_links() {
        let root = folder();
        let path = root.path().join("a/b");
        open_directory(&path).unwrap();
        assert_eq!(
            (mode_of(&path), mode_of(path.parent().unwrap())),
            (0o755, 0o755)
        );
        set_mode(&path, 0o700);
        symlink("a/../a", root.path().join("link")).unwrap();
        open_directory(&root.path().join("link/b")).unwrap();
        assert_eq!(mode_of(&path), 0o755);
        // One in which all may have files of their own is left as it is.
        set_mode(&path, 0o1777);
        open_directory(&path).unwrap();
        assert_eq!(mode_of(&path), 0o1777);
        symlink("round", root.path().join("round")).unwrap();
        let told = open_directory(&root.path().join("round"))
            .unwrap_err()
            .to_string();
        assert!(told.contains("too many links"), "{told}");
        std::fs::write(root.path().join("file"), "").unwrap();
        let told = open_directory(&root.path().join("file/x"))
            .unwrap_err()
            .to_string();
        assert!(told.contains("is not a directory"), "{told}");
    }

    #[test]
    fn a_directory_in_which_everybody_may_replace_files_is_refused() {
        let root = folder();
        let open = root.path().join("open");
        make(&open);
        set_mode(&open, 0o777);
        for path in [open.clone(), open.join("pipe")] {
            let told = open_directory(&path).unwrap_err().to_string();
            assert!(told.contains("every user may write to"), "{told}");
        }
        assert!(!open.join("pipe").exists());
        set_mode(&open, 0o1777);
        open_directory(&open.join("pipe")).unwrap();
    }

    /// What only root can set up: nobody else can give files away.
    #[test]
    fn what_another_user_put_in_the_way_is_neither_followed_nor_opened() {
        if user() != 0 {
            eprintln!("skipped: only root can make another user's files");
            return;
        }
        let root = folder();
        let secret = root.path().join("secret");
        make(&secret);
        set_mode(&secret, 0o700);
        let planted = root.path().join("planted");
        symlink(&secret, &planted).unwrap();
        std::os::unix::fs::lchown(&planted, Some(1000), None).unwrap();
        let told = open_directory(&planted).unwrap_err().to_string();
        assert!(told.contains("planted belongs to user 1000"), "{told}");
        assert_eq!(mode_of(&secret), 0o700);

        let theirs = root.path().join("theirs");
        make(&theirs);
        chown(&theirs, Some(1000), None).unwrap();
        let told = open_directory(&theirs.join("pipe"))
            .unwrap_err()
            .to_string();
        assert!(told.contains("theirs belongs to user 1000"), "{told}");
    }

    #[test]
    fn a_daemon_of_roots_is_only_where_nobody_else_can_write() {
        let root = folder();
        let pipe = root.path().join("pipe");
        // Below /tmp, where everybody can make files of their own and touch no others.
        root_directory(&pipe).unwrap();
        for mode in [0o700, 0o755, 0o775, 0o1777] {
            set_mode(&pipe, mode);
            root_directory(&pipe).unwrap();
            assert_eq!(mode_of(&pipe), mode, "kept");
        }
        for mode in [0o777, 0o702] {
            set_mode(&pipe, mode);
            let told = root_directory(&pipe).unwrap_err().to_string();
            assert!(told.contains("every user may write to"), "{told}");
        }
        set_mode(&pipe, 0o755);
        if user() != 0 {
            eprintln!("skipped: only root can make another user's files");
            return;
        }
        symlink(&pipe, root.path().join("link")).unwrap();
        root_directory(&root.path().join("link")).expect("our own link");
        std::os::unix::fs::lchown(root.path().join("link"), Some(1000), None).unwrap();
        let told = root_directory(&root.path().join("link"))
            .unwrap_err()
            .to_string();
        assert!(told.contains("link belongs to user 1000"), "{told}");
        chown(&pipe, Some(1000), None).unwrap();
        for path in [pipe.clone(), pipe.join("inner")] {
            let told = root_directory(&path).unwrap_err().to_string();
            assert!(told.contains("pipe belongs to user 1000"), "{told}");
        }
    }

    #[test]
    fn a_program_that_another_user_could_replace_is_not_run() {
        let root = folder();
        let program = root.path().join("bin/program");
        make(root.path().join("bin"));
        std::fs::write(&program, "").unwrap();
        let told = |path: &Path| trusted_program(path).unwrap_err().to_string();
        set_mode(&program, 0o644);
        assert!(
            told(&program).contains("cannot run it"),
            "{}",
            told(&program)
        );
        set_mode(&program, 0o757);
        assert!(told(&program).contains("every user may write to it"));
        set_mode(&program, 0o755);
        assert_eq!(
            trusted_program(&program).unwrap(),
            program.canonicalize().unwrap()
        );
        symlink(&program, root.path().join("link")).unwrap();
        trusted_program(&root.path().join("link")).expect("our own link");
        set_mode(&root.path().join("bin"), 0o777);
        assert!(told(&program).contains("every user may write to"));
        set_mode(&root.path().join("bin"), 0o755);
        assert!(told(&root.path().join("bin")).contains("not a program"));
        assert!(told(Path::new("program")).contains("not an absolute path"));
        assert!(told(&root.path().join("none")).contains("none"));
        if user() != 0 {
            eprintln!("skipped: only root can make another user's files");
            return;
        }
        chown(&program, Some(1000), None).unwrap();
        assert!(told(&program).contains("belongs to user 1000"));
    }

    #[test]
    fn a_directory_of_ones_own_is_made_in_a_safe_place_only() {
        let root = folder();
        let own = root.path().join("above/own");
        assert_eq!(
            make_own_directory_in_safe_place(&own, 0o700).unwrap(),
            own.canonicalize().unwrap()
        );
        assert_eq!(
            (mode_of(&own), mode_of(own.parent().unwrap())),
            (0o700, 0o755)
        );
        set_mode(&own, 0o755);
        assert!(
            make_own_directory_in_safe_place(&own, 0o700).is_err(),
            "open to all"
        );
        set_mode(&own, 0o700);
        make_own_directory_in_safe_place(&own, 0o700).expect("as it was");
        set_mode(&root.path().join("above"), 0o777);
        let told = make_own_directory_in_safe_place(&own, 0o700)
            .unwrap_err()
            .to_string();
        assert!(told.contains("every user may write to"), "{told}");
    }
}
