//! Whatever one client does or suffers, the others notice nothing, and nothing stays behind.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, eventually, settled_threads_and_files, succeed, threads_and_files};

fn spawn(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a program's first line.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    line
}

fn finished(child: Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn an_illegal_address_is_its_clients_alone() {
    let daemon = Daemon::start();
    let mut innocent = spawn(&mut daemon.probe(&["survive"]));
    first_line(&mut innocent);
    // Nothing, the client's own stack, the server's program, a neighbour's memory, the last byte.
    for address in [
        "16",
        "140737488351232",
        "94000000000000",
        "18725724848128",
        "18446744073709551615",
    ] {
        let output = daemon.probe(&["wild", address]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text == "error 700\n" || text == "error 716\n",
            "{address}: {text}"
        );
    }
    assert_eq!(finished(innocent), "ok\n");
    let log = daemon.server_log();
    assert!(
        log.contains("write_to"),
        "the log names the kernel that faulted:\n{log}"
    );
    assert!(log.contains(". No other client is affected."), "{log}");
}

#[test]
fn clients_killed_at_any_moment_leave_nothing() {
    let daemon = Daemon::start();
    succeed(&mut daemon.probe(&["work", "1"]));
    let server = daemon.server();
    eventually("the first client is gone", || daemon.clients().is_empty());
    let before = settled_threads_and_files(server);
    let mut innocent = spawn(&mut daemon.probe(&["survive"]));
    first_line(&mut innocent);
    let mut moment = 0x2545_F491_4F6C_DD1Du64;
    for _ in 0..200 {
        let mut victim = spawn(&mut daemon.probe(&["busy"]));
        moment ^= moment << 13;
        moment ^= moment >> 7;
        moment ^= moment << 17;
        std::thread::sleep(Duration::from_micros(moment % 60_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    assert_eq!(finished(innocent), "ok\n");
    assert_eq!(daemon.server(), server, "the server lives");
    eventually("all clients are gone", || daemon.clients().is_empty());
    eventually("no thread and no file is left", || {
        threads_and_files(server) == before
    });
    // All memory is back: a client gets as much as the first one could.
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn an_endless_kernel_ends_with_its_client() {
    let daemon = Daemon::start();
    let mut endless = spawn(&mut daemon.probe(&["forever"]));
    first_line(&mut endless);
    assert_eq!(succeed(&mut daemon.probe(&["work", "2"])), "ok\n");
    endless.kill().unwrap();
    endless.wait().unwrap();
    eventually("the client is gone", || daemon.clients().is_empty());
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn whatever_happens_within_a_host_function_or_a_capture_leaves_nothing() {
    let daemon = Daemon::start();
    succeed(&mut daemon.probe(&["work", "1"]));
    let server = daemon.server();
    eventually("the first client is gone", || daemon.clients().is_empty());
    let before = settled_threads_and_files(server);
    for task in ["in-function", "in-capture"] {
        assert_eq!(succeed(&mut daemon.probe(&[task, "exit"])), "ok\n");
        assert_eq!(succeed(&mut daemon.probe(&[task, "fork"])), "ok\n");
        let mut victim = spawn(&mut daemon.probe(&[task, "stay"]));
        assert_eq!(first_line(&mut victim), "in the middle\n");
        // Another client captures and runs meanwhile.
        assert_eq!(succeed(&mut daemon.probe(&["in-capture", "fork"])), "ok\n");
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    eventually("all clients are gone", || daemon.clients().is_empty());
    eventually("no thread and no file is left", || {
        threads_and_files(server) == before
    });
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn a_worker_that_keeps_the_socket_does_not_keep_the_memory() {
    let daemon = Daemon::start();
    let text = succeed(&mut daemon.probe(&["worker"]));
    let worker: i32 = text
        .lines()
        .next()
        .unwrap()
        .strip_prefix("worker ")
        .unwrap()
        .parse()
        .unwrap();
    eventually("the client is gone although its worker lives", || {
        daemon.clients().is_empty()
    });
    let state = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    assert!(
        state.contains(") S "),
        "the worker sleeps, and is no zombie: {state}"
    );
    let worker = Pid::from_raw(worker).unwrap();
    kill_process(worker, Signal::KILL).expect("the worker lived that long");
}

#[test]
fn a_killed_server_is_an_error_and_the_next_client_gets_a_new_one() {
    let daemon = Daemon::start();
    let mut client = spawn(&mut daemon.probe(&["busy"]));
    first_line(&mut client);
    let server = daemon.server();
    kill_process(Pid::from_raw(server.cast_signed()).unwrap(), Signal::KILL).unwrap();
    // CUDA_ERROR_MPS_RPC_FAILURE
    assert_eq!(finished(client), "error 806\n");
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    assert_ne!(daemon.server(), server);
}

#[test]
fn a_killed_daemon_lets_its_clients_go_on() {
    let mut daemon = Daemon::start();
    let mut client = spawn(&mut daemon.probe(&["survive"]));
    first_line(&mut client);
    daemon.kill();
    assert_eq!(finished(client), "ok\n");
    daemon.restart();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
}
