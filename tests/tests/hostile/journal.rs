//! What a client can tell a server that takes its session over.

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, eventually, is_alive, program, succeed};
use tests::hostile::journal::LIES;
use tests::talker::Talker;

use crate::scene::attacker;

fn kill_the_server(daemon: &Daemon) {
    let server = daemon.server();
    kill_process(Pid::from_raw(server.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("there is another server", || {
        let list = daemon.control_output(&["get_server_list"]);
        !is_alive(server) && list.trim().parse().is_ok_and(|next: u32| next != server)
    });
}

/// A client that checks what it has, in rounds.
fn bystander(daemon: &Daemon) -> Talker {
    let mut bystander = Talker::start(&mut daemon.command(program("survivor")));
    assert_eq!(bystander.hear(), "ready");
    assert_eq!(bystander.ask("round"), "ok");
    bystander
}

#[test]
fn lies_in_a_journal_end_who_tells_them() {
    let variables = [
        ("OPENMPS_SOFT_MEMORY", "64G"),
        ("OPENMPS_SOFT_OVERCOMMIT", "1"),
    ];
    let daemon = Daemon::start_as(&["--failover"], &variables);
    let mut bystanders = [bystander(&daemon), bystander(&daemon)];
    // From the end of all addresses on down.
    assert_eq!(bystanders[0].ask("grow"), "ok");
    let names = LIES.iter().map(|lie| lie.name).chain(["other packets"]);
    let mut liars: Vec<(&str, Talker)> = names
        .map(|name| (name, attacker("journal", &daemon.pipe(), name)))
        .collect();
    for (name, liar) in &mut liars {
        assert_eq!(liar.hear(), "ready", "{name}");
    }
    kill_the_server(&daemon);
    let server = daemon.server();
    for bystander in &mut bystanders {
        assert_eq!(bystander.ask("round"), "ok");
    }
    for (name, liar) in &mut liars {
        assert_eq!(liar.hear(), "told", "{name}");
        assert_eq!(liar.hear(), "ended", "{name}");
    }
    eventually("only the bystanders are clients", || {
        daemon.clients().len() == bystanders.len()
    });
    let log = daemon.server_log();
    for (name, liar) in liars {
        let client = format!("Client {} (liar): ", liar.id());
        let told = ["disconnected: ", "ended: "].map(|how| format!("{client}{how}"));
        let is_told = told.iter().any(|told| log.contains(told));
        assert!(is_told, "{name}: nothing of {client:?} in\n{log}");
    }
    for bystander in &mut bystanders {
        assert_eq!(bystander.ask("round"), "ok");
    }
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    assert_eq!(daemon.server(), server, "no lie ends a server");
    kill_the_server(&daemon);
    for bystander in &mut bystanders {
        assert_eq!(bystander.ask("round"), "ok");
    }
}

/// A client that says nothing cannot be told from one that has nothing to say yet. It holds its session and nobody
/// else's, until it is ended or its process is.
#[test]
fn who_tells_nothing_waits_alone() {
    let daemon = Daemon::start_as(&["--failover"], &[]);
    let mut bystander = bystander(&daemon);
    let mut silent: Vec<Talker> = ["no answer", "no file", "an empty journal", "no answer"]
        .into_iter()
        .map(|what| attacker("journal", &daemon.pipe(), what))
        .collect();
    for silent in &mut silent {
        assert_eq!(silent.hear(), "ready");
    }
    kill_the_server(&daemon);
    let server = daemon.server();
    for silent in &mut silent {
        assert_eq!(silent.hear(), "told");
    }
    assert_eq!(bystander.ask("round"), "ok");
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    // One goes by itself.
    silent.pop().unwrap().kill();
    for silent in &mut silent {
        let (server, pid) = (server.to_string(), silent.id().to_string());
        daemon.control_output(&["terminate_client", &server, &pid]);
        assert_eq!(silent.hear(), "ended");
    }
    eventually("only the bystander is a client", || {
        daemon.clients().len() == 1
    });
    assert_eq!(bystander.ask("round"), "ok");
    assert_eq!(daemon.server(), server);
}
