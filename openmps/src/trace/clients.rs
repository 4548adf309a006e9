//! `openmps trace --all-processes` and `--pid`: clients of a daemon as they are, recorded from now on, also those that know nothing of it.
//!
//! The daemon and its servers send what is recorded; `client_files` writes it. Called by `record`. Must not know files.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use daemon_interface::time_lines::{Recorded, TimeLines};
use daemon_interface::view::ViewError;
use protocol::control_messages::TimeLineRequest;
use trace::name_pattern;

use super::client_files::ClientFiles;
use super::progress::Progress;

/// How long the daemon may take to take the question.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often what came is written.
const ROUND: Duration = Duration::from_millis(50);

/// For how long what was recorded before the end is waited for: twice what it takes from client to server to here.
const LATE: Duration = Duration::from_millis(200);

/// Nothing has come for so long when all was read that was there.
const IDLE: Duration = Duration::from_millis(1);

/// How long what came before the end may take to be read where this process cannot keep up.
const BEHIND: Duration = Duration::from_secs(10);

/// What is to be recorded.
#[derive(Debug)]
pub struct RecordingRequest<'a> {
    /// Where the daemon listens.
    pub socket: &'a Path,
    /// One client, or all.
    pub pid: Option<i32>,
    /// When it ends by itself.
    pub time: Option<Duration>,
    /// Names of files.
    pub pattern: &'a str,
    /// Whether files that are there are written over.
    pub force: bool,
}

/// Records until the time is over, somebody interrupts, or nobody is left who could be recorded.
pub fn record(request: &RecordingRequest<'_>) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    transport::socket::raise_descriptor_limit();
    let mut pattern = request.pattern.to_owned();
    if request.pid.is_none() && !name_pattern::tells_processes_apart(&pattern) {
        pattern.push_str(".%p");
        eprintln!("openmps: -o has no %p: each client's number is added, as in {pattern}");
    }
    let asked = TimeLineRequest { pid: request.pid };
    let lines = TimeLines::record(request.socket, asked, PATIENCE);
    let lines = lines.map_err(|error| no_daemon(error, request.socket))?;
    // Where all processors are busy, those that are recorded come first: servers keep what comes meanwhile.
    rustix::process::nice(19).ok();
    let mut files = ClientFiles::new(pattern, request.force);
    let mut progress = Progress::new();
    let begun = Instant::now();
    let mut ends_at = request.time.and_then(|time| begun.checked_add(time));
    let mut written_at = begun;
    loop {
        let is_late = ends_at.is_some_and(|end| Instant::now() >= end + LATE);
        let mut is_idle = false;
        match lines.next(if is_late { IDLE } else { ROUND }) {
            Ok(Some(Recorded::End)) => {
                progress.print("the daemon has ended, and with it the recording");
                break;
            }
            Ok(Some(recorded)) => files.add(recorded, &mut progress),
            Ok(None) => is_idle = true,
            Err(ViewError::Refused(why)) => bail!("the daemon refuses: {why}"),
            Err(error) => {
                files.finish(&mut progress);
                return Err(error).context("the recording ends here");
            }
        }
        let now = Instant::now();
        if now >= written_at + ROUND {
            files.write(&mut progress);
            progress.show(files.counts());
            written_at = now;
        }
        let interrupted = stop.load(Ordering::Relaxed);
        if interrupted && ends_at.is_none_or(|end| end > now) {
            ends_at = Some(now);
        }
        let over = request.pid.is_some() && files.is_over();
        let is_read = |end| (is_late && is_idle) || now >= end + LATE + BEHIND;
        if over || ends_at.is_some_and(is_read) {
            break;
        }
    }
    drop(lines);
    files.finish(&mut progress);
    drop(progress);
    files.print_files();
    Ok(match files.has_failed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn no_daemon(error: ViewError, socket: &Path) -> anyhow::Error {
    match error {
        ViewError::Socket(error) if error.is_nobody_listening() => anyhow::anyhow!(
            "{} at {}: `openmps control -d` starts one; CUDA_MPS_PIPE_DIRECTORY says which is meant",
            control::NO_DAEMON,
            socket.display()
        ),
        error => anyhow::Error::new(error).context("cannot ask the daemon"),
    }
}
