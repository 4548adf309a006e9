//! Compute modes, set while a daemon runs and given back afterwards.

use control::compute_mode::{DEFAULT, DeviceModes, EXCLUSIVE_PROCESS, ModeError, SoftwareModes};
use rustix::process::Signal;

use crate::harness::{Rig, kill, runs, until};

crate::harness::tests! {
    devices_are_exclusive_while_the_daemon_runs_and_no_longer
    what_a_killed_daemon_left_the_next_one_gives_back
}

const GPU: &str = "0";

/// How the daemon of these tests reaches a device.
#[allow(clippy::unnecessary_wraps, reason = "it is what a daemon takes")]
pub fn open() -> Result<Option<Box<dyn DeviceModes>>, ModeError> {
    Ok(Some(Box::new(SoftwareModes::new(vec![0]))))
}

fn rig() -> Rig {
    let mut rig = Rig::without_daemon();
    let state = rig.pipe().with_file_name("state").display().to_string();
    rig.environment.push(("OPENMPS_STATE_DIRECTORY", state));
    rig
}

fn mode(rig: &Rig) -> u64 {
    let path = rig.pipe().with_file_name("state/compute-modes.json");
    let text = std::fs::read_to_string(path).unwrap_or_else(|_| "{}".into());
    let modes: serde_json::Value = serde_json::from_str(&text).unwrap();
    modes[GPU].as_u64().unwrap_or(DEFAULT.into())
}

fn devices_are_exclusive_while_the_daemon_runs_and_no_longer() {
    for signal in [
        None,
        Some(Signal::TERM),
        Some(Signal::HUP),
        Some(Signal::QUIT),
    ] {
        let rig = rig();
        assert!(
            rig.control(&["-d", "--compute-mode=EXCLUSIVE_PROCESS"], None)
                .status
                .success()
        );
        assert_eq!(mode(&rig), u64::from(EXCLUSIVE_PROCESS));
        let pid = rig.daemon_pid();
        match signal {
            None => drop(rig.ask("quit")),
            Some(signal) => kill(pid, signal),
        }
        until("the daemon is gone", || !runs(pid));
        assert_eq!(mode(&rig), u64::from(DEFAULT));
        assert!(rig.control_log().contains("set to DEFAULT again"));
        assert!(!rig.pipe().join("compute_modes.json").exists());
    }
    let mut rig = rig();
    rig.environment
        .push(("OPENMPS_COMPUTE_MODE", "exclusively mine".into()));
    let refused = rig.control(&["-d"], None);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        rig.control(&["-d", "--compute-mode=x"], None).status.code(),
        Some(1)
    );
}

fn what_a_killed_daemon_left_the_next_one_gives_back() {
    let mut first = rig();
    first
        .environment
        .push(("OPENMPS_COMPUTE_MODE", "exclusive_process".into()));
    first.start();
    assert_eq!(mode(&first), u64::from(EXCLUSIVE_PROCESS));
    let pid = first.daemon_pid();
    kill(pid, Signal::KILL);
    until("the daemon is gone", || !runs(pid));
    assert_eq!(mode(&first), u64::from(EXCLUSIVE_PROCESS), "nobody could");
    first.environment.pop();
    first.start();
    assert_eq!(
        mode(&first),
        u64::from(DEFAULT),
        "the next one, which was told of no mode"
    );
}
