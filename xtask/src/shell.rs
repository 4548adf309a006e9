//! Running programs, with their names in errors, from the workspace's root.
//!
//! Used by almost every file here. Must not know what is run.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Between looks at a running program.
pub const INTERVAL: Duration = Duration::from_millis(5);

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let mut folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    folder.pop();
    folder
}

/// The cargo that runs this task.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command in the root, says what it is and how long it took.
pub fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let text = format!("{} {}", command.get_program().display(), words.join(" "));
    println!("xtask: {text}");
    let start = Instant::now();
    let status = command
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot run {text}"))?;
    println!(
        "xtask: {} after {:.1} s",
        status,
        start.elapsed().as_secs_f32()
    );
    if !status.success() {
        bail!("{text}: {status}");
    }
    Ok(())
}

/// Sends a signal to a child. Not with the program `kill`, which a bare machine lacks.
pub fn send(signal: Signal, child: &Child) -> Result<()> {
    Ok(kill_process(Pid::from_child(child), signal)?)
}

/// Waits for a child, and ends it at the limit: then None.
pub fn end_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
    }
}
