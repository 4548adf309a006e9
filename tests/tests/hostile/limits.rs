//! Clients and servers that the kernel allows little.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit, setrlimit};
use tests::daemon::{Daemon, eventually, openmps, succeed};
use tests::hostile::client::connect;

use crate::scene::Scene;

fn limit(most: u64) -> Rlimit {
    Rlimit {
        current: Some(most),
        maximum: Some(most),
    }
}

/// Runs a program with a limit, to whatever end it comes, and gives that.
fn run_within(command: &mut Command, resource: Resource, most: u64) -> std::process::ExitStatus {
    // SAFETY: a system call, which a child may make before it runs its program.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(resource, limit(most))?));
    }
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = silent.stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("with {most} of {resource:?} a program comes to no end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_that_may_open_few_files_work_or_fail_and_harm_nobody() {
    let scene = Scene::start();
    let mut worked = 0;
    for most in [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 32, 48, 64] {
        let mut program = scene.daemon.probe(&["work", "2"]);
        let status = run_within(&mut program, Resource::Nofile, most);
        assert_eq!(status.signal(), None, "{most} files: {status}");
        worked += u32::from(status.success());
    }
    assert!(worked > 0, "none, though 64 files are enough");
    scene.nobody_noticed();
}

#[test]
fn programs_with_few_addresses_or_short_files_work_or_fail_and_harm_nobody() {
    let scene = Scene::start();
    for bytes in [1 << 30, 16 << 30, 40 << 30] {
        let mut program = scene.daemon.probe(&["work", "2"]);
        let status = run_within(&mut program, Resource::As, bytes);
        // Rust aborts where there is no memory; what must not be is an access to what is not there.
        let signal = status.signal();
        assert!(
            signal.is_none_or(|signal| signal == libc::SIGABRT),
            "{bytes} bytes: {status}"
        );
    }
    for bytes in [0, 4096, 1 << 20] {
        let mut program = scene.daemon.probe(&["work", "2"]);
        run_within(&mut program, Resource::Fsize, bytes);
    }
    scene.nobody_noticed();
}

/// A daemon that may open few files, as a service's limits have it, in front of more strangers than it can hold.
#[test]
fn strangers_that_take_all_of_a_daemons_files_are_waited_out() {
    let daemon = Daemon::start();
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    prlimit(pid, Resource::Nofile, limit(72)).unwrap();
    let scene = Scene::with(daemon);
    let strangers: Vec<_> = (0..200).map(|_| connect(&scene.daemon.pipe())).collect();
    drop(strangers);
    eventually("a command is heard again", || {
        scene.daemon.control(&["get_server_list"]).status.success()
    });
    scene.nobody_noticed();
}

/// What the first client would need, a daemon that can never have it says when it is started.
#[test]
fn a_daemon_that_cannot_serve_says_so_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for (resource, most, lifts) in [
        (Resource::Fsize, 0, "LimitFSIZE=infinity"),
        (Resource::Fsize, 1 << 30, "LimitFSIZE=infinity"),
        (Resource::As, 1 << 30, "LimitAS=infinity"),
    ] {
        for mode in ["-f", "-d"] {
            let mut command = Command::new(openmps());
            command
                .args(["control", mode])
                .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
                .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"));
            // SAFETY: a system call, which a child may make before it runs its program.
            unsafe {
                command.pre_exec(move || Ok(setrlimit(resource, limit(most))?));
            }
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let what = format!(
                "{mode} with {most} of {resource:?}: {}: {said}",
                output.status
            );
            assert_eq!(output.status.code(), Some(1), "{what}");
            assert!(said.contains(lifts), "{what}");
        }
    }
}

/// Files that may not become longer, from some moment on: log lines are lost, and clients are told that there is
/// no memory. When that is over, all is well again.
#[test]
fn a_daemon_and_its_server_outlive_files_that_cannot_grow() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    let processes = [daemon.pid(), daemon.server()];
    let have = |current| {
        for pid in processes {
            let pid = Pid::from_raw(pid.cast_signed());
            let maximum = None;
            prlimit(pid, Resource::Fsize, Rlimit { current, maximum }).unwrap();
        }
    };
    for most in [0, 1 << 20] {
        have(Some(most));
        let program = daemon.probe(&["init"]).stdin(Stdio::null()).output();
        let program = program.unwrap();
        let text = String::from_utf8_lossy(&program.stdout);
        assert_eq!(text, "error 808\n", "{most} bytes: {program:?}");
        daemon.control_output(&["get_server_list"]);
    }
    have(None);
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    assert_eq!([daemon.pid(), daemon.server()], processes);
}

/// A server that may open few files or map little: it serves, or clients are told that there is none.
#[test]
fn servers_with_little_serve_or_clients_are_told_that_there_is_none() {
    for (resource, most) in [
        (Resource::Nofile, 32),
        (Resource::Nofile, 48),
        (Resource::As, 1 << 30),
        (Resource::Fsize, 0),
        (Resource::Stack, 256 << 10),
    ] {
        let daemon = Daemon::start();
        let pid = Pid::from_raw(daemon.pid().cast_signed());
        prlimit(pid, resource, limit(most)).unwrap();
        let program = daemon.probe(&["init"]).stdin(Stdio::null()).output();
        let program = program.unwrap();
        let text = String::from_utf8_lossy(&program.stdout);
        assert!(
            text == "ok\n" || text.starts_with("error "),
            "{resource:?} of {most}: {program:?}"
        );
        eventually(&format!("a command with {most} of {resource:?}"), || {
            daemon.control(&["get_server_list"]).status.success()
        });
    }
}
