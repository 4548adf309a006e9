//! What a killed client had in memory of any kind is not there for the next one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use tests::daemon::{Daemon, eventually, succeed};
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_remains");

#[test]
fn nothing_of_a_killed_client_is_found_in_any_kind_of_memory() {
    // So small that the next client gets the memory of the one before.
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "256M")]);
    for moment in 0..6 {
        let victim = Talker::start(daemon.command(PROGRAM).arg("fill"));
        victim.kill_after("filled", Duration::from_millis(moment * 5));
        eventually("it is gone", || daemon.clients().is_empty());
        let found = succeed(daemon.command(PROGRAM).arg("look"));
        for kind in [
            "device", "pool", "managed", "virtual", "variable", "host", "array",
        ] {
            assert!(found.contains(&format!("{kind} 0\n")), "{kind}: {found}");
        }
        // Eight blocks of each of six kinds, a variable, and eight looks at both memories of kernels.
        assert_eq!(found.lines().count(), 8 * 6 + 1 + 8 * 2, "{found}");
        assert!(found.lines().all(|line| line.ends_with(" 0")), "{found}");
    }
}
