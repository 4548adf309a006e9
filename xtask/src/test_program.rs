//! One of cargo's test programs, for so long at most. One that hangs is ended, and the others run: of it is said which processes there
//! are and where their threads are.
//!
//! Called by cargo, which `ci` has run its tests so. Must not know what a program tests.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{WaitOptions, WaitStatus, getpid, set_child_subreaper, wait};

use crate::process_tree::{self, Process, descendants};
use crate::shell::{cargo, root};

/// What a test program may take.
const LIMIT: Duration = Duration::from_secs(8 * 60);

/// Between looks whether it has ended.
const INTERVAL: Duration = Duration::from_millis(5);

/// cargo, with its test programs run by [`run`], and with this library in them and in what they start.
pub fn cargo_with_limits(preloaded: Option<&Path>) -> Command {
    let mut command = cargo();
    let itself = root().join("target/debug/xtask");
    let preload = preloaded.map(|library| format!("env LD_PRELOAD={} ", library.display()));
    // cargo takes what stands there for words.
    if let Some(itself) = itself
        .to_str()
        .filter(|it| !it.contains(char::is_whitespace))
    {
        let target = format!("{}-UNKNOWN-LINUX-GNU", std::env::consts::ARCH);
        let name = target.to_uppercase().replace('-', "_");
        command.env(
            format!("CARGO_TARGET_{name}_RUNNER"),
            format!("{}{itself} test-program", preload.unwrap_or_default()),
        );
    }
    command
}

/// Runs a program, and ends as that does.
///
/// # Errors
/// When it cannot be started, or has not ended within the limit.
pub fn run(words: &[OsString]) -> Result<()> {
    ended_well(run_within(words, LIMIT)?)
}

/// Whether a program has ended with success, by its status if it has ended.
fn ended_well(status: Option<WaitStatus>) -> Result<()> {
    let status = status.context("it has no end")?;
    if let Some(signal) = status.terminating_signal() {
        bail!("ended by signal {signal}");
    }
    let code = status.exit_status().unwrap_or(-1);
    ensure!(code == 0, "exit status {code}");
    Ok(())
}

/// Its status, if it ends within that time.
fn run_within(words: &[OsString], limit: Duration) -> Result<Option<WaitStatus>> {
    // So that what its processes have left is found below it.
    set_child_subreaper(Some(getpid())).context("to be the reaper of its orphans")?;
    let [program, arguments @ ..] = words else {
        bail!("no program is named");
    };
    let begun = Instant::now();
    let child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    loop {
        // Orphans too: who waits for the end of one waits for its reaper.
        while let Some((pid, status)) = wait(WaitOptions::NOHANG).ok().flatten() {
            if pid.as_raw_nonzero().get() == child.id().cast_signed() {
                return Ok(Some(status));
            }
        }
        if begun.elapsed() > limit {
            tell_of_all();
            end_all(&child);
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
    }
}

fn own() -> u32 {
    std::process::id()
}

/// Says which processes there are below this one, and where their threads are.
fn tell_of_all() {
    for (pid, line) in process_tree::command_lines(own()) {
        println!("xtask: process {pid}: {line}");
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |file: &str| {
                let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
                text.trim().to_owned()
            };
            // The name, what it waits for in the kernel, and the number and arguments of its system call.
            println!(
                "xtask:   {} {}: {} {}",
                task.file_name().display(),
                read("comm"),
                read("wchan"),
                read("syscall")
            );
        }
    }
}

fn end_all(child: &Child) {
    process_tree::end(child.id());
    let processes = Process::all();
    for process in descendants(&processes, &[own().cast_signed()]) {
        process.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Vec<OsString> {
        ["sh", "-c", text].map(OsString::from).to_vec()
    }

    #[test]
    fn a_program_says_how_it_ended_and_one_that_hangs_is_ended_with_what_it_has_started() {
        // In a process of its own: it is the reaper of all that run beside it here.
        let itself = std::env::current_exe().unwrap();
        let inner = |text: &str| {
            let mut command = Command::new(&itself);
            command
                .args([
                    "test_program::tests::inner",
                    "--exact",
                    "--ignored",
                    "--nocapture",
                ])
                .env("TEXT", text);
            let output = command.output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(inner("exit 7").contains("exit status 7"));
        assert!(inner("kill -9 $$").contains("ended by signal 9"));
        let said = inner("sleep 600 & sh -c 'sleep 600 & echo $!'; wait");
        assert!(said.contains("it has no end"), "{said}");
        assert_eq!(said.matches(": sleep 600\n").count(), 2, "{said}");
        let pid = said.lines().find_map(|line| line.parse::<u32>().ok());
        let process = pid.and_then(Process::of);
        assert!(process.is_none_or(|it| it.has_ended), "{said}");
    }

    #[test]
    #[ignore = "run by the test above"]
    fn inner() {
        let text = std::env::var("TEXT").unwrap();
        let status = run_within(&shell(&text), Duration::from_millis(500)).unwrap();
        println!(
            "{:?}",
            ended_well(status).map_err(|error| error.to_string())
        );
    }
}
