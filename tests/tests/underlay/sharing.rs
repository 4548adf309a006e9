//! Memory that clients of one user share though each has a context of its own.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{Daemon, eventually, settled_threads_and_files, succeed};
use tests::skipped::skipped;
use tests::talker::Talker;
use transport::socket::Listener;

use crate::contexts::{ROOMY, THREE, as_ada, contexts, ready, server_of_process, three};
use crate::is_root;
use crate::machine::{Machine, kill};

const PROGRAM: &str = env!("CARGO_BIN_EXE_exchange");
const PHYSICAL: &str = env!("CARGO_BIN_EXE_memories");

/// More than one granule of memory, and no whole number of them.
const ALLOC: &str = "alloc 3000000";

/// CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE
const OWN: &str = "error 201";
const WRONG: &str = "error 400";

fn start(command: &mut Command, daemon: &Daemon) -> Talker {
    let mut program = Talker::start(command);
    assert_eq!(program.hear(), "ready", "{}", daemon.server_log());
    program
}

fn program(daemon: &Daemon) -> Talker {
    start(&mut daemon.command(PROGRAM), daemon)
}

/// Two programs with a context each.
fn apart(daemon: &Daemon) -> [Talker; 2] {
    let both = [program(daemon), program(daemon)];
    let servers = both.each_ref().map(|one| server(daemon, one));
    assert_ne!(servers[0], servers[1]);
    both
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.cast_signed()).unwrap();
    kill_process(process, signal).unwrap();
}

fn server(daemon: &Daemon, program: &Talker) -> u32 {
    let server = server_of_process(daemon, program.id());
    server.try_into().unwrap()
}

/// Kills a program, until the daemon knows.
fn end(daemon: &Daemon, program: Talker) {
    let pid = Value::from(program.id());
    program.kill();
    eventually("it is gone", || {
        let clients = daemon.control_output(&["ps", "--json"]);
        let clients: Value = serde_json::from_str(&clients).unwrap();
        let mut clients = clients.as_array().unwrap().iter();
        clients.all(|client| client["pid"] != pid)
    });
}

/// Has a program share a block. The others' word for it.
fn share(owner: &mut Talker) -> String {
    assert_eq!(owner.ask(ALLOC), "ok");
    assert_eq!(owner.ask("write 7"), "ok");
    format!("open {}", owner.ask("get"))
}

/// Waits until a program is told of so much free memory.
fn has_free(program: &mut Talker, free: &str) {
    eventually("nobody has the memory any more", || {
        program.ask("memory") == free
    });
}

#[test]
fn a_block_is_opened_across_contexts() {
    let (_machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let free = owner.ask("memory");
    let open = share(&mut owner);
    assert_eq!(owner.ask(&open), OWN);
    for _ in 0..2 {
        assert_eq!(user.ask(&open), "ok", "{}", daemon.server_log());
    }
    assert_eq!(user.ask("read"), "[7]");
    assert_eq!(user.ask("write 8"), "ok");
    assert_eq!(owner.ask("read"), "[8]");
    // A third, in a context of its own, or in one of these.
    let mut others = [program(&daemon), program(&daemon)];
    for other in &mut others {
        assert_eq!(other.ask(&open), "ok", "{}", daemon.server_log());
        assert_eq!(other.ask("read"), "[8]");
    }
    assert_eq!(user.ask("close"), "ok");
    assert_eq!(user.ask("read"), "[8]", "opened twice");
    // What its owner has freed stays, and counts for the owner, until nobody has it.
    assert_eq!(owner.ask("free"), "ok");
    assert_ne!(owner.ask("memory"), free);
    assert_eq!(user.ask("write 9"), "ok");
    for other in &mut others {
        assert_eq!(other.ask("read"), "[9]");
        assert_eq!(other.ask("close"), "ok");
    }
    assert_eq!(user.ask("close"), "ok");
    assert!(user.ask("read").starts_with("error"));
    has_free(&mut owner, &free);
    assert_eq!(user.ask(&open), WRONG);
}

#[test]
fn a_block_is_opened_by_who_has_freed_between_others() {
    let (_machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let open = share(&mut owner);
    // What it has comes in larger pieces, the more there is of it: the block freed last lies in one with those beside it.
    let blocks: Vec<String> = (0..14)
        .map(|_| {
            assert_eq!(user.ask("alloc 6291456"), "ok");
            user.ask("where")
        })
        .collect();
    assert_eq!(user.ask(&format!("at {}", blocks[10])), "ok");
    assert_eq!(user.ask("free"), "ok");
    // Its server keeps it for the next block as long as it has more to do.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(user.ask(&open), "ok", "{}", daemon.server_log());
    assert_eq!(user.ask("read"), "[7]");
}

/// What is run on a GPU, by `benches/gpu.sh sharing`.
#[test]
fn pairs_of_programs_find_all_right_in_two_contexts_and_in_one() {
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&["--underlay=auto", "--contexts=2"], &[]);
    ready(&daemon, 2);
    let said = succeed(&mut daemon.command(env!("CARGO_BIN_EXE_exchange_pair")));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for (line, what) in lines.iter().zip(["another address", "the same address"]) {
        assert!(line.contains(what) && line.ends_with("right"), "{said}");
    }
}

#[test]
fn whoever_is_killed_nothing_is_left_and_nothing_is_lost() {
    let (_machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let free = owner.ask("memory");
    // Before it is opened, and while it is.
    let open = share(&mut owner);
    let mut early = program(&daemon);
    assert_eq!(early.ask(&open), "ok");
    early.kill();
    assert_eq!(user.ask(&open), "ok");
    assert_eq!(owner.ask("free"), "ok");
    assert_ne!(owner.ask("memory"), free);
    user.kill();
    has_free(&mut owner, &free);

    // Those who share it.
    let mut user = program(&daemon);
    assert_ne!(server(&daemon, &owner), server(&daemon, &user));
    let open = share(&mut owner);
    assert_eq!(user.ask(&open), "ok");
    end(&daemon, owner);
    assert_eq!(user.ask("read"), "[7]");
    let mut late = program(&daemon);
    eventually("its owner has gone", || late.ask(&open) == WRONG);
    assert_eq!(user.ask("write 8"), "ok");
    assert_eq!(user.ask("close"), "ok");
}

#[test]
fn who_opens_and_goes_over_and_over_leaves_no_thread_and_no_file() {
    let (_machine, daemon) = three();
    let [mut owner, user] = apart(&daemon);
    let servers = [server(&daemon, &owner), server(&daemon, &user)];
    drop(user);
    let (open, open_event) = (share(&mut owner), share_event(&mut owner));
    let one_more = |kills: bool| {
        let mut user = program(&daemon);
        for task in [&*open, "write 8", &*open_event, "record", "wait", "sync"] {
            assert_eq!(user.ask(task), "ok", "{task}");
        }
        let others = server(&daemon, &user) != servers[0];
        match kills {
            true => user.kill(),
            false => drop(user.last()),
        }
        others
    };
    let seen = || [servers[0], servers[1], daemon.pid()].map(settled_threads_and_files);
    let gone = |owner: &Talker| {
        let only = owner.id().to_string();
        eventually("only the owner is left", || {
            let clients = daemon.control_output(&["ps", "--json"]);
            clients.matches("\"pid\"").count() == 1 && clients.contains(&only)
        });
    };
    // The first ones make what stays.
    let _ = (one_more(true), one_more(false));
    gone(&owner);
    let before = seen();
    let across = (0..12).filter(|round| one_more(round % 2 == 0)).count();
    assert!(across > 0, "none came to another context");
    gone(&owner);
    // What was about to go when it was counted first may be less by now.
    eventually("nothing more is left", || {
        let mut each = seen().into_iter().zip(before);
        each.all(|(now, before)| now.0 <= before.0 && now.1 <= before.1)
    });
    assert_eq!(owner.ask("read"), "[8]");
}

#[test]
fn a_server_that_is_killed_takes_its_own_clients_alone() {
    let (_machine, daemon) = three();
    // That of who has a block open.
    let [mut owner, mut user] = apart(&daemon);
    let free = owner.ask("memory");
    let open = share(&mut owner);
    assert_eq!(user.ask(&open), "ok");
    assert_eq!(owner.ask("free"), "ok");
    kill(server(&daemon, &user));
    has_free(&mut owner, &free);
    assert!(user.ask("read").starts_with("error"));

    // That of who shares it: two are left.
    end(&daemon, owner);
    let [mut owner, mut user] = apart(&daemon);
    let open = share(&mut owner);
    assert_eq!(user.ask(&open), "ok");
    let killed = server(&daemon, &owner);
    kill(killed);
    eventually("it is gone", || {
        let servers = contexts(&daemon)["servers"].clone();
        !servers.as_array().unwrap().contains(&killed.into())
    });
    assert_eq!(user.ask("read"), "[7]");
    assert_eq!(user.ask("write 8"), "ok");
    assert_eq!(user.ask("read"), "[8]");
    assert_eq!(user.ask("close"), "ok");
}

#[test]
fn a_server_that_does_not_answer_holds_up_who_asks_and_nobody_else() {
    let (_machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let free = owner.ask("memory");
    let open = share(&mut owner);
    let stopped = server(&daemon, &owner);
    signal(stopped, Signal::STOP);
    user.say(&open);
    // Meanwhile the daemon answers others, and their servers do.
    let mut other = program(&daemon);
    assert_ne!(server(&daemon, &other), stopped);
    assert_eq!(other.ask("alloc 4096"), "ok");
    assert_eq!(user.hear(), WRONG);
    assert_eq!(user.ask("alloc 4096"), "ok");
    signal(stopped, Signal::CONT);
    // What it answers now is nobody's, and kept for nobody.
    assert_eq!(owner.ask("free"), "ok");
    has_free(&mut owner, &free);
    let open = share(&mut owner);
    assert_eq!(user.ask(&open), "ok");
    assert_eq!(user.ask("read"), "[7]");
}

#[test]
fn a_wrong_handle_is_nobodys() {
    let (_machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let open = share(&mut owner);
    // As a handle, it begins with what is no secret.
    let (head, token) = open.split_at("open ".len() + 16);
    for number in 0..300 {
        let wrong = format!("{head}{number:064x}{}", &token[64..]);
        assert_eq!(user.ask(&wrong), WRONG);
    }
    let log = daemon.server_log();
    assert!(log.contains("no client of its user shares"), "{log}");
    let mut other = program(&daemon);
    assert_eq!(other.ask(&open), "ok", "who has asked for nothing else");
    eventually("it may ask again", || user.ask(&open) == "ok");
    assert_eq!(user.ask("read"), "[7]");
}

#[test]
fn another_users_is_not_found() {
    if !is_root() {
        return skipped("being other users takes root");
    }
    let machine = Machine::new(ROOMY);
    let daemon = machine.daemon(&["-M", "--underlay=auto", "--contexts=2"], &[]);
    ready(&daemon, 2);
    let mut owner = program(&daemon);
    let open = share(&mut owner);
    let mut others = [(); 2].map(|()| {
        let mut command = as_ada(&machine, &daemon, Path::new(PROGRAM));
        start(&mut command, &daemon)
    });
    for other in &mut others {
        assert_eq!(other.ask(&open), WRONG);
    }
}

/// A program that has exported physical memory, and the descriptor.
fn exporter(machine: &Machine, daemon: &Daemon) -> (Talker, OwnedFd) {
    let path = machine.path("exported");
    let listener = Listener::bind(&path).unwrap();
    let mut owner = Talker::start(daemon.command(PHYSICAL).arg("export").arg(&path));
    let (_, mut descriptors) = listener.accept().unwrap().receive().unwrap();
    assert_eq!(owner.hear(), "exported");
    std::fs::remove_file(&path).unwrap();
    (owner, descriptors.pop().unwrap())
}

/// What a new program finds in it, in a context that is not this one.
fn found_in(machine: &Machine, daemon: &Daemon, descriptor: &OwnedFd, other: u32) -> String {
    let path = machine.path("to-import");
    let listener = Listener::bind(&path).unwrap();
    let mut user = Talker::start(daemon.command(PHYSICAL).arg("import").arg(&path));
    let connection = listener.accept().unwrap();
    assert_ne!(server(daemon, &user), other);
    connection.send(b"here", &[descriptor.as_fd()]).unwrap();
    let line = user.hear();
    std::fs::remove_file(&path).unwrap();
    line
}

#[test]
fn physical_memory_is_imported_across_contexts() {
    let (machine, daemon) = three();
    // It stays where the memory is, and is told what is free there.
    let (mut owner, descriptor) = exporter(&machine, &daemon);
    let at = server(&daemon, &owner);
    assert_eq!(found_in(&machine, &daemon, &descriptor, at), "right");
    assert_eq!(owner.ask("release"), "released");
    let found = found_in(&machine, &daemon, &descriptor, at);
    assert_eq!(found, "right", "without its handle");
    // One that stays beside it, for the next to come to other contexts.
    let mut beside = Vec::new();
    while !beside.iter().any(|one| server(&daemon, one) == at) {
        beside.push(program(&daemon));
    }
    beside.retain(|one| server(&daemon, one) == at);
    end(&daemon, owner);
    let found = found_in(&machine, &daemon, &descriptor, at);
    assert_eq!(found, "right", "without its owner");
    kill(at);
    eventually("its server is gone", || {
        let servers = contexts(&daemon)["servers"].clone();
        !servers.as_array().unwrap().contains(&at.into())
    });
    let found = found_in(&machine, &daemon, &descriptor, at);
    assert!(found.starts_with("error"), "{found}: nobody knows it");
}

#[test]
fn what_comes_from_a_shared_pool_is_opened_across_contexts() {
    let (machine, daemon) = three();
    let [mut owner, mut user] = apart(&daemon);
    let path = machine.path("pool");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(owner.ask(&format!("pool {}", path.display())), "ok");
    let (_, descriptors) = listener.accept().unwrap().receive().unwrap();
    user.say(&format!("open-pool {}", path.display()));
    let connection = listener.accept().unwrap();
    connection.send(b"pool", &[descriptors[0].as_fd()]).unwrap();
    assert_eq!(user.hear(), "ok");
    assert_eq!(owner.ask("pool-alloc 5000"), "ok");
    assert_eq!(owner.ask("write 7"), "ok");
    let open = format!("open-pointer {}", owner.ask("get-pointer"));
    assert_eq!(user.ask(&open), "ok", "{}", daemon.server_log());
    assert_eq!(user.ask("read"), "[7]");
    assert_eq!(user.ask("write 8"), "ok");
    assert_eq!(owner.ask("read"), "[8]");
    assert_eq!(user.ask("pool-free"), "ok");
    assert_eq!(user.ask("sync"), "ok");
    assert!(user.ask("read").starts_with("error"));
    assert_eq!(owner.ask("read"), "[8]");
    assert_eq!(owner.ask("pool-free"), "ok");
}

/// CUDA_ERROR_NOT_READY
const NOT_READY: &str = "error 600";

/// Has a program share an event. The others' word for it.
fn share_event(owner: &mut Talker) -> String {
    assert_eq!(owner.ask("event"), "ok");
    format!("open-event {}", owner.ask("get-event"))
}

/// Has a program record its event behind a kernel that does not end, and another one wait for that.
fn wait_for(recorder: &mut Talker, waiter: &mut Talker) {
    assert_eq!(recorder.ask("run"), "ok");
    assert_eq!(recorder.ask("record"), "ok");
    assert_eq!(waiter.ask("query"), NOT_READY);
    assert_eq!(waiter.ask("wait"), "ok");
    assert_eq!(waiter.ask("idle"), NOT_READY);
}

#[test]
fn an_event_is_waited_for_across_contexts_as_long_as_there_is_who_records_it() {
    let folder = tempfile::tempdir().unwrap();
    let held = folder.path().join("held");
    let hold = || std::fs::write(&held, "").unwrap();
    let let_go = || std::fs::remove_file(&held).unwrap();
    let defined = format!("HELD=\"{}\"", held.display());
    let machine = Machine::new(&[ROOMY, &["SPINNING=1", &defined]].concat());
    let daemon = machine.daemon(&THREE, &[]);
    ready(&daemon, 3);
    let [mut owner, mut user] = apart(&daemon);
    let open = share_event(&mut owner);
    assert_eq!(user.ask(&open), "ok", "{}", daemon.server_log());
    assert_eq!(user.ask("query"), "ok", "never recorded");
    hold();
    wait_for(&mut owner, &mut user);
    let_go();
    assert_eq!(user.ask("sync"), "ok");
    assert_eq!(user.ask("query"), "ok");
    hold();
    wait_for(&mut user, &mut owner);
    let_go();
    assert_eq!(owner.ask("sync"), "ok");

    // The server of who has recorded it is killed, and then that of who has made it.
    hold();
    wait_for(&mut user, &mut owner);
    kill(server(&daemon, &user));
    assert_eq!(owner.ask("sync"), "ok");
    let mut last = program(&daemon);
    let (its, owners) = (server(&daemon, &last), server(&daemon, &owner));
    assert_ne!(its, owners);
    assert_eq!(last.ask(&open), "ok");
    wait_for(&mut owner, &mut last);
    kill(owners);
    assert_eq!(last.ask("sync"), "ok");
    let_go();
    for task in ["record", "wait", "sync", "query", "destroy"] {
        assert_eq!(last.ask(task), "ok", "{task}");
    }
}
