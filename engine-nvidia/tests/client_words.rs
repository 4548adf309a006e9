//! What the GPU itself tells a client of its streams, over the fake driver: only what is over as far as this process is concerned too.

mod common;

use common::{Controls, Fake, PTX, poke, until};
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, simple_launch};
use engine_nvidia::NvidiaEngine;

/// Launches after which a stream has batches.
const BEFORE: u32 = 64;

/// A text whose kernels may print.
const PRINTING: &str = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .b8 room[64];\n\
    .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
    .visible .entry poke() { ret; }";

/// As [`PTX`], for which fences can be made.
const FENCED: &str = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 room[64];\n\
    .visible .entry poke(.param .u64 to, .param .u32 value) { .reg .b64 %a; .reg .b32 %v;\n\
    ld.param.u64 %a, [to]; ld.param.u32 %v, [value]; st.global.u32 [%a], %v; ret; }";

/// The number of the last operation of stream 0 that was reported.
fn last(guest: &Guest) -> u64 {
    last_of(guest, 0)
}

fn last_of(guest: &Guest, stream: u32) -> u64 {
    guest
        .observer
        .completed(stream)
        .last()
        .expect("something")
        .0
}

/// Launches a kernel and waits for it. Whether the device told of it.
fn is_told(guest: &mut Guest, module: u64, to: u64) -> bool {
    is_told_in(guest, 0, module, to)
}

fn is_told_in(guest: &mut Guest, stream: u32, module: u64, to: u64) -> bool {
    guest.launch(stream, module, 1, 1, &poke(to, 7));
    assert_eq!(guest.wait(stream), Ok(()));
    let (told, last) = (guest.told_by_device(stream), last_of(guest, stream));
    assert!(told <= last, "{told}");
    told == last
}

/// A fake driver, an engine over it that has its batches, and what is seen of it.
fn driver() -> (Fake, NvidiaEngine, Controls) {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("an engine over the fake driver");
    let controls = Controls::of(&fake);
    controls.has_batches();
    (fake, engine, controls)
}

/// A client whose launches go in batches from now on, memory of it and its module.
fn batching(engine: &NvidiaEngine) -> (Guest, u64, u64) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let module = guest.module(PTX);
    for _ in 0..BEFORE {
        assert!(!is_told(&mut guest, module, device), "it went by itself");
    }
    (guest, device, module)
}

#[test]
fn a_client_hears_of_a_kernel_from_the_device() {
    let (_fake, engine, controls) = driver();
    let (mut guest, device, module) = batching(&engine);
    for _ in 0..10 {
        assert!(is_told(&mut guest, module, device));
    }
    // Not before it is over.
    controls.hold(true);
    let before = last(&guest);
    guest.launch(0, module, 1, 1, &poke(device, 9));
    guest.client.stop_polling();
    until("it is with the driver", || controls.queued() > 0);
    assert_eq!(guest.told_by_device(0), before);
    controls.hold(false);
    until("it is told", || guest.told_by_device(0) == before + 1);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device), 9);
    guest.end();
    drop(engine);
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn several_kernels_are_told_of_when_the_last_of_them_is_over() {
    let (_fake, engine, controls) = driver();
    let (mut guest, device, module) = batching(&engine);
    // Batches have lengths of their own: five are one of four, which is told of, and one behind it, which is not.
    for count in [5, 1, 4, 37, 2] {
        let before = last(&guest);
        controls.hold(true);
        for number in 0..count {
            guest.launch(0, module, 1, 1, &poke(device + 4 * number, 1));
        }
        guest.client.stop_polling();
        assert!(guest.told_by_device(0) <= before);
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        let told = guest.told_by_device(0);
        assert!(told <= last(&guest), "{told} of {count} behind {before}");
        assert!(told > before, "nothing of {count} behind {before}");
        // So that nothing is with the driver when the next ones come.
        guest.launch(0, module, 1, 1, &poke(device, 1));
        assert_eq!(guest.wait(0), Ok(()));
    }
}

#[test]
fn what_comes_behind_unfinished_work_is_told_by_the_server_alone() {
    let (_fake, engine, controls) = driver();
    let (mut guest, device, module) = batching(&engine);
    for _ in 0..3 {
        assert!(is_told(&mut guest, module, device));
        let before = last(&guest);
        controls.hold(true);
        guest.write(0, device, &[1; 4]);
        guest.launch(0, module, 1, 1, &poke(device, 2));
        guest.client.stop_polling();
        until("both are with the driver", || controls.queued() > 1);
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.told_by_device(0), before, "a write came before it");
        // What the engine was not given, somebody else may have to see to.
        let at = guest.at(0);
        assert_eq!(guest.taken(at, Ok(())), Ok(()));
        assert!(!is_told(&mut guest, module, device), "one is missing");
    }
}

#[test]
fn whose_kernels_need_a_look_when_they_end_hears_from_the_server_alone() {
    let (_fake, engine, _controls) = driver();
    // A fenced client, one whose work another server may go on with, and kernels that print.
    for (mut guest, text) in [
        (Guest::fenced(&engine), FENCED),
        (Guest::kept(&engine), PTX),
        (Guest::new(&engine), PRINTING),
    ] {
        let device = guest.commit(0, GRANULE);
        let module = guest.module(text);
        for _ in 0..BEFORE + 10 {
            assert!(!is_told(&mut guest, module, device));
        }
        guest.end();
    }
}

#[test]
fn a_run_is_told_of_as_one() {
    let (_fake, engine, controls) = driver();
    let (mut guest, device, module) = batching(&engine);
    let graphs = controls.graphs();
    for number in 0..5 {
        let launch = simple_launch(module, 1, 1);
        guest.run_add(0, &launch, &poke(device + 4 * number, 3));
    }
    // In the stream's batches at first.
    guest.run_launch(0, 0);
    assert_eq!(guest.wait(0), Ok(()));
    assert!(
        guest.told_by_device(0) < last(&guest),
        "it is told in parts"
    );
    until("it has a graph of its own", || controls.graphs() > graphs);
    for _ in 0..5 {
        guest.run_launch(0, 0);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.told_by_device(0), last(&guest));
    }
}

#[test]
fn a_stream_in_the_place_of_another_is_not_told_of_by_what_that_has_left() {
    let (_fake, engine, controls) = driver();
    let (mut guest, device, module) = batching(&engine);
    const SLOT: u32 = 40;
    guest.stream(SLOT);
    for _ in 0..BEFORE {
        assert!(!is_told_in(&mut guest, SLOT, module, device));
    }
    assert!(is_told_in(&mut guest, SLOT, module, device));
    // The former one has something under way of which the device tells, when it ends and the next one comes and has work.
    controls.hold(true);
    guest.launch(SLOT, module, 1, 1, &poke(device, 1));
    let left = guest.at(SLOT).sequence - 1;
    guest.client.stop_polling();
    until("it is with the driver", || controls.queued() > 0);
    guest.destroy(SLOT);
    guest.stream(SLOT);
    guest.launch(SLOT, module, 1, 1, &poke(device, 2));
    guest.client.stop_polling();
    assert!(guest.told_by_device(SLOT) < left);
    controls.hold(false);
    assert_eq!(guest.wait(SLOT), Ok(()));
    assert_eq!(guest.told_by_device(SLOT), left);
    assert_eq!(guest.word(device), 2);
    for _ in 1..BEFORE {
        assert!(!is_told_in(&mut guest, SLOT, module, device));
        assert_eq!(guest.told_by_device(SLOT), left);
    }
    assert!(is_told_in(&mut guest, SLOT, module, device));
}
