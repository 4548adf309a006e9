//! What several programs have together, and what changes while they run, on the software GPU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::Command;

use tests::daemon::{Daemon, eventually, succeed};
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_memories");

/// A program in a group.
fn in_group(daemon: &Daemon, group: &str, arguments: &[&str]) -> Command {
    let mut command = daemon.command(PROGRAM);
    let directory = daemon.pipe().join("groups").join(group);
    command
        .args(arguments)
        .env("CUDA_MPS_PIPE_DIRECTORY", directory);
    command
}

/// Bytes of the device that a group has taken.
fn used(daemon: &Daemon, group: &str) -> u64 {
    let text = daemon.control_output(&["group", "show", group, "--json"]);
    let (_, rest) = text.split_once("\"used\":").unwrap();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn every_way_to_memory_obeys_a_groups_quota() {
    let daemon = Daemon::start();
    daemon.control_output(&["group", "add", "a", "--memory", "0=64M"]);
    let mut quota = in_group(&daemon, "a", &["quota"]);
    assert_eq!(succeed(&mut quota), "ok\n");
    eventually("all of it is back", || used(&daemon, "a") == 0);
}

#[test]
fn memory_that_outlives_its_owner_still_counts_for_the_group() {
    let daemon = Daemon::start();
    daemon.control_output(&["group", "add", "a", "--memory", "0=64M"]);
    let mut owner = Talker::start(&mut in_group(&daemon, "a", &["offer"]));
    let offered = owner.hear();
    owner.hear();
    let mut user = Talker::start(&mut in_group(&daemon, "a", &["use"]));
    assert_eq!(user.ask(&offered), "open");
    let both = used(&daemon, "a");
    owner.kill();
    eventually("the owner is gone", || daemon.clients().len() == 1);
    let left = used(&daemon, "a");
    assert!(
        left >= 8192 && left < both,
        "the block that is open: {left} of {both}"
    );
    assert_eq!(user.ask("close"), "closed");
    eventually("it is back", || used(&daemon, "a") < left);
    user.kill();
    eventually("all of it is back", || used(&daemon, "a") == 0);
}

#[test]
fn a_running_programs_share_changes_at_once() {
    let daemon = Daemon::start();
    let mut program = daemon.command(PROGRAM);
    program.args(["offer"]);
    let mut program = Talker::start(&mut program);
    program.hear();
    program.hear();
    let client = daemon.clients()[0].to_string();
    let set = |words: &[&str]| {
        let words = [&["limit", "set", "--client", &client], words].concat();
        daemon.control_output(&words)
    };
    assert!(set(&["--percentage", "25"]).contains("25.0 %"));
    assert!(set(&["--reserved"]).contains("25.0 %, reserved"));
    assert_eq!(program.ask("write"), "written", "and it goes on");
    assert!(set(&["--no-reserved", "--priority", "1"]).contains("priority 1"));
    daemon.control_output(&["group", "add", "a", "--percentage", "50", "--reserved"]);
    let refused = daemon.control(&["group", "add", "b", "--percentage", "60", "--reserved"]);
    assert!(!refused.status.success(), "more than there is");
    program.kill();
}

#[test]
fn programs_run_in_the_partition_that_they_name() {
    let daemon = Daemon::start_as(&["-S"], &[]);
    let devices = daemon.control_output(&["lspart"]);
    let row = devices.lines().nth(2).unwrap();
    let fields: Vec<&str> = row.split_whitespace().collect();
    let (gpu, chunks) = (fields[0], fields[1].parse::<u32>().unwrap());
    let made = daemon.control_output(&["sm_partition", "add", gpu, "1"]);
    assert!(
        made.starts_with("Partition GPU-") && made.ends_with("/1 created\n"),
        "{made}"
    );
    let mut program = daemon.command(PROGRAM);
    program
        .args(["free"])
        .env("CUDA_MPS_SM_PARTITION", format!("{gpu}/1"));
    assert!(succeed(&mut program).contains("ok"));
    program.env_remove("CUDA_MPS_SM_PARTITION");
    let output = program.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("915"), "{text}");
    let too_many = (chunks + 1).to_string();
    let output = daemon.control(&["sm_partition", "add", gpu, &too_many]);
    assert!(!output.status.success());
}

/// What `memories free` says under a daemon.
fn free(daemon: &Daemon) -> (bool, String) {
    let mut program = daemon.command(PROGRAM);
    let output = program.arg("free").output().unwrap();
    let both = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&both).into_owned(),
    )
}

#[test]
fn compute_modes_are_kept_to() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().display().to_string();
    let environment = [("OPENMPS_STATE_DIRECTORY", &*directory)];
    let first = Daemon::start_as(&["--compute-mode=EXCLUSIVE_PROCESS"], &environment);
    let mut holder = first.command(PROGRAM);
    holder.args(["offer"]);
    let mut holder = Talker::start(&mut holder);
    holder.hear();
    holder.hear();
    assert!(free(&first).0, "the same server's next client");
    // Another daemon's server is another process.
    let second = Daemon::start_with(&environment);
    let (served, text) = free(&second);
    assert!(!served && text.contains("46"), "{text}");
    holder.kill();
    drop(first);
    let (served, text) = free(&second);
    assert!(served, "everybody's again: {text}");
    drop(second);
    let third = Daemon::start_as(&["--compute-mode=PROHIBITED"], &environment);
    let (served, text) = free(&third);
    assert!(!served && text.contains("46"), "{text}");
    drop(third);
    // What cannot be read might forbid it.
    let file = state.path().join("compute-modes.json");
    std::fs::write(&file, "{").unwrap();
    let fourth = Daemon::start_with(&environment);
    let (served, text) = free(&fourth);
    assert!(!served && text.contains("46"), "{text}");
    let why = format!("gets no context on device 0: {} holds no", file.display());
    assert!(fourth.server_log().contains(&why));
    std::fs::remove_file(&file).unwrap();
    let (served, text) = free(&fourth);
    assert!(served, "{text}");
}
