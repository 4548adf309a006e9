//! Clients that are stopped or killed wherever that hurts: they hold up nobody.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::eventually;
use tests::talker::Talker;

use crate::scene::Scene;

/// Stages of `attacker stop`: connected, greeted, welcomed, with a context, with work behind a gate, with memory.
const STAGES: u32 = 6;

/// A process for each stage, stopped there.
fn stopped(scene: &Scene) -> Vec<Talker> {
    let start = |stage: u32| {
        let mut attacker = scene.attacker("stop", &scene.daemon.pipe(), &stage.to_string());
        assert_eq!(attacker.hear(), "stops");
        attacker
    };
    (0..STAGES).map(start).collect()
}

#[test]
fn a_client_stopped_at_any_stage_holds_up_nobody_and_goes_on_later() {
    let scene = Scene::start();
    let mut stopped = stopped(&scene);
    for _ in 0..3 {
        scene.others_are_served();
    }
    for client in &mut stopped {
        client.signal(Signal::CONT);
        assert_eq!(client.hear(), "went on");
    }
    drop(stopped);
    scene.nobody_noticed();
}

#[test]
fn a_client_killed_while_it_is_stopped_leaves_nothing() {
    let scene = Scene::start();
    let stopped = stopped(&scene);
    for client in &stopped {
        client.signal(Signal::KILL);
    }
    eventually("they are gone", || scene.daemon.clients().len() == 1);
    scene.others_are_served();
    drop(stopped);
    scene.nobody_noticed();
}

/// A program with our library, stopped at moments of all kinds. What it does is right when it goes on.
#[test]
fn programs_stopped_at_any_moment_hold_up_nobody_and_lose_nothing() {
    let scene = Scene::start();
    for moment in 0..6 {
        let mut program = scene.daemon.probe(&["work", "20"]);
        let program = program.stdout(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&program);
        std::thread::sleep(Duration::from_millis(moment * 37));
        kill_process(pid, Signal::STOP).unwrap();
        scene.others_are_served();
        kill_process(pid, Signal::CONT).unwrap();
        if moment % 2 == 0 {
            let output = program.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.ends_with("ok\n"), "{text}");
        } else {
            let mut program = program;
            program.kill().unwrap();
            program.wait().unwrap();
        }
    }
    scene.nobody_noticed();
}
