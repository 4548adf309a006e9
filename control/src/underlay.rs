//! The underlay: NVIDIA's own MPS, run privately beneath our servers, so that those of several users, groups or isolated
//! clients overlap on a GPU instead of being time-sliced.
//!
//! It is started when the first server is, in directories of its own that no program comes to (`place`), by a process that may wait
//! for it (`supervisor`), and ends with the last of those who use it. A server that is to be on it waits for the
//! daemon's word before it opens the driver. With `auto`, a server that does not get ready on it is started again without, and
//! what keeps failing is left alone for a while; with `nvidia-mps` its clients are refused instead.
//!
//! What holds for one server holds for others in the same way: which of them is on it is asked for each start, so that
//! one server may have several contexts on it.

mod mode;
mod place;
mod program;
mod supervisor;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use transport::socket::Connection;

use crate::Machine;
use crate::daemon::{Daemon, Until};
use crate::directories::text_variable;
use crate::registry::{Server, ServerId, State};
use crate::server_process::{self, lend};
use crate::source::Source;
use place::Place;
use supervisor::Word;

pub use mode::Mode;
pub use supervisor::main as supervise;

/// How long a server may take until it is ready on the underlay: NVIDIA's is known to hang in its clients' cuInit.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long the supervisor may take to end all of NVIDIA's processes, before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// So many failures within so long, and servers are started without it until some of them are older.
const FAILURES: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(600);

/// The hardware queues that a context can have.
const MOST_CONNECTIONS: u32 = 32;

/// Names how many of them each server on the underlay has.
const CONNECTIONS_VARIABLE: &str = "OPENMPS_UNDERLAY_CONNECTIONS";

/// NVIDIA's program that an underlay would be, on this machine and for this user.
///
/// # Errors
/// Why there is none, in words.
pub fn program() -> Result<PathBuf, String> {
    program::find()
}

/// One run of NVIDIA's MPS.
#[derive(Debug)]
struct Run {
    number: u64,
    supervisor: Child,
    connection: Connection,
    lent: Option<server_process::Underlay>,
    /// What it says of itself once it answers.
    up: Option<(u32, String)>,
    /// Whether a server got ready on it.
    is_proven: bool,
    /// When the supervisor is killed if it has not ended.
    deadline: Option<Instant>,
}

/// What runs beneath servers, and what has come of it.
#[derive(Debug, Default)]
pub struct Underlay {
    mode: Mode,
    program: Option<PathBuf>,
    /// The run that later servers are on.
    run: Option<Run>,
    /// Others, which servers may still be on.
    former: Vec<Run>,
    failures: VecDeque<Instant>,
    /// Why there was none, the last time that there was none.
    why_not: Option<String>,
}

impl Underlay {
    /// As it was asked for. Gives a line for the log.
    ///
    /// # Errors
    /// In words, when it must be had and cannot.
    pub(crate) fn new(
        option: Option<Mode>,
        machine: Machine,
    ) -> Result<(Self, Option<String>), String> {
        let mode = Mode::asked(option)?;
        if let Some(text) = text_variable(CONNECTIONS_VARIABLE)?
            && !text
                .parse()
                .is_ok_and(|count| (1..=MOST_CONNECTIONS).contains(&count))
        {
            return Err(format!(
                "{CONNECTIONS_VARIABLE}={text} is no number from 1 to {MOST_CONNECTIONS}"
            ));
        }
        let mut underlay = Self {
            mode,
            ..Self::default()
        };
        if mode == Mode::None {
            return Ok((underlay, None));
        }
        let found = match (machine.drives_hardware)() {
            true => program(),
            false => Err("servers here run on the software GPU".to_owned()),
        };
        let line = match found {
            Ok(program) => {
                let line = format!(
                    "Underlay {}: {} starts with the first server. Servers on it share each other's fate: a fault in \
                     the context of one ends those of all",
                    mode.name(),
                    program.display()
                );
                underlay.program = Some(program);
                line
            }
            Err(why) if mode == Mode::NvidiaMps => {
                return Err(format!("--underlay=nvidia-mps: {why}"));
            }
            Err(why) => {
                let line = format!("No underlay, servers start without: {why}");
                underlay.why_not = Some(why);
                line
            }
        };
        Ok((underlay, Some(line)))
    }

    /// When the first supervisor is killed that has not ended.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.former.iter().filter_map(|run| run.deadline).min()
    }

    pub(crate) fn pass_deadlines(&mut self, now: Instant) {
        for run in &mut self.former {
            if run.deadline.is_some_and(|deadline| deadline <= now) {
                run.deadline = None;
                // All children are reaped where the daemon hears of them; one that has its connection open lives.
                if !run.connection.is_closed() {
                    let _ = run.supervisor.kill();
                }
            }
        }
    }

    /// Whether so much has failed lately that nothing is tried.
    fn is_given_up(&mut self) -> bool {
        let now = Instant::now();
        self.failures
            .retain(|failure| now.duration_since(*failure) < FAILURES_WITHIN);
        self.failures.len() >= FAILURES
    }

    /// Gives up the present run: later servers get another, and it ends when those on it have.
    fn leave(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.lent = None;
            run.deadline = None;
            self.former.push(run);
        }
    }

    /// Has everything end. Whether it has.
    pub(crate) fn is_over(&mut self) -> bool {
        self.leave();
        let deadline = Instant::now() + ENDS_WITHIN;
        for run in &mut self.former {
            run.deadline.get_or_insert(deadline);
        }
        self.former.is_empty()
    }

    /// The present run, if it is this one.
    fn present(&mut self, number: u64) -> Option<&mut Run> {
        self.run.as_mut().filter(|run| run.number == number)
    }

    fn connection(&self, number: u64) -> Option<&Connection> {
        let mut all = self.run.iter().chain(&self.former);
        let run = all.find(|run| run.number == number)?;
        Some(&run.connection)
    }

    fn forget(&mut self, number: u64) -> Option<Run> {
        let of_former = self.former.iter().position(|run| run.number == number);
        match of_former {
            Some(at) => Some(self.former.swap_remove(at)),
            None => self.run.take_if(|run| run.number == number),
        }
    }
}

/// What an event says of a run.
fn of_run(run: &Run) -> Value {
    json!({ "underlay": run.supervisor.id() })
}

impl Daemon {
    /// The run of the underlay that a server is to be on; started if need be. `None` if servers have none.
    ///
    /// # Errors
    /// Why it cannot be had, where no server is to be without.
    pub(crate) fn underlay_for_server(&mut self) -> Result<Option<u64>, String> {
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
            Err(why) => {
                self.underlay.failures.push_back(Instant::now());
                self.without_underlay(&why)
            }
        }
    }

    fn without_underlay(&mut self, why: &str) -> Result<Option<u64>, String> {
        if self.underlay.mode == Mode::NvidiaMps {
            self.underlay.why_not = Some(why.to_owned());
            return Err(self.refused_without(why));
        }
        self.say_there_is_none(why);
        Ok(None)
    }

    fn refused_without(&self, why: &str) -> String {
        let last = self.underlay.why_not.as_deref().filter(|last| *last != why);
        let last = last.map_or_else(String::new, |last| format!("; the last time: {last}"));
        format!(
            "NVIDIA's MPS cannot run beneath this server, and --underlay=nvidia-mps allows none without: {why}{last}"
        )
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

    fn start_underlay(&self, number: u64, program: &Path) -> Result<Run, String> {
        let place = Place::make()?;
        let whole = place.whole.clone();
        let started = self.start_supervisor(number, program, place);
        if started.is_err() {
            let _ = std::fs::remove_dir_all(whole);
        }
        started.map_err(|error| format!("its supervisor cannot be started: {error}"))
    }

    fn start_supervisor(&self, number: u64, program: &Path, place: Place) -> std::io::Result<Run> {
        let (lease_end, lease) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (ours, theirs) = Connection::pair().map_err(std::io::Error::other)?;
        let mut command = (self.machine.supervise_underlay)();
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
            .envs(environment(program, (self.machine.driver)().as_deref()))
            .env("CUDA_MPS_PIPE_DIRECTORY", &place.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &place.log)
            .current_dir("/")
            .process_group(0);
        let mut supervisor = command.spawn()?;
        // The command holds their ends too.
        drop(command);
        let connection = ours.refuse_descriptors();
        if let Err(error) = self.watch(&connection, Source::Underlay(number)) {
            let _ = supervisor.kill();
            return Err(error.into());
        }
        Ok(Run {
            number,
            supervisor,
            connection,
            lent: Some(server_process::Underlay {
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
                Ok(Some((bytes, _))) => match Word::decode(&bytes) {
                    Some(Word::Up { pid, version }) => self.underlay_is_up(number, pid, version),
                    Some(Word::Down { why }) => self.underlay_is_down(number, &why),
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
                        Self::forget(self, &run.connection);
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
                self.lend_underlay(*id);
            }
        }
    }

    /// Tells a server that waits for it where its underlay is, if that is up.
    pub(crate) fn lend_underlay(&self, id: ServerId) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let run = self.underlay.run.as_ref();
        let run = run.filter(|run| server.underlay == Some(run.number) && run.up.is_some());
        if let Some(lent) = run.and_then(|run| run.lent.as_ref()) {
            // One that does not listen is ended at its deadline.
            let _ = lend(&server.connection, Ok(lent));
        }
    }

    /// A run has failed or ended. Servers that wait for it are told; those that are on it may go on.
    fn underlay_is_down(&mut self, number: u64, why: &str) {
        let Some(run) = self.underlay.present(number) else {
            return;
        };
        let (who, was_up, was_proven) = (of_run(run), run.up.is_some(), run.is_proven);
        self.underlay.leave();
        self.underlay.failures.push_back(Instant::now());
        if was_proven {
            self.log(&format!(
                "NVIDIA's MPS is lost, and clients of servers on it may fail: {why}"
            ));
            self.underlay.why_not = Some(why.to_owned());
        } else if self.underlay.mode == Mode::NvidiaMps {
            self.log(&self.refused_without(why));
            self.underlay.why_not = Some(why.to_owned());
        } else {
            self.say_there_is_none(why);
        }
        self.event("underlay.down", who, json!({ "why": why }));
        let servers = self.registry.servers.values();
        for server in servers.filter(|server| server.underlay == Some(number)) {
            if !was_up && server.state == State::Initializing {
                let _ = lend(&server.connection, Err(why));
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
    ) -> Result<(), String> {
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
        self.wait_for_another(Until::Ready(id), Until::Ready(new));
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
        let value = json!({
            "mode": mode,
            "state": state,
            "text": text,
            "process": up.map(|(pid, _)| pid),
            "version": up.map(|(_, version)| version),
            "program": underlay.program.as_ref().map(|program| program.display().to_string()),
            "why": underlay.why_not,
            "servers": on_it,
        });
        (format!("{mode}: {text}"), value)
    }
}

/// What NVIDIA's daemon and its server get of the environment: the devices that ours is to offer, which it counts anew, and the
/// very driver that our servers open, where ours lies in its place on the loader's path. Not the limits of our clients.
fn environment(program: &Path, driver: Option<&Path>) -> Vec<(&'static str, std::ffi::OsString)> {
    const PASSED_ON: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TZ"];
    let mut all = vec![("PATH", "/usr/bin:/bin".into())];
    if let Some(folder) = program.parent() {
        // It finds its server beside it.
        let mut path = folder.as_os_str().to_owned();
        path.push(":/usr/bin:/bin");
        all[0].1 = path;
    }
    let libraries = driver.and_then(Path::parent);
    all.extend(libraries.map(|folder| ("LD_LIBRARY_PATH", folder.as_os_str().to_owned())));
    all.extend(
        PASSED_ON
            .into_iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_often_is_left_alone_for_a_while() {
        let mut underlay = Underlay::default();
        let now = Instant::now();
        let old = now.checked_sub(FAILURES_WITHIN);
        for failure in [old, Some(now), Some(now)].into_iter().flatten() {
            underlay.failures.push_back(failure);
        }
        assert!(!underlay.is_given_up(), "the first is too old to count");
        underlay.failures.push_back(now);
        assert!(underlay.is_given_up());
    }

    #[test]
    fn the_server_of_nvidias_gets_the_driver_of_ours() {
        let program = Path::new("/opt/mps/nvidia-cuda-mps-control");
        let all = environment(program, Some(Path::new("/opt/driver/libcuda.so.1")));
        let of = |name: &str| {
            all.iter()
                .find(|(other, _)| *other == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(of("PATH"), "/opt/mps:/usr/bin:/bin");
        assert_eq!(of("LD_LIBRARY_PATH"), "/opt/driver");
        assert!(
            environment(program, None)
                .iter()
                .all(|(name, _)| *name != "LD_LIBRARY_PATH")
        );
    }
}
