//! The underlay: NVIDIA's own MPS, run privately beneath our servers, so that those of several users, groups or isolated
//! clients overlap on a GPU instead of being time-sliced.
//!
//! Kept by the daemon, called by `daemon::underlay`. Must not know clients: servers alone are on it.
//!
//! It is started when the first server is, in directories of its own that no program comes to (`directory`), by a process that may wait
//! for it (`supervisor`), and ends with the last of those who use it. A server that is to be on it waits for the
//! daemon's word before it opens the driver. With `auto`, a server that does not get ready on it is started again without, and
//! what keeps failing is left alone for a while; with `nvidia-mps` its clients are refused instead.
//!
//! What holds for one server holds for others in the same way: which of them is on it is asked for each start, so that
//! one server may have several contexts on it.

mod directory;
mod error;
mod mode;
mod program;
mod supervisor;
mod variables;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use transport::socket::Connection;

use crate::files::directories::text_variable;
use crate::host::HostProgram;
use crate::servers::process::{self};

pub(crate) use directory::UnderlayDirectory;
pub(crate) use error::StartError;
pub use error::{NoProgram, UnderlayError};
pub use mode::Mode;
pub(crate) use supervisor::SupervisorMessage;
pub use supervisor::main as supervise;
pub(crate) use variables::{CONNECTIONS_VARIABLE, MOST_CONNECTIONS};

/// How long a server may take until it is ready on the underlay: NVIDIA's is known to hang in its clients' cuInit.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long the supervisor may take to end all of NVIDIA's processes, before it is killed.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// So many failures within so long, and servers are started without it until some of them are older.
pub(crate) const FAILURES: usize = 3;
pub(crate) const FAILURES_WITHIN: Duration = Duration::from_secs(600);

/// NVIDIA's program that an underlay would be, on this machine and for this user.
///
/// # Errors
/// Why there is none.
pub fn program() -> Result<PathBuf, NoProgram> {
    program::find()
}

/// One run of NVIDIA's MPS.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) supervisor: Child,
    pub(crate) connection: Connection,
    pub(crate) for_servers: Option<process::Underlay>,
    /// What it says of itself once it answers.
    pub(crate) up: Option<(u32, String)>,
    /// Whether a server got ready on it.
    pub(crate) is_proven: bool,
    /// When the supervisor is killed if it has not ended.
    pub(crate) deadline: Option<Instant>,
}

/// What runs beneath servers, and what has come of it.
#[derive(Debug, Default)]
pub struct Underlay {
    pub(crate) mode: Mode,
    pub(crate) program: Option<PathBuf>,
    /// The run that later servers are on.
    pub(crate) run: Option<Run>,
    /// Others, which servers may still be on.
    pub(crate) abandoned_runs: Vec<Run>,
    pub(crate) failures: VecDeque<Instant>,
    /// Why there was none, the last time that there was none.
    pub(crate) why_not: Option<String>,
}

impl Underlay {
    /// As it was asked for. Gives a line for the log.
    ///
    /// # Errors
    /// When it must be had and cannot, or a variable cannot be read.
    pub(crate) fn new(
        option: Option<Mode>,
        host: HostProgram,
    ) -> Result<(Self, Option<String>), UnderlayError> {
        let mode = Mode::asked(option)?;
        if let Some(text) = text_variable(CONNECTIONS_VARIABLE)?
            && !text
                .parse()
                .is_ok_and(|count| (1..=MOST_CONNECTIONS).contains(&count))
        {
            return Err(UnderlayError::Connections(text));
        }
        let mut underlay = Self {
            mode,
            ..Self::default()
        };
        if mode == Mode::None {
            return Ok((underlay, None));
        }
        let found = match (host.drives_hardware)() {
            true => program(),
            false => Err(NoProgram::SoftwareGpu),
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
                return Err(UnderlayError::Required(why));
            }
            Err(why) => {
                let line = format!("No underlay, servers start without: {why}");
                underlay.why_not = Some(why.to_string());
                line
            }
        };
        Ok((underlay, Some(line)))
    }

    /// When the first supervisor is killed that has not ended.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.abandoned_runs
            .iter()
            .filter_map(|run| run.deadline)
            .min()
    }

    pub(crate) fn act_on_deadlines(&mut self, now: Instant) {
        for run in &mut self.abandoned_runs {
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
    pub(crate) fn is_given_up(&mut self) -> bool {
        let now = Instant::now();
        self.failures
            .retain(|failure| now.duration_since(*failure) < FAILURES_WITHIN);
        self.failures.len() >= FAILURES
    }

    /// Gives up the present run: later servers get another, and it ends when those on it have.
    pub(crate) fn abandon_run(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.for_servers = None;
            run.deadline = None;
            self.abandoned_runs.push(run);
        }
    }

    /// Has everything end. Whether it has.
    pub(crate) fn is_over(&mut self) -> bool {
        self.abandon_run();
        let deadline = Instant::now() + ENDS_WITHIN;
        for run in &mut self.abandoned_runs {
            run.deadline.get_or_insert(deadline);
        }
        self.abandoned_runs.is_empty()
    }

    /// The present run, if it is this one.
    pub(crate) fn present(&mut self, number: u64) -> Option<&mut Run> {
        self.run.as_mut().filter(|run| run.number == number)
    }

    pub(crate) fn connection(&self, number: u64) -> Option<&Connection> {
        let mut all = self.run.iter().chain(&self.abandoned_runs);
        let run = all.find(|run| run.number == number)?;
        Some(&run.connection)
    }

    pub(crate) fn forget(&mut self, number: u64) -> Option<Run> {
        let of_former = self
            .abandoned_runs
            .iter()
            .position(|run| run.number == number);
        match of_former {
            Some(at) => Some(self.abandoned_runs.swap_remove(at)),
            None => self.run.take_if(|run| run.number == number),
        }
    }
}

/// What an event says of a run.
pub(crate) fn of_run(run: &Run) -> Value {
    json!({ "underlay": run.supervisor.id() })
}

/// What NVIDIA's daemon and its server get of the environment: the devices that ours is to offer, which it counts anew, and the
/// very driver that our servers open, where ours lies in its place on the loader's path. Not the limits of our clients.
pub(crate) fn environment(
    program: &Path,
    driver: Option<&Path>,
) -> Vec<(&'static str, std::ffi::OsString)> {
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
