//! What a client may have, and what counts.

use super::*;

/// A device with room for everything.
struct Plenty;

impl Backing for Plenty {
    fn commit(&mut self, _: Window) -> Result<(), CUresult> {
        Ok(())
    }
    fn recommit(&mut self, _: Window) -> Result<bool, CUresult> {
        Ok(true)
    }
    fn decommit(&mut self, _: Window) {}
    fn extend(&mut self, _: u32, _: u64) -> Result<Window, CUresult> {
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }
    fn retract(&mut self, _: Window) {}
}

/// What clients may have of host memory.
const PINNED: u64 = 1 << 30;

fn memory(limit: u64) -> ClientMemory {
    let window = |index: u64| Window {
        base: 0x1100_0000_0000 + (index << 30),
        bytes: 1 << 30,
    };
    let allowance = |index, limit| Allowance {
        window: window(index),
        limit,
        most: 1 << 30,
    };
    ClientMemory::new(
        &[allowance(0, limit), allowance(1, 1 << 30)],
        allowance(2, 1 << 30),
        None,
        Arc::new(Bound::new(PINNED)),
    )
}

#[test]
fn a_quota_holds_until_the_memory_is_really_free() {
    let mut memory = memory(4 << 20);
    let at = memory
        .allocate(MemoryKind::Device(0), 0, 3 << 20, &mut Plenty)
        .unwrap();
    let more =
        |memory: &mut ClientMemory| memory.allocate(MemoryKind::Device(0), 0, 2 << 20, &mut Plenty);
    assert_eq!(more(&mut memory), Err(CUresult::ERROR_OUT_OF_MEMORY));
    assert_eq!(memory.info(0, 1 << 40), Some((1 << 20, 4 << 20)));
    let block = memory.remove(at, true).unwrap();
    assert_eq!(memory.remove(at, true), None, "freed twice");
    assert_eq!(
        more(&mut memory),
        Err(CUresult::ERROR_OUT_OF_MEMORY),
        "still in use"
    );
    memory.release(&block, &mut Plenty);
    assert!(more(&mut memory).is_ok());
    // The other device has its own.
    assert!(
        memory
            .allocate(MemoryKind::Device(1), 0, 8 << 20, &mut Plenty)
            .is_ok()
    );
}

#[test]
fn managed_memory_lies_in_the_host_window_and_counts_against_its_device() {
    let mut memory = memory(4 << 20);
    let mut ask = |place, bytes| memory.allocate(place, 0, bytes, &mut Plenty);
    let managed = ask(MemoryKind::Managed(0), 3 << 20).unwrap();
    assert!(
        managed >= 0x1100_0000_0000 + (2 << 30),
        "in the host window"
    );
    for place in [MemoryKind::Device(0), MemoryKind::Managed(0)] {
        assert_eq!(ask(place, 2 << 20), Err(CUresult::ERROR_OUT_OF_MEMORY));
    }
    // Page-locked memory and the other device have quotas of their own.
    ask(MemoryKind::Host, 8 << 20).unwrap();
    ask(MemoryKind::Managed(1), 8 << 20).unwrap();
    assert_eq!(
        ask(MemoryKind::Managed(2), 1),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    assert_eq!(memory.info(0, 1 << 40), Some((1 << 20, 4 << 20)));
    assert_eq!(memory.remove(managed, false), None, "no page-locked memory");
    let block = memory.remove(managed, true).unwrap();
    memory.release(&block, &mut Plenty);
    assert_eq!(memory.info(0, 1 << 40), Some((4 << 20, 4 << 20)));
}

#[test]
fn host_memory_of_all_clients_has_a_bound() {
    let (mut one, mut other) = (memory(1 << 30), memory(1 << 30));
    other.pinned = one.pinned.clone();
    let half = PINNED / 2;
    let ask =
        |memory: &mut ClientMemory, place, bytes| memory.allocate(place, 0, bytes, &mut Plenty);
    ask(&mut one, MemoryKind::Host, half).unwrap();
    ask(&mut one, MemoryKind::Device(0), 1 << 30).unwrap();
    let managed = ask(&mut other, MemoryKind::Managed(1), half).unwrap();
    for place in [MemoryKind::Host, MemoryKind::Managed(1)] {
        for memory in [&mut one, &mut other] {
            assert_eq!(ask(memory, place, 4096), Err(CUresult::ERROR_OUT_OF_MEMORY));
        }
    }
    let block = other.remove(managed, true).unwrap();
    other.release(&block, &mut Plenty);
    ask(&mut other, MemoryKind::Host, half).unwrap();
    // What a client leaves behind is free again.
    drop(other);
    ask(&mut one, MemoryKind::Host, half).unwrap();
}

#[test]
fn what_is_charged_counts_against_the_quota() {
    let mut memory = memory(4 << 20);
    assert_eq!(memory.charge(0, 3 << 20), Ok(()));
    assert_eq!(
        memory.charge(0, 2 << 20),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
    let more = memory.allocate(MemoryKind::Device(0), 0, 2 << 20, &mut Plenty);
    assert_eq!(more, Err(CUresult::ERROR_OUT_OF_MEMORY));
    assert_eq!(memory.info(0, 1 << 40), Some((1 << 20, 4 << 20)));
    memory.uncharge(0, 3 << 20);
    assert_eq!(
        memory.charge(0, u64::MAX),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
    assert_eq!(memory.charge(0, 4 << 20), Ok(()));
    assert_eq!(memory.charge(9, 1), Err(CUresult::ERROR_INVALID_DEVICE));
}

#[test]
fn only_the_start_of_an_own_block_of_the_right_kind_can_be_freed() {
    let mut memory = memory(1 << 30);
    let device = memory
        .allocate(MemoryKind::Device(0), 0, 4096, &mut Plenty)
        .unwrap();
    let host = memory
        .allocate(MemoryKind::Host, 0, 4096, &mut Plenty)
        .unwrap();
    assert_eq!(memory.remove(device + 512, true), None);
    assert_eq!(memory.remove(0, true), None);
    assert_eq!(memory.remove(device, false), None);
    assert_eq!(memory.remove(host, true), None);
    assert!(memory.remove(host, false).is_some());
    assert!(memory.remove(device, true).is_some());
}

#[test]
fn a_context_takes_its_blocks_with_it() {
    let mut memory = memory(1 << 30);
    for context in [0, 0, 3] {
        memory
            .allocate(MemoryKind::Device(0), context, 4096, &mut Plenty)
            .unwrap();
    }
    memory
        .allocate(MemoryKind::Host, 3, 4096, &mut Plenty)
        .unwrap();
    assert_eq!(memory.remove_context(3).len(), 2);
    assert_eq!(memory.remove_context(3).len(), 0);
    assert_eq!(memory.remove_context(0).len(), 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut memory = memory(1 << 30);
    let mut ask = |place, bytes| memory.allocate(place, 0, bytes, &mut Plenty);
    assert_eq!(
        ask(MemoryKind::Device(0), 0),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    assert_eq!(
        ask(MemoryKind::Device(7), 1),
        Err(CUresult::ERROR_INVALID_DEVICE)
    );
    assert_eq!(
        ask(MemoryKind::Device(0), u64::MAX),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
    assert_eq!(
        ask(MemoryKind::Host, (1 << 30) + 1),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
}

#[test]
fn an_address_is_of_the_block_that_it_lies_in_and_of_one_that_ends_there() {
    let mut memory = memory(4 << 20);
    let mut ask = |bytes| memory.allocate(MemoryKind::Device(0), 0, bytes, &mut Plenty);
    let (one, two) = (ask(1 << 20).unwrap(), ask(1 << 20).unwrap());
    let end = one.max(two);
    assert_eq!(end, one.min(two) + (1 << 20), "one behind the other");
    let block = |start| Some(start..start + (1 << 20));
    assert_eq!(memory.blocks_at(one + 5), [block(one), None]);
    assert_eq!(memory.blocks_at(end), [block(end), block(end - (1 << 20))]);
    assert_eq!(memory.blocks_at(end + (1 << 20)), [None, block(end)]);
    assert_eq!(memory.blocks_at(7), [None, None]);
    assert!(memory.is_in_window(end + (2 << 20)) && !memory.is_in_window(7));
}
