//! A server in this process with an engine that does nothing, and clients that speak to it as real
//! ones do, over their four memfds.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses a part of it, and fails by panicking"
)]

pub mod engine;

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::engine::arena::HOST_BYTES;
use cuda_abi::CUresult;
use protocol::control_messages::{
    Admit, ClientFields, Ending, Membership, Packet, VERSION, Welcome, fingerprint,
};
use protocol::device_facts::DeviceFacts;
use protocol::operations::{ContextCreate, Launch, StreamCreate};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use transport::session::{ClientEnd, SessionMemory};
use transport::socket::{Connection, SocketError, poll};

use engine::FakeEngine;

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Debug, Default)]
pub struct Lines(pub Mutex<Vec<String>>);

impl server::Log for Lines {
    fn line(&self, _: bool, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }

    fn line_about(&self, _: u32, _: Option<&str>, text: &str) {
        self.line(false, text);
    }
}

impl Lines {
    pub fn contain(&self, part: &str) -> bool {
        self.0
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(part))
    }

    /// Lines that contain something.
    pub fn count(&self, part: &str) -> usize {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(part)).count()
    }
}

pub struct Rig {
    pub engine: Arc<FakeEngine>,
    pub log: Arc<Lines>,
    pub daemon: Option<Connection>,
    pub server: Option<JoinHandle<()>>,
    sessions: AtomicU64,
    pids: AtomicI32,
    /// What the next clients belong to.
    pub member: Mutex<Membership>,
}

impl Rig {
    pub fn new(engine: FakeEngine) -> Self {
        Self::holding(engine, None)
    }

    /// A server that holds so many bytes of its own memory for clients.
    pub fn holding(engine: FakeEngine, held: Option<u64>) -> Self {
        let settings = server::Settings {
            held,
            ..server::Settings::default()
        };
        Self::with_settings(engine, settings)
    }

    /// A server whose user has others.
    pub fn beside_others(engine: FakeEngine) -> Self {
        let settings = server::Settings {
            has_others: true,
            ..server::Settings::default()
        };
        Self::with_settings(engine, settings)
    }

    fn with_settings(engine: FakeEngine, settings: server::Settings) -> Self {
        let engine = Arc::new(engine);
        let log = Arc::new(Lines::default());
        let (daemon, connection) = Connection::pair().unwrap();
        let server = {
            let (engine, log) = (engine.clone(), log.clone());
            std::thread::spawn(move || {
                server::run_with(connection, engine, log, settings).unwrap();
            })
        };
        let rig = Self {
            engine,
            log,
            daemon: Some(daemon),
            server: Some(server),
            sessions: AtomicU64::new(0),
            pids: AtomicI32::new(1_000_000),
            member: Mutex::default(),
        };
        assert!(matches!(rig.hear(), Packet::Ready { .. }));
        rig
    }

    pub fn daemon(&self) -> &Connection {
        self.daemon.as_ref().unwrap()
    }

    /// The next packet for the daemon.
    pub fn hear(&self) -> Packet {
        self.hear_with().0
    }

    /// As [`Rig::hear`], with the descriptors that come with it.
    pub fn hear_with(&self) -> (Packet, Vec<OwnedFd>) {
        let ready = poll(&[self.daemon().as_fd()], Some(Duration::from_secs(20))).unwrap();
        assert!(ready[0], "the server says nothing");
        let (bytes, descriptors) = self.daemon().receive().unwrap();
        (Packet::decode(&bytes).unwrap(), descriptors)
    }

    /// Waits for the end of a session.
    pub fn ending_of(&self, session: u64) -> Ending {
        loop {
            if let Packet::Gone {
                session: gone, how, ..
            } = self.hear()
                && gone == session
            {
                return how;
            }
        }
    }

    /// Hands a client of a process to the server.
    pub fn hand_over(&self, fields: ClientFields, pid: i32, process: Pid) -> (u64, Connection) {
        let handed = self.hand_over_with(fields, pid, process, || ());
        (handed.session, handed.connection)
    }

    /// As [`Rig::hand_over`], right after something else.
    pub fn hand_over_with<T>(
        &self,
        fields: ClientFields,
        pid: i32,
        process: Pid,
        before: impl FnOnce() -> T,
    ) -> HandedOver<T> {
        let memory = SessionMemory::create(HOST_BYTES).unwrap();
        let (client, theirs) = Connection::pair().unwrap();
        let pidfd = pidfd_open(process, PidfdFlags::empty()).unwrap();
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let admit = Packet::Admit(Admit {
            session,
            pid,
            uid: 0,
            gid: 0,
            namespace: 0,
            version: VERSION,
            fingerprint: fingerprint(),
            features: 0,
            client: fields,
            member: *self.member.lock().unwrap(),
            time_line: None,
            files: 0,
            bases: Vec::new(),
            takeover: 0,
            former: None,
        });
        let [ring, status, staging, host] = memory.fds();
        let fds = [theirs.as_fd(), pidfd.as_fd(), ring, status, staging, host];
        let kept = before();
        self.daemon().send(&admit.encode(), &fds).unwrap();
        HandedOver {
            session,
            connection: client,
            kept,
            _sent: (theirs, pidfd, memory),
        }
    }

    pub fn try_attach(
        &self,
        fields: ClientFields,
        pid: i32,
        process: Pid,
    ) -> Result<TestClient, (u32, String)> {
        let (session, connection) = self.hand_over(fields, pid, process);
        connection
            .set_receive_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let (bytes, fds) = connection.receive().map_err(|error| match error {
            SocketError::Closed => (0, String::from("closed")),
            other => panic!("{other}"),
        })?;
        match Packet::decode(&bytes).unwrap() {
            Packet::Welcome(welcome) => {
                assert_eq!(welcome.session, session);
                let memory = SessionMemory::from_fds(fds, HOST_BYTES).unwrap();
                Ok(TestClient {
                    session,
                    facts: welcome.facts.clone(),
                    welcome,
                    end: ClientEnd::new(&memory, connection).unwrap(),
                    memory,
                    sequences: Mutex::default(),
                })
            }
            Packet::Refused { code, text } => Err((code, text)),
            other => panic!("{other:?}"),
        }
    }

    /// A client that looks like a process of its own.
    pub fn attach(&self) -> TestClient {
        let pid = self.pids.fetch_add(1, Ordering::Relaxed);
        self.try_attach(ClientFields::default(), pid, getpid())
            .unwrap()
    }

    /// As [`Rig::attach`], with context 0 on device 0.
    pub fn attach_with_context(&self) -> TestClient {
        let client = self.attach();
        client.context(0);
        client
    }

    /// A client whose process can be killed.
    pub fn attach_process(&self) -> (TestClient, Child) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let client = self
            .try_attach(
                ClientFields {
                    program: "sleeper".into(),
                    ..ClientFields::default()
                },
                pid,
                Pid::from_raw(pid).unwrap(),
            )
            .unwrap();
        client.context(0);
        (client, child)
    }
}

/// A client on its way.
pub struct HandedOver<T> {
    pub session: u64,
    pub connection: Connection,
    pub kept: T,
    /// What the daemon itself has of it.
    _sent: (Connection, OwnedFd, SessionMemory),
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let (Some(daemon), Some(server)) = (self.daemon.take(), self.server.take()) {
            let end = Packet::Shutdown {
                force: true,
                grace: 0,
            };
            let _ = daemon.send(&end.encode(), &[]);
            let ended = server.join();
            if !std::thread::panicking() {
                ended.unwrap();
                assert_eq!(self.engine.clients(), 0, "every client was dropped");
                assert_eq!(self.engine.committed(), 0, "and all its memory is free");
            }
        }
    }
}

pub struct TestClient {
    pub session: u64,
    pub facts: Vec<DeviceFacts>,
    pub welcome: Welcome,
    pub end: ClientEnd,
    pub memory: SessionMemory,
    sequences: Mutex<std::collections::HashMap<u32, u64>>,
}

impl TestClient {
    pub fn context(&self, context: u32) {
        let create = ContextCreate {
            context,
            device: 0,
            flags: 0,
            share: 0,
        };
        self.end.post(0, 0, &create, &[]).unwrap();
    }

    pub fn stream(&self, stream: u32, flags: u32) {
        let create = StreamCreate {
            stream,
            context: 0,
            flags,
            priority: 0,
        };
        self.end.post(0, 0, &create, &[]).unwrap();
    }

    /// Posts a stream's operation, and says its place.
    pub fn enqueue<R: protocol::operations::Request>(&self, stream: u32, request: &R) -> u64 {
        let mut sequences = self.sequences.lock().unwrap();
        let sequence = sequences.entry(stream).or_default();
        *sequence += 1;
        self.end.wait_for_depth(stream, *sequence).unwrap();
        self.end.post(stream, *sequence, request, &[]).unwrap();
        *sequence
    }

    /// A kernel that ends when the test says so.
    pub fn launch_gated(&self, stream: u32, gate: u32) -> u64 {
        self.launch(stream, engine::GATED, gate)
    }

    pub fn launch(&self, stream: u32, kernel: u32, gate: u32) -> u64 {
        let launch = Launch {
            kernel,
            grid: [gate, 1, 1],
            block: [1, 1, 1],
            ..Launch::default()
        };
        self.enqueue(stream, &launch)
    }

    /// A round trip: everything posted before has been taken.
    pub fn round_trip(&self) {
        let info = protocol::operations::MemInfo { device: 0 };
        assert_eq!(self.end.call(&info, &[]).unwrap().status, CUresult::SUCCESS);
    }

    pub fn free_memory(&self) -> u64 {
        let info = protocol::operations::MemInfo { device: 0 };
        self.end.call(&info, &[]).unwrap().fields.free
    }

    pub fn alloc(&self, bytes: u64) -> Result<u64, CUresult> {
        let alloc = protocol::operations::MemAlloc { context: 0, bytes };
        let reply = self.end.call(&alloc, &[]).unwrap();
        if reply.status == CUresult::SUCCESS {
            Ok(reply.fields.address)
        } else {
            Err(reply.status)
        }
    }
}

/// Bytes of this process's own memory.
pub fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.unwrap().parse::<u64>().unwrap() << 10
}
