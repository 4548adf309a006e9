//! What clients share: whom it counts for, and for how long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use cuda_abi::CUresult;
use protocol::operations::*;
use rig::engine::{FakeEngine, Mapping};
use rig::{Rig, TestClient, until};
use std::os::fd::OwnedFd;
use transport::token_descriptor;

const BYTES: u64 = 4 << 30;

fn create(client: &TestClient, handle: u64) -> CUresult {
    let create = PhysicalCreate {
        handle,
        device: 0,
        bytes: BYTES,
    };
    client.end.call(&create, &[]).unwrap().status
}

/// Exports memory. The descriptor holds it, too.
fn export(client: &TestClient, handle: u64) -> ([u64; 4], OwnedFd) {
    let expose = Expose {
        kind: Exposed::Physical as u32,
        object: handle,
        bytes: 0,
    };
    let token = client.end.call(&expose, &[]).unwrap().fields.token;
    (
        token,
        token_descriptor::receive(client.end.connection(), token).unwrap(),
    )
}

fn import(client: &TestClient, handle: u64, token: [u64; 4]) {
    let import = PhysicalImport { handle, token };
    let reply = client.end.call(&import, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
}

fn release(client: &TestClient, handle: u64) {
    let release = PhysicalRelease { handle };
    client.end.post(0, 0, &release, &[]).unwrap();
}

#[test]
fn physical_memory_counts_for_its_allocator_until_nobody_has_it() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let before = client.free_memory();
    // Under a second handle of its own.
    assert_eq!(create(&client, 1), CUresult::SUCCESS);
    let (token, held) = export(&client, 1);
    import(&client, 2, token);
    assert_eq!(client.free_memory(), before - BYTES, "counted once");
    release(&client, 1);
    assert_eq!(client.free_memory(), before - BYTES, "it is still there");
    release(&client, 2);
    assert_eq!(
        client.free_memory(),
        before - BYTES,
        "its descriptor is open"
    );
    drop(held);
    until("nobody has it", || client.free_memory() == before);

    // In other clients' hands: 16 GiB are the quota.
    let others = [(); 2].map(|()| rig.attach_with_context());
    for handle in 1..=4 {
        assert_eq!(create(&client, handle), CUresult::SUCCESS);
        let (token, _held) = export(&client, handle);
        for other in &others {
            import(other, handle, token);
        }
        release(&client, handle);
    }
    assert_eq!(client.free_memory(), before - 4 * BYTES);
    assert_eq!(create(&client, 5), CUresult::ERROR_OUT_OF_MEMORY);
    assert_eq!(others[0].free_memory(), before, "no importer pays");
    for handle in 1..=4 {
        release(&others[0], handle);
    }
    others[0].round_trip();
    assert_eq!(create(&client, 5), CUresult::ERROR_OUT_OF_MEMORY);
    release(&others[1], 1);
    until("it counts no more", || {
        client.free_memory() == before - 3 * BYTES
    });
    assert_eq!(create(&client, 5), CUresult::SUCCESS);
    drop(others);
    until("nobody has it", || client.free_memory() == before - BYTES);
}

#[test]
fn physical_memory_outlives_its_allocator() {
    let rig = Rig::new(FakeEngine::new());
    let (client, other) = (rig.attach_with_context(), rig.attach_with_context());
    assert_eq!(create(&client, 1), CUresult::SUCCESS);
    import(&other, 1, export(&client, 1).0);
    let session = client.session;
    drop(client);
    rig.ending_of(session);
    release(&other, 1);
    other.round_trip();
}

fn reserve(client: &TestClient) -> u64 {
    let reserve = AddressReserve {
        device: 0,
        bytes: BYTES,
        align: 0x1_0000,
    };
    let reply = client.end.call(&reserve, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
    reply.fields.address
}

fn map(client: &TestClient, handle: u64, address: u64) -> CUresult {
    let map = PhysicalMap {
        handle,
        address,
        bytes: BYTES,
        offset: 0,
    };
    client.end.call(&map, &[]).unwrap().status
}

fn unmap(client: &TestClient, address: u64) {
    let unmap = PhysicalUnmap { address };
    let reply = client.end.call(&unmap, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
}

#[test]
fn an_unmap_takes_its_place_behind_work_and_its_memory_counts_until_then() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let before = client.free_memory();
    let address = reserve(&client);
    assert_eq!(create(&client, 1), CUresult::SUCCESS);
    assert_eq!(map(&client, 1, address), CUresult::SUCCESS);
    let access = PhysicalAccess {
        address,
        device: 0,
        access: 3,
    };
    let reply = client.end.call(&access, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
    assert_eq!(
        rig.engine.take_mappings(),
        [Mapping::Made, Mapping::Reached]
    );

    client.stream(40, STREAM_NON_BLOCKING);
    client.launch_gated(0, 1);
    unmap(&client, address);
    release(&client, 1);
    // Begun after the unmap, and before it had its turn.
    client.launch_gated(40, 2);
    assert_eq!(client.free_memory(), before - BYTES, "it is still there");
    assert_eq!(rig.engine.take_mappings(), [], "and so is the mapping");

    rig.engine.open(1);
    let mut seen = Vec::new();
    until("new work cannot reach it", || {
        seen.extend(rig.engine.take_mappings());
        seen == [Mapping::OutOfReach]
    });
    client.round_trip();
    assert_eq!(rig.engine.take_mappings(), [], "the other kernel may");
    assert_eq!(client.free_memory(), before - BYTES);

    rig.engine.open(2);
    until("nothing can", || {
        rig.engine.take_mappings() == [Mapping::Gone]
    });
    until("it counts no more", || client.free_memory() == before);
}

#[test]
fn addresses_are_free_again_when_what_is_unmapped_there_has_gone() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let address = reserve(&client);
    for handle in [1, 2] {
        assert_eq!(create(&client, handle), CUresult::SUCCESS);
    }
    assert_eq!(map(&client, 1, address), CUresult::SUCCESS);
    client.launch_gated(0, 1);
    unmap(&client, address);
    rig.engine.take_mappings();
    std::thread::scope(|scope| {
        let mapped = scope.spawn(|| map(&client, 2, address));
        // The call is there before this one is answered, or comes behind it; it waits either way.
        client.round_trip();
        assert_eq!(rig.engine.take_mappings(), []);
        rig.engine.open(1);
        assert_eq!(mapped.join().unwrap(), CUresult::SUCCESS);
    });
    let expected = [Mapping::OutOfReach, Mapping::Gone, Mapping::Made];
    assert_eq!(rig.engine.take_mappings(), expected);

    // The addresses themselves, which are given out again only when nothing lies there.
    client.launch_gated(0, 3);
    unmap(&client, address);
    let free = AddressFree { address };
    client.end.post(0, 0, &free, &[]).unwrap();
    assert_eq!(
        map(&client, 1, address),
        CUresult::ERROR_INVALID_VALUE,
        "they are the client's no more"
    );
    let other = reserve(&client);
    assert_ne!(other, address);
    rig.engine.open(3);
    until("the unmap is over", || {
        rig.engine.take_mappings().contains(&Mapping::Gone)
    });
    client.round_trip();
    assert_eq!(reserve(&client), address, "free again");
}

/// Who shares it may be in another server: the client alone cannot tell, and the operator can.
/// As PyTorch's receivers of tensors do, each of which comes with an event that its sender destroys.
#[test]
fn who_opens_events_and_closes_none_has_new_ones_for_ever() {
    let rig = Rig::new(FakeEngine::new());
    let [owner, user] = [(); 2].map(|()| rig.attach_with_context());
    let forget = |client: &TestClient, event| {
        let forget = EventForget { event };
        client.end.post(0, 0, &forget, &[]).unwrap();
        client.round_trip();
    };
    let mark = |client: &TestClient, event| {
        let mark = EventMark { event, record: 0 };
        client.end.call(&mark, &[]).unwrap().status
    };
    let own = user.end.call(&EventShare { reserved: 0 }, &[]).unwrap();
    let own = own.fields.event;
    let mut opened = Vec::new();
    for _ in 0..3 * SHARED_EVENT_SLOTS {
        let made = owner.end.call(&EventShare { reserved: 0 }, &[]).unwrap();
        let made = made.fields.event;
        let expose = Expose {
            kind: Exposed::Event as u32,
            object: made.into(),
            bytes: 0,
        };
        let token = owner.end.call(&expose, &[]).unwrap().fields.token;
        let reply = user.end.call(&EventOpen { token }, &[]).unwrap();
        assert_eq!(reply.status, CUresult::SUCCESS, "{}", opened.len());
        opened.push(reply.fields.event);
        forget(&owner, made);
    }
    // Each has a number of its own: who destroys one late destroys no other.
    let distinct: std::collections::BTreeSet<u32> = opened.iter().copied().collect();
    assert_eq!(distinct.len(), opened.len());
    let (first, last) = (opened[0], *opened.last().unwrap());
    assert_eq!(mark(&user, first), CUresult::ERROR_INVALID_HANDLE);
    for &event in &opened[..opened.len() - 1] {
        let forget = EventForget { event };
        user.end.post(0, 0, &forget, &[]).unwrap();
    }
    assert_eq!(mark(&user, last), CUresult::SUCCESS);
    assert_eq!(
        mark(&user, own),
        CUresult::SUCCESS,
        "the client's own stays"
    );
    assert!(!rig.log.contain("EventForget"), "{:?}", rig.log);
    forget(&user, last);
    assert_eq!(mark(&user, last), CUresult::ERROR_INVALID_HANDLE);
}

#[test]
fn what_nobody_here_shares_is_told_in_the_log() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let token = [1; 4];
    let event = client.end.call(&EventOpen { token }, &[]).unwrap();
    assert_eq!(event.status, CUresult::ERROR_INVALID_HANDLE);
    assert!(rig.log.contain("it opens memory or an event"));
    assert!(!rig.log.contain("OPENMPS_JOB"));
}
