//! A client's session: its thread takes what the client posts, and hands it on or answers it.
//!
//! Here is what a session is made of. Its loop is `event_loop`'s, what becomes of a record `records`', what an operation
//! does `dispatch`'s, what is freed and when `freeing`'s; the order of work is `stream_scheduler`'s, memory `memory`'s. A session trusts nothing of its client,
//! and no other session can tell that it is there.
//!
//! Called by admission's thread. Must not know the daemon, or what an engine is made of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use engine::{Bound, Charge, Client, Share};
use protocol::device_facts::DeviceFacts;
use protocol::operations::At;
use transport::memory::Mapping;
use transport::ring::{Position, Record};
use transport::session::Consumer;

use crate::accounts::ClientAccounts;
use crate::code::arrays::Arrays;
use crate::code::images::Images;
use crate::code::modules::Modules;
use crate::ipc::blocks::SharedBlocks;
use crate::ipc::events::SharedEvents;
use crate::log::ClientLog;
use crate::memory::address_account::AddressAccount;
use crate::memory::client_memory::Memory;
use crate::memory::registered_files::Files;
use crate::memory::virtual_memory::VirtualMemory;
use crate::session::observer::{Cancellation, ClientObserver};
use crate::session::value_waits::ValueWaits;
use crate::stream_scheduler::StreamScheduler;

mod counting;
mod deferred;
mod dispatch;
mod event_loop;
mod freeing;
mod image_operations;
mod limit_changes;
pub mod observer;
pub mod recording;
mod records;
mod value_waits;

pub use deferred::{BlockedWork, DeferredAction, End};

/// Errors of posted operations that are logged, a session.
const MAX_ERROR_LINES: u32 = 20;

/// Bytes of records and actions that wait, which do not count for what may be held for the client: so much has every session.
const FREE_BLOCKED: usize = 256 << 10;

/// One client's session.
#[derive(Debug)]
pub struct Session {
    /// First, so that it goes first: nothing of the client's may run when its memory goes.
    pub(crate) client: Box<dyn Client>,
    pub(crate) observer: Arc<ClientObserver>,
    pub(crate) scheduler: StreamScheduler<BlockedWork, DeferredAction>,
    pub(crate) memory: Memory,
    pub(crate) images: Images,
    pub(crate) modules: Modules,
    pub(crate) shared_blocks: SharedBlocks,
    pub(crate) shared_events: SharedEvents,
    pub(crate) virtual_memory: VirtualMemory,
    /// Its addresses beside those that it began with.
    pub(crate) addresses: AddressAccount,
    pub(crate) files: Files,
    pub(crate) arrays: Arrays,
    pub(crate) staging: Arc<Mapping>,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) share: Share,
    pub(crate) partition: Partition,
    /// Of each device's multiprocessors, how many the client was told of, and how many there are.
    pub(crate) granted: Vec<(u32, u32)>,
    /// The device of each context.
    pub(crate) contexts: Vec<Option<u32>>,
    /// Contexts whose end is deferred, as bits.
    pub(crate) ending_contexts: u32,
    pub(crate) log: ClientLog,
    /// Functions that the client called and that are not built: each is logged once.
    pub(crate) missed: BTreeSet<u32>,
    pub(crate) detached: bool,
    /// What broke a rule within an operation.
    pub(crate) broken: Option<String>,
    /// A record that has to wait, with everything behind it.
    stalled: Option<Record>,
    /// Taken records whose place in the ring is still theirs, in the ring's order.
    unretired: VecDeque<(Position, At)>,
    reply: Vec<u8>,
    /// What of the server's memory is held for records and actions that wait, beyond [`FREE_BLOCKED`].
    waiting: Charge,
    /// Streams that wait for values in memory.
    pub(crate) value_waits: ValueWaits,
    /// What the client has had.
    pub(crate) accounts: Arc<ClientAccounts>,
    /// Kernels of each run.
    pub(crate) run_lengths: BTreeMap<u32, u64>,
    /// By stream, when the last record was let go that was held back, while somebody wants to know.
    released: BTreeMap<u32, u64>,
    /// Calls that wait for memory; an honest client has no more than it has reply slots.
    retries: usize,
    error_lines: u32,
}

/// What a session is made of.
#[derive(Debug)]
pub struct SessionParts {
    /// The engine's side.
    pub client: Box<dyn Client>,
    /// What the engine's threads share with it.
    pub observer: Arc<ClientObserver>,
    /// What it may have.
    pub memory: Memory,
    /// The staging memory.
    pub staging: Arc<Mapping>,
    /// Its devices.
    pub devices: Vec<DeviceFacts>,
    /// For the log.
    pub log: ClientLog,
    /// Blocks that it shares with others.
    pub shared_blocks: SharedBlocks,
    /// Events that it shares with others.
    pub shared_events: SharedEvents,
    /// Physical memory and reserved addresses.
    pub virtual_memory: VirtualMemory,
    /// Its addresses beside those that it begins with.
    pub addresses: AddressAccount,
    /// What may be held for it of the server's memory.
    pub server_memory: Arc<Bound>,
    /// Its files.
    pub files: Files,
    /// Its part of the devices' time.
    pub share: Share,
    /// Where it may have contexts.
    pub partition: Partition,
    /// Of each device's multiprocessors, how many the client was told of, and how many there are.
    pub granted: Vec<(u32, u32)>,
    /// Where it is counted what the client has.
    pub accounts: Arc<ClientAccounts>,
}

/// Where a client may have contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// On every device.
    Everywhere,
    /// On the device that its static partition is of, if it is of one.
    On(Option<u32>),
    /// Nowhere: devices are partitioned, and it has no partition.
    Nowhere,
}

impl Session {
    /// A session of a client that was just welcomed.
    pub fn new(parts: SessionParts) -> Self {
        Self {
            client: parts.client,
            observer: parts.observer,
            scheduler: StreamScheduler::default(),
            memory: parts.memory,
            images: Images::new(parts.server_memory.clone()),
            waiting: Charge::new(parts.server_memory),
            modules: Modules::default(),
            shared_blocks: parts.shared_blocks,
            shared_events: parts.shared_events,
            virtual_memory: parts.virtual_memory,
            addresses: parts.addresses,
            files: parts.files,
            arrays: Arrays::default(),
            staging: parts.staging,
            devices: parts.devices,
            share: parts.share,
            partition: parts.partition,
            granted: parts.granted,
            contexts: vec![None; protocol::operations::CONTEXT_SLOTS as usize],
            ending_contexts: 0,
            log: parts.log,
            missed: BTreeSet::new(),
            detached: false,
            broken: None,
            stalled: None,
            unretired: VecDeque::new(),
            reply: Vec::new(),
            value_waits: ValueWaits::default(),
            accounts: parts.accounts,
            run_lengths: BTreeMap::new(),
            released: BTreeMap::new(),
            retries: 0,
            error_lines: 0,
        }
    }

    /// Serves the client until its end.
    pub fn serve(&mut self, consumer: &mut Consumer, cancellation: &Cancellation) -> End {
        match self.loop_until_end(consumer, cancellation) {
            Ok(how) => End { how, reason: None },
            Err(end) => end,
        }
    }

    /// Logs an error, unless there were many.
    pub(crate) fn error_line(&mut self, text: &str) {
        self.error_lines += 1;
        match self.error_lines.cmp(&MAX_ERROR_LINES) {
            std::cmp::Ordering::Less => self.log.line(text),
            std::cmp::Ordering::Equal => self.log.line(format_args!(
                "{text}; further errors of this client are not logged"
            )),
            std::cmp::Ordering::Greater => {}
        }
    }
}
