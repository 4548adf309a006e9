//! Several contexts for the clients of one user: who comes to which, and what happens when they cannot be had.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tests::daemon::{Daemon, eventually, is_alive, openmps, probe, succeed};
use tests::skipped::skipped;

use crate::machine::{
    BENEATH, Machine, doctor, kill, running, said_staying, staying, staying_with, text, underlay,
};
use crate::user;

/// What the daemon says of the contexts of this user.
pub(crate) fn contexts(daemon: &Daemon) -> Value {
    underlay(daemon)["contexts"]["users"][0].clone()
}

/// Has so many made, at least.
pub(crate) fn ready(daemon: &Daemon, count: u64) {
    daemon.control_output(&["start_server", "-uid", &user()]);
    // One more may come before this looks again.
    eventually("the contexts are there", || {
        contexts(daemon)["contexts"].as_u64() >= Some(count)
    });
}

/// The server that a client has.
fn server_of(daemon: &Daemon, client: &Child) -> u64 {
    server_of_process(daemon, client.id())
}

/// The server of the client that is this process.
pub(crate) fn server_of_process(daemon: &Daemon, pid: u32) -> u64 {
    let all: Value = serde_json::from_str(&daemon.control_output(&["ps", "--json"])).unwrap();
    let all = all.as_array().unwrap();
    let mut found = all.iter().filter(|row| row["pid"] == pid);
    found.next().expect("it is in the list")["server"]
        .as_u64()
        .unwrap()
}

fn common(daemon: &Daemon) -> u64 {
    contexts(daemon)["servers"][0].as_u64().unwrap()
}

fn end(client: &mut Child) {
    client.kill().unwrap();
    client.wait().unwrap();
}

fn with(daemon: &Daemon, name: &str, value: &str) -> Child {
    staying_with(daemon, &[(name, value)])
}

/// With memory for contexts.
pub(crate) const ROOMY: &[&str] = &["VERSION=13000", "MPS=1", "TOTAL=(8ull<<30)"];

pub(crate) const THREE: [&str; 2] = ["--underlay=auto", "--contexts=3"];

/// A machine, and a daemon on it that has three contexts.
pub(crate) fn three() -> (Machine, Daemon) {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&THREE, &[]);
    ready(&daemon, 3);
    (machine, daemon)
}

#[test]
fn the_first_have_one_each_and_the_others_share() {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&THREE, &[]);
    assert_eq!(underlay(&daemon)["contexts"]["most"], 3);
    ready(&daemon, 3);
    let told = contexts(&daemon);
    assert_eq!(
        (&told["waiting"], &told["why_not_more"]),
        (&3.into(), &Value::Null)
    );
    assert_eq!(underlay(&daemon)["servers"].as_array().unwrap().len(), 3);
    assert_eq!(machine.daemons().len(), 1, "all are on one");

    let mut clients: Vec<Child> = (0..4).map(|_| staying(&daemon)).collect();
    let servers: Vec<u64> = clients
        .iter()
        .map(|client| server_of(&daemon, client))
        .collect();
    let first: BTreeSet<u64> = servers[..3].iter().copied().collect();
    assert_eq!(first.len(), 3, "{servers:?}");
    assert!(first.contains(&servers[3]), "{servers:?}");
    assert_eq!(servers[2], common(&daemon), "it is the last choice");
    assert_eq!(contexts(&daemon)["waiting"], 0);
    let line = doctor(&daemon);
    assert!(
        line.starts_with("ok") && line.contains("3 of 3 contexts"),
        "{line}"
    );

    // Who leaves leaves its context to the next, as it is.
    assert_ne!(servers[3], servers[1]);
    end(&mut clients[1]);
    eventually("one waits again", || contexts(&daemon)["waiting"] == 1);
    let next = staying(&daemon);
    assert_eq!(server_of(&daemon, &next), servers[1]);
    clients[1] = next;
    let told: Value = serde_json::from_str(&daemon.control_output(&[
        "get_client_list",
        &servers[2].to_string(),
        "--json",
    ]))
    .unwrap();
    assert_eq!(told[0]["pid"], clients[2].id());
    clients.iter_mut().for_each(end);
}

#[test]
fn those_who_have_something_together_are_together() {
    let (_machine, daemon) = three();
    let mut clients = vec![with(&daemon, "OPENMPS_JOB", "solver")];
    clients.push(with(&daemon, "OPENMPS_JOB", "solver"));
    let of_job = server_of(&daemon, &clients[0]);
    assert_eq!(server_of(&daemon, &clients[1]), of_job);
    assert_ne!(of_job, common(&daemon));
    for (name, value) in [
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
    ] {
        let client = with(&daemon, name, value);
        assert_eq!(server_of(&daemon, &client), common(&daemon), "{name}");
        clients.push(client);
    }
    // A limit of memory is a client's own wherever it is.
    let client = with(&daemon, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64M");
    let alone = server_of(&daemon, &client);
    assert!(alone != of_job && alone != common(&daemon));
    clients.push(client);

    // What holds among the clients of one context alone is refused where it would not hold.
    let pid = clients[4].id().to_string();
    for (option, what) in [
        (
            &["--percentage", "30", "--reserved"][..],
            "what is reserved",
        ),
        (&["--priority", "1"], "giving way"),
    ] {
        let mut line = vec!["limit", "set", "--client", &pid];
        line.extend(option);
        let refused = daemon.control(&line);
        let said = text(&refused);
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains(what) && said.contains("2 more"), "{said}");
    }
    // One that comes so is let in, and told of.
    clients.push(with(&daemon, "CUDA_MPS_CLIENT_PRIORITY", "1"));
    let log = daemon.control_log();
    assert!(
        log.contains("is below normal priority: it gives way to clients of server"),
        "{log}"
    );
    clients.iter_mut().for_each(end);
}

#[test]
fn who_gives_way_is_put_with_those_that_it_gives_way_to() {
    let (_machine, daemon) = three();
    let mut first = staying(&daemon);
    let mut below = with(&daemon, "CUDA_MPS_CLIENT_PRIORITY", "1");
    let mut next = staying(&daemon);
    let server = server_of(&daemon, &first);
    assert_eq!(server_of(&daemon, &below), server);
    assert_eq!(server_of(&daemon, &next), server);
    let log = daemon.control_log();
    assert!(!log.contains("is below normal priority"), "{log}");
    [&mut first, &mut below, &mut next]
        .into_iter()
        .for_each(end);
}

#[test]
fn a_servers_settings_are_those_of_all_contexts() {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&THREE, &[]);
    ready(&daemon, 2);
    let servers = contexts(&daemon)["servers"].clone();
    let last = servers[1].to_string();
    daemon.control_output(&["set_active_thread_percentage", &last, "40"]);
    eventually("the third is there", || contexts(&daemon)["contexts"] == 3);
    for server in contexts(&daemon)["servers"].as_array().unwrap() {
        let held = daemon.control_output(&["get_active_thread_percentage", &server.to_string()]);
        assert_eq!(held, "40.0\n", "{server}");
    }
    let mut client = staying(&daemon);
    assert_eq!(
        server_of(&daemon, &client),
        common(&daemon),
        "it is limited"
    );
    end(&mut client);
}

/// NVIDIA's has no context left for one more: one line, and clients share those that there are.
#[test]
fn where_no_more_can_be_had_clients_share() {
    // So many that not all can have been made before there are no more.
    let machine = Machine::new(&["VERSION=13000", "MPS=1", "TOTAL=(80ull<<30)"]);
    let daemon = machine.daemon(&["--underlay=auto", "--contexts=30"], &[]);
    let mut first = staying(&daemon);
    machine.behave("context=808");
    let failed = || contexts(&daemon)["why_not_more"].is_string();
    eventually("one could not be had", failed);
    let before = contexts(&daemon)["contexts"].as_u64().unwrap();
    assert!(before < 30);
    let mut clients: Vec<Child> = (0..3).map(|_| staying(&daemon)).collect();
    assert_eq!(contexts(&daemon)["contexts"], before);
    let log = daemon.control_log();
    let lines = log
        .lines()
        .filter(|line| line.contains("one more cannot be had now"));
    assert_eq!(lines.count(), 1, "{log}");
    assert!(!log.contains("started again without the underlay"), "{log}");
    assert_eq!(underlay(&daemon)["state"], "up", "the others stay");
    let line = doctor(&daemon);
    assert!(
        line.starts_with("warning") && line.contains("no more:"),
        "{line}"
    );
    end(&mut first);
    clients.iter_mut().for_each(end);
}

/// A device of 4 GiB has room for one beside the common one.
#[test]
fn contexts_take_a_part_of_the_memory_only() {
    let machine = Machine::new(BENEATH);
    let daemon = machine.daemon(&THREE, &[]);
    daemon.control_output(&["start_server", "-uid", &user()]);
    let told = || {
        contexts(&daemon)["why_not_more"]
            .as_str()
            .map(str::to_owned)
    };
    eventually("it is said why", || told().is_some());
    assert!(
        told().unwrap().contains("memory"),
        "{told:?}",
        told = told()
    );
    assert_eq!(contexts(&daemon)["contexts"], 2);
}

#[test]
fn without_an_underlay_there_is_one() {
    let machine = Machine::new(ROOMY);
    machine.behave("refuse");
    let daemon = machine.daemon(&THREE, &[]);
    let (mut one, mut other) = (staying(&daemon), staying(&daemon));
    assert_eq!(server_of(&daemon, &one), server_of(&daemon, &other));
    let told = contexts(&daemon);
    assert_eq!(told["contexts"], 1);
    assert_eq!(
        told["why_not_more"],
        "the common one is not on the underlay"
    );
    [&mut one, &mut other].into_iter().for_each(end);
}

#[test]
fn when_it_is_killed_contexts_come_back_on_the_next() {
    let mut definitions = ROOMY.to_vec();
    definitions.push("SPINNING=1");
    let machine = Machine::new(&definitions);
    let daemon = machine.daemon(&THREE, &[]);
    ready(&daemon, 3);
    let before = contexts(&daemon)["servers"].clone();
    let mut programs = [
        running(&daemon, machine.folder.path()),
        running(&daemon, machine.folder.path()),
    ];
    kill(machine.daemons()[0].pid);
    for program in &mut programs {
        assert!(!program.wait().unwrap().success(), "its context died");
    }
    // That of the third died too, and it has no client to notice it.
    let is_over = |pid: &Value| !is_alive(pid.as_u64().unwrap() as u32);
    eventually("none of the servers is left", || {
        before.as_array().unwrap().iter().all(is_over)
    });
    ready(&daemon, 3);
    assert_eq!(machine.daemons().len(), 2);
    assert_eq!(underlay(&daemon)["process"], machine.daemons()[1].pid);
    let mut next = [staying(&daemon), staying(&daemon)];
    assert_ne!(server_of(&daemon, &next[0]), server_of(&daemon, &next[1]));
    next.iter_mut().for_each(end);
}

#[test]
fn a_context_that_was_shut_down_stays_away() {
    let (_machine, daemon) = three();
    let last = contexts(&daemon)["servers"][2].to_string();
    daemon.control_output(&["shutdown_server", &last]);
    let told = contexts(&daemon);
    assert_eq!(told["contexts"], 2);
    assert_eq!(told["why_not_more"], format!("server {last} was shut down"));
    // A client's that dies takes its clients with it, and those of the others live.
    let (mut one, mut other) = (staying(&daemon), staying(&daemon));
    kill(server_of(&daemon, &one).try_into().unwrap());
    eventually("it is gone", || {
        contexts(&daemon)["servers"].as_array().unwrap().len() == 1
    });
    assert_eq!(server_of(&daemon, &other), common(&daemon));
    [&mut one, &mut other].into_iter().for_each(end);
}

/// A client's own server goes with it.
#[test]
fn servers_of_single_clients_end_with_them() {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&["--underlay=auto", "--isolation=client"], &[]);
    succeed(&mut daemon.probe(&["init"]));
    eventually("its server has gone", || {
        daemon.control_output(&["get_server_list"]).is_empty()
    });
}

/// Programs that come all at once while there is not yet a server wait for one and no longer.
#[test]
fn who_comes_before_the_first_server_comes_to_the_common_one() {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&THREE, &[]);
    let start = |_| {
        let mut program = daemon.probe(&["stay"]);
        program.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut clients: Vec<Child> = (0..3).map(start).collect();
    clients
        .iter_mut()
        .for_each(|client| said_staying(client, &daemon));
    eventually("the others are made beside them", || {
        contexts(&daemon)["contexts"] == 3
    });
    clients.iter_mut().for_each(end);
}

const ADA: u32 = 4242;

/// The test program of another user's.
fn of_ada(machine: &Machine, daemon: &Daemon, task: &str) -> Command {
    let mut program = as_ada(machine, daemon, probe());
    program.arg(task);
    program
}

/// A program of another user's.
pub(crate) fn as_ada(machine: &Machine, daemon: &Daemon, own: &Path) -> Command {
    daemon.open_to_others();
    let home = machine.path("home");
    if std::fs::create_dir(&home).is_ok() {
        std::os::unix::fs::chown(&home, Some(ADA), Some(ADA)).unwrap();
    }
    let mut program = Command::new(daemon.copy_for_others(openmps()));
    program
        .args(["run", "--"])
        .arg(daemon.copy_for_others(own))
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", home)
        .current_dir("/")
        .uid(ADA)
        .gid(ADA)
        .stdout(Stdio::piped());
    program
}

fn servers_by_user(daemon: &Daemon) -> Vec<u64> {
    let all = daemon.control_output(&["get_server_list", "--json"]);
    let all: Value = serde_json::from_str(&all).unwrap();
    let uids = all.as_array().unwrap().iter();
    uids.map(|server| server["uid"].as_u64().unwrap()).collect()
}

/// Each user has contexts of its own, by servers that run as that user.
#[test]
fn users_have_contexts_of_their_own() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being other users takes root");
    }
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&["-M", "--underlay=auto", "--contexts=2"], &[]);
    ready(&daemon, 2);
    let mut program = of_ada(&machine, &daemon, "stay").spawn().unwrap();
    said_staying(&mut program, &daemon);
    let of_both = || {
        let mut uids = servers_by_user(&daemon);
        uids.sort_unstable();
        uids == [0, 0, u64::from(ADA), u64::from(ADA)]
    };
    eventually("each has two", of_both);
    let servers = underlay(&daemon)["contexts"]["users"][1]["servers"].clone();
    for server in servers.as_array().unwrap() {
        let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        assert!(status.contains(&format!("Gid:\t{ADA}\t{ADA}")), "{status}");
    }
    end(&mut program);
}

/// Where one user is served at a time, all contexts of another make room.
#[test]
fn another_users_clients_wait_for_all_contexts() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being other users takes root");
    }
    let (machine, daemon) = three();
    let mut clients = [staying(&daemon), staying(&daemon)];
    let mut program = of_ada(&machine, &daemon, "stay").spawn().unwrap();
    eventually("it waits", || {
        daemon.control_log().contains("from user 4242")
    });
    end(&mut clients[0]);
    assert_eq!(
        servers_by_user(&daemon),
        [0, 0, 0],
        "one is left who needs them"
    );
    end(&mut clients[1]);
    said_staying(&mut program, &daemon);
    let of_ada = || servers_by_user(&daemon) == [u64::from(ADA); 3];
    eventually("all are the other's now", of_ada);
    end(&mut program);
}

#[test]
fn a_daemon_that_cannot_have_several_does_not_start() {
    let machine = Machine::new(ROOMY);
    for (arguments, more, why) in [
        (&["--contexts=3"][..], &[][..], "--underlay=auto"),
        (
            &["--underlay=auto", "--contexts=3", "--isolation=client"],
            &[],
            "--isolation=client",
        ),
        (&["--underlay=auto", "--contexts=0"], &[], "from 1 to 40"),
        (
            &["--underlay=auto"],
            &[("OPENMPS_CONTEXTS", "many")],
            "from 1 to 40",
        ),
    ] {
        let mut daemon = machine.daemon(&[], &[]);
        daemon.kill();
        let said = daemon.refused(arguments, &machine.environment(more));
        assert!(said.contains(why), "{arguments:?}: {said}");
        daemon.restart();
    }
}
