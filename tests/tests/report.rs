//! `openmps report`: a file about a time, about a program, and when it is interrupted.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, eventually, openmps};

const PROGRAM: &str = env!("CARGO_BIN_EXE_accounted");

fn report(daemon: &Daemon, output: &Path) -> Command {
    let mut command = Command::new(openmps());
    command
        .arg("report")
        .arg("-o")
        .arg(output)
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", daemon.pipe());
    command
}

/// Waits for the line that the program prints when its work is done, after which it stays until its input ends.
fn wait_for_work(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("took "), "{line}");
    output
}

/// What stands below the column `title` in the first row of a client's name.
fn cell(html: &str, name: &str, title: &str) -> String {
    let cells = |line: &str, tag: &str| -> Vec<String> {
        line.split(tag)
            .skip(1)
            .map(|cell| {
                let (_, text) = cell.split_once('>').unwrap_or_default();
                text.split('<').next().unwrap_or_default().to_owned()
            })
            .collect()
    };
    let lines: Vec<&str> = html.lines().collect();
    let row = lines
        .iter()
        .position(|line| line.starts_with("<tr><th scope=\"row\">") && line.contains(name))
        .unwrap_or_else(|| panic!("no {name} in {html}"));
    let head = lines[..row]
        .iter()
        .rfind(|line| line.contains("<thead>"))
        .unwrap_or_else(|| panic!("no head above {name} in {html}"));
    let column = cells(head, "<th ")
        .iter()
        .position(|head| head == title)
        .unwrap_or_else(|| panic!("no column {title} in {head}"));
    // The first column is the name, a heading of its row.
    cells(lines[row], "<td")[column - 1].clone()
}

#[test]
fn of_a_time_clients_have_what_they_had_in_it() {
    let daemon = Daemon::start();
    let mut worker = daemon
        .command(PROGRAM)
        .args(["9", "0", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _output = wait_for_work(&mut worker);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    std::fs::write(&file, "something longer ".repeat(10_000)).unwrap();
    let output = report(&daemon, &file)
        .args(["--seconds", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(html.ends_with("</html>\n") && !html.contains("something longer"));
    // Its kernels were before.
    let name = format!("accounted ({})", worker.id());
    assert_eq!(cell(&html, &name, "Kernels"), "0");
    assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("://"));
    drop(worker.stdin.take());
    worker.wait().unwrap();
    for (arguments, why) in [
        (&["--seconds", "0"][..], "1..=604800"),
        (&["--seconds", "1", "--", "true"], "cannot be used with"),
    ] {
        let output = report(&daemon, &file).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
    let nowhere = folder.path().join("no/where.html");
    let output = report(&daemon, &nowhere)
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("cannot write"),
        "{said}"
    );
}

#[test]
fn of_a_program_it_is_written_when_that_ends() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let mut child = report(&daemon, &file)
        .args(["--", PROGRAM, "40", "0", "500"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _output = wait_for_work(&mut child);
    // It is looked at five times a second.
    std::thread::sleep(Duration::from_secs(1));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let html = std::fs::read_to_string(&file).unwrap();
    assert_eq!(cell(&html, "accounted (", "Kernels"), "40");
    assert!(html.contains("class=\"c0\" d=\"M"), "a plot of it: {html}");
    // It ends as its program does.
    let failed = report(&daemon, &file)
        .args(["--", "sh", "-c", "exit 7"])
        .status()
        .unwrap();
    assert_eq!(failed.code(), Some(7));
}

#[test]
fn an_interrupt_completes_it() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let mut child = report(&daemon, &file).spawn().unwrap();
    eventually("it records", || file.exists());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(html.ends_with("</html>\n"), "{html}");
    assert!(html.contains("No client was seen"), "{html}");
}
