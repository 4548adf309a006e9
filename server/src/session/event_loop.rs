//! A session's loop: when it looks at the ring, at what has completed and at its client's end, and when it sleeps.
//!
//! Called by [`Session::serve`]. What becomes of a record is `records`'. Must not know what operations do.

use std::time::{Duration, Instant};

use engine::{Observer, PollResult, clock};
use protocol::control_messages::Ending;
use protocol::operations::{At, Effect, HoldReason, Opcode, OperationClass};
use transport::ring::Record;
use transport::session::Consumer;

use crate::memory::backing::ClientBacking;
use crate::session::observer::Cancellation;
use crate::session::processor_sharing::ProcessorSharing;
use crate::session::{BlockedWork, End, FREE_BLOCKED, Session};
use crate::stream_scheduler::QueueEntry;
use crate::stream_scheduler::completion::host_barrier;

/// Bytes of held records and deferred actions beyond which the session reads no further until some
/// are released.
const MAX_BLOCKED: usize = 64 << 20;

/// What is taken for more at a time.
const BLOCKED_STEP: u64 = 1 << 20;

/// How long a session with memory to give back looks for more work before it does so.
const BEFORE_TRIM: Duration = Duration::from_micros(20);

/// Records that are taken before anything else is looked at.
const RECORDS_AT_A_TIME: u32 = 4096;

/// Records that are taken before it is looked how far those before have come.
const RECORDS_TO_A_LOOK: u32 = 8;

/// How often a session that may take nothing looks whether it may.
const WHILE_BLOCKED: Duration = Duration::from_micros(200);

/// For records that belong to no stream.
pub(super) const NOWHERE: At = At {
    stream: u32::MAX,
    sequence: 0,
};

impl Session {
    pub(super) fn loop_until_end(
        &mut self,
        consumer: &mut Consumer,
        cancellation: &Cancellation,
    ) -> Result<Ending, End> {
        let mut record = Record::default();
        let mut in_a_row = 0u32;
        let mut sharing = ProcessorSharing::new(self.observer.session());
        loop {
            if self.observer.progress.take_ready() {
                self.release()?;
            }
            self.retire(consumer);
            // What a client posted before its end is looked at, unless it never stops posting.
            if in_a_row < RECORDS_AT_A_TIME && self.next(consumer, &mut record)? {
                if self.detached {
                    return Ok(Ending::Detached);
                }
                in_a_row += 1;
                if in_a_row.is_multiple_of(RECORDS_TO_A_LOOK) {
                    self.client.poll();
                }
                continue;
            }
            in_a_row = 0;
            if let Some(how) = cancellation.ending() {
                return Ok(how);
            }
            self.apply_limit_changes(cancellation);
            // Whoever waits for values is looked after though there is no end of the rest.
            let assisted = self.client.assist();
            let kept = !assisted && self.trim_when_idle(consumer, &mut record)?;
            if self.value_waits.poll(&mut *self.client, &self.observer) || assisted || kept {
                continue;
            }
            let blocked = self.is_blocked() || self.value_waits.has_active();
            let polled = self.client.poll();
            if polled == PollResult::Progress {
                continue;
            }
            let under_way = polled == PollResult::Pending;
            let stuck = self.is_blocked() && !under_way;
            self.value_waits.time_out_if_stuck(stuck, &self.observer);
            if under_way && !blocked {
                sharing.before_spinning(consumer);
                if consumer.watch(|| self.client.poll() == PollResult::Progress) {
                    sharing.seen_soon();
                    continue;
                }
            }
            self.client.stop_polling();
            if blocked {
                if self.is_blocked() && self.poll_host_barriers() {
                    continue;
                }
                // Memory does not say when it changes; and when blocked, the ring may well have records,
                // so it is no use waiting for one.
                std::thread::sleep(WHILE_BLOCKED);
            } else {
                let came = !under_way && {
                    sharing.before_spinning(consumer);
                    consumer.spin()
                };
                if !came {
                    sharing.leave(consumer);
                    consumer.wait();
                }
            }
            self.client.poll();
        }
    }

    /// Gives memory that no block uses back, unless a record comes soon: a program that allocates and
    /// frees in a loop comes back. Says whether there was any.
    fn trim_when_idle(
        &mut self,
        consumer: &mut Consumer,
        record: &mut Record,
    ) -> Result<bool, End> {
        if !self.memory.has_unused() {
            return Ok(false);
        }
        let until = Instant::now() + BEFORE_TRIM;
        let mut more = false;
        while !more && Instant::now() < until {
            std::hint::spin_loop();
            more = self.next(consumer, record)?;
        }
        if !more {
            self.memory
                .trim(&mut ClientBacking(&mut *self.client, &self.addresses));
        }
        Ok(true)
    }

    /// Whether no record may be taken before something completes.
    fn is_blocked(&self) -> bool {
        self.stalled.is_some() || self.scheduler.blocked_bytes() > self.blocked_room()
    }

    /// Bytes of held records and deferred actions beyond which nothing is read.
    fn blocked_room(&self) -> usize {
        let counted = usize::try_from(self.waiting.amount()).unwrap_or(usize::MAX);
        FREE_BLOCKED.saturating_add(counted).min(MAX_BLOCKED)
    }

    /// Counts what is held back, if there is more of it than was counted, or much less.
    fn count_blocked(&mut self) {
        let held = self.scheduler.blocked_bytes();
        if held > self.blocked_room() && self.blocked_room() < MAX_BLOCKED {
            // If the client may have no more, the session reads no further.
            let _ = self.waiting.grow(BLOCKED_STEP);
        } else if held <= FREE_BLOCKED {
            self.waiting.shrink_to(0);
        }
    }

    /// Reads the release counts of host-function barriers in whose streams something is blocked, since their releases may
    /// stand in the ring behind what may not be taken. Says whether a stream goes on.
    fn poll_host_barriers(&self) -> bool {
        let (progress, publisher) = (&self.observer.progress, &self.observer.publisher);
        let mut index = 0;
        let mut opened = false;
        while let Some(slot) = self.scheduler.blocked_stream(index) {
            opened |= progress.complete(host_barrier(slot), publisher.released(slot));
            index += 1;
        }
        opened
    }

    /// Takes the next record, if there is one and it may be taken.
    fn next(&mut self, consumer: &mut Consumer, record: &mut Record) -> Result<bool, End> {
        if let Some(stalled) = self.stalled.take() {
            if self.must_stall(&stalled) {
                self.stalled = Some(stalled);
                return Ok(false);
            }
            self.perform(stalled)?;
            return Ok(true);
        }
        self.count_blocked();
        if self.is_blocked() {
            return Ok(false);
        }
        let Some(position) = consumer.next_record(record).map_err(End::violation)? else {
            return Ok(false);
        };
        let header = record.header;
        let mut at = NOWHERE;
        let opcode = Opcode::from_number(header.opcode);
        if opcode.is_some_and(|opcode| {
            opcode.effect(header.channel, record.slots()) == Effect::Irreplaceable
        }) {
            self.observer.note_irreplaceable();
        }
        match opcode {
            Some(opcode) if opcode.row().class == OperationClass::Stream => {
                at = At {
                    stream: header.channel,
                    sequence: header.sequence,
                };
                self.admit_stream_record(opcode, at, record)?;
            }
            Some(_) => {
                self.see_ends()?;
                if self.must_stall(record) {
                    // Taken out, since it may have to be kept.
                    self.stalled = Some(std::mem::take(record));
                } else {
                    self.perform_kept(record)?;
                }
            }
            None => self.unknown(record)?,
        }
        self.unretired.push_back((position, at));
        if consumer.spill() {
            self.note_spilled();
        }
        Ok(true)
    }

    /// Looks how far work has come, and does what is due, before a call is carried out that concerns more than one stream. The client may have
    /// heard of an end from a device itself, and then counts on what it has freed, though nobody here has looked since.
    fn see_ends(&mut self) -> Result<(), End> {
        self.client.poll();
        if self.observer.progress.take_ready() {
            self.release()?;
        }
        Ok(())
    }

    /// Gives back the places in the ring of what is done, in the ring's order.
    fn retire(&mut self, consumer: &mut Consumer) {
        while let Some(&(position, at)) = self.unretired.front()
            && (at == NOWHERE || self.observer.progress.completed(at.stream) >= at.sequence)
        {
            consumer.retire(position);
            self.unretired.pop_front();
        }
        if !self.spilled.is_empty() {
            let progress = &self.observer.progress;
            self.spilled
                .retain(|at| progress.completed(at.stream) < at.sequence);
            if self.spilled.is_empty() {
                self.observer.publisher.set_spilled(false);
            }
        }
    }

    /// The ring has no record any more of what was taken and is not complete.
    #[cold]
    fn note_spilled(&mut self) {
        let places = self.unretired.drain(..).map(|(_, at)| at);
        self.spilled.extend(places.filter(|&at| at != NOWHERE));
        self.observer
            .publisher
            .set_spilled(!self.spilled.is_empty());
    }

    /// Does everything that is due.
    pub(super) fn release(&mut self) -> Result<(), End> {
        self.free_unused_by_others();
        let mut index = 0;
        while let Some(slot) = self.scheduler.blocked_stream(index) {
            match self.scheduler.pop_ready(index, &self.observer.progress) {
                // Emptied lists make room at this index for another, so only a stuck one is passed.
                None if self.scheduler.blocked_stream(index) == Some(slot) => index += 1,
                None => {}
                Some((QueueEntry::Mark(at, result), _)) => self.observer.completed(at, result),
                Some((QueueEntry::Record(BlockedWork::Create(create)), _)) => {
                    self.make_stream(&create);
                }
                Some((QueueEntry::Record(BlockedWork::Record(record, came)), why)) => {
                    let at = At {
                        stream: record.header.channel,
                        sequence: record.header.sequence,
                    };
                    if came > 0 {
                        let waits = [Opcode::ValueWait, Opcode::SemaphoreWait];
                        let is_value = waits.iter().any(|&it| record.header.opcode == it as u16);
                        let value = is_value.then_some(HoldReason::Value);
                        self.record_hold(at, came, why.map(|why| value.unwrap_or(why)));
                    }
                    self.submit(at, &record)?;
                }
            }
        }
        while let Some(action) = self.scheduler.pop_ready_action(&self.observer.progress) {
            if let Some(record) = self.do_deferred(action) {
                self.retries -= 1;
                // An unmap has two turns, and ends in the second.
                self.perform_or_defer(record, self.virtual_memory.has_unmapping())?;
            }
        }
        Ok(())
    }

    /// A record is no longer held back that came then. What was before it in its stream is not why.
    fn record_hold(&mut self, at: At, came: u64, why: Option<HoldReason>) {
        let now = clock::now();
        let before = self.released.insert(at.stream, now).unwrap_or(0);
        if let Some(why) = why {
            let since = came.max(before);
            let device = self.device_of_stream(at.stream);
            let recording = &self.observer.recording;
            recording.add_hold(at, device, why, (since, now));
        }
    }
}
