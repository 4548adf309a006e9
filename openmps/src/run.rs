//! `openmps run`: any program, as a client of a daemon, by putting our library first on its path.
//!
//! Called by `main`; `trace::record` and `report` run programs by it. Must not know what the program does.

mod loader;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};
use control::directories::{DEFAULT_PIPE_DIRECTORY, named_pipe_directory};
use daemon_interface::ConnectError;

use crate::embedded;
use crate::engines;
use crate::machine;
use crate::private_daemon::PrivateDaemon;
use crate::reach;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The daemon's pipe directory, in place of CUDA_MPS_PIPE_DIRECTORY; where neither names one, a daemon
    /// at the default place is used, and where there is none, one is started for this program alone
    #[arg(long, value_name = "DIR")]
    pub pipe_directory: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub program: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_with(arguments, &[])
}

/// Runs the program with these variables besides.
pub fn run_with(arguments: &Arguments, variables: &[(&str, &OsStr)]) -> Result<ExitCode> {
    loader::check(&arguments.program[0])?;
    let library = embedded::client_library()?;
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    put_first_on_loader_path(&mut command, &library);
    if engines::is_soft() {
        hand_over_ptx(&mut command, &library)?;
    }
    put_first_on_path(&mut command, "PATH", &embedded::smi_folder(&library)?);
    let (view, client) = machine::CLIENT_VIEW;
    command.env(view, client);
    command.envs(variables.iter().copied());

    let named = arguments.pipe_directory.clone();
    let named = named.or_else(named_pipe_directory);
    let directory = named
        .as_deref()
        .unwrap_or(Path::new(DEFAULT_PIPE_DIRECTORY));
    let socket = directory.join("control");
    match (daemon_interface::connect(&socket, None), &named) {
        (Ok(_), _) => {
            command.env("CUDA_MPS_PIPE_DIRECTORY", directory);
            Err(command.exec()).with_context(|| name_of(arguments))
        }
        (Err(_), Some(_)) if control::is_path_list(directory) => bail!(
            "CUDA_MPS_PIPE_DIRECTORY={} names several directories, and a process is the client of one \
             daemon: name one",
            directory.display(),
        ),
        (Err(error @ ConnectError::Untrusted(_)), Some(_)) => {
            bail!("cannot use a daemon: {error}")
        }
        (Err(error), Some(_)) if let Some(mend) = reach::how_to_reach(&socket) => {
            bail!("cannot reach a daemon: {error}\n  -> {mend}")
        }
        (Err(error), Some(_)) => bail!(
            "no control daemon answers on {} ({error}); start one with\n  \
             CUDA_MPS_PIPE_DIRECTORY={} openmps control -d\n\
             or leave CUDA_MPS_PIPE_DIRECTORY unset, and a private one is started for the program",
            socket.display(),
            directory.display(),
        ),
        (Err(error), None) => {
            if matches!(error, ConnectError::Untrusted(_)) {
                eprintln!("openmps: {error}; the program gets a private daemon");
            }
            under_private_daemon(command, arguments)
        }
    }
}

fn under_private_daemon(mut command: Command, arguments: &Arguments) -> Result<ExitCode> {
    // Ctrl-C reaches the program too, by the terminal; this process outlives it to clean up. Of the
    // other signals it passes on those that ask a program to end.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ])?;
    let daemon = PrivateDaemon::start(|daemon| {
        daemon.stdout(std::process::Stdio::null()).process_group(0);
    })?;
    daemon.make_client(&mut command);
    let log = daemon.folder().join("client.log");
    let own_log = std::env::var_os("OPENMPS_CLIENT_LOG").is_none();
    if own_log {
        command.env("OPENMPS_CLIENT_LOG", &log);
    }
    let mut child = command.spawn().with_context(|| name_of(arguments))?;
    let pid = rustix::process::Pid::from_child(&child);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        for signal in &mut signals {
            if let (true, Some(signal)) = (
                signal != signal_hook::consts::SIGINT,
                rustix::process::Signal::from_named_raw(signal),
            ) {
                rustix::process::kill_process(pid, signal).ok();
            }
        }
    });
    let status = child.wait()?;
    handle.close();
    passing.join().ok();
    let failures = failed_servers(&daemon.server_log());
    for line in failures
        .into_iter()
        .chain(refused_images(&log, status.success()))
    {
        eprintln!("openmps: {line}");
    }
    drop(daemon);
    Ok(exit_code(status))
}

/// What a program ended with, as a shell says it.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, signal) => ExitCode::from(128 + u8::try_from(signal.unwrap_or(0)).unwrap_or(0)),
    }
}

/// Why a private daemon's servers did not start, of which its programs see a code alone.
fn failed_servers(log: &Path) -> Option<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let failed = lines.find_map(|line| Some(line.split_once("MPS server failed to start")?.1))?;
    Some(format!("the server failed to start{failed}"))
}

/// Lines that are shown of what a program's log says.
const MOST_LINES: usize = 5;

/// What the program's log, which goes with the daemon, says of images that were refused: a program often shows
/// the code alone, or goes on with what a kernel has not written. Whoever got to its end is told of those
/// alone that have no code for this device at all.
fn refused_images(log: &Path, succeeded: bool) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.split_once("] ").map_or(line, |(_, said)| said);
        let of_image = line.contains("was refused with error");
        let without_code = line.contains("was refused with error 209");
        if of_image && (without_code || !succeeded) && !lines.iter().any(|there| there == line) {
            lines.push(line.to_owned());
        }
    }
    let more = lines.len().saturating_sub(MOST_LINES);
    lines.truncate(MOST_LINES);
    if more > 0 {
        lines.push(format!("{more} more images were refused"));
    }
    if !lines.is_empty() {
        lines.push(
            "kernels of such an image cannot be launched, and what was to come from them is missing: \
             docs/python.md says how packages hand over PTX"
                .to_owned(),
        );
    }
    lines
}

/// Has compilers that programs call hand over PTX, which the software GPU runs, in place of machine code.
/// What the user has set stays.
fn hand_over_ptx(command: &mut Command, libraries: &Path) -> Result<()> {
    let ptxas = embedded::ptxas(libraries)?;
    let wanted = [
        ("TRITON_PTXAS_PATH", ptxas.as_os_str()),
        ("TRITON_PTXAS_BLACKWELL_PATH", ptxas.as_os_str()),
        ("CUPY_COMPILE_WITH_PTX", "1".as_ref()),
    ];
    for (name, value) in wanted {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    match embedded::nvrtc_auditor(libraries) {
        Ok(auditor) => put_last_in_list(command, "LD_AUDIT", &auditor),
        Err(error) => eprintln!(
            "openmps: {error:#}; a program that asks NVRTC for machine code will not get its kernels loaded"
        ),
    }
    Ok(())
}

/// Puts a folder before all others in which the loader looks for libraries.
pub fn put_first_on_loader_path(command: &mut Command, folder: &Path) {
    put_first_on_path(command, "LD_LIBRARY_PATH", folder);
}

fn put_first_on_path(command: &mut Command, variable: &str, folder: &Path) {
    let mut path = folder.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    command.env(variable, path);
}

fn put_last_in_list(command: &mut Command, variable: &str, path: &Path) {
    let mut list = std::env::var_os(variable).unwrap_or_default();
    // Of this user's `openmps run` around this one, most likely.
    if std::env::split_paths(&list).any(|there| there == path) {
        return;
    }
    if !list.is_empty() {
        list.push(":");
    }
    list.push(path);
    command.env(variable, list);
}

fn name_of(arguments: &Arguments) -> String {
    format!("cannot run {}", arguments.program[0].display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_of_refused_images() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let image = |name: u32, code: u32| {
            format!(
                "[7] an image in /lib/{name}.so, of 9 bytes, was refused with error {code}: error: no\n"
            )
        };
        let mut text = "[7] cuFoo is not built\n".to_owned();
        text += &image(1, 218);
        assert_eq!(refused_images(Path::new("/nowhere"), false), [""; 0]);
        assert_eq!(failed_servers(Path::new("/nowhere")), None);
        let line = "[2026-11-20 21:42:57.831 Server   451] MPS server failed to start: no such\n";
        std::fs::write(log.path(), line).unwrap();
        let said = failed_servers(log.path());
        assert_eq!(said.as_deref(), Some("the server failed to start: no such"));
        std::fs::write(log.path(), &text).unwrap();
        assert_eq!(refused_images(log.path(), true), [""; 0]);
        let lines = refused_images(log.path(), false);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("an image in /lib/1.so"), "{lines:?}");
        assert!(lines[1].contains("docs/python.md"), "{lines:?}");
        // Each once, and not without end.
        for _ in 0..2 {
            text.extend((2..20).map(|name| image(name, 209)));
        }
        std::fs::write(log.path(), &text).unwrap();
        let lines = refused_images(log.path(), true);
        assert_eq!(lines.len(), MOST_LINES + 2);
        assert_eq!(lines[MOST_LINES], "13 more images were refused");
    }
}
