//! `openmps trace --all-processes` and `--pid`: clients that know nothing of it, beside what they know that they did; who may have
//! whom recorded; and what becomes of a recording when its client is killed or its disk is full.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{Daemon, eventually, openmps};
use tests::skipped::skipped;

const PROGRAM: &str = env!("CARGO_BIN_EXE_accounted");

/// Launches of a round of the program, and what it copies each way.
const LAUNCHES: usize = 40;
const DATA: u64 = 8 << 15;

/// A program that works when it is told to.
struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// One that has done one round.
    fn new(mut command: Command) -> Self {
        let launches = LAUNCHES.to_string();
        command.args([&*launches, "5", "50"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut worker = Self { child, output };
        worker.works();
        worker
    }

    fn works(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.starts_with("took "), "{line}");
    }

    /// Has it do one round more.
    fn again(&mut self) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"again\n")
            .unwrap();
        self.works();
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// A recording under way.
struct Recorder {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Recorder {
    /// One that the daemon knows of.
    fn new(daemon: &Daemon, mut command: Command) -> Self {
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .stderr(Stdio::piped());
        let before = daemon.control_log().matches(" records ").count();
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        eventually("the daemon knows of it", || {
            daemon.control_log().matches(" records ").count() > before
        });
        Self { child, said }
    }

    fn of(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut command = Command::new(openmps());
        command.arg("trace").args(arguments);
        Self::new(daemon, command)
    }

    /// Waits for its end, and gives what it said.
    fn ended(mut self, well: bool) -> String {
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), well, "{text}");
        text
    }

    /// Interrupts it as Ctrl-C does.
    fn end(self) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        self.ended(true)
    }
}

fn events(file: &Path) -> Vec<Value> {
    let all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    all["traceEvents"].as_array().unwrap().clone()
}

/// The events of a file that is about to be made, and may be in the midst of a write.
fn events_so_far(file: &Path) -> Vec<Value> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let all: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    all["traceEvents"].as_array().cloned().unwrap_or_default()
}

fn of<'a>(all: &'a [Value], category: &str) -> Vec<&'a Value> {
    all.iter()
        .filter(|event| event["cat"] == category)
        .collect()
}

fn named(events: &[&Value], name: &str) -> usize {
    events.iter().filter(|event| event["name"] == name).count()
}

/// Has the program work until it is recorded, and then one whole round.
fn work_recorded(worker: &mut Worker, file: &Path) {
    eventually("the client is recorded", || {
        worker.again();
        file.exists()
    });
    worker.again();
}

#[test]
fn all_clients_are_recorded_that_run_and_that_come() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |pid: u32| folder.path().join(format!("out.{pid}"));
    let mut before = Worker::new(daemon.command(PROGRAM));
    let pattern = folder.path().join("out.%p");
    let recorder = Recorder::of(
        &daemon,
        &["--all-processes", "-o", pattern.to_str().unwrap()],
    );
    let first = file(before.pid());
    work_recorded(&mut before, &first);
    let after = Worker::new(daemon.command(PROGRAM));
    let gone = after.pid();
    after.end();
    let said = recorder.end();
    assert!(
        said.contains("2 clients") && !said.contains("missing"),
        "{said}"
    );
    before.again();

    // The one that came has everything, from its first call on.
    let all = events(&file(gone));
    let kernels = of(&all, "kernel");
    // The graph's first launch comes in its three nodes.
    assert_eq!(named(&kernels, "churn"), LAUNCHES + 3, "{all:?}");
    assert_eq!(named(&kernels, "graph: churn and 2 more"), 4);
    for kernel in kernels.iter().filter(|kernel| kernel["name"] == "churn") {
        assert_eq!(kernel["args"]["grid"], serde_json::json!([8, 1, 1]));
        assert_eq!(kernel["pid"], gone);
    }
    let copied: u64 = of(&all, "gpu_memcpy")
        .iter()
        .map(|event| event["args"]["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(copied, DATA * 2 + DATA / 2);
    let calls = of(&all, "cuda_driver");
    // Three of them were captured.
    assert_eq!(named(&calls, "cuLaunchKernel"), LAUNCHES + 3);
    assert_eq!(named(&calls, "cuModuleLoadDataEx"), 1);
    let ends = |phase: &str| -> BTreeSet<u64> {
        let arrows = of(&all, "ac2g").into_iter();
        let arrows = arrows.filter(|event| event["ph"] == phase);
        arrows.map(|event| event["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ends("s"), ends("f"));
    assert!(ends("s").len() > LAUNCHES);

    // Of the one that ran already its work since then, and nothing of what it did afterwards.
    let all = events(&first);
    let launches = named(&of(&all, "cuda_driver"), "cuLaunchKernel");
    assert!(launches >= LAUNCHES, "{launches}");
    assert_eq!(named(&of(&all, "kernel"), "churn"), launches);
    assert_eq!(
        of(&all, "cuda_driver")
            .iter()
            .filter(|call| call["name"] == "cuModuleLoadDataEx")
            .count(),
        0
    );

    // It can be recorded again, alone, and the recording ends with it.
    let one = folder.path().join("one");
    let pid = before.pid().to_string();
    let recorder = Recorder::of(&daemon, &["--pid", &pid, "-o", one.to_str().unwrap()]);
    work_recorded(&mut before, &one);
    before.end();
    let said = recorder.ended(true);
    assert!(said.contains("1 client,"), "{said}");
    assert!(named(&of(&events(&one), "kernel"), "churn") >= LAUNCHES);
}

#[test]
fn what_is_asked_for_can_be_or_is_refused() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let said = |arguments: &[&str], pipe: PathBuf| {
        let mut command = Command::new(openmps());
        command.arg("trace").args(arguments);
        let output = command
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, why) in [
        (
            &["--pid", "1", "-o", out][..],
            "process 1 is no client of this daemon",
        ),
        (&["--pid", "0", "-o", out], "0 is not in"),
        (&["--all-processes", "--pid", "1"], "cannot be used with"),
        (&["--all-processes", "--", "true"], "cannot be used with"),
        (&["--all-processes", "--seconds", "-1"], "--seconds"),
        (&["--all-processes", "--seconds=0"], "more than 0 seconds"),
        (
            &["--all-processes", "-o", "/nowhere/out.%p"],
            "there is no folder",
        ),
        (&["--all-processes", "-o", "a%"], "a percent sign is %%"),
        (&["-o", out], "PROGRAM"),
    ] {
        let text = said(arguments, daemon.pipe());
        assert!(text.contains(why), "{arguments:?}: {text}");
    }
    let text = said(&["--all-processes", "-o", out], folder.path().into());
    assert!(text.contains("`openmps control -d` starts one"), "{text}");

    // Nobody is there, and the time ends it.
    let recorder = Recorder::of(&daemon, &["--all-processes", "--seconds", "0.1", "-o", out]);
    let text = recorder.ended(true);
    assert!(
        text.contains("0 clients") && text.contains("-o has no %p"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn names_that_are_there_already_are_left_alone() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(daemon.command(PROGRAM));
    let there = folder.path().join(format!("out.{}", worker.pid()));
    std::fs::write(&there, "mine").unwrap();
    let pattern = folder.path().join("out");
    let recorder = Recorder::of(
        &daemon,
        &["--all-processes", "-o", pattern.to_str().unwrap()],
    );
    let other = folder.path().join(format!("out.{}.1", worker.pid()));
    work_recorded(&mut worker, &other);
    let said = recorder.end();
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    assert!(named(&of(&events(&other), "kernel"), "churn") >= LAUNCHES);
    worker.end();
}

#[test]
fn a_client_has_one_recorder() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut own = daemon.command(PROGRAM);
    own.env("OPENMPS_TRACE", path("own"));
    let mut own = Worker::new(own);
    let pid = own.pid().to_string();
    // It records itself.
    let recorder = Recorder::of(&daemon, &["--pid", &pid, "-o", &path("a")]);
    let said = recorder.ended(true);
    assert!(said.contains("recorded already, by itself"), "{said}");
    own.again();
    own.end();
    let launches = named(&of(&events(Path::new(&path("own"))), "kernel"), "churn");
    assert_eq!(launches, LAUNCHES * 2 + 3);

    // Somebody else has it recorded.
    let mut worker = Worker::new(daemon.command(PROGRAM));
    let pid = worker.pid().to_string();
    let first = Recorder::of(&daemon, &["--pid", &pid, "-o", &path("b")]);
    work_recorded(&mut worker, Path::new(&path("b")));
    let second = Recorder::of(&daemon, &["--pid", &pid, "-o", &path("c")]);
    let said = second.ended(true);
    assert!(said.contains("or for somebody else"), "{said}");
    assert!(first.end().contains("1 client,"));
    worker.end();
}

#[test]
fn who_is_held_to_a_limit_is_drawn_so() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let mut worker = Worker::new(daemon.command(PROGRAM));
    let pid = worker.pid().to_string();
    let words = ["limit", "set", "--client", &pid];
    daemon.control_output(&[&words[..], &["--percentage", "5", "--reserved"]].concat());
    let recorder = Recorder::of(&daemon, &["--pid", &pid, "-o", file.to_str().unwrap()]);
    eventually("it is held back", || {
        worker.again();
        !of(&events_so_far(&file), "gpu_hold").is_empty()
    });
    recorder.end();
    worker.end();
    let all = events(&file);
    let holds = of(&all, "gpu_hold");
    assert!(
        holds
            .iter()
            .all(|hold| hold["name"] == "its limit is reached")
    );
}

#[test]
fn who_does_nothing_is_told_of_and_what_to_do() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::new(daemon.command(PROGRAM));
    let pattern = folder.path().join("out.%p");
    let arguments = ["--all-processes", "--seconds", "0.3", "-o"];
    let record = [&arguments[..], &[pattern.to_str().unwrap()]].concat();
    let said = Recorder::of(&daemon, &record).ended(true);
    assert!(
        said.contains("1 client, 0 records: no file") && said.contains("--seconds N"),
        "{said}"
    );
    worker.end();
    eventually("the client is gone", || daemon.clients().is_empty());
    let said = Recorder::of(&daemon, &record).ended(true);
    assert!(said.contains("no client came in that time"), "{said}");
}

#[test]
fn who_waits_for_others_is_drawn_so() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |pid: u32| folder.path().join(format!("out.{pid}"));
    let mut workers: Vec<Worker> = (0..3)
        .map(|_| Worker::new(daemon.command(PROGRAM)))
        .collect();
    let pattern = folder.path().join("out.%p");
    let recorder = Recorder::of(
        &daemon,
        &["--all-processes", "-o", pattern.to_str().unwrap()],
    );
    let waits_of = |pid: u32| of(&events_so_far(&file(pid)), "gpu_wait").len();
    eventually("somebody waits", || {
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.again());
            }
        });
        workers.iter().any(|worker| waits_of(worker.pid()) > 0)
    });
    recorder.end();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(events(&file(worker.pid())));
        worker.end();
    }
    let tracks = all.iter().filter(|event| event["name"] == "thread_name");
    let waits = tracks.filter(|event| event["args"]["name"].as_str().unwrap().ends_with(" waits"));
    assert!(waits.count() > 0);
}

#[test]
fn a_killed_client_leaves_what_was_recorded() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut worker = Worker::new(daemon.command(PROGRAM));
    let pid = worker.pid().to_string();
    let file = path("out");
    let recorder = Recorder::of(&daemon, &["--pid", &pid, "-o", file.to_str().unwrap()]);
    work_recorded(&mut worker, &file);
    eventually("its kernels are written", || {
        named(&of(&events_so_far(&file), "kernel"), "churn") > 0
    });
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    let said = recorder.ended(true);
    assert!(said.contains("1 client,"), "{said}");
    assert!(named(&of(&events(&file), "kernel"), "churn") > 0);

    // And so does one that records itself.
    let own = path("own");
    let mut command = daemon.command(PROGRAM);
    command.env("OPENMPS_TRACE", &own);
    let mut worker = Worker::new(command);
    eventually("it is written", || {
        named(&of(&events_so_far(&own), "kernel"), "churn") == LAUNCHES + 3
    });
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    assert_eq!(named(&of(&events(&own), "kernel"), "churn"), LAUNCHES + 3);
}

/// A file of that size at most, by RLIMIT_FSIZE, of which the system tells a program by a signal that ends it.
fn with_limit(mut command: Command, bytes: u64) -> Command {
    let limit = rustix::process::Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    // SAFETY: one system call, which is safe to make in a fork's child.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setrlimit(rustix::process::Resource::Fsize, limit)?;
            Ok(())
        });
    }
    command
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // What is recorded of one round is far more.
    const ROOM: u64 = 20_000;
    let is_whole = |file: &Path| {
        assert!(std::fs::metadata(file).unwrap().len() <= ROOM);
        assert!(!events(file).is_empty());
    };

    let mut worker = Worker::new(daemon.command(PROGRAM));
    let pid = worker.pid().to_string();
    let out = path("out");
    let mut command = Command::new(openmps());
    command.args(["trace", "--pid", &pid, "-o", out.to_str().unwrap()]);
    let mut recorder = Recorder::new(&daemon, with_limit(command, ROOM));
    work_recorded(&mut worker, &out);
    let mut said = String::new();
    while !said.contains("ends here: file too large") {
        assert_ne!(recorder.said.read_line(&mut said).unwrap(), 0, "{said}");
    }
    is_whole(&out);
    worker.again();
    worker.end();
    recorder.ended(false);

    // A program that records itself goes on.
    let (own, log) = (path("own"), path("log"));
    let mut command = daemon.command(PROGRAM);
    command
        .env("OPENMPS_TRACE", &own)
        .env("OPENMPS_CLIENT_LOG", &log);
    let mut worker = Worker::new(with_limit(command, ROOM));
    worker.again();
    worker.end();
    is_whole(&own);
    let log = std::fs::read_to_string(&log).unwrap();
    // In some round, or at its end.
    assert!(
        log.contains("the recording ") && log.contains(": file too large"),
        "{log}"
    );
}

#[test]
fn a_user_has_its_own_clients_recorded() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root, to be another user");
    }
    const ADA: u32 = 4242;
    let daemon = Daemon::start_as(&["--multiuser-server"], &[]);
    daemon.open_to_others();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(ADA), Some(ADA)).unwrap();
    let program = daemon.copy_for_others(Path::new(PROGRAM));
    let tool = daemon.copy_for_others(openmps());
    let mut of_root = Worker::new(daemon.command(PROGRAM));
    let mut command = Command::new(&tool);
    command
        .args(["run", "--"])
        .arg(program)
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", folder.path())
        .current_dir("/")
        .uid(ADA)
        .gid(ADA);
    let mut of_ada = Worker::new(command);

    let as_ada = |arguments: &[&str]| {
        let mut command = Command::new(&tool);
        command.arg("trace").args(arguments).current_dir("/");
        command.env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe());
        command.uid(ADA).gid(ADA);
        command
    };
    let pid = of_root.pid().to_string();
    let files = folder.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::os::unix::fs::chown(&files, Some(ADA), Some(ADA)).unwrap();
    let out = files.join("out.%p");
    let out = out.to_str().unwrap();
    let output = as_ada(&["--pid", &pid, "-o", out]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no client of this daemon that you may see"),
        "{said}"
    );

    let recorder = Recorder::new(&daemon, as_ada(&["--all-processes", "-o", out]));
    let file = files.join(format!("out.{}", of_ada.pid()));
    work_recorded(&mut of_ada, &file);
    of_root.again();
    let said = recorder.end();
    assert!(said.contains("1 client,"), "{said}");
    assert_eq!(std::fs::read_dir(&files).unwrap().count(), 1);
    of_ada.end();
    of_root.end();
}
