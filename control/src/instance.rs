//! What a running daemon holds in its directories: the lock, the socket, the pid file, the logs.
//!
//! Sockets and pid files outlive a daemon that was killed and prove nothing; the lock, which the
//! kernel drops with its holder, alone says whether a daemon runs. `quit` removes the pid file and
//! leaves socket and lock file, as NVIDIA's does.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use transport::socket::{Listener, PATH_MAX};

use crate::directories::{Directories, make};
use crate::log::Log;

/// What scripts look for.
pub const ALREADY_RUNNING: &str = "An instance of this daemon is already running";

/// The one daemon of its pipe directory.
#[derive(Debug)]
pub struct Instance {
    /// Where clients connect.
    pub listener: Listener,
    /// control.log
    pub control_log: Log,
    /// server.log
    pub server_log: Log,
    directories: Directories,
    /// Held as long as the daemon lives.
    _lock: File,
}

impl Instance {
    /// Becomes the daemon of the directories.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn claim(directories: Directories, echo: bool) -> Result<Self, String> {
        let socket = directories.control_socket();
        let length = socket.as_os_str().len();
        if length > PATH_MAX {
            return Err(format!(
                "the socket's path has {length} bytes, more than the {PATH_MAX} that the system takes; \
                 set CUDA_MPS_PIPE_DIRECTORY to a shorter one: {}",
                socket.display()
            ));
        }
        make(&directories.pipe, "pipe")?;
        let lock = open_for_all(&directories.lock()).map_err(|error| {
            format!(
                "the pipe directory {} is not usable: {error}",
                directories.pipe.display()
            )
        })?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| ALREADY_RUNNING.to_owned())?;

        make(&directories.log, "log")?;
        let open_log = |path: &Path, echo| {
            Log::open(path, echo)
                .map_err(|error| format!("cannot write the log {}: {error}", path.display()))
        };
        let control_log = open_log(&directories.control_log(), echo)?;
        let server_log = open_log(&directories.server_log(), false)?;

        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(format!(
                    "cannot replace the socket {}: {error}",
                    socket.display()
                ));
            }
            _ => {}
        }
        let listener = Listener::bind(&socket).map_err(|error| error.to_string())?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666))
            .map_err(|error| format!("cannot open {} to all: {error}", socket.display()))?;
        open_for_all(&directories.pid())
            .and_then(|_| std::fs::write(directories.pid(), std::process::id().to_string()))
            .map_err(|error| format!("cannot write {}: {error}", directories.pid().display()))?;
        Ok(Self {
            listener,
            control_log,
            server_log,
            directories,
            _lock: lock,
        })
    }

    /// The directories.
    #[must_use]
    pub const fn directories(&self) -> &Directories {
        &self.directories
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.directories.pid());
    }
}

/// Opens or makes a file that everybody may read and write, whatever the umask says.
fn open_for_all(path: &Path) -> std::io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mode = Permissions::from_mode(0o666);
    // A file of another user, left behind, is as good if it can be opened.
    if file.metadata()?.permissions().mode() & 0o777 != 0o666 {
        let _ = file.set_permissions(mode);
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

    #[test]
    fn one_daemon_a_directory_and_files_as_tools_expect_them() {
        let root = tempfile::tempdir().unwrap();
        let directories = directories(root.path());
        let instance = Instance::claim(directories.clone(), false).unwrap();
        assert_eq!(
            Instance::claim(directories.clone(), false).unwrap_err(),
            ALREADY_RUNNING
        );
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in [
            directories.control_socket(),
            directories.lock(),
            directories.pid(),
        ] {
            assert_eq!(mode(&path), 0o666, "{}", path.display());
        }
        assert_eq!(
            std::fs::read_to_string(directories.pid()).unwrap(),
            std::process::id().to_string(),
            "no newline"
        );
        assert!(directories.control_log().exists() && directories.server_log().exists());
        drop(instance);
        assert!(!directories.pid().exists());
        assert!(directories.control_socket().exists(), "as NVIDIA's");
        Instance::claim(directories, false).expect("a stale socket is no hindrance");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_with_its_length() {
        let root = tempfile::tempdir().unwrap();
        let long = directories(&root.path().join("x".repeat(120)));
        let error = Instance::claim(long.clone(), false).unwrap_err();
        assert!(error.contains("107"), "{error}");
        assert!(!long.pipe.exists(), "nothing was made");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("pipe"), "a file").unwrap();
        let error = Instance::claim(directories(root.path()), false).unwrap_err();
        assert!(error.contains("pipe"), "{error}");
    }
}
