//! Any session that a live server takes over from one that ended: what the client says of its objects, a ring that it
//! may have changed in between, and what the former server had done of it. No panic, the session ends, and a
//! bystander's results are right.
//!
//! The input has four parts, one after the other: what the client posts, how far the former server came, the journal,
//! and what becomes of ring and journal before the next server looks. The former server is this target: its status
//! memory nobody else can write, and so it says what a server can have done.
#![no_main]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::arena::{EXTENT, HOST_BYTES};
use libfuzzer_sys::fuzz_target;
use openmps_fuzz::live_server::{ADD, Bytes, Handed, PATIENCE, WILD, server};
use protocol::operations::{
    CONTEXT_SLOTS, ContextCreate, HostAlloc, ImageLoad, ImagePut, JOURNAL_PACKET, MemAlloc,
    MemInfo, ModuleLoad, OPERATIONS, Opcode, OperationClass, Request, StreamCreate,
};
use protocol::wire::{Fields, Header, MAX_FIELD_SLOTS};
use transport::memory::{Mapping, Sealed};
use transport::ring::Record;
use transport::session::journal::{self, Entry, Outcome};
use transport::session::{Answer, ClientEnd, REPLY_SLOTS, RING_BYTES, ServerEnd, SessionMemory};
use transport::socket::{Connection, poll};

/// Records that a client has posted at most.
const POSTED: u8 = 24;

/// The slot of the first stream that is none of a context's own.
const STREAMS: u32 = CONTEXT_SLOTS;

/// Words of the ring that are done before them.
const BEFORE: usize = 128;

/// Entries of a journal at most.
const ENTRIES: u8 = 24;

/// Where the windows of all sessions of this target lie, one after the other.
fn bases() -> &'static [u64] {
    static BASES: OnceLock<Vec<u64>> = OnceLock::new();
    BASES.get_or_init(|| server().free_windows())
}

fn answered(slots: &[u64], data: &[u8]) -> Outcome {
    Outcome::Answered(Answer {
        slots: slots.to_vec(),
        data: data.to_vec(),
    })
}

/// A slot: of the first context's own stream, or of one of some others; for a call, some other.
fn channel(which: u8) -> u32 {
    match u32::from(which & 3) {
        0 => 0,
        other => STREAMS - 1 + other,
    }
}

/// A value for a field: one that fits somewhere, or any.
fn value(bytes: &mut Bytes<'_>, ends: &[u64]) -> u64 {
    let kind = bytes.byte();
    let number = u64::from(bytes.byte());
    match kind % 8 {
        0 | 1 => number,
        2 => bases()[0].wrapping_add(number << 9),
        3 => bases()[usize::from(kind >> 3) % bases().len()].wrapping_add(number << 12),
        4 => 1_u64.wrapping_shl(number as u32),
        5 => u64::MAX - number,
        6 => ends
            .get(number as usize % ends.len().max(1))
            .copied()
            .unwrap_or(number),
        _ => bytes.word(),
    }
}

/// Some operation with fields and data.
fn operation<'a>(
    bytes: &mut Bytes<'a>,
    ends: &[u64],
) -> (Opcode, [u64; MAX_FIELD_SLOTS], &'a [u8]) {
    let opcode = OPERATIONS[usize::from(bytes.byte()) % OPERATIONS.len()];
    let mut slots = [0; MAX_FIELD_SLOTS];
    for slot in &mut slots[..opcode.row().slots] {
        *slot = value(bytes, ends);
    }
    let data = usize::from(bytes.byte());
    (opcode, slots, bytes.part(data))
}

/// Declares how the operation with a number is posted with any fields.
macro_rules! any_operation {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        fn post(end: &ClientEnd, opcode: Opcode, (channel, sequence): (u32, u64), slots: &[u64], data: &[u8]) {
            match opcode as u16 {
                $($($number => {
                    type Asked = protocol::operations::$request;
                    if let Ok(request) = Asked::read(&slots[..Asked::SLOTS]) {
                        let _ = end.post(channel, sequence, &request, &[data]);
                    }
                })*)*
                _ => {}
            }
        }
    };
}

protocol::for_each_operation!(any_operation);

/// What the client posts: some work of some streams, and calls.
fn post_some(end: &ClientEnd, bytes: &mut Bytes<'_>) {
    // What is done by then, so that there are places in the ring before all that is left.
    let data = [0; BEFORE * 8];
    let _ = end.post(0, 0, &ContextCreate::default(), &[&data]);
    let mut places = [0_u64; 4];
    for _ in 0..bytes.byte() % POSTED {
        let (opcode, slots, data) = operation(bytes, &[]);
        let which = bytes.byte();
        let place = match opcode.row().class {
            OperationClass::Stream | OperationClass::Call => {
                let place = &mut places[usize::from(which & 3)];
                *place += 1;
                (channel(which), *place)
            }
            OperationClass::Post | OperationClass::Create => (0, 0),
        };
        post(end, opcode, place, &slots, data);
    }
}

/// What the former server does with it before it ends. Says where the records end that it took.
fn former_server(end: ServerEnd, bytes: &mut Bytes<'_>) -> Vec<u64> {
    let (mut consumer, publisher) = end.split();
    let mut taken = Vec::new();
    let mut record = Record::default();
    let first = consumer.next_record(&mut record).ok().flatten();
    consumer.retire(first.expect("it was posted"));
    for _ in 0..bytes.byte() % POSTED {
        let Ok(Some(position)) = consumer.next_record(&mut record) else {
            break;
        };
        taken.push(position);
        let (channel, sequence) = (record.header.channel, record.header.sequence);
        let does = bytes.byte();
        match Opcode::from_number(record.header.opcode).map(|opcode| opcode.row().class) {
            Some(OperationClass::Stream) if does & 1 == 0 => publisher.complete(channel, sequence),
            Some(OperationClass::Call) if does & 1 == 0 => {
                let address = value(bytes, &[]);
                let _ = publisher.reply(channel, sequence, CUresult::SUCCESS, &[address], &[]);
            }
            _ => {}
        }
        if does & 2 != 0 {
            consumer.retire(position);
        }
    }
    let more = bytes.byte();
    if more & 7 == 7 {
        publisher.set_fault(u32::from(more >> 6), CUresult::ERROR_ILLEGAL_ADDRESS);
    }
    if more & 0x38 == 0x38 {
        publisher.set_spilled(true);
    }
    taken
        .into_iter()
        .map(transport::ring::Position::end)
        .collect()
}

/// A journal as it is being written.
#[derive(Default)]
struct Written {
    words: Vec<u64>,
    end: u64,
}

impl Written {
    /// An entry behind the one before.
    fn entry(&mut self, record: Record, outcome: Outcome) {
        let end = self.end;
        let entry = Entry::new(end, record, outcome);
        let mut bytes = Vec::new();
        entry.write(&mut |piece| bytes.extend_from_slice(piece));
        let words = bytes.as_chunks().0.iter();
        self.words
            .extend(words.map(|word| u64::from_le_bytes(*word)));
        self.end = end.wrapping_add(1);
    }

    fn made<R: Request>(&mut self, request: &R, data: &[u8], outcome: Outcome) {
        let mut slots = [0; MAX_FIELD_SLOTS];
        request.write(&mut slots[..R::SLOTS]);
        let header = Header {
            opcode: R::OPCODE as u16,
            version: R::VERSION,
            ..Header::default()
        };
        let record = Record::new(header, slots[..R::SLOTS].to_vec(), data.to_vec());
        self.entry(record, outcome);
    }

    /// What most programs have: a context, memory of both kinds, a stream, a module.
    fn begin(&mut self) {
        self.made(&ContextCreate::default(), &[], Outcome::Posted);
        let stream = StreamCreate {
            stream: STREAMS,
            ..StreamCreate::default()
        };
        self.made(&stream, &[], Outcome::Posted);
        let bytes = 1 << 16;
        let device = bases()[0];
        let memory = MemAlloc { context: 0, bytes };
        self.made(&memory, &[], answered(&[device], &[]));
        let host = HostAlloc {
            bytes,
            ..HostAlloc::default()
        };
        let first = bases()[bases().len() - 1];
        self.made(&host, &[], answered(&[first], &[]));
        for (number, text, variables) in [(1, ADD, &[][..]), (2, WILD, &[device + bytes][..])] {
            let image = ImagePut {
                image: number,
                total: text.len() as u64,
                bytes: text.len() as u64,
                ..ImagePut::default()
            };
            self.made(&image, text, Outcome::Posted);
            let load = ImageLoad {
                image: number,
                ..ImageLoad::default()
            };
            self.made(&load, &[], answered(&[0; 3], &[]));
            let load = ModuleLoad {
                module: number,
                image: number,
                ..ModuleLoad::default()
            };
            let addresses: Vec<u8> = variables
                .iter()
                .flat_map(|address: &u64| address.to_le_bytes())
                .collect();
            let answer = answered(&[variables.len() as u64], &addresses);
            self.made(&load, &[], answer);
        }
    }

    /// Whatever the input says.
    fn more(&mut self, bytes: &mut Bytes<'_>, ends: &[u64]) {
        for _ in 0..bytes.byte() % ENTRIES {
            self.end = match bytes.byte() {
                step @ 0..200 => self.end.wrapping_add(u64::from(step % 4)),
                _ => value(bytes, ends),
            };
            let (opcode, slots, data) = operation(bytes, ends);
            let row = opcode.row();
            let form = bytes.byte();
            let header = Header {
                opcode: row.number,
                version: row.version,
                channel: channel(form >> 6),
                sequence: u64::from(form >> 4 & 3),
                ..Header::default()
            };
            let mut answer = [0; MAX_FIELD_SLOTS];
            let count = usize::from(form & 3);
            for slot in &mut answer[..count] {
                *slot = value(bytes, ends);
            }
            let length = match form & 4 {
                0 => 0,
                _ => usize::from(bytes.byte()),
            };
            let outcome = match bytes.byte() % 3 {
                0 => Outcome::Posted,
                1 => Outcome::Unanswered,
                _ => answered(&answer[..count], bytes.part(length)),
            };
            let record = Record::new(header, slots[..row.slots].to_vec(), data.to_vec());
            self.entry(record, outcome);
        }
    }

    /// Words that no honest client has written.
    fn spoil(&mut self, bytes: &mut Bytes<'_>) {
        for _ in 0..bytes.byte() % 4 {
            let at = bytes.byte() as usize % self.words.len().max(1);
            if let Some(word) = self.words.get_mut(at) {
                *word = bytes.word();
            }
        }
    }
}

/// The memory of a journal.
fn memory(words: &[u64]) -> Sealed {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let sealed = Sealed::create("fuzz-journal", bytes.len() as u64 + 8).expect("memory");
    Mapping::map(&sealed).expect("memory").copy_in(0, &bytes);
    sealed
}

/// What is sent in the place of a journal, if anything.
fn descriptor(kind: u8, words: &[u64]) -> Option<OwnedFd> {
    match kind {
        0..240 => Some(memory(words).into()),
        240..243 => None,
        243..246 => File::open("/dev/null").ok().map(OwnedFd::from),
        // Memory that can be cut off while it is read, and so much that nobody reads it.
        246..249 => rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).ok(),
        249..252 => Some(Sealed::create("fuzz", 1 << 40).expect("memory").into()),
        _ => rustix::pipe::pipe().ok().map(|(read, _)| read),
    }
}

/// Waits until the server has taken all that the ring has, or has ended the session. No longer than is good.
fn wait_for_server(connection: &Connection, status: &Mapping, ring: &Mapping) {
    let until = Instant::now() + PATIENCE;
    // Where the server takes and the client posts is the first word of each.
    let is_done = || status.word(0).load(Ordering::Acquire) == ring.word(0).load(Ordering::Acquire);
    while Instant::now() < until && !is_done() {
        let slice = Some(Duration::from_millis(1));
        if poll(&[connection.as_fd()], slice).is_ok_and(|ready| ready[0]) {
            return;
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let bases = bases();
    let mut bytes = Bytes(bytes);
    let first = bytes.byte();
    if first & 3 == 3 {
        // A journal and nothing else, which is soon read.
        let sealed = Sealed::create("fuzz-journal", bytes.0.len() as u64).ok();
        if let Some(sealed) = sealed.filter(|_| !bytes.0.is_empty()) {
            Mapping::map(&sealed).expect("memory").copy_in(0, bytes.0);
            let entries = journal::read(sealed.into(), bytes.0.len() as u64).expect("memory");
            let entries = entries.unwrap_or_default();
            assert!(entries.is_sorted_by(|one, other| one.end < other.end));
            for entry in &entries {
                // No more than came.
                let mut bytes = vec![0; entry.staged_bytes() as usize];
                entry.copy_staged(&mut bytes);
            }
        }
        return;
    }
    let shared = SessionMemory::create(HOST_BYTES).expect("memory");
    let files = [Sealed::create("fuzz-device", EXTENT).expect("memory")];
    let former = ServerEnd::new(&shared).expect("a server's end");
    let (_nobody, own) = Connection::pair().expect("a pair of sockets");
    let client = ClientEnd::new(&shared, own).expect("a client's end");
    former.set_kept(&shared).expect("a descriptor");
    post_some(&client, &mut bytes);
    let ends = former_server(former, &mut bytes);

    let mut written = Written::default();
    if first & 4 == 0 {
        written.begin();
    }
    written.more(&mut bytes, &ends);
    written.spoil(&mut bytes);
    let ring = Mapping::map(&shared.ring).expect("the ring's memory");
    for _ in 0..bytes.byte() % 4 {
        let offset = (bytes.word() as usize % RING_BYTES) & !7;
        ring.word(offset).store(bytes.word(), Ordering::Release);
    }

    let next = SessionMemory {
        ring: shared.ring,
        status: SessionMemory::create_status().expect("memory"),
        staging: shared.staging,
        host: shared.host,
    };
    let mut server = server();
    let handed = Handed {
        memory: &next,
        files: &files,
        former: Some((bases.to_vec(), &shared.status)),
    };
    let (session, connection, welcome) = server.take_over(handed);
    assert!(welcome.is_some(), "the session was not let in");
    // To the second server that it has.
    let packet = [JOURNAL_PACKET, &2_u64.to_le_bytes()].concat();
    let kind = bytes.byte();
    for _ in 0..kind % 3 {
        let _ = connection.try_send(b"to another", &[]);
    }
    let sent = descriptor(bytes.byte(), &written.words);
    let fds: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
    let _ = connection.try_send(&packet, &fds);
    // Taken when all before it is made again.
    let last = MemInfo { device: 0 };
    let (slot, serial) = (REPLY_SLOTS as u32 - 1, 1);
    let _ = client.post_until(slot, serial, &last, &[], Instant::now() + PATIENCE);
    let status = Mapping::map_read_only(&next.status).expect("the status memory");
    wait_for_server(&connection, &status, &ring);
    server.bystander.check();
    drop(connection);
    server.wait_for_end(session);
    server.bystander.check();
});
