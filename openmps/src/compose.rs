//! `openmps compose`: what the images of deploy/compose run. They are built from scratch and have no
//! shell, so this is the daemon's entry point.
//!
//! Called by `main`. Must not know which containers come.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result};
use control::Directories;
use platform::compose::{log_header, visible};

use crate::embedded;
use crate::logs::{LOOK, Logs};
use crate::machine;
use crate::private_daemon::own_program;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Runs the daemon in the foreground, and prints its log and its servers'
    Daemon {
        /// Put the client library into this folder, which programs' containers mount
        #[arg(long, value_name = "DIR")]
        library_directory: Option<PathBuf>,
    },
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Command::Daemon { library_directory } = &arguments.command;
    if let Some(folder) = library_directory {
        embedded::client_library_for_all(folder)?;
    }
    let variable = |name: &str| std::env::var(name).ok();
    let mut gpus = machine::gpus()?;
    let all = gpus.len();
    // Of cards a container has those alone that NVIDIA's runtime has left it, under numbers of its own.
    if gpus.iter().all(machine::is_software) {
        let named = variable("NVIDIA_VISIBLE_DEVICES");
        gpus = visible(gpus, named.as_deref()).map_err(anyhow::Error::msg)?;
    }
    let shared_memory = rustix::fs::statvfs("/dev/shm").ok();
    say(&log_header(
        shared_memory.map(|facts| facts.f_blocks.saturating_mul(facts.f_frsize)),
        variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").as_deref(),
        &gpus,
    ));

    let directories = Directories::from_environment().map_err(anyhow::Error::msg)?;
    let mut logs = Logs::new(&[directories.control_log(), directories.server_log()]);
    // What a former run of this container wrote was printed by it.
    logs.more()?;
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGQUIT,
    ])?;
    let mut daemon = Process::new(own_program()?);
    if gpus.len() < all {
        let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        daemon.env("CUDA_VISIBLE_DEVICES", uuids.join(","));
    }
    let mut daemon = daemon
        .args(["control", "-f"])
        .stdin(Stdio::null())
        // Its log is printed from the file, in order with the servers'.
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the control daemon")?;
    let status = loop {
        std::thread::sleep(LOOK);
        if signals.pending().next().is_some() {
            tell_to_quit(&daemon);
        }
        let ended = daemon.try_wait()?;
        say(&logs.more()?.concat());
        if let Some(status) = ended {
            break status;
        }
    };
    Ok(match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    })
}

/// Prints; where nobody reads what is printed, programs still have their daemon.
fn say(text: &str) {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .ok();
}

/// SIGTERM is the daemon's `quit`.
fn tell_to_quit(daemon: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(daemon.id().cast_signed()) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
    }
}
