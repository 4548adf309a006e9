//! A session that was another server's: its objects are made again, and what its ring still holds goes on.
//!
//! The client's journal says what made each object that lived where the ring's oldest record stands; from there on the
//! ring itself is followed, in its order, up to where the former server had taken it. What is complete stays. What may
//! have been begun is only begun again where that cannot be told from doing it once; if it was a kernel, the client's
//! contexts are dead. Called by admission's thread, before the session is served. Believes the client nothing: each
//! request is checked as any. Must not know how the client kept its journal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cuda_abi::CUresult;
use engine::Observer;
use protocol::control_messages::{Ending, Guilt, Takeovers};
use protocol::operations::{
    At, ContextCreate, ContextDestroy, Copy, Fill, HostAlloc, ImageLoad, ImagePut, ManagedAlloc,
    MemAlloc, MemFree, ModuleLoad, Opcode, OperationClass, RecordOutcome, Space, StreamDestroy,
    Write,
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
use crate::session::{End, Session};
use crate::stream_scheduler::completion::host_barrier;

/// Bytes of a write that may be a flag for somebody who watches it: such a write is not done twice.
const FLAG_BYTES: usize = 8;

/// What a client died of whose kernel was cut off, for the log.
const CUT_OFF: &str =
    "its server ended while a kernel of this client ran, and how far that came cannot be told";

/// What came of a takeover, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Objects that were made again.
    objects: usize,
    /// Operations that had not been begun.
    untouched: usize,
    /// Operations that may have been begun before, and were done again.
    repeated: usize,
    /// Operations that failed, as a kernel was cut off.
    failed: usize,
    is_cut_off: bool,
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
    /// Makes the client's objects again and goes on with its ring up to where the former server had taken it.
    ///
    /// # Errors
    /// Why the session cannot go on.
    pub fn take_over(
        &mut self,
        consumer: &mut Consumer,
        former: &Former,
        entries: Vec<Entry>,
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
        let mut result = TakenOver {
            is_cut_off: is_cut_off(
                records.iter().map(|(_, record)| record),
                former,
                self.begun(former),
            ),
            ..TakenOver::default()
        };
        let freed = Freed::by(&records);
        let mut in_ring = BTreeMap::new();
        let mut late = Vec::new();
        for entry in entries {
            if entry.end > former.retired {
                in_ring.insert(entry.end, entry);
                continue;
            }
            match &entry.outcome {
                Outcome::Unanswered if is_call(&entry.record) => late.push(entry.record),
                Outcome::Unanswered => return Err(End::violation("a reply is wanted of no call")),
                outcome => self.make_again(&entry.record, outcome, (former, &mut result))?,
            }
        }
        for (position, record) in records {
            let entry = in_ring.remove(&position.end());
            // Before there is work on it.
            self.check_memory(&freed)?;
            let at = self.follow(record, entry, (former, &mut result), &mut late)?;
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
        record: &Record,
        outcome: &Outcome,
        (former, result): (&Former, &mut TakenOver),
    ) -> Result<(), End> {
        let opcode = Opcode::from_number(record.header.opcode);
        let opcode = opcode.ok_or_else(|| End::violation("an object of no operation"))?;
        let made = match outcome {
            Outcome::Answered(answer) => self.answer_again(opcode, record, answer),
            _ if opcode == Opcode::ImagePut => ImagePut::read(record.slots())
                .map_err(End::violation)
                .map(|request| self.add_image_bytes(&request, record.data())),
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
            self.settle_fault(record, former, result.is_cut_off)?;
        }
        Ok(())
    }

    /// A context that was dead is so again, and dead is one whose kernel was cut off: with all of the client's, as what
    /// one has done may be another's.
    fn settle_fault(&self, record: &Record, former: &Former, is_cut_off: bool) -> Result<(), End> {
        let context = ContextCreate::read(record.slots())
            .map_err(End::violation)?
            .context;
        let before = former.faults.get(context as usize).copied();
        match before.filter(|&code| code != CUresult::SUCCESS) {
            Some(code) => {
                let text = "it was dead when its former server ended";
                self.observer.fault(context, code, Guilt::Innocent, text);
            }
            None if is_cut_off => {
                let code = CUresult::ERROR_LAUNCH_FAILED;
                self.observer.fault(context, code, Guilt::Innocent, CUT_OFF);
            }
            None => {}
        }
        Ok(())
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
        (former, result): (&Former, &mut TakenOver),
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
            self.make_again(&entry.record, &entry.outcome, (former, result))?;
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
                let count = match self.begun(former).is_it(at, former) {
                    _ if result.is_cut_off => &mut result.failed,
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
                    self.settle_fault(&record, former, result.is_cut_off)?;
                }
            }
        }
        Ok(NOWHERE)
    }

    /// Which operations the former server may have begun, which had this one's engine.
    fn begun(&self, former: &Former) -> Begun {
        match self.observer.begins_one_at_a_time() {
            _ if former.is_not_begun => Begun::Nothing,
            true => Begun::First,
            false => Begun::All,
        }
    }

    /// A stream was made again whose end was complete.
    fn end_stream_again(&mut self, at: At) -> Result<(), End> {
        self.scheduler.end_stream(at.stream);
        let request = StreamDestroy { reserved: 0 };
        let ended = self.client.stream_destroy(at, &request, &[]);
        ended.map_err(|code| not_made(Opcode::StreamDestroy, code))
    }
}

/// Which of a stream's operations that are not complete may have been begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// The first one at most.
    First,
    /// Any: a device has several, and says late how far it is.
    All,
    /// None: the former server has said so.
    Nothing,
}

impl Begun {
    /// Whether this one may have been.
    fn is_it(self, at: At, former: &Former) -> bool {
        let behind = at.sequence.saturating_sub(completed(former, at.stream));
        match self {
            Self::First => behind == 1,
            Self::All => behind >= 1,
            Self::Nothing => false,
        }
    }
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

fn completed(former: &Former, stream: u32) -> u64 {
    let completed = former.completed.get(stream as usize);
    completed.copied().unwrap_or(0)
}

/// Whether any of these records, in the ring's order, may have been begun whose work cannot be done again without anybody
/// being able to tell. One that writes what an earlier one has read is such, as that one is done again too.
fn is_cut_off<'a>(
    records: impl Iterator<Item = &'a Record>,
    former: &Former,
    begun: Begun,
) -> bool {
    let mut read: Vec<Range<u64>> = Vec::new();
    for record in records {
        let header = record.header;
        let opcode = Opcode::from_number(header.opcode);
        let Some(opcode) = opcode.filter(|opcode| opcode.row().class == OperationClass::Stream)
        else {
            continue;
        };
        let at = At {
            stream: header.channel,
            sequence: header.sequence,
        };
        if !begun.is_it(at, former) {
            continue;
        }
        let Some(repeatable) = repeatable(opcode, record) else {
            return true;
        };
        read.extend(repeatable.reads);
        if let Some(writes) = repeatable.writes
            && read
                .iter()
                .any(|read| read.start < writes.end && writes.start < read.end)
        {
            return true;
        }
    }
    false
}

/// What an operation reads and writes that can be done twice, of memory that kernels and copies reach by its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Repeatable {
    reads: Option<Range<u64>>,
    writes: Option<Range<u64>>,
}

/// What a stream's operation touches, if it can be done again after it was begun.
fn repeatable(opcode: Opcode, record: &Record) -> Option<Repeatable> {
    match opcode {
        Opcode::StreamWait
        | Opcode::HostBarrier
        | Opcode::ValueWait
        | Opcode::EventRecord
        | Opcode::StreamDestroy => Some(Repeatable::default()),
        Opcode::Fill => {
            let fill = Fill::read(record.slots()).ok()?;
            let width = fill.width.saturating_mul(fill.element.into());
            let rows = (fill.height, fill.pitch);
            Some(Repeatable {
                reads: None,
                writes: Some(extent(fill.to, width, rows, (1, 0))),
            })
        }
        Opcode::Write => {
            let write = Write::read(record.slots()).ok()?;
            let bytes = record.data().len();
            (bytes > FLAG_BYTES).then(|| Repeatable {
                reads: None,
                writes: Some(write.to..write.to.saturating_add(bytes as u64)),
            })
        }
        Opcode::Copy => {
            let copy = Copy::read(record.slots()).ok()?;
            let is_memory = |space: u32| space == Space::Unified as u32;
            let side = |at, pitch, slice| {
                extent(at, copy.width, (copy.height, pitch), (copy.depth, slice))
            };
            let from = side(copy.from, copy.from_pitch, copy.from_slice);
            let to = side(copy.to, copy.to_pitch, copy.to_slice);
            Some(Repeatable {
                reads: is_memory(copy.from_space).then_some(from),
                writes: is_memory(copy.to_space).then_some(to),
            })
        }
        _ => None,
    }
}

/// From the first to the last byte of rows of `width` bytes, in slices.
fn extent(
    at: u64,
    width: u64,
    (height, pitch): (u64, u64),
    (depth, slice): (u64, u64),
) -> Range<u64> {
    let rows = height.saturating_sub(1).saturating_mul(pitch);
    let slices = depth.saturating_sub(1).saturating_mul(slice);
    let bytes = width.saturating_add(rows).saturating_add(slices);
    at..at.saturating_add(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::operations::{Launch, Request, STREAM_SLOTS};
    use protocol::wire::{Header, MAX_FIELD_SLOTS};

    fn record<R: Request>(request: &R, sequence: u64, data: &[u8]) -> Record {
        let mut slots = [0; MAX_FIELD_SLOTS];
        request.write(&mut slots[..R::SLOTS]);
        let header = Header {
            opcode: R::OPCODE as u16,
            sequence,
            channel: 40,
            ..Header::default()
        };
        Record::new(header, slots[..R::SLOTS].to_vec(), data.to_vec())
    }

    fn former(completed: u64) -> Former {
        let mut words = vec![0; STREAM_SLOTS as usize];
        words[40] = completed;
        Former {
            journal: Vec::new(),
            taken: 0,
            retired: 0,
            is_spilled: false,
            is_not_begun: false,
            completed: words,
            faults: Vec::new(),
            answered: Vec::new(),
        }
    }

    #[test]
    fn what_may_have_been_begun_and_cannot_be_repeated_is_cut_off() {
        let launch = Launch::default();
        let is = |record: Record, completed, begun| {
            is_cut_off(std::iter::once(&record), &former(completed), begun)
        };
        let behind = || record(&launch, 9, &[]);
        assert!(is(record(&launch, 8, &[]), 7, Begun::First));
        assert!(!is(behind(), 7, Begun::First), "behind another");
        assert!(is(behind(), 7, Begun::All), "the device may have both");
        assert!(!is(behind(), 7, Begun::Nothing), "it has neither");
        assert!(!is(record(&launch, 8, &[]), 8, Begun::All), "complete");
        let write = Write { to: 4096 };
        assert!(is(record(&write, 8, &[0; 4]), 7, Begun::First), "a flag");
        assert!(!is(record(&write, 8, &[0; 64]), 7, Begun::First));
    }

    #[test]
    fn a_copy_onto_itself_is_not_repeated() {
        let copy = |to, from| Copy {
            to,
            from,
            width: 100,
            height: 1,
            depth: 1,
            ..Copy::default()
        };
        for (to, from, is) in [(0, 0, true), (0, 99, true), (99, 0, true), (0, 100, false)] {
            let record = [record(&copy(to, from), 8, &[])];
            let found = is_cut_off(record.iter(), &former(7), Begun::First);
            assert_eq!(found, is, "{to} {from}");
        }
        let staged = Copy {
            from_space: Space::Staging as u32,
            ..copy(0, 0)
        };
        let staged = [record(&staged, 8, &[])];
        assert!(!is_cut_off(staged.iter(), &former(7), Begun::First));
    }

    #[test]
    fn copies_are_repeated_together_unless_one_writes_what_an_earlier_one_has_read() {
        let copy = |to, from| Copy {
            to,
            from,
            width: 100,
            height: 1,
            depth: 1,
            ..Copy::default()
        };
        let both = |second: Copy| {
            let records = [record(&copy(1000, 2000), 8, &[]), record(&second, 9, &[])];
            is_cut_off(records.iter(), &former(7), Begun::All)
        };
        assert!(!both(copy(3000, 1000)), "it reads what was written");
        assert!(!both(copy(1000, 3000)), "it writes the same");
        assert!(both(copy(2050, 3000)), "it writes what was read");
        let fill = Fill {
            to: 2099,
            width: 1,
            element: 1,
            height: 1,
            ..Fill::default()
        };
        let records = [record(&copy(1000, 2000), 8, &[]), record(&fill, 9, &[])];
        assert!(is_cut_off(records.iter(), &former(7), Begun::All));
        assert!(!is_cut_off(records.iter(), &former(7), Begun::First));
    }
}
