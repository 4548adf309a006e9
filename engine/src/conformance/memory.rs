//! Windows, what is committed in them, and what a device has.

use std::sync::Arc;
use std::time::Instant;

use protocol::operations::{Copy, Fill, Space};

use super::rig::{Guest, PATIENCE, more_addresses, noise};
use crate::arena::GRANULE;
use crate::{CUresult, Engine, FurtherWindow, Owner, Window};

/// A client that goes leaves neither memory nor mappings.
pub fn attaching_and_detaching_leaves_nothing(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    for round in 0..50 {
        let mut guest = Guest::new(engine);
        let base = guest.commit(0, 4 * GRANULE);
        guest.upload(base, &noise(4 * GRANULE, round));
        // An engine may take memory in larger pieces than it gives.
        assert!(guest.client.free_memory(0) <= free - 4 * GRANULE);
    }
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
}

/// What was taken back and is committed again is zero, on devices and in host memory.
pub fn committed_memory_is_zeroed_again(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(3 * GRANULE, 2 * GRANULE);
    let host = guest.commit_host();
    for base in [device, host] {
        let range = Window {
            base,
            bytes: 2 * GRANULE,
        };
        let zeroes = vec![0; range.bytes as usize];
        assert_eq!(guest.download(base, range.bytes), zeroes);
        let data = noise(range.bytes, 1);
        guest.upload(base, &data);
        assert_eq!(guest.download(base, range.bytes), data);
        guest.client.decommit(range);
        guest.client.commit(range).expect("memory");
        assert_eq!(guest.download(base, range.bytes), zeroes);
    }
}

/// What the server mapped over the host window is reached with what is in it, and keeps that when it is
/// taken back. It is let go then, once, and never before.
pub fn lent_memory_keeps_what_is_in_it(engine: &dyn Engine) {
    #[derive(Debug)]
    struct Lender;
    impl Owner for Lender {}
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let range = Window {
        base: guest.host.base + GRANULE,
        bytes: GRANULE,
    };
    let before = noise(GRANULE, 7);
    guest.set_host(range.base, &before);
    let refused = Err(CUresult::ERROR_INVALID_VALUE);
    let reaches = |guest: &mut Guest| {
        guest.copy(0, &linear(device, range.base, GRANULE));
        guest.wait(0)
    };
    assert_eq!(reaches(&mut guest), refused, "not lent yet");
    let lender = Arc::new(Lender);
    let lent = guest.client.host_lend(range, lender.clone());
    if lent == Err(CUresult::ERROR_NOT_SUPPORTED) {
        return; // The engine does not claim to.
    }
    assert_eq!(lent, Ok(()));
    assert_eq!(
        guest.client.host_lend(range, Arc::new(Lender)),
        refused,
        "twice"
    );
    assert_eq!(reaches(&mut guest), Ok(()));
    assert!(guest.download(device, GRANULE) == before);
    let after = noise(GRANULE, 8);
    guest.upload(range.base, &after);
    assert!(guest.host_bytes(range.base, GRANULE) == after);
    assert_eq!(Arc::strong_count(&lender), 2, "let go while it is lent");
    guest.client.host_return(range);
    let until = Instant::now() + PATIENCE;
    while Arc::strong_count(&lender) > 1 && Instant::now() < until {
        guest.client.assist();
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&lender), 1, "kept for ever");
    assert_eq!(reaches(&mut guest), refused, "taken back");
    assert!(guest.host_bytes(range.base, GRANULE) == after, "cleared");
    for range in [
        Window { bytes: 0, ..range },
        Window {
            bytes: 512,
            ..range
        },
        Window {
            base: range.base + 512,
            ..range
        },
        Window {
            base: device,
            ..range
        },
        Window {
            bytes: guest.host.bytes,
            ..range
        },
    ] {
        assert_eq!(guest.client.host_lend(range, lender.clone()), refused);
    }
    assert_eq!(Arc::strong_count(&lender), 1);
    // It is the client's own again.
    guest.client.commit(range).expect("memory");
    assert_eq!(reaches(&mut guest), Ok(()));
}

/// An engine that can look into memory shows what is there, and nothing of others'.
pub fn looks_into_memory_are_checked(engine: &dyn Engine) {
    let mut mine = Guest::new(engine);
    let mut other = Guest::new(engine);
    let (own, theirs) = (mine.commit(0, GRANULE), other.commit(0, GRANULE));
    let host = mine.commit_host();
    if mine.client.peek(own, 4) == Err(CUresult::ERROR_NOT_SUPPORTED) {
        return;
    }
    let looked = |guest: &mut Guest, address, bytes| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match guest.client.peek(address, bytes) {
                // It may need more than one look.
                Err(CUresult::ERROR_NOT_READY) if Instant::now() < deadline => {}
                value => return value,
            }
        }
    };
    for base in [own, host] {
        mine.upload(base, &0x0807_0605_0403_0201_u64.to_le_bytes());
        assert_eq!(looked(&mut mine, base, 8), Ok(0x0807_0605_0403_0201));
        assert_eq!(looked(&mut mine, base + 4, 4), Ok(0x0807_0605));
        mine.upload(base, &[9; 4]);
        assert_eq!(looked(&mut mine, base, 4), Ok(0x0909_0909), "no old value");
    }
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(mine.client.peek(own + GRANULE - 4, 8), wrong);
    assert_eq!(mine.client.peek(own, 3), wrong);
    for foreign in [0, theirs, u64::MAX - 3] {
        assert_eq!(mine.client.peek(foreign, 4), wrong);
    }
}

/// No client's copies reach another client's memory.
pub fn clients_cannot_reach_each_other(engine: &dyn Engine) {
    let mut mine = Guest::new(engine);
    let mut other = Guest::new(engine);
    let own = mine.commit(0, GRANULE);
    let theirs = other.commit(0, GRANULE);
    let host = other.commit_host();
    other.upload(theirs, &noise(GRANULE, 7));
    for foreign in [theirs, host] {
        for (to, from) in [(own, foreign), (foreign, own)] {
            mine.copy(0, &linear(to, from, 64));
            assert_eq!(mine.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
        }
        mine.write(0, foreign, &[1, 2, 3]);
        assert_eq!(mine.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(other.download(theirs, GRANULE), noise(GRANULE, 7));
    // A refused copy harms nothing.
    mine.upload(own, b"fine");
    assert_eq!(mine.download(own, 4), b"fine");
}

/// Memory of a window that came later is as good as that of the first, and of one that was taken away
/// there is nothing left.
pub fn windows_come_and_go(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    let mut guest = Guest::new(engine);
    let mut other = Guest::new(engine);
    let own = guest.commit(0, GRANULE);
    let refused = Err(CUresult::ERROR_INVALID_VALUE);
    let mut spare = more_addresses(200 << 30);
    let window = spare.windows()[0];
    // Side by side, as any two may be, the second much larger than the device.
    let (first, second) = (
        Window {
            bytes: 4 << 30,
            ..window
        },
        Window {
            base: window.base + (4 << 30),
            bytes: window.bytes - (4 << 30),
        },
    );
    let at = |window: Window| Window {
        base: window.base + window.bytes - 2 * GRANULE,
        bytes: 2 * GRANULE,
    };
    assert_eq!(guest.client.commit(at(first)), refused, "not yet");
    for added in [first, second] {
        let owner = spare.owner();
        assert_eq!(guest.client.window_add(further(0, added, owner)), Ok(()));
        guest.client.commit(at(added)).expect("memory");
    }
    let last = Window {
        base: second.base,
        bytes: GRANULE,
    };
    guest.client.commit(last).expect("memory");
    for wrong in [
        first,
        second,
        guest.windows[0],
        guest.host,
        Window {
            base: second.base + (1 << 30),
            bytes: 1 << 30,
        },
        Window {
            base: guest.host.base - (1 << 30),
            bytes: 2 << 30,
        },
        Window { bytes: 0, ..window },
    ] {
        let owner = spare.owner();
        let added = guest.client.window_add(further(0, wrong, owner));
        assert_eq!(added, refused, "{wrong:x?}");
    }
    let nowhere = guest.client.window_add(further(99, window, spare.owner()));
    assert!(nowhere.is_err());
    let across = Window {
        base: second.base - GRANULE,
        bytes: 2 * GRANULE,
    };
    assert_eq!(guest.client.commit(across), refused, "of two windows");
    let data = noise(2 * GRANULE, 11);
    for added in [first, second] {
        assert!(guest.download(at(added).base, GRANULE) == vec![0; GRANULE as usize]);
        guest.upload(at(added).base, &data);
        guest.copy(0, &linear(own, at(added).base + GRANULE - 8, 16));
        guest.wait(0).expect("a copy between windows");
        assert!(guest.download(own, 16) == data[GRANULE as usize - 8..][..16]);
        other.copy(0, &linear(other.windows[0].base, at(added).base, 8));
        assert_eq!(other.wait(0), refused, "another's");
    }
    // What is in the second stays as it is when the first goes.
    guest.client.decommit(at(first));
    guest.client.window_remove(first);
    guest.client.window_remove(first);
    guest.client.window_remove(guest.windows[0]);
    assert_eq!(guest.client.commit(at(first)), refused, "no more");
    guest.copy(0, &linear(own, at(first).base, 8));
    assert_eq!(guest.wait(0), refused);
    assert!(guest.download(at(second).base, 2 * GRANULE) == data);
    assert!(guest.download(own, 16) == data[GRANULE as usize - 8..][..16]);
    // And it can come again, cleared, for another.
    let deadline = Instant::now() + PATIENCE;
    while other
        .client
        .window_add(further(0, first, spare.owner()))
        .is_err()
    {
        assert!(Instant::now() < deadline, "its addresses are not free");
        guest.client.assist();
    }
    other.client.commit(at(first)).expect("memory");
    assert!(other.download(at(first).base, GRANULE) == vec![0; GRANULE as usize]);
    drop((guest, other));
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
    assert!(spare.is_unused(), "nobody holds its addresses any more");
}

fn further(device: u32, window: Window, addresses: Arc<dyn Owner>) -> FurtherWindow {
    FurtherWindow {
        device,
        window,
        addresses,
        file: None,
    }
}

/// A block that is shared is there for others, and nothing else is, until the last of them is gone.
pub fn a_shared_block_outlives_its_owner(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    let mut owner = Guest::new(engine);
    let base = owner.commit(0, 2 * GRANULE);
    let before = noise(2 * GRANULE, 3);
    owner.upload(base, &before);
    // Neither end is at a granule's.
    let range = Window {
        base: base + 512,
        bytes: GRANULE,
    };
    let shared = match owner.client.share(range) {
        Err(CUresult::ERROR_NOT_SUPPORTED) => return, // The engine does not claim to.
        shared => shared.expect("a block"),
    };
    let mut user = Guest::new(engine);
    let own = user.commit(0, GRANULE);
    let reaches = |user: &mut Guest, from, bytes| {
        user.copy(0, &linear(own, from, bytes));
        user.wait(0)
    };
    let refused = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(reaches(&mut user, range.base, 64), refused, "not opened");
    user.client.import(&shared).expect("its memory");
    let inside = &before[512..512 + GRANULE as usize];
    assert!(user.download(range.base, range.bytes) == inside);
    let after = noise(range.bytes, 4);
    user.upload(range.base, &after);
    assert!(owner.download(range.base, range.bytes) == after);
    for (from, bytes) in [
        (range.base - 1, 1),
        (range.base + range.bytes, 1),
        (range.base + range.bytes - 8, 16),
        (base, 64),
    ] {
        assert_eq!(reaches(&mut user, from, bytes), refused, "{from:#x}");
    }
    drop(owner);
    assert!(
        user.download(range.base, range.bytes) == after,
        "the owner is gone"
    );
    user.client.close(&shared);
    assert_eq!(reaches(&mut user, range.base, 64), refused, "closed");
    drop(shared);
    drop(user);
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
}

/// Memory that a client shares is another process's as well, by descriptors: there clients reach the shared part of it, whatever
/// became of its owner. This process takes the place of that one.
pub fn exported_memory_is_reached_in_part(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    let mut owner = Guest::new(engine);
    let unit = 2 << 20;
    let base = owner.commit(0, 2 * unit);
    let before = noise(2 * unit, 6);
    owner.upload(base, &before);
    let range = Window {
        base: base + 512,
        bytes: unit,
    };
    let Ok(shared) = owner.client.share(range) else {
        return; // The engine does not claim to.
    };
    let exported = match engine.export_memory(&shared, PATIENCE) {
        Err(CUresult::ERROR_NOT_SUPPORTED) => return, // Nor to this.
        exported => exported.expect("descriptors"),
    };
    let bytes: u64 = exported.pieces.iter().map(|piece| piece.bytes).sum();
    assert!(exported.offset + range.bytes <= bytes);
    drop(shared);

    let mut user = Guest::new(engine);
    let own = user.commit(0, GRANULE);
    let reaches = |user: &mut Guest, from, bytes| {
        user.copy(0, &linear(own, from, bytes));
        user.wait(0)
    };
    let refused = Err(CUresult::ERROR_INVALID_VALUE);
    let start = user.windows[0].base + user.windows[0].bytes / 4;
    let mut at = start.next_multiple_of(unit);
    let block = Window {
        base: at + exported.offset,
        bytes: range.bytes,
    };
    let end = block.base + block.bytes;
    let mut mapped = Vec::new();
    for piece in &exported.pieces {
        let memory = user.client.foreign_import(0, piece).expect("its memory");
        let place = Window {
            base: at,
            bytes: piece.bytes,
        };
        at += piece.bytes;
        let first = place.base.max(block.base);
        let part = Window {
            base: first,
            bytes: at.min(end) - first,
        };
        let short = Window {
            bytes: place.bytes - unit,
            ..place
        };
        let misfit = user.client.foreign_map(short, &memory, part);
        assert_eq!(misfit, refused, "less than all of it");
        let mapping = user.client.foreign_map(place, &memory, part);
        assert_eq!(mapping, Ok(()));
        assert_eq!(user.client.foreign_map(place, &memory, part), refused);
        mapped.push(place);
    }
    let inside = &before[512..512 + unit as usize];
    assert!(user.download(block.base, block.bytes) == inside);
    let after = noise(block.bytes, 7);
    user.upload(block.base, &after);
    assert!(owner.download(range.base, range.bytes) == after);
    for (from, bytes) in [
        (block.base - 1, 1),
        (end, 1),
        (end - 8, 16),
        (mapped[0].base, 64),
    ] {
        assert_eq!(reaches(&mut user, from, bytes), refused, "{from:#x}");
    }
    drop(owner);
    assert!(
        user.download(block.base, block.bytes) == after,
        "the owner is gone"
    );
    for &place in &mapped {
        assert_eq!(user.client.physical_access(place, 0, false), Ok(()));
    }
    // It stays mapped for what was begun before, and for nothing else.
    assert_eq!(reaches(&mut user, block.base, 64), refused, "withdrawn");
    let fill = Fill {
        to: block.base,
        pitch: 0,
        value: 7,
        element: 4,
        width: 16,
        height: 1,
    };
    user.fill(0, &fill);
    assert_eq!(user.wait(0), refused, "withdrawn");
    for &place in &mapped {
        user.client.physical_unmap(place);
    }
    assert_eq!(reaches(&mut user, block.base, 64), refused, "closed");
    for piece in &exported.pieces {
        let nowhere = u32::MAX;
        assert!(user.client.foreign_import(nowhere, piece).is_err());
    }
    drop(exported);
    drop(user);
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
}

/// Physical memory is seen at each of its mappings, by whom it was allowed to, and lives as long as
/// one of them.
pub fn physical_memory_is_seen_wherever_it_is_mapped(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    let mut guest = Guest::new(engine);
    let unit = 2 << 20;
    let memory = match guest.client.physical_create(0, unit) {
        Err(CUresult::ERROR_NOT_SUPPORTED) => return, // The engine does not claim to.
        memory => memory.expect("memory"),
    };
    assert!(guest.client.free_memory(0) <= free - unit);
    let base = (guest.windows[0].base + guest.windows[0].bytes / 4).next_multiple_of(unit);
    let [first, second] = [base, base + 2 * unit].map(|base| Window { base, bytes: unit });
    let own = guest.commit(0, GRANULE);
    let reaches = |guest: &mut Guest, at: Window| {
        guest.copy(0, &linear(own, at.base + at.bytes - 64, 64));
        guest.wait(0)
    };
    let refused = Err(CUresult::ERROR_INVALID_VALUE);
    for at in [first, second] {
        guest
            .client
            .physical_map(at, &memory, 0)
            .expect("a mapping");
        assert_eq!(reaches(&mut guest, at), refused, "nobody may yet");
        guest.client.physical_access(at, 0, true).expect("access");
        assert_eq!(
            guest.client.physical_map(at, &memory, 0),
            refused,
            "occupied"
        );
    }
    assert_eq!(guest.download(first.base, unit), vec![0; unit as usize]);
    let data = noise(unit, 5);
    guest.upload(first.base, &data);
    assert!(guest.download(second.base, unit) == data);
    guest
        .client
        .physical_access(second, 0, false)
        .expect("no access");
    assert_eq!(reaches(&mut guest, second), refused);
    guest
        .client
        .physical_access(second, 0, true)
        .expect("access");
    guest.client.physical_unmap(first);
    assert_eq!(reaches(&mut guest, first), refused);
    // Nonsense.
    let elsewhere = Window {
        base: guest.host.base,
        bytes: unit,
    };
    for (at, offset) in [
        (first, GRANULE),
        (first, u64::MAX),
        (elsewhere, 0),
        (
            Window {
                base: first.base + 1,
                ..first
            },
            0,
        ),
    ] {
        assert_eq!(guest.client.physical_map(at, &memory, offset), refused);
    }
    drop(memory);
    assert!(
        guest.download(second.base, unit) == data,
        "the mapping keeps it"
    );
    guest.client.physical_unmap(second);
    drop(guest);
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
}

/// Addresses of a window that are not committed cannot be used, nor can what reaches beyond.
pub fn what_is_not_committed_is_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let base = guest.commit(GRANULE, GRANULE);
    let refused = [
        (base - 1, 1),
        (base - 1, 2),
        (base + GRANULE - 1, 2),
        (base + GRANULE, 1),
        (guest.host.base, 1),
        (0, 1),
        (u64::MAX, 1),
        (base, u64::MAX),
    ];
    for (from, width) in refused {
        let request = Copy {
            to_space: Space::Staging as u32,
            ..linear(0, from, width)
        };
        guest.copy(0, &request);
        assert_eq!(
            guest.wait(0),
            Err(CUresult::ERROR_INVALID_VALUE),
            "{width} from {from:#x}"
        );
    }
    guest.client.decommit(Window {
        base,
        bytes: GRANULE,
    });
    guest.write(0, base, &[1]);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
}

/// Only whole granules inside of one window can be committed.
pub fn ranges_that_make_no_sense_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let window = guest.windows[0];
    let end = window.base + window.bytes;
    let refused = [
        (window.base + 1, GRANULE),
        (window.base, GRANULE + 1),
        (window.base - GRANULE, 2 * GRANULE),
        (end - GRANULE, 2 * GRANULE),
        (0, GRANULE),
        (GRANULE, u64::MAX - GRANULE + 1),
        (u64::MAX - GRANULE + 1, GRANULE),
    ];
    let free = guest.client.free_memory(0);
    for (base, bytes) in refused {
        let range = Window { base, bytes };
        let result = guest.client.commit(range);
        assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE), "{range:x?}");
        guest.client.decommit(range);
    }
    assert_eq!(guest.client.free_memory(0), free);
    assert_eq!(guest.client.free_memory(99), 0);
}

/// All clients together get what the device has, and what one gives back another can have.
pub fn a_device_has_only_so_much(engine: &dyn Engine) {
    let total = engine.devices()[0].total_memory;
    let mut first = Guest::new(engine);
    let mut second = Guest::new(engine);
    let half = (total / 2).next_multiple_of(GRANULE);
    first.commit(0, half);
    let range = Window {
        base: second.windows[0].base,
        bytes: half + GRANULE,
    };
    let full = Err(CUresult::ERROR_OUT_OF_MEMORY);
    assert_eq!(second.client.commit(range), full);
    let free = second.client.free_memory(0);
    assert!(free <= total - half);
    second.commit(0, free);
    assert_eq!(first.client.free_memory(0), total - half - free);
    first.end();
    assert_eq!(second.client.free_memory(0), total - free);
}

fn linear(to: u64, from: u64, width: u64) -> Copy {
    Copy {
        to,
        from,
        width,
        height: 1,
        depth: 1,
        ..Copy::default()
    }
}
