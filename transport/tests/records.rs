//! Records made of anything: what is written is read again, what is not is refused.

use proptest::prelude::*;
use protocol::operations::{self, Request};
use protocol::wire::{Fields, HEADER_SLOTS, Header};
use std::sync::atomic::Ordering;
use transport::memory::Mapping;
use transport::ring::Record;
use transport::session::{ClientEnd, ServerEnd, SessionMemory};
use transport::socket::Connection;

const RECORDS: usize = 36864;

fn small() -> ProptestConfig {
    ProptestConfig {
        cases: 64,
        ..ProptestConfig::default()
    }
}

/// Reads fields of any slots; if they can be, writing them gives the same again.
fn read_and_write<R: Fields + PartialEq + std::fmt::Debug>(slots: &[u64]) {
    if let Ok(fields) = R::read(slots) {
        let mut written = vec![0; R::SLOTS];
        fields.write(&mut written);
        let mut expected = slots.to_vec();
        expected.resize(R::SLOTS, 0);
        assert_eq!(written, expected);
        assert_eq!(R::read(&written), Ok(fields));
    }
}

macro_rules! every_row {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        fn every_row(slots: &[u64]) {
            $($(
                read_and_write::<operations::$request>(slots);
                read_and_write::<<operations::$request as Request>::Reply>(slots);
            )*)*
        }
    };
}

protocol::for_each_operation!(every_row);

/// Slots of which many fit a field: small ones, negative ones, any.
fn slot() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..256,
        any::<u32>().prop_map(u64::from),
        (-300i64..0).prop_map(|n| n as u64),
        any::<u64>()
    ]
}

proptest! {
    #[test]
    fn headers_come_back(opcode: u16, version: u8, slots: u8, data: u32, sequence: u64, channel: u32) {
        let header = Header { opcode, version, slots, data, sequence, channel };
        prop_assert_eq!(Header::decode(header.encode()), Ok(header));
    }

    #[test]
    fn any_slots_are_read_or_refused(slots in prop::collection::vec(slot(), 0..40)) {
        every_row(&slots);
    }
}

proptest! {
    #![proptest_config(small())]

    /// Whatever stands in the ring, taking it never panics, and gives nothing beyond what was
    /// produced.
    #[test]
    fn any_ring_is_taken_or_refused(
        words in prop::collection::vec(
            prop_oneof![
                any::<u64>(),
                // Headers that could be.
                (1u64..50, 0u64..12, 0u64..100).prop_map(|(opcode, slots, data)| data | opcode << 32 | slots << 56),
                0u64..64,
            ],
            1..300,
        ),
        produced in prop_oneof![0u64..400, any::<u64>()],
    ) {
        let memory = SessionMemory::create(4096).unwrap();
        let ring = Mapping::map(&memory.ring).unwrap();
        let (mut consumer, _) = ServerEnd::new(&memory).unwrap().split();
        for (place, word) in ring.words(RECORDS, words.len()).iter().zip(&words) {
            place.store(*word, Ordering::Relaxed);
        }
        ring.word(0).store(produced, Ordering::Release);
        let mut record = Record::default();
        let mut total = 0;
        while let Ok(Some(position)) = consumer.next_record(&mut record) {
            prop_assert_eq!(record.slots().len(), usize::from(record.header.slots));
            prop_assert_eq!(record.data().len(), record.header.data as usize);
            total += record.header.record_bytes() / 8;
            prop_assert!(total as u64 <= produced && total <= (1 << 20) / 8);
            every_row(record.slots());
            consumer.retire(position);
        }
    }

    /// What is posted is taken, whatever came before.
    #[test]
    fn what_is_posted_is_taken(
        records in prop::collection::vec((any::<u64>(), any::<u32>(), prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5)), 1..50),
    ) {
        let memory = SessionMemory::create(4096).unwrap();
        let (ours, _theirs) = Connection::pair().unwrap();
        let (mut consumer, _) = ServerEnd::new(&memory).unwrap().split();
        let client = ClientEnd::new(&memory, ours).unwrap();
        for (to, channel, parts) in &records {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            client.post(*channel, *to, &operations::Write { to: *to }, &parts).unwrap();
        }
        let mut record = Record::default();
        for (to, channel, parts) in &records {
            prop_assert!(consumer.next_record(&mut record).unwrap().is_some());
            prop_assert_eq!(record.header.opcode, operations::Opcode::Write as u16);
            prop_assert_eq!((record.header.sequence, record.header.channel), (*to, *channel));
            prop_assert_eq!(record.slots(), &[*to][..]);
            prop_assert_eq!(record.data(), parts.concat());
            prop_assert_eq!(record.header.record_bytes() / 8, HEADER_SLOTS + 1 + record.data().len().div_ceil(8));
        }
        prop_assert_eq!(consumer.next_record(&mut record), Ok(None));
    }
}
