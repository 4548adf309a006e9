//! Graphs that kernels may launch: their kernels, and whether they run.
//!
//! Owned by the client's objects, and found by number by kernels' calls. Must not know how a graph is run: `family::graph` does.

use parking_lot::Mutex;
use std::fmt::Debug;
use std::sync::Arc;

use engine::{CUresult, Counted};
use protocol::operations;

use crate::module::Module;

/// Launches as a client's run has them.
pub(crate) type Launches = Vec<(operations::Launch, Box<[u8]>)>;

/// A graph that kernels may launch.
#[derive(Debug)]
pub(crate) struct DeviceGraph {
    /// The number by which kernels know it.
    number: u64,
    launches: Arc<Counted<Launches>>,
    /// The module of each launch.
    modules: Vec<Arc<Module>>,
    taken: Mutex<Taken>,
}

/// What a graph is taken for.
#[derive(Debug, Default)]
struct Taken {
    /// Runs that are not over.
    runs: u32,
    /// It is to follow a run.
    is_tail: bool,
}

/// The run of a graph that a kernel is part of, as the kernel's calls see it.
pub(crate) trait CurrentGraph: Send + Sync + Debug {
    /// The number of the graph.
    fn number(&self) -> u64;

    /// Launches the graph of a number into one of CUDA's names of streams.
    ///
    /// # Errors
    /// A cudaError.
    fn launch(&self, number: u64, stream: u64) -> Result<(), u32>;
}

impl DeviceGraph {
    pub(crate) fn new(
        number: u64,
        launches: Arc<Counted<Launches>>,
        modules: Vec<Arc<Module>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            launches,
            modules,
            taken: Mutex::default(),
        })
    }

    /// The number by which kernels know it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The module of its first kernel.
    pub(crate) fn first_module(&self) -> Result<&Arc<Module>, CUresult> {
        self.modules.first().ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// One of its kernels, in their order: its module, its launch and the data of that.
    pub(crate) fn kernel(&self, at: usize) -> Option<(&Arc<Module>, &operations::Launch, &[u8])> {
        let (launch, data) = self.launches.get(at)?;
        Some((self.modules.get(at)?, launch, data))
    }

    /// Takes it for a launch of the client's.
    pub(crate) fn take_for_stream(&self) {
        self.taken.lock().runs += 1;
    }

    /// Takes it for a launch by a kernel; false if it runs or is to run.
    pub(crate) fn take(&self) -> bool {
        let mut taken = self.taken.lock();
        let is_free = taken.runs == 0 && !taken.is_tail;
        taken.runs += u32::from(is_free);
        is_free
    }

    /// Takes it as what follows a run, which may be its own; false if it runs otherwise or is to run.
    pub(crate) fn take_as_tail(&self, is_own: bool) -> bool {
        let mut taken = self.taken.lock();
        let is_free = !taken.is_tail && (taken.runs == 0 || is_own);
        taken.is_tail |= is_free;
        is_free
    }

    /// The run that it was to follow is over: it begins.
    pub(crate) fn begin_as_tail(&self) {
        let mut taken = self.taken.lock();
        taken.is_tail = false;
        taken.runs += 1;
    }

    /// It will not follow that run.
    pub(crate) fn drop_as_tail(&self) {
        self.taken.lock().is_tail = false;
    }

    /// A run of it is over.
    pub(crate) fn release(&self) {
        self.taken.lock().runs -= 1;
    }
}
