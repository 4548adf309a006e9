//! The watchdog of devices: one on which nothing ends is named, with what each client has there, and again when it goes on.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use serde_json::Value;
use tests::daemon::{Daemon, eventually, succeed};
use tests::fake_driver::Endless;
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_faults");
const STILL: &str = "makes no progress: it has work, and nothing of it has ended for";

fn faults(daemon: &Daemon, words: &[&str]) -> Talker {
    Talker::start(daemon.command(PROGRAM).args(words))
}

/// A program whose kernel does not end, in the middle of it.
fn endless(daemon: &Daemon) -> Talker {
    let mut talker = faults(daemon, &["guilty", "endless-kernel"]);
    assert_eq!(talker.hear(), "ready");
    assert_eq!(talker.ask(""), "in the middle");
    talker
}

/// For how long the device is said to be still.
fn still_seconds(daemon: &Daemon) -> Option<f64> {
    let shown = succeed(&mut daemon.tool(&["top", "--json", "--interval=0.1"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown["devices"][0]["still_seconds"].as_f64()
}

/// The lines of the server's log that have this.
fn lines(daemon: &Daemon, text: &str) -> Vec<String> {
    let log = daemon.server_log();
    let lines = log.lines().filter(|line| line.contains(text));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_device_on_which_nothing_ends_is_named_and_again_when_it_goes_on() {
    let daemon = Daemon::start_with(&[("OPENMPS_WATCHDOG", "600ms")]);
    let one = endless(&daemon);
    let other = endless(&daemon);
    let mut idle = faults(&daemon, &["present"]);
    assert_eq!(idle.hear(), "running");
    eventually("it is named", || !lines(&daemon, STILL).is_empty());
    // Only once.
    std::thread::sleep(Duration::from_millis(900));
    let said = lines(&daemon, STILL);
    assert_eq!(said.len(), 1, "{said:?}");
    for talker in [&one, &other] {
        let has = format!("Client {} (faults): kernel forever for ", talker.id());
        assert!(said[0].contains(&has), "{said:?}");
    }
    assert!(!said[0].contains(&idle.id().to_string()), "{said:?}");
    eventually("it is shown", || still_seconds(&daemon) > Some(0.5));
    let metrics = succeed(&mut daemon.tool(&["metrics"]));
    let mut metrics = metrics.lines();
    let line = metrics.find(|line| line.starts_with("openmps_device_still_seconds{"));
    assert!(!line.unwrap().ends_with(" 0"), "{line:?}");
    assert!(succeed(&mut daemon.tool(&["top", "--once"])).contains("no progress for"));

    one.kill();
    other.kill();
    let goes_on = "(OpenMPS software GPU) goes on: something ended, or has gone, after";
    eventually("it goes on", || !lines(&daemon, goes_on).is_empty());
    eventually("that is shown", || still_seconds(&daemon).is_none());
    let events = std::fs::read_to_string(daemon.pipe().join("../log/events.jsonl")).unwrap();
    let of = |what: &str| events.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (of("device.still"), of("device.goes_on")),
        (1, 1),
        "{events}"
    );
    assert!(events.contains("kernel forever for"), "{events}");
    assert_eq!(idle.last(), "exact 0 0");
}

/// Beside an endless kernel a neighbour's end; an idle client has nothing; and a kernel that a limit will end is waited for.
#[test]
fn nothing_is_said_of_a_device_that_works_or_rests_or_runs_what_is_limited() {
    let daemon = Daemon::start_with(&[("OPENMPS_WATCHDOG", "600ms")]);
    let mut idle = faults(&daemon, &["present"]);
    assert_eq!(idle.hear(), "running");
    std::thread::sleep(Duration::from_secs(2));
    let mut neighbour = faults(&daemon, &["neighbour", "kernels"]);
    assert_eq!(neighbour.hear(), "running");
    let works = endless(&daemon);
    std::thread::sleep(Duration::from_secs(2));
    works.kill();
    assert!(neighbour.last().starts_with("exact "));
    let limited = endless(&daemon);
    let pid = limited.id().to_string();
    daemon.control_output(&["limit", "set", "--client", &pid, "--kernel-time", "1000s"]);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lines(&daemon, "progress"), [""; 0]);
    // Without the limit it is as any other.
    daemon.control_output(&["limit", "set", "--client", &pid, "--kernel-time", "none"]);
    eventually("it is named", || !lines(&daemon, STILL).is_empty());
}

#[test]
fn over_a_driver_the_kernel_that_does_not_end_is_named() {
    let endless = Endless::start(&[], &[("OPENMPS_WATCHDOG", "600ms")]);
    let daemon = &endless.daemon;
    let mut program = Talker::start(&mut endless.client());
    assert_eq!(program.hear(), "running");
    eventually("it is named", || !lines(daemon, STILL).is_empty());
    let said = lines(daemon, STILL);
    assert!(said[0].contains("Device 0 (Fake GPU)"), "{said:?}");
    let has = format!("Client {} (probe): kernel k for ", program.id());
    assert!(said[0].contains(&has), "{said:?}");
}

#[test]
fn the_watchdog_can_be_off_and_its_time_must_be_one() {
    let daemon = Daemon::start_with(&[("OPENMPS_WATCHDOG", "off")]);
    let works = endless(&daemon);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lines(&daemon, "progress"), [""; 0]);
    works.kill();
    let daemon = Daemon::start_with(&[("OPENMPS_WATCHDOG", "soon")]);
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(!output.status.success());
    assert!(
        daemon
            .server_log()
            .contains("OPENMPS_WATCHDOG=soon is no time")
    );
}
