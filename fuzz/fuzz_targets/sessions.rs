//! Any whole session with a live server and its software GPU: handshake, ring, staging, packets,
//! descriptors and the end. No panic, the session ends, and a bystander's results are right.
//!
//! The input is a list of steps, see [`Attacker::step`]. The server runs in this process, so that libFuzzer
//! sees which of its code a session reaches.
#![no_main]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use protocol::operations::{
    ContextCreate, Copy, Fill, HostAlloc, ImageLoad, ImagePut, Launch, MemAlloc, ModuleLoad,
    OPERATIONS, OperationClass, Request, Space,
};
use protocol::wire::{Fields, MAX_FIELD_SLOTS};

use engine::arena::HOST_BYTES;
use engine_soft::{Config, SoftEngine};
use libfuzzer_sys::fuzz_target;
use protocol::control_messages::{
    Admit, ClientFields, Membership, Packet, VERSION, Welcome, fingerprint,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use transport::memory::Mapping;
use transport::session::{ClientEnd, Closed, RING_BYTES, STAGING_BYTES, SessionMemory};
use transport::socket::{Connection, poll};

/// Bytes of device memory, of which the bystander has little.
const MEMORY: u64 = 256 << 20;

/// Steps of one session.
const STEPS: usize = 64;

/// What an attacker may take before its socket is closed: some of what it does waits for what never comes. A session
/// that is let do all it wants takes 3 ms.
const PATIENCE: Duration = Duration::from_millis(25);

/// What the server may take to end a session.
const END: Duration = Duration::from_secs(20);

/// Adds `b` to each of the `n` words at `a`.
const ADD: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n\
.visible .entry add(.param .u64 a, .param .u32 n, .param .u32 b) {\n\
.reg .b64 %rd<4>;\n.reg .b32 %r<8>;\n.reg .pred %p;\n\
ld.param.u64 %rd1, [a];\nld.param.u32 %r1, [n];\nld.param.u32 %r2, [b];\n\
mov.u32 %r3, %ctaid.x;\nmov.u32 %r4, %ntid.x;\nmov.u32 %r5, %tid.x;\n\
mad.lo.u32 %r3, %r3, %r4, %r5;\nsetp.ge.u32 %p, %r3, %r1;\n@%p ret;\n\
mul.wide.u32 %rd2, %r3, 4;\nadd.u64 %rd1, %rd1, %rd2;\n\
ld.global.u32 %r6, [%rd1];\nadd.u32 %r6, %r6, %r2;\nst.global.u32 [%rd1], %r6;\nret;\n}\n";

/// Writes to an address that it is given, prints nothing, and may never end.
const WILD: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n.global .u32 counter;\n\
.visible .entry wild(.param .u64 a, .param .u64 loops) {\n\
.reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.reg .pred %p;\n\
ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [loops];\n\
again:\natom.global.add.u32 %r1, [counter], 1;\nst.global.u32 [%rd1], %r1;\n\
sub.u64 %rd2, %rd2, 1;\nsetp.ne.u64 %p, %rd2, 0;\n@%p bra again;\nret;\n}\n";

/// Words of the bystander's memory.
const WORDS: u64 = 1024;

/// A server in this process, and the daemon's end of its connection.
struct Server {
    daemon: Connection,
    last: u64,
    bystander: Bystander,
}

/// A client that obeys the rules.
struct Client {
    session: u64,
    end: ClientEnd,
    memory: SessionMemory,
    welcome: Welcome,
    /// Places in streams, by their slot.
    places: HashMap<u32, u64>,
}

/// The client whose results must stay right.
struct Bystander {
    client: Client,
    device: u64,
    host: u64,
    round: u32,
}

fn server() -> MutexGuard<'static, Server> {
    static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(|| Mutex::new(Server::start()));
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Quiet;

impl server::Log for Quiet {
    fn line(&self, _: bool, _: &str) {}

    fn line_about(&self, _: u32, _: Option<&str>, _: &str) {}
}

impl Server {
    fn start() -> Self {
        let engine = SoftEngine::new(&Config {
            memory: MEMORY,
            machine: MEMORY,
            workers: 1,
            ..Config::default()
        });
        let engine = Arc::new(engine.expect("a software GPU"));
        let (mut daemon, connection) = Connection::pair().expect("a pair of sockets");
        std::thread::spawn(move || {
            server::run(connection, engine, Arc::new(Quiet)).expect("the server serves");
        });
        let first = hear(&daemon);
        assert!(matches!(first, Packet::Ready { .. }), "{first:?}");
        let client = attach(&mut daemon, 1).expect("the bystander is let in");
        Self {
            daemon,
            last: 1,
            bystander: Bystander::new(client),
        }
    }

    fn attach(&mut self) -> Option<Client> {
        self.last += 1;
        attach(&mut self.daemon, self.last)
    }

    /// Waits until the server has said that a session is over.
    fn wait_for_end(&self, session: u64) {
        loop {
            let packet = hear(&self.daemon);
            assert!(
                !matches!(packet, Packet::Gone { session: 1, .. }),
                "the bystander was disconnected"
            );
            if matches!(packet, Packet::Gone { session: gone, .. } if gone == session) {
                return;
            }
        }
    }
}

/// The next packet for the daemon.
fn hear(daemon: &Connection) -> Packet {
    let ready = poll(&[daemon.as_fd()], Some(END)).expect("to wait");
    assert!(ready[0], "the server says nothing any more");
    let (bytes, _) = daemon.receive().expect("the server is there");
    Packet::decode(&bytes).expect("the server's packets can be read")
}

/// Hands a client to the server, as the daemon does. `None` if the server refuses it.
fn attach(daemon: &mut Connection, session: u64) -> Option<Client> {
    let memory = SessionMemory::create(HOST_BYTES).expect("memory");
    let (connection, theirs) = Connection::pair().expect("a pair of sockets");
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    let admit = Packet::Admit(Admit {
        session,
        // The server takes those of one process for one client.
        pid: i32::try_from(session % (1 << 30)).expect("it fits") + 1_000_000,
        uid: 0,
        gid: 0,
        namespace: 0,
        version: VERSION,
        fingerprint: fingerprint(),
        features: 0,
        client: ClientFields::default(),
        member: Membership::default(),
        time_line: None,
        files: 0,
        bases: Vec::new(),
    });
    let [ring, status, staging, host] = memory.fds();
    let fds = [theirs.as_fd(), pidfd.as_fd(), ring, status, staging, host];
    daemon
        .send(&admit.encode(), &fds)
        .expect("the server is there");
    drop(theirs);
    connection.set_receive_timeout(Some(END)).expect("a limit");
    let (bytes, fds) = connection.receive().ok()?;
    let Ok(Packet::Welcome(welcome)) = Packet::decode(&bytes) else {
        return None;
    };
    let memory = SessionMemory::from_fds(fds, welcome.host_bytes).expect("a session's memory");
    Some(Client {
        session,
        end: ClientEnd::new(&memory, connection).expect("a client's end"),
        memory,
        welcome,
        places: HashMap::new(),
    })
}

impl Client {
    fn enqueue<R: Request>(
        &mut self,
        stream: u32,
        request: &R,
        data: &[u8],
    ) -> Result<u64, Closed> {
        let place = self.places.entry(stream).or_default();
        *place += 1;
        self.end.wait_for_depth(stream, *place)?;
        self.end.post(stream, *place, request, &[data])?;
        Ok(*place)
    }

    /// Has the server load a text as module `module`, of image `image`.
    fn load(&mut self, image: u64, module: u64, text: &[u8]) -> Result<(), Closed> {
        let total = text.len() as u64;
        let mut offset = 0;
        for piece in text.chunks(4096) {
            let Some(chunk) = self.end.staging().allocate_within(piece.len(), PATIENCE) else {
                return Ok(());
            };
            chunk.copy_in(0, piece);
            let put = ImagePut {
                image,
                total,
                offset,
                staging: chunk.offset(),
                bytes: piece.len() as u64,
            };
            self.end.post(0, 0, &put, &[])?;
            // The piece is taken before the next call is answered, and the chunk can be used again.
            self.end
                .call(&protocol::operations::MemInfo { device: 0 }, &[])?;
            offset += piece.len() as u64;
        }
        let load = ImageLoad {
            image,
            ..ImageLoad::default()
        };
        self.end.call(&load, &[])?;
        let load = ModuleLoad {
            module,
            image,
            ..ModuleLoad::default()
        };
        self.end.call(&load, &[]).map(drop)
    }
}

impl Bystander {
    fn new(mut client: Client) -> Self {
        let context = ContextCreate::default();
        let posted = client.end.post(0, 0, &context, &[]);
        posted.expect("the bystander's context");
        client.load(1, 1, ADD).expect("the bystander's module");
        let bytes = WORDS * 4;
        let device = client.end.call(&MemAlloc { context: 0, bytes }, &[]);
        let host = HostAlloc {
            bytes,
            ..HostAlloc::default()
        };
        let host = client.end.call(&host, &[]);
        Self {
            device: device.expect("device memory").fields.address,
            host: host.expect("page-locked memory").fields.address,
            client,
            round: 0,
        }
    }

    /// Fills its memory, adds to it, and looks at what came of it.
    fn check(&mut self) {
        self.round = self.round.wrapping_add(0x9e37_79b9);
        let fill = Fill {
            to: self.device,
            pitch: WORDS * 4,
            value: self.round,
            element: 4,
            width: WORDS,
            height: 1,
        };
        let added = 7_u32;
        let mut parameters = self.device.to_le_bytes().to_vec();
        parameters.extend((WORDS as u32).to_le_bytes());
        parameters.extend(added.to_le_bytes());
        let launch = Launch {
            module: 1,
            grid: [4, 1, 1],
            block: [256, 1, 1],
            ..Launch::default()
        };
        let bytes = WORDS * 4;
        let copy = Copy {
            to_space: Space::Unified as u32,
            to: self.host,
            to_pitch: bytes,
            to_slice: bytes,
            from_space: Space::Unified as u32,
            from: self.device,
            from_pitch: bytes,
            from_slice: bytes,
            width: bytes,
            height: 1,
            depth: 1,
        };
        let done = self
            .client
            .enqueue(0, &fill, &[])
            .and_then(|_| self.client.enqueue(0, &launch, &parameters))
            .and_then(|_| self.client.enqueue(0, &copy, &[]))
            .and_then(|place| self.client.end.wait(0, place));
        assert_eq!(done, Ok(()), "the bystander was disconnected");
        assert_eq!(self.client.end.fault(0).0, 0, "the bystander has a fault");
        let wanted = self.round.wrapping_add(added);
        // SAFETY: the server has the session's page-locked memory mapped there, in this very process, and
        // the bystander has these bytes of it; the copy is over.
        let words = unsafe {
            let pointer = std::ptr::with_exposed_provenance::<u32>(self.host as usize);
            std::slice::from_raw_parts(pointer, WORDS as usize)
        };
        assert!(words.iter().all(|&word| word == wanted), "wrong results");
    }
}

/// What is left of the input.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> u8 {
        self.part(1).first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let part = self.part(8);
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    }

    fn part(&mut self, most: usize) -> &'a [u8] {
        let (part, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        part
    }
}

/// A client that does what the input says.
struct Attacker {
    client: Client,
    ring: Mapping,
    staging: Mapping,
    /// What calls have answered: addresses above all.
    answers: Vec<u64>,
    /// Dropped with it.
    _there: Sender<()>,
}

/// Declares how the operation with a number is posted or called with any fields.
macro_rules! any_operation {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        impl Attacker {
            fn operation(&mut self, number: u16, channel: u32, sequence: Option<u64>, slots: &[u64], data: &[u8])
                -> Result<(), Closed> {
                match number {
                    $($($number => {
                        type Asked = protocol::operations::$request;
                        let Ok(request) = Asked::read(&slots[..Asked::SLOTS]) else {
                            return Ok(());
                        };
                        self.ask(&request, channel, sequence, data)
                    })*)*
                    _ => Ok(()),
                }
            }
        }
    };
}

protocol::for_each_operation!(any_operation);

impl Attacker {
    fn new(client: Client) -> Self {
        let there = close_later(client.end.connection());
        Self {
            ring: Mapping::map(&client.memory.ring).expect("the ring's memory"),
            staging: Mapping::map(&client.memory.staging).expect("the staging memory"),
            answers: Vec::new(),
            client,
            _there: there,
        }
    }

    fn ask<R: Request>(
        &mut self,
        request: &R,
        channel: u32,
        sequence: Option<u64>,
        data: &[u8],
    ) -> Result<(), Closed> {
        match (R::CLASS, sequence) {
            (OperationClass::Call, None) => {
                let reply = self.client.end.call(request, &[data]);
                let mut slots = [0; MAX_FIELD_SLOTS];
                reply?
                    .fields
                    .write(&mut slots[..<R::Reply as Fields>::SLOTS]);
                self.answers
                    .extend_from_slice(&slots[..<R::Reply as Fields>::SLOTS]);
                Ok(())
            }
            (OperationClass::Stream, None) => self.client.enqueue(channel, request, data).map(drop),
            (_, sequence) => {
                let sequence = sequence.unwrap_or(0);
                self.client.end.post(channel, sequence, request, &[data])
            }
        }
    }

    /// A value for a field: one that fits somewhere, or any.
    fn value(&self, bytes: &mut Bytes<'_>) -> u64 {
        let kind = bytes.byte();
        let number = u64::from(bytes.byte());
        match kind % 8 {
            0 | 1 => number,
            2 | 3 => match self.answers.len() {
                0 => number,
                len => self.answers[number as usize % len].wrapping_add(u64::from(kind >> 3) << 4),
            },
            4 => self.client.welcome.host_base.wrapping_add(number << 12),
            5 => 1_u64.wrapping_shl(number as u32),
            6 => u64::MAX - number,
            _ => bytes.word(),
        }
    }

    /// Does what most programs begin with: a context, memory of both kinds, a module.
    fn begin(&mut self) -> Result<(), Closed> {
        self.ask(&ContextCreate::default(), 0, None, &[])?;
        let bytes = 1 << 20;
        self.ask(&MemAlloc { context: 0, bytes }, 0, None, &[])?;
        let host = HostAlloc {
            bytes,
            ..HostAlloc::default()
        };
        self.ask(&host, 0, None, &[])?;
        self.client.load(1, 1, WILD)
    }

    /// Does the next step. `false` when the session is over.
    fn step(&mut self, bytes: &mut Bytes<'_>) -> Result<bool, Closed> {
        match bytes.byte() % 16 {
            // Any operation, with fields and places as they should be in form, or not.
            0..=8 => {
                let row = OPERATIONS[usize::from(bytes.byte()) % OPERATIONS.len()].row();
                let form = bytes.byte();
                let mut slots = [0; MAX_FIELD_SLOTS];
                for slot in &mut slots[..row.slots] {
                    *slot = self.value(bytes);
                }
                let channel = u32::from(form & 3);
                let sequence = (form >= 0xf0).then(|| self.value(bytes));
                let data = usize::from(bytes.byte());
                let data = bytes.part(data);
                self.operation(row.number, channel, sequence, &slots, data)?;
            }
            // A module, of ours or of the input.
            9 | 10 => {
                let number = u64::from(bytes.byte() % 4);
                let text = match bytes.byte() % 3 {
                    0 => ADD,
                    1 => WILD,
                    _ => {
                        let length = usize::from(bytes.byte()) * 8;
                        bytes.part(length)
                    }
                };
                self.client.load(number, number, text)?;
            }
            // A word of the ring: cursors, alarms, or records that others have posted.
            11 => {
                let offset = (bytes.word() as usize % RING_BYTES) & !7;
                self.ring
                    .word(offset)
                    .store(bytes.word(), Ordering::Release);
            }
            12 => {
                let offset = (bytes.word() as usize % STAGING_BYTES) & !7;
                self.staging
                    .word(offset)
                    .store(bytes.word(), Ordering::Release);
            }
            // Packets, with descriptors.
            13 | 14 => {
                let kind = bytes.byte();
                let length = usize::from(bytes.byte());
                let packet = match kind & 8 {
                    0 => protocol::operations::FILE_PACKET,
                    _ => bytes.part(length),
                };
                let fd = descriptor(kind);
                let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
                let _ = self.client.end.connection().try_send(packet, &fds);
            }
            _ => return Ok(bytes.byte() % 4 != 0),
        }
        Ok(!bytes.0.is_empty())
    }
}

/// Some descriptor to send, or none.
fn descriptor(kind: u8) -> Option<OwnedFd> {
    match kind % 8 {
        0 => None,
        1 => rustix::pipe::pipe().ok().map(|(read, _)| read),
        2 => File::open("/dev/null").ok().map(OwnedFd::from),
        3 => pidfd_open(getpid(), PidfdFlags::empty()).ok(),
        4 => Connection::pair()
            .ok()
            .and_then(|(one, _)| one.as_fd().try_clone_to_owned().ok()),
        kind => {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = rustix::fs::memfd_create("fuzz", flags).ok()?;
            rustix::fs::ftruncate(&file, u64::from(kind) << 16).ok()?;
            Some(file)
        }
    }
}

/// Closes the attacker's socket if it is still there after a while.
fn close_later(connection: &Connection) -> Sender<()> {
    let (there, told) = channel();
    let connection = connection.try_clone().expect("a descriptor");
    std::thread::spawn(move || {
        if told.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let both = rustix::net::Shutdown::Both;
            let _ = rustix::net::shutdown(connection.as_fd(), both);
        }
    });
    there
}

fuzz_target!(|bytes: &[u8]| {
    let mut server = server();
    let Some(client) = server.attach() else {
        panic!("the attacker was not let in");
    };
    let session = client.session;
    let mut attacker = Attacker::new(client);
    let mut bytes = Bytes(bytes);
    let begun = match bytes.byte() & 1 {
        0 => attacker.begin(),
        _ => Ok(()),
    };
    for _ in 0..STEPS {
        if begun.is_err() || !matches!(attacker.step(&mut bytes), Ok(true)) {
            break;
        }
    }
    server.bystander.check();
    drop(attacker);
    server.wait_for_end(session);
    server.bystander.check();
});
