//! The limit of a kernel's time: who has a kernel that runs for longer is told so, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use tests::daemon::{Daemon, eventually, openmps, succeed};
use tests::fake_driver;

const PROGRAM: &str = env!("CARGO_BIN_EXE_faults");
const LIMIT: &str = "OPENMPS_KERNEL_TIME_LIMIT";

/// The program `faults` at its task.
struct Talker(Child, BufReader<ChildStdout>);

impl Talker {
    fn start(command: &mut Command, words: &[&str]) -> Self {
        let mut child = command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    /// One whose kernel does not end, in the middle of it.
    fn endless(command: &mut Command) -> Self {
        let mut talker = Self::start(command, &["guilty", "endless-kernel"]);
        assert_eq!(talker.hear(), "ready");
        talker.tell();
        assert_eq!(talker.hear(), "in the middle");
        talker
    }

    fn neighbour(command: &mut Command, work: &str) -> Self {
        let mut talker = Self::start(command, &["neighbour", work]);
        assert_eq!(talker.hear(), "running");
        talker
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn tell(&mut self) {
        writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// What it said last, without its rounds.
    fn last(mut self) -> String {
        drop(self.0.stdin.take());
        let line = self.hear();
        self.0.wait().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        words[..words.len() - 2].join(" ")
    }
}

#[test]
fn a_client_that_is_limited_is_told_and_its_kernel_ends() {
    let daemon = Daemon::start();
    let neighbour = Talker::neighbour(&mut daemon.command(PROGRAM), "kernels");
    let server = daemon.server();
    let limited = Talker::endless(daemon.command(PROGRAM).env(LIMIT, "200ms"));
    let pid = limited.pid();
    assert_eq!(limited.last(), "told 702");
    let log = daemon.server_log();
    let line = log.lines().find(|line| line.contains("error 702"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("Client {pid} ")), "{line}");
    assert!(line.contains("kernel forever ran for 0."), "{line}");
    assert!(line.contains("may run for 200ms"), "{line}");
    assert!(line.contains("No other client is affected"), "{line}");
    assert_eq!(neighbour.last(), "exact");
    assert_eq!(daemon.server(), server, "the server lives");
    eventually("all are gone", || daemon.clients().is_empty());
}

#[test]
fn the_limit_of_a_group_and_of_the_daemon_hold_for_who_says_nothing() {
    let daemon = Daemon::start_with(&[(LIMIT, "300ms")]);
    assert_eq!(
        daemon.control_output(&["get_default_kernel_time_limit"]),
        "300ms\n"
    );
    let of_daemon = Talker::endless(daemon.command(PROGRAM).env_remove(LIMIT));
    assert_eq!(of_daemon.last(), "told 702");
    // A client only shortens it.
    let longer = Talker::endless(daemon.command(PROGRAM).env(LIMIT, "1000s"));
    let shown = daemon.control_output(&["limit", "show", "--client", &longer.pid()]);
    assert!(shown.contains("a kernel: 300ms at most"), "{shown}");
    assert_eq!(longer.last(), "told 702");
    assert!(daemon.server_log().contains("may run for 300ms"));

    daemon.control_output(&["group", "add", "a", "--kernel-time", "150ms"]);
    let shown = daemon.control_output(&["group", "show", "a"]);
    assert!(shown.contains("a kernel: 150ms at most"), "{shown}");
    let of_group = daemon.pipe().join("groups/a");
    let of_group = Talker::endless(
        daemon
            .command(PROGRAM)
            .env_remove(LIMIT)
            .env("CUDA_MPS_PIPE_DIRECTORY", of_group),
    );
    assert_eq!(of_group.last(), "told 702");
    assert!(daemon.server_log().contains("may run for 150ms"));
}

#[test]
fn a_limit_set_while_a_kernel_runs_holds_for_it() {
    let daemon = Daemon::start();
    daemon.control_output(&["group", "add", "a"]);
    let folder = daemon.pipe().join("groups/a");
    let alone = Talker::endless(daemon.command(PROGRAM).env_remove(LIMIT));
    let grouped = Talker::endless(
        daemon
            .command(PROGRAM)
            .env("CUDA_MPS_PIPE_DIRECTORY", folder),
    );
    let set = |time: &str| {
        daemon.control_output(&[
            "limit",
            "set",
            "--client",
            &alone.pid(),
            "--kernel-time",
            time,
        ])
    };
    assert!(set("1000s").contains("a kernel: 1000s at most"));
    assert!(!set("none").contains("a kernel"));
    let wrong = [
        "limit",
        "set",
        "--client",
        &alone.pid(),
        "--kernel-time",
        "soon",
    ];
    let refused = daemon.control(&wrong);
    assert!(!refused.status.success(), "{refused:?}");
    daemon.control_output(&["limit", "set", "--group", "a", "--kernel-time", "100ms"]);
    assert_eq!(grouped.last(), "told 702");
    set("100ms");
    assert_eq!(alone.last(), "told 702");
}

/// However long all of a client's kernels run together.
#[test]
fn many_short_kernels_are_no_long_one() {
    let daemon = Daemon::start();
    let works = ["kernels", "graph"].map(|work| {
        let mut command = daemon.command(PROGRAM);
        Talker::neighbour(command.env(LIMIT, "500ms"), work)
    });
    let ran = |work: &Talker| {
        let mut command = daemon.command(openmps());
        let shown = succeed(command.args(["top", "--json", "--interval=0.1"]));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let clients = shown["devices"][0]["clients"].as_array().unwrap();
        let mut clients = clients.iter();
        let client = clients.find(|client| client["pid"] == work.0.id());
        client.unwrap()["total"]["kernel_seconds"].as_f64().unwrap()
    };
    for work in &works {
        eventually("they ran for longer", || ran(work) > 1.0);
    }
    for work in works {
        assert_eq!(work.last(), "exact");
    }
}

#[test]
fn what_is_no_time_is_refused() {
    let mut daemon = Daemon::start();
    let output = daemon.probe(&["init"]).env(LIMIT, "soon").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("error 80"), "{text}");
    assert!(
        daemon
            .control_log()
            .contains("\"soon\" is not a whole number")
    );
    succeed(&mut daemon.probe(&["init"]));
    daemon.kill();
    let said = daemon.refused(&[], &[(LIMIT, "0s")]);
    assert!(said.contains("\"0s\" is not a whole number"), "{said}");
}

/// NVIDIA's driver cannot end a kernel: the client is told, and ended as `terminate_client` ends one.
#[test]
fn over_a_driver_that_ends_no_kernel_the_client_ends() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake_driver::compile(folder.path(), &["VERSION=13000", "SPINNING=1"]);
    let text = folder.path().join("k.ptx");
    std::fs::write(&text, ".version 7.8\n.visible .entry k() {}").unwrap();
    let daemon = Daemon::start_with(&[
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
    ]);
    let mut command = daemon.probe(&["kernel", text.to_str().unwrap()]);
    let output = command.env(LIMIT, "200ms").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "running\nerror 702\n", "{}", daemon.server_log());
    let log = daemon.server_log();
    assert!(
        log.contains("kernel k on device 0 (Fake GPU) has run for 0."),
        "{log}"
    );
    let log = daemon.control_log();
    assert!(
        log.contains("faulted with error 702: kernel k on device 0"),
        "{log}"
    );
}
