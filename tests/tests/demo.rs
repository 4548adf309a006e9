//! The demo, as a newcomer runs it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{eventually, openmps};

fn demo(folder: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(openmps());
    command
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", folder)
        .stdin(Stdio::null());
    command
}

fn is_empty(folder: &std::path::Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Processes whose environment names this folder.
fn processes_of(folder: &std::path::Path) -> Vec<i32> {
    let name = folder.as_os_str().as_encoded_bytes();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|process: &i32| {
            std::fs::read(format!("/proc/{process}/environ"))
                .is_ok_and(|text| text.windows(name.len()).any(|window| window == name))
        })
        .collect()
}

#[test]
fn three_programs_share_a_device_and_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--bodies", "2048", "--iterations", "2"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for who in [
        "nbody_1    | ",
        "nbody_2    | ",
        "nbody_3    | ",
        "all together",
        "side by side, from start to end of each process\nnbody_1 ",
        "the same work one after another\nalone_1 ",
    ] {
        assert!(text.contains(who), "{who} is missing:\n{text}");
    }
    // How soon the first of them starts is the machine's.
    for program in [
        "nbody_1 ", "nbody_2 ", "nbody_3 ", "alone_1 ", "alone_2 ", "alone_3 ",
    ] {
        let has_bar = |line: &str| line.starts_with(program) && line.contains('█');
        assert!(text.lines().any(has_bar), "{program} has no bar:\n{text}");
    }
    assert!(
        !text.contains("mps-daemon | "),
        "nobody asked for the daemon's lines:\n{text}"
    );
    assert!(
        text.contains("2048 bodies, total time for 2 iterations: "),
        "{text}"
    );
    assert!(
        text.contains("single-precision GFLOP/s at 20 flops per interaction"),
        "{text}"
    );
    assert!(is_empty(folder.path()), "files stayed behind");
}

#[test]
fn the_daemon_s_lines_come_when_asked_for_and_are_kept_when_something_fails() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(
        folder.path(),
        &["--clients=1", "--bodies=256", "--iterations=1", "--verbose"],
    )
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("mps-daemon | "), "{text}");
    assert!(is_empty(folder.path()), "files stayed behind");

    // A device that has no room for the bodies.
    let output = demo(folder.path(), &["--bodies", "1048576", "--iterations", "1"])
        .env("OPENMPS_SOFT_MEMORY", "16M")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let kept: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(errors.contains(kept[0].to_str().unwrap()), "{errors}");
    let log = std::fs::read_to_string(&kept[0]).unwrap();
    assert!(log.contains("NEW CLIENT"), "{log}");
}

#[test]
fn the_picture_has_a_bar_for_each_program() {
    let folder = tempfile::tempdir().unwrap();
    let (files, svg) = (folder.path().join("tmp"), folder.path().join("demo.svg"));
    std::fs::create_dir(&files).unwrap();
    let output = demo(&files, &["--clients=2", "--bodies=1024", "--iterations=1"])
        .arg("--svg")
        .arg(&svg)
        .arg("--report")
        .arg(folder.path().join("demo.html"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<rect ").count(), 4, "{picture}");
    for name in ["nbody_1", "nbody_2", "alone_1", "alone_2"] {
        assert!(picture.contains(&format!(">{name}</text>")), "{picture}");
    }
    let report = std::fs::read_to_string(folder.path().join("demo.html")).unwrap();
    assert!(report.contains("<h1>2 n-body programs"), "{report}");
    assert!(report.contains("multiprocessors, used for"), "{report}");
}

#[test]
fn the_result_as_json_has_every_client_and_a_small_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(
        folder.path(),
        &["--clients=2", "--bodies=1024", "--iterations=1", "--json"],
    )
    .output()
    .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let together = json["together"].as_array().unwrap();
    assert_eq!(together.len(), 2);
    assert!(
        together
            .iter()
            .all(|client| client["gflops"].as_f64().unwrap() > 0.0)
    );
    let error = json["largest_relative_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < 1e-3, "{error}");
}

#[test]
fn an_interrupt_leaves_no_process_and_no_file() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = demo(folder.path(), &["--iterations", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the clients run", || processes_of(folder.path()).len() >= 5);
        std::thread::sleep(Duration::from_millis(200));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(is_empty(folder.path()), "files stayed behind");
        eventually("no process is left", || {
            processes_of(folder.path()).is_empty()
        });
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        ["--clients=0", ""],
        ["--percentage=0", ""],
        ["--bodies", "many"],
    ] {
        let arguments: Vec<&str> = arguments
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect();
        let output = demo(std::path::Path::new("/tmp"), &arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
