//! A session that was another server's: its objects are made again, and what its ring still holds goes on.
//!
//! The client's journal says what made each object that lived where the ring's oldest record stands; from there on the
//! ring itself is followed, in its order, up to where the former server had taken it. What is complete stays. What may
//! have been begun is only begun again where that cannot be told from doing it once; if it was a kernel, the client's
//! contexts are dead. The process of the former server may not have ended when this begins: what touches the contents of the client's
//! memory waits for that, and comes behind all else. Called by admission's thread, before the session is served. Believes the client nothing: each
//! request is checked as any. Must not know how the client kept its journal.

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::CUresult;
use engine::Observer;
use protocol::control_messages::{Ending, Guilt, Takeovers};
use protocol::operations::{
    At, ContextCreate, ContextDestroy, HostAlloc, ImageLoad, ImagePut, ManagedAlloc, MemAlloc,
    MemFree, ModuleLoad, Opcode, OperationClass, RecordOutcome, StreamDestroy,
};
use protocol::wire::Fields;
use transport::ring::{Position, Record};
use transport::session::journal::{Entry, Outcome};
use transport::session::{Answer, Consumer, Former};

use crate::code::modules::{Loader, PlacedVariables};
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::MemoryKind;
use crate::memory::heap::ALIGNMENT;
use crate::session::event_loop::NOWHERE;
use crate::session::observer::Cancellation;
use crate::session::repeating::{Begun, Objects, completed, cut_off};
use crate::session::{End, Session};
use crate::stream_scheduler::completion::host_barrier;

/// What a client died of whose kernel was cut off, for the log.
const CUT_OFF: &str =
    "its server ended while a kernel of this client ran, and how far that came cannot be told";

/// What came of a takeover, for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Objects that were made again.
    objects: usize,
    /// Operations that had not been begun.
    untouched: usize,
    /// Operations that may have been begun before, and were done again.
    repeated: usize,
    /// Operations that failed, as a kernel was cut off.
    failed: usize,
    /// Why work that was cut off cannot be done again.
    cut_off: Option<String>,
}

impl TakenOver {
    /// As the daemon counts it.
    #[must_use]
    pub fn counts(&self) -> Takeovers {
        Takeovers {
            count: 1,
            untouched: self.untouched as u64,
            repeated: self.repeated as u64,
            failed: self.failed as u64,
        }
    }
}

impl std::fmt::Display for TakenOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "taken over from a server that ended: {} objects made again, {} operations untouched, {} repeated, {} failed",
            self.objects, self.untouched, self.repeated, self.failed
        )
    }
}

fn failed(reason: impl Into<String>) -> End {
    End {
        how: Ending::Failed,
        reason: Some(reason.into()),
    }
}

/// Why an object is not made again.
fn not_made(opcode: Opcode, code: CUresult) -> End {
    let name = opcode.row().name;
    failed(format!(
        "{name} failed with error {} for a session that was taken over",
        code.0
    ))
}

impl Session {
    /// Makes the client's objects again and, when the former server's process has ended, goes on with its ring up to where that
    /// had taken it.
    ///
    /// # Errors
    /// Why the session cannot go on.
    pub fn take_over(
        &mut self,
        consumer: &mut Consumer,
        (former, entries): (&Former, Vec<Entry>),
        cancellation: &Cancellation,
    ) -> Result<TakenOver, End> {
        if former.is_spilled {
            return Err(failed(
                "work was under way of which the ring has no record any more",
            ));
        }
        let progress = &self.observer.progress;
        for (slot, &completed) in (0..).zip(&former.completed) {
            let released = self.observer.publisher.released(slot);
            for (word, until) in [(slot, completed), (host_barrier(slot), released)] {
                if until > 0 {
                    // Nobody waits yet.
                    let _ = progress.complete(word, until);
                }
            }
        }
        let records = taken_before(consumer, former)?;
        let mut result = TakenOver::default();
        let freed = Freed::by(&records);
        let (base, later): (Vec<_>, Vec<_>) =
            (entries.into_iter()).partition(|entry| entry.end <= former.retired);
        let mut late = Vec::new();
        for entry in &base {
            match &entry.outcome {
                Outcome::Unanswered if is_call(&entry.record) => late.push(entry.record.clone()),
                Outcome::Unanswered => return Err(End::violation("a reply is wanted of no call")),
                _ => self.make_again(entry, (former, &mut result))?,
            }
        }
        let taken = || records.iter().map(|(_, record)| record);
        let mut known = Objects::new(
            (&*self.client, &self.memory, &self.images),
            (&base, &later),
            taken(),
            former,
        );
        let begun = match self.observer.begins_one_at_a_time() {
            _ if former.has_begun_nothing => Begun::None,
            _ if former.has_begun_no_kernel => Begun::no_kernel(taken(), former),
            true => Begun::First,
            false => Begun::All,
        };
        result.cut_off = cut_off(taken(), (former, &begun), &mut known);
        drop(base);
        if let Some(why) = &result.cut_off {
            for context in (0..)
                .zip(&self.contexts)
                .filter_map(|(id, device)| device.map(|_| id))
            {
                self.fault_if_well(context, former, why);
            }
        }
        // Up to here nothing was read or written of what is in the client's memory, which the former server's device may still be at.
        if cancellation.awaits_former() {
            let objects = result.objects;
            self.log.line(format_args!(
                "is ready to go on when its former server has ended: {objects} objects made again"
            ));
        }
        while cancellation.awaits_former()
            && cancellation.ending().is_none()
            && self.client.make_ready()
        {}
        cancellation
            .wait_for_former()
            .map_err(|how| End { how, reason: None })?;
        self.observer.settle();
        self.client
            .former_ended()
            .map_err(|code| failed(format!("its memory cannot be read: error {}", code.0)))?;
        let entry_at = |entry: Entry| (entry.end, entry);
        let mut in_ring: BTreeMap<_, _> = later.into_iter().map(entry_at).collect();
        for (position, record) in records {
            let entry = in_ring.remove(&position.end());
            // Before there is work on it.
            self.check_memory(&freed)?;
            let at = self.follow(record, entry, (former, &begun, &mut result), &mut late)?;
            self.unretired.push_back((position, at));
        }
        self.check_memory(&freed)?;
        self.memory
            .clear_vacant(&mut ClientBacking(&mut *self.client, &self.addresses));
        for record in late {
            self.perform(record)?;
        }
        self.release()?;
        Ok(result)
    }

    /// Whether the former server has left the memory of all blocks that stay.
    fn check_memory(&self, freed: &Freed) -> Result<(), End> {
        let is_freed =
            |address, context| freed.blocks.contains(&address) || freed.contexts.contains(&context);
        match self.memory.lost_block(is_freed) {
            None => Ok(()),
            Some(address) => Err(failed(format!(
                "its former server has not left the memory of the block at {address:#x}"
            ))),
        }
    }

    /// Makes an object again that a record made.
    fn make_again(
        &mut self,
        entry: &Entry,
        (former, result): (&Former, &mut TakenOver),
    ) -> Result<(), End> {
        let (record, outcome) = (&entry.record, &entry.outcome);
        let opcode = Opcode::from_number(record.header.opcode);
        let opcode = opcode.ok_or_else(|| End::violation("an object of no operation"))?;
        let made = match outcome {
            Outcome::Answered(answer) => self.answer_again(opcode, record, answer),
            _ if opcode == Opcode::ImagePut => ImagePut::read(record.slots())
                .map_err(End::violation)
                .map(|request| self.add_image_bytes(&request, entry)),
            // Streams' operations are the ring's alone.
            _ if matches!(
                opcode.row().class,
                OperationClass::Stream | OperationClass::Call
            ) =>
            {
                Err(End::violation("an object of an operation that makes none"))
            }
            _ => match self.dispatch(record, &mut Vec::new())? {
                RecordOutcome::Posted(result) => Ok(result),
                RecordOutcome::Replied { .. } => Err(End::violation("a reply to nobody")),
            },
        }?;
        made.map_err(|code| not_made(opcode, code))?;
        result.objects += 1;
        if opcode == Opcode::ContextCreate {
            self.settle_fault(record, former, result.cut_off.as_deref())?;
        }
        Ok(())
    }

    /// A context that was dead is so again, and dead is one whose work was cut off: with all of the client's, as what
    /// one has done may be another's.
    fn settle_fault(
        &self,
        record: &Record,
        former: &Former,
        cut_off: Option<&str>,
    ) -> Result<(), End> {
        let context = ContextCreate::read(record.slots())
            .map_err(End::violation)?
            .context;
        if let Some(code) = fault_before(context, former) {
            let text = "it was dead when its former server ended";
            self.observer.fault(context, code, Guilt::Innocent, text);
        } else if let Some(why) = cut_off {
            self.fault_if_well(context, former, why);
        }
        Ok(())
    }

    fn fault_if_well(&self, context: u32, former: &Former, why: &str) {
        if fault_before(context, former).is_none() {
            let code = CUresult::ERROR_LAUNCH_FAILED;
            let text = format!("{CUT_OFF} ({why})");
            self.observer.fault(context, code, Guilt::Innocent, &text);
        }
    }

    /// Makes an object again so that what the client was answered is true.
    fn answer_again(
        &mut self,
        opcode: Opcode,
        record: &Record,
        answer: &Answer,
    ) -> Result<Result<(), CUresult>, End> {
        let slots = record.slots();
        let address = answer.slots.first().copied().unwrap_or(0);
        let (context, bytes, is_host, is_managed) = match opcode {
            Opcode::MemAlloc => {
                let request = MemAlloc::read(slots).map_err(End::violation)?;
                (request.context, request.bytes, false, false)
            }
            Opcode::ManagedAlloc => {
                let request = ManagedAlloc::read(slots).map_err(End::violation)?;
                (request.context, request.bytes, false, true)
            }
            Opcode::HostAlloc => {
                let request = HostAlloc::read(slots).map_err(End::violation)?;
                (request.context, request.bytes, true, false)
            }
            Opcode::ImageLoad => {
                let request = ImageLoad::read(slots).map_err(End::violation)?;
                // What is said of it the client knows.
                let (staging, capacity) = (0, 0);
                let request = ImageLoad {
                    staging,
                    capacity,
                    ..request
                };
                return Ok(self.load_image(&request, &mut Vec::new()).map(drop));
            }
            Opcode::ModuleLoad => {
                let request = ModuleLoad::read(slots).map_err(End::violation)?;
                return Ok(self.place_module(&request, &answer.data, address));
            }
            _ => {
                return Err(End::violation(
                    "an answer to an operation that makes nothing",
                ));
            }
        };
        let Ok(device) = self.device_of(context) else {
            return Ok(Err(CUresult::ERROR_INVALID_CONTEXT));
        };
        let place = match (is_host, is_managed) {
            (true, _) => MemoryKind::Host,
            (false, true) => MemoryKind::Managed(device),
            (false, false) => MemoryKind::Device(device),
        };
        let mut backing = ClientBacking(&mut *self.client, &self.addresses);
        Ok(self
            .memory
            .place((place, context), (address, bytes), &mut backing))
    }

    /// Loads a module whose variables lie where they lay, with what is in them.
    fn place_module(
        &mut self,
        request: &ModuleLoad,
        addresses: &[u8],
        count: u64,
    ) -> Result<(), CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let (whole, rest) = addresses.as_chunks::<8>();
        if !rest.is_empty() || whole.len() as u64 != count {
            // The answer was too long to be kept.
            return Err(wrong);
        }
        let all = || whole.iter().map(|word| u64::from_le_bytes(*word));
        let first = |managed: bool| {
            let these = all().filter(|&at| self.memory.is_in_host_window(at) == managed);
            these.min().map(|at| at / ALIGNMENT * ALIGNMENT)
        };
        let placed = PlacedVariables {
            device: first(false),
            managed: first(true),
        };
        let device = self.device_of(request.context)?;
        let loader = Loader {
            images: &mut self.images,
            memory: &mut self.memory,
            backing: ClientBacking(&mut *self.client, &self.addresses),
            observer: &self.observer,
            placed: Some(placed),
        };
        let mut reply = Vec::new();
        self.modules.load(request, device, loader, &mut reply)?;
        // As the alignment of its variables is more than memory has, they might be elsewhere.
        if reply == addresses {
            Ok(())
        } else {
            Err(wrong)
        }
    }

    /// Goes on with a record that the former server had taken, and says where in a stream it belongs.
    fn follow(
        &mut self,
        mut record: Record,
        entry: Option<Entry>,
        (former, begun, result): (&Former, &Begun, &mut TakenOver),
        late: &mut Vec<Record>,
    ) -> Result<At, End> {
        let header = record.header;
        let opcode = Opcode::from_number(header.opcode);
        let opcode = opcode.ok_or_else(|| failed("a newer client's operation was under way"))?;
        if let Some(entry) = entry
            && (opcode == Opcode::ImagePut || matches!(entry.outcome, Outcome::Answered(_)))
        {
            if entry.record.header.opcode != header.opcode {
                return Err(End::violation("a journal of another ring"));
            }
            self.make_again(&entry, (former, result))?;
            return Ok(NOWHERE);
        }
        match opcode.row().class {
            OperationClass::Stream => {
                let at = At {
                    stream: header.channel,
                    sequence: header.sequence,
                };
                let completed = completed(former, at.stream);
                if at.sequence <= completed {
                    if opcode == Opcode::StreamDestroy {
                        self.end_stream_again(at)?;
                    }
                    return Ok(NOWHERE);
                }
                let count = match begun.is_it(at, former) {
                    _ if result.cut_off.is_some() => &mut result.failed,
                    true => &mut result.repeated,
                    false => &mut result.untouched,
                };
                *count += 1;
                self.admit_stream_record(opcode, at, &mut record)?;
                return Ok(at);
            }
            OperationClass::Call => {
                let answered = former.answered.get(header.channel as usize);
                if answered.is_none_or(|&serial| serial < header.sequence) {
                    // Behind all that has an address already.
                    late.push(record);
                }
            }
            OperationClass::Post | OperationClass::Create => {
                if self.must_stall(&record) {
                    return Err(failed(
                        "a context was made in the place of one that had not ended",
                    ));
                }
                let is_context = opcode == Opcode::ContextCreate;
                let created = is_context.then(|| record.clone());
                self.perform_kept(&mut record)?;
                if let Some(record) = created {
                    self.settle_fault(&record, former, result.cut_off.as_deref())?;
                }
            }
        }
        Ok(NOWHERE)
    }

    /// A stream was made again whose end was complete.
    fn end_stream_again(&mut self, at: At) -> Result<(), End> {
        self.scheduler.end_stream(at.stream);
        let request = StreamDestroy { reserved: 0 };
        let ended = self.client.stream_destroy(at, &request, &[]);
        ended.map_err(|code| not_made(Opcode::StreamDestroy, code))
    }
}

/// The error of a context that was dead before.
fn fault_before(context: u32, former: &Former) -> Option<CUresult> {
    let code = former.faults.get(context as usize).copied();
    code.filter(|&code| code != CUresult::SUCCESS)
}

/// What records that the former server had taken free: work on that is complete where it has given the memory back.
#[derive(Debug, Default)]
struct Freed {
    blocks: BTreeSet<u64>,
    contexts: BTreeSet<u32>,
}

impl Freed {
    fn by(records: &[(Position, Record)]) -> Self {
        let mut freed = Self::default();
        for (_, record) in records {
            match Opcode::from_number(record.header.opcode) {
                Some(Opcode::MemFree) => {
                    let free = MemFree::read(record.slots()).ok();
                    freed.blocks.extend(free.map(|free| free.address));
                }
                Some(Opcode::ContextDestroy) => {
                    let destroy = ContextDestroy::read(record.slots()).ok();
                    freed
                        .contexts
                        .extend(destroy.map(|destroy| destroy.context));
                }
                _ => {}
            }
        }
        freed
    }
}

fn is_call(record: &Record) -> bool {
    Opcode::from_number(record.header.opcode)
        .is_some_and(|opcode| opcode.row().class == OperationClass::Call)
}

/// The records that the former server had taken and that are still in the ring.
fn taken_before(consumer: &mut Consumer, former: &Former) -> Result<Vec<(Position, Record)>, End> {
    let mut records = Vec::new();
    let mut taken = former.retired;
    while taken < former.taken {
        let mut record = Record::default();
        let position = consumer.next_record(&mut record).map_err(End::violation)?;
        let position =
            position.ok_or_else(|| End::violation("the ring has less than was taken"))?;
        taken = position.end();
        records.push((position, record));
    }
    if taken == former.taken {
        Ok(records)
    } else {
        Err(End::violation(
            "the ring's records are not those that were taken",
        ))
    }
}
