//! Starting, asking and ending the daemon, and what goes wrong around it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tests::daemon::{Daemon, eventually, openmps, probe, succeed};
use tests::skipped::skipped;

fn openmps_in(folder: &Path) -> Command {
    let mut command = Command::new(openmps());
    command
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
        .env("HOME", folder)
        .stdin(Stdio::null());
    command
}

/// A program whose environment holds nothing but the two directories.
fn bare_in(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
        .stdin(Stdio::null());
    command
}

#[test]
fn a_daemon_in_the_background_accepts_at_once_and_quits() {
    let folder = tempfile::tempdir().unwrap();
    // NVIDIA's device plugin gives its daemon nothing else.
    let bare = |arguments: &[&str]| {
        let mut command = bare_in(folder.path(), openmps());
        command.arg("control").args(arguments).output().unwrap()
    };
    assert!(bare(&["-d"]).status.success());
    assert!(bare(&["get_server_list"]).status.success());
    assert!(folder.path().join("log/control.log").exists());
    let again = bare(&["-d"]);
    assert_eq!(again.status.code(), Some(1));
    let text = [again.stdout, again.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(text.trim(), "An instance of this daemon is already running");
    let mut client = openmps_in(folder.path());
    assert_eq!(
        succeed(client.args(["run", "--"]).arg(probe()).args(["work", "1"])),
        "ok\n"
    );
    assert!(bare(&["quit"]).status.success());
    eventually("the daemon is gone", || {
        let output = bare(&["get_server_list"]);
        output.status.code() == Some(1)
            && String::from_utf8_lossy(&output.stderr).trim()
                == "Cannot find MPS control daemon process"
    });
    // Over the sockets that were left behind.
    assert!(bare(&["-d"]).status.success());
    assert!(bare(&["quit"]).status.success());
}

#[test]
fn commands_come_as_lines_too_with_or_without_the_last_newline() {
    let daemon = Daemon::start();
    for text in [
        "get_default_active_thread_percentage",
        "get_default_active_thread_percentage\n",
    ] {
        let mut child = Command::new(openmps())
            .arg("control")
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "100.0\n");
        assert!(output.status.success());
    }
}

#[test]
fn lists_name_servers_and_clients() {
    let daemon = Daemon::start();
    assert!(daemon.control(&["get_server_list"]).stdout.is_empty());
    let mut client = daemon
        .probe(&["hold"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the client is listed", || {
        !daemon.control(&["get_server_list"]).stdout.is_empty() && daemon.clients() == [client.id()]
    });
    let ps = String::from_utf8(daemon.control(&["ps"]).stdout).unwrap();
    let lines: Vec<&str> = ps.lines().collect();
    assert_eq!(lines.len(), 2, "{ps}");
    assert!(
        lines[0].starts_with("PID       ID        SERVER         DEVICE"),
        "{ps}"
    );
    assert!(
        lines[1].starts_with(&format!("{:<10}1", client.id())),
        "{ps}"
    );
    assert!(
        daemon.control_log().contains("NEW CLIENT"),
        "{}",
        daemon.control_log()
    );
    client.kill().unwrap();
    client.wait().unwrap();
    eventually("the client is gone", || daemon.clients().is_empty());
}

#[test]
fn without_a_daemon_cuinit_fails_at_once_with_805() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_folder(folder.path());
    let output = Command::new(probe())
        .arg("init")
        .env("LD_LIBRARY_PATH", library)
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("nothing"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "error 805\n");
    assert!(output.stderr.is_empty(), "the library is silent");
}

#[test]
fn a_client_that_is_told_to_waits_for_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_folder(folder.path());
    let client = Command::new(probe())
        .arg("work")
        .env("LD_LIBRARY_PATH", library)
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
        .env("OPENMPS_CONNECT_TIMEOUT", "30")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(
        openmps_in(folder.path())
            .args(["control", "-d"])
            .status()
            .unwrap()
            .success()
    );
    let output = client.wait_with_output().unwrap();
    assert!(
        openmps_in(folder.path())
            .args(["control", "quit"])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
}

#[test]
fn run_says_how_to_start_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let output = openmps_in(folder.path())
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("openmps control -d"), "{text}");
}

#[test]
fn asking_for_several_daemons_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_folder(folder.path());
    for separator in [",", ":"] {
        let several = format!("/nowhere/one{separator}/nowhere/two");
        let output = openmps_in(folder.path())
            .args(["run", "true"])
            .env("CUDA_MPS_PIPE_DIRECTORY", &several)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("the client of one daemon"), "{text}");
        let log = folder.path().join("client.log");
        let output = Command::new(probe())
            .arg("init")
            .env("LD_LIBRARY_PATH", &library)
            .env("CUDA_MPS_PIPE_DIRECTORY", &several)
            .env("OPENMPS_CLIENT_LOG", &log)
            .env("CUDA_LOG_FILE", "stderr")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "error 805\n");
        let text = String::from_utf8_lossy(&output.stderr);
        let (why, what) = text.split_once('\n').unwrap();
        assert!(
            why.contains("[CUDA][W] ") && why.contains("the client of one daemon"),
            "{text}"
        );
        assert!(
            what.ends_with(
                "[CUDA][E] Returning 805 (CUDA_ERROR_MPS_CONNECTION_FAILED) from cuInit\n"
            ),
            "{text}"
        );
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("the client of one daemon"), "{text}");
        std::fs::remove_file(log).unwrap();
    }
}

#[test]
fn the_binary_answers_to_nvidias_names() {
    let folder = tempfile::tempdir().unwrap();
    let call = |name: &str, arguments: &[&str]| {
        let link = folder.path().join(name);
        let _ = std::os::unix::fs::symlink(openmps(), &link);
        let mut command = bare_in(folder.path(), &link);
        let output = command.args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            String::from_utf8(text).unwrap(),
            output.status.code().unwrap(),
        )
    };
    for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let (text, exit) = call(name, &["-v"]);
        let first = text.lines().next().unwrap();
        assert!(first.ends_with(". Binary version: 13000"), "{text}");
        assert_eq!(exit, 0);
    }
    // Nobody's but a daemon's.
    let (text, exit) = call("nvidia-cuda-mps-server", &[]);
    assert!(
        text.contains("started by its daemon") && exit == 1,
        "{text}"
    );
    let control = |arguments: &[&str]| call("nvidia-cuda-mps-control", arguments);
    assert_eq!(control(&["-d"]), (String::new(), 0));
    let probe = "get_default_active_thread_percentage";
    assert_eq!(control(&[probe]), ("100.0\n".to_owned(), 0));
    assert_eq!(control(&["quit"]), (String::new(), 0));
}

#[test]
fn a_pipe_directory_that_cannot_be_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("x".repeat(120));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    // Root may write anywhere, so a file in the way stands for a folder that is not ours.
    for (pipe, word) in [(&long, "107"), (&file.join("pipe"), "/file")] {
        for mode in ["-d", "-f"] {
            let output = Command::new(openmps())
                .args(["control", mode])
                .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
                .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains(word), "{text}");
            assert_eq!(text.trim().lines().count(), 1, "{text}");
        }
    }
}

#[test]
fn a_terminated_client_gets_810_in_the_middle_of_its_kernel() {
    let daemon = Daemon::start();
    let client = daemon
        .probe(&["forever"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it is a client", || {
        !daemon.control(&["get_server_list"]).stdout.is_empty() && daemon.clients() == [client.id()]
    });
    // Its first context: from then on there is work to end.
    eventually("it works", || daemon.server_log().contains("is ACTIVE"));
    let server = daemon.server().to_string();
    let other = daemon.probe(&["work", "20"]).stdout(Stdio::piped()).spawn();
    let answer = daemon.control(&["terminate_client", &server, &client.id().to_string()]);
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "0\n");
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with("error 810\n"), "{text}");
    let output = other.unwrap().wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
}

#[test]
fn doctor_says_what_is_wrong_and_logs_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |arguments: &[&str]| {
        let mut command = openmps_in(folder.path());
        let output = command.arg("doctor").args(arguments).output().unwrap();
        (
            String::from_utf8(output.stdout).unwrap(),
            output.status.success(),
        )
    };
    let (text, well) = doctor(&[]);
    assert!(!well && text.contains("openmps control -d"), "{text}");
    let nothing = openmps_in(folder.path()).arg("logs").output().unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    succeed(openmps_in(folder.path()).args(["control", "-d"]));
    let (text, well) = doctor(&["--json"]);
    let findings: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |subject: &str| {
        let mut findings = findings.as_array().unwrap().iter();
        findings
            .find(|finding| finding["subject"] == subject)
            .unwrap()
    };
    assert_eq!(of("daemon")["state"], "ok", "{text}");
    assert_eq!(of("limits")["state"], "ok");
    assert!(well || text.contains("\"problem\""), "{text}");
    let bad = openmps_in(folder.path())
        .arg("doctor")
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "junk")
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(1));

    let logs = succeed(openmps_in(folder.path()).args(["logs", "-n", "3"]));
    assert_eq!(logs.lines().count(), 3, "{logs}");
    let events = succeed(openmps_in(folder.path()).args(["logs", "--json"]));
    let first: serde_json::Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(first["event"], "daemon.started");
    let mut follow = openmps_in(folder.path())
        .args(["logs", "-f", "-n", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().unwrap()));
    succeed(openmps_in(folder.path()).args(["control", "get_default_client_priority"]));
    // Whether or not it had begun by then, this one comes later.
    std::thread::sleep(std::time::Duration::from_millis(500));
    succeed(openmps_in(folder.path()).args(["control", "quit"]));
    let found = lines.find(|line| line.as_ref().unwrap().contains("Exit with status 0"));
    assert!(found.is_some());
    follow.kill().unwrap();
    follow.wait().unwrap();
}

/// Puts the client library somewhere, as `openmps run` does, and returns its folder.
fn library_folder(home: &Path) -> std::path::PathBuf {
    let output = openmps_in(home)
        .env_remove("CUDA_MPS_PIPE_DIRECTORY")
        .args(["run", "--", "printenv", "LD_LIBRARY_PATH"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().split(':').next().unwrap().into()
}

#[test]
fn a_user_is_told_which_folder_is_closed() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being another user takes root");
    }
    let folder = tempfile::tempdir().unwrap();
    let closed = folder.path().join("closed");
    std::fs::create_dir_all(closed.join("pipe")).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(folder.path(), 0o777);
    mode(&closed, 0o700);
    // Where everybody can run it.
    let program = folder.path().join("openmps");
    succeed(Command::new("cp").arg(openmps()).arg(&program));
    for (words, status) in [(&["run", "--", "true"][..], 1), (&["doctor"], 1)] {
        let mut command = Command::new(&program);
        command
            .args(words)
            .env("CUDA_MPS_PIPE_DIRECTORY", closed.join("pipe"))
            .env("HOME", folder.path())
            .env_remove("XDG_CACHE_HOME")
            .uid(4242)
            .gid(4242)
            .stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let mend = format!("user 4242 may not pass {} (mode 0700)", closed.display());
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(&mend), "{words:?}: {said}");
    }
}
