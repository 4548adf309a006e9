//! Memory of every kind: quotas hold, nothing is left behind, nobody reaches what is not theirs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::daemon::{Daemon, eventually, settled_threads_and_files, succeed, threads_and_files};
use tests::talker::Talker;
use transport::socket::Listener;

const PROGRAM: &str = env!("CARGO_BIN_EXE_memories");

fn command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = daemon.command(PROGRAM);
    command.args(arguments);
    command
}

/// A client at its task, with which the test speaks.
fn client(daemon: &Daemon, task: &str) -> Talker {
    Talker::start(&mut command(daemon, &[task]))
}

/// Has a client end in good order.
fn end(mut client: Talker) {
    assert_eq!(client.ask("end"), "ok");
    assert!(client.wait().success());
}

fn free_memory(daemon: &Daemon) -> String {
    succeed(&mut command(daemon, &["free"]))
}

#[test]
fn every_way_to_memory_obeys_the_quota() {
    let daemon = Daemon::start();
    let mut client = command(&daemon, &["quota"]);
    client.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64M");
    assert_eq!(succeed(&mut client), "ok\n");
}

/// A software GPU of the size of a large one, of which little is touched.
fn large_device() -> Daemon {
    Daemon::start_with(&[
        ("OPENMPS_SOFT_MEMORY", "141G"),
        ("OPENMPS_SOFT_OVERCOMMIT", "1"),
    ])
}

#[test]
fn a_client_may_have_all_of_a_large_device() {
    let daemon = large_device();
    assert_eq!(succeed(&mut command(&daemon, &["large"])), "ok\n");
    let server = daemon.server();
    // What it had is free again for the next one, and so are its addresses.
    assert_eq!(succeed(&mut command(&daemon, &["large"])), "ok\n");
    assert_eq!(daemon.server(), server);
}

#[test]
fn a_large_quota_is_what_is_seen() {
    let daemon = large_device();
    let mut client = command(&daemon, &["large-quota"]);
    client.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=50G");
    assert_eq!(succeed(&mut client), "ok\n");
}

#[test]
fn what_the_machine_does_not_have_is_refused() {
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "10240G")]);
    assert_eq!(succeed(&mut command(&daemon, &["beyond"])), "ok\n");
}

#[test]
fn a_program_without_addresses_gets_no_memory_there() {
    let daemon = large_device();
    assert_eq!(succeed(&mut command(&daemon, &["confined"])), "ok\n");
}

#[test]
fn registered_memory_is_the_programs_before_during_and_after() {
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut command(&daemon, &["registered"])), "ok\n");
}

#[test]
fn a_registered_file_that_is_cut_short_fails_its_client_alone() {
    let daemon = Daemon::start();
    let mut neighbour = client(&daemon, "offer");
    let offered = neighbour.hear();
    neighbour.hear();
    let server = daemon.server();
    for _ in 0..3 {
        assert_eq!(succeed(&mut command(&daemon, &["torn"])), "ok\n");
    }
    assert_eq!(succeed(&mut command(&daemon, &["registered"])), "ok\n");
    let mut user = client(&daemon, "use");
    assert_eq!(user.ask(&offered), "open");
    assert_eq!(neighbour.ask("write"), "written");
    assert_eq!(user.ask("read"), "right");
    assert_eq!(daemon.server(), server, "the server lives");
}

#[test]
fn clients_killed_with_memory_of_any_kind_leave_nothing() {
    let daemon = Daemon::start();
    let free = free_memory(&daemon);
    let server = daemon.server();
    eventually("the first client is gone", || daemon.clients().is_empty());
    let before = settled_threads_and_files(server);
    for kind in [
        "managed",
        "registered",
        "file",
        "pool",
        "virtual",
        "exported",
    ] {
        for moment in 0..6 {
            let victim = Talker::start(&mut command(&daemon, &["hold", kind]));
            victim.kill_after("holding", Duration::from_millis(moment * 7));
        }
        eventually("all clients are gone", || daemon.clients().is_empty());
        eventually("no thread and no file is left", || {
            threads_and_files(server) == before
        });
        assert_eq!(free_memory(&daemon), free, "{kind}");
        eventually("the last client is gone", || daemon.clients().is_empty());
    }
    assert_eq!(daemon.server(), server, "the server lives");
}

/// What a new client finds in a descriptor.
fn found_in(daemon: &Daemon, descriptor: &OwnedFd) -> String {
    let path = daemon.pipe().join("to-import");
    let listener = Listener::bind(&path).unwrap();
    let mut client = command(daemon, &["import", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let connection = listener.accept().unwrap();
    connection.send(b"here", &[descriptor.as_fd()]).unwrap();
    let mut line = String::new();
    let output = client.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(client.wait().unwrap().success());
    std::fs::remove_file(&path).unwrap();
    line.trim().to_owned()
}

/// A client that has exported memory, and the descriptor.
fn exporter(daemon: &Daemon, limit: &str) -> (Talker, OwnedFd) {
    let path = daemon.pipe().join("exported");
    let listener = Listener::bind(&path).unwrap();
    let mut exporter = command(daemon, &["export", path.to_str().unwrap()]);
    let mut talker = Talker::start(exporter.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit));
    let (_, mut descriptors) = listener.accept().unwrap().receive().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(talker.hear(), "exported");
    (talker, descriptors.pop().unwrap())
}

#[test]
fn a_descriptor_holds_its_memory_until_its_last_copy_is_closed() {
    let daemon = Daemon::start();
    let free = free_memory(&daemon);
    let (mut owner, descriptor) = exporter(&daemon, "");
    assert_eq!(found_in(&daemon, &descriptor), "right");
    assert_eq!(owner.ask("release"), "released");
    assert_eq!(
        found_in(&daemon, &descriptor),
        "right",
        "without its handle"
    );
    owner.kill();
    eventually("the owner is gone", || daemon.clients().is_empty());
    let copy = descriptor.try_clone().unwrap();
    drop(descriptor);
    assert_eq!(found_in(&daemon, &copy), "right", "without its owner");
    assert_ne!(free_memory(&daemon), free);
    drop(copy);
    eventually("the memory is free", || free_memory(&daemon) == free);
}

#[test]
fn descriptors_of_the_dead_hold_no_more_than_one_client_may_have() {
    let daemon = Daemon::start();
    let free = free_memory(&daemon);
    let mut held = Vec::new();
    for left in ["right", "error 1"] {
        let (owner, descriptor) = exporter(&daemon, "0=100M");
        assert_eq!(found_in(&daemon, &descriptor), "right");
        owner.kill();
        eventually("the owner is gone", || daemon.clients().is_empty());
        assert_eq!(found_in(&daemon, &descriptor), left);
        held.push(descriptor);
    }
    assert!(daemon.server_log().contains("are not held by descriptors"));
    assert_eq!(found_in(&daemon, &held[0]), "right", "as before");
    held.clear();
    eventually("the memory is free", || free_memory(&daemon) == free);
}

#[test]
fn a_block_lives_until_the_last_who_uses_it_is_gone() {
    let daemon = Daemon::start();
    let free = free_memory(&daemon);
    let server = daemon.server();
    for killed in [false, true] {
        let mut owner = client(&daemon, "offer");
        let offered = owner.hear();
        owner.hear();
        let mut user = client(&daemon, "use");
        assert_eq!(user.ask(&offered), "open");
        assert_eq!(owner.ask("write"), "written");
        assert_eq!(user.ask("read"), "right");
        if killed {
            owner.kill();
        } else {
            // Freed by its owner, the block stays, and stays the owner's by count.
            let held = owner.ask("free");
            assert_eq!(user.ask("read"), "right");
            assert_eq!(user.ask("close"), "closed");
            eventually("the block is the owner's to use again", || {
                owner.ask("memory") != held
            });
            end(owner);
            end(user);
            continue;
        }
        eventually("the owner is gone", || daemon.clients().len() == 1);
        assert_eq!(
            user.ask("read"),
            "right",
            "the owner's death changes nothing"
        );
        // Nobody finds it any more.
        let mut late = client(&daemon, "use");
        assert!(late.ask(&offered).starts_with("error"));
        late.wait();
        assert_eq!(user.ask("close"), "closed");
        end(user);
    }
    eventually("all clients are gone", || daemon.clients().is_empty());
    assert_eq!(free_memory(&daemon), free);
    assert_eq!(daemon.server(), server);
}

#[test]
fn one_who_uses_a_block_reaches_nothing_else() {
    let daemon = Daemon::start();
    let free = free_memory(&daemon);
    let mut owner = client(&daemon, "offer");
    let offered = owner.hear();
    owner.hear();
    let mut user = client(&daemon, "use");
    assert_eq!(user.ask(&offered), "open");
    assert_eq!(user.ask("wild"), "error 700", "the block's neighbour");
    user.wait();
    // Killed while it has the block open, a user gives it back.
    let mut user = client(&daemon, "use");
    assert_eq!(user.ask(&offered), "open");
    let before = owner.ask("memory");
    user.kill();
    assert_eq!(owner.ask("write"), "written", "the owner noticed nothing");
    let after = owner.ask("free");
    assert_ne!(before, after, "it is the owner's to free");
    end(owner);
    eventually("all clients are gone", || daemon.clients().is_empty());
    assert_eq!(free_memory(&daemon), free);
}
