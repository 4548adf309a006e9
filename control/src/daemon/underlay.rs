//! The underlay as the daemon runs it: started with the first server, lent to servers, given up when it fails.
//!
//! Called by `daemon::servers` and the event loop. Must not start NVIDIA's programs: `underlay::supervisor` does.

use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use transport::socket::Connection;

use super::Daemon;
use super::epoll_token::EpollToken;
use super::error::StartServerError;
use crate::commands::Awaited;
use crate::servers::process::{self, send_underlay};
use crate::servers::registry::{Server, ServerId, State};
use crate::underlay::{
    Mode, Run, StartError, SupervisorMessage, UnderlayDirectory, environment, of_run,
};

impl Daemon {
    /// The run of the underlay that a server is to be on; started if need be. `None` if servers have none.
    ///
    /// # Errors
    /// Why it cannot be had, where no server is to be without.
    pub(crate) fn underlay_for_server(&mut self) -> Result<Option<u64>, StartServerError> {
        let Some(program) = self.underlay.program.clone() else {
            return Ok(None);
        };
        if let Some(run) = &self.underlay.run {
            return Ok(Some(run.number));
        }
        if self.underlay.is_given_up() {
            return self.without_underlay("it has failed too often in the last minutes");
        }
        let number = self.number();
        match self.start_underlay(number, &program) {
            Ok(run) => {
                self.event("underlay.starting", of_run(&run), json!({}));
                self.underlay.run = Some(run);
                Ok(Some(number))
            }
            Err(error) => {
                self.underlay.failures.push_back(Instant::now());
                self.without_underlay(&error.to_string())
            }
        }
    }

    fn without_underlay(&mut self, why: &str) -> Result<Option<u64>, StartServerError> {
        if self.underlay.mode == Mode::NvidiaMps {
            self.underlay.why_not = Some(why.to_owned());
            return Err(self.refused_without(why));
        }
        self.say_there_is_none(why);
        Ok(None)
    }

    fn refused_without(&self, why: &str) -> StartServerError {
        let last = self.underlay.why_not.clone().filter(|last| last != why);
        StartServerError::NoUnderlay {
            why: why.to_owned(),
            last,
        }
    }

    /// One line for each reason in a row.
    fn say_there_is_none(&mut self, why: &str) {
        if self.underlay.why_not.as_deref() == Some(why) {
            return;
        }
        self.log(&format!("No underlay, servers start without: {why}"));
        self.event("underlay.absent", json!({}), json!({ "why": why }));
        self.underlay.why_not = Some(why.to_owned());
    }

    fn start_underlay(&self, number: u64, program: &Path) -> Result<Run, StartError> {
        let place = UnderlayDirectory::make()?;
        let whole = place.whole.clone();
        let started = self.start_supervisor(number, program, place);
        if started.is_err() {
            let _ = std::fs::remove_dir_all(whole);
        }
        Ok(started?)
    }

    fn start_supervisor(
        &self,
        number: u64,
        program: &Path,
        place: UnderlayDirectory,
    ) -> std::io::Result<Run> {
        let (lease_end, lease) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (ours, theirs) = Connection::pair().map_err(std::io::Error::other)?;
        let mut command = (self.host.supervise_underlay)();
        command.arg(program).arg(&place.whole).arg("-f");
        if rustix::process::geteuid().is_root() {
            // Its server is root's then, and takes clients of all users.
            command.arg("-M");
        }
        command
            .stdin(Stdio::from(lease_end))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(self.instance.control_log.try_clone_file()?))
            .env_clear()
            .envs(environment(program, (self.host.driver)().as_deref()))
            .env("CUDA_MPS_PIPE_DIRECTORY", &place.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &place.log)
            .current_dir("/")
            .process_group(0);
        let mut supervisor = command.spawn()?;
        // The command holds their ends too.
        drop(command);
        let connection = ours.refuse_descriptors();
        if let Err(error) = self.watch(&connection, EpollToken::Underlay(number)) {
            let _ = supervisor.kill();
            return Err(error.into());
        }
        Ok(Run {
            number,
            supervisor,
            connection,
            for_servers: Some(process::Underlay {
                directory: place.directory,
                lease,
            }),
            up: None,
            is_proven: false,
            deadline: None,
        })
    }

    /// A supervisor has said something, or ended.
    pub(crate) fn underlay_spoke(&mut self, number: u64) {
        loop {
            let Some(connection) = self.underlay.connection(number) else {
                return;
            };
            match connection.try_receive() {
                Ok(None) => return,
                Ok(Some((bytes, _))) => match SupervisorMessage::decode(&bytes) {
                    Some(SupervisorMessage::Up { pid, version }) => {
                        self.underlay_is_up(number, pid, version);
                    }
                    Some(SupervisorMessage::Down { why }) => self.underlay_is_down(number, &why),
                    None => {
                        self.log(
                            "The underlay's supervisor said something that was not understood",
                        );
                    }
                },
                Err(_) => {
                    // Its process ends, or has.
                    self.underlay_is_down(number, "its supervisor has ended");
                    if let Some(run) = self.underlay.forget(number) {
                        Self::unwatch(self, &run.connection);
                    }
                    return;
                }
            }
        }
    }

    fn underlay_is_up(&mut self, number: u64, pid: u32, version: String) {
        let Some(run) = self.underlay.present(number) else {
            return;
        };
        let line =
            format!("NVIDIA's MPS runs beneath servers: process {pid}, binary version {version}");
        let (who, more) = (of_run(run), json!({ "daemon": pid, "version": version }));
        run.up = Some((pid, version));
        self.underlay.why_not = None;
        self.log(&line);
        self.event("underlay.up", who, more);
        for (id, server) in &self.registry.servers {
            if server.underlay == Some(number) {
                self.send_underlay_to(*id);
            }
        }
    }

    /// Tells a server that waits for it where its underlay is, if that is up.
    pub(crate) fn send_underlay_to(&self, id: ServerId) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let run = self.underlay.run.as_ref();
        let run = run.filter(|run| server.underlay == Some(run.number) && run.up.is_some());
        if let Some(underlay) = run.and_then(|run| run.for_servers.as_ref()) {
            // One that does not listen is ended at its deadline.
            let _ = send_underlay(&server.connection, Ok(underlay));
        }
    }

    /// A run has failed or ended. Servers that wait for it are told; those that are on it may go on.
    fn underlay_is_down(&mut self, number: u64, why: &str) {
        let Some(run) = self.underlay.present(number) else {
            return;
        };
        let (who, was_up, was_proven) = (of_run(run), run.up.is_some(), run.is_proven);
        self.underlay.abandon_run();
        self.underlay.failures.push_back(Instant::now());
        if was_proven {
            self.log(&format!(
                "NVIDIA's MPS is lost, and clients of servers on it may fail: {why}"
            ));
            self.underlay.why_not = Some(why.to_owned());
        } else if self.underlay.mode == Mode::NvidiaMps {
            self.log(&self.refused_without(why).to_string());
            self.underlay.why_not = Some(why.to_owned());
        } else {
            self.say_there_is_none(why);
        }
        self.event("underlay.down", who, json!({ "why": why }));
        let servers = self.registry.servers.values();
        for server in servers.filter(|server| server.underlay == Some(number)) {
            if !was_up && server.state == State::Initializing {
                let _ = send_underlay(&server.connection, Err(why));
            }
        }
    }

    /// A server got ready on a run.
    pub(crate) fn underlay_serves(&mut self, id: ServerId) {
        let server = self.registry.servers.get(&id);
        let number = server.and_then(|server| server.underlay);
        if let Some(run) = number.and_then(|number| self.underlay.present(number)) {
            run.is_proven = true;
        }
    }

    /// A server has ended on the underlay before it was ready. Gives the one that was started in its place, without
    /// it, or why there is none. `ended` is how, unless it was killed and does not end.
    pub(crate) fn start_without_underlay(
        &mut self,
        id: ServerId,
        server: &mut Server,
        ended: Option<ExitStatus>,
    ) -> Result<(), StartServerError> {
        const SIGKILL: i32 = 9;
        let pid = server.pid();
        let hung = ended.is_none_or(|ended| ended.signal() == Some(SIGKILL));
        let why = match hung {
            true => format!("server {pid} was killed before it was ready on it"),
            false => format!("server {pid} ended before it was ready on it; see server.log"),
        };
        let number = server.underlay.unwrap_or_default();
        // One server may have been too many for it; the first one, or one that hangs, says more.
        let run = self.underlay.present(number);
        let is_doubtful = run.is_some_and(|run| hung || !run.is_proven);
        if self.underlay.mode == Mode::NvidiaMps {
            if is_doubtful {
                self.underlay_is_down(number, &why);
            }
            return Err(self.refused_without(&why));
        }
        if is_doubtful {
            self.underlay_is_down(number, &why);
        }
        self.log(&format!(
            "Server {pid} is started again without the underlay"
        ));
        let gid = server.waiting.front().map(|client| client.peer.gid);
        let new = self.start_server_on(server.key.clone(), server.uid, gid, None)?;
        if let Some(new) = self.registry.servers.get_mut(&new) {
            new.waiting = std::mem::take(&mut server.waiting);
            new.settings = server.settings.clone();
        }
        self.replace_awaited(Awaited::Ready(id), Awaited::Ready(new));
        Ok(())
    }

    /// What runs beneath servers, in a line and for programs.
    pub(crate) fn describe_underlay(&self) -> (String, Value) {
        let underlay = &self.underlay;
        let mode = underlay.mode.name();
        let up = underlay.run.as_ref().and_then(|run| run.up.as_ref());
        let number = underlay.run.as_ref().map(|run| run.number);
        let servers = self.registry.servers.values();
        let on_it: Vec<u32> = servers
            .filter(|server| number.is_some() && server.underlay == number)
            .map(Server::pid)
            .collect();
        let (state, text) = match (underlay.mode, &underlay.run, up) {
            (Mode::None, ..) => ("off", "servers share GPUs by time-slicing".to_owned()),
            (_, _, Some((pid, version))) => (
                "up",
                format!(
                    "NVIDIA's MPS runs beneath servers: process {pid}, binary version {version}, servers {on_it:?}"
                ),
            ),
            (_, Some(_), None) => ("starting", "NVIDIA's MPS is being started".to_owned()),
            (_, None, _) => match &underlay.why_not {
                Some(why) => ("absent", format!("there is none: {why}")),
                None => (
                    "idle",
                    "NVIDIA's MPS starts with the first server".to_owned(),
                ),
            },
        };
        let (of_contexts, contexts) = self.describe_contexts();
        let text = match of_contexts {
            Some(more) => format!("{text}; {more}"),
            None => text,
        };
        let value = json!({
            "mode": mode,
            "state": state,
            "text": text,
            "process": up.map(|(pid, _)| pid),
            "version": up.map(|(_, version)| version),
            "program": underlay.program.as_ref().map(|program| program.display().to_string()),
            "why": underlay.why_not,
            "servers": on_it,
            "contexts": contexts,
        });
        (format!("{mode}: {text}"), value)
    }
}
