//! A server waits ready-made for the end of another one: it takes its place, and is in nobody's way until then.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{Daemon, eventually, is_alive, openmps, program, succeed};
use tests::fake_driver;
use tests::skipped::skipped;
use tests::slow_end::SlowEnd;
use tests::talker::Talker;

/// A program whose server may end.
fn survivor(daemon: &Daemon) -> Talker {
    ready(&mut daemon.command(program("survivor")))
}

fn ready(command: &mut Command) -> Talker {
    let mut talker = Talker::start(command);
    assert_eq!(talker.hear(), "ready");
    talker
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
}

/// The servers that stand by.
fn standbys(daemon: &Daemon) -> Vec<u32> {
    let list = daemon.control_output(&["get_server_list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let servers = list.as_array().unwrap().iter();
    let standbys = servers.filter(|server| server["status"] == "STANDBY");
    standbys
        .map(|server| server["pid"].as_u64().unwrap() as u32)
        .collect()
}

/// The server that stands by, once there is one other than this.
fn standby_after(daemon: &Daemon, former: u32) -> u32 {
    let mut found = 0;
    eventually("a server stands by", || {
        let standbys = standbys(daemon);
        found = standbys.first().copied().unwrap_or(0);
        assert!(standbys.len() <= 1, "{standbys:?}");
        found != 0 && found != former
    });
    found
}

fn events(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.pipe().join("../log/events.jsonl")).unwrap()
}

#[test]
fn it_takes_the_place_of_a_server_that_ends_and_another_one_stands_by() {
    let daemon = Daemon::start_as(&["--failover"], &[]);
    let mut survivors: Vec<Talker> = (0..8).map(|_| survivor(&daemon)).collect();
    let mut former = 0;
    for time in 1..=3 {
        for survivor in &mut survivors {
            assert_eq!(survivor.ask("round"), "ok");
        }
        let standby = standby_after(&daemon, former);
        let server = daemon.server();
        assert_ne!(standby, server, "no list for NVIDIA's tools has it");
        let status = daemon.control_output(&["get_server_status", &standby.to_string()]);
        assert_eq!(status, "STANDBY\n");
        send(server, Signal::KILL);
        for survivor in &mut survivors {
            assert_eq!(survivor.ask("round"), "ok", "time {time}");
        }
        assert_eq!(daemon.server(), standby);
        former = standby;
    }
    let log = daemon.control_log();
    for (line, times) in [
        ("takes the place of one that has ended", 3),
        ("was handed the last of 8 clients of server", 3),
        ("has welcomed the last of 8 clients of server", 3),
    ] {
        assert_eq!(log.matches(line).count(), times, "{line}: {log}");
    }
    assert!(!log.contains("not ready yet"), "{log}");
    standby_after(&daemon, former);
    let page = succeed(&mut daemon.tool(&["metrics"]));
    for line in [
        "openmps_servers{state=\"serves\"} 1",
        "openmps_servers{state=\"standby\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{page}");
    }
    let top = succeed(&mut daemon.tool(&["top", "--json", "--interval=0.1"]));
    let top: Value = serde_json::from_str(&top).unwrap();
    let stand_by = top["servers"].as_array().unwrap().iter();
    let stand_by = stand_by.map(|server| server["standby"] == true);
    assert_eq!(stand_by.filter(|stands_by| *stands_by).count(), 1, "{top}");
    let doctor = daemon.tool(&["doctor"]).output().unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.contains("1 servers, and 1 that stand by"),
        "{doctor}"
    );
    let events = events(&daemon);
    assert!(events.matches("server.stands_by").count() >= 4, "{events}");
    assert_eq!(events.matches("server.takes_place").count(), 3, "{events}");
    for survivor in survivors {
        assert!(survivor.wait().success());
    }
    assert_eq!(succeed(&mut daemon.probe(&["work", "2"])), "ok\n");
}

#[test]
fn one_that_dies_costs_nobody_anything_and_is_replaced_later_and_later() {
    let daemon = Daemon::start_as(&["--failover"], &[]);
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    let first = standby_after(&daemon, 0);
    let server = daemon.server();
    send(first, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(daemon.server(), server);
    let second = standby_after(&daemon, first);
    // Both at once, and nobody can have noticed yet.
    send(second, Signal::KILL);
    send(server, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    let log = daemon.control_log();
    assert!(
        log.contains("has ended while it stood by; the next one starts in 2 s"),
        "{log}"
    );
    // As an operator may.
    let third = standby_after(&daemon, second);
    daemon.control_output(&["shutdown_server", &third.to_string()]);
    assert!(!is_alive(third));
    assert_eq!(survivor.ask("round"), "ok");
    assert!(survivor.wait().success());
}

/// It is handed clients, and ends before it has done anything with them.
#[test]
fn one_that_dies_with_clients_it_was_handed_costs_them_nothing() {
    let daemon = Daemon::start_as(&["--failover"], &[]);
    let mut survivors: Vec<Talker> = (0..8).map(|_| survivor(&daemon)).collect();
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("round"), "ok");
    }
    let standby = standby_after(&daemon, 0);
    let server = daemon.server();
    send(standby, Signal::STOP);
    send(server, Signal::KILL);
    eventually("it was handed all of them", || {
        daemon.control_log().contains("was handed the last of 8")
    });
    send(standby, Signal::KILL);
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("round"), "ok");
    }
    assert_ne!(daemon.server(), standby);
    for survivor in survivors {
        assert!(survivor.wait().success());
    }
}

#[test]
fn none_outlives_its_daemon() {
    let mut daemon = Daemon::start_as(&["--failover"], &[]);
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    let server = daemon.server();
    daemon.control_output(&["upgrade"]);
    eventually("it ends with an upgrade", || !is_alive(standby));
    assert_eq!(survivor.ask("round"), "ok");
    eventually("its client went over", || !is_alive(server));

    let mut later = self::survivor(&daemon);
    assert_eq!(later.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    let server = daemon.server();
    daemon.kill();
    eventually("it ends with a killed daemon", || !is_alive(standby));
    assert_eq!(later.ask("round"), "ok");
    assert!(is_alive(server), "it has a client");
    daemon.restart_as(&["--failover"], &[]);
    let mut last = self::survivor(&daemon);
    assert_eq!(last.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    daemon.signal(Signal::TERM);
    assert!(!is_alive(standby), "the daemon ends after it");
    drop((survivor, later, last));
    daemon.restart();
}

#[test]
fn none_keeps_a_daemon_from_quitting_nor_another_user_from_the_device() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being another user takes root");
    }
    let daemon = Daemon::start_as(&["--failover"], &[]);
    daemon.open_to_others();
    let (ours, theirs) = (
        daemon.copy_for_others(openmps()),
        daemon.copy_for_others(&program("survivor")),
    );
    let homes = tempfile::tempdir().unwrap();
    let open = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(homes.path(), open).unwrap();
    let as_user = |uid: u32| {
        let home = homes.path().join(uid.to_string());
        if !home.exists() {
            std::fs::create_dir(&home).unwrap();
            chown(&home, Some(uid), Some(uid)).unwrap();
        }
        let mut command = Command::new(&ours);
        command
            .args(["run", "--"])
            .arg(&theirs)
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .env("HOME", home)
            .uid(uid)
            .gid(uid);
        command
    };
    let mut ada = ready(&mut as_user(4242));
    assert_eq!(ada.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    let process = format!("/proc/{standby}/status");
    let status = std::fs::read_to_string(process).unwrap();
    assert!(status.contains("Uid:\t4242\t4242"), "{status}");
    let server = daemon.server();
    send(server, Signal::KILL);
    assert_eq!(ada.ask("round"), "ok");
    assert_eq!(daemon.server(), standby, "it runs as that user");
    let standby = standby_after(&daemon, standby);
    // Another user waits for her clients, and not for what stands by for them.
    let mut bob = Talker::start(&mut as_user(4343));
    assert!(ada.wait().success());
    assert_eq!(bob.hear(), "ready");
    eventually("hers ends", || !is_alive(standby));
    assert_eq!(bob.ask("round"), "ok");
    let of_bob = standby_after(&daemon, 0);
    assert!(bob.wait().success());
    daemon.control_output(&["quit"]);
    eventually("his ends", || !is_alive(of_bob));
}

#[test]
fn there_is_none_where_none_can_take_a_place_or_none_is_wanted() {
    let of_client = ["--failover", "--isolation=client"];
    let never = ["--failover", "--standby=never"];
    for arguments in [&of_client[..], &never] {
        let daemon = Daemon::start_as(arguments, &[]);
        let mut survivor = survivor(&daemon);
        assert_eq!(survivor.ask("round"), "ok");
        std::thread::sleep(Duration::from_millis(1500));
        assert!(standbys(&daemon).is_empty(), "{arguments:?}");
        send(daemon.server(), Signal::KILL);
        assert_eq!(survivor.ask("round"), "ok");
        let log = daemon.control_log();
        assert!(!log.contains("to stand by"), "{arguments:?}: {log}");
        assert!(survivor.wait().success());
    }
    let mut daemon = Daemon::start();
    daemon.kill();
    let said = daemon.refused(&["--standby=always"], &[]);
    assert!(said.contains("--failover"), "{said}");
    daemon.restart();
}

#[test]
fn one_user_has_one_for_the_server_of_all_and_for_those_of_groups() {
    let daemon = Daemon::start_as(&["--failover", "--isolation=none"], &[]);
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    send(daemon.server(), Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(daemon.server(), standby);
    drop((survivor, daemon));

    let daemon = Daemon::start_as(&["--failover", "--isolation=group"], &[]);
    daemon.control_output(&["group", "add", "a"]);
    let in_group = |survivor: &mut Command| {
        let pipe = daemon.pipe().join("groups/a");
        ready(survivor.env("CUDA_MPS_PIPE_DIRECTORY", pipe))
    };
    let mut inside = in_group(&mut daemon.command(program("survivor")));
    let mut outside = self::survivor(&daemon);
    let list = daemon.control_output(&["get_server_list"]);
    let servers: Vec<u32> = list.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(servers.len(), 2, "{list}");
    let standby = standby_after(&daemon, 0);
    send(servers[0], Signal::KILL);
    for survivor in [&mut inside, &mut outside] {
        assert_eq!(survivor.ask("round"), "ok");
    }
    let list = daemon.control_output(&["get_server_list"]);
    let mut now = list.lines().map(|line| line.parse::<u32>().unwrap());
    assert!(now.all(|server| server == standby || server == servers[1]));
    standby_after(&daemon, standby);
}

#[test]
fn it_serves_static_partitions_as_the_former_server_did() {
    let daemon = Daemon::start_as(&["--failover", "-S"], &[]);
    let devices = daemon.control_output(&["lspart"]);
    let row = devices.lines().nth(2).unwrap();
    let gpu = row.split_whitespace().next().unwrap().to_owned();
    daemon.control_output(&["sm_partition", "add", &gpu, "1"]);
    let in_it = |name: &str| {
        let mut command = daemon.command(program(name));
        command.env("CUDA_MPS_SM_PARTITION", format!("{gpu}/1"));
        command
    };
    let mut survivor = ready(&mut in_it("survivor"));
    assert_eq!(survivor.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    send(daemon.server(), Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(daemon.server(), standby);
    assert!(succeed(in_it("memories").arg("free")).contains("ok"));
    assert!(survivor.wait().success());
}

/// A daemon over a driver of our own.
fn over_a_driver(folder: &std::path::Path, definitions: &[&str], arguments: &[&str]) -> Daemon {
    let all = [&["VERSION=13000", "SPINNING=1"], definitions].concat();
    let driver = fake_driver::compile(folder, &all);
    let driver = driver.to_str().unwrap();
    let variables = [("OPENMPS_ENGINE", "nvidia"), ("OPENMPS_DRIVER", driver)];
    Daemon::start_as(arguments, &variables)
}

#[test]
fn on_a_gpu_it_takes_the_clients_over_whom_another_ones_fault_would_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let death = folder.path().join("death");
    let defined = format!("DEATH=\"{}\"", death.display());
    let daemon = over_a_driver(folder.path(), &[&defined], &["--failover"]);
    let holder = || ready(&mut daemon.command(program("holder")));
    let mut bystanders: Vec<Talker> = (0..4).map(|_| holder()).collect();
    let mut guilty = holder();
    for bystander in &mut bystanders {
        assert_eq!(bystander.ask("round"), "ok");
    }
    assert_eq!(guilty.ask("round"), "ok");
    let standby = standby_after(&daemon, 0);
    assert_eq!(guilty.ask("spin"), "ok");
    fake_driver::device_dies(&death, daemon.server());
    assert_eq!(guilty.ask("wait"), "error 700");
    for bystander in &mut bystanders {
        assert_eq!(bystander.ask("round"), "ok");
    }
    assert_eq!(daemon.server(), standby);
    for holder in bystanders {
        assert!(holder.wait().success());
    }
}

/// Clients of a server whose device dies of one of them, and whose process is at its end and stays there.
struct Dying {
    daemon: Daemon,
    /// Each has a copy to the device under way, and waits for that and a kernel behind it.
    bystanders: Vec<Talker>,
    /// Where that copy goes.
    copied: Vec<u64>,
    /// It waits for nothing, and so hears of nothing.
    guilty: Talker,
    server: u32,
    standby: u32,
    end: SlowEnd,
    stalled: PathBuf,
    _folder: TempDir,
}

impl Dying {
    /// Has so many bystanders.
    fn begin(bystanders: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (death, stalled) = (folder.path().join("death"), folder.path().join("stalled"));
        let defined = [("DEATH", &death), ("STALLED", &stalled)]
            .map(|(name, path)| format!("{name}=\"{}\"", path.display()));
        let defined = defined.each_ref().map(|text| &**text);
        let daemon = over_a_driver(folder.path(), &defined, &["--failover"]);
        let holder = || ready(&mut daemon.command(program("holder")));
        let mut bystanders: Vec<Talker> = (0..bystanders).map(|_| holder()).collect();
        let mut guilty = holder();
        for holder in bystanders.iter_mut().chain([&mut guilty]) {
            assert_eq!(holder.ask("round"), "ok");
        }
        let (standby, server) = (standby_after(&daemon, 0), daemon.server());
        std::fs::write(&stalled, "").unwrap();
        let mut copied = Vec::new();
        for bystander in &mut bystanders {
            copied.push(bystander.ask("where").parse().unwrap());
            assert_eq!(bystander.ask("copy"), "ok");
            bystander.say("round");
        }
        assert_eq!(guilty.ask("spin"), "ok");
        let end = SlowEnd::of(server);
        fake_driver::device_dies(&death, server);
        assert_eq!(guilty.ask("wait"), "error 700");
        end.begins();
        Self {
            daemon,
            bystanders,
            copied,
            guilty,
            server,
            standby,
            end,
            stalled,
            _folder: folder,
        }
    }

    /// Waits until so often a client was prepared.
    fn prepared(&self, times: usize) {
        let log = || self.daemon.server_log();
        let prepared = || log().matches(PREPARED).count();
        eventually("clients are prepared", || prepared() == times);
    }

    /// A dead context still copies: what it writes at its end does not stay.
    fn copies(&self) {
        for &first in &self.copied {
            self.end.writes(first + 8, &[0xee; 256]);
        }
    }

    /// How many the one has that stood by.
    fn clients(&self) -> usize {
        let standby = self.standby.to_string();
        let list = self.daemon.control_output(&["get_client_list", &standby]);
        list.lines().count()
    }

    /// What is said of clients that went on.
    fn went_on(&self) -> usize {
        let log = self.daemon.server_log();
        log.matches("taken over from a server that ended").count()
    }

    /// Lets the process end, and sees all bystanders have their results.
    fn ends(&mut self) {
        assert_eq!(self.went_on(), 0);
        self.end.go_on();
        for bystander in &mut self.bystanders {
            assert_eq!(bystander.hear(), "ok");
            assert_eq!(bystander.ask("round"), "ok");
        }
    }
}

/// What is said of a client with which only the end of its former server is waited for.
const PREPARED: &str = "is ready to go on when its former server has ended";

#[test]
fn on_a_gpu_it_prepares_clients_while_the_former_process_ends_and_touches_no_memory_before() {
    let mut dying = Dying::begin(2);
    dying.prepared(2);
    let server = dying.server;
    let line = format!("has welcomed the last of 3 clients of server {server}");
    eventually("all are welcomed before its process has ended", || {
        let log = dying.daemon.control_log();
        let mut said = log.lines().filter(|said| said.contains(&line));
        said.any(|said| said.ends_with("after it said that it ends"))
    });
    assert_eq!(dying.clients(), 3);
    std::fs::remove_file(&dying.stalled).unwrap();
    // Who comes now need not wait.
    let mut later = ready(&mut dying.daemon.command(program("holder")));
    assert_eq!(later.ask("round"), "ok");
    dying.copies();
    dying.ends();
    let log = dying.daemon.server_log();
    assert_eq!(log.matches(" 1 repeated, 0 failed").count(), 2, "{log}");
    let Dying {
        mut guilty,
        mut bystanders,
        ..
    } = dying;
    assert_eq!(guilty.ask("reset"), "ok");
    assert_eq!(guilty.ask("round"), "ok");
    bystanders.extend([later, guilty]);
    for holder in bystanders {
        assert!(holder.wait().success());
    }
}

#[test]
fn on_a_gpu_one_that_is_killed_while_it_is_prepared_costs_the_others_nothing() {
    let mut dying = Dying::begin(3);
    dying.prepared(3);
    drop(dying.bystanders.remove(0));
    eventually("it is gone", || dying.clients() == 3);
    std::fs::remove_file(&dying.stalled).unwrap();
    dying.ends();
}

#[test]
fn on_a_gpu_one_that_dies_with_prepared_clients_leaves_them_to_a_third_that_waits_too() {
    let mut dying = Dying::begin(2);
    dying.prepared(2);
    send(dying.standby, Signal::KILL);
    dying.prepared(4);
    std::fs::remove_file(&dying.stalled).unwrap();
    dying.copies();
    dying.ends();
}

#[test]
fn on_a_gpu_who_is_in_a_group_goes_on_when_the_former_process_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let death = folder.path().join("death");
    let defined = format!("DEATH=\"{}\"", death.display());
    let daemon = over_a_driver(folder.path(), &[&defined], &["--failover"]);
    daemon.control_output(&["group", "add", "a", "--memory", "0=64M"]);
    let holder = || daemon.command(program("holder"));
    let group = daemon.pipe().join("groups/a");
    // It has more than half of what the group may have.
    let mut inside = ready(holder().env("CUDA_MPS_PIPE_DIRECTORY", group));
    let (mut outside, mut guilty) = (ready(&mut holder()), ready(&mut holder()));
    for holder in [&mut inside, &mut outside, &mut guilty] {
        assert_eq!(holder.ask("round"), "ok");
    }
    let standby = standby_after(&daemon, 0);
    assert_eq!(guilty.ask("spin"), "ok");
    fake_driver::device_dies(&death, daemon.server());
    assert_eq!(guilty.ask("wait"), "error 700");
    for holder in [&mut inside, &mut outside] {
        assert_eq!(holder.ask("round"), "ok");
    }
    assert_eq!(daemon.server(), standby);
    let log = daemon.control_log();
    assert!(log.contains("hands 2 clients over"), "{log}");
    assert!(log.contains("takes over 1 of the 1 clients"), "{log}");
}

#[test]
fn on_a_gpu_a_server_that_ends_and_never_has_ended_is_not_waited_for_without_end() {
    let mut dying = Dying::begin(1);
    dying.prepared(1);
    std::fs::remove_file(&dying.stalled).unwrap();
    // The daemon kills it, and whoever traces it keeps it all the same.
    assert_eq!(dying.bystanders[0].hear(), "ok");
    assert_eq!(dying.bystanders[0].ask("round"), "ok");
}

#[test]
fn on_a_gpu_none_stays_that_leaves_too_little_memory_unless_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let full = ["TOTAL=(16ul<<30)", "OTHERS=(15ul<<30)"];
    let daemon = over_a_driver(folder.path(), &full, &["--failover"]);
    let mut holder = ready(&mut daemon.command(program("holder")));
    assert_eq!(holder.ask("round"), "ok");
    eventually("one has looked", || {
        daemon
            .control_log()
            .contains("does not stand by: less than an eighth of a device's memory")
    });
    assert!(standbys(&daemon).is_empty());
    assert_eq!(holder.ask("round"), "ok");
    assert!(holder.wait().success());
    drop(daemon);
    let daemon = over_a_driver(folder.path(), &full, &["--failover", "--standby=always"]);
    let mut holder = ready(&mut daemon.command(program("holder")));
    assert_eq!(holder.ask("round"), "ok");
    standby_after(&daemon, 0);
    assert!(holder.wait().success());
}
