//! What clients of the user's other servers share: asked for by way of the daemon, for a client that opens what nobody here
//! shares.
//!
//! A client's thread asks, and waits for a bounded time; the main thread sends the question, and hands the answer over. What a
//! client can have asked is bounded. Must not know what becomes of what is found; who answers others is `for_others`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::bound::part;
use engine::{Bound, Charge, MemoryPiece};
use parking_lot::Mutex;
use protocol::control_messages::{SharedDevice, SharedObject};
use protocol::device_facts::DeviceFacts;
use rustix::process::{Resource, getrlimit};

use crate::event_queue::{EventQueue, ServerEvent};
use crate::ipc::event_table::RECORDS;
use transport::token_descriptor::Token;

/// How long a client waits. The others answer within two seconds, or not at all.
const PATIENCE: Duration = Duration::from_millis(2500);

/// How many wrong tokens one client may have asked others for at once, and how often one more.
const WRONG: (u32, Duration) = (32, Duration::from_millis(250));

/// The same of all questions of a client, and of all that a server asks; beyond that, each waits until it may be asked.
const ASKED: (u32, Duration) = (4096, Duration::from_millis(2));
const ASKED_OF_ALL: (u32, Duration) = (8192, Duration::from_millis(1));

/// Descriptors that are kept at most of one object of another server's.
const MOST_KEPT: u64 = 3;

/// How many of them are kept for one client, and what part of this process's descriptors for all.
const ONE_CLIENT: u64 = 1 << 12;
const ALL_CLIENTS: (u64, u64) = (1, 4);

/// Something that a client of another server shares.
#[derive(Debug)]
pub enum ForeignObject {
    /// A block of device memory.
    Block(ForeignBlock),
    /// Physical memory, of its device.
    Physical(u32, MemoryPiece, Lease),
    /// An event.
    Event(ForeignEvent),
}

/// A block of device memory.
#[derive(Debug)]
pub struct ForeignBlock {
    /// Its device.
    pub device: u32,
    /// Its bytes.
    pub bytes: u64,
    /// How many bytes behind the beginning of the first piece it begins.
    pub offset: u64,
    /// What it lies in, in order.
    pub pieces: Vec<MemoryPiece>,
    /// Keeps it.
    pub lease: Lease,
}

/// An event.
#[derive(Debug)]
pub struct ForeignEvent {
    /// Which of the servers that have it this is.
    pub side: u16,
    /// The table of its records.
    pub table: OwnedFd,
    /// What wakes the server that made it.
    pub maker: OwnedFd,
    /// What wakes this one.
    pub woken: OwnedFd,
    /// Keeps it; its other end is closed when that server ends.
    pub lease: Lease,
}

/// Has the other server keep what it shares, until this and all that was made of it are dropped.
#[derive(Debug)]
pub struct Lease {
    descriptor: OwnedFd,
    charge: Charge,
}

impl Lease {
    /// The descriptor, which is the lease, and what it and others that are kept with it take of those that this process may have.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Charge) {
        (self.descriptor, self.charge)
    }
}

impl ForeignObject {
    /// What another server says that it shares, if that makes sense for a server with these devices. `charge` is what it may keep of
    /// descriptors.
    #[must_use]
    pub fn new(
        (object, descriptors): Answer,
        devices: &[DeviceFacts],
        mut charge: Charge,
    ) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        charge.shrink_to(match object {
            SharedObject::Event { .. } => MOST_KEPT,
            // Memory is kept by its mapping.
            SharedObject::Block { .. } | SharedObject::Physical { .. } => 1,
        });
        let lease = Lease {
            descriptor: descriptors.next()?,
            charge,
        };
        let number = |device: &SharedDevice| {
            let facts = devices.get(device.number as usize)?;
            (facts.uuid == device.uuid).then_some(device.number)
        };
        match object {
            SharedObject::Block {
                device,
                bytes,
                offset,
                pieces,
            } => {
                let mut sum = Some(0u64);
                for &piece in &pieces {
                    sum = sum.and_then(|sum| sum.checked_add(piece));
                }
                let end = offset.checked_add(bytes)?;
                if bytes == 0 || pieces.len() != descriptors.len() || end > sum? {
                    return None;
                }
                let each = pieces.into_iter().zip(descriptors);
                let pieces = each.map(|(bytes, descriptor)| MemoryPiece { bytes, descriptor });
                Some(Self::Block(ForeignBlock {
                    device: number(&device)?,
                    bytes,
                    offset,
                    pieces: pieces.collect(),
                    lease,
                }))
            }
            SharedObject::Physical { device, bytes } => {
                let descriptor = descriptors.next().filter(|_| descriptors.len() == 0)?;
                let piece = MemoryPiece { bytes, descriptor };
                Some(Self::Physical(number(&device)?, piece, lease))
            }
            SharedObject::Event { side, records } => {
                let descriptors: Vec<OwnedFd> = descriptors.collect();
                let [table, maker, woken] = descriptors.try_into().ok()?;
                (side > 0 && records == RECORDS).then_some(Self::Event(ForeignEvent {
                    side,
                    table,
                    maker,
                    woken,
                    lease,
                }))
            }
        }
    }
}

/// The user's other servers, as this one knows them.
#[derive(Debug)]
pub struct OtherServers {
    events: Arc<EventQueue>,
    /// This server's devices.
    devices: Vec<DeviceFacts>,
    /// What may be kept of this process's descriptors.
    kept: Arc<Bound>,
    asked: Mutex<Allowance>,
    questions: Mutex<Questions>,
}

/// What another server says that it shares, with what it has sent, of which nothing is known yet.
pub type Answer = (SharedObject, Vec<OwnedFd>);

#[derive(Debug, Default)]
struct Questions {
    last: u64,
    /// Who waits for an answer.
    open: HashMap<u64, SyncSender<Option<Answer>>>,
}

impl OtherServers {
    /// Asked by way of the main thread.
    #[must_use]
    pub fn new(events: Arc<EventQueue>, devices: &[DeviceFacts]) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        Self {
            events,
            devices: devices.to_vec(),
            kept: Arc::new(Bound::new(part(descriptors, ALL_CLIENTS))),
            asked: Mutex::new(Allowance::new(ASKED_OF_ALL, Instant::now())),
            questions: Mutex::default(),
        }
    }

    /// Asks for what a client of this user's shares, and waits for the answer.
    fn seek(&self, uid: u32, token: Token, charge: Charge) -> Option<ForeignObject> {
        let turn = {
            let (now, mut asked) = (Instant::now(), self.asked.lock());
            let turn = asked.wait(now);
            asked.take(now);
            turn
        };
        std::thread::sleep(turn);
        let (sender, answer) = sync_channel(1);
        let question = {
            let mut questions = self.questions.lock();
            questions.last += 1;
            let number = questions.last;
            questions.open.insert(number, sender);
            number
        };
        self.events.push(ServerEvent::SeekExport {
            question,
            uid,
            token,
        });
        let found = answer.recv_timeout(PATIENCE).ok().flatten();
        self.questions.lock().open.remove(&question);
        ForeignObject::new(found?, &self.devices, charge)
    }

    /// Hands an answer over. If nobody waits for it any more, it is given back.
    pub fn answer(&self, question: u64, found: Option<Answer>) -> Option<Answer> {
        let asker = self.questions.lock().open.remove(&question);
        match asker {
            // There is room for the one answer that there is.
            Some(asker) => asker.try_send(found).err().and_then(|error| match error {
                std::sync::mpsc::TrySendError::Full(found)
                | std::sync::mpsc::TrySendError::Disconnected(found) => found,
            }),
            None => found,
        }
    }
}

/// How one client asks them.
#[derive(Debug)]
pub struct SeekElsewhere {
    servers: Arc<OtherServers>,
    uid: u32,
    /// What may be kept of descriptors for this client.
    kept: Arc<Bound>,
    limits: Mutex<SeekLimits>,
}

impl SeekElsewhere {
    /// For a client of this user.
    #[must_use]
    pub fn new(servers: Arc<OtherServers>, uid: u32) -> Self {
        let now = Instant::now();
        Self {
            kept: Arc::new(Bound::within(&servers.kept, ONE_CLIENT)),
            servers,
            uid,
            limits: Mutex::new(SeekLimits {
                wrong: Allowance::new(WRONG, now),
                asked: Allowance::new(ASKED, now),
            }),
        }
    }

    /// What a token names at another server. Nothing, without a question, for who has come with too many wrong ones.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, without a question, for who has too much open of other servers.
    pub fn seek(&self, token: Token) -> Result<Option<ForeignObject>, CUresult> {
        // Held: one question at a time.
        let mut limits = self.limits.lock();
        let now = Instant::now();
        if !limits.wrong.wait(now).is_zero() {
            return Ok(None);
        }
        let mut charge = Charge::new(self.kept.clone());
        if !charge.grow(MOST_KEPT) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        std::thread::sleep(limits.asked.wait(now));
        limits.asked.take(Instant::now());
        let found = self.servers.seek(self.uid, token, charge);
        if found.is_none() {
            limits.wrong.take(Instant::now());
        }
        Ok(found)
    }
}

#[derive(Debug)]
struct SeekLimits {
    wrong: Allowance,
    asked: Allowance,
}

/// So many at once, and then one more each time that so long has passed.
#[derive(Debug)]
struct Allowance {
    slack: Duration,
    interval: Duration,
    /// When all that was taken has come back.
    full_at: Instant,
}

impl Allowance {
    fn new((most, interval): (u32, Duration), now: Instant) -> Self {
        Self {
            slack: interval * (most - 1),
            interval,
            full_at: now,
        }
    }

    /// How long it takes until there is one.
    fn wait(&self, now: Instant) -> Duration {
        self.full_at
            .saturating_duration_since(now)
            .saturating_sub(self.slack)
    }

    fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let open = |_| std::fs::File::open("/dev/null").unwrap().into();
        (0..count).map(open).collect()
    }

    fn facts() -> Vec<DeviceFacts> {
        let device = |uuid| DeviceFacts {
            uuid: [uuid; 16],
            ..DeviceFacts::default()
        };
        vec![device(1), device(2)]
    }

    fn block(number: u32, uuid: u8, (offset, bytes): (u64, u64), pieces: &[u64]) -> SharedObject {
        SharedObject::Block {
            device: SharedDevice {
                number,
                uuid: [uuid; 16],
            },
            bytes,
            offset,
            pieces: pieces.to_vec(),
        }
    }

    #[test]
    fn what_makes_no_sense_is_nothing() {
        let bound = Arc::new(Bound::new(MOST_KEPT));
        let read = |object, count| {
            let mut charge = Charge::new(bound.clone());
            assert!(charge.grow(MOST_KEPT), "nothing is left");
            ForeignObject::new((object, descriptors(count)), &facts(), charge)
        };
        let whole = |count| read(block(1, 2, (512, 1536), &[1024, 1024]), count);
        assert!(matches!(
            whole(3),
            Some(ForeignObject::Block(ForeignBlock {
                device: 1,
                bytes: 1536,
                offset: 512,
                ..
            }))
        ));
        for count in [0, 1, 2, 4] {
            assert!(whole(count).is_none(), "{count} descriptors");
        }
        for (object, why) in [
            (block(0, 2, (0, 1), &[1024]), "another device"),
            (block(2, 2, (0, 1), &[1024]), "no device"),
            (block(0, 1, (0, 0), &[1024]), "nothing"),
            (block(0, 1, (1, 1024), &[1024]), "beyond its memory"),
            (block(0, 1, (u64::MAX, 2), &[1024]), "around the end"),
            (
                block(0, 1, (0, 2), &[u64::MAX]),
                "fits, but is left to the engine",
            ),
        ] {
            let is_read = read(object, 2).is_some();
            assert_eq!(is_read, why.starts_with("fits"), "{why}");
        }
        let overflow = block(0, 1, (0, 2), &[u64::MAX, 2]);
        assert!(read(overflow, 3).is_none());
        let physical = |count| {
            let device = SharedDevice {
                number: 0,
                uuid: [1; 16],
            };
            read(SharedObject::Physical { device, bytes: 1 }, count)
        };
        assert!(physical(2).is_some());
        assert!(physical(1).is_none() && physical(3).is_none());
        let event = |side, records, count| read(SharedObject::Event { side, records }, count);
        assert!(event(1, RECORDS, 4).is_some());
        assert!(event(0, RECORDS, 4).is_none(), "that is its maker");
        assert!(event(1, RECORDS + 1, 4).is_none(), "another release's");
        assert!(event(1, RECORDS, 3).is_none() && event(1, RECORDS, 5).is_none());
    }

    #[test]
    fn so_many_at_once_and_then_one_by_one() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut allowance = Allowance::new((3, second), start);
        for _ in 0..3 {
            assert!(allowance.wait(start).is_zero());
            allowance.take(start);
        }
        assert_eq!(allowance.wait(start), second);
        assert!(allowance.wait(start + second).is_zero());
        allowance.take(start + second);
        assert_eq!(allowance.wait(start + second), second);
        let later = start + 100 * second;
        for _ in 0..3 {
            assert!(allowance.wait(later).is_zero(), "no more than at first");
            allowance.take(later);
        }
        assert_eq!(allowance.wait(later), second);
    }

    #[test]
    fn who_has_too_much_open_asks_nobody() {
        let events = Arc::new(EventQueue::new().unwrap());
        let servers = Arc::new(OtherServers::new(events, &facts()));
        let [one, other] = [7, 8].map(|uid| SeekElsewhere::new(servers.clone(), uid));
        assert!(one.kept.charge(ONE_CLIENT - MOST_KEPT + 1));
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        assert_eq!(one.seek([1; 4]).unwrap_err(), full);
        assert!(servers.events.drain().is_empty());
        assert!(servers.kept.charge(servers.kept.remaining()));
        assert_eq!(other.seek([1; 4]).unwrap_err(), full, "all together");
        assert!(servers.events.drain().is_empty());
    }

    #[test]
    fn an_answer_comes_to_who_asked_and_to_nobody_else() {
        let servers = Arc::new(OtherServers::new(
            Arc::new(EventQueue::new().unwrap()),
            &facts(),
        ));
        let asked = {
            let servers = servers.clone();
            std::thread::spawn(move || servers.seek(7, [1; 4], Charge::new(servers.kept.clone())))
        };
        let question = loop {
            match servers.events.drain().pop() {
                Some(ServerEvent::SeekExport {
                    question,
                    uid: 7,
                    token: [1, 1, 1, 1],
                }) => break question,
                Some(other) => panic!("{other:?}"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let device = SharedDevice {
            number: 0,
            uuid: [1; 16],
        };
        let found = || {
            let object = SharedObject::Physical {
                device: device.clone(),
                bytes: 1,
            };
            Some((object, descriptors(2)))
        };
        assert!(servers.answer(question + 1, found()).is_some(), "nobody");
        assert!(servers.answer(question, found()).is_none());
        assert!(asked.join().unwrap().is_some());
        assert!(servers.answer(question, found()).is_some(), "a second one");
    }
}
