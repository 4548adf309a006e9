//! What clients share: whom it counts for, and for how long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use cuda_abi::CUresult;
use cuda_abi::operations::*;
use rig::engine::FakeEngine;
use rig::{Rig, TestClient, until};
use std::os::fd::OwnedFd;
use transport::descriptor;

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
        descriptor::receive(client.end.connection(), token).unwrap(),
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
