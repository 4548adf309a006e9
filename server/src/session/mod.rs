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
use transport::session::{Consumer, Publisher};

use crate::accounts::ClientAccounts;
use crate::code::arrays::Arrays;
use crate::code::images::Images;
use crate::code::modules::Modules;
use crate::ipc::blocks::SharedBlocks;
use crate::ipc::events::SharedEvents;
use crate::log::ClientLog;
use crate::memory::client_memory::ClientMemory;
use crate::memory::further_windows::FurtherWindows;
use crate::memory::registered_files::RegisteredFiles;
use crate::memory::virtual_memory::VirtualMemory;
use crate::session::observer::{Cancellation, ClientObserver};
use crate::session::value_waits::ValueWaits;
use crate::stream_scheduler::StreamScheduler;

mod counting;
mod deferred;
mod dispatch;
mod event_loop;
mod file_operations;
mod freeing;
mod image_operations;
pub mod kernel_time;
mod limit_changes;
pub mod observer;
mod page_operations;
mod processor_sharing;
pub mod recording;
mod records;
mod repeating;
mod running_threads;
mod semaphores;
mod takeover;
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
    client: Box<dyn Client>,
    observer: Arc<ClientObserver>,
    scheduler: StreamScheduler<BlockedWork, DeferredAction>,
    memory: ClientMemory,
    images: Images,
    modules: Modules,
    shared_blocks: SharedBlocks,
    shared_events: SharedEvents,
    virtual_memory: VirtualMemory,
    /// Its addresses beside those that it began with.
    addresses: FurtherWindows,
    files: RegisteredFiles,
    arrays: Arrays,
    staging: Arc<Mapping>,
    devices: Vec<DeviceFacts>,
    share: Share,
    partition: Partition,
    /// The server has no other client and never gets one.
    is_alone: bool,
    /// Of each device's multiprocessors, how many the client was shown, and how many there are.
    granted: Vec<(u32, u32)>,
    /// The device of each context.
    contexts: Vec<Option<u32>>,
    /// Contexts whose end is deferred, as bits.
    ending_contexts: u32,
    log: ClientLog,
    /// Functions that the client called and that are not built: each is logged once.
    missed: BTreeSet<u32>,
    detached: bool,
    /// What broke a rule within an operation.
    broken: Option<String>,
    /// A record that has to wait, with everything behind it.
    stalled: Option<Record>,
    /// Taken records whose place in the ring is still theirs, in the ring's order.
    unretired: VecDeque<(Position, At)>,
    /// Taken records that have lost their place before they were complete.
    spilled: Vec<At>,
    reply: Vec<u8>,
    /// What of the server's memory is held for records and actions that wait, beyond [`FREE_BLOCKED`].
    waiting: Charge,
    /// Streams that wait for values in memory.
    value_waits: ValueWaits,
    /// What the client has had.
    accounts: Arc<ClientAccounts>,
    /// Kernels of each run.
    run_lengths: BTreeMap<u32, u64>,
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
    pub memory: ClientMemory,
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
    pub addresses: FurtherWindows,
    /// What may be held for it of the server's memory.
    pub server_memory: Arc<Bound>,
    /// Its files.
    pub files: RegisteredFiles,
    /// Its part of the devices' time.
    pub share: Share,
    /// Where it may have contexts.
    pub partition: Partition,
    /// The server has no other client and never gets one.
    pub is_alone: bool,
    /// Of each device's multiprocessors, how many the client was shown, and how many there are.
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
            is_alone: parts.is_alone,
            granted: parts.granted,
            contexts: vec![None; protocol::operations::CONTEXT_SLOTS as usize],
            ending_contexts: 0,
            log: parts.log,
            missed: BTreeSet::new(),
            detached: false,
            broken: None,
            stalled: None,
            unretired: VecDeque::new(),
            spilled: Vec::new(),
            reply: Vec::new(),
            value_waits: ValueWaits::default(),
            accounts: parts.accounts,
            run_lengths: BTreeMap::new(),
            released: BTreeMap::new(),
            retries: 0,
            error_lines: 0,
        }
    }

    /// What reaches the client though no record is answered.
    pub(crate) fn publisher(&self) -> Arc<Publisher> {
        self.observer.publisher.clone()
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
