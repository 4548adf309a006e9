//! What all of a client's work shares: whom it is told to, who runs it, and what of it may wait.
//!
//! Owned by the client's streams, and by grids that launch others. Must not know what the work is.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::{Charge, InFlight, Observer, WorkInFlight};
use protocol::device_facts::DeviceFacts;

use crate::device_graph::DeviceGraph;
use crate::launch_pool::LaunchPool;
use crate::memory::CopySpace;
use crate::rest::Rest;
use crate::scheduler::{Account, Scheduler};

/// Bytes that one client's waiting operations may take together.
const WAITING_BYTES: u64 = 256 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) rest: Arc<Rest>,
    pub(crate) account: Arc<Account>,
    pub(crate) spaces: Arc<RwLock<Arc<CopySpace>>>,
    /// What the devices say of themselves.
    pub(crate) facts: Arc<[DeviceFacts]>,
    /// What its kernels launch.
    pub(crate) launches: Arc<LaunchPool>,
    pub(crate) jobs: Arc<JobTable>,
    /// Graphs that its kernels may launch, by number.
    pub(crate) graphs: Mutex<HashMap<u64, Arc<DeviceGraph>>>,
    /// The client is going: nothing is begun and nothing reported any more.
    pub(crate) closed: AtomicBool,
    /// Bytes of all operations that wait.
    pub(crate) waiting: AtomicU64,
    /// What of them is held for the client: the most that there was, since a client that had so much
    /// waiting has so again.
    pub(crate) waiting_held: Mutex<Charge>,
}

impl ClientState {
    /// Takes so many bytes for an operation that waits; false if they are too many.
    pub(crate) fn wait(&self, bytes: u64) -> bool {
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let may = self.may_wait(before.saturating_add(bytes));
        if !may {
            self.waited(bytes);
        }
        may
    }

    /// Gives the bytes of an operation that waits no more back.
    pub(crate) fn waited(&self, bytes: u64) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether operations of so many bytes may wait, in all. Counted in large steps, most of them for
    /// nothing: what waits comes and goes with every operation.
    fn may_wait(&self, bytes: u64) -> bool {
        const STEP: u64 = 1 << 20;
        if bytes <= STEP {
            return true;
        }
        let mut held = self.waiting_held.lock();
        let more = bytes.saturating_sub(held.amount());
        bytes <= WAITING_BYTES && (more == 0 || held.grow(more.next_multiple_of(STEP)))
    }
}

/// What streams have made jobs of that have not ended, by slot. By itself, since whoever asks may keep it for longer than the
/// client is there.
#[derive(Debug, Default)]
pub(crate) struct JobTable(Mutex<BTreeMap<u32, InFlight>>);

impl JobTable {
    /// A stream has a job.
    pub(crate) fn begin(&self, job: InFlight) {
        self.0.lock().insert(job.stream, job);
    }

    /// It has none any more.
    pub(crate) fn end(&self, stream: u32) {
        self.0.lock().remove(&stream);
    }
}

impl WorkInFlight for JobTable {
    fn in_flight(&self) -> Vec<InFlight> {
        self.0.lock().values().cloned().collect()
    }
}
