//! Semaphores of another interface, which the fake driver's tests signal: what waits for one, and what does not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;

use common::{Controls, Fake, until};
use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use protocol::operations::{At, SemaphoreImport, SemaphoreSignal, SemaphoreWait};

/// CUexternalSemaphoreHandleType: a binary semaphore's descriptor, and a timeline's.
const BINARY: u32 = 1;
const TIMELINE: u32 = 9;

const NOT_READY: Result<(), CUresult> = Err(CUresult::ERROR_NOT_READY);
const INVALID: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_HANDLE);

fn descriptor() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn import(guest: &mut Guest, semaphore: u64, kind: u32) -> Result<(), CUresult> {
    let request = SemaphoreImport {
        semaphore,
        context: 0,
        kind,
    };
    guest.client.semaphore_import(&request, descriptor())
}

fn wait(guest: &mut Guest, sequence: u64, semaphore: u64, value: u64) -> Result<(), CUresult> {
    let at = At {
        stream: 0,
        sequence,
    };
    let request = SemaphoreWait { semaphore, value };
    guest.client.semaphore_wait(at, &request)
}

#[test]
fn a_wait_is_over_when_the_other_interface_signals_and_nothing_else_waits_with_it() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let memory = guest.commit(0, GRANULE);
    import(&mut guest, 7, TIMELINE).unwrap();
    assert_eq!(controls.semaphores(), 1);
    assert_eq!(wait(&mut guest, 1, 7, 5), NOT_READY);
    assert_eq!(wait(&mut guest, 2, 7, 3), NOT_READY, "another wait");
    // The client's own streams go on.
    guest.write(0, memory, &[1]);
    assert_eq!(guest.wait(0), Ok(()));
    controls.signal(4);
    assert_eq!(wait(&mut guest, 1, 7, 5), NOT_READY);
    assert_eq!(wait(&mut guest, 2, 7, 3), Ok(()));
    controls.signal(5);
    assert_eq!(wait(&mut guest, 1, 7, 5), Ok(()));
    assert_eq!(controls.queued(), 0);
}

#[test]
fn a_signal_is_made_when_the_stream_comes_to_it() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    import(&mut guest, 1, BINARY).unwrap();
    assert_eq!(wait(&mut guest, 1, 1, 0), NOT_READY);
    controls.hold(true);
    let at = guest.at(0);
    let signal = SemaphoreSignal {
        semaphore: 1,
        value: 0,
    };
    let posted = guest.client.semaphore_signal(at, &signal, &[]);
    guest.taken(at, posted).unwrap();
    // It goes when all that uses it is done.
    guest.client.semaphore_destroy(1);
    assert_eq!(wait(&mut guest, 1, 1, 0), NOT_READY);
    assert_eq!(controls.semaphores(), 1);
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(wait(&mut guest, 1, 1, 0), Ok(()));
    until("the semaphore goes", || controls.semaphores() == 0);
}

#[test]
fn what_is_no_semaphore_is_refused() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(import(&mut guest, 1, 2), wrong, "another system's");
    assert_eq!(wait(&mut guest, 1, 1, 0), INVALID);
    import(&mut guest, 1, BINARY).unwrap();
    assert_eq!(import(&mut guest, 1, BINARY), INVALID, "taken");
    let mut other = Guest::new(&engine);
    assert_eq!(wait(&mut other, 1, 1, 0), INVALID, "another client's");
    assert_eq!(controls.semaphores(), 1);
    drop(guest);
    until("the semaphore goes with its client", || {
        controls.semaphores() == 0
    });
}
