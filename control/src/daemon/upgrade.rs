//! `upgrade`: this process goes on as the program that is now where its own was started from, and nobody is lost.
//!
//! Who has come and waits for a server is served first; who comes meanwhile waits in the sockets, which are handed on.
//! Servers are left as a daemon that was killed leaves them: each serves its clients to their end, and then ends. Later clients
//! get servers of the new program.
//!
//! Called by the command, and by the event loop until it can be. Must not know what the next program does with what it gets.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use protocol::limits;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use transport::socket::SocketError;

use super::Daemon;
use crate::commands::{Answer, Awaited};
use crate::files::directories::Directories;
use crate::files::handed_on::{HandingOn, VARIABLE};
use crate::files::safe_fs::is_trusted;
use crate::groups::GroupKind;
use crate::host::{DAEMON_NAME, OWN_PROGRAM};
use crate::servers::moving::Moving;
use crate::servers::registry::{Server, ServerId};
use crate::startup::notify::READY_VARIABLE;

/// How long a program may take to say its version. The daemon does nothing else meanwhile.
const TRIED_WITHIN: Duration = Duration::from_secs(5);

/// How long those who have come may take to be served, while nobody else is: a server may have to start.
const SERVED_WITHIN: Duration = Duration::from_secs(70);

/// What this process is to go on as.
#[derive(Debug)]
pub(super) struct Upgrade {
    program: PathBuf,
    /// Servers from this number on are of that program.
    first: ServerId,
    /// Clients of servers that run are moved before, while who comes is taken.
    pub(super) moving: Option<Moving>,
    /// When it stays what it is.
    deadline: Instant,
}

impl Upgrade {
    /// When there is something to be done about it.
    pub(super) fn next_deadline(&self) -> Instant {
        let moving = self.moving.as_ref().and_then(Moving::next_deadline);
        moving.map_or(self.deadline, |next| next.min(self.deadline))
    }
}

/// Why this process does not go on as another program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("the daemon is quitting")]
    Quitting,
    #[error("the daemon is being replaced already")]
    Already,
    #[error("static partitions (-S) are not handed on; nothing was changed")]
    StaticPartitions,
    #[error("clients wait for another user's to leave, and would be lost; nothing was changed")]
    Queued,
    #[error("other commands wait for their answers; nothing was changed")]
    Commands,
    #[error("clients that have come are not served within {SERVED_WITHIN:?}; this daemon goes on")]
    Late,
    #[error("cannot tell which program this is: {0}; nothing was changed")]
    Program(#[source] std::io::Error),
    #[error("no program to go on as: {}: {source}; nothing was changed", path.display())]
    NoProgram {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is no program of root's or the daemon's user that nobody else can write; nothing was changed", .0.display())]
    Untrusted(PathBuf),
    #[error("{} does not run here ({why}); nothing was changed", path.display())]
    Fails { path: PathBuf, why: String },
    #[error("cannot hand the daemon's sockets on: {0}; nothing was changed")]
    HandOn(#[from] SocketError),
    #[error("cannot run {}: {source}; this daemon goes on", path.display())]
    Run {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl Daemon {
    /// Begins to go on as the program that is now in the place of this one. It comes to pass when nobody waits for a server.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub(crate) fn begin_upgrade(&mut self) -> Result<(), UpgradeError> {
        if self.quitting {
            return Err(UpgradeError::Quitting);
        }
        if self.upgrade.is_some() {
            return Err(UpgradeError::Already);
        }
        if self.static_partitions {
            return Err(UpgradeError::StaticPartitions);
        }
        if !self.queued.is_empty() {
            return Err(UpgradeError::Queued);
        }
        if !self.pending.is_empty() {
            return Err(UpgradeError::Commands);
        }
        let own = std::fs::read_link(OWN_PROGRAM).map_err(UpgradeError::Program)?;
        let path = place_of(own);
        check_program(&path)?;
        try_program(&path)?;
        self.log(&format!(
            "Going on as {} when no client waits for a server",
            path.display()
        ));
        let moving = self.begin_to_move();
        self.upgrade = Some(Upgrade {
            program: path,
            first: self.number(),
            deadline: moving.until + SERVED_WITHIN,
            moving: Some(moving),
        });
        Ok(())
    }

    /// What servers are started from.
    pub(super) fn program_of_servers(&self) -> &Path {
        let next = self.upgrade.as_ref();
        next.map_or(Path::new(OWN_PROGRAM), |upgrade| &upgrade.program)
    }

    /// Goes on as the other program, if that was asked for and nobody would be lost. Comes back only if it is not so yet, or fails.
    pub(super) fn upgrade_if_possible(&mut self) {
        let moving = self.upgrade.as_mut();
        let moving = moving.and_then(|upgrade| Some((upgrade.moving.take()?, upgrade.first)));
        if let Some((mut moving, first)) = moving {
            let waits = self.move_clients(&mut moving, first);
            if let Some(upgrade) = &mut self.upgrade
                && waits
            {
                upgrade.moving = Some(moving);
                if upgrade.deadline <= Instant::now() {
                    self.give_up_upgrade(&UpgradeError::Late);
                }
                return;
            }
            self.stop_listening();
        }
        let servers = self.registry.servers.values();
        // Until a server has said that it has a client, what it was told of the client may lie in its socket, and
        // would be lost with this end of it.
        let is_on_its_way = |server: &Server| {
            !server.waiting.is_empty() || server.clients.values().any(|client| !client.attached)
        };
        let Some(Upgrade {
            program,
            deadline,
            first,
            ..
        }) = &self.upgrade
        else {
            return;
        };
        if !self.half_open.is_empty() || servers.clone().any(is_on_its_way) {
            if *deadline <= Instant::now() {
                self.give_up_upgrade(&UpgradeError::Late);
            }
            return;
        }
        let (path, first) = (program.clone(), *first);
        self.upgrade = None;
        let all = &self.registry.servers;
        let clients_of = |(_, server): (_, &Server)| server.clients.len();
        let moved: usize = all.range(first..).map(clients_of).sum();
        let left = all
            .range(..first)
            .map(clients_of)
            .filter(|&count| count > 0);
        let (servers, clients) = (left.clone().count(), left.sum::<usize>());
        let mut text = format!("{clients} clients stay on {servers} servers until they end\n");
        if moved > 0 {
            text = format!("{moved} clients go on at servers of the new program, {text}");
        }
        let mut answer = Answer {
            text,
            value: Some(json!({ "clients": clients, "servers": servers, "moved": moved })),
            ..Answer::default()
        };
        self.log(answer.text.trim_end());
        self.event(
            "daemon.replaced",
            json!({ "daemon": std::process::id() }),
            json!({ "program": path.display().to_string(), "clients": clients, "servers": servers }),
        );
        let error = match self.hand_on(&mut answer) {
            Ok(handed_on) => UpgradeError::Run {
                source: self.command_as(&path, handed_on).exec(),
                path,
            },
            Err(error) => error.into(),
        };
        // Still here.
        self.give_up_upgrade(&error);
    }

    /// Stays what it is.
    pub(super) fn give_up_upgrade(&mut self, why: &UpgradeError) {
        self.upgrade = None;
        let _ = self.listen();
        let why = why.to_string();
        self.log(&why);
        self.resolve_answers(|until| until == Awaited::Replaced, Some(&why));
    }

    fn hand_on(&self, answer: &mut Answer) -> Result<OwnedFd, SocketError> {
        let handing = HandingOn::new()?;
        let directories: &Directories = self.instance.directories();
        handing.listener(&directories.control_socket(), &self.instance.listener)?;
        if let Some(privileged) = &self.instance.privileged {
            handing.listener(&directories.privileged_socket(), privileged)?;
        }
        for group in self.groups.by_number.values() {
            if let GroupKind::Named { listener, .. } = &group.kind {
                handing.listener(&directories.group(&group.name).join("control"), listener)?;
            }
        }
        let asker = self.pending.iter();
        let mut asker = asker.filter(|pending| pending.until == Awaited::Replaced);
        if let Some(asker) = asker.next() {
            answer.as_json = asker.answer.as_json;
            handing.asker(&asker.connection, &answer.output())?;
        }
        Ok(handing.into_stdin())
    }

    /// How the program is run: as this daemon was, with the defaults that commands have set since.
    fn command_as(&self, path: &Path, handed_on: OwnedFd) -> Command {
        let mut command = Command::new(path);
        command
            .arg0(DAEMON_NAME)
            .arg("-f")
            .args(self.options.arguments())
            .stdin(Stdio::from(handed_on))
            .env(VARIABLE, "1")
            .env_remove(READY_VARIABLE)
            // The service manager's socket is handed on too.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS");
        let memory = self.defaults.memory.iter();
        let memory: Vec<String> = memory
            .map(|(device, size)| format!("{device}={size}"))
            .collect();
        let defaults = [
            (
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                (self.defaults.percentage < 100.0).then(|| self.defaults.percentage.to_string()),
            ),
            (
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                (!memory.is_empty()).then(|| memory.join(",")),
            ),
            (
                "OPENMPS_KERNEL_TIME_LIMIT",
                self.defaults.kernel_time.map(limits::kernel_time_text),
            ),
            (
                "CUDA_MPS_CLIENT_PRIORITY",
                (self.default_priority != 0).then(|| self.default_priority.to_string()),
            ),
        ];
        for (name, value) in defaults {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

/// The place that a program was started from, where another may be by now: the kernel adds a word to the path of one that is not
/// there any more.
fn place_of(program: PathBuf) -> PathBuf {
    let text = program.to_str();
    match text.and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(place) if !program.exists() => PathBuf::from(place),
        _ => program,
    }
}

/// Whether a file is a program that nobody but root and this user could have put there.
fn check_program(path: &Path) -> Result<(), UpgradeError> {
    let found = std::fs::metadata(path).map_err(|source| UpgradeError::NoProgram {
        path: path.to_owned(),
        source,
    })?;
    let mode = found.permissions().mode();
    let can_run = found.is_file() && mode & 0o111 != 0;
    if can_run && is_trusted(found.uid()) && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(UpgradeError::Untrusted(path.to_owned()))
}

/// Runs a program for its version, so that one which is cut short, or is another machine's, takes nobody's place.
fn try_program(path: &Path) -> Result<(), UpgradeError> {
    let fails = |why: String| UpgradeError::Fails {
        path: path.to_owned(),
        why,
    };
    let system = |error: std::io::Error| fails(error.to_string());
    // What is no program a shell would be asked to run.
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_err() || magic != *b"\x7fELF" {
        return Err(fails("it is no program".to_owned()));
    }
    let mut child = Command::new(path)
        .arg0(DAEMON_NAME)
        .arg("-v")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(system)?;
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(Into::into)
        .map_err(system)
        .and_then(|process| {
            let ended = transport::socket::poll(&[process.as_fd()], Some(TRIED_WITHIN));
            ended.map_err(|error| fails(error.to_string()))
        });
    if !matches!(ended.as_deref(), Ok([true])) {
        let _ = child.kill();
    }
    let status = child.wait().map_err(system)?;
    match ended?.as_slice() {
        [true] if status.success() => Ok(()),
        [true] => Err(fails(status.to_string())),
        _ => Err(fails(format!(
            "it does not say its version within {TRIED_WITHIN:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_looked_for_in_its_place() {
        for (own, place) in [
            ("/nowhere/openmps (deleted)", "/nowhere/openmps"),
            ("/nowhere/openmps", "/nowhere/openmps"),
        ] {
            assert_eq!(place_of(own.into()), Path::new(place));
        }
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("openmps (deleted)");
        std::fs::write(&odd, "").unwrap();
        assert_eq!(place_of(odd.clone()), odd, "it is called so");
    }

    #[test]
    fn what_others_could_have_put_there_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let absent = check_program(&path);
        assert!(matches!(absent, Err(UpgradeError::NoProgram { .. })));
        std::fs::write(&path, "").unwrap();
        for (mode, is_good) in [
            (0o755, true),
            (0o700, true),
            (0o757, false),
            (0o775, false),
            (0o644, false),
        ] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(check_program(&path).is_ok(), is_good, "{mode:o}");
        }
        assert!(check_program(folder.path()).is_err(), "a folder");
    }
}
