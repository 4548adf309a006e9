//! A daemon and its servers in a control group of 4 GiB, and clients that want all of it.

use std::fs;
use std::path::{Path, PathBuf};

use tests::daemon::{Daemon, succeed};
use tests::skipped::skipped;

use crate::scene::Scene;

const LIMIT: u64 = 4 << 30;

/// What the attackers outside of the group may take of the machine beside that.
const BESIDE: u64 = 3 << 30;

/// A control group of the memory controller's, of either version.
struct ControlGroup {
    folder: PathBuf,
    /// The file that says how many processes were killed in it.
    events: &'static str,
}

impl ControlGroup {
    fn new() -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("openmps-hostile-{}", std::process::id());
        let (folder, limit, events) = if root.join("cgroup.controllers").exists() {
            (root.join(name), "memory.max", "memory.events")
        } else {
            let folder = root.join("memory").join(name);
            (folder, "memory.limit_in_bytes", "memory.oom_control")
        };
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self { folder, events };
        let limit = group.folder.join(limit);
        // In version 2 the controller is there only where the groups above hand it down.
        fs::write(&limit, LIMIT.to_string())
            .map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }

    fn add(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
    }

    fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.events)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().trim().parse().unwrap()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel takes a moment to forget processes that have ended.
        for _ in 0..200 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

#[test]
fn a_server_in_four_gibibytes_survives_all_who_want_them() {
    if available() < LIMIT + BESIDE {
        skipped("the attackers and their server need 7 GiB of free memory");
        return;
    }
    let group = match ControlGroup::new() {
        Ok(group) => group,
        Err(why) => return skipped(&format!("no control group of memory: {why}")),
    };
    let daemon = Daemon::start();
    group.add(daemon.pid());
    let scene = Scene::with(daemon);
    let before = group.killed();
    let mut attackers: Vec<_> = [
        "text",
        "packed-text",
        "image-pieces",
        "records",
        "device-memory",
        "host-memory",
        "device-memory",
    ]
    .map(|what| (what, scene.attacker(what, &scene.daemon.pipe(), "")))
    .into();
    for (what, attacker) in &mut attackers {
        let mut said = Vec::new();
        let last = loop {
            let line = attacker.hear();
            if line.is_empty() || line == "done" {
                break line;
            }
            said.push(line);
        };
        assert_eq!(
            last,
            "done",
            "{what}: {said:?}\n{}",
            scene.daemon.server_log()
        );
        if what.ends_with("text") {
            assert_eq!(said, ["0 2"], "{what} is refused for want of memory");
        }
        assert_eq!(group.killed(), before, "beside {what}");
    }
    // All of them at their worst. There may be no device memory left, but there is a place for others.
    assert_eq!(succeed(&mut scene.daemon.probe(&["init"])), "ok\n");
    drop(attackers);
    assert_eq!(group.killed(), before);
    scene.nobody_noticed();
}
