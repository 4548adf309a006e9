//! What the kernel refuses to the daemon and to servers, as it tells by itself, and whom it refuses nothing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::Command;

use sandbox::{Kernel, ProcessState, VARIABLE};
use tests::daemon::{Daemon, eventually, openmps};
use tests::skipped::skipped;

/// How many filters a process has beyond those of this one, which a container's runtime may have given.
fn filters(pid: u32) -> Option<u32> {
    let own = ProcessState::of(std::process::id()).unwrap().filters?;
    Some(ProcessState::of(pid).unwrap().filters? - own)
}

/// Of the daemon of a test.
fn pid_of(daemon: &Daemon) -> u32 {
    let text = std::fs::read_to_string(daemon.pipe().join("nvidia-cuda-mps-control.pid"));
    text.unwrap().trim().parse().unwrap()
}

/// Whether this kernel can do what is tested; says so if not.
fn kernel_filters() -> bool {
    let can = Kernel::running().filters_calls && filters(std::process::id()).is_some();
    if !can {
        skipped("this kernel has no seccomp filters, or does not count them");
    }
    can
}

#[test]
fn daemon_and_server_are_filtered_and_programs_are_not() {
    if !kernel_filters() {
        return;
    }
    let daemon = Daemon::start();
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // One for the daemon and what it starts; a server has two more, in all threads.
    assert!(
        ProcessState::of(pid_of(&daemon))
            .unwrap()
            .calls_are_filtered
    );
    assert_eq!(filters(pid_of(&daemon)), Some(1));
    assert!(
        ProcessState::of(daemon.server())
            .unwrap()
            .calls_are_filtered
    );
    assert_eq!(filters(daemon.server()), Some(3));
    // A program has what it would have without us, also one that a daemon was started for.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find(|line| line.starts_with("Seccomp_filters"))
        .unwrap();
    let grep = ["grep", "Seccomp_filters", "/proc/self/status"];
    let under = daemon.command(grep[0]).args(&grep[1..]).output().unwrap();
    let private = Command::new(openmps())
        .args(["run", "--"])
        .args(grep)
        .env_remove("CUDA_MPS_PIPE_DIRECTORY")
        .output()
        .unwrap();
    for output in [under, private] {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.trim(), own, "{output:?}");
    }
    let log = daemon.server_log();
    assert!(log.contains("System calls are filtered"), "{log}");
    let files = match Kernel::running().landlock {
        0 => "Files are not restricted: this kernel has no Landlock",
        version if version < 6 => "Files are restricted in part",
        _ => "Files are restricted: ",
    };
    assert!(log.contains(files), "{log}");
    let doctor = Command::new(openmps())
        .arg("doctor")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let names = format!("daemon {}, server {}", pid_of(&daemon), daemon.server());
    assert!(
        said.contains(&format!("system calls are filtered of {names}")),
        "{said}"
    );
}

#[test]
fn an_operator_can_turn_it_off_and_is_told() {
    if !kernel_filters() {
        return;
    }
    let mut daemon = Daemon::start_with(&[(VARIABLE, "off")]);
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(filters(pid_of(&daemon)), Some(0));
    assert_eq!(filters(daemon.server()), Some(0));
    let off = format!("System calls are not filtered: {VARIABLE}=off");
    for log in [daemon.control_log(), daemon.server_log()] {
        assert!(log.contains(&off), "{log}");
    }
    let doctor = Command::new(openmps())
        .arg("doctor")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("system calls are not filtered of"), "{said}");
    // What is neither is no word for "off".
    daemon.kill();
    let said = daemon.refused(&[], &[(VARIABLE, "of")]);
    assert!(said.contains("neither on, off nor strict"), "{said}");
    daemon.restart();
}

/// A server goes on reading what is made after its start, where it reads it.
#[test]
fn compute_modes_that_are_set_later_hold() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("not/there");
    let state = state.to_str().unwrap();
    let daemon = Daemon::start_with(&[("OPENMPS_STATE_DIRECTORY", state)]);
    let attach = || daemon.probe(&["init"]).output().unwrap();
    let output = attach();
    assert!(output.status.success(), "{output:?}");
    let prohibited = Command::new(openmps())
        .args(["smi", "-c", "PROHIBITED"])
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("OPENMPS_STATE_DIRECTORY", state)
        .output()
        .unwrap();
    assert!(prohibited.status.success(), "{prohibited:?}");
    let output = attach();
    assert!(!output.status.success(), "{output:?}");
}

/// Who takes a server over ends it by the first thing that no server does, and the daemon says how it ended.
#[test]
fn the_log_tells_of_a_server_that_did_what_nobody_is_to_do() {
    let daemon = Daemon::start();
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let server = daemon.server();
    let pid = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::SYS).unwrap();
    let line =
        format!("Server {server} was ended by the kernel for a system call that no server makes");
    eventually("the daemon says it", || {
        daemon.control_log().contains(&line)
    });
}
