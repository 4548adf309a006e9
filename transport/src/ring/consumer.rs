//! The ring's end that takes: one thread of the server. It believes nothing that is written there.
//!
//! Knows a record's length and header, not its operation; who wakes it is in [`Doorbell`].

use super::{Malformed, Position, Record, RingMemory, longest};
use crate::doorbell::{self, AdaptiveSpinner, LEAST_WATCH, Peer};
use crate::sync::{AtomicBool, Ordering, fence};
use protocol::wire::{HEADER_SLOTS, Header};
use std::collections::VecDeque;
use std::time::Duration;

/// The end that takes; one thread.
pub(crate) struct Consumer<A> {
    memory: A,
    /// Our own cursors; the shared ones are only told.
    taken: u64,
    /// What a former consumer had taken: it stays said.
    taken_before: u64,
    /// `produced` as last seen.
    produced: u64,
    retirement: Retirement,
    spinner: AdaptiveSpinner,
    /// For what is under way beside the ring.
    watching: AdaptiveSpinner,
}

/// Which taken records still need their place.
#[derive(Debug, Default)]
struct Retirement {
    /// Up to where places were given back.
    retired: u64,
    /// Ends of records from there on, in order, and whether they are done.
    open: VecDeque<(u64, bool)>,
}

impl Retirement {
    /// Notes that a record is done. Returns whether `retired` moved.
    fn finish(&mut self, position: Position) -> bool {
        let found = match self.open.front() {
            Some((end, _)) if *end == position.0 => Ok(0),
            _ => self.open.binary_search_by_key(&position.0, |(end, _)| *end),
        };
        // One that is not there was spilled.
        let Ok(index) = found else { return false };
        self.open[index].1 = true;
        let before = self.retired;
        while let Some((end, true)) = self.open.front().copied() {
            self.retired = end;
            self.open.pop_front();
        }
        self.retired != before
    }
}

/// How long a consumer sleeps at most: it is rung for all that matters, unless a hostile client took
/// its waiter word down.
const IDLE_SLICE: Duration = Duration::from_secs(2);

impl<A: RingMemory> Consumer<A> {
    pub(crate) fn new(memory: A) -> Self {
        Self {
            memory,
            taken: 0,
            taken_before: 0,
            produced: 0,
            retirement: Retirement::default(),
            spinner: AdaptiveSpinner::new(),
            watching: AdaptiveSpinner::at_least(LEAST_WATCH),
        }
    }

    /// One that goes on where another stopped, which had taken what comes up to `taken`, and whose records up to `retired`
    /// are not needed any more.
    pub(crate) fn resumed(memory: A, taken: u64, retired: u64) -> Self {
        let mut consumer = Self::new(memory);
        consumer.taken_before = taken;
        consumer.taken = retired;
        consumer.produced = retired;
        consumer.retirement.retired = retired;
        consumer
    }

    /// Copies the next record out, if there is one.
    #[inline]
    pub(crate) fn next_record(&mut self, into: &mut Record) -> Result<Option<Position>, Malformed> {
        let capacity = self.memory.data().len();
        let mut begin = self.taken;
        if self.produced == begin && !self.refresh_produced()? {
            return Ok(None);
        }
        let ring = self.memory.data();
        let mut at = begin as usize & (capacity - 1);
        let mut available = (self.produced - begin) as usize;
        let mut first = ring[at].load(Ordering::Relaxed);
        if opcode_of(first) == 0 {
            // Padding up to the end, and always a record behind it: they were produced together.
            let padding = capacity - at;
            available = match available.checked_sub(padding) {
                None | Some(0) => return Err(Malformed::Length),
                Some(behind) => behind,
            };
            begin += padding as u64;
            at = 0;
            first = ring[0].load(Ordering::Relaxed);
            if opcode_of(first) == 0 {
                return Err(Malformed::Length);
            }
        }
        let room = available.min(capacity - at).min(longest(capacity));
        if room < HEADER_SLOTS {
            return Err(Malformed::Length);
        }
        // Everything below is of the one copy that is made here.
        let header = Header::decode([
            first,
            ring[at + 1].load(Ordering::Relaxed),
            ring[at + 2].load(Ordering::Relaxed),
        ])
        .map_err(Malformed::Header)?;
        let words = header.record_bytes() / 8;
        if words > room {
            return Err(Malformed::Length);
        }
        let place = &ring[at + HEADER_SLOTS..at + words];
        let (slots, data) = place.split_at(usize::from(header.slots));
        into.header = header;
        into.slots.clear();
        into.slots
            .extend(slots.iter().map(|word| word.load(Ordering::Relaxed)));
        into.data.clear();
        into.data.resize(data.len() * 8, 0);
        for (bytes, word) in into.data.as_chunks_mut::<8>().0.iter_mut().zip(data) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        into.data.truncate(header.data as usize);
        self.taken = begin + words as u64;
        let taken = self.taken.max(self.taken_before);
        self.memory.taken().store(taken, Ordering::Relaxed);
        self.retirement.open.push_back((self.taken, false));
        Ok(Some(Position(self.taken)))
    }

    /// Looks whether there are more records.
    fn refresh_produced(&mut self) -> Result<bool, Malformed> {
        // [records]: what producers wrote before they moved the cursor is seen after this.
        let produced = self.memory.produced().load(Ordering::Acquire);
        let capacity = self.memory.data().len() as u64;
        // Past what could be free, back, or round and round: all of them wrap to too far.
        if produced.wrapping_sub(self.taken) > capacity
            || produced.wrapping_sub(self.retirement.retired) > capacity
        {
            return Err(Malformed::Cursor);
        }
        self.produced = produced;
        Ok(produced != self.taken)
    }

    /// Says that a record's place is not needed any more. Any order.
    #[inline]
    pub(crate) fn retire(&mut self, position: Position) {
        if self.retirement.finish(position) {
            self.tell_retired();
        }
    }

    /// Whether more than half of the ring is taken and not retired.
    pub(crate) fn is_to_spill(&self) -> bool {
        let kept = self.taken - self.retirement.retired;
        kept > self.memory.data().len() as u64 / 2
    }

    /// Retires all that was taken.
    pub(crate) fn spill(&mut self) {
        self.retirement.open.clear();
        self.retirement.retired = self.taken;
        self.tell_retired();
    }

    #[inline]
    fn tell_retired(&self) {
        // [space]: the copies were made before this.
        self.memory
            .retired()
            .store(self.retirement.retired, Ordering::Release);
        doorbell::ring(self.memory.space_waiter(), self.retirement.retired);
    }

    /// Whether there seems to be a record, or somebody called [`Doorbell::ring`].
    fn is_called(&self, doorbell: &Doorbell) -> bool {
        doorbell.rung.load(Ordering::Relaxed)
            || self.memory.produced().load(Ordering::Relaxed) != self.taken
    }

    /// Spins, for a short while at most, until there seems to be a record, somebody called
    /// [`Doorbell::ring`], or `look` says so; a little longer after [`Doorbell::pre_wake`]. Whether any of them came.
    pub(crate) fn watch(
        &self,
        doorbell: &Doorbell,
        peer: Peer,
        mut look: impl FnMut() -> bool,
    ) -> bool {
        let done = || self.is_called(doorbell) || look();
        let came = if doorbell.imminent.swap(false, Ordering::Relaxed) {
            doorbell::spin_for_moments(|| peer, done)
        } else {
            self.watching.spin(|| peer, done)
        };
        doorbell.hear();
        came
    }

    /// Spins, as long as that seems worth it, until there seems to be a record or somebody called [`Doorbell::ring`]. Whether
    /// any of them came.
    pub(crate) fn spin(&self, doorbell: &Doorbell, peer: Peer) -> bool {
        let came = self.spinner.spin(|| peer, || self.is_called(doorbell));
        doorbell.hear();
        came
    }

    /// Sleeps until there seems to be a record or somebody called [`Doorbell::ring`], but not for ever.
    pub(crate) fn wait(&mut self, doorbell: &Doorbell) {
        let (taken, memory) = (self.taken, &self.memory);
        let done = || self.is_called(doorbell);
        if !done() {
            // Of something that is over by now.
            doorbell.imminent.store(false, Ordering::Relaxed);
            doorbell.asleep.store(true, Ordering::Relaxed);
            self.spinner.sleep(|| {
                doorbell::sleep(memory.consumer_waiter(), taken + 1, IDLE_SLICE, done);
                done()
            });
            doorbell.asleep.store(false, Ordering::Relaxed);
        }
        doorbell.hear();
    }
}

fn opcode_of(first: u64) -> u16 {
    (first >> 32) as u16
}

/// How other threads of the consumer's process wake it. Both words are out of the peer's reach.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    rung: AtomicBool,
    asleep: AtomicBool,
    /// What the consumer watches for is a matter of moments.
    imminent: AtomicBool,
}

impl Doorbell {
    /// Takes notice of it, if it was rung.
    fn hear(&self) {
        if self.rung.load(Ordering::Relaxed) {
            // [own doorbell]: what was done before the doorbell was rung is seen after this.
            self.rung.swap(false, Ordering::Acquire);
        }
    }

    /// Makes the consumer's wait return, this time or the next.
    pub(crate) fn ring<A: RingMemory>(&self, memory: &A) {
        // [own doorbell]
        if self.rung.swap(true, Ordering::AcqRel) {
            // Whoever rang before and was not heard yet wakes the consumer, who then sees our part too.
            return;
        }
        // [sleep-or-ring]: as in the doorbell, but by our own words.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            doorbell::wake(memory.consumer_waiter());
        }
    }

    /// Has a consumer that is asleep awake, and watching, in a moment.
    pub(crate) fn pre_wake<A: RingMemory>(&self, memory: &A) {
        if self.asleep.load(Ordering::Relaxed) {
            self.imminent.store(true, Ordering::Relaxed);
            self.ring(memory);
        }
    }
}
