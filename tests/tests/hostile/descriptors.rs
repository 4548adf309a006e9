//! Descriptors of every kind, sent to every socket, and files that answer nobody.

use tests::skipped::skipped;

use crate::scene::{Scene, Talker};

/// Hears an attacker until it has done its worst. `false` if this machine does not allow it.
#[track_caller]
fn is_done(attacker: &mut Talker) -> bool {
    loop {
        let line = attacker.line();
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
    scene.daemon.told(&["group", "add", "theirs"]);
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
    scene.daemon.told(&["group", "add", "theirs"]);
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
