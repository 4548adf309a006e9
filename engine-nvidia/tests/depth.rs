//! How much of a stream's work the driver has at a time: a launch into a full hardware queue waits, and
//! with it, in the context's lock, everybody.

mod common;

use std::time::Duration;

use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, noise};
use protocol::operations::Copy;

/// More than any driver takes in a queue.
const QUEUE: i64 = 1000;

#[test]
fn an_operation_of_many_commands_is_issued_in_parts() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let from = guest.commit(0, 16 * GRANULE);
    let to = guest.commit(16 * GRANULE, 16 * GRANULE);
    let data = noise(16 * GRANULE, 3);
    guest.upload(from, &data);
    controls.hold(true);
    // Slices that are no multiple of their pitch are a command each.
    let (width, height, depth, pitch) = (5_u64, 2_u64, 30_000_u64, 8_u64);
    let slice = pitch * height + 1;
    let copy = Copy {
        to,
        from,
        to_pitch: pitch,
        from_pitch: pitch,
        to_slice: slice,
        from_slice: slice,
        width,
        height,
        depth,
        ..Copy::default()
    };
    guest.copy(0, &copy);
    guest.write(0, to + 16 * GRANULE - 4, b"last");
    let queued = controls.queued();
    assert!(queued > 0 && queued < QUEUE, "{queued}");
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(
        guest.observer.completed(0).last().map(|last| last.1),
        Some(Ok(()))
    );
    let copied = guest.download(to, 16 * GRANULE);
    for row in (0..depth).flat_map(|z| (0..height).map(move |y| (z * slice + y * pitch) as usize)) {
        assert_eq!(
            copied[row..][..width as usize],
            data[row..][..width as usize],
            "{row}"
        );
    }
    assert_eq!(&copied[copied.len() - 4..], b"last");
}

#[test]
fn a_granule_in_each_chunk_does_not_keep_more_than_as_much_again() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    // As a client of 32 MiB that wants the card: a block here, a block there.
    let used = 512 * GRANULE;
    for index in 0..512 {
        let range = engine::Window {
            base: guest.windows[0].base + index * (8 << 20),
            bytes: GRANULE,
        };
        if guest.client.commit(range).is_err() {
            break;
        }
    }
    let taken = controls.counts()[4];
    assert!(taken as u64 <= 2 * used + (512 << 20), "{taken}");
}

#[test]
fn what_turns_out_to_take_long_is_alone_with_the_driver() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    let module = guest.module(PTX);
    controls.spin(true);
    // Nothing is known of the kernel, and so another goes to the driver behind the first.
    for _ in 0..2 {
        guest.launch(0, module, 1, 1, &poke(0, 1));
        guest.client.stop_polling();
    }
    until("both are with the driver", || controls.queued() >= 2);
    std::thread::sleep(Duration::from_millis(100));
    controls.end_one();
    until("the first has ended", || {
        guest.observer.completed(0).len() == 1
    });
    let queued = controls.queued();
    assert!(queued > 0, "the second spins");
    // It is known by now that the second takes long.
    guest.launch(0, module, 1, 1, &poke(device, 3));
    guest.client.stop_polling();
    std::thread::sleep(Duration::from_millis(20));
    let more = controls.queued() - queued;
    controls.spin(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device), 3);
    assert_eq!(more, 0, "more went to the driver");
}

#[test]
fn the_driver_has_less_of_others_while_a_client_is_about_to_load() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let module = guest.module(PTX);
    let mut ended = 0;
    // What the driver is given of six kernels that are known to take some milliseconds.
    let mut given = |beside: bool| {
        controls.spin(true);
        guest.launch(0, module, 1, 1, &poke(0, 1));
        guest.client.stop_polling();
        std::thread::sleep(Duration::from_millis(4));
        controls.spin(false);
        ended += 7;
        let last = ended;
        until("it is known how long one takes", || {
            guest.observer.completed(0).len() == last - 6
        });
        // Nobody has come or loaded lately.
        std::thread::sleep(Duration::from_millis(100));
        controls.spin(true);
        let newcomer = beside.then(|| Guest::new(&engine));
        for _ in 0..6 {
            guest.launch(0, module, 1, 1, &poke(0, 1));
        }
        guest.client.stop_polling();
        std::thread::sleep(Duration::from_millis(10));
        let queued = controls.queued();
        controls.spin(false);
        drop(newcomer);
        until("all have ended", || {
            guest.observer.completed(0).len() == last
        });
        queued
    };
    // A busy machine may take its time between the newcomer and the launches, and the kernels may seem long.
    let mut seen = Vec::new();
    while seen.len() < 20 && seen.last().is_none_or(|(alone, beside)| beside >= alone) {
        seen.push((given(false), given(true)));
    }
    let (alone, beside) = seen.last().unwrap();
    assert!(beside < alone, "{seen:?}");
}

/// What was refused for want of room gives none back that it did not take.
#[test]
fn who_had_too_much_waiting_once_is_served_again() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let large = vec![7; 256 * GRANULE as usize];
    let to = guest.commit(0, large.len() as u64);
    let mut refused = |bytes: usize| {
        controls.hold(true);
        // More than the driver is given at a time.
        for _ in 0..300 {
            guest.write(0, to, &large[..4]);
        }
        for _ in 0..20 {
            guest.write(0, to, &large[..bytes]);
        }
        let before = guest.observer.completed(0).len();
        controls.hold(false);
        // Which of them says so is seen below.
        let _ = guest.wait(0);
        let completed = guest.observer.completed(0);
        let results = completed[before..].iter().map(|&(_, result)| result);
        let refused = results.filter(|&result| result == Err(CUresult::ERROR_OUT_OF_MEMORY));
        refused.count()
    };
    assert!((1..20).contains(&refused(large.len())));
    assert_eq!(refused(4), 0, "for ever");
}
