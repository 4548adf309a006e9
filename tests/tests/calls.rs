//! Wrong arguments get the errors that NVIDIA's driver gives.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use tests::daemon::Daemon;

/// The file holds NVIDIA's own answers; it says how they were taken.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/calls/wrong_arguments.txt");

#[test]
fn wrong_arguments_get_the_errors_that_nvidia_gives() {
    let daemon = Daemon::start();
    let output = daemon
        .command(env!("CARGO_BIN_EXE_calls"))
        .arg(FILE)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    // Something was compared at all.
    let same: u32 = text
        .lines()
        .last()
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap();
    assert!(same >= 150, "{text}");
}
