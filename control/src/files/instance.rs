//! What a running daemon holds in its directories: the lock, the socket, the pid file, the logs.
//!
//! Sockets and pid files outlive a daemon that was killed and prove nothing; the lock, which the
//! kernel drops with its holder, alone says whether a daemon runs. `quit` removes the pid file and
//! leaves socket and lock file, as NVIDIA's does. Called when a daemon starts and ends; must not know clients, servers or groups.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use transport::socket::{Connection, Listener, PATH_MAX};

use super::claim_error::{BindError, InstanceError};
use crate::files::directories::Directories;
use crate::files::error::FileError;
use crate::files::handed_on::HandedOn;
use crate::files::safe_fs::{check_trusted_owner, with_mode};
use crate::files::safe_path::root_directory;
use crate::log::events::left_out_event;
use crate::log::{Log, Role};

/// Whoever can open the file can hold its lock, and no other daemon starts.
const LOCK_MODE: u32 = 0o600;

/// Scripts read it, and end the process that it names.
const PID_MODE: u32 = 0o644;

/// Who writes to it writes to server.log.
const LOG_PIPE_MODE: u32 = 0o600;

/// A file of the pipe directory that NVIDIA's daemon opens to more users.
#[derive(Clone, Copy, Debug)]
pub struct ClosedFile {
    /// Its name.
    pub name: &'static str,
    /// Our mode of it.
    pub mode: u32,
    /// NVIDIA's.
    pub nvidias: u32,
    /// What others can do with NVIDIA's.
    pub harm: &'static str,
}

/// The files of the pipe directory whose modes are not NVIDIA's.
pub const CLOSED_FILES: [ClosedFile; 3] = [
    ClosedFile {
        name: "control_lock",
        mode: LOCK_MODE,
        nvidias: 0o666,
        harm: "hold the lock, so that no daemon starts",
    },
    ClosedFile {
        name: "nvidia-cuda-mps-control.pid",
        mode: PID_MODE,
        nvidias: 0o666,
        harm: "have scripts end another process",
    },
    ClosedFile {
        name: "log",
        mode: LOG_PIPE_MODE,
        nvidias: 0o777,
        harm: "write lines to server.log",
    },
];

/// How long it may take to be seen that somebody listens.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of the log's FIFO that are passed on at a time, so that whoever floods it hinders nobody.
const PASSED_ON: usize = 4096;

/// The longest line that is passed on as one.
const LONGEST_LINE: usize = 1024;

/// The one daemon of its pipe directory.
#[derive(Debug)]
pub struct Instance {
    /// Where clients connect.
    pub listener: Listener,
    /// The same for the daemon's own user alone. Its name is longer: there is none where only that of
    /// the other fits.
    pub privileged: Option<Listener>,
    /// What is written to it goes to server.log.
    pub log_pipe: File,
    /// What came out of it without an end of line.
    unfinished: Vec<u8>,
    /// control.log
    pub control_log: Log,
    /// server.log
    pub server_log: Log,
    /// events.jsonl
    pub events: Log,
    directories: Directories,
    handed_on: HandedOn,
    /// Held as long as the daemon lives.
    _lock: File,
}

impl Instance {
    /// Becomes the daemon of the directories.
    ///
    /// # Errors
    /// See [`InstanceError`]; each is one line.
    pub fn claim(directories: Directories, echo: bool) -> Result<Self, InstanceError> {
        let socket = directories.control_socket();
        let length = socket.as_os_str().len();
        if length > PATH_MAX {
            return Err(InstanceError::PathTooLong {
                path: socket,
                length,
            });
        }
        let log_pipe = directories.log_pipe();
        if directories.log.starts_with(&log_pipe) {
            return Err(InstanceError::LogInFifo {
                log: directories.log,
                fifo: log_pipe,
            });
        }
        if rustix::process::geteuid().is_root() {
            root_directory(&directories.pipe).map_err(InstanceError::NotOnlyRoots)?;
        } else {
            std::fs::create_dir_all(&directories.pipe).map_err(|source| InstanceError::Make {
                path: directories.pipe.clone(),
                source,
            })?;
        }
        let lock = match open_with_mode(&directories.lock(), LOCK_MODE) {
            Ok(lock) => lock,
            Err(error) if error.kind() == ErrorKind::PermissionDenied && answers(&socket) => {
                return Err(InstanceError::AlreadyRunning);
            }
            Err(source) => {
                let path = directories.pipe;
                return Err(InstanceError::NotUsable { path, source });
            }
        };
        check_trusted_owner(&directories.lock(), &lock, "who can hold it for ever")?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if let Ok(log) = Log::open(&directories.server_log(), false) {
                let text = format!("Using log directory: {}", directories.log.display());
                log.line(Role::Other, &text);
            }
            return Err(InstanceError::AlreadyRunning);
        }

        let control_log = open_log(&directories, &directories.control_log(), echo)?;
        let server_log = open_log(&directories, &directories.server_log(), false)?;
        let events = open_log(&directories, &directories.events(), false)?
            .with_left_out_format(left_out_event);

        let mut handed_on = HandedOn::take()?;
        let passed = handed_on.listener(&socket).map(Ok);
        let listener = match passed.or_else(Listener::inherited) {
            Some(inherited) => inherited
                .map(Listener::refuse_descriptors)
                .map_err(InstanceError::Inherited)?,
            None => bind(&socket, 0o666)?,
        };
        let privileged = Some(directories.privileged_socket())
            .filter(|path| path.as_os_str().len() <= PATH_MAX)
            .map(|path| listen_at(&mut handed_on, &path, 0o755))
            .transpose()?;
        let log_pipe = fifo(&log_pipe)?;
        open_with_mode(&directories.pid(), PID_MODE)
            .and_then(|mut file| {
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())
            })
            .map_err(|error| FileError::write(&directories.pid(), error))?;
        Ok(Self {
            listener,
            privileged,
            log_pipe,
            unfinished: Vec::new(),
            control_log,
            server_log,
            events,
            directories,
            handed_on,
            _lock: lock,
        })
    }

    /// The directories.
    #[must_use]
    pub const fn directories(&self) -> &Directories {
        &self.directories
    }

    /// Listens at a path: with the socket that the daemon before had there, or a new one.
    ///
    /// # Errors
    /// With the path.
    pub fn listen_at(&mut self, path: &Path, mode: u32) -> Result<Listener, BindError> {
        listen_at(&mut self.handed_on, path, mode)
    }

    /// Whether this process was a daemon before, of a program that was replaced.
    #[must_use]
    pub const fn takes_anothers_place(&self) -> bool {
        self.handed_on.is_from_a_daemon
    }

    /// Who asked that this daemon take another's place, and what it is to be told.
    pub fn take_asker(&mut self) -> Option<(Connection, String)> {
        self.handed_on.asker.take()
    }

    /// The user, neither root nor the daemon's own, who has the pipe directory and could put other
    /// sockets in the place of ours.
    #[must_use]
    pub fn foreign_owner(&self) -> Option<u32> {
        let owner = std::fs::metadata(&self.directories.pipe).ok()?.uid();
        let ours = rustix::process::geteuid().as_raw();
        (owner != 0 && owner != ours).then_some(owner)
    }

    /// All logs.
    #[must_use]
    pub const fn logs(&self) -> [&Log; 3] {
        [&self.control_log, &self.server_log, &self.events]
    }

    /// Passes on to server.log what others wrote to the log's FIFO.
    pub fn forward_log_pipe(&mut self) {
        let mut bytes = [0; PASSED_ON];
        let read = (&self.log_pipe).read(&mut bytes).unwrap_or(0);
        for &byte in &bytes[..read] {
            if byte != b'\n' {
                self.unfinished.push(byte);
            }
            if byte == b'\n' || self.unfinished.len() >= LONGEST_LINE {
                let line = String::from_utf8_lossy(&self.unfinished);
                self.server_log.line(Role::Other, &line);
                self.unfinished.clear();
            }
        }
    }
}

/// Opens a log. A full disk costs the log, not the daemon: it is looked for again later.
fn open_log(directories: &Directories, path: &Path, echo: bool) -> Result<Log, InstanceError> {
    let opened = std::fs::create_dir_all(&directories.log).and_then(|()| Log::open(path, echo));
    opened.or_else(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
            eprintln!("no log for now: {}: {error}", path.display());
            Log::not_open_yet(path, echo).map_err(InstanceError::NoLog)
        }
        _ => Err(InstanceError::Log {
            path: path.to_owned(),
            source: error,
        }),
    })
}

fn listen_at(handed_on: &mut HandedOn, path: &Path, mode: u32) -> Result<Listener, BindError> {
    match handed_on.listener(path) {
        Some(listener) => Ok(listener.refuse_descriptors()),
        None => bind(path, mode),
    }
}

/// Makes a socket in place of whatever has its name.
///
/// # Errors
/// With the path.
fn bind(path: &Path, mode: u32) -> Result<Listener, BindError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            let path = path.to_owned();
            return Err(BindError::Replace { path, source });
        }
        _ => {}
    }
    let bound = with_mode(mode, || Listener::bind(path))?;
    // Nobody who connects to a daemon has any to give.
    Ok(bound.refuse_descriptors())
}

/// Whether somebody listens at a socket.
fn answers(socket: &Path) -> bool {
    Connection::connect_within(socket, Some(LOOK)).is_ok()
}

/// Makes the FIFO for lines of server.log, and opens it so that it never ends.
fn fifo(path: &Path) -> Result<File, InstanceError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            return Err(InstanceError::FifoIsDirectory(path.to_owned()));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(FileError::make(path, error).into());
        }
        _ => {}
    }
    with_mode(LOG_PIPE_MODE, || {
        let mode = rustix::fs::Mode::from_raw_mode(LOG_PIPE_MODE);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
    })
    .map_err(|error| FileError::make(path, error))?;
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed())
        .open(path);
    Ok(opened.map_err(|error| FileError::make(path, error))?)
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.directories.pid());
        let _ = std::fs::remove_file(self.directories.log_pipe());
    }
}

/// Opens or makes a file with a mode. A link that somebody put in its place is not followed: it could lead to
/// a file that is not for everybody.
fn open_with_mode(path: &Path, mode: u32) -> std::io::Result<File> {
    let file = with_mode(mode, || {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
    })?;
    // A file of another user, left behind, is as good if it can be opened.
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o777 != mode && metadata.nlink() == 1 {
        let _ = file.set_permissions(Permissions::from_mode(mode));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(root: &Path) -> Directories {
        Directories {
            pipe: root.join("pipe"),
            log: root.join("log"),
        }
    }

    /// A directory of the test's own. Made as everything else is whose mode matters: other tests' threads change
    /// the process's umask.
    fn folder() -> tempfile::TempDir {
        with_mode(0o755, tempfile::tempdir).unwrap()
    }

    fn make(path: impl AsRef<Path>) {
        with_mode(0o755, || std::fs::create_dir_all(path)).unwrap();
    }

    #[test]
    fn the_log_directory_is_not_where_the_fifo_is() {
        let root = folder();
        let pipe = root.path().join("pipe");
        for log in [pipe.join("log/"), pipe.join("log/more")] {
            let pipe = pipe.clone();
            let told = Instance::claim(Directories { pipe, log }, false)
                .unwrap_err()
                .to_string();
            assert!(told.contains("CUDA_MPS_LOG_DIRECTORY"), "{told}");
            assert!(told.contains("FIFO"), "{told}");
        }
        assert!(!pipe.exists(), "nothing was made");
        make(pipe.join("log"));
        let told = Instance::claim(directories(root.path()), false)
            .unwrap_err()
            .to_string();
        assert!(
            told.contains("FIFO") && told.contains("directory"),
            "{told}"
        );
        let log = pipe.join("logs");
        std::fs::remove_dir(pipe.join("log")).unwrap();
        Instance::claim(Directories { pipe, log }, false).unwrap();
    }

    #[test]
    fn one_daemon_a_directory_and_files_as_tools_expect_them() {
        let root = folder();
        let directories = directories(root.path());
        let instance = Instance::claim(directories.clone(), false).unwrap();
        assert!(matches!(
            Instance::claim(directories.clone(), false),
            Err(InstanceError::AlreadyRunning)
        ));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directories.control_socket()), 0o666);
        for file in CLOSED_FILES {
            let mode = mode(&directories.pipe.join(file.name));
            assert_eq!(mode, file.mode, "{}", file.name);
        }
        assert!(directories.lock().ends_with("control_lock"));
        assert_eq!(
            (mode(&directories.pid()), mode(&directories.lock())),
            (0o644, 0o600),
            "the one is for all to read, and whoever opens the other can hold it"
        );
        assert_eq!(mode(&directories.privileged_socket()), 0o755);
        assert_eq!(mode(&directories.log_pipe()), 0o600);
        assert_eq!(
            std::fs::read_to_string(directories.pid()).unwrap(),
            std::process::id().to_string(),
            "no newline"
        );
        assert!(directories.control_log().exists() && directories.server_log().exists());
        drop(instance);
        assert!(!directories.pid().exists() && !directories.log_pipe().exists());
        assert!(directories.privileged_socket().exists(), "as NVIDIA's");
        assert!(directories.control_socket().exists(), "as NVIDIA's");
        // As daemons made it before.
        std::fs::write(directories.pid(), "1").unwrap();
        let logs = [directories.control_log(), directories.server_log()];
        for path in logs.iter().chain([&directories.pid(), &directories.lock()]) {
            std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        }
        let again = Instance::claim(directories.clone(), false);
        let _again = again.expect("a stale socket is no hindrance");
        assert_eq!(mode(&directories.pid()), 0o644);
        assert_eq!(mode(&directories.lock()), 0o600);
        for path in logs {
            assert_eq!(mode(&path), 0o644, "{}", path.display());
        }
    }

    #[test]
    fn a_lock_that_a_stranger_can_hold_is_none() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: making another user's file takes root");
            return;
        }
        let root = folder();
        let directories = directories(root.path());
        make(&directories.pipe);
        std::fs::write(directories.lock(), "").unwrap();
        std::os::unix::fs::chown(directories.lock(), Some(4242), None).unwrap();
        let told = Instance::claim(directories.clone(), false)
            .unwrap_err()
            .to_string();
        for part in ["control_lock", "user 4242", "remove it"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        std::fs::remove_file(directories.lock()).unwrap();
        Instance::claim(directories, false).unwrap();
    }

    #[test]
    fn roots_daemon_refuses_a_directory_that_others_can_write() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: this is about a daemon of root's");
            return;
        }
        let root = folder();
        let directories = directories(root.path());
        make(&directories.pipe);
        std::fs::set_permissions(&directories.pipe, Permissions::from_mode(0o777)).unwrap();
        let told = Instance::claim(directories.clone(), false)
            .unwrap_err()
            .to_string();
        assert!(told.contains("every user may write to"), "{told}");
        assert!(told.contains("CUDA_MPS_PIPE_DIRECTORY"), "{told}");
        assert!(!directories.lock().exists(), "nothing was made");
        // As a container's volume in memory is.
        std::fs::set_permissions(&directories.pipe, Permissions::from_mode(0o1777)).unwrap();
        Instance::claim(directories, false).unwrap();
    }

    #[test]
    fn links_in_place_of_files_are_not_followed() {
        let root = folder();
        let directories = directories(root.path());
        make(&directories.pipe);
        let precious = root.path().join("precious");
        std::fs::write(&precious, "kept").unwrap();
        std::fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
        for path in [directories.pid(), directories.lock()] {
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&precious, &path).unwrap();
            assert!(Instance::claim(directories.clone(), false).is_err());
            assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
            let mode = std::fs::metadata(&precious).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            std::fs::remove_file(&path).unwrap();
        }
        // Sockets and the FIFO are made anew, whatever was there.
        for path in [directories.control_socket(), directories.log_pipe()] {
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&precious, &path).unwrap();
        }
        let instance = Instance::claim(directories, false).unwrap();
        assert_eq!(instance.foreign_owner(), None);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    }

    #[test]
    fn a_path_that_just_fits_is_served() {
        let root = folder();
        let short = directories(root.path());
        let room = PATH_MAX - short.control_socket().as_os_str().len();
        let pipe = short
            .pipe
            .with_file_name(format!("pipe{}", "x".repeat(room)));
        let just = Directories { pipe, ..short };
        assert_eq!(just.control_socket().as_os_str().len(), PATH_MAX);
        let instance = Instance::claim(just, false).unwrap();
        assert!(instance.privileged.is_none());
    }

    #[test]
    fn a_path_that_is_too_long_is_said_with_its_length() {
        let root = folder();
        let long = directories(&root.path().join("x".repeat(120)));
        let error = Instance::claim(long.clone(), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("107"), "{error}");
        assert!(!long.pipe.exists(), "nothing was made");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let root = folder();
        std::fs::write(root.path().join("pipe"), "a file").unwrap();
        let error = Instance::claim(directories(root.path()), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("pipe"), "{error}");
    }
}
