//! NVIDIA's driver as it must not be, and as it is made to fail: what programs and logs say.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::PathBuf;
use std::process::Command;

use tests::daemon::{Daemon, PATIENCE, eventually};

/// A driver of our own making, with the definitions that its text tells of.
fn fake(folder: &tempfile::TempDir, definitions: &[&str]) -> PathBuf {
    let path = folder.path().join("libcuda.so.1");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine-nvidia/tests/fake/driver.c"
    );
    let definitions = definitions.iter().map(|name| format!("-D{name}"));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread"])
        .args(definitions)
        .arg(source)
        .arg("-o")
        .arg(&path)
        .status()
        .unwrap();
    assert!(compiled.success());
    path
}

fn daemon_over(driver: &str) -> Daemon {
    Daemon::start_with(&[("OPENMPS_ENGINE", "nvidia"), ("OPENMPS_DRIVER", driver)])
}

/// Under a daemon whose servers cannot start, a program is told so at once; why is in the log.
#[test]
fn a_driver_that_cannot_be_used_is_an_error_and_a_line_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent/libcuda.so.1");
    let drivers = [
        (absent, "no NVIDIA driver found"),
        (
            fake(&folder, &["VERSION=11080"]),
            "CUDA 11.8; OpenMPS needs a driver for CUDA 12.4 (550) or newer",
        ),
    ];
    for (driver, why) in drivers {
        let daemon = daemon_over(driver.to_str().unwrap());
        let begun = std::time::Instant::now();
        let output = daemon.probe(&["init"]).output().unwrap();
        assert!(begun.elapsed() < PATIENCE, "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("error 80"), "an error of MPS's: {text}");
        let log = daemon.server_log();
        assert!(log.contains(why), "{why}:\n{log}");
    }
}

/// One that is newer than all that we know of is used.
#[test]
fn a_driver_of_the_future_works() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=99990"]);
    let daemon = daemon_over(driver.to_str().unwrap());
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}\n{}", daemon.server_log());
    assert!(daemon.server_log().contains("Device Fake GPU"));
    eventually("it has gone", || daemon.clients().is_empty());
}
