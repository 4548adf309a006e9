//! Descriptors of every kind, sent to every socket, and files that answer nobody.

use std::path::PathBuf;
use std::time::Duration;

use tests::daemon::{Daemon, eventually, is_alive, succeed};
use tests::skipped::skipped;
use tests::talker::Talker;

use crate::scene::{Scene, attacker};

/// Hears an attacker until it has done its worst. `false` if this machine does not allow it.
#[track_caller]
fn is_done(attacker: &mut Talker) -> bool {
    loop {
        let line = attacker.hear();
        if let Some(what) = line.strip_prefix("without: ") {
            skipped(what);
        } else if let Some(why) = line.strip_prefix("absent: ") {
            skipped(why);
            return false;
        } else {
            assert_eq!(line, "done");
            return true;
        }
    }
}

#[test]
fn descriptors_of_every_kind_left_at_the_daemons_socket_and_a_groups() {
    let scene = Scene::start();
    scene.daemon.control_output(&["group", "add", "theirs"]);
    for directory in [
        scene.daemon.pipe(),
        scene.daemon.pipe().join("groups/theirs"),
    ] {
        let mut attacker = scene.attacker("descriptors", &directory, "");
        assert!(is_done(&mut attacker));
        scene.others_are_served();
        // Once it is gone, what it sent is the daemon's and the server's alone.
        drop(attacker);
        scene.others_are_served();
    }
    scene.nobody_noticed();
}

#[test]
fn descriptors_from_a_user_namespace_at_a_groups_socket() {
    let scene = Scene::start();
    scene.daemon.control_output(&["group", "add", "theirs"]);
    let directory = scene.daemon.pipe().join("groups/theirs");
    let mut attacker = scene.attacker("descriptors-in-user-namespace", &directory, "");
    if is_done(&mut attacker) {
        scene.others_are_served();
    }
    drop(attacker);
    scene.nobody_noticed();
}

#[test]
fn files_that_never_answer_left_in_queues_and_registered() {
    let scene = Scene::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut attacker = scene.attacker("fuse", &scene.daemon.pipe(), path);
    if is_done(&mut attacker) {
        scene.others_are_served();
    }
    drop(attacker);
    scene.nobody_noticed();
}

/// The kernel does not end a process that looks at such a file, or closes it. It is not the server's process that does.
#[test]
fn a_server_ends_whatever_its_clients_registered() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut attacker = attacker("fuse", &daemon.pipe(), path);
    if !is_done(&mut attacker) {
        return;
    }
    let server = daemon.server().to_string();
    let receiver = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
    let receiver = receiver.unwrap().trim().to_owned();
    let name = std::fs::read_to_string(format!("/proc/{receiver}/comm"));
    assert_eq!(name.unwrap(), "openmps-files\n");
    daemon.control_output(&["shutdown_server", &server, "-f"]);
    eventually("the server is gone", || !is_alive(server.parse().unwrap()));
    let log = daemon.control_log();
    assert!(!log.contains("did not end by itself"), "{log}");
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    assert_ne!(daemon.server().to_string(), server);
    // From here on nothing is to be waited for.
    drop(attacker);
    eventually("the receiver is gone", || {
        !is_alive(receiver.parse().unwrap())
    });
}

/// Processes of a group whose tasks the kernel holds, and does not let end, until it is told otherwise.
struct Freezer(PathBuf);

impl Freezer {
    fn new(process: &str) -> std::io::Result<Self> {
        let name = format!("/sys/fs/cgroup/freezer/openmps-hostile-{process}");
        let group = Self(PathBuf::from(name));
        std::fs::create_dir(&group.0)?;
        std::fs::write(group.0.join("cgroup.procs"), process)?;
        std::fs::write(group.0.join("freezer.state"), "FROZEN")?;
        Ok(group)
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").ok();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where the kernel does not end a server, for whatever reason, the daemon goes on without it.
#[test]
fn a_server_that_cannot_end_holds_up_neither_the_next_one_nor_the_daemon() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    let server = daemon.server().to_string();
    // Control groups of the second version end who is frozen in them.
    let frozen = match Freezer::new(&server) {
        Ok(frozen) => frozen,
        Err(why) => return skipped(&format!("no freezer of the first version: {why}")),
    };
    daemon.control_output(&["shutdown_server", &server, "-f"]);
    eventually("the daemon has given the server up", || {
        !daemon
            .control_output(&["get_server_list"])
            .contains(&server)
    });
    let log = daemon.control_log();
    let line = format!("Server {server} did not end by itself: it was killed, and the kernel has");
    assert!(log.contains(&line), "{log}");
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    assert_ne!(daemon.server().to_string(), server);
    // Ends, or this panics.
    drop(daemon);
    frozen.thaw();
    eventually("the server is gone", || !is_alive(server.parse().unwrap()));
}
