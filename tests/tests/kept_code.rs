//! Compiled code of the software GPU that one server keeps for the next.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::PathBuf;

use tests::daemon::{Daemon, eventually, succeed};

/// What the server last said of what it compiled, once the daemon has quit.
fn said(daemon: &mut Daemon) -> String {
    daemon.control(&["quit"]);
    daemon.wait();
    let count = |log: &str| log.matches("Compiled: ").count();
    eventually("the server says what it compiled", || {
        count(&daemon.server_log()) > 0
    });
    let log = daemon.server_log();
    let last = log.lines().rfind(|line| line.contains("Compiled: "));
    last.unwrap_or_default().to_owned()
}

/// The files with compiled code.
fn files(daemon: &Daemon) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let home = daemon.pipe();
    let home = home.parent().unwrap();
    let folder = home.join(format!(".nv/ComputeCache/openmps-code-{user}/compiled"));
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_second_server_compiles_nothing_that_the_first_has() {
    let mut daemon = Daemon::start();
    succeed(&mut daemon.probe(&["work", "3"]));
    let first = said(&mut daemon);
    assert!(first.contains("Compiled: 1 images, 2 kernels;"), "{first}");
    daemon.restart();
    succeed(&mut daemon.probe(&["work", "3"]));
    let second = said(&mut daemon);
    let nothing = "Compiled: 0 images, 0 kernels; kept from before: 1 images, 2 kernels";
    assert!(second.contains(nothing), "{second}");
    // What is damaged is compiled again, and the work is right.
    let [file] = &files(&daemon)[..] else {
        panic!("one file: {:?}", files(&daemon));
    };
    let mut bytes = std::fs::read(file).unwrap();
    bytes.iter_mut().skip(100).for_each(|byte| *byte ^= 0x55);
    std::fs::write(file, &bytes).unwrap();
    daemon.restart();
    succeed(&mut daemon.probe(&["work", "3"]));
    let third = said(&mut daemon);
    assert!(third.contains("Compiled: 1 images, 2 kernels;"), "{third}");
    daemon.restart();
    succeed(&mut daemon.probe(&["work", "3"]));
    let fourth = said(&mut daemon);
    assert!(fourth.contains(nothing), "{fourth}");
}

#[test]
fn where_nothing_can_be_kept_a_server_says_so_once_and_works() {
    let daemon = Daemon::start_with(&[("CUDA_CACHE_PATH", "/proc/no-such")]);
    for _ in 0..2 {
        succeed(&mut daemon.probe(&["work", "3"]));
    }
    let log = daemon.server_log();
    let told = "Compiled code is not kept for later servers: ";
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

#[test]
fn nothing_is_kept_where_the_cache_is_disabled() {
    let mut daemon = Daemon::start_with(&[("CUDA_CACHE_DISABLE", "1")]);
    succeed(&mut daemon.probe(&["work", "3"]));
    daemon.control(&["quit"]);
    daemon.wait();
    let home = daemon.pipe();
    assert!(!home.parent().unwrap().join(".nv").exists());
    assert!(!daemon.server_log().contains("Compiled"));
}
