//! What a thread has recorded until it is passed on: words in a ring of its own, which it fills and another thread empties, without a lock.
//!
//! Filled by `thread`, emptied by `sink`. Must not know what words mean, but for how long a record is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Words that a ring has: most of a second of launches as quick as a thread can make them. Pages that were never written take no memory.
const WORDS: usize = 1 << 19;

/// See the module. Positions only grow; a word's place is its position modulo [`WORDS`].
#[derive(Debug)]
pub(super) struct Ring {
    /// The thread's number.
    pub(super) tid: u32,
    words: Box<[AtomicU64]>,
    /// How far the thread has written: whole records. Stored with Release, so that who loads it finds the words.
    written: AtomicUsize,
    /// How far it was read. Stored with Release, so that the thread writes only what was read.
    read: AtomicUsize,
    /// Records for which there was no room.
    dropped: AtomicU64,
    /// Since when, in ticks, the thread holds work that is not among the words; 0 if it holds none.
    holding: AtomicU64,
    /// Whether the thread is gone.
    is_over: AtomicBool,
}

impl Ring {
    /// A thread's.
    pub(super) fn new(tid: u32) -> Self {
        let words = Box::<[AtomicU64]>::new_zeroed_slice(WORDS);
        Self {
            tid,
            // SAFETY: zeroes are a valid value of every one of them.
            words: unsafe { words.assume_init() },
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            holding: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Adds whole records, all or none. Only by the thread itself.
    pub(super) fn push(&self, records: &[u64]) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        let free = WORDS - written.wrapping_sub(self.read.load(Ordering::Acquire));
        if records.len() > free {
            return false;
        }
        for (position, word) in (written..).zip(records) {
            self.words[position % WORDS].store(*word, Ordering::Relaxed);
        }
        let written = written.wrapping_add(records.len());
        self.written.store(written, Ordering::Release);
        true
    }

    /// Counts a record for which there was no room.
    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Says since when the thread holds something.
    pub(super) fn set_holding(&self, since: u64) {
        self.holding.store(since, Ordering::Release);
    }

    /// The thread ends: nothing is added any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Takes what there is, record by record, each as its first word's [`length`](trace::thread_log::length) says. Gives since when the
    /// thread holds something that is not among them, 0 for nothing. Only by one thread at a time.
    pub(super) fn take(&self, mut take: impl FnMut(&[u64])) -> u64 {
        // Before the words: what was held until then is among them.
        let holding = self.holding.load(Ordering::Acquire);
        let written = self.written.load(Ordering::Acquire);
        let mut read = self.read.load(Ordering::Relaxed);
        while read != written {
            let mut record = [0; trace::thread_log::LONGEST];
            let first = self.words[read % WORDS].load(Ordering::Relaxed);
            // The thread writes no others.
            let length = trace::thread_log::length(first).unwrap_or(1);
            let record = &mut record[..length];
            for (position, word) in (read..).zip(&mut *record) {
                *word = self.words[position % WORDS].load(Ordering::Relaxed);
            }
            take(record);
            read = read.wrapping_add(length);
        }
        self.read.store(read, Ordering::Release);
        holding
    }

    /// How many records were dropped since the last time.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// Forgets what there is.
    pub(super) fn discard(&self) {
        let written = self.written.load(Ordering::Acquire);
        self.read.store(written, Ordering::Release);
        self.dropped.store(0, Ordering::Relaxed);
    }

    /// Whether the thread is gone, and nothing of it is left.
    pub(super) fn is_done(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
            && self.written.load(Ordering::Acquire) == self.read.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use trace::thread_log::{Call, ThreadRecord, ThreadWriter, ThreadsReader};
    use trace::told::Damaged;

    #[test]
    fn what_finds_room_is_there_in_its_order() {
        let ring = Arc::new(Ring::new(5));
        let thread = std::thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                let mut writer = ThreadWriter::default();
                for number in 1..=1_000_000_u64 {
                    writer.call(&Call {
                        function: 1,
                        // So far apart that each takes several words.
                        began: number << 40,
                        ended: (number << 40) + 1,
                        correlation: 0,
                    });
                    if !ring.push(writer.words()) {
                        ring.drop_one();
                        writer.restart();
                    }
                    writer.clear();
                }
                ring.end();
            }
        });
        let mut reader = ThreadsReader::default();
        let (mut came, mut last, mut dropped) = (0, 0, 0);
        while !ring.is_done() {
            let mut words = Vec::new();
            ring.take(|record| words.extend(record.iter().flat_map(|word| word.to_le_bytes())));
            let read = reader.read(5, &words, |record| {
                let ThreadRecord::Call(call) = record else {
                    return Err(Damaged);
                };
                assert!(call.began > last && call.ended == call.began + 1);
                (came, last) = (came + 1, call.began);
                Ok(())
            });
            read.unwrap();
            dropped += ring.take_dropped();
            std::thread::yield_now();
        }
        thread.join().unwrap();
        assert_eq!(came + dropped, 1_000_000);
        assert!(came > 100_000, "{came}");
    }

    #[test]
    fn a_full_ring_takes_no_more_until_it_is_read() {
        let ring = Ring::new(5);
        let mut writer = ThreadWriter::default();
        let call = |number: u64| Call {
            function: 1,
            began: number << 40,
            ended: number << 40,
            correlation: 0,
        };
        let mut count = 0;
        loop {
            writer.clear();
            writer.call(&call(count + 1));
            if !ring.push(writer.words()) {
                break;
            }
            count += 1;
        }
        assert!(count > 100_000, "{count}");
        ring.set_holding(9);
        let mut taken = 0;
        // The first says that it begins.
        assert_eq!(ring.take(|_| taken += 1), 9);
        assert_eq!(taken, count + 1);
        assert!(ring.push(writer.words()));
        ring.drop_one();
        ring.discard();
        assert_eq!(
            (
                ring.take(|_| panic!("nothing is left")),
                ring.take_dropped()
            ),
            (9, 0)
        );
    }
}
