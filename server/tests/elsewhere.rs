//! What clients of one user's servers share with each other, by way of a daemon that these tests play.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::{Packet, SharedDevice, SharedObject};
use protocol::operations::*;
use rig::engine::{FakeEngine, Mapping, PIECE};
use rig::{Rig, TestClient, until};
use transport::socket::poll;
use transport::token_descriptor;

const BYTES: u64 = 3 << 20;

type Token = [u64; 4];

/// Two servers of one user.
fn servers() -> [Rig; 2] {
    [(); 2].map(|()| Rig::beside_others(FakeEngine::new()))
}

fn expose(client: &TestClient, kind: Exposed, object: u64) -> Token {
    let expose = Expose {
        kind: kind as u32,
        object,
        bytes: BYTES,
    };
    let reply = client.end.call(&expose, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
    reply.fields.token
}

/// A block of a client's that others may open.
fn block(client: &TestClient) -> (u64, Token) {
    let address = client.alloc(BYTES).unwrap();
    (address, expose(client, Exposed::Block, address))
}

fn open(client: &TestClient, token: Token) -> Result<MemImportReply, CUresult> {
    let reply = client.end.call(&MemImport { token }, &[]).unwrap();
    match reply.status {
        CUresult::SUCCESS => Ok(reply.fields),
        code => Err(code),
    }
}

fn close(client: &TestClient, address: u64) {
    client.end.post(0, 0, &MemClose { address }, &[]).unwrap();
}

fn free(client: &TestClient, address: u64) {
    client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
}

fn send(rig: &Rig, packet: &Packet, descriptors: &[OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    rig.daemon().send(&packet.encode(), &descriptors).unwrap();
}

/// The next question of a server.
fn question(rig: &Rig) -> (u64, u32, Token) {
    loop {
        if let Packet::SeekExport {
            question,
            uid,
            token,
        } = rig.hear()
        {
            return (question, uid, token);
        }
    }
}

/// What a server answers to a question.
fn ask(rig: &Rig, uid: u32, token: Token) -> Option<(SharedObject, Vec<OwnedFd>)> {
    let packet = Packet::SeekExport {
        question: 77,
        uid,
        token,
    };
    send(rig, &packet, &[]);
    loop {
        match rig.hear_with() {
            (
                Packet::ExportFound {
                    question: 77,
                    object,
                },
                descriptors,
            ) => return Some((object, descriptors)),
            (Packet::ExportNotFound { question: 77 }, _) => return None,
            _ => {}
        }
    }
}

fn answer(rig: &Rig, question: u64, found: Option<(SharedObject, Vec<OwnedFd>)>) {
    match found {
        Some((object, descriptors)) => {
            send(rig, &Packet::ExportFound { question, object }, &descriptors);
        }
        None => send(rig, &Packet::ExportNotFound { question }, &[]),
    }
}

/// Does something that has one server ask another one.
fn asking<T: Send>([one, other]: [&Rig; 2], call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        let (number, uid, token) = question(one);
        answer(one, number, ask(other, uid, token));
        called.join().unwrap()
    })
}

fn asks_nothing(rig: &Rig) -> bool {
    let soon = Some(Duration::from_millis(50));
    while poll(&[rig.daemon().as_fd()], soon).unwrap()[0] {
        if matches!(rig.hear(), Packet::SeekExport { .. }) {
            return false;
        }
    }
    true
}

#[test]
fn a_block_is_opened_at_an_address_of_ones_own_and_kept_until_it_is_closed() {
    let [one, other] = &servers();
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    let before = owner.free_memory();
    let (address, token) = block(&owner);
    assert_eq!(open(&owner, token), Err(CUresult::ERROR_INVALID_CONTEXT));

    let opened = asking([other, one], || open(&user, token)).unwrap();
    assert_eq!((opened.bytes, opened.device), (BYTES, 0));
    let facts = &user.facts[0];
    let window = facts.window..facts.window + facts.window_bytes;
    assert!(window.contains(&opened.address));
    assert_eq!(opened.address % (2 << 20), 512, "as far into its memory");
    assert_eq!(
        other.engine.take_mappings(),
        [Mapping::Made; 2],
        "both pieces"
    );
    assert_eq!(open(&user, token), Ok(opened), "without a question");
    assert!(asks_nothing(other));
    // Another client has it by itself.
    let second = other.attach_with_context();
    let again = asking([other, one], || open(&second, token)).unwrap();
    assert_eq!(other.engine.take_mappings(), [Mapping::Made; 2]);
    assert_eq!(
        user.free_memory(),
        second.free_memory(),
        "it counts for its owner"
    );

    // The owner frees it, and it stays.
    free(&owner, address);
    owner.round_trip();
    assert!(owner.free_memory() < before);
    assert!(ask(one, 0, token).is_none(), "for nobody new");
    close(&second, again.address);
    close(&user, opened.address);
    user.round_trip();
    second.round_trip();
    let closed = [
        Mapping::OutOfReach,
        Mapping::OutOfReach,
        Mapping::Gone,
        Mapping::Gone,
    ];
    assert_eq!(other.engine.take_mappings(), closed, "it was open twice");
    user.stream(32, 0);
    user.launch_gated(32, 9);
    close(&user, opened.address);
    user.round_trip();
    assert_eq!(other.engine.take_mappings(), [], "work of its may use it");
    assert!(owner.free_memory() < before);
    other.engine.open(9);
    until("it counts no more", || owner.free_memory() == before);
    assert_eq!(other.engine.take_mappings(), closed);
    // Its addresses are free again.
    let (_, token) = block(&owner);
    let anew = asking([other, one], || open(&user, token)).unwrap();
    assert_eq!(anew, opened);
}

#[test]
fn whoever_goes_nothing_is_left_and_nothing_is_lost() {
    let [one, other] = &servers();
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    let before = owner.free_memory();
    let (address, token) = block(&owner);
    asking([other, one], || open(&user, token)).unwrap();
    free(&owner, address);
    owner.round_trip();
    assert!(owner.free_memory() < before);
    let session = user.session;
    drop(user);
    other.ending_of(session);
    until("the user has gone", || owner.free_memory() == before);

    // The owner goes, or all of its server: who has it open has it.
    let user = other.attach_with_context();
    let (_, token) = block(&owner);
    let opened = asking([other, one], || open(&user, token)).unwrap();
    let session = owner.session;
    drop(owner);
    one.ending_of(session);
    assert_eq!(open(&user, token), Ok(opened));
    for _ in 0..2 {
        close(&user, opened.address);
    }
    user.round_trip();
    let gone = asking([other, one], || open(&user, token));
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_HANDLE));
}

#[test]
fn what_cannot_be_mapped_leaves_nothing() {
    let [one, other] = &servers();
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    let before = owner.free_memory();
    let (address, token) = block(&owner);
    other.engine.refuse_foreign(true);
    let refused = asking([other, one], || open(&user, token));
    assert_eq!(refused, Err(CUresult::ERROR_OUT_OF_MEMORY));
    other.engine.refuse_foreign(false);
    // More pieces than descriptors go with a packet.
    one.engine.lie_in_pieces(16);
    let refused = asking([other, one], || open(&user, token));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    assert!(one.log.contain("it lies in 16 pieces"));
    one.engine.lie_in_pieces(15);
    let opened = asking([other, one], || open(&user, token)).unwrap();
    close(&user, opened.address);
    free(&owner, address);
    until("nobody has it", || owner.free_memory() == before);
}

#[test]
fn a_wrong_token_is_nobodys_and_is_asked_for_so_often() {
    let [one, other] = &servers();
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    let (_, token) = block(&owner);
    assert!(ask(one, 1, token).is_none(), "another user's");
    assert!(ask(one, 0, [1; 4]).is_none(), "nobody's");
    assert!(ask(one, 0, token).is_some());

    let wrong = 1000;
    let asked = std::thread::scope(|scope| {
        let user = &user;
        let called = scope.spawn(move || {
            for number in 0..wrong {
                let refused = open(user, [number; 4]);
                assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
            }
        });
        let mut asked = 0;
        while !called.is_finished() {
            let soon = Some(Duration::from_millis(1));
            if poll(&[other.daemon().as_fd()], soon).unwrap()[0]
                && let Packet::SeekExport { question, .. } = other.hear()
            {
                asked += 1;
                answer(other, question, None);
            }
        }
        called.join().unwrap();
        asked
    });
    assert!((32..wrong / 2).contains(&asked), "{asked}");
    // Another client is not held back by that.
    let second = other.attach_with_context();
    asking([other, one], || open(&second, token)).unwrap();
}

#[test]
fn all_are_answered_who_ask_at_once() {
    let [one, _] = &servers();
    let owner = one.attach_with_context();
    let before = owner.free_memory();
    let (address, token) = block(&owner);
    let mut left: BTreeSet<u64> = (0..300).collect();
    for &question in &left {
        let uid = 0;
        let packet = Packet::SeekExport {
            question,
            uid,
            token,
        };
        send(one, &packet, &[]);
    }
    while !left.is_empty() {
        // And nobody keeps what came.
        if let (Packet::ExportFound { question, .. }, descriptors) = one.hear_with() {
            assert!(left.remove(&question));
            assert_eq!(descriptors.len(), 3);
        }
    }
    free(&owner, address);
    until("nobody has it", || owner.free_memory() == before);
}

#[test]
fn who_is_not_answered_goes_on() {
    let [_, other] = &servers();
    let user = other.attach_with_context();
    // An answer that makes no sense is one.
    let device = SharedDevice {
        number: 0,
        uuid: user.facts[0].uuid,
    };
    let nonsense = [
        (PIECE, 512, vec![PIECE], 2),
        (BYTES, 0, vec![PIECE, PIECE], 2),
        (BYTES, 0, vec![3 << 20], 2),
        (BYTES, 0, vec![], 1),
        (BYTES, 0, vec![PIECE], 0),
    ];
    for (bytes, offset, pieces, count) in nonsense {
        let object = SharedObject::Block {
            device: device.clone(),
            bytes,
            offset,
            pieces,
        };
        let open_file = |_| std::fs::File::open("/dev/null").unwrap().into();
        let descriptors = (0..count).map(open_file).collect();
        std::thread::scope(|scope| {
            let called = scope.spawn(|| open(&user, [5; 4]));
            let (number, ..) = question(other);
            answer(other, number, Some((object, descriptors)));
            assert!(called.join().unwrap().is_err());
        });
    }
    assert_eq!(other.engine.take_mappings(), []);
    // Nor does one wait for ever for a daemon that says nothing.
    assert_eq!(open(&user, [6; 4]), Err(CUresult::ERROR_INVALID_HANDLE));
    let (number, ..) = question(other);
    answer(other, number, None);
    user.round_trip();
}

#[test]
fn without_a_daemon_nobody_is_asked_and_nobody_waits() {
    let [_, mut other] = servers();
    let user = other.attach_with_context();
    drop(other.daemon.take());
    until("it is noticed", || other.log.contain("The daemon is gone"));
    // Were each to wait, these would take a minute and more.
    for number in 0..30 {
        let refused = open(&user, [number; 4]);
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    }
    drop(user);
    other.server.take().unwrap().join().unwrap();
}

#[test]
fn a_server_alone_asks_nobody() {
    let rig = Rig::new(FakeEngine::new());
    let user = rig.attach_with_context();
    assert_eq!(open(&user, [6; 4]), Err(CUresult::ERROR_INVALID_HANDLE));
    assert!(asks_nothing(&rig));
}

fn import(client: &TestClient, handle: u64, token: Token) -> Result<PhysicalImportReply, CUresult> {
    let import = PhysicalImport { handle, token };
    let reply = client.end.call(&import, &[]).unwrap();
    match reply.status {
        CUresult::SUCCESS => Ok(reply.fields),
        code => Err(code),
    }
}

#[test]
fn physical_memory_counts_for_its_allocator_as_long_as_another_servers_client_has_it() {
    let [one, other] = &servers();
    one.engine.lie_in_pieces(1);
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    let (before, users) = (owner.free_memory(), user.free_memory());
    let create = PhysicalCreate {
        handle: 1,
        device: 0,
        bytes: PIECE,
    };
    let made = owner.end.call(&create, &[]).unwrap();
    assert_eq!(made.status, CUresult::SUCCESS);
    let token = expose(&owner, Exposed::Physical, 1);
    let held = token_descriptor::receive(owner.end.connection(), token).unwrap();
    let imported = asking([other, one], || import(&user, 5, token)).unwrap();
    assert_eq!((imported.bytes, imported.device), (PIECE, 0));
    assert_eq!(user.free_memory(), users);
    let release = PhysicalRelease { handle: 1 };
    owner.end.post(0, 0, &release, &[]).unwrap();
    drop(held);
    owner.round_trip();
    assert!(owner.free_memory() < before, "the other has it");
    // Of which it gives a descriptor to others in its turn.
    let again = expose(&user, Exposed::Physical, 5);
    let passed_on = token_descriptor::receive(user.end.connection(), again).unwrap();
    let release = PhysicalRelease { handle: 5 };
    user.end.post(0, 0, &release, &[]).unwrap();
    user.round_trip();
    assert!(owner.free_memory() < before, "there is a descriptor");
    drop(passed_on);
    until("nobody has it", || owner.free_memory() == before);
    let gone = asking([other, one], || import(&user, 6, token));
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_VALUE));
}

/// A client with a stream of its own.
fn streaming(rig: &Rig) -> TestClient {
    let client = rig.attach_with_context();
    client.stream(STREAM, 0);
    client
}

const STREAM: u32 = 32;

/// An event of a client's that others may open.
fn event(client: &TestClient) -> (u32, Token) {
    let made = client.end.call(&EventShare { reserved: 0 }, &[]).unwrap();
    assert_eq!(made.status, CUresult::SUCCESS);
    let event = made.fields.event;
    (event, expose(client, Exposed::Event, event.into()))
}

fn forget(client: &TestClient, event: u32) {
    let forget = EventForget { event };
    client.end.post(0, 0, &forget, &[]).unwrap();
}

fn open_event(client: &TestClient, token: Token) -> Result<u32, CUresult> {
    let reply = client.end.call(&EventOpen { token }, &[]).unwrap();
    match reply.status {
        CUresult::SUCCESS => Ok(reply.fields.event),
        code => Err(code),
    }
}

/// How far an event is, after a new record if one is wanted.
fn mark(client: &TestClient, event: u32, record: bool) -> Result<(u64, u64), CUresult> {
    let record = u32::from(record);
    let reply = client.end.call(&EventMark { event, record }, &[]).unwrap();
    match reply.status {
        CUresult::SUCCESS => Ok((reply.fields.recorded, reply.fields.completed)),
        code => Err(code),
    }
}

/// Records an event behind a kernel that ends when the test says so.
fn record_behind(client: &TestClient, event: u32, gate: u32) -> u64 {
    client.launch_gated(STREAM, gate);
    let (number, _) = mark(client, event, true).unwrap();
    client.enqueue(STREAM, &EventPass { event, number });
    client.round_trip();
    number
}

/// Has a kernel wait for a record.
fn wait_for(client: &TestClient, event: u32, number: u64, gate: u32) {
    client.enqueue(STREAM, &EventAwait { event, number });
    client.launch_gated(STREAM, gate);
    client.round_trip();
}

#[test]
fn an_event_is_recorded_and_waited_for_on_both_sides() {
    let [one, other] = &servers();
    let owner = streaming(one);
    let user = streaming(other);
    let (made, token) = event(&owner);
    // Recorded before anybody else has it.
    assert_eq!(record_behind(&owner, made, 1), 1);
    let opened = asking([other, one], || open_event(&user, token)).unwrap();
    assert_eq!(mark(&user, opened, false), Ok((1, 0)));
    wait_for(&user, opened, 1, 2);
    assert!(!other.engine.was_handed(2));
    one.engine.open(1);
    until("the record is past", || other.engine.was_handed(2));
    assert_eq!(mark(&user, opened, false), Ok((1, 1)));

    // The other way about, and by way of the maker to a third.
    let third = streaming(other);
    let its = asking([other, one], || open_event(&third, token)).unwrap();
    assert_eq!(record_behind(&user, opened, 3), 2);
    assert_eq!(mark(&owner, made, false), Ok((2, 1)));
    wait_for(&owner, made, 2, 4);
    wait_for(&third, its, 2, 5);
    assert!(!one.engine.was_handed(4) && !other.engine.was_handed(5));
    other.engine.open(2);
    other.engine.open(3);
    until("the record is past", || one.engine.was_handed(4));
    until("the record is past", || other.engine.was_handed(5));
    // Its maker destroys it: who waits for a record hears of it, and then each has it by itself.
    one.engine.open(4);
    assert_eq!(record_behind(&user, opened, 6), 3);
    wait_for(&third, its, 3, 7);
    forget(&owner, made);
    until("nobody new has it", || ask(one, 0, token).is_none());
    assert_eq!(mark(&third, its, false), Ok((3, 2)));
    other.engine.open(5);
    assert!(!other.engine.was_handed(7));
    other.engine.open(6);
    until("the record is past", || other.engine.was_handed(7));
    other.engine.open(7);
    assert_eq!(record_behind(&user, opened, 8), 4);
    assert_eq!(mark(&third, its, false), Ok((3, 3)));
    other.engine.open(8);
    let gone = asking([other, one], || open_event(&user, token));
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_HANDLE));
}

/// As PyTorch's receivers of tensors do, each of which comes with an event that its sender destroys.
#[test]
fn who_opens_events_and_closes_none_has_no_more_than_are_there() {
    let [one, other] = &servers();
    let owner = one.attach_with_context();
    let user = other.attach_with_context();
    for _ in 0..1500 {
        let (made, token) = event(&owner);
        asking([other, one], || open_event(&user, token)).unwrap();
        forget(&owner, made);
        owner.round_trip();
    }
}

#[test]
fn no_one_waits_for_the_records_of_who_has_gone() {
    let [one, other] = servers();
    let owner = streaming(&one);
    let user = streaming(&other);
    let (made, token) = event(&owner);
    let opened = asking([&other, &one], || open_event(&user, token)).unwrap();
    // A client that recorded it, and goes.
    let number = record_behind(&user, opened, 1);
    wait_for(&owner, made, number, 2);
    assert!(!one.engine.was_handed(2));
    let session = user.session;
    drop(user);
    other.ending_of(session);
    until("its record is past", || one.engine.was_handed(2));

    // A whole server, that of the maker: there too nobody waits, and what others record they go on with.
    let user = streaming(&other);
    let opened = asking([&other, &one], || open_event(&user, token)).unwrap();
    let first = record_behind(&user, opened, 3);
    one.engine.open(2);
    let number = record_behind(&owner, made, 4);
    wait_for(&user, opened, number, 5);
    drop(owner);
    drop(one);
    until("it is on its own", || {
        mark(&user, opened, false).unwrap().1 == first - 1
    });
    other.engine.open(3);
    until("the record is past", || other.engine.was_handed(5));
    other.engine.open(5);
    let next = record_behind(&user, opened, 6);
    assert_eq!(mark(&user, opened, false), Ok((next, number)));
    other.engine.open(6);
    until("it is past", || {
        mark(&user, opened, false) == Ok((next, next))
    });
}

#[test]
fn a_server_that_ends_leaves_no_record() {
    let [one, other] = servers();
    let owner = streaming(&one);
    let user = streaming(&other);
    let (made, token) = event(&owner);
    let opened = asking([&other, &one], || open_event(&user, token)).unwrap();
    let number = record_behind(&user, opened, 1);
    wait_for(&owner, made, number, 2);
    drop(user);
    drop(other);
    until("its record is past", || one.engine.was_handed(2));
    one.engine.open(2);
    // So many records are under way, and no more.
    let mut last = 0;
    while let Ok((recorded, _)) = mark(&owner, made, true) {
        last = recorded;
    }
    assert_eq!(mark(&owner, made, true), Err(CUresult::ERROR_OUT_OF_MEMORY));
    assert_eq!(last, number + (1 << 14));
}
