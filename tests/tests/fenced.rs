//! Fenced clients on the software GPU: a client, a group and a daemon can ask for it, it is shown, and a wrong address is its
//! client's alone. What fences are on an NVIDIA GPU is tested over the fake driver (`engine-nvidia/tests/fences.rs`).

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tests::daemon::{Daemon, succeed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_memories");

/// A program that has memory and waits, once it has it.
struct Waiting(Child);

impl Waiting {
    fn new(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it has not begun");
        Self(child)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn offer(daemon: &Daemon) -> Command {
    let mut command = daemon.command(PROGRAM);
    command.arg("offer");
    command
}

/// Whether the daemon says that the one client there is, is fenced.
fn is_fenced(daemon: &Daemon) -> bool {
    let client = daemon.clients()[0].to_string();
    let shown = daemon.control_output(&["limit", "show", "--client", &client, "--json"]);
    let listed = daemon.control_output(&["ps", "--json"]);
    let says = |text: &str| text.contains("\"fenced\":true") || text.contains("\"fenced\": true");
    assert_eq!(says(&shown), says(&listed), "{shown} {listed}");
    let table = daemon.control_output(&["ps"]);
    assert_eq!(says(&listed), table.contains("ISOLATION"), "{table}");
    says(&listed)
}

#[test]
fn a_wrong_address_of_a_fenced_client_is_its_own() {
    let daemon = Daemon::start();
    let mut fenced = daemon.probe(&["work", "3"]);
    fenced.env("OPENMPS_ISOLATION", "fenced");
    assert_eq!(succeed(&mut fenced), "ok\n");
    let _neighbour = Waiting::new(&mut daemon.probe(&["survive"]));
    let mut wild = daemon.probe(&["wild", "16"]);
    let output = wild.env("OPENMPS_ISOLATION", "fenced").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "error 700\n");
    assert_eq!(succeed(&mut daemon.probe(&["work", "3"])), "ok\n");
}

#[test]
fn a_client_a_group_and_a_daemon_ask_for_it() {
    let daemon = Daemon::start();
    let plain = Waiting::new(&mut offer(&daemon));
    assert!(!is_fenced(&daemon));
    let client = daemon.clients()[0].to_string();
    let refused = daemon.control(&["limit", "set", "--client", &client, "--fenced"]);
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(text.contains("from a client's start on"), "{text}");
    drop(plain);
    let gone = || tests::daemon::eventually("it is gone", || daemon.clients().is_empty());
    gone();
    let fenced = Waiting::new(offer(&daemon).env("OPENMPS_ISOLATION", "fenced"));
    assert!(is_fenced(&daemon));
    drop(fenced);
    gone();
    // What a daemon divides clients by is not for its clients, who may have its environment.
    let divided = Waiting::new(offer(&daemon).env("OPENMPS_ISOLATION", "client"));
    assert!(!is_fenced(&daemon));
    drop(divided);
    gone();
    daemon.control_output(&["group", "add", "a", "--fenced"]);
    let in_group = || {
        let mut command = offer(&daemon);
        let directory = daemon.pipe().join("groups").join("a");
        command.env("CUDA_MPS_PIPE_DIRECTORY", directory);
        command
    };
    let fenced = Waiting::new(&mut in_group());
    assert!(is_fenced(&daemon));
    drop(fenced);
    gone();
    let shown = daemon.control_output(&["limit", "set", "--group", "a", "--no-fenced"]);
    assert!(!shown.contains("fenced"), "{shown}");
    let plain = Waiting::new(&mut in_group());
    assert!(!is_fenced(&daemon));
    drop(plain);
    let shown = daemon.control_output(&["limit", "set", "--group", "a", "--fenced"]);
    assert!(shown.contains("isolation: fenced"), "{shown}");
}

#[test]
fn a_daemon_fences_all_and_what_is_no_isolation_is_refused() {
    let daemon = Daemon::start_as(&["--isolation=user,fenced"], &[]);
    let all = Waiting::new(&mut offer(&daemon));
    assert!(is_fenced(&daemon));
    drop(all);
    let mut wrong = offer(&daemon);
    let output = wrong.env("OPENMPS_ISOLATION", "fense").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    let log = daemon.control_log();
    assert!(log.contains("isolation \"fense\": it is fenced"), "{log}");
}
