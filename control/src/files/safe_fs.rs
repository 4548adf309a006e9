//! Files and directories of a daemon's where other users may have been first, or may write beside it.
//!
//! The pipe and log directories are below `/tmp` by default, and the daemon is often root: whoever can put
//! a link in its way makes it write, or open to everybody, what that user could not. So nothing that is
//! made, replaced, appended to or believed is reached through what somebody else could have put there: a
//! link counts if root or this user made it, a directory if nobody else may change it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use transport::socket::is_from_outside;

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Links that are followed on one way.
const MAX_LINKS: u32 = 40;

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

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether somebody is root or this user.
fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == user()
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// Makes a directory with a mode, or finds it there. It must be this user's own, and no link.
///
/// # Errors
/// In words, with the path.
pub(crate) fn own_directory(path: &Path, mode: u32) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot make {}: {error}", path.display());
    let made = with_mode(mode, || DirBuilder::new().mode(mode).create(path));
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(&error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(|error| failed(&error))?;
    let owner = user();
    if !found.is_dir() || found.uid() != owner || found.mode() & 0o777 & !mode != 0 {
        return Err(format!(
            "{} is not a directory of user {owner} that nobody else may change; \
             look at what it is, and remove it",
            path.display()
        ));
    }
    Ok(())
}

/// As [`own_directory`], where nobody but root and this user can put another in its place: those above it are looked at,
/// and made where they are missing.
///
/// # Errors
/// In words, with the directory or link that somebody else could change.
pub(crate) fn own_directory_in_safe_place(path: &Path, mode: u32) -> Result<PathBuf, String> {
    let name = path.file_name();
    let (Some(above), Some(name)) = (path.parent(), name) else {
        return Err(format!("{} is no directory of its own", path.display()));
    };
    let may_own = |owner| is_trusted(owner) || is_from_outside(owner);
    let own = safe_directory(above, may_own)?.join(name);
    own_directory(&own, mode)?;
    Ok(own)
}

/// A program to be run with this process's rights: its path without links, if nobody but root and this user can put
/// another in its place or change it.
///
/// # Errors
/// In words, with what somebody else could change; nothing is made.
pub(crate) fn trusted_program(path: &Path) -> Result<PathBuf, String> {
    let failed = |at: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", at.display());
    if !path.is_absolute() {
        return Err(failed(path, &"it is no absolute path"));
    }
    let found = path.canonicalize().map_err(|error| failed(path, &error))?;
    for at in found.ancestors() {
        let metadata = std::fs::symlink_metadata(at).map_err(|error| failed(at, &error))?;
        let owner = metadata.uid();
        if !is_trusted(owner) && !is_from_outside(owner) {
            let why = format!("it belongs to user {owner}, who could put another program there");
            return Err(failed(at, &why));
        }
        match at == found {
            true if !metadata.is_file() => return Err(failed(at, &"it is no program")),
            true if metadata.mode() & 0o002 != 0 => {
                return Err(failed(at, &"every user may write to it"));
            }
            true => {}
            false => can_hold_ours(at, &metadata)?,
        }
    }
    rustix::fs::access(&found, rustix::fs::Access::EXEC_OK)
        .map_err(|error| failed(&found, &format!("this user cannot run it: {error}")))?;
    Ok(found)
}

/// Makes a directory, and those above it that are missing, which every user can reach and nobody but root
/// and this user can put anything in the place of. One that is there and closed is opened to all.
///
/// # Errors
/// In words, with the directory or link that somebody else could change.
pub fn open_directory(path: &Path) -> Result<(), String> {
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
        .map_err(|error| format!("cannot open {} to all users: {error}", at.display()))
}

/// Makes the directory of a daemon of root's, and those above it that are missing, or finds it there: one in
/// which no other user can put anything in the place of the daemon's files, nor of itself. One that is there keeps
/// its mode. A sticky one that everybody may write to is taken, as a container's volume in memory is such a one:
/// what the daemon has made there stays, but another user may be there before it.
///
/// # Errors
/// In words, with the directory or link that somebody else could change, and what to do.
pub(crate) fn directory_of_root(path: &Path) -> Result<(), String> {
    let advice =
        "remove it, or set CUDA_MPS_PIPE_DIRECTORY to a directory that only root can write to";
    safe_directory(path, |owner| is_trusted(owner) || is_from_outside(owner))
        .map(drop)
        .map_err(|what| format!("{what}; {advice}"))
}

/// Makes a directory, and those above it that are missing, or finds it there, where nobody but root, this
/// user and those who are trusted with directories can put anything in its place. Gives the path without links.
fn safe_directory(path: &Path, may_own: impl Fn(u32) -> bool) -> Result<PathBuf, String> {
    let mut left: VecDeque<OsString> = VecDeque::new();
    let before = |left: &mut VecDeque<OsString>, path: &Path| {
        for part in path.components().rev() {
            left.push_front(part.as_os_str().to_owned());
        }
    };
    let whole =
        std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
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
        let failed = |error: std::io::Error| format!("{}: {error}", next.display());
        let found = match std::fs::symlink_metadata(&next) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = with_mode(0o755, || DirBuilder::new().mode(0o755).create(&next));
                made.map_err(|error| format!("cannot make {}: {error}", next.display()))?;
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
            return Err(format!(
                "{} belongs to user {}, who could put other files in the place of the daemon's",
                next.display(),
                found.uid()
            ));
        }
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(format!("{}: too many links", path.display()));
            }
            before(&mut left, &std::fs::read_link(&next).map_err(failed)?);
            continue;
        }
        can_hold_ours(&next, &found)?;
        at = next;
    }
    Ok(at)
}

/// Whether what is in a directory of root's or this user's stays what it is: a group that may write there
/// was trusted by its owner, and in a sticky one everybody can change their own only.
fn can_hold_ours(path: &Path, found: &Metadata) -> Result<(), String> {
    if !found.is_dir() {
        return Err(format!("{} is no directory", path.display()));
    }
    if found.mode() & 0o002 != 0 && found.mode() & 0o1000 == 0 {
        return Err(format!(
            "every user may write to {}, and could put other files in the place of the daemon's",
            path.display()
        ));
    }
    Ok(())
}

/// Whether an open file is root's, this user's, or of somebody from outside our user namespace.
///
/// # Errors
/// Whose it is, what that user could do, and what to do about it.
pub(crate) fn is_no_strangers(path: &Path, file: &File, harm: &str) -> Result<(), String> {
    let owner = match file.metadata() {
        Ok(found) => found.uid(),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    if is_trusted(owner) || is_from_outside(owner) {
        return Ok(());
    }
    Err(format!(
        "{} belongs to user {owner}, {harm}: remove it",
        path.display()
    ))
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
                    false => Err(std::io::Error::other("it is no file")),
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
/// In words, with the path.
pub(crate) fn write_own(path: &Path, text: &str) -> Result<(), String> {
    write(path, text, 0o600)
}

/// Writes a file with a mode, in place of what was there: all of it or nothing.
///
/// # Errors
/// In words, with the path.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = anew(&new, mode)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&new);
        format!("cannot write {}: {error}", path.display())
    })
}

/// Makes a file in place of whatever has its name.
pub(crate) fn anew(path: &Path, mode: u32) -> std::io::Result<File> {
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

/// What is in a file that [`write_own`] wrote, if it is there.
///
/// # Errors
/// In words, with the path, when somebody else could have written it.
pub(crate) fn read_own(path: &Path) -> Result<Option<String>, String> {
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
        Ok(false) => Err(unbelievable(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// What is in a file that [`write()`] wrote for others to read, if it is there.
///
/// # Errors
/// In words, with the path.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    let read = open_in_place(path, File::options().read(true))
        .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// That a file is not what a daemon of this user's wrote.
pub(crate) fn unbelievable(path: &Path) -> String {
    format!(
        "{} is not what a daemon of user {} wrote; look at what it is, and remove it",
        path.display(),
        user()
    )
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
        let told = open_directory(&root.path().join("round")).unwrap_err();
        assert!(told.contains("too many links"), "{told}");
        std::fs::write(root.path().join("file"), "").unwrap();
        let told = open_directory(&root.path().join("file/x")).unwrap_err();
        assert!(told.contains("is no directory"), "{told}");
    }

    #[test]
    fn a_directory_in_which_everybody_may_replace_files_is_refused() {
        let root = folder();
        let open = root.path().join("open");
        make(&open);
        set_mode(&open, 0o777);
        for path in [open.clone(), open.join("pipe")] {
            let told = open_directory(&path).unwrap_err();
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
        let told = open_directory(&planted).unwrap_err();
        assert!(told.contains("planted belongs to user 1000"), "{told}");
        assert_eq!(mode_of(&secret), 0o700);

        let theirs = root.path().join("theirs");
        make(&theirs);
        chown(&theirs, Some(1000), None).unwrap();
        let told = open_directory(&theirs.join("pipe")).unwrap_err();
        assert!(told.contains("theirs belongs to user 1000"), "{told}");

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
    fn a_daemon_of_roots_is_only_where_nobody_else_can_write() {
        let root = folder();
        let pipe = root.path().join("pipe");
        // Below /tmp, where everybody can make files of their own and touch no others.
        directory_of_root(&pipe).unwrap();
        for mode in [0o700, 0o755, 0o775, 0o1777] {
            set_mode(&pipe, mode);
            directory_of_root(&pipe).unwrap();
            assert_eq!(mode_of(&pipe), mode, "kept");
        }
        for mode in [0o777, 0o702] {
            set_mode(&pipe, mode);
            let told = directory_of_root(&pipe).unwrap_err();
            assert!(told.contains("every user may write to"), "{told}");
            assert!(told.contains("CUDA_MPS_PIPE_DIRECTORY"), "{told}");
        }
        set_mode(&pipe, 0o755);
        if user() != 0 {
            eprintln!("skipped: only root can make another user's files");
            return;
        }
        symlink(&pipe, root.path().join("link")).unwrap();
        directory_of_root(&root.path().join("link")).expect("our own link");
        std::os::unix::fs::lchown(root.path().join("link"), Some(1000), None).unwrap();
        let told = directory_of_root(&root.path().join("link")).unwrap_err();
        assert!(told.contains("link belongs to user 1000"), "{told}");
        chown(&pipe, Some(1000), None).unwrap();
        for path in [pipe.clone(), pipe.join("inner")] {
            let told = directory_of_root(&path).unwrap_err();
            assert!(told.contains("pipe belongs to user 1000"), "{told}");
        }
    }

    #[test]
    fn a_program_that_another_user_could_replace_is_not_run() {
        let root = folder();
        let program = root.path().join("bin/program");
        make(root.path().join("bin"));
        std::fs::write(&program, "").unwrap();
        let told = |path: &Path| trusted_program(path).unwrap_err();
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
            trusted_program(&program),
            Ok(program.canonicalize().unwrap())
        );
        symlink(&program, root.path().join("link")).unwrap();
        trusted_program(&root.path().join("link")).expect("our own link");
        set_mode(&root.path().join("bin"), 0o777);
        assert!(told(&program).contains("every user may write to"));
        set_mode(&root.path().join("bin"), 0o755);
        assert!(told(&root.path().join("bin")).contains("no program"));
        assert!(told(Path::new("program")).contains("no absolute path"));
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
            own_directory_in_safe_place(&own, 0o700),
            Ok(own.canonicalize().unwrap_or(own.clone()))
        );
        assert_eq!(
            (mode_of(&own), mode_of(own.parent().unwrap())),
            (0o700, 0o755)
        );
        set_mode(&own, 0o755);
        assert!(
            own_directory_in_safe_place(&own, 0o700).is_err(),
            "open to all"
        );
        set_mode(&own, 0o700);
        own_directory_in_safe_place(&own, 0o700).expect("as it was");
        set_mode(&root.path().join("above"), 0o777);
        let told = own_directory_in_safe_place(&own, 0o700).unwrap_err();
        assert!(told.contains("every user may write to"), "{told}");
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
        assert!(read_own(&path).is_err(), "a link");
        write_own(&path, "{}").unwrap();
        assert_eq!(read_own(&path), Ok(Some("{}".to_owned())));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
        write(&path, "1", 0o644).unwrap();
        assert_eq!(mode_of(&path), 0o644);
        assert!(
            read_own(&path).is_err(),
            "others could have been told of it"
        );
    }
}
