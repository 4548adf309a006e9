//! A program that ends, crashes, forks, becomes another or is killed in the middle of any feature leaves
//! nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, eventually, settled_threads_and_files, succeed, threads_and_files};

const PROGRAM: &str = env!("CARGO_BIN_EXE_endings");

/// What the program lists.
fn listed(arguments: &[&str]) -> Vec<String> {
    let text = succeed(Command::new(PROGRAM).args(arguments));
    text.lines().map(str::to_owned).collect()
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A program in the middle of a feature, and what is alive when it has ended its way.
struct Ending {
    child: Child,
    /// The process that is to be killed in the end, where it is not the program itself.
    left: Option<Pid>,
    lives: bool,
}

impl Ending {
    fn start(daemon: &Daemon, feature: &str, way: &str) -> Self {
        let mut child = daemon
            .command(PROGRAM)
            .args([feature, way])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        // Kernels may have printed before.
        let mut said = line(&mut output);
        while said == "words" {
            said = line(&mut output);
        }
        if said != "in the middle" {
            let output = child.wait_with_output().unwrap();
            panic!("{feature}, {way}: {said} {output:?}");
        }
        let mut left = None;
        if way == "fork" {
            let child = std::iter::repeat_with(|| line(&mut output)).find(|line| line != "words");
            left = Some(Pid::from_raw(child.unwrap().parse().unwrap()).unwrap());
        }
        if way == "stay" {
            child.kill().unwrap();
        }
        let lives = way == "exec";
        if !lives {
            child.wait().unwrap();
        }
        Self { child, left, lives }
    }

    fn end(mut self) {
        if let Some(left) = self.left {
            kill_process(left, Signal::KILL).expect("the forked process lived that long");
        }
        if self.lives {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// What the folder of the daemon's sockets holds.
fn files(daemon: &Daemon) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(daemon.pipe()).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn however_a_program_ends_in_the_middle_of_a_feature_it_leaves_nothing() {
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_DEVICES", "2")]);
    let memory = || succeed(daemon.command(env!("CARGO_BIN_EXE_memories")).arg("free"));
    let nobody = || eventually("all clients are gone", || daemon.clients().is_empty());
    let free = memory();
    let server = daemon.server();
    nobody();
    let before = (settled_threads_and_files(server), files(&daemon));
    let features = listed(&[]);
    assert!(features.len() >= 20, "{features:?}");
    for feature in &features {
        let endings: Vec<Ending> = listed(&["--ways"])
            .iter()
            .map(|way| Ending::start(&daemon, feature, way))
            .collect();
        // While the forked child and the other program still live.
        nobody();
        let nothing_is_left = || {
            eventually(&format!("nothing is left of {feature}"), || {
                (threads_and_files(server), files(&daemon)) == before
            });
            assert_eq!(memory(), free, "{feature}");
        };
        // A descriptor holds its memory as long as anybody has a copy, as with NVIDIA's driver.
        if feature != "memory in descriptors" {
            nothing_is_left();
        }
        endings.into_iter().for_each(Ending::end);
        nobody();
        nothing_is_left();
    }
    assert_eq!(daemon.server(), server, "the server lives");
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
}
