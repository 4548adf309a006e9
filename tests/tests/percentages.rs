//! Active thread percentages as a program meets them: of the daemon, of the client, and of each context.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use tests::daemon::{Daemon, succeed};

const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const EACH: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";

/// A daemon whose device has 8 multiprocessors.
fn daemon(arguments: &[&str]) -> Daemon {
    Daemon::start_as(arguments, &[("OPENMPS_SOFT_WORKERS", "8")])
}

/// What a program says whose contexts have these percentages, in a line.
fn contexts(daemon: &Daemon, environment: &[(&str, &str)], percentages: &[&str]) -> String {
    let mut program = daemon.probe(&["contexts"]);
    program.args(percentages).envs(environment.iter().copied());
    let said = succeed(&mut program);
    said.trim_end().replace('\n', ", ")
}

#[test]
fn each_context_has_its_own_where_that_was_asked_for() {
    let daemon = daemon(&[]);
    let said = contexts(
        &daemon,
        &[(EACH, "1"), (PERCENTAGE, "25")],
        &["*", "50", "100", "33.3", "0.01", "-", "*"],
    );
    // The device is told of as it is: what the client started with is the first context's alone.
    assert_eq!(
        said,
        "device 8, * 2 2, 50 4 4, 100 8 8, 33.3 2 2, 0.01 1 1, - 8 8, * 8 8, ok"
    );
    // What does not parse refuses the context, and not the next.
    let said = contexts(&daemon, &[(EACH, "1")], &["junk", "0", "101", "50"]);
    assert_eq!(
        said,
        "device 8, junk error 1, 0 error 1, 101 error 1, 50 4 4, ok"
    );
    // Of two wishes the lower holds.
    let said = contexts(&daemon, &[(EACH, "1")], &["50/2", "50/6", "-/6"]);
    assert_eq!(said, "device 8, 50/2 2 2, 50/6 4 4, -/6 6 6, ok");
}

#[test]
fn what_the_server_allows_is_not_exceeded() {
    let daemon = daemon(&[]);
    daemon.control_output(&["set_default_active_thread_percentage", "50"]);
    let said = contexts(&daemon, &[(EACH, "1")], &["80", "50", "25", "-"]);
    // A percentage is of the whole device, wherever it is given.
    assert_eq!(said, "device 4, 80 4 4, 50 4 4, 25 2 2, - 4 4, ok");
    let said = contexts(&daemon, &[(PERCENTAGE, "25")], &["-"]);
    assert_eq!(said, "device 2, - 2 2, ok", "as it is for a client");
}

#[test]
fn otherwise_a_process_keeps_the_one_that_it_started_with() {
    let daemon = daemon(&[]);
    for each in [None, Some((EACH, "0")), Some((EACH, ""))] {
        let environment: Vec<_> = each.into_iter().chain([(PERCENTAGE, "50")]).collect();
        let said = contexts(&daemon, &environment, &["25", "100", "-", "junk"]);
        assert_eq!(said, "device 4, 25 4 4, 100 4 4, - 4 4, junk 4 4, ok");
    }
}

#[test]
fn in_a_static_partition_they_count_for_nothing() {
    let daemon = daemon(&["-S"]);
    let devices = daemon.control_output(&["device_query", "--csv"]);
    let uuid = devices.split(',').find(|word| word.starts_with("GPU-"));
    let created = daemon.control_output(&["sm_partition", "add", uuid.unwrap(), "6"]);
    let partition = created.split(' ').nth(1).unwrap();
    let said = contexts(
        &daemon,
        &[(EACH, "1"), ("CUDA_MPS_SM_PARTITION", partition)],
        &["50", "1", "-"],
    );
    // %nsmid is the whole device's there.
    assert_eq!(said, "device 6, 50 6 8, 1 6 8, - 6 8, ok");
}
