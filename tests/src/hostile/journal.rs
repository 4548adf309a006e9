//! What a client whose server has ended tells the next one of its objects: lies of all kinds.
//!
//! Called by the attacker. Speaks the protocol itself: a library would send what is true.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::device_facts::ARENA;
use protocol::operations::{
    ContextCreate, FunctionSet, JOURNAL_PACKET, Launch, MemAlloc, ModuleLoad, Request,
    StreamDestroy,
};
use protocol::wire::{Header, MAX_FIELD_SLOTS};
use rustix::fs::{MemfdFlags, memfd_create};
use transport::memory::{Mapping, Sealed};
use transport::ring::Record;
use transport::session::Answer;
use transport::session::journal::{Entry, Outcome};

use super::client::BareClient;

/// Where in the ring's memory the next server calls the client: part of the protocol.
const CALLED: usize = 384;

/// How long another server may take to call on a busy machine.
const CALL: Duration = Duration::from_secs(30);

/// A lie for which a server ends the session.
#[derive(Debug)]
pub struct Lie {
    /// By which the attacker is told to tell it.
    pub name: &'static str,
    make: fn(&BareClient) -> Option<OwnedFd>,
}

/// All of them.
pub const LIES: [Lie; 18] = [
    lie("a length beyond the end", |_| {
        journal(|words| {
            let header = Header {
                data: u32::MAX,
                ..header::<MemAlloc>()
            };
            words.extend([1, 1]);
            words.extend(header.encode());
        })
    }),
    lie("more fields than a record can have", |_| {
        journal(|words| {
            let header = Header {
                slots: u8::MAX,
                ..header::<MemAlloc>()
            };
            words.extend([1, 1]);
            words.extend(header.encode());
            words.extend([0; 300]);
        })
    }),
    lie("an answer that does not end", |_| {
        journal(|words| {
            add(words, &entry(1, &MemAlloc::default(), Outcome::Posted));
            if let Some(outcome) = words.first_mut() {
                *outcome = 3;
            }
            words.extend([0, u64::MAX - 7]);
        })
    }),
    lie("an outcome that is none", |_| {
        journal(|words| words.push(4))
    }),
    lie("no end", |_| {
        let sealed = Sealed::create("liar", 4096).ok()?;
        Mapping::map(&sealed).ok()?.copy_in(0, &[1; 4096]);
        Some(sealed.into())
    }),
    lie("an order that is none", |_| {
        journal(|words| {
            for end in [2, 1] {
                add(
                    words,
                    &entry(end, &StreamDestroy::default(), Outcome::Posted),
                );
            }
        })
    }),
    lie("work of a stream", |_| {
        journal(|words| add(words, &entry(1, &Launch::default(), Outcome::Posted)))
    }),
    lie("a module of no image", |_| {
        let module = ModuleLoad {
            module: 7,
            image: 99,
            ..ModuleLoad::default()
        };
        let answer = answered(0);
        journal(|words| add(words, &entry(1, &module, answer)))
    }),
    lie("a setting of no module", |_| {
        let set = FunctionSet {
            module: 99,
            ..FunctionSet::default()
        };
        journal(|words| add(words, &entry(1, &set, Outcome::Posted)))
    }),
    lie("an answer of what makes nothing", |_| {
        journal(|words| add(words, &entry(1, &StreamDestroy::default(), answered(0))))
    }),
    lie("an address below its window", |client| {
        let (window, bytes) = window(client);
        block(window - bytes)
    }),
    lie("an address above its window", |client| {
        let (window, bytes) = window(client);
        block(window + bytes)
    }),
    lie("an address across its window's end", |client| {
        let (window, bytes) = window(client);
        block(window + bytes - 512)
    }),
    lie("an address where others have grown to", |_| {
        block(ARENA.end - (8 << 30))
    }),
    lie("an address at the end of all", |_| block(u64::MAX - 511)),
    lie("a TiB", |_| {
        Some(Sealed::create("liar", 1 << 40).ok()?.into())
    }),
    lie("memory that can be cut off", |_| {
        let file = memfd_create("liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
        rustix::fs::ftruncate(&file, 1 << 20).ok()?;
        Some(file)
    }),
    lie("a device that never ends", |_| {
        Some(File::open("/dev/zero").ok()?.into())
    }),
];

const fn lie(name: &'static str, make: fn(&BareClient) -> Option<OwnedFd>) -> Lie {
    Lie { name, make }
}

fn header<R: Request>() -> Header {
    Header {
        opcode: R::OPCODE as u16,
        version: R::VERSION,
        slots: R::SLOTS as u8,
        ..Header::default()
    }
}

fn entry<R: Request>(end: u64, request: &R, outcome: Outcome) -> Entry {
    let mut slots = [0; MAX_FIELD_SLOTS];
    request.write(&mut slots[..R::SLOTS]);
    let record = Record::new(header::<R>(), slots[..R::SLOTS].to_vec(), Vec::new());
    Entry::new(end, record, outcome)
}

fn add(words: &mut Vec<u64>, entry: &Entry) {
    let mut bytes = Vec::new();
    entry.write(&mut |piece| bytes.extend_from_slice(piece));
    let whole = bytes.as_chunks().0.iter();
    words.extend(whole.map(|word| u64::from_le_bytes(*word)));
}

fn answered(address: u64) -> Outcome {
    Outcome::Answered(Answer {
        slots: vec![address],
        data: Vec::new(),
    })
}

fn journal(write: impl FnOnce(&mut Vec<u64>)) -> Option<OwnedFd> {
    let mut words = Vec::new();
    write(&mut words);
    words.push(0);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let sealed = Sealed::create("liar", bytes.len() as u64).ok()?;
    Mapping::map(&sealed).ok()?.copy_in(0, &bytes);
    Some(sealed.into())
}

/// Where its window begins, and how long that is.
fn window(client: &BareClient) -> (u64, u64) {
    let facts = &client.welcome.facts[0];
    (facts.window, facts.window_bytes)
}

/// A context and a MiB of device memory that it would have at an address.
fn block(address: u64) -> Option<OwnedFd> {
    let bytes = 1 << 20;
    journal(|words| {
        add(words, &entry(1, &ContextCreate::default(), Outcome::Posted));
        let memory = MemAlloc { context: 0, bytes };
        add(words, &entry(2, &memory, answered(address)));
    })
}

/// Waits until another server calls.
fn called(client: &BareClient) -> u64 {
    let word = client.ring.word(CALLED);
    let until = Instant::now() + CALL;
    while Instant::now() < until {
        match word.load(Ordering::Acquire) {
            0 => std::thread::sleep(Duration::from_millis(1)),
            number => return number,
        }
    }
    panic!("no server calls");
}

/// Waits until the server has ended and the next one calls, and tells that one a lie, or is silent in some way.
///
/// # Panics
/// If it is none of the lies, or no server calls.
pub fn tell(client: &BareClient, what: &str) {
    let number = called(client);
    let packet = [JOURNAL_PACKET, &number.to_le_bytes()].concat();
    let send = |file: Option<OwnedFd>| {
        let fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        // A server that has ended the session already does not hear it.
        client.end.connection().send(&packet, &fds).ok();
    };
    match what {
        "no answer" => {}
        "no file" => send(None),
        "an empty journal" => send(journal(|_| ())),
        "other packets" => {
            for _ in 0..100 {
                client.end.connection().send(b"other", &[]).ok();
            }
        }
        what => {
            let lie = LIES.iter().find(|lie| lie.name == what);
            send((lie.expect("a lie").make)(client));
        }
    }
}
