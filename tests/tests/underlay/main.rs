//! NVIDIA's own MPS beneath our servers, over a driver and an MPS of our making: who runs when, who comes to it, and what
//! happens when it cannot be had or ends.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod contexts;
mod machine;
mod sharing;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use machine::{
    BENEATH, Machine, children_of, doctor, kill, parent_of, running, staying, text, underlay,
    variable_of,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{eventually, is_alive, openmps, probe, succeed};
use tests::skipped::skipped;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_server_is_a_client_of_a_private_mps() {
    let machine = Machine::new(BENEATH);
    let mut daemon = machine.daemon(
        &["--underlay=nvidia-mps"],
        &[
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "8"),
        ],
    );
    assert!(machine.record().is_empty(), "nobody needs it yet");
    assert_eq!(underlay(&daemon)["state"], "idle");
    succeed(&mut daemon.probe(&["init"]));

    let started = &machine.daemons()[0];
    let arguments = if is_root() { "-f -M" } else { "-f" };
    assert_eq!(started.arguments, arguments);
    let pipe = started.variable("CUDA_MPS_PIPE_DIRECTORY").unwrap();
    assert!(pipe.starts_with(&machine.shown("underlay")), "{pipe}");
    let log = started.variable("CUDA_MPS_LOG_DIRECTORY").unwrap();
    assert!(log.starts_with(&machine.shown("underlay")), "{log}");
    assert_eq!(started.variable("CUDA_VISIBLE_DEVICES"), Some("0"));
    let libraries = machine.folder.path().to_str();
    assert_eq!(
        started.variable("LD_LIBRARY_PATH"),
        libraries,
        "the driver of ours"
    );
    for name in [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "OPENMPS_ENGINE",
        "HOME",
    ] {
        assert_eq!(started.variable(name), None, "{name}");
    }

    // The server is a client of that, with neither our clients' limits nor a second choice of devices.
    let server = daemon.server();
    let of_server = |name| variable_of(server, name);
    let pipe = of_server("CUDA_MPS_PIPE_DIRECTORY").unwrap();
    assert_eq!(pipe, "/proc/self/fd/100");
    for name in [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MAX_CONNECTIONS",
    ] {
        assert_eq!(of_server(name), None, "{name}");
    }
    let said = daemon.server_log();
    assert!(
        said.contains("NVIDIA's MPS runs beneath this server"),
        "{said}"
    );
    let held = |what: &str| daemon.control_output(&[what]);
    assert_eq!(
        held("get_default_active_thread_percentage"),
        "50.0\n",
        "ours still holds"
    );

    let told = underlay(&daemon);
    assert_eq!(
        (&told["mode"], &told["state"]),
        (&"nvidia-mps".into(), &"up".into())
    );
    assert_eq!(told["process"], started.pid);
    assert_eq!(told["version"], "13000");
    assert_eq!(told["servers"][0], server);
    let list: Value =
        serde_json::from_str(&daemon.control_output(&["get_server_list", "--json"])).unwrap();
    assert_eq!(list[0]["underlay"], true);
    let line = doctor(&daemon);
    assert!(
        line.starts_with("ok") && line.contains("binary version 13000"),
        "{line}"
    );

    // A second server is on the same.
    daemon.control_output(&["shutdown_server", &server.to_string()]);
    succeed(&mut daemon.probe(&["init"]));
    assert_eq!(machine.daemons().len(), 1);

    daemon.control_output(&["quit"]);
    daemon.wait();
    let left = machine.left();
    assert!(
        left.is_empty(),
        "when `quit` has answered, nothing is left: {left:?}"
    );
    assert!(machine.path("quit").exists(), "it was asked to end");
    daemon.restart();
}

#[test]
fn without_the_option_there_is_none() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&[], &[]);
    succeed(&mut daemon.probe(&["init"]));
    assert!(machine.record().is_empty());
    assert_eq!(underlay(&daemon)["state"], "off");
    let pipe = variable_of(daemon.server(), "CUDA_MPS_PIPE_DIRECTORY");
    assert_eq!(pipe.as_deref(), Some("/nonexistent/openmps"));
    assert!(doctor(&daemon).contains("none: servers share GPUs by time-slicing"));
}

#[test]
fn the_environment_asks_for_it_as_the_option_does() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(
        &[],
        &[
            ("OPENMPS_UNDERLAY", "auto"),
            ("OPENMPS_UNDERLAY_CONNECTIONS", "4"),
        ],
    );
    succeed(&mut daemon.probe(&["init"]));
    assert_eq!(underlay(&daemon)["state"], "up");
    let queues = variable_of(daemon.server(), "CUDA_DEVICE_MAX_CONNECTIONS");
    assert_eq!(queues.as_deref(), Some("4"));
}

/// Whatever is wrong beneath, with `auto` programs run, on a server as it would be without.
#[test]
fn where_it_cannot_be_had_servers_start_without_and_a_line_says_why() {
    let silent: &[&str] = &["VERSION=13000", "MPS=0"];
    for (driver, how, why) in [
        (BENEATH, "refuse", "no device for this fake"),
        (BENEATH, "hang", "does not answer within"),
        (BENEATH, "ours", "is OpenMPS' own"),
        (BENEATH, "init=805", "ended before it was ready on it"),
        (BENEATH, "context=808", "ended before it was ready on it"),
        (silent, "", "ended before it was ready on it"),
    ] {
        let machine = Machine::new(driver);
        machine.behave(how);
        let mut daemon = machine.daemon(&["--underlay=auto"], &[]);
        succeed(&mut daemon.probe(&["init"]));
        let pipe = variable_of(daemon.server(), "CUDA_MPS_PIPE_DIRECTORY");
        assert_eq!(pipe.as_deref(), Some("/nonexistent/openmps"), "{how}");
        let log = daemon.control_log();
        let lines = log.lines().filter(|line| line.contains("No underlay"));
        assert_eq!(lines.count(), 1, "{how}: {log}");
        assert!(log.contains(why), "{how}: {log}");
        let told = underlay(&daemon);
        assert_eq!(told["state"], "absent", "{how}");
        let line = doctor(&daemon);
        assert!(
            line.starts_with("warning") && line.contains("auto"),
            "{line}"
        );
        // What it left is gone before anybody quits.
        eventually("it is gone", || machine.is_clean());
        daemon.control_output(&["quit"]);
        daemon.wait();
        daemon.restart();
    }
}

#[test]
fn where_it_must_be_had_programs_are_refused_and_told_why() {
    for how in ["refuse", "context=808"] {
        let machine = Machine::new(BENEATH);
        machine.behave(how);
        let daemon = machine.daemon(&["--underlay=nvidia-mps"], &[]);
        let output = daemon.probe(&["init"]).output().unwrap();
        assert!(text(&output).starts_with("error 805"), "{how}: {output:?}");
        let log = daemon.control_log();
        let why = "--underlay=nvidia-mps allows none without";
        assert!(log.contains(why), "{how}: {log}");
        let started = daemon.control(&["start_server", "-uid", &user()]);
        assert!(
            !started.status.success() && text(&started).contains(why),
            "{started:?}"
        );
        assert!(doctor(&daemon).starts_with("PROBLEM"), "{how}");
        // It comes by itself when it can be had again.
        machine.behave("");
        if how != "refuse" {
            succeed(&mut daemon.probe(&["init"]));
        }
    }
}

fn user() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

#[test]
fn a_daemon_that_must_have_it_does_not_start_without_the_program() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&[], &[]);
    // Where nobody else can have put it, wherever it was built.
    let copy = machine.path("openmps");
    let copied = Command::new("cp").arg(openmps()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let refused = |more: &[(&str, &str)], arguments: &[&str]| {
        let mut environment = machine.environment(&[]);
        environment.extend(more);
        let other = tempfile::tempdir().unwrap();
        let output = Command::new(&copy)
            .args(["control", "-f"])
            .args(arguments)
            .envs(environment)
            .env("CUDA_MPS_PIPE_DIRECTORY", other.path().join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", other.path().join("log"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let strict = ["--underlay=nvidia-mps"];
    let absent = machine.shown("absent");
    for (program, why) in [
        (&*absent, "No such file"),
        ("nvidia-cuda-mps-control", "not an absolute path"),
        (copy.to_str().unwrap(), "is OpenMPS' own"),
    ] {
        let said = refused(&[("OPENMPS_NVIDIA_MPS", program)], &strict);
        assert!(said.contains(why), "{program}: {said}");
    }
    let said = refused(&[("OPENMPS_ENGINE", "soft")], &strict);
    assert!(said.contains("software GPU"), "{said}");
    let said = refused(&[("OPENMPS_UNDERLAY", "mps")], &[]);
    assert!(said.contains("auto, nvidia-mps and none"), "{said}");
    let said = refused(&[], &["--underlay=mps"]);
    assert!(said.contains("auto, nvidia-mps and none"), "{said}");
    let said = refused(&[("OPENMPS_UNDERLAY_CONNECTIONS", "33")], &[]);
    assert!(said.contains("from 1 to 32"), "{said}");
    // With `auto` it is a line.
    let machine = Machine::new(BENEATH);
    std::fs::remove_file(machine.program()).unwrap();
    let auto = machine.daemon(&["--underlay=auto"], &[]);
    succeed(&mut auto.probe(&["init"]));
    let log = auto.control_log();
    assert!(log.contains("No underlay, servers start without"), "{log}");
    drop((auto, daemon));
}

const SPINNING: &[&str] = &["VERSION=13000", "MPS=1", "SPINNING=1"];

#[test]
fn when_it_is_killed_its_servers_say_so_and_others_get_another() {
    let machine = Machine::new(SPINNING);
    let daemon = machine.daemon(&["--underlay=auto"], &[]);
    let mut program = running(&daemon, machine.folder.path());
    kill(machine.daemons()[0].pid);
    // Its contexts died.
    let ended = program.wait().unwrap();
    assert!(!ended.success());
    eventually("the daemon says it", || {
        daemon.control_log().contains("NVIDIA's MPS is lost")
    });
    let log = daemon.server_log();
    assert!(
        log.contains("NVIDIA's MPS beneath this server has ended"),
        "{log}"
    );
    let log = daemon.control_log();
    let lines = log
        .lines()
        .filter(|line| line.contains("NVIDIA's MPS is lost"));
    assert_eq!(lines.count(), 1, "{log}");
    let mut next = running(&daemon, machine.folder.path());
    assert_eq!(machine.daemons().len(), 2);
    assert_eq!(underlay(&daemon)["process"], machine.daemons()[1].pid);
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn a_server_that_hangs_beneath_is_ended_and_programs_go_on_without() {
    let machine = Machine::new(BENEATH);
    machine.behave("hang-clients");
    let daemon = machine.daemon(&["--underlay=auto"], &[]);
    let program = daemon
        .probe(&["init"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let connected = || daemon.control_log().contains("NVIDIA's MPS runs beneath");
    eventually("it is up", connected);
    // As its deadline does.
    kill(daemon.server());
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = daemon.control_log();
    assert!(
        log.contains("was killed before it was ready on it"),
        "{log}"
    );
}

/// One server too many for it costs the others nothing.
#[test]
fn who_finds_no_room_beneath_goes_without_and_the_others_stay() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&["--underlay=auto", "--isolation=client"], &[]);
    let (mut first, started) = (staying(&daemon), daemon.server());
    machine.behave("context=808");
    succeed(&mut daemon.probe(&["init"]));
    let told = underlay(&daemon);
    assert_eq!(
        (&told["state"], &told["servers"]),
        (&"up".into(), &vec![started].into())
    );
    let log = daemon.control_log();
    assert!(
        log.contains("is started again without the underlay"),
        "{log}"
    );
    assert!(first.try_wait().unwrap().is_none());
    machine.behave("");
    succeed(&mut daemon.probe(&["init"]));
    assert_eq!(machine.daemons().len(), 1);
    first.kill().unwrap();
    first.wait().unwrap();
}

/// What fails again and again is not tried with each server.
#[test]
fn what_keeps_failing_is_left_alone() {
    let machine = Machine::new(BENEATH);
    machine.behave("refuse");
    let daemon = machine.daemon(&["--underlay=auto"], &[]);
    for _ in 0..5 {
        succeed(&mut daemon.probe(&["init"]));
        daemon.control_output(&["shutdown_server", &daemon.server().to_string()]);
    }
    assert_eq!(machine.daemons().len(), 3);
    let log = daemon.control_log();
    assert!(log.contains("failed too often"), "{log}");
    eventually("no child of the daemon's is a zombie", || {
        let own = daemon.pid();
        children_of(own).iter().all(|&child| is_alive(child))
    });
}

/// Servers of a killed daemon serve their clients to the end, and so does what is beneath them.
#[test]
fn a_killed_daemon_leaves_nothing_when_its_clients_have_left() {
    let machine = Machine::new(BENEATH);
    let mut daemon = machine.daemon(&["--underlay=auto"], &[]);
    let mut program = staying(&daemon);
    let started = machine.record();
    assert_eq!(started.len(), 2, "a daemon and its server: {started:?}");
    daemon.kill();
    // The server hears that the daemon is gone, and goes on.
    eventually("the server has noticed", || {
        daemon.server_log().contains("The daemon is gone")
    });
    assert!(started.iter().all(|process| is_alive(process.pid)));
    assert!(program.try_wait().unwrap().is_none());
    program.kill().unwrap();
    program.wait().unwrap();
    eventually("nothing is left", || machine.is_clean());
    daemon.restart();
}

#[test]
fn a_signal_to_all_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let machine = Machine::new(BENEATH);
        let mut daemon = machine.daemon(&["--underlay=auto"], &[]);
        succeed(&mut daemon.probe(&["init"]));
        // As a service manager that tells each process: the supervisor leaves that to the daemon.
        let supervisor = parent_of(machine.daemons()[0].pid);
        let supervisor = Pid::from_raw(supervisor.cast_signed()).unwrap();
        kill_process(supervisor, signal).unwrap();
        assert_eq!(underlay(&daemon)["state"], "up");
        daemon.signal(signal);
        assert!(machine.is_clean());
        daemon.restart();
    }
}

/// Nobody is left to end what it had started, but the daemon goes on.
#[test]
fn a_killed_supervisor_is_noticed_and_replaced() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&["--underlay=auto"], &[]);
    succeed(&mut daemon.probe(&["init"]));
    let first = machine.record();
    kill(parent_of(machine.daemons()[0].pid));
    eventually("the daemon says it", || {
        daemon.control_log().contains("its supervisor has ended")
    });
    assert_eq!(underlay(&daemon)["state"], "absent");
    daemon.control_output(&["shutdown_server", &daemon.server().to_string(), "-f"]);
    succeed(&mut daemon.probe(&["init"]));
    assert_eq!(machine.daemons().len(), 2);
    assert_eq!(underlay(&daemon)["state"], "up");
    for process in first {
        kill(process.pid);
    }
}

const ADA: u32 = 4242;

/// Only servers come to it: neither their user nor the user's programs.
#[test]
fn a_user_whose_server_is_on_it_cannot_come_to_it() {
    if !is_root() {
        return skipped("being other users takes root");
    }
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&["-M", "--underlay=nvidia-mps"], &[]);
    daemon.open_to_others();
    succeed(&mut daemon.probe(&["init"]));
    let home = machine.path("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ADA), Some(ADA)).unwrap();
    let as_ada = |command: &mut Command| {
        command.current_dir("/").uid(ADA).gid(ADA);
    };
    let mut program = Command::new(daemon.copy_for_others(openmps()));
    program
        .args(["run", "--"])
        .arg(daemon.copy_for_others(probe()))
        .arg("init")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", &home);
    as_ada(&mut program);
    succeed(&mut program);

    let list: Value =
        serde_json::from_str(&daemon.control_output(&["get_server_list", "--json"])).unwrap();
    let servers = list.as_array().unwrap();
    assert_eq!(servers.len(), 2, "{list}");
    assert!(
        servers.iter().all(|server| server["underlay"] == true),
        "{list}"
    );
    let of_ada = servers.iter().find(|server| server["uid"] == ADA).unwrap();
    assert_eq!(machine.daemons().len(), 1, "both are on one");

    // Every user reads its path in /proc/net/unix, and gets nowhere with it.
    let pipe = machine.daemons()[0]
        .variable("CUDA_MPS_PIPE_DIRECTORY")
        .unwrap()
        .to_owned();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(sockets.contains(&format!("{pipe}/control")), "{sockets}");
    let tries = |path: &str| {
        let mut ls = Command::new("ls");
        ls.arg(path).stdout(Stdio::null()).stderr(Stdio::null());
        as_ada(&mut ls);
        ls.status().unwrap().success()
    };
    let by_server = |name: &str| format!("/proc/{}/{name}", of_ada["pid"]);
    assert!(tries("/proc/self/fd"), "this is how one that may is told");
    for path in [
        format!("{pipe}/control"),
        by_server("fd/100/control"),
        by_server("fd"),
        format!("/proc/{}/cwd{pipe}/control", of_ada["pid"]),
    ] {
        assert!(!tries(&path), "{path}");
    }
    let mut asks = Command::new(daemon.copy_for_others(openmps()));
    asks.args(["control", "underlay"])
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe());
    as_ada(&mut asks);
    assert_eq!(
        succeed(&mut asks),
        "nvidia-mps: up\n",
        "no numbers of others, no paths"
    );
}
