//! Which devices a daemon has: CUDA_VISIBLE_DEVICES in its environment, and in a container
//! NVIDIA_VISIBLE_DEVICES.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tests::daemon::{Daemon, control_at, eventually, openmps, succeed};

/// A server's devices: the place on the bus of each, in its order.
fn devices(pipe: &std::path::Path) -> Vec<String> {
    let user = getuid().as_raw().to_string();
    let started = control_at(pipe, &["start_server", "-uid", &user]);
    assert!(started.status.success(), "{started:?}");
    let mut text = String::new();
    eventually("the server tells of its devices", || {
        let said = control_at(pipe, &["device_query", "--json"]);
        text = String::from_utf8_lossy(&said.stdout).into_owned();
        text.contains("\"pci\"")
    });
    // The first of the answer's blocks is what programs get; each server has one of its own.
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let first = answer[0]["devices"].as_array().unwrap();
    first
        .iter()
        .map(|device| device["pci"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_daemon_counts_anew_what_is_visible() {
    let daemon = Daemon::start_with(&[
        ("OPENMPS_SOFT_DEVICES", "3"),
        ("CUDA_VISIBLE_DEVICES", "2,0"),
    ]);
    assert_eq!(devices(&daemon.pipe()), ["5000:00:02.0", "5000:00:00.0"]);
    // A program numbers what the daemon has, and chooses among that.
    let mut program = daemon.probe(&["work"]);
    succeed(program.env("CUDA_VISIBLE_DEVICES", "1"));
}

/// A daemon that is started for a program has all devices, and the program the visible ones.
#[test]
fn what_is_visible_is_chosen_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(openmps());
    demo.args(["demo", "--bodies", "256", "--iterations", "1"])
        .env("TMPDIR", folder.path())
        .env("OPENMPS_SOFT_DEVICES", "2")
        .env("CUDA_VISIBLE_DEVICES", "1");
    let text = succeed(&mut demo);
    assert_eq!(
        text.matches("256 bodies, total time for").count(),
        // Together, and one after another.
        6,
        "{text}"
    );
}

/// `openmps compose daemon` over two devices.
fn in_a_container(folder: &std::path::Path, visible: &str) -> Command {
    let mut command = Command::new(openmps());
    command
        .args(["compose", "daemon"])
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
        .env("OPENMPS_STATE_DIRECTORY", folder)
        .env("OPENMPS_SOFT_DEVICES", "2")
        .env("NVIDIA_VISIBLE_DEVICES", visible)
        .stdin(Stdio::null());
    command
}

#[test]
fn a_containers_daemon_lives_on_when_nobody_reads_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = in_a_container(folder.path(), "all");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut daemon = Running(child);
    let pipe = folder.path().join("pipe");
    eventually("the daemon answers", || {
        control_at(&pipe, &["get_server_list"]).status.success()
    });
    assert_eq!(devices(&pipe).len(), 2);
    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    assert!(!control_at(&pipe, &["get_server_list"]).status.success());
}

#[test]
fn a_reader_that_has_seen_enough_causes_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("lib");
    let library = library.to_str().unwrap();
    for words in [
        &[
            "cdi",
            "generate",
            "--output",
            "-",
            "--library-directory",
            library,
        ][..],
        &["completion", "bash"],
        &["control", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(openmps());
        command.args(words).stdout(writer).stdin(Stdio::null());
        command.env("CUDA_MPS_PIPE_DIRECTORY", folder.path());
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{words:?}: {said}");
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_containers_daemon_has_the_devices_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let printed = folder.path().join("printed");
    let out = std::fs::File::create(&printed).unwrap();
    let daemon = Running(
        in_a_container(folder.path(), "1")
            .stdout(out)
            .spawn()
            .unwrap(),
    );
    let pipe = folder.path().join("pipe");
    eventually("the daemon answers", || {
        control_at(&pipe, &["get_server_list"]).status.success()
    });
    assert_eq!(devices(&pipe), ["5000:00:01.0"]);
    let text = std::fs::read_to_string(&printed).unwrap();
    assert!(
        text.contains("- 0, 00005000:00:01.0, OpenMPS software GPU, Default\n"),
        "{text}"
    );
    drop(daemon);

    for (visible, why) in [("none", "no GPU"), ("7", "there is no GPU \"7\"")] {
        let output = in_a_container(folder.path(), visible).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
}
