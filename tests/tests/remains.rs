//! What a killed client had in memory of any kind is not there for the next one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use tests::daemon::{Daemon, eventually, succeed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_remains");

#[test]
fn nothing_of_a_killed_client_is_found_in_any_kind_of_memory() {
    // So small that the next client gets the memory of the one before.
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "256M")]);
    for moment in 0..6 {
        let mut victim = daemon
            .command(PROGRAM)
            .arg("fill")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = victim.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "filled\n");
        std::thread::sleep(Duration::from_millis(moment * 5));
        victim.kill().unwrap();
        victim.wait().unwrap();
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
