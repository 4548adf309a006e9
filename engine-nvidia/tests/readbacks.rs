//! Short copies back, of which the data itself tells that it has come.

mod common;

use common::{Controls, Fake, until};
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use protocol::operations::{Copy, Space};

/// Of which a sentinel is made by multiplying the fence value, as in `readback.rs`.
const SENTINEL: u32 = 0x9E37_79B1;

/// Posts a copy to a place in staging.
fn read_back(guest: &mut Guest, stream: u32, to: u64, from: u64, bytes: u64) {
    let request = Copy {
        to_space: Space::Staging as u32,
        to,
        from,
        width: bytes,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.copy(stream, &request);
}

#[test]
fn what_has_come_needs_no_signature() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let at = guest.commit(0, GRANULE);
    let data: Vec<u8> = (0..8192_u32).map(|byte| (byte % 251 + 1) as u8).collect();
    guest.upload(at, &data);
    let before = controls.signatures();
    for (offset, bytes) in [(0, 4), (4, 8), (8, 4092), (4096, 4096)] {
        read_back(&mut guest, 0, 0, at + offset, bytes);
        assert_eq!(guest.wait(0), Ok(()));
        let expected = &data[offset as usize..(offset + bytes) as usize];
        assert_eq!(guest.staged(0, bytes), expected);
    }
    assert_eq!(controls.signatures(), before);
    // Others are signalled: too long, and no whole words.
    for (offset, bytes) in [(0, 4100), (2, 4), (0, 3)] {
        read_back(&mut guest, 0, 0, at + offset, bytes);
        assert_eq!(guest.wait(0), Ok(()));
        let expected = &data[offset as usize..(offset + bytes) as usize];
        assert_eq!(guest.staged(0, bytes), expected);
    }
    assert_eq!(controls.signatures(), before + 3);
}

#[test]
fn what_follows_comes_after_it_is_delivered() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let at = guest.commit(0, GRANULE);
    guest.stage(0, &[0xEE; 4]);
    controls.hold(true);
    guest.write(0, at, &1_u32.to_le_bytes());
    read_back(&mut guest, 0, 0, at, 4);
    guest.write(0, at, &2_u32.to_le_bytes());
    // Reads what the readback has brought.
    let back = Copy {
        to: at + 4,
        from_space: Space::Staging as u32,
        from: 0,
        width: 4,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.copy(0, &back);
    guest.event(0, 1);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(guest.staged(0, 4), [0xEE; 4]);
    assert!(guest.observer.completed(0).is_empty());
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    let told: Vec<u64> = guest
        .observer
        .completed(0)
        .iter()
        .map(|told| told.0)
        .collect();
    assert_eq!(told, [1, 2, 3, 4, 5]);
    assert_eq!(guest.staged(0, 4), 1_u32.to_le_bytes());
    assert_eq!((guest.word(at), guest.word(at + 4)), (2, 1));
}

#[test]
fn data_that_looks_like_nothing_comes_too() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let at = guest.commit(0, GRANULE);
    // The sentinels of the stream's first fence values, so that of each readback is among them.
    let sentinels: Vec<u8> = (0..1024_u32)
        .flat_map(|fence_value| fence_value.wrapping_mul(SENTINEL).to_le_bytes())
        .collect();
    guest.upload(at, &sentinels);
    let before = controls.signatures();
    for _ in 0..20 {
        guest.stage(0, &[0; 4096]);
        read_back(&mut guest, 0, 0, at, 4096);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.staged(0, 4096), sentinels);
    }
    assert_eq!(controls.signatures(), before + 20);
}

#[test]
fn streams_have_landing_places_of_their_own_and_give_them_back() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let at = guest.commit(0, GRANULE);
    for stream in 40..80 {
        guest.stream(stream);
        guest.write(stream, at + u64::from(stream) * 4, &stream.to_le_bytes());
    }
    controls.hold(true);
    for stream in 40..80 {
        let place = u64::from(stream) * 4;
        read_back(&mut guest, stream, place, at + place, 4);
        guest.destroy(stream);
    }
    controls.hold(false);
    for stream in 40..80 {
        assert_eq!(guest.wait(stream), Ok(()));
        let staged = guest.staged(u64::from(stream) * 4, 4);
        assert_eq!(staged, stream.to_le_bytes());
    }
    guest.end();
    until("all streams are gone", || controls.counts()[0] <= 1);
}

#[test]
fn copies_to_page_locked_memory_are_readbacks_once_they_were_waited_for() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let at = guest.commit(0, GRANULE);
    let host = guest.commit_host();
    let read = |guest: &mut Guest, value: u32| {
        guest.write(0, at, &value.to_le_bytes());
        let request = Copy {
            to: host,
            from: at,
            width: 4,
            height: 1,
            depth: 1,
            ..Copy::default()
        };
        guest.copy(0, &request);
    };
    let signalled = |guest: &mut Guest, value: u32| {
        let before = controls.signatures();
        read(guest, value);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.host_bytes(host, 4), value.to_le_bytes());
        // Beside that of the write.
        controls.signatures() - before - 1
    };
    assert_eq!(signalled(&mut guest, 1), 1);
    assert_eq!(signalled(&mut guest, 2), 0);
    assert_eq!(signalled(&mut guest, 3), 0);
    // Now something follows, and so again the next time it is not waited for.
    controls.hold(true);
    read(&mut guest, 4);
    guest.write(0, at + 8, &[1; 4]);
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.host_bytes(host, 4), 4_u32.to_le_bytes());
    assert_eq!(signalled(&mut guest, 5), 1);
    assert_eq!(signalled(&mut guest, 6), 0);
}
