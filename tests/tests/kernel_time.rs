//! The limit of a kernel's time: who has a kernel that runs for longer is told so, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::Command;

use serde_json::Value;
use tests::daemon::{Daemon, eventually, openmps, succeed};
use tests::fake_driver::Endless;
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_faults");
const LIMIT: &str = "OPENMPS_KERNEL_TIME_LIMIT";

/// A program whose kernel does not end, in the middle of it.
fn endless(command: &mut Command) -> Talker {
    let mut talker = Talker::start(command.args(["guilty", "endless-kernel"]));
    assert_eq!(talker.hear(), "ready");
    assert_eq!(talker.ask(""), "in the middle");
    talker
}

/// One that works and checks its results.
fn neighbour(command: &mut Command, work: &str) -> Talker {
    let mut talker = Talker::start(command.args(["neighbour", work]));
    assert_eq!(talker.hear(), "running");
    talker
}

/// Whether it was told so in the end, whatever its rounds were.
fn told(talker: Talker, what: &str) {
    let line = talker.last();
    assert!(line.starts_with(&format!("{what} ")), "{line}");
}

#[test]
fn a_client_that_is_limited_is_told_and_its_kernel_ends() {
    let daemon = Daemon::start();
    let neighbour = neighbour(&mut daemon.command(PROGRAM), "kernels");
    let server = daemon.server();
    let limited = endless(daemon.command(PROGRAM).env(LIMIT, "200ms"));
    let pid = limited.id().to_string();
    told(limited, "told 702");
    let log = daemon.server_log();
    let line = log.lines().find(|line| line.contains("error 702"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("Client {pid} ")), "{line}");
    assert!(line.contains("kernel forever ran for "), "{line}");
    assert!(line.contains("may run for 200ms"), "{line}");
    assert!(line.contains("No other client is affected"), "{line}");
    told(neighbour, "exact");
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
    let of_daemon = endless(daemon.command(PROGRAM).env_remove(LIMIT));
    told(of_daemon, "told 702");
    // A client only shortens it.
    let longer = endless(daemon.command(PROGRAM).env(LIMIT, "1000s"));
    let shown = daemon.control_output(&["limit", "show", "--client", &longer.id().to_string()]);
    assert!(shown.contains("a kernel: 300ms at most"), "{shown}");
    told(longer, "told 702");
    assert!(daemon.server_log().contains("may run for 300ms"));

    daemon.control_output(&["group", "add", "a", "--kernel-time", "150ms"]);
    let shown = daemon.control_output(&["group", "show", "a"]);
    assert!(shown.contains("a kernel: 150ms at most"), "{shown}");
    let of_group = daemon.pipe().join("groups/a");
    let of_group = endless(
        daemon
            .command(PROGRAM)
            .env_remove(LIMIT)
            .env("CUDA_MPS_PIPE_DIRECTORY", of_group),
    );
    told(of_group, "told 702");
    assert!(daemon.server_log().contains("may run for 150ms"));
}

#[test]
fn a_limit_set_while_a_kernel_runs_holds_for_it() {
    let daemon = Daemon::start();
    daemon.control_output(&["group", "add", "a"]);
    let folder = daemon.pipe().join("groups/a");
    let alone = endless(daemon.command(PROGRAM).env_remove(LIMIT));
    let grouped = endless(
        daemon
            .command(PROGRAM)
            .env("CUDA_MPS_PIPE_DIRECTORY", folder),
    );
    let set = |time: &str| {
        daemon.control_output(&[
            "limit",
            "set",
            "--client",
            &alone.id().to_string(),
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
        &alone.id().to_string(),
        "--kernel-time",
        "soon",
    ];
    let refused = daemon.control(&wrong);
    assert!(!refused.status.success(), "{refused:?}");
    daemon.control_output(&["limit", "set", "--group", "a", "--kernel-time", "100ms"]);
    told(grouped, "told 702");
    set("100ms");
    told(alone, "told 702");
}

/// However long all of a client's kernels run together.
#[test]
fn many_short_kernels_are_no_long_one() {
    let daemon = Daemon::start();
    let works = ["kernels", "graph"].map(|work| {
        let mut command = daemon.command(PROGRAM);
        neighbour(command.env(LIMIT, "500ms"), work)
    });
    let ran = |work: &Talker| {
        let mut command = daemon.command(openmps());
        let shown = succeed(command.args(["top", "--json", "--interval=0.1"]));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let clients = shown["devices"][0]["clients"].as_array().unwrap();
        let mut clients = clients.iter();
        let client = clients.find(|client| client["pid"] == work.id());
        client.unwrap()["total"]["kernel_seconds"].as_f64().unwrap()
    };
    for work in &works {
        eventually("they ran for longer", || ran(work) > 1.0);
    }
    for work in works {
        told(work, "exact");
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
    let endless = Endless::start(&[], &[]);
    let daemon = &endless.daemon;
    let output = endless.client().env(LIMIT, "200ms").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "running\nerror 702\n", "{}", daemon.server_log());
    let log = daemon.server_log();
    assert!(
        log.contains("kernel k on device 0 (Fake GPU) has run for "),
        "{log}"
    );
    // The client may hear of it before the daemon does.
    eventually("the daemon knows whose kernel it was", || {
        let said = "faulted with error 702, guilty: kernel k on device 0";
        daemon.control_log().contains(said)
    });
}
