//! A client that writes whatever it likes into the memory that it shares with its server.

#![allow(clippy::disallowed_types, reason = "loom runs none of these tests")]

use protocol::operations::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::memory::{Mapping, MemoryError, Sealed};
use transport::ring::{Malformed, Record};
use transport::session::{ClientEnd, Consumer, STATUS_BYTES, ServerEnd, SessionMemory};
use transport::socket::Connection;

/// Where the layout says that things are.
const PRODUCED: usize = 0;
const BELL: usize = 128;
const RECORDS: usize = 36864;
const WORDS: usize = (1 << 20) / 8;

fn session() -> (Mapping, Consumer) {
    let memory = SessionMemory::create(4096).expect("room for a session");
    let ring = Mapping::map(&memory.ring).expect("room for a mapping");
    let (consumer, _) = ServerEnd::new(&memory).expect("a server's end").split();
    (ring, consumer)
}

fn header(opcode: u64, slots: u64, data: u64) -> u64 {
    data | opcode << 32 | 1 << 48 | slots << 56
}

/// What the consumer says when a record has these words and the cursor stands there.
fn taken(words: &[u64], produced: u64) -> Result<bool, Malformed> {
    let (ring, mut consumer) = session();
    for (at, word) in words.iter().enumerate() {
        ring.word(RECORDS + at * 8).store(*word, Ordering::Relaxed);
    }
    ring.word(PRODUCED).store(produced, Ordering::Release);
    consumer
        .next_record(&mut Record::default())
        .map(|position| position.is_some())
}

#[test]
fn impossible_cursors_and_lengths_are_malformed() {
    let good = [header(43, 1, 8), 0, 0, 0, 0];
    assert_eq!(taken(&good, 5), Ok(true));
    assert_eq!(taken(&good, 0), Ok(false));
    // Fewer words produced than the record has.
    for produced in 1..5 {
        assert_eq!(taken(&good, produced), Err(Malformed::Length));
    }
    for produced in [WORDS as u64 + 1, u64::MAX, u64::MAX / 2, 1 << 32] {
        assert_eq!(taken(&good, produced), Err(Malformed::Cursor));
    }
    for data in [u64::from(u32::MAX), 1 << 20, (WORDS / 4 * 8) as u64] {
        assert_eq!(
            taken(&[header(43, 1, data), 0, 0], WORDS as u64),
            Err(Malformed::Length)
        );
    }
    assert_eq!(
        taken(&[header(43, 255, 0), 0, 0], 257),
        Err(Malformed::Length)
    );
    assert_eq!(taken(&[header(43, 255, 0), 0, 0], 258), Ok(true));
    assert!(matches!(
        taken(&[header(43, 1, 0), 0, u64::MAX], 5),
        Err(Malformed::Header(_))
    ));
    // Padding with nothing behind it, and padding behind padding.
    assert_eq!(taken(&[0], 1), Err(Malformed::Length));
    assert_eq!(taken(&[0], WORDS as u64), Err(Malformed::Length));
    let (ring, mut consumer) = session();
    ring.word(RECORDS)
        .store(header(43, 1, 0), Ordering::Relaxed);
    ring.word(PRODUCED).store(4, Ordering::Release);
    let mut record = Record::default();
    let position = consumer.next_record(&mut record).unwrap().unwrap();
    consumer.retire(position);
    ring.word(RECORDS).store(0, Ordering::Relaxed);
    ring.word(PRODUCED)
        .store(WORDS as u64 + 4, Ordering::Release);
    assert_eq!(consumer.next_record(&mut record), Err(Malformed::Length));
}

#[test]
fn a_cursor_that_goes_back_or_over_unretired_records_is_malformed() {
    let (ring, mut consumer) = session();
    let mut record = Record::default();
    ring.word(RECORDS)
        .store(header(43, 1, 0), Ordering::Relaxed);
    ring.word(PRODUCED).store(4, Ordering::Release);
    assert!(consumer.next_record(&mut record).unwrap().is_some());
    ring.word(PRODUCED).store(3, Ordering::Release);
    assert_eq!(consumer.next_record(&mut record), Err(Malformed::Cursor));
    // Nothing is retired: the place of the first record is not free.
    ring.word(PRODUCED)
        .store(4 + WORDS as u64, Ordering::Release);
    assert_eq!(consumer.next_record(&mut record), Err(Malformed::Cursor));
}

/// The records change all the time while they are read. What was taken is one copy, within bounds.
#[test]
fn records_that_change_while_they_are_read_are_copies_all_the_same() {
    let mut taken = 0;
    for round in 0..50u64 {
        let (ring, mut consumer) = session();
        let over = AtomicBool::new(false);
        let scribble = |seed: u64| {
            // All that can be are of four words or a multiple, so that some are taken.
            let lengths = [0, 32, 256, 3200, 1 << 18, u64::from(u32::MAX)];
            for (at, word) in ring.words(RECORDS, 4096).iter().enumerate() {
                let n = (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let length = lengths[if n.is_multiple_of(64) {
                    (n / 64) % 6
                } else {
                    n % 4
                } as usize];
                let value = if at % 4 == 2 {
                    n
                } else {
                    header(43, 1, length)
                };
                word.store(value, Ordering::Relaxed);
            }
            ring.word(BELL).store(seed, Ordering::Relaxed);
        };
        scribble(round);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seed = round;
                while !over.load(Ordering::Relaxed) {
                    seed += 1;
                    scribble(seed);
                }
            });
            ring.word(PRODUCED).store(4096, Ordering::Release);
            let mut record = Record::default();
            while let Ok(Some(position)) = consumer.next_record(&mut record) {
                taken += 1;
                assert_eq!(record.slots().len(), usize::from(record.header.slots));
                assert_eq!(record.data().len(), record.header.data as usize);
                consumer.retire(position);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
    assert!(taken > 50, "{taken}");
}

/// Alarms that the client sets, or takes down while the server sleeps, delay its own session only.
#[test]
fn false_alarms_do_no_harm() {
    let memory = SessionMemory::create(4096).unwrap();
    let ring = Mapping::map(&memory.ring).unwrap();
    let (mut consumer, publisher) = ServerEnd::new(&memory).unwrap().split();
    for word in ring.words(0, RECORDS / 8).iter().skip(1) {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    publisher.complete(1, 1);
    publisher.ring_self();
    consumer.spin();
    consumer.wait();
    for word in ring.words(0, RECORDS / 8).iter().skip(1) {
        word.store(1 << 32, Ordering::Relaxed);
    }
    publisher.complete(1, 2);
    publisher.close(cuda_abi::CUresult(999));
    // Nobody rings: it sleeps its slice out, and no longer.
    consumer.wait();
}

#[test]
fn status_memory_cannot_be_written_by_a_client() {
    let memory = SessionMemory::create(4096).unwrap();
    let (consumer, publisher) = ServerEnd::new(&memory).unwrap().split();
    assert!(matches!(
        Mapping::map(&memory.status),
        Err(MemoryError::System(..))
    ));
    let mut byte = [0];
    let fd = &memory.status;
    assert!(rustix::io::pwrite(fd, &[1], 0).is_err());
    assert!(rustix::io::pread(fd, &mut byte, 0).is_ok());
    // The client's own way works.
    let (ours, _theirs) = Connection::pair().unwrap();
    let client = ClientEnd::new(&memory, ours).unwrap();
    publisher.complete(1, 77);
    assert_eq!(client.completed(1), 77);
    client.post(1, 78, &Write { to: 1 }, &[]).unwrap();
    drop(consumer);
}

#[test]
fn descriptors_that_are_not_what_was_agreed_are_refused() {
    let sealed = Sealed::create("test", 4096).unwrap();
    let sized = sealed.try_clone().unwrap().into();
    assert!(matches!(
        Sealed::from_fd(sized, 8192),
        Err(MemoryError::Size {
            wanted: 8192,
            found: 4096
        })
    ));
    let file = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::empty(),
    );
    assert!(matches!(
        Sealed::from_fd(file.unwrap(), 0),
        Err(MemoryError::NotSealed)
    ));
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let open = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&open, 4096).unwrap();
    assert!(matches!(
        Sealed::from_fd(open, 4096),
        Err(MemoryError::NotSealed)
    ));
    // And nobody can resize what is.
    assert!(rustix::fs::ftruncate(&sealed, 0).is_err());
    assert!(rustix::fs::ftruncate(&sealed, 8192).is_err());
    let status = Sealed::create_open("test", STATUS_BYTES as u64).unwrap();
    assert!(rustix::fs::ftruncate(&status, 0).is_err());
    assert!(SessionMemory::from_fds(vec![status.into()], 0).is_err());
}
