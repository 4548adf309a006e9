//! Mappings at addresses, and what children of a fork have of them.

use std::sync::atomic::Ordering;
use transport::memory::{Mapping, MemoryError, Sealed, WipeOnFork};

/// A stretch of addresses that Linux leaves empty, one for each test.
const FREE: u64 = 0x1000_0000_0000;

#[test]
fn the_same_memory_lies_at_the_same_address_and_replaces_nothing() {
    let memory = Sealed::create("test", 32 << 30).unwrap();
    let mapping = Mapping::map_at(&memory, FREE).unwrap();
    assert_eq!((mapping.base(), mapping.len()), (FREE, 32 << 30));
    mapping.copy_in((32 << 30) - 5, b"bytes");
    let other = Mapping::map_read_only(&memory).unwrap();
    let mut bytes = [0; 5];
    other.copy_out((32 << 30) - 5, &mut bytes);
    assert_eq!(&bytes, b"bytes");
    for taken in [FREE, FREE + (31 << 30)] {
        let again = Mapping::map_at(&memory, taken).unwrap_err();
        assert!(matches!(again, MemoryError::Occupied { address } if address == taken));
        let again = Mapping::reserve(taken, 1 << 30).unwrap_err();
        assert!(matches!(again, MemoryError::Occupied { address } if address == taken));
    }
    drop(mapping);
    let reserved = Mapping::reserve(FREE, 1 << 30).unwrap();
    assert!(Mapping::map_at(&memory, FREE).is_err());
    drop(reserved);
    Mapping::map_at(&memory, FREE).unwrap();
}

#[test]
fn words_and_copies_are_bounded() {
    let memory = Sealed::create("test", 4096).unwrap();
    let mapping = Mapping::map(&memory).unwrap();
    mapping.populate_for_writing(0, 4096);
    mapping.populate_for_reading(0, 4096);
    mapping.word(4088).store(7, Ordering::Relaxed);
    mapping.copy_in(4096, &[]);
    let refused: [&(dyn Fn() -> u64 + std::panic::RefUnwindSafe); 6] = [
        &|| mapping.word(4096).load(Ordering::Relaxed),
        &|| mapping.word(4).load(Ordering::Relaxed),
        &|| mapping.words(8, 512).len() as u64,
        &|| mapping.words(0, usize::MAX / 4).len() as u64,
        &|| {
            mapping.copy_in(4090, b"too long");
            0
        },
        &|| {
            mapping.copy_out(usize::MAX, &mut [0; 2]);
            0
        },
    ];
    for access in refused {
        assert!(std::panic::catch_unwind(access).is_err());
    }
}

#[test]
fn a_forked_child_knows_that_it_is_one() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(status: i32) -> !;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    }
    let page = WipeOnFork::new().unwrap();
    assert!(!page.is_wiped());
    // SAFETY: the child does nothing but read a word and end, which is allowed after a fork.
    let child = unsafe { fork() };
    if child == 0 {
        let status = i32::from(page.is_wiped());
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { _exit(status) }
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `status` is writable, and the child is ours.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    // Exited, with 1.
    assert_eq!(status, 1 << 8);
    assert!(!page.is_wiped());
}
