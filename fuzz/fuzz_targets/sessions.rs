//! Any whole session with a live server and its software GPU: handshake, ring, staging, packets,
//! descriptors and the end. No panic, the session ends, and a bystander's results are right.
//!
//! The input is a list of steps, see [`Attacker::step`]. The server runs in this process, so that libFuzzer
//! sees which of its code a session reaches.
#![no_main]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use libfuzzer_sys::fuzz_target;
use openmps_fuzz::live_server::{ADD, Bytes, Client, PATIENCE, WILD, server};
use protocol::operations::{
    ContextCreate, HostAlloc, MemAlloc, OPERATIONS, OperationClass, Request,
};
use protocol::wire::{Fields, MAX_FIELD_SLOTS};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use transport::memory::Mapping;
use transport::session::{Closed, RING_BYTES, STAGING_BYTES};
use transport::socket::Connection;

/// Steps of one session.
const STEPS: usize = 64;

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
