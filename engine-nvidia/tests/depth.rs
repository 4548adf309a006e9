//! How much of a stream's work the driver has at a time: a launch into a full hardware queue waits, and
//! with it, in the context's lock, everybody.

mod common;

use common::{Controls, Fake};
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
        guest.told.completed(0).last().map(|last| last.1),
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
