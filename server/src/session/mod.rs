//! A client's session: its thread takes what the client posts, and hands it on or answers it.
//!
//! The order of work is `stream_scheduler`'s, memory is `memory`'s, what an operation does is in `dispatch`;
//! here is the loop that joins them. A session trusts nothing of its client, and no other session can
//! tell that it is there.
//!
//! Called by admission's thread. Must not know the daemon, or what an engine is made of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{Bound, Charge, Client, Observer, PollResult, Share, clock};
use protocol::control_messages::Ending;
use protocol::device_facts::DeviceFacts;
use protocol::operations::{
    At, ContextCreate, EventAwait, HoldReason, Opcode, OperationClass, Outcome, Refused,
    StreamWait, ValueWait, dispatch,
};
use protocol::wire::Fields;
use transport::memory::Mapping;
use transport::ring::{Position, Record};
use transport::session::{Consumer, NotSent, REPLY_DATA, REPLY_SLOTS};

use crate::accounts::ClientAccounts;
use crate::code::arrays::Arrays;
use crate::code::images::Images;
use crate::code::modules::Modules;
use crate::ipc::imports::SharedObjects;
use crate::log::ClientLog;
use crate::memory::address_account::AddressAccount;
use crate::memory::backing::ClientBacking;
use crate::memory::quota::Memory;
use crate::memory::registered_files::Files;
use crate::session::observer::{Cancellation, ClientObserver};
use crate::session::value_waits::ValueWaits;
use crate::stream_scheduler::completion::{host_barrier, shared_event};
use crate::stream_scheduler::{Disposition, OrderingConstraint, QueueEntry, StreamScheduler};

mod counting;
mod deferred;
mod dispatch;
mod image_operations;
mod limit_changes;
pub mod observer;
pub mod recording;
mod value_waits;

use deferred::takes_memory;
pub use deferred::{BlockedWork, DeferredAction, End};

/// Bytes of held records and deferred actions beyond which the session reads no further until some
/// are released.
const MAX_BLOCKED: usize = 64 << 20;

/// Of them, those that do not count for what may be held for the client: so much has every session.
const FREE_BLOCKED: usize = 256 << 10;

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

/// Errors of posted operations that are logged, a session.
const MAX_ERROR_LINES: u32 = 20;

/// One client's session.
#[derive(Debug)]
pub struct Session {
    /// First, so that it goes first: nothing of the client's may run when its memory goes.
    pub(crate) client: Box<dyn Client>,
    pub(crate) observer: Arc<ClientObserver>,
    pub(crate) scheduler: StreamScheduler<BlockedWork, DeferredAction>,
    pub(crate) memory: Memory,
    pub(crate) images: Images,
    pub(crate) modules: Modules,
    pub(crate) shared_objects: SharedObjects,
    /// Its addresses beside those that it began with.
    pub(crate) addresses: AddressAccount,
    pub(crate) files: Files,
    pub(crate) arrays: Arrays,
    pub(crate) staging: Arc<Mapping>,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) share: Share,
    pub(crate) partition: Partition,
    /// Of each device's multiprocessors, how many the client was told of, and how many there are.
    pub(crate) granted: Vec<(u32, u32)>,
    /// The device of each context.
    pub(crate) contexts: Vec<Option<u32>>,
    /// Contexts whose end is deferred, as bits.
    pub(crate) ending_contexts: u32,
    pub(crate) name: ClientLog,
    /// Functions that the client called and that are not built: each is logged once.
    pub(crate) missed: BTreeSet<u32>,
    pub(crate) detached: bool,
    /// What broke a rule within an operation.
    pub(crate) broken: Option<String>,
    /// A record that has to wait, with everything behind it.
    stalled: Option<Record>,
    /// Taken records whose place in the ring is still theirs, in the ring's order.
    unretired: VecDeque<(Position, At)>,
    reply: Vec<u8>,
    /// What of the server's memory is held for records and actions that wait, beyond [`FREE_BLOCKED`].
    waiting: Charge,
    /// Streams that wait for values in memory.
    pub(crate) value_waits: ValueWaits,
    /// What the client has had.
    pub(crate) accounts: Arc<ClientAccounts>,
    /// Kernels of each run.
    pub(crate) run_lengths: BTreeMap<u32, u64>,
    /// By stream, when the last record was let go that was held back, while somebody wants to know.
    released: BTreeMap<u32, u64>,
    /// Calls that wait for memory; an honest client has no more than it has reply slots.
    again: usize,
    error_lines: u32,
}

/// What a session is made of.
#[derive(Debug)]
pub struct SessionParts {
    /// The engine's side.
    pub client: Box<dyn Client>,
    /// What the engine's threads share with it.
    pub observer: Arc<ClientObserver>,
    /// What it may have.
    pub memory: Memory,
    /// The staging memory.
    pub staging: Arc<Mapping>,
    /// Its devices.
    pub devices: Vec<DeviceFacts>,
    /// For the log.
    pub name: ClientLog,
    /// What it shares with others.
    pub shared_objects: SharedObjects,
    /// Its addresses beside those that it begins with.
    pub addresses: AddressAccount,
    /// What may be held for it of the server's memory.
    pub held: Arc<Bound>,
    /// Its files.
    pub files: Files,
    /// Its part of the devices' time.
    pub share: Share,
    /// Where it may have contexts.
    pub partition: Partition,
    /// Of each device's multiprocessors, how many the client was told of, and how many there are.
    pub granted: Vec<(u32, u32)>,
    /// Where it is counted what the client has.
    pub accounts: Arc<ClientAccounts>,
}

/// Where a client may have contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// On every device.
    Everywhere,
    /// On the device that its static partition is of, if it is of one.
    On(Option<u32>),
    /// Nowhere: devices are partitioned, and it has no partition.
    Nowhere,
}

/// For records that belong to no stream.
const NOWHERE: At = At {
    stream: u32::MAX,
    sequence: 0,
};

impl Session {
    /// A session of a client that was just welcomed.
    pub fn new(parts: SessionParts) -> Self {
        Self {
            client: parts.client,
            observer: parts.observer,
            scheduler: StreamScheduler::default(),
            memory: parts.memory,
            images: Images::new(parts.held.clone()),
            waiting: Charge::new(parts.held),
            modules: Modules::default(),
            shared_objects: parts.shared_objects,
            addresses: parts.addresses,
            files: parts.files,
            arrays: Arrays::default(),
            staging: parts.staging,
            devices: parts.devices,
            share: parts.share,
            partition: parts.partition,
            granted: parts.granted,
            contexts: vec![None; protocol::operations::CONTEXT_SLOTS as usize],
            ending_contexts: 0,
            name: parts.name,
            missed: BTreeSet::new(),
            detached: false,
            broken: None,
            stalled: None,
            unretired: VecDeque::new(),
            reply: Vec::new(),
            value_waits: ValueWaits::default(),
            accounts: parts.accounts,
            run_lengths: BTreeMap::new(),
            released: BTreeMap::new(),
            again: 0,
            error_lines: 0,
        }
    }

    /// Serves the client until its end.
    pub fn serve(&mut self, consumer: &mut Consumer, cancellation: &Cancellation) -> End {
        match self.loop_until_end(consumer, cancellation) {
            Ok(how) => End { how, reason: None },
            Err(end) => end,
        }
    }

    fn loop_until_end(
        &mut self,
        consumer: &mut Consumer,
        cancellation: &Cancellation,
    ) -> Result<Ending, End> {
        let mut record = Record::default();
        let mut in_a_row = 0u32;
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
            let blocked = self.is_blocked() || self.value_waits.are_asked();
            let polled = self.client.poll();
            if polled == PollResult::Progress {
                continue;
            }
            let under_way = polled == PollResult::Pending;
            let stuck = self.is_blocked() && !under_way;
            self.value_waits.time_out_if_stuck(stuck, &self.observer);
            if under_way
                && !blocked
                && consumer.watch(|| self.client.poll() == PollResult::Progress)
            {
                continue;
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
                consumer.wait(!under_way);
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
        let Some(position) = consumer.take(record).map_err(End::violation)? else {
            return Ok(false);
        };
        let header = record.header;
        let mut at = NOWHERE;
        match Opcode::from_number(header.opcode) {
            Some(opcode) if opcode.row().class == OperationClass::Stream => {
                at = At {
                    stream: header.channel,
                    sequence: header.sequence,
                };
                self.take_stream_record(opcode, at, record)?;
            }
            // Taken out, since it may have to be kept.
            Some(_) if self.must_stall(record) => self.stalled = Some(std::mem::take(record)),
            Some(_) => self.perform_kept(record)?,
            None => self.unknown(record)?,
        }
        self.unretired.push_back((position, at));
        if consumer.spill() {
            self.unretired.clear();
        }
        Ok(true)
    }

    /// Gives back the places in the ring of what is done, in the ring's order.
    fn retire(&mut self, consumer: &mut Consumer) {
        while let Some(&(position, at)) = self.unretired.front()
            && (at == NOWHERE || self.observer.progress.completed(at.stream) >= at.sequence)
        {
            consumer.retire(position);
            self.unretired.pop_front();
        }
    }

    /// An operation that a newer client knows. By the protocol's rules it waits for a reply.
    fn unknown(&mut self, record: &Record) -> Result<(), End> {
        let header = record.header;
        self.send(&record.header, CUresult::ERROR_NOT_SUPPORTED, &[], false)?;
        self.error_line(&format!("operation {} is not known here", header.opcode));
        Ok(())
    }

    fn take_stream_record(
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
                    on: shared_event(wait.event),
                    until: wait.number,
                }
            }
            Opcode::ValueWait => {
                value_wait = Some(ValueWait::read(record.slots()).map_err(End::violation)?);
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
                let came = match self.observer.recording.is_kept() {
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

    /// Hands a stream's record to the engine.
    fn submit(&mut self, at: At, record: &Record) -> Result<(), End> {
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
            Ok(Outcome::Posted(Err(code))) => {
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
    /// know ([`ValueWaits::time_out_if_stuck`]).
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
    fn must_stall(&self, record: &Record) -> bool {
        if self.ending_contexts == 0 || record.header.opcode != Opcode::ContextCreate as u16 {
            return false;
        }
        ContextCreate::read(record.slots()).is_ok_and(|create| {
            create.context < u32::BITS && self.ending_contexts & (1 << create.context) != 0
        })
    }

    fn perform_kept(&mut self, record: &mut Record) -> Result<(), End> {
        if self.scheduler.has_deferred() && takes_memory(record) {
            return self.perform(std::mem::take(record));
        }
        self.carry_out(record).map(drop)
    }

    /// Carries out a record that belongs to no stream. A call that finds no memory while frees are
    /// under way waits for them, as a native free would have.
    fn perform(&mut self, record: Record) -> Result<(), End> {
        if !(self.scheduler.has_deferred() && takes_memory(&record)) {
            return self.carry_out(&record).map(drop);
        }
        self.perform_or_defer(record, self.again < REPLY_SLOTS)
    }

    /// Carries a call out. One that finds no memory goes behind what is deferred, if it may wait.
    fn perform_or_defer(&mut self, record: Record, may_wait: bool) -> Result<(), End> {
        let mut reply = Vec::new();
        let outcome = self.dispatch(&record, &mut reply)?;
        if let Outcome::Replied { status, .. } = outcome
            && status == CUresult::ERROR_OUT_OF_MEMORY
            && self.scheduler.has_deferred()
            && may_wait
        {
            self.again += 1;
            let bytes = record.header.record_bytes();
            self.scheduler
                .defer_behind_last(DeferredAction::Again(record), bytes);
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

    fn dispatch(&mut self, record: &Record, reply: &mut Vec<u8>) -> Result<Outcome, End> {
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

    fn finish(&mut self, record: &Record, outcome: Outcome, reply: Vec<u8>) -> Result<(), End> {
        self.reply = reply;
        // The longest went through it and left it empty; an idle client need not keep the room.
        self.reply.shrink_to(REPLY_DATA);
        match outcome {
            Outcome::Posted(Ok(())) => Ok(()),
            Outcome::Posted(Err(code)) => {
                self.error_of(record, code);
                Ok(())
            }
            Outcome::Replied {
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

    /// Does everything whose time has come.
    fn release(&mut self) -> Result<(), End> {
        self.release_shared_objects();
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
                        let is_value = record.header.opcode == Opcode::ValueWait as u16;
                        let value = is_value.then_some(HoldReason::Value);
                        self.tell_of_hold(at, came, why.map(|why| value.unwrap_or(why)));
                    }
                    self.submit(at, &record)?;
                }
            }
        }
        while let Some(action) = self.scheduler.pop_ready_action(&self.observer.progress) {
            if let Some(record) = self.act(action) {
                self.again -= 1;
                // An unmap has two turns, and ends in the second.
                self.perform_or_defer(record, self.shared_objects.has_unmapping())?;
            }
        }
        Ok(())
    }

    /// A record is no longer held back that came then. What was before it in its stream is not why.
    fn tell_of_hold(&mut self, at: At, came: u64, why: Option<HoldReason>) {
        let now = clock::now();
        let before = self.released.insert(at.stream, now).unwrap_or(0);
        if let Some(why) = why {
            let since = came.max(before);
            let device = self.device_of_stream(at.stream);
            let recording = &self.observer.recording;
            recording.held(at, device, why, (since, now));
        }
    }

    /// Notes that an operation failed for which nobody waits.
    fn error_of(&mut self, record: &Record, code: CUresult) {
        let name =
            Opcode::from_number(record.header.opcode).map_or("?", |opcode| opcode.row().name);
        self.error_line(&format!("{name} failed with error {}", code.0));
    }

    /// Logs an error, unless there were many.
    pub(crate) fn error_line(&mut self, text: &str) {
        self.error_lines += 1;
        match self.error_lines.cmp(&MAX_ERROR_LINES) {
            std::cmp::Ordering::Less => self.name.line(text),
            std::cmp::Ordering::Equal => self.name.line(format_args!(
                "{text}; further errors of this client are not logged"
            )),
            std::cmp::Ordering::Greater => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pass_to_others();
    }
}

fn why(refused: Refused) -> End {
    match refused {
        Refused::Malformed(malformed) => End::violation(malformed),
        Refused::Unknown(opcode) => End::violation(format_args!("operation {opcode} is not known")),
    }
}
