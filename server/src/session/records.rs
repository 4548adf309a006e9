//! What becomes of a record: whether it goes to the engine, waits for others or is answered, and the answer.
//!
//! Called by the session's loop for each record. What each operation does is `dispatch`'s. Must not know when the ring
//! is looked at.

use cuda_abi::CUresult;
use engine::{Observer, clock};
use protocol::operations::{
    At, ContextCreate, EventAwait, Opcode, RecordOutcome, RefusedRecord, SemaphoreWait, StreamWait,
    ValueWait, dispatch,
};
use protocol::wire::Fields;
use transport::ring::Record;
use transport::session::{NotSent, REPLY_DATA, REPLY_SLOTS};

use crate::session::deferred::takes_memory;
use crate::session::value_waits::Wait;
use crate::session::{BlockedWork, DeferredAction, End, Session};
use crate::stream_scheduler::completion::shared_event;
use crate::stream_scheduler::{Disposition, OrderingConstraint};

impl Session {
    pub(super) fn admit_stream_record(
        &mut self,
        opcode: Opcode,
        at: At,
        record: &mut Record,
    ) -> Result<(), End> {
        let mut value_wait = None;
        let step = match opcode {
            Opcode::StreamWait => {
                let wait = StreamWait::read(record.slots()).map_err(End::violation)?;
                OrderingConstraint::Wait {
                    on: wait.on,
                    until: wait.until,
                }
            }
            Opcode::HostBarrier => OrderingConstraint::HostBarrier,
            Opcode::EventAwait => {
                let wait = EventAwait::read(record.slots()).map_err(End::violation)?;
                OrderingConstraint::Wait {
                    on: shared_event(self.shared_events.counted_at(wait.event)),
                    until: wait.number,
                }
            }
            Opcode::ValueWait => {
                let wait = ValueWait::read(record.slots()).map_err(End::violation)?;
                value_wait = Some(Wait::Value(wait));
                OrderingConstraint::HostBarrier
            }
            Opcode::SemaphoreWait => {
                let wait = SemaphoreWait::read(record.slots()).map_err(End::violation)?;
                value_wait = Some(Wait::Semaphore(wait));
                OrderingConstraint::HostBarrier
            }
            Opcode::Launch | Opcode::RunLaunch => OrderingConstraint::Kernel,
            Opcode::StreamDestroy => OrderingConstraint::Last,
            _ => OrderingConstraint::Work,
        };
        let verdict = self
            .scheduler
            .admit(at, step, &self.observer.progress, || {
                let bytes = size_of::<BlockedWork>() + record.header.record_bytes();
                let came = match self.observer.recording.is_on() {
                    true => clock::now(),
                    false => 0,
                };
                (BlockedWork::Record(std::mem::take(record), came), bytes)
            })
            .map_err(End::violation)?;
        match verdict {
            Disposition::Submit => self.submit(at, record),
            Disposition::Blocked => {
                // Only what is held waits: its own turn takes it out again.
                if let Some(wait) = value_wait {
                    self.value_waits.add(at, wait);
                }
                Ok(())
            }
            Disposition::Closed => {
                let gone = CUresult::ERROR_INVALID_HANDLE;
                self.observer.completed(at, Err(gone));
                Ok(())
            }
        }
    }

    /// An operation that a newer client knows. By the protocol's rules it waits for a reply.
    pub(super) fn unknown(&mut self, record: &Record) -> Result<(), End> {
        let header = record.header;
        self.send(&record.header, CUresult::ERROR_NOT_SUPPORTED, &[], false)?;
        self.error_line(&format!("operation {} is not known here", header.opcode));
        Ok(())
    }

    /// Hands a stream's record to the engine.
    pub(super) fn submit(&mut self, at: At, record: &Record) -> Result<(), End> {
        if self.observer.has_dead() && self.is_too_late(at, record) {
            let code = CUresult::ERROR_LAUNCH_FAILED;
            if self.scheduler.not_taken(at, code, &self.observer.progress) {
                self.observer.completed(at, Err(code));
            }
            return Ok(());
        }
        let mut nothing = Vec::new();
        let outcome = dispatch(
            self,
            &record.header,
            record.slots(),
            record.data(),
            &mut nothing,
        );
        match outcome {
            Ok(RecordOutcome::Posted(Err(code))) => {
                self.error_of(record, code);
                if self.scheduler.not_taken(at, code, &self.observer.progress) {
                    self.observer.completed(at, Err(code));
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(refused) => Err(why(refused)),
        }
    }

    /// Whether a record would touch memory for a context that is dead, of which the engine need not
    /// know (`ValueWaits::time_out_if_stuck`).
    fn is_too_late(&self, at: At, record: &Record) -> bool {
        let touches = [
            Opcode::Launch,
            Opcode::RunLaunch,
            Opcode::Copy,
            Opcode::Write,
            Opcode::Fill,
            Opcode::ArrayCopy,
        ];
        let touches = touches
            .iter()
            .any(|&opcode| record.header.opcode == opcode as u16);
        touches
            && self
                .observer
                .is_dead(self.observer.progress.context(at.stream))
    }

    /// Whether a record, and with it all behind it, has to wait: a context is made in a slot whose
    /// former one is still ending.
    pub(super) fn must_stall(&self, record: &Record) -> bool {
        if self.ending_contexts == 0 || record.header.opcode != Opcode::ContextCreate as u16 {
            return false;
        }
        ContextCreate::read(record.slots()).is_ok_and(|create| {
            create.context < u32::BITS && self.ending_contexts & (1 << create.context) != 0
        })
    }

    pub(super) fn perform_kept(&mut self, record: &mut Record) -> Result<(), End> {
        if self.scheduler.has_deferred() && takes_memory(record) {
            return self.perform(std::mem::take(record));
        }
        self.carry_out(record).map(drop)
    }

    /// Carries out a record that belongs to no stream. A call that finds no memory while frees are
    /// under way waits for them, as a native free would have.
    pub(super) fn perform(&mut self, record: Record) -> Result<(), End> {
        if !(self.scheduler.has_deferred() && takes_memory(&record)) {
            return self.carry_out(&record).map(drop);
        }
        self.perform_or_defer(record, self.retries < REPLY_SLOTS)
    }

    /// Carries a call out. One that finds no memory goes behind what is deferred, if it may wait.
    pub(super) fn perform_or_defer(&mut self, record: Record, may_wait: bool) -> Result<(), End> {
        let mut reply = Vec::new();
        let outcome = self.dispatch(&record, &mut reply)?;
        if let RecordOutcome::Replied { status, .. } = outcome
            && status == CUresult::ERROR_OUT_OF_MEMORY
            && self.scheduler.has_deferred()
            && may_wait
        {
            self.retries += 1;
            let bytes = record.header.record_bytes();
            self.scheduler
                .defer_behind_last(DeferredAction::Retry(record), bytes);
            return Ok(());
        }
        self.finish(&record, outcome, reply)
    }

    fn carry_out(&mut self, record: &Record) -> Result<(), End> {
        let mut reply = std::mem::take(&mut self.reply);
        reply.clear();
        let outcome = self.dispatch(record, &mut reply)?;
        self.finish(record, outcome, reply)
    }

    pub(super) fn dispatch(
        &mut self,
        record: &Record,
        reply: &mut Vec<u8>,
    ) -> Result<RecordOutcome, End> {
        // It may take long. What tells of a recording does not, and comes so often that streams would be cut short.
        let is_of_recording = |opcode: Opcode| record.header.opcode == opcode as u16;
        if !is_of_recording(Opcode::TraceTake) && !is_of_recording(Opcode::TracePut) {
            self.client.stop_polling();
        }
        let outcome = dispatch(self, &record.header, record.slots(), record.data(), reply);
        match self.broken.take() {
            Some(reason) => Err(End::violation(reason)),
            None => outcome.map_err(why),
        }
    }

    fn finish(
        &mut self,
        record: &Record,
        outcome: RecordOutcome,
        reply: Vec<u8>,
    ) -> Result<(), End> {
        self.reply = reply;
        // The longest went through it and left it empty; an idle client need not keep the room.
        self.reply.shrink_to(REPLY_DATA);
        match outcome {
            RecordOutcome::Posted(Ok(())) => Ok(()),
            RecordOutcome::Posted(Err(code)) => {
                self.error_of(record, code);
                Ok(())
            }
            RecordOutcome::Replied {
                status,
                slots,
                count,
            } => self.send(&record.header, status, &slots[..count], true),
        }
    }

    fn send(
        &mut self,
        header: &protocol::wire::Header,
        status: CUresult,
        slots: &[u64],
        with_data: bool,
    ) -> Result<(), End> {
        if status != CUresult::SUCCESS && self.observer.goes_over() {
            // Left unanswered, it is carried out once more.
            return Ok(());
        }
        let data: &[u8] = if with_data { &self.reply } else { &[] };
        let (channel, serial) = (header.channel, header.sequence);
        let publisher = &self.observer.publisher;
        match publisher.reply(channel, serial, status, slots, data) {
            Ok(()) => Ok(()),
            Err(error @ NotSent::Channel) => Err(End::violation(error)),
            Err(NotSent::TooLong) => publisher
                .reply(channel, serial, CUresult::ERROR_UNKNOWN, &[], &[])
                .map_err(End::violation),
        }
    }

    /// Notes that an operation failed for which nobody waits.
    fn error_of(&mut self, record: &Record, code: CUresult) {
        let name =
            Opcode::from_number(record.header.opcode).map_or("?", |opcode| opcode.row().name);
        self.error_line(&format!("{name} failed with error {}", code.0));
    }
}

fn why(refused: RefusedRecord) -> End {
    match refused {
        RefusedRecord::Malformed(malformed) => End::violation(malformed),
        RefusedRecord::Unknown(opcode) => {
            End::violation(format_args!("operation {opcode} is not known"))
        }
    }
}
