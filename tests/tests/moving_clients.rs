//! `upgrade` with `--failover`: running clients go over to servers of the new program, and whoever cannot keeps its server.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use serde_json::Value;
use tests::daemon::{Daemon, eventually, is_alive, program, succeed};
use tests::fake_driver;
use tests::talker::Talker;

fn started(name: &str, daemon: &Daemon) -> Talker {
    let mut client = Talker::start(&mut daemon.command(program(name)));
    assert_eq!(client.hear(), "ready", "{}", daemon.server_log());
    client
}

fn daemon() -> Daemon {
    Daemon::start_as(&["--failover"], &[])
}

/// How many clients went over, and how many stayed on how many servers.
fn upgrade(daemon: &Daemon) -> (u64, u64, u64) {
    let said = daemon.control_output(&["upgrade", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let number = |name: &str| said[name].as_u64().unwrap();
    (number("moved"), number("clients"), number("servers"))
}

#[test]
fn clients_go_over_to_a_server_of_the_new_program_and_lose_nothing() {
    let daemon = daemon();
    let mut survivors: Vec<Talker> = (0..4).map(|_| started("survivor", &daemon)).collect();
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("round"), "ok");
    }
    let mut busy = started("survivor", &daemon);
    busy.say("loop");
    let server = daemon.server();
    assert_eq!(upgrade(&daemon), (5, 0, 0), "{}", daemon.control_log());
    eventually("the former server ends", || !is_alive(server));
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("round"), "ok", "{}", daemon.server_log());
    }
    assert_eq!(busy.hear(), "ok", "{}", daemon.server_log());
    let log = daemon.server_log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("taken over from a server that ended"), 5, "{log}");
    // Not one operation was cut off.
    assert_eq!(lines(", 0 repeated, 0 failed"), 5, "{log}");
    // Who comes later finds a server of the next daemon's.
    assert_eq!(succeed(&mut daemon.probe(&["work", "2"])), "ok\n");
    let wait = |client: Talker| assert!(client.wait().success());
    survivors.into_iter().chain([busy]).for_each(wait);
}

#[test]
fn who_has_what_only_its_server_has_or_a_kernel_that_does_not_end_keeps_its_server() {
    for what in ["array", "forever"] {
        let daemon = daemon();
        let mut survivor = started("survivor", &daemon);
        assert_eq!(survivor.ask(what), "ok");
        let mut neighbour = started("survivor", &daemon);
        let server = daemon.server();
        assert_eq!(upgrade(&daemon), (0, 2, 1), "{}", daemon.control_log());
        assert!(is_alive(server));
        let log = daemon.control_log();
        assert!(log.contains("The 2 clients of server"), "{log}");
        assert_eq!(neighbour.ask("round"), "ok", "work goes on");
        assert!(neighbour.wait().success());
        survivor.kill();
        eventually("the former server ends", || !is_alive(server));
    }
}

#[test]
fn clients_stay_where_no_server_stands_by() {
    let daemon = Daemon::start_as(&["--failover", "--standby=never"], &[]);
    let mut survivor = started("survivor", &daemon);
    assert_eq!(upgrade(&daemon), (0, 1, 1));
    assert_eq!(survivor.ask("round"), "ok");
    assert!(survivor.wait().success());
}

#[test]
fn clients_in_groups_and_of_several_users_servers_go_over_too() {
    let daemon = Daemon::start_as(&["--failover", "--isolation=group"], &[]);
    let group = daemon.control_output(&["group", "add", "tenant"]);
    let mut command = daemon.command(program("survivor"));
    command.env("CUDA_MPS_PIPE_DIRECTORY", group.trim());
    let mut inside = Talker::start(&mut command);
    assert_eq!(inside.hear(), "ready");
    let mut outside = started("survivor", &daemon);
    assert_eq!(upgrade(&daemon), (2, 0, 0), "{}", daemon.control_log());
    for survivor in [&mut inside, &mut outside] {
        assert_eq!(survivor.ask("round"), "ok", "{}", daemon.server_log());
    }
    assert!(inside.wait().success() && outside.wait().success());
}

#[test]
fn on_a_gpu_clients_go_over_with_their_memory() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake_driver::compile(folder.path(), &["VERSION=13000", "TOTAL=(1ull << 36)"]);
    let variables = [
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
    ];
    let daemon = Daemon::start_as(&["--failover"], &variables);
    let mut holders: Vec<Talker> = (0..3).map(|_| started("holder", &daemon)).collect();
    for holder in &mut holders {
        assert_eq!(holder.ask("round"), "ok");
    }
    let server = daemon.server();
    assert_eq!(upgrade(&daemon), (3, 0, 0), "{}", daemon.control_log());
    eventually("the former server ends", || !is_alive(server));
    for holder in &mut holders {
        assert_eq!(holder.ask("round"), "ok", "{}", daemon.server_log());
    }
    for holder in holders {
        assert!(holder.wait().success());
    }
}
