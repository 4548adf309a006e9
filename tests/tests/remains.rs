//! What a killed client had in memory of any kind is not there for the next one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use tests::daemon::{Daemon, eventually, succeed};
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_remains");

/// Kinds of which eight blocks are looked at.
const BLOCKS: [&str; 9] = [
    "device", "pool", "managed", "virtual", "imported", "host", "array", "shared", "local",
];
/// Those that are one.
const ONE: [&str; 2] = ["variable", "staging"];

/// What was found, a line a block: as many as there are, and so many words of the pattern in each, as `is_right` has it.
fn check(found: &str, is_right: impl Fn(usize) -> bool) {
    for line in found.lines() {
        let (_, count) = line.split_once(' ').unwrap();
        assert!(is_right(count.parse().unwrap()), "{line} of {found}");
    }
    let count = |kind: &str| {
        let lines = found.lines();
        lines
            .filter(|line| line.split(' ').next() == Some(kind))
            .count()
    };
    for (kinds, many) in [(&BLOCKS[..], 8), (&ONE, 1)] {
        for kind in kinds {
            assert_eq!(count(kind), many, "{kind}: {found}");
        }
    }
    assert_eq!(found.lines().count(), 8 * BLOCKS.len() + ONE.len());
}

#[test]
fn nothing_of_a_killed_client_is_found_in_any_kind_of_memory() {
    // So small that the next client gets the memory of the one before.
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "256M")]);
    for moment in 0..6 {
        let victim = Talker::start(daemon.command(PROGRAM).arg("fill"));
        victim.kill_after("filled", Duration::from_millis(moment * 5));
        eventually("it is gone", || daemon.clients().is_empty());
        let found = succeed(daemon.command(PROGRAM).arg("look"));
        check(&found, |count| count == 0);
    }
}

/// Who looks as above, and has what is looked for, finds it everywhere: what somebody had left would be seen.
#[test]
fn what_is_there_is_found() {
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "256M")]);
    let found = succeed(daemon.command(PROGRAM).arg("find"));
    check(&found, |count| count > 0);
}
