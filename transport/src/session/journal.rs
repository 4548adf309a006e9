//! What a client keeps of its objects for a server that takes its session over: for each object that lives the record
//! that made it, where in the ring that was, and what the server answered.
//!
//! Only sessions that can be taken over have one. Kept by the client's end as it posts, read by the server that takes
//! over, which believes none of it. Which operation makes or ends what is the table's to say. Must not know how an
//! object is made.

#![allow(
    clippy::disallowed_types,
    reason = "models are of the ring, without sessions"
)]

use super::replies::Answer;
use crate::memory::{Mapping, MemoryError, Sealed};
use crate::ring::Record;
use protocol::operations::{Effect, Object, Opcode};
use protocol::wire::{HEADER_SLOTS, Header, MAX_FIELD_SLOTS};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a journal may have in its written form, most of them images.
pub const JOURNAL_MAX: u64 = 1 << 30;

/// Bytes in a piece from which on they are written by the kernel, and not through a mapping.
const LONG: usize = 64 << 10;

/// What became of a record that made an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is none that is answered.
    Posted,
    /// It is not answered.
    Unanswered,
    /// What the server answered: it made the object.
    Answered(Answer),
}

/// A record that made an object, or is about to.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where the record ends in the ring.
    pub end: u64,
    /// The record.
    pub record: Record,
    /// What became of it.
    pub outcome: Outcome,
    /// Of a journal that was read, its bytes that passed through staging memory: they stand where the client has put them. Else
    /// such bytes are the record's data.
    staged: Option<Staged>,
}

/// Bytes in a client's memory, which can be others each time they are copied out.
#[derive(Clone, Debug)]
struct Staged {
    memory: Arc<Mapping>,
    at: usize,
    bytes: usize,
}

/// What a client keeps.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Entries>);

/// The entries of a [`Journal`], by where their records end in the ring. Blocks come and go often and there are many: no
/// step of that looks through all entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    kept: BTreeMap<u64, Kept>,
    /// Of blocks and settings that live the entry. There is one of each.
    single: HashMap<Object, u64>,
    /// Those that are not answered.
    unanswered: Vec<u64>,
    /// Those that are ended, with where, in that order.
    ended: VecDeque<(u64, u64)>,
    /// There was something that no other server can make again.
    pub(super) is_irreplaceable: bool,
}

#[derive(Debug)]
struct Kept {
    entry: Entry,
    object: Object,
    home: Option<u32>,
    /// Where the record ends in the ring that ended it.
    ended: Option<u64>,
}

impl Journal {
    pub(super) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The object that an answered call made: blocks have the address that the server gave.
fn made(object: Object, answer: &Answer) -> Object {
    let address = answer.slots.first().copied().unwrap_or(0);
    match object {
        Object::DeviceBlock(_) => Object::DeviceBlock(address),
        Object::HostBlock(_) => Object::HostBlock(address),
        other => other,
    }
}

impl Entries {
    /// Notes a record whose place in the ring was just taken. `retired` is what of the ring is not needed any more.
    pub(super) fn note(&mut self, end: u64, retired: u64, is_call: bool, record: Record) {
        let Some(opcode) = Opcode::from_number(record.header.opcode) else {
            self.is_irreplaceable = true;
            return;
        };
        let (channel, slots) = (record.header.channel, record.slots());
        match opcode.effect(channel, slots) {
            Effect::Nothing => {}
            Effect::Irreplaceable => self.is_irreplaceable = true,
            Effect::Ends(object @ (Object::DeviceBlock(_) | Object::HostBlock(_))) => {
                self.forget(retired);
                // Nothing else goes with a block.
                if let Some(&at) = self.single.get(&object) {
                    self.end([at], end);
                }
            }
            Effect::Ends(object) => {
                self.forget(retired);
                let goes = |kept: &Kept| {
                    matches!(object, Object::Context(id) if kept.home == Some(id))
                        || kept.object.goes_with(object)
                };
                let gone = self.living(goes);
                // What belongs to modules and streams that went with their context goes too.
                let objects: Vec<Object> = gone.iter().map(|at| self.kept[at].object).collect();
                self.end(gone, end);
                let with_these = self.living(|kept| {
                    let mut objects = objects.iter();
                    objects.any(|&gone| kept.object.goes_with(gone))
                });
                self.end(with_these, end);
            }
            Effect::Makes(object) => {
                if object.is_setting() {
                    if let Some(&former) = self.single.get(&object) {
                        self.end([former], end);
                        // Set in a loop, they must not become more and more.
                        self.forget(retired);
                    }
                    self.single.insert(object, end);
                }
                let outcome = match is_call {
                    true => {
                        self.unanswered.push(end);
                        Outcome::Unanswered
                    }
                    false => Outcome::Posted,
                };
                let home = opcode.home(slots);
                let kept = Kept {
                    entry: Entry {
                        end,
                        record,
                        outcome,
                        staged: None,
                    },
                    object,
                    home,
                    ended: None,
                };
                self.kept.insert(end, kept);
            }
        }
    }

    /// Those that live and of which something holds.
    fn living(&self, is_it: impl Fn(&Kept) -> bool) -> Vec<u64> {
        let living = self.kept.iter().filter(|(_, kept)| kept.ended.is_none());
        let these = living.filter(|(_, kept)| is_it(kept));
        these.map(|(&at, _)| at).collect()
    }

    /// Notes where some end.
    fn end(&mut self, these: impl IntoIterator<Item = u64>, end: u64) {
        for at in these {
            if let Some(kept) = self.kept.get_mut(&at) {
                kept.ended = Some(end);
                self.ended.push_back((end, at));
                if self.single.get(&kept.object) == Some(&at) {
                    self.single.remove(&kept.object);
                }
            }
        }
    }

    /// Drops what ended where nobody looks any more.
    fn forget(&mut self, retired: u64) {
        while let Some(&(ended, at)) = self.ended.front()
            && ended <= retired
        {
            self.ended.pop_front();
            let gone = self.kept.remove(&at);
            if gone.is_some_and(|kept| kept.entry.outcome == Outcome::Unanswered) {
                self.unanswered.retain(|&open| open != at);
            }
        }
    }

    /// Notes what was answered to a call, unless that is known: `None` if it made nothing.
    pub(super) fn answered(&mut self, serial: u64, answer: Option<Answer>) {
        let is_it = |at: &u64| {
            let kept = self.kept.get(at);
            kept.is_some_and(|kept| kept.entry.record.header.sequence == serial)
        };
        let Some(which) = self.unanswered.iter().position(is_it) else {
            return;
        };
        let at = self.unanswered.swap_remove(which);
        match (answer, self.kept.get_mut(&at)) {
            (Some(answer), Some(kept)) => {
                kept.object = made(kept.object, &answer);
                kept.entry.outcome = Outcome::Answered(answer);
                if matches!(kept.object, Object::DeviceBlock(_) | Object::HostBlock(_))
                    && kept.ended.is_none()
                {
                    self.single.insert(kept.object, at);
                }
            }
            _ => drop(self.kept.remove(&at)),
        }
    }

    /// Keeps what was answered to the call that made an object, where it was too long to stand behind the answer.
    pub(super) fn answered_at_length(&mut self, object: Object, data: &[u8]) {
        let made = self.kept.values_mut().rev();
        let mut made = made.filter(|kept| kept.object == object && kept.ended.is_none());
        if let Some(Outcome::Answered(answer)) = made.next().map(|kept| &mut kept.entry.outcome) {
            answer.data = data.to_vec();
        }
    }

    /// Reply slots and serial numbers of calls of which it is not known whether they were answered.
    pub(super) fn unanswered(&self) -> Vec<(u32, u64)> {
        let open = self.unanswered.iter().filter_map(|at| self.kept.get(at));
        open.map(|kept| &kept.entry.record.header)
            .map(|header| (header.channel, header.sequence))
            .collect()
    }

    /// Writes down what a server needs that goes on behind `retired`, with what was taken up to `taken`: the rest it
    /// finds in the ring.
    pub(super) fn write(&self, taken: u64, retired: u64) -> Result<Sealed, MemoryError> {
        let needed = || {
            let is_needed = |kept: &&Kept| {
                kept.entry.end <= taken && kept.ended.is_none_or(|ended| ended > retired)
            };
            self.kept.values().filter(is_needed)
        };
        let mut bytes = 0;
        for kept in needed() {
            kept.entry.write(&mut |piece| bytes += piece.len());
        }
        // One word more, so that there is memory if there is no entry.
        let sealed = Sealed::create("openmps-journal", bytes as u64 + 8)?;
        let mapping = Mapping::map(&sealed)?;
        let (mut at, mut written) = (0, Ok(()));
        // Images are long: there is no other copy of them on the way.
        for kept in needed() {
            kept.entry.write(&mut |piece| {
                match piece.len() < LONG {
                    true => mapping.copy_in(at, piece),
                    false if written.is_ok() => written = sealed.write_at(at as u64, piece),
                    false => {}
                }
                at += piece.len();
            });
        }
        written.map(|()| sealed)
    }
}

/// [`Outcome`]s in their written form.
const POSTED: u64 = 1;
const UNANSWERED: u64 = 2;
const ANSWERED: u64 = 3;

fn put_words(words: &[u64], put: &mut dyn FnMut(&[u8])) {
    for word in words {
        put(&word.to_le_bytes());
    }
}

/// Bytes up to the end of a word.
fn put_bytes(bytes: &[u8], put: &mut dyn FnMut(&[u8])) {
    put(bytes);
    put(&[0; 8][..bytes.len().wrapping_neg() % 8]);
}

impl Entry {
    /// Of a record that ends there in the ring.
    #[must_use]
    pub const fn new(end: u64, record: Record, outcome: Outcome) -> Self {
        Self {
            end,
            record,
            outcome,
            staged: None,
        }
    }

    /// How many bytes of it passed through staging memory.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        let staged = self.staged.as_ref();
        staged.map_or(self.record.data().len(), |staged| staged.bytes) as u64
    }

    /// Copies those bytes out, all of them.
    ///
    /// # Panics
    /// If there is another number of them.
    pub fn copy_staged(&self, into: &mut [u8]) {
        match &self.staged {
            Some(staged) => {
                assert_eq!(into.len(), staged.bytes, "all of them");
                staged.memory.copy_out(staged.at, into);
            }
            None => into.copy_from_slice(self.record.data()),
        }
    }

    /// Gives its written form, piece by piece. A journal is such forms, and ends with a word of zero.
    pub fn write(&self, put: &mut dyn FnMut(&[u8])) {
        let header = Header {
            slots: self.record.slots().len() as u8,
            data: self.record.data().len() as u32,
            ..self.record.header
        };
        let outcome = match self.outcome {
            Outcome::Posted => POSTED,
            Outcome::Unanswered => UNANSWERED,
            Outcome::Answered(_) => ANSWERED,
        };
        put_words(&[outcome, self.end], put);
        put_words(&header.encode(), put);
        put_words(self.record.slots(), put);
        put_bytes(self.record.data(), put);
        if let Outcome::Answered(answer) = &self.outcome {
            put_words(&[answer.slots.len() as u64], put);
            put_words(&answer.slots, put);
            put_words(&[answer.data.len() as u64], put);
            put_bytes(&answer.data, put);
        }
    }
}

/// A journal that a client sent, word by word: each is copied out once, but for the bytes of images.
struct Reader {
    memory: Arc<Mapping>,
    at: usize,
}

impl Reader {
    /// Passes over bytes, up to the end of a word. Where they are.
    fn pass(&mut self, count: u64) -> Option<Staged> {
        let bytes = usize::try_from(count).ok()?;
        let at = self.at;
        self.at = at.checked_add(bytes.checked_next_multiple_of(8)?)?;
        (self.at <= self.memory.len()).then(|| Staged {
            memory: self.memory.clone(),
            at,
            bytes,
        })
    }

    fn bytes(&mut self, count: u64) -> Option<Vec<u8>> {
        let place = self.pass(count)?;
        let mut bytes = vec![0; place.bytes];
        self.memory.copy_out(place.at, &mut bytes);
        Some(bytes)
    }

    fn words(&mut self, count: u64) -> Option<Vec<u64>> {
        let bytes = self.bytes(count.checked_mul(8)?)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Some(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn word(&mut self) -> Option<u64> {
        self.words(1)?.first().copied()
    }

    fn entry(&mut self, outcome: u64) -> Option<Entry> {
        let end = self.word()?;
        let header = self.words(HEADER_SLOTS as u64)?;
        let header = Header::decode([header[0], header[1], header[2]]).ok()?;
        if usize::from(header.slots) > MAX_FIELD_SLOTS {
            return None;
        }
        let slots = self.words(header.slots.into())?;
        // Images are long, and copied out where they go.
        let (data, staged) = match header.opcode == Opcode::ImagePut as u16 {
            true => (Vec::new(), Some(self.pass(header.data.into())?)),
            false => (self.bytes(header.data.into())?, None),
        };
        let outcome = match outcome {
            POSTED => Outcome::Posted,
            UNANSWERED => Outcome::Unanswered,
            ANSWERED => {
                let count = self
                    .word()
                    .filter(|&count| count <= MAX_FIELD_SLOTS as u64)?;
                let slots = self.words(count)?;
                let count = self.word()?;
                let data = self.bytes(count)?;
                Outcome::Answered(Answer { slots, data })
            }
            _ => return None,
        };
        Some(Entry {
            end,
            record: Record::new(header, slots, data),
            outcome,
            staged,
        })
    }
}

/// Reads what a client wrote down of its objects, of so many bytes. `None` if it makes no sense.
///
/// # Errors
/// When the memory is none that can be read without harm, or cannot be mapped.
pub fn read(memory: std::os::fd::OwnedFd, bytes: u64) -> Result<Option<Vec<Entry>>, MemoryError> {
    let sealed = Sealed::from_fd(memory, bytes)?;
    let mut reader = Reader {
        memory: Arc::new(Mapping::map_read_only(&sealed)?),
        at: 0,
    };
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        match reader.word() {
            None => return Ok(None),
            Some(0) => return Ok(Some(entries)),
            Some(outcome) => match reader.entry(outcome) {
                // In the ring's order, and so each at a place of its own.
                Some(entry) if entries.last().is_none_or(|last| last.end < entry.end) => {
                    entries.push(entry);
                }
                _ => return Ok(None),
            },
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use protocol::operations::{
        ContextCreate, ContextDestroy, FunctionSet, ImagePut, MemAlloc, MemFree, ModuleLoad,
        ModuleUnload, Request, StreamCreate, StreamDestroy,
    };

    fn record<R: Request>(request: &R, channel: u32, sequence: u64) -> Record {
        let mut slots = [0; MAX_FIELD_SLOTS];
        request.write(&mut slots[..R::SLOTS]);
        let header = Header {
            opcode: R::OPCODE as u16,
            channel,
            sequence,
            ..Header::default()
        };
        Record::new(header, slots[..R::SLOTS].to_vec(), vec![1, 2, 3])
    }

    /// Where the records end that a server gets which goes on behind `retired`.
    fn written(entries: &Entries, taken: u64, retired: u64) -> Vec<Entry> {
        let memory = entries.write(taken, retired).unwrap();
        let bytes = memory.bytes();
        read(memory.into(), bytes).unwrap().unwrap()
    }

    fn ends(entries: &Entries, taken: u64, retired: u64) -> Vec<u64> {
        let entries = written(entries, taken, retired);
        entries.iter().map(|entry| entry.end).collect()
    }

    fn allocated(entries: &mut Entries, end: u64, address: u64) {
        let (context, bytes) = (0, 512);
        entries.note(end, 0, true, record(&MemAlloc { context, bytes }, 3, end));
        let answer = Answer {
            slots: vec![address],
            data: Vec::new(),
        };
        entries.answered(end, Some(answer));
    }

    #[test]
    fn what_lived_where_the_ring_begins_is_written_down() {
        let mut entries = Entries::default();
        let context = ContextCreate::default();
        entries.note(10, 0, false, record(&context, 0, 0));
        allocated(&mut entries, 20, 0x1000);
        allocated(&mut entries, 30, 0x2000);
        let free = MemFree { address: 0x1000 };
        entries.note(40, 0, false, record(&free, 0, 0));
        assert_eq!(ends(&entries, 40, 35), [10, 20, 30], "freed behind that");
        assert_eq!(ends(&entries, 40, 40), [10, 30]);
        assert_eq!(ends(&entries, 25, 5), [10, 20], "the rest was not taken");
        let all = written(&entries, 40, 40);
        assert_eq!(all[0].outcome, Outcome::Posted);
        assert_eq!(all[0].record.data(), [1, 2, 3]);
        let Outcome::Answered(answer) = &all[1].outcome else {
            panic!("{:?}", all[1]);
        };
        assert_eq!(answer.slots, [0x2000]);
        let destroy = ContextDestroy { context: 0 };
        entries.note(50, 45, false, record(&destroy, 0, 0));
        assert_eq!(ends(&entries, 50, 50), []);
    }

    #[test]
    fn bytes_of_images_are_copied_out_where_they_go() {
        let mut entries = Entries::default();
        let images = [vec![7; 3], (0..=255).cycle().take(LONG + 5).collect()];
        for (end, bytes) in (1..).zip(&images) {
            let put = ImagePut {
                image: end,
                bytes: bytes.len() as u64,
                ..ImagePut::default()
            };
            let record = record(&put, 0, 0);
            let record = Record::new(record.header, record.slots().to_vec(), bytes.clone());
            entries.note(10 * end, 0, false, record);
        }
        let all = written(&entries, 20, 0);
        for (entry, bytes) in all.iter().zip(&images) {
            assert!(entry.record.data().is_empty());
            assert_eq!(entry.staged_bytes(), bytes.len() as u64);
            let mut copied = vec![0; bytes.len()];
            entry.copy_staged(&mut copied);
            assert_eq!(copied, *bytes);
        }
        assert_eq!(all.len(), images.len());
    }

    #[test]
    fn what_was_answered_at_length_is_kept_with_the_object_that_lives() {
        let mut entries = Entries::default();
        for (end, module) in [(10, 1), (20, 2), (30, 1)] {
            let load = ModuleLoad {
                module,
                ..ModuleLoad::default()
            };
            entries.note(end, 0, true, record(&load, 3, end));
            entries.answered(end, Some(Answer::default()));
            if end == 20 {
                let unload = ModuleUnload { module: 1 };
                entries.note(25, 0, false, record(&unload, 0, 0));
            }
        }
        entries.answered_at_length(Object::Module(1), &[1, 2, 3]);
        entries.answered_at_length(Object::Module(7), &[4]);
        let data: Vec<_> = written(&entries, 30, 0)
            .into_iter()
            .map(|entry| match entry.outcome {
                Outcome::Answered(answer) => answer.data,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(data, [vec![], vec![], vec![1, 2, 3]]);
    }

    #[test]
    fn blocks_and_settings_go_with_their_context_and_an_address_can_be_had_again() {
        let mut entries = Entries::default();
        entries.note(10, 0, false, record(&ContextCreate::default(), 0, 0));
        allocated(&mut entries, 20, 0x1000);
        let free = MemFree { address: 0x1000 };
        entries.note(30, 0, false, record(&free, 0, 0));
        allocated(&mut entries, 40, 0x1000);
        assert_eq!(ends(&entries, 40, 25), [10, 20, 40]);
        assert_eq!(ends(&entries, 40, 30), [10, 40]);
        // One that nobody has answered goes too, and an answer that comes after that is of nothing.
        entries.note(50, 30, true, record(&MemAlloc::default(), 3, 50));
        let destroy = ContextDestroy { context: 0 };
        entries.note(60, 30, false, record(&destroy, 0, 0));
        assert_eq!(ends(&entries, 60, 55), [10, 40, 50]);
        entries.note(70, 60, false, record(&free, 0, 0));
        assert_eq!(entries.unanswered(), []);
        entries.answered(50, Some(Answer::default()));
        assert_eq!(ends(&entries, 70, 0), []);
        let room = [
            entries.kept.len(),
            entries.single.len(),
            entries.ended.len(),
        ];
        assert_eq!(room, [0, 0, 0], "nothing is left of what nobody has");
    }

    #[test]
    fn a_call_without_an_answer_is_told_from_one_that_made_nothing() {
        let mut entries = Entries::default();
        let alloc = MemAlloc::default();
        entries.note(10, 0, true, record(&alloc, 3, 7));
        assert_eq!(entries.unanswered(), [(3, 7)]);
        assert_eq!(written(&entries, 10, 10)[0].outcome, Outcome::Unanswered);
        entries.answered(7, None);
        assert_eq!(ends(&entries, 10, 0), []);
    }

    #[test]
    fn settings_take_the_place_of_those_before_and_go_with_what_they_are_of() {
        let mut entries = Entries::default();
        for (end, value) in [(10, 1), (20, 2)] {
            let set = FunctionSet {
                module: 7,
                value,
                ..FunctionSet::default()
            };
            entries.note(end, 0, false, record(&set, 0, 0));
        }
        assert_eq!(ends(&entries, 20, 20), [20]);
        let stream = StreamCreate {
            stream: 40,
            ..StreamCreate::default()
        };
        entries.note(30, 0, false, record(&stream, 0, 0));
        let destroy = StreamDestroy::default();
        entries.note(40, 0, false, record(&destroy, 40, 5));
        assert_eq!(ends(&entries, 40, 40), [20]);
    }

    #[test]
    fn what_no_journal_is_makes_no_sense() {
        for words in [&[1u64, 2, 3][..], &[9, 0], &[1, 5, 0xff << 56, 0, 0], &[1]] {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let sealed = Sealed::create("test", bytes.len() as u64).unwrap();
            Mapping::map(&sealed).unwrap().copy_in(0, &bytes);
            let length = sealed.bytes();
            assert!(read(sealed.into(), length).unwrap().is_none(), "{words:?}");
        }
    }
}
