//! Users of one machine that mean each other harm. Being them takes root.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};
use tests::daemon::{Daemon, openmps, probe};
use tests::skipped::skipped;
use tests::talker::Talker;

use crate::scene::Scene;

const ADA: u32 = 4242;
const BOB: u32 = 4343;

/// A daemon that serves several users at once, with a bystander of root's.
#[track_caller]
fn scene() -> Option<Scene> {
    if !rustix::process::geteuid().is_root() {
        skipped("being other users takes root");
        return None;
    }
    let daemon = Daemon::start_as(&["-M"], &[]);
    daemon.open_to_others();
    Some(Scene::with(daemon))
}

/// The test program as a user's client, with a task.
fn program_of(scene: &Scene, uid: u32, task: &[&str]) -> Command {
    let daemon = &scene.daemon;
    let mut command = Command::new(daemon.copy_for_others(openmps()));
    let home = daemon.pipe().with_file_name(format!("home-{uid}"));
    std::fs::create_dir_all(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(uid), Some(uid)).unwrap();
    command
        .args(["run", "--"])
        .arg(daemon.copy_for_others(probe()))
        .args(task)
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", &home)
        .current_dir("/")
        .uid(uid)
        .gid(uid);
    command
}

fn attacker_of(scene: &Scene, uid: u32, what: &str, more: &str) -> Talker {
    let program = Path::new(env!("CARGO_BIN_EXE_attacker"));
    let mut command = Command::new(scene.daemon.copy_for_others(program));
    let command = command.arg(what).arg(scene.daemon.pipe()).arg(more);
    Talker::start(command.current_dir("/").uid(uid).gid(uid))
}

#[test]
fn another_users_attacks_are_not_noticed_by_two_users() {
    let Some(scene) = scene() else { return };
    let mut ada = Talker::start(&mut program_of(&scene, ADA, &["bystander"]));
    assert_eq!(ada.hear(), "running");
    for (what, more) in [
        ("descriptors", ""),
        ("stop", "1"),
        ("stop", "4"),
        ("records", ""),
    ] {
        let mut bob = attacker_of(&scene, BOB, what, more);
        let mut line = bob.hear();
        while line.starts_with("without: ") {
            line = bob.hear();
        }
        assert!(line == "done" || line == "stops", "{what}: {line:?}");
        scene.others_are_served();
        drop(bob);
    }
    ada.say("");
    let said = ada.hear();
    assert_eq!(ada.hear(), "ok", "{said}");
    drop(ada);
    scene.nobody_noticed();
}

#[test]
fn commands_of_another_user_end_nobody() {
    let Some(scene) = scene() else { return };
    let server = scene.daemon.server().to_string();
    for line in [
        "quit",
        "quit -f",
        &format!("shutdown_server {server} -f"),
        "set_default_active_thread_percentage 1",
        "group add hers",
    ] {
        let mut command = Command::new(scene.daemon.copy_for_others(openmps()));
        let output = command
            .arg("control")
            .args(line.split(' '))
            .env("CUDA_MPS_PIPE_DIRECTORY", scene.daemon.pipe())
            .current_dir("/")
            .uid(ADA)
            .gid(ADA)
            .stdin(Stdio::null())
            .output();
        let output = output.unwrap();
        assert!(!output.status.success(), "{line}: {output:?}");
    }
    scene.nobody_noticed();
}

/// A user who may have no more processes than it has: its programs fail or work, by themselves.
#[test]
fn a_user_without_processes_harms_nobody() {
    let Some(scene) = scene() else { return };
    for most in [1, 2, 4, 8] {
        let mut program = program_of(&scene, ADA, &["init"]);
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        // SAFETY: a system call, which a child may make before it runs its program.
        unsafe {
            program.pre_exec(move || Ok(setrlimit(Resource::Nproc, limit)?));
        }
        let output = program.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.code().is_some(), "{most}: {output:?}");
    }
    scene.nobody_noticed();
}
