//! A server in this process with its software GPU, and a bystander whose results must stay right, for targets that
//! have whole sessions. libFuzzer sees which of the server's code a session reaches.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use engine::arena::{EXTENT, HOST_BYTES};
use engine_soft::{Config, SoftEngine};
use protocol::control_messages::{
    Admit, ClientFields, Membership, Packet, VERSION, Welcome, fingerprint,
};
use protocol::operations::{
    ContextCreate, Copy, Fill, HostAlloc, ImageLoad, ImagePut, Launch, MemAlloc, ModuleLoad,
    Request, Space,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use transport::memory::Sealed;
use transport::session::{ClientEnd, Closed, SessionMemory};
use transport::socket::{Connection, poll};

/// What an attacker may take before its socket is closed: some of what it does waits for what never comes. A session
/// that is let do all it wants takes 3 ms.
pub const PATIENCE: Duration = Duration::from_millis(25);

/// Bytes of device memory, of which the bystander has little.
const MEMORY: u64 = 256 << 20;

/// What the server may take to end a session.
const END: Duration = Duration::from_secs(20);

/// Adds `b` to each of the `n` words at `a`.
pub const ADD: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n\
.visible .entry add(.param .u64 a, .param .u32 n, .param .u32 b) {\n\
.reg .b64 %rd<4>;\n.reg .b32 %r<8>;\n.reg .pred %p;\n\
ld.param.u64 %rd1, [a];\nld.param.u32 %r1, [n];\nld.param.u32 %r2, [b];\n\
mov.u32 %r3, %ctaid.x;\nmov.u32 %r4, %ntid.x;\nmov.u32 %r5, %tid.x;\n\
mad.lo.u32 %r3, %r3, %r4, %r5;\nsetp.ge.u32 %p, %r3, %r1;\n@%p ret;\n\
mul.wide.u32 %rd2, %r3, 4;\nadd.u64 %rd1, %rd1, %rd2;\n\
ld.global.u32 %r6, [%rd1];\nadd.u32 %r6, %r6, %r2;\nst.global.u32 [%rd1], %r6;\nret;\n}\n";

/// Writes to an address that it is given, prints nothing, and may never end.
pub const WILD: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n.global .u32 counter;\n\
.visible .entry wild(.param .u64 a, .param .u64 loops) {\n\
.reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.reg .pred %p;\n\
ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [loops];\n\
again:\natom.global.add.u32 %r1, [counter], 1;\nst.global.u32 [%rd1], %r1;\n\
sub.u64 %rd2, %rd2, 1;\nsetp.ne.u64 %p, %rd2, 0;\n@%p bra again;\nret;\n}\n";

/// Words of the bystander's memory.
const WORDS: u64 = 1024;

/// A server in this process, and the daemon's end of its connection.
#[derive(Debug)]
pub struct Server {
    daemon: Connection,
    last: u64,
    /// Who wants nothing but to work.
    pub bystander: Bystander,
}

/// A client that obeys the rules.
#[derive(Debug)]
pub struct Client {
    /// The number of its session.
    pub session: u64,
    /// Its side of the session.
    pub end: ClientEnd,
    /// What it shares with the server.
    pub memory: SessionMemory,
    /// What the server said.
    pub welcome: Welcome,
    /// Places in streams, by their slot.
    places: HashMap<u32, u64>,
}

/// The client whose results must stay right.
#[derive(Debug)]
pub struct Bystander {
    client: Client,
    device: u64,
    host: u64,
    round: u32,
}

/// The server of this process, which the first call starts.
pub fn server() -> MutexGuard<'static, Server> {
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
        let (daemon, connection) = Connection::pair().expect("a pair of sockets");
        std::thread::spawn(move || {
            server::run(connection, engine, Arc::new(Quiet)).expect("the server serves");
        });
        let first = hear(&daemon);
        assert!(matches!(first, Packet::Ready { .. }), "{first:?}");
        let client = attach(&daemon, 1).expect("the bystander is let in");
        Self {
            daemon,
            last: 1,
            bystander: Bystander::new(client),
        }
    }

    /// Lets a client in. `None` if the server refuses it.
    pub fn attach(&mut self) -> Option<Client> {
        self.last += 1;
        attach(&self.daemon, self.last)
    }

    /// Hands over a session whose server has ended. Gives its number, the client's end of its connection and what the
    /// server welcomes the client with, if it does.
    pub fn take_over(
        &mut self,
        handed: Handed<'_>,
    ) -> (u64, Connection, Option<(Welcome, SessionMemory)>) {
        self.last += 1;
        let connection = hand(&self.daemon, self.last, handed);
        let welcome = welcomed(&connection);
        (self.last, connection, welcome)
    }

    /// Where the windows of a session lie that another server can take over: there they may lie again.
    pub fn free_windows(&mut self) -> Vec<u64> {
        let memory = SessionMemory::create(HOST_BYTES).expect("memory");
        let files = [Sealed::create("fuzz-device", EXTENT).expect("memory")];
        let handed = Handed {
            memory: &memory,
            files: &files,
            former: None,
        };
        let (session, connection, welcome) = self.take_over(handed);
        assert!(
            welcome.is_some(),
            "a session that can be taken over is let in"
        );
        let bases = loop {
            match hear(&self.daemon) {
                Packet::Attached { session: of, bases } if of == session => break bases,
                _ => {}
            }
        };
        drop(connection);
        self.wait_for_end(session);
        bases
    }

    /// Waits until the server has said that a session is over.
    pub fn wait_for_end(&self, session: u64) {
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

/// A session's memory, and what comes with it if another server may take the session over.
#[derive(Debug)]
pub struct Handed<'a> {
    /// What the client shares with its server.
    pub memory: &'a SessionMemory,
    /// What its device windows lie in.
    pub files: &'a [Sealed],
    /// Where its windows lay in its former server, and what that one left.
    pub former: Option<(Vec<u64>, &'a Sealed)>,
}

/// Hands a client to the server, as the daemon does, and gives the client's end of the connection.
fn hand(daemon: &Connection, session: u64, handed: Handed<'_>) -> Connection {
    let (connection, theirs) = Connection::pair().expect("a pair of sockets");
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    let (bases, status) = handed.former.unzip();
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
        files: u32::try_from(handed.files.len()).expect("they are few"),
        takeover: u64::from(status.is_some()),
        bases: bases.unwrap_or_default(),
        former: None,
    });
    let mut fds = vec![theirs.as_fd(), pidfd.as_fd()];
    fds.extend(handed.memory.fds());
    fds.extend(handed.files.iter().map(Sealed::as_fd));
    fds.extend(status.map(Sealed::as_fd));
    daemon
        .send(&admit.encode(), &fds)
        .expect("the server is there");
    connection.set_receive_timeout(Some(END)).expect("a limit");
    connection
}

/// The server's welcome, and the memory that came with it. `None` if it refuses the client.
fn welcomed(connection: &Connection) -> Option<(Welcome, SessionMemory)> {
    let (bytes, fds) = connection.receive().ok()?;
    let Ok(Packet::Welcome(welcome)) = Packet::decode(&bytes) else {
        return None;
    };
    let memory = SessionMemory::from_fds(fds, welcome.host_bytes).expect("a session's memory");
    Some((welcome, memory))
}

/// Lets a client in. `None` if the server refuses it.
fn attach(daemon: &Connection, session: u64) -> Option<Client> {
    let memory = SessionMemory::create(HOST_BYTES).expect("memory");
    let handed = Handed {
        memory: &memory,
        files: &[],
        former: None,
    };
    let connection = hand(daemon, session, handed);
    let (welcome, memory) = welcomed(&connection)?;
    Some(Client {
        session,
        end: ClientEnd::new(&memory, connection).expect("a client's end"),
        memory,
        welcome,
        places: HashMap::new(),
    })
}

impl Client {
    /// Posts the next work of a stream, and says which place it has there.
    ///
    /// # Errors
    /// When the session is over.
    pub fn enqueue<R: Request>(
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
    ///
    /// # Errors
    /// When the session is over.
    pub fn load(&mut self, image: u64, module: u64, text: &[u8]) -> Result<(), Closed> {
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
    pub fn check(&mut self) {
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
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// One byte, or 0.
    pub fn byte(&mut self) -> u8 {
        self.part(1).first().copied().unwrap_or(0)
    }

    /// A word, of fewer bytes if there are no more.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let part = self.part(8);
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    }

    /// So many bytes, or all that there are.
    pub fn part(&mut self, most: usize) -> &'a [u8] {
        let (part, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        part
    }
}
