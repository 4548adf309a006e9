//! Each test in a process of its own: it has a limit of time, and whatever it leaves is taken away.
//!
//! A test starts daemons that start programs that outlive them. So the process that runs the tests is the
//! reaper of all their orphans: when a test is over, by its own end or at its limit, what still descends
//! from it is killed, and [`Traces`] takes away what was mounted, made and written. What it mounts nobody else
//! sees ([`with_own_mounts`]), so that also a run that is killed leaves nothing mounted.
//!
//! Called by `platforms`. Must not know which engine a test uses.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{
    Signal, WaitOptions, getpid, set_child_subreaper, set_parent_process_death_signal, wait,
};

use super::traces::{self, Traces};
use super::why_skipped;
use crate::process_tree::{Process, descendants};
use crate::shell::{INTERVAL, end_within, root};
use crate::skipped;

/// How long the killed may take to be gone.
const END: Duration = Duration::from_secs(20);

/// How a test ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TestOutcome {
    Passed,
    /// This machine cannot run it, and why.
    Skipped(String),
    Failed(String),
}

impl TestOutcome {
    fn of(result: &Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => match why_skipped(error) {
                Some(why) => Self::Skipped(why.to_owned()),
                None => Self::Failed(format!("{error:#}")),
            },
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Passed => "passed\n".into(),
            Self::Skipped(why) => format!("skipped\n{why}"),
            Self::Failed(why) => format!("failed\n{why}"),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let (word, why) = text.split_once('\n')?;
        match word {
            "passed" => Some(Self::Passed),
            "skipped" => Some(Self::Skipped(why.to_owned())),
            "failed" => Some(Self::Failed(why.to_owned())),
            _ => None,
        }
    }
}

/// Where tests have their folders, one after another. Its path is short, since sockets are in it.
#[derive(Debug)]
pub(super) struct TestFolders(PathBuf);

impl TestFolders {
    pub(super) fn new() -> Result<Self> {
        set_child_subreaper(Some(getpid())).context("to be the reaper of the tests' orphans")?;
        let folder = std::env::temp_dir().join(format!("omps{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        traces::unmount_below(&root().join("target/platforms"));
        Ok(Self(folder))
    }

    /// Runs a test to its end, or to its limit.
    pub(super) fn run(&self, name: &str, limit: Duration) -> Result<TestOutcome> {
        let _alone = alone();
        let answer = self.0.join("answer");
        let work = self.0.join("w");
        fs::create_dir_all(&work)?;
        let traces = Traces::before(work.clone());
        // Itself, also when it was built anew since, and by its number: what `self` is another program may
        // have to ask.
        let itself = format!("/proc/{}/exe", std::process::id());
        let mut child = with_own_mounts(Path::new(&itself))
            .args(["platforms", name, "--answer"])
            .arg(&answer)
            .env("TMPDIR", &work)
            .env(super::needs::NOTES, &self.0)
            .env(skipped::VARIABLE, skipped::list())
            .current_dir(root())
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the test")?;
        let status = end_within(&mut child, limit)?;
        let left = end_descendants();
        if status.is_some() && !left.is_empty() {
            println!("xtask: platforms: {name} left {}: ended", left.join(", "));
        }
        traces.remove();
        let said = fs::read_to_string(&answer).unwrap_or_default();
        fs::remove_file(&answer).ok();
        Ok(match (status, TestOutcome::from_text(&said)) {
            (None, _) => TestOutcome::Failed(format!("no end within {} s", limit.as_secs())),
            (Some(_), Some(outcome)) => outcome,
            (Some(status), None) => {
                TestOutcome::Failed(format!("it ended without a word: {status}"))
            }
        })
    }
}

/// A command that runs a program in a mount namespace of its own: its mounts end with the last process that descends from
/// it, however that ends. Who may make no such namespace may mount nothing either, and gets the bare command.
fn with_own_mounts(program: &Path) -> Command {
    const WORDS: [&str; 3] = ["--mount", "--propagation=private", "--"];
    let tried = Command::new("unshare")
        .args(WORDS)
        .arg("true")
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(WORDS).arg(program);
    command
}

/// The lock of this machine's tests: a kubelet and what engines leave behind are there once, and what is new
/// after a test could be another run's. Where there can be no lock, nobody waits.
fn alone() -> Option<File> {
    let lock = Path::new("/tmp/openmps-platforms.lock");
    let file = File::options().create(true).append(true).open(lock).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("xtask: platforms: waiting for a test of another run");
        flock(&file, FlockOperation::LockExclusive).ok()?;
    }
    Some(file)
}

impl Drop for TestFolders {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a test in this process, and writes down how it ended.
pub(super) fn answer(test: super::Test, answer: &Path) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("to end with its parent")?;
    let result = test();
    Ok(fs::write(answer, TestOutcome::of(&result).to_text())?)
}

/// Kills all that descends from this process, and gives the names of what it found at first.
fn end_descendants() -> Vec<String> {
    let start = Instant::now();
    let mut names = Vec::new();
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let processes = Process::all();
        let found = descendants(&processes, &[std::process::id().cast_signed()]);
        if found.is_empty() || start.elapsed() > END {
            return names;
        }
        for process in found {
            if names.len() < 16 && start.elapsed() < INTERVAL {
                names.push(process.name.clone());
            }
            process.kill();
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_mounts_nobody_else_sees() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().to_str().unwrap();
        let mut command = with_own_mounts(Path::new("sh"));
        if command.get_program() != "unshare" {
            // Who cannot have mounts of his own cannot mount.
            return;
        }
        let words = "mount -t tmpfs none \"$1\" && grep -c \" $1 \" /proc/self/mounts";
        let output = command.args(["-c", words, "sh", point]).output().unwrap();
        assert_eq!(output.stdout, b"1\n", "{output:?}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(point), "{mounts}");
    }

    #[test]
    fn outcomes_are_told() {
        let skipped = super::super::skip::<()>("no root,\nnone at all");
        let failed: Result<()> = Err(anyhow::anyhow!("inner").context("outer"));
        for (result, outcome) in [
            (Ok(()), TestOutcome::Passed),
            (
                skipped,
                TestOutcome::Skipped("no root,\nnone at all".into()),
            ),
            (failed, TestOutcome::Failed("outer: inner".into())),
        ] {
            assert_eq!(TestOutcome::of(&result), outcome);
            assert_eq!(TestOutcome::from_text(&outcome.to_text()), Some(outcome));
        }
        assert_eq!(TestOutcome::from_text(""), None);
    }

    #[test]
    fn a_skip_is_one_below_other_words_too() {
        let error = super::super::skip::<()>("no root").context("while it began");
        assert_eq!(
            TestOutcome::of(&error),
            TestOutcome::Skipped("no root".into())
        );
    }
}
