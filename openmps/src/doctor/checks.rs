//! The checks of a daemon's surroundings, one function each: its directories, files and limits; `machine` has those of the machine.
//!
//! Called by `openmps doctor`. Must not know how findings are printed, nor mend anything.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use control::{AskError, CLOSED_FILES, Directories};
use sandbox::Kernel;
use transport::socket::PATH_MAX;

use super::finding::Finding;
use super::listed_servers::ListedServer;
use super::{compiled_code, confinement, listed_servers, machine, underlay};
use crate::reach;

/// Descriptors below which a server runs out with few clients; NVIDIA's manual advises as many.
const FEW_DESCRIPTORS: u64 = 16_384;

pub(super) fn all() -> Vec<Finding> {
    let mut findings = Vec::new();
    match Directories::from_environment() {
        Ok(directories) => {
            findings.push(pipe_directory(&directories));
            findings.push(daemon(&directories));
            findings.extend(open_files(&directories));
            findings.extend(confinement::running(&directories));
            findings.extend(modes_left(&directories));
            findings.push(underlay::running(&directories));
            findings.push(log_directory(&directories.log));
        }
        Err(error) => findings.push(Finding::problem(
            "directories",
            error.to_string(),
            "set CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY to absolute paths",
        )),
    }
    findings.push(confinement::possible(Kernel::running()));
    findings.push(limits());
    findings.extend(isolation());
    findings.push(descriptors());
    findings.push(compiled_code::kept());
    findings.extend(machine::driver(Path::new("/")));
    findings.push(machine::library(
        &std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
    ));
    findings.extend(machine::surroundings(Path::new("/")));
    findings
}

fn pipe_directory(directories: &Directories) -> Finding {
    const SUBJECT: &str = "pipe directory";
    let pipe = &directories.pipe;
    let shown = pipe.display();
    let length = directories.control_socket().as_os_str().len();
    if length > PATH_MAX {
        return Finding::problem(
            SUBJECT,
            format!(
                "{shown}: sockets in it have paths of {length} bytes, and {PATH_MAX} is the most"
            ),
            "set CUDA_MPS_PIPE_DIRECTORY to a shorter path, for the daemon and for programs",
        );
    }
    if control::is_path_list(pipe) {
        return Finding::problem(
            SUBJECT,
            format!("{shown} names several"),
            "a process is the client of one daemon: name one directory",
        );
    }
    match std::fs::metadata(pipe) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::ok(SUBJECT, format!("{shown}, which the daemon will make"))
        }
        Err(error) => Finding::problem(
            SUBJECT,
            format!("{shown}: {error}"),
            "every directory of the path needs execute permission for the programs' users",
        ),
        Ok(there) if !there.is_dir() => Finding::problem(
            SUBJECT,
            format!("{shown} is not a directory"),
            "move it away, or set CUDA_MPS_PIPE_DIRECTORY to another path",
        ),
        Ok(_) => Finding::ok(SUBJECT, shown.to_string()),
    }
}

/// The lock, which alone says that a daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Held,
    Free,
    /// It is another user's, who alone may look.
    Another(u32),
}

impl Lock {
    fn at(path: &Path) -> Self {
        match File::open(path) {
            Ok(file) => {
                let try_it = rustix::fs::FlockOperation::NonBlockingLockShared;
                match rustix::fs::flock(&file, try_it) {
                    Err(rustix::io::Errno::WOULDBLOCK) => Self::Held,
                    _ => Self::Free,
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                std::fs::metadata(path).map_or(Self::Free, |found| Self::Another(found.uid()))
            }
            Err(_) => Self::Free,
        }
    }
}

/// Files of the pipe directory that are open to more users than the daemon makes them for, as NVIDIA's
/// and former releases' are.
fn open_files(directories: &Directories) -> Vec<Finding> {
    const SUBJECT: &str = "files";
    let mut findings = Vec::new();
    let mut differ = Vec::new();
    for file in &CLOSED_FILES {
        let path = directories.pipe.join(file.name);
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let mode = found.mode() & 0o777;
        let (ours, nvidias) = (file.mode, file.nvidias);
        if mode & !ours == 0 {
            differ.push(format!(
                "{} {mode:04o} (NVIDIA's: {nvidias:04o})",
                file.name
            ));
        } else {
            findings.push(Finding::warning(
                SUBJECT,
                format!(
                    "{} has mode {mode:04o}: other users can {}",
                    path.display(),
                    file.harm
                ),
                format!(
                    "a daemon of this release makes it {ours:04o} when it starts: start it again"
                ),
            ));
        }
    }
    for path in [
        directories.control_log(),
        directories.server_log(),
        directories.events(),
    ] {
        let Ok(found) = std::fs::metadata(&path) else {
            continue;
        };
        if found.is_file() && found.mode() & 0o022 != 0 {
            findings.push(Finding::warning(
                SUBJECT,
                format!(
                    "{} has mode {:04o}: other users can change what it says",
                    path.display(),
                    found.mode() & 0o777
                ),
                format!("chmod go-w {}", path.display()),
            ));
        }
    }
    if findings.is_empty() && !differ.is_empty() {
        let text = format!("closed to other users: {}", differ.join(", "));
        findings.push(Finding::ok(SUBJECT, text));
    }
    findings
}

fn daemon(directories: &Directories) -> Finding {
    const SUBJECT: &str = "daemon";
    let socket = directories.control_socket();
    let pid = std::fs::read_to_string(directories.pid()).ok();
    let lock = Lock::at(&directories.lock());
    match control::ask(&socket, listed_servers::COMMAND) {
        Ok((servers, _)) => {
            let (stand_by, serve): (Vec<_>, Vec<_>) = listed_servers::read(&servers)
                .into_iter()
                .partition(ListedServer::stands_by);
            let more = match stand_by.len() {
                0 => String::new(),
                count => format!(", and {count} that stand by"),
            };
            let pid = pid.as_deref().unwrap_or("of another namespace");
            Finding::ok(
                SUBJECT,
                format!("process {pid} answers, {} servers{more}", serve.len()),
            )
        }
        Err(AskError::NoDaemon) if lock == Lock::Held => Finding::problem(
            SUBJECT,
            format!(
                "one runs, but {} is not its socket any more",
                socket.display()
            ),
            "somebody removed or replaced the socket: end the daemon by its process id and start it again",
        ),
        Err(AskError::NoDaemon) if let Lock::Another(owner) = lock => Finding::problem(
            SUBJECT,
            format!("none answers; whether one of user {owner} runs, only that user can see"),
            format!("start one as user {owner}: openmps control -d"),
        ),
        Err(AskError::NoDaemon) if pid.is_some() || socket.exists() => Finding::problem(
            SUBJECT,
            "none runs; a former one left its files, which harm nothing",
            "start one: openmps control -d",
        ),
        Err(AskError::NoDaemon) => {
            Finding::problem(SUBJECT, "none runs", "start one: openmps control -d")
        }
        Err(AskError::Untrusted(error)) => Finding::problem(
            SUBJECT,
            error.to_string(),
            "if nobody of this machine's operators runs it, end it, and start a daemon: openmps control -d",
        ),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("{}: {error}", socket.display()),
            reach::how_to_reach(&socket).unwrap_or_else(|| {
                "the socket must be open to this user, and the daemon of the same release".into()
            }),
        ),
    }
}

/// What a daemon that was killed did to its devices and nobody has undone.
fn modes_left(directories: &Directories) -> Option<Finding> {
    let record = directories.compute_modes();
    let left = record.exists() && Lock::at(&directories.lock()) == Lock::Free;
    left.then(|| {
        Finding::problem(
            "compute modes",
            format!(
                "a daemon was killed and could not give back its devices' modes, which {} has",
                record.display()
            ),
            "the next daemon of this directory does: openmps control -d",
        )
    })
}

fn log_directory(log: &Path) -> Finding {
    const SUBJECT: &str = "log directory";
    let shown = log.display();
    let nearest = log.ancestors().find(|path| path.exists());
    let writable = nearest.is_some_and(|path| {
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok() && path.is_dir()
    });
    let full = nearest
        .and_then(|path| rustix::fs::statvfs(path).ok())
        .is_some_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < 1 << 20);
    if full {
        return Finding::warning(
            SUBJECT,
            format!("{shown}: the disk is full, so logs are lost"),
            "make room, or set CUDA_MPS_LOG_DIRECTORY to another disk",
        );
    }
    match writable {
        true => Finding::ok(SUBJECT, shown.to_string()),
        false => Finding::warning(
            SUBJECT,
            format!("{shown} cannot be written by this user, so this user cannot start a daemon"),
            "set CUDA_MPS_LOG_DIRECTORY, or start the daemon as the directory's owner",
        ),
    }
}

/// Limits in the environment, with which a daemon would not start and a program would be refused.
fn limits() -> Finding {
    const SUBJECT: &str = "limits";
    match control::limits_in_environment() {
        Ok(()) => Finding::ok(SUBJECT, "those in the environment, if any, can be read"),
        Err(error) => Finding::problem(SUBJECT, error.to_string(), "mend or unset the variable"),
    }
}

/// What the environment says of how programs that are started in it are kept apart, if it does.
fn isolation() -> Option<Finding> {
    const SUBJECT: &str = "isolation";
    const VARIABLE: &str = "OPENMPS_ISOLATION";
    let text = std::env::var_os(VARIABLE)?;
    let text = text.to_string_lossy();
    Some(match protocol::limits::is_fenced(&text) {
        Ok(true) => Finding::ok(
            SUBJECT,
            format!("{VARIABLE}={text}: programs that are started here are fenced"),
        ),
        Ok(false) => Finding::ok(
            SUBJECT,
            format!(
                "{VARIABLE}={text}: programs that are started here are not fenced by themselves"
            ),
        ),
        Err(error) => Finding::problem(SUBJECT, error.to_string(), "mend or unset the variable"),
    })
}

fn descriptors() -> Finding {
    const SUBJECT: &str = "descriptors";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let clients = most.saturating_sub(64) / 3;
    let text = format!("up to {most}: room for about {clients} clients of a server");
    if most < FEW_DESCRIPTORS {
        return Finding::warning(
            SUBJECT,
            text,
            format!(
                "raise the hard limit: ulimit -Hn {FEW_DESCRIPTORS}, or LimitNOFILE= of the unit"
            ),
        );
    }
    Finding::ok(SUBJECT, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::CheckOutcome;

    fn directories(root: &Path) -> Directories {
        Directories {
            pipe: root.join("pipe"),
            log: root.join("log"),
        }
    }

    #[test]
    fn files_that_are_open_to_others_are_named() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let directories = directories(root.path());
        assert!(open_files(&directories).is_empty(), "there is none");
        std::fs::create_dir(&directories.pipe).unwrap();
        std::fs::create_dir(&directories.log).unwrap();
        let make = |path: &Path, mode: u32| {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        make(&directories.server_log(), 0o644);
        for file in CLOSED_FILES {
            make(&directories.pipe.join(file.name), file.mode);
        }
        let found = open_files(&directories);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].state, CheckOutcome::Ok);
        assert!(
            found[0].text.contains("control_lock 0600 (NVIDIA's: 0666)"),
            "{}",
            found[0].text
        );
        for file in CLOSED_FILES {
            make(&directories.pipe.join(file.name), file.nvidias);
        }
        make(&directories.server_log(), 0o666);
        let found = open_files(&directories);
        assert_eq!(found.len(), CLOSED_FILES.len() + 1, "each that is open");
        for (finding, part) in
            found
                .iter()
                .zip(["hold the lock", "end another", "write lines", "change"])
        {
            assert_eq!(finding.state, CheckOutcome::Warning);
            assert!(finding.text.contains(part), "{}", finding.text);
        }
    }

    #[test]
    fn pipe_directories_that_cannot_work_are_problems() {
        let root = tempfile::tempdir().unwrap();
        let good = directories(root.path());
        assert_eq!(pipe_directory(&good).state, CheckOutcome::Ok);
        let found = daemon(&good);
        assert_eq!(found.state, CheckOutcome::Problem);
        assert!(found.mend.unwrap().contains("openmps control -d"));
        std::fs::write(&good.pipe, "").unwrap();
        assert!(pipe_directory(&good).text.contains("not a directory"));
        let long = directories(&root.path().join("x".repeat(100)));
        assert!(pipe_directory(&long).text.contains("107"));
        let several = Directories {
            pipe: "/nonexistent/a,/nonexistent/b".into(),
            ..directories(root.path())
        };
        assert!(pipe_directory(&several).text.contains("several"));
        let closed = directories(&good.pipe);
        assert_eq!(pipe_directory(&closed).state, CheckOutcome::Problem);
    }

    #[test]
    fn what_a_former_daemon_left_is_told_from_a_lost_socket() {
        let root = tempfile::tempdir().unwrap();
        let places = directories(root.path());
        std::fs::create_dir(&places.pipe).unwrap();
        std::fs::write(places.pid(), "1234567").unwrap();
        assert!(daemon(&places).text.contains("former one"));
        let lock = File::create(places.lock()).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(daemon(&places).text.contains("not its socket"));
    }

    #[test]
    fn a_log_directory_that_can_be_made_is_fine() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            log_directory(&root.path().join("a/b")).state,
            CheckOutcome::Ok
        );
    }
}
