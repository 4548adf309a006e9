//! The daemon is replaced, or killed, under running clients: nobody is lost, and every result is exact.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use tests::daemon::{Daemon, eventually, is_alive, succeed};

/// A client in a loop of kernels whose results it checks, until [`over`].
fn bystander(command: &mut Command) -> Child {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(line_of(&mut child), "running\n");
    child
}

fn line_of(child: &mut Child) -> String {
    let mut line = String::new();
    // A pipe of one line at a time: nothing is read ahead that another call would miss.
    let mut reader = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
    reader.read_line(&mut line).unwrap();
    line
}

/// Ends a client, which says how many rounds there were.
fn over(mut child: Child) -> u64 {
    drop(child.stdin.take());
    let line = line_of(&mut child);
    assert!(child.wait().unwrap().success(), "{line}");
    line.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn clients_live_through_upgrades_and_later_ones_get_new_servers() {
    let daemon = Daemon::start();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        clients.push(bystander(&mut daemon.probe(&["bystander"])));
        servers.push(daemon.server());
        assert_eq!(
            daemon.control_output(&["upgrade"]),
            "1 clients stay on 1 servers until they end\n"
        );
        // The answer is the next program's: it is there.
        assert_eq!(daemon.control_output(&["get_server_list"]), "");
    }
    let last = succeed(&mut daemon.probe(&["work", "3"]));
    assert_eq!(last, "ok\n");
    servers.push(daemon.server());
    let mut different = servers.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), servers.len(), "{servers:?}");
    assert!(servers.iter().all(|&server| is_alive(server)));
    let rounds: Vec<u64> = clients.into_iter().map(over).collect();
    assert!(rounds.iter().all(|&rounds| rounds > 1), "{rounds:?}");
    eventually("the former servers end with their clients", || {
        !servers[..3].iter().any(|&server| is_alive(server))
    });
    let log = daemon.control_log();
    assert_eq!(log.matches("Starting control daemon").count(), 4, "{log}");
}

#[test]
fn whoever_comes_during_an_upgrade_is_served() {
    let daemon = Daemon::start();
    let group = daemon.control_output(&["group", "add", "tenant"]);
    let group = group.trim().to_owned();
    // A container has nothing to say in this.
    let refused = tests::daemon::control_at(Path::new(&group), &["upgrade"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(!daemon.control_log().contains("Going on as"));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (daemon, group) = (&daemon, &group);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let mut command = daemon.probe(&["work", "1"]);
                        if number % 2 == 1 {
                            command.env("CUDA_MPS_PIPE_DIRECTORY", group);
                        }
                        assert_eq!(succeed(&mut command), "ok\n");
                    }
                })
            })
            .collect();
        while !clients.iter().all(|client| client.is_finished()) {
            let said = daemon.control(&["upgrade"]);
            assert!(said.status.success(), "{said:?}");
        }
    });
    assert!(daemon.control_log().contains("clients stay on"));
}

#[test]
fn what_was_set_holds_after_an_upgrade() {
    let mut daemon = Daemon::start_as(&["-M"], &[]);
    daemon.control_output(&["group", "add", "tenant", "--memory", "0=1G"]);
    succeed(&mut daemon.probe(&["work", "1"]));
    for (name, value) in [
        ("active_thread_percentage", &["42.5"][..]),
        ("device_pinned_mem_limit", &["0", "512M"]),
        ("client_priority", &["1"]),
    ] {
        let set = format!("set_default_{name}");
        daemon.control_output(&[&[&*set], value].concat());
    }
    let before = daemon.pid();
    daemon.control_output(&["upgrade"]);
    let said = |arguments: &[&str]| daemon.control_output(arguments);
    assert_eq!(said(&["get_default_active_thread_percentage"]), "42.5\n");
    assert_eq!(said(&["get_default_client_priority"]), "1\n");
    let limit = said(&["get_default_device_pinned_mem_limit", "0"]);
    assert!(limit.contains("512M"), "{limit}");
    assert!(said(&["group", "list"]).contains("tenant"));
    let log = daemon.control_log();
    assert_eq!(log.matches("Multi-user mode").count(), 2, "{log}");
    assert!(is_alive(before), "it is the same process");
    daemon.signal(Signal::TERM);
}

#[test]
fn the_program_that_was_put_in_place_is_run_and_one_that_cannot_be_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("openmps");
    std::fs::copy(tests::daemon::openmps(), &program).unwrap();
    let pipe = folder.path().join("pipe");
    let mut daemon = Command::new(&program)
        .args(["control", "-f", "--failover"])
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let control = |arguments: &[&str]| tests::daemon::control_at(&pipe, arguments);
    eventually("the daemon answers", || control(&["ping"]).status.success());
    let run_by = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).unwrap();
    let own = || run_by(daemon.id());
    let mut client = Command::new(tests::daemon::openmps());
    client.args(["run", "--"]).arg(tests::daemon::probe());
    client
        .arg("bystander")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
    let client = bystander(&mut client);
    let put = |from: &Path| {
        let new = folder.path().join("new");
        std::fs::copy(from, &new).unwrap();
        std::fs::rename(new, &program).unwrap();
    };

    std::fs::remove_file(&program).unwrap();
    let refused = control(&["upgrade"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(control(&["ping"]).status.success(), "it goes on");
    // Neither runs, whatever a shell would make of it.
    let whole = std::fs::read(tests::daemon::openmps()).unwrap();
    for (bytes, why) in [
        (&b""[..], "no program"),
        (&whole[..4096], "does not run here"),
    ] {
        let broken = folder.path().join("broken");
        std::fs::write(&broken, bytes).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&broken, mode).unwrap();
        put(&broken);
        let refused = control(&["upgrade"]);
        let said = String::from_utf8_lossy(&refused.stdout);
        assert!(
            said.contains(why) && said.contains("nothing was changed"),
            "{refused:?}"
        );
        assert_eq!(refused.status.code(), Some(1));
        assert!(control(&["ping"]).status.success(), "it goes on");
    }

    put(tests::daemon::openmps());
    assert_ne!(own(), program, "it runs what is not there any more");
    let done = control(&["upgrade", "--json"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "{\"clients\":0,\"moved\":1,\"servers\":0}\n"
    );
    assert_eq!(own(), program);
    let log = std::fs::read_to_string(folder.path().join("log/control.log")).unwrap();
    let (before, _) = log.split_once(", which stood by, takes").expect(&log);
    let (_, server) = before.rsplit_once(' ').unwrap();
    assert_eq!(run_by(server.parse().unwrap()), program);
    assert!(over(client) > 1);
    assert!(control(&["quit", "-t", "1"]).status.success());
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn clients_live_through_daemons_that_are_killed() {
    let mut daemon = Daemon::start();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(bystander(&mut daemon.probe(&["bystander"])));
        daemon.kill();
        daemon.restart();
    }
    assert_eq!(succeed(&mut daemon.probe(&["work", "3"])), "ok\n");
    for client in clients {
        assert!(over(client) > 1);
    }
}

/// What the units' `KillMode=process` and `OOMPolicy=continue` rest on: systemd only signals the daemon's own process,
/// and who is left of the service is the daemon's to end.
#[test]
fn a_daemon_that_is_told_to_end_leaves_no_server_of_its_own() {
    let mut daemon = Daemon::start();
    let mut clients = Vec::new();
    for arguments in [&["bystander"][..], &["forever"]] {
        let mut command = daemon.probe(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().unwrap();
        assert_eq!(line_of(&mut client), "running\n");
        clients.push(client);
    }
    let server = daemon.server();
    daemon.signal(Signal::TERM);
    assert!(!is_alive(server), "it goes before the daemon, or with it");
    for mut client in clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

/// The other side of it: who stayed on a server of a daemon that was killed is not ended with the next daemon, and that
/// server ends with its clients.
#[test]
fn a_server_of_a_killed_daemon_outlives_the_next_one_and_ends_with_its_clients() {
    let mut daemon = Daemon::start();
    let client = bystander(&mut daemon.probe(&["bystander"]));
    let former = daemon.server();
    daemon.kill();
    daemon.restart();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    let server = daemon.server();
    daemon.signal(Signal::TERM);
    assert!(!is_alive(server));
    assert!(is_alive(former));
    assert!(over(client) > 1);
    eventually("it ends with its client", || !is_alive(former));
}
