//! How programs load the library, and how they end, by a program in C.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tests::daemon::{Daemon, succeed};

/// The program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(PathBuf, tempfile::TempDir)> = OnceLock::new();
    let (path, _) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ends");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/ends.c");
        // Old C, in which a pointer to a function may leave open what it takes.
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", source, "-ldl", "-o"]);
        succeed(compiler.arg(&path));
        (path, folder)
    });
    path
}

#[test]
fn the_library_is_closed_and_opened_again() {
    let daemon = Daemon::start();
    let text = succeed(daemon.command(program()).arg("reload"));
    assert_eq!(text, "ok\n");
}

#[test]
fn a_program_that_exits_in_a_signals_handler_ends() {
    let daemon = Daemon::start();
    for round in 0..40 {
        let mut command = daemon.command(program());
        command.arg("handler").stdout(Stdio::piped());
        match round % 2 {
            0 => command.args(["own", &(round * 37).to_string()]),
            _ => &mut command,
        };
        let mut child = command.spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > limit {
                child.kill().unwrap();
                panic!("round {round} does not end");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
        assert!(status.success(), "{text}");
    }
}
