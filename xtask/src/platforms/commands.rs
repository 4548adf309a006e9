//! Commands of engines and others: run to their end, started, or asked again until something is so.
//!
//! Used by the tests of platforms, Kubernetes and Slurm. Must not know any engine by name.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// What anything that is waited for may take.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a command to its end, without input.
pub fn output(command: &mut Command) -> Result<Output> {
    let name = format!("{command:?}");
    command.stdin(Stdio::null()).output().context(name)
}

/// Starts an engine's daemon, which writes what it has to say to a file.
pub fn start(command: &mut Command, log: &Path) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    let log = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// What a command prints, if it succeeds.
pub fn said(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{text}{errors}", output.status);
    }
    Ok(text)
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(
            Instant::now() < deadline,
            "{what}: not within {} s",
            PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
