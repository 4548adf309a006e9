//! Any bytes as a ring: taking records from it never panics nor gives more than was produced, and
//! the fields of each are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::operations;
use protocol::wire::Fields;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use transport::memory::Mapping;
use transport::ring::Record;
use transport::session::{ServerEnd, SessionMemory};

/// Where the records begin in the ring's memory.
const RECORDS: usize = 36864;

macro_rules! every_row {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        fn read(opcode: u16, slots: &[u64]) {
            match opcode {
                $($($number => {
                    let _ = operations::$request::read(slots);
                })*)*
                _ => {}
            }
        }
    };
}

protocol::for_each_operation!(every_row);

thread_local! {
    static RECORD: RefCell<Record> = RefCell::default();
}

// The input: the produced cursor, then the records.
fuzz_target!(|bytes: &[u8]| {
    let Some((produced, records)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let produced = u64::from(u32::from_le_bytes(*produced));
    let memory = SessionMemory::create(4096).expect("room for a session");
    let ring = Mapping::map(&memory.ring).expect("room for a mapping");
    let (mut consumer, _) = ServerEnd::new(&memory).expect("a server's end").split();
    let records = &records[..records.len().min(ring.len() - RECORDS)];
    ring.copy_in(RECORDS, records);
    ring.word(0).store(produced, Ordering::Release);
    RECORD.with_borrow_mut(|record| {
        let mut total = 0;
        while let Ok(Some(position)) = consumer.next_record(record) {
            assert_eq!(record.slots().len(), usize::from(record.header.slots));
            assert_eq!(record.data().len(), record.header.data as usize);
            total += record.header.record_bytes() as u64 / 8;
            assert!(total <= produced);
            read(record.header.opcode, record.slots());
            consumer.spill();
            consumer.retire(position);
        }
    });
});
