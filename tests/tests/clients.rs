//! Programs that share a device, and what they may expect of it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use tests::daemon::{Daemon, eventually, openmps, succeed};

#[test]
fn one_program_launches_copies_and_checks() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["work"])), "ok\n");
}

#[test]
fn memory_is_given_limited_and_taken_back() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn events_order_streams_and_tell_time() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["events"])), "ok\n");
}

#[test]
fn sixty_four_programs_at_once_get_their_own_results() {
    let daemon = Daemon::start();
    let children: Vec<Child> = (0..64)
        .map(|_| {
            daemon
                .probe(&["work", "3"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
    }
}

#[test]
fn streams_that_wait_for_each_other_finish() {
    let daemon = Daemon::start();
    for pairs in ["1", "20"] {
        assert_eq!(
            succeed(&mut daemon.probe(&["streams", pairs])),
            "ok\n",
            "{pairs} pairs"
        );
    }
}

#[test]
fn streams_that_wait_for_each_other_finish_among_forty_programs() {
    let daemon = Daemon::start();
    let children: Vec<Child> = (0..40)
        .map(|_| {
            daemon
                .probe(&["streams", "2"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
    }
}

#[test]
fn those_that_wait_for_each_other_in_device_memory_finish_among_two_hundred_others() {
    let daemon = Daemon::start();
    let mut others: Vec<Child> = (0..200)
        .map(|index| {
            // Half of them have kernels that never end, the others only memory.
            let task = if index % 2 == 0 { "forever" } else { "hold" };
            let mut probe = daemon.probe(&[task]);
            probe.stdin(Stdio::piped()).stdout(Stdio::piped());
            probe.spawn().unwrap()
        })
        .collect();
    for other in &mut others {
        let mut line = String::new();
        let mut output = BufReader::new(other.stdout.as_mut().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended");
    }
    let mut pair = ["first", "second"].map(|role| {
        let mut command = daemon.command(env!("CARGO_BIN_EXE_memories"));
        command.args(["meet", role]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    });
    let handles = pair.each_mut().map(|(_, output)| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    });
    for ((child, _), handle) in pair.iter_mut().zip(handles.iter().rev()) {
        let input = child.stdin.as_mut().unwrap();
        input.write_all(handle.as_bytes()).unwrap();
    }
    for (child, output) in &mut pair {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ok\n");
        assert!(child.wait().unwrap().success());
    }
    // Two streams, and two threads.
    for task in [&["streams", "1"][..], &["threads"]] {
        assert_eq!(succeed(&mut daemon.probe(task)), "ok\n", "{task:?}");
    }
    eventually("the others, and they alone, are there", || {
        daemon.clients().len() == others.len()
    });
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

#[test]
fn threads_that_wait_for_each_other_finish() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["threads"])), "ok\n");
}

#[test]
fn what_kernels_print_comes_from_their_own_program() {
    const LAUNCHES: usize = 100;
    let daemon = Daemon::start();
    let numbers = [11, 22, 33, 44];
    let printers = numbers.map(|number| {
        daemon
            .command(env!("CARGO_BIN_EXE_printer"))
            .args([number.to_string(), LAUNCHES.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for (number, printer) in numbers.into_iter().zip(printers) {
        let output = printer.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(output.status.success());
        // Each thread's line of every launch, and nobody else's.
        for thread in 0..32 {
            let line = format!("{number} {thread}");
            let count = lines.iter().filter(|seen| **seen == line).count();
            assert_eq!(count, LAUNCHES, "{line}");
        }
        assert_eq!(lines.len(), 32 * LAUNCHES, "{number}");
    }
}

#[test]
fn a_thread_that_is_stopped_anywhere_holds_up_no_other_stream() {
    let daemon = Daemon::start();
    let mut frozen = daemon.command(env!("CARGO_BIN_EXE_frozen"));
    assert_eq!(succeed(&mut frozen), "ok\n");
}

#[test]
fn a_forked_child_is_not_initialized_and_its_parent_goes_on() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["fork"])), "ok\n");
}

#[test]
fn a_child_forked_before_cuinit_works() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["fork-before"])), "ok\n");
}

#[test]
fn a_function_that_is_not_built_is_named_once_in_the_log() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["absent"])), "ok\n");
    eventually("the log names it", || {
        daemon.server_log().contains("cuMulticastCreate")
    });
    eventually("the client is gone", || daemon.clients().is_empty());
    let log = daemon.server_log();
    assert_eq!(log.matches("cuMulticastCreate").count(), 1, "{log}");
}

#[test]
fn a_moved_binary_finds_its_library() {
    let folder = tempfile::tempdir().unwrap();
    let moved = folder.path().join("elsewhere");
    std::fs::copy(openmps(), &moved).unwrap();
    // No daemon, no pipe directory: it starts one for the program. An empty variable names none.
    for empty in [false, true] {
        let mut command = std::process::Command::new(&moved);
        command
            .args(["run", "--"])
            .arg(tests::daemon::probe())
            .arg("work")
            .env("HOME", folder.path())
            .env_remove("CUDA_MPS_PIPE_DIRECTORY");
        if empty {
            command.env("CUDA_MPS_PIPE_DIRECTORY", "");
        }
        assert_eq!(succeed(&mut command), "ok\n");
    }
}
