//! Runs: launches that a client makes together, again and again, as those of a graph.
//!
//! Owns a run's launches and the [launch batch](LaunchBatch) that the driver has of them, of which only the signal is
//! changed from one time to the next. Made by the client; issued by the stream that it is launched in, with
//! its lock held. Must not know which streams those are.

use parking_lot::Mutex;
use std::sync::Arc;

use cuda_abi::types::{CUcontext, CUstream};

use crate::code::module::Module;
use crate::device::Device;
use crate::device::context::Context;
use crate::device::work_signature::WorkSignature;
use crate::submit::batch::{LaunchBatch, Signal};
use crate::submit::launch::Launch;
use crate::sync::{BoundedCount, Handle};

/// Nodes of the batches of all of a client's runs. What one takes, see
/// [`MOST_NODES`](crate::submit::batch::MOST_NODES).
pub(crate) const MOST_RUN_NODES: usize = 1024;

/// Launches that are made together.
#[derive(Debug, Default)]
pub(crate) struct GraphRun {
    /// Goes before the launches, which keep the modules of its nodes.
    prepared: Mutex<Prepared>,
    launches: Vec<Launch>,
    /// Those that have its kernels, each once: they are looked at whenever it is launched and has ended.
    modules: Vec<Arc<Module>>,
    kind: WorkSignature,
}

/// What the driver has of a run.
#[derive(Debug, Default)]
enum Prepared {
    /// Nothing yet.
    #[default]
    Nothing,
    LaunchBatch(RunBatch),
    /// Nothing: it was refused.
    Refused,
}

/// A run's batch.
#[derive(Debug)]
struct RunBatch {
    batch: LaunchBatch,
    /// The context that it was made in.
    home: Handle<CUcontext>,
    device: Arc<Device>,
    /// For the nodes of all of the client's runs.
    room: Arc<BoundedCount>,
}

impl Drop for RunBatch {
    fn drop(&mut self) {
        self.batch.end(&self.device, &self.room);
    }
}

impl GraphRun {
    /// Adds a launch behind the others.
    pub(crate) fn add(&mut self, launch: Launch) {
        self.kind = self.kind.then(launch.signature());
        let has = |module: &Arc<Module>| Arc::ptr_eq(module, launch.module());
        if !self.modules.iter().any(has) {
            self.modules.push(Arc::clone(launch.module()));
        }
        self.launches.push(launch);
    }

    /// Its launches, in their order.
    pub(crate) fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// See [`CommandKind::signature`](crate::submit::command::CommandKind::signature).
    pub(crate) fn signature(&self) -> WorkSignature {
        self.kind
    }

    /// The modules that have its kernels.
    pub(crate) fn modules(&self) -> &[Arc<Module>] {
        &self.modules
    }

    /// Whether kernels of it may print.
    pub(crate) fn prints(&self) -> bool {
        self.modules.iter().any(|module| module.prints())
    }

    /// Whether its kernels can run in streams of a context.
    pub(crate) fn is_for(&self, context: &Context) -> bool {
        let mut modules = self.modules.iter();
        modules.all(|module| context.runs_kernels_of(module.context()))
    }

    /// Gives all of it to the driver as one batch, and has the GPU give the signal. The device's context is
    /// current; `home` is the one in which the stream's kernels run. `None` if there can be no batch: then each
    /// launch is to be issued by itself.
    pub(crate) fn issue(
        &self,
        (device, room): (&Arc<Device>, &Arc<BoundedCount>),
        home: Handle<CUcontext>,
        stream: CUstream,
        signal: Signal,
    ) -> Option<()> {
        let signal_kernel = device.signal_kernel()?;
        let mut prepared = self.prepared.lock();
        if matches!(&*prepared, Prepared::LaunchBatch(batch) if batch.home != home) {
            *prepared = Prepared::Nothing;
        }
        let issued = match &*prepared {
            Prepared::Refused => return None,
            Prepared::LaunchBatch(RunBatch { batch, .. }) => device.within(home, |driver| {
                batch.set_signal(driver, signal_kernel, signal)?;
                batch.launch(driver, stream)
            }),
            Prepared::Nothing => {
                // What was never launched may need more local memory than there is, for which the driver waits;
                // and what it refuses by itself is best refused by itself.
                if !self
                    .launches
                    .iter()
                    .all(Launch::is_known_and_fit_for_a_node)
                {
                    return None;
                }
                let mut launches = self.launches.clone();
                let made = LaunchBatch::first((device, home), room, stream, &mut launches, signal)?;
                made.map(|batch| {
                    *prepared = Prepared::LaunchBatch(RunBatch {
                        batch,
                        home,
                        device: Arc::clone(device),
                        room: Arc::clone(room),
                    });
                })
            }
        };
        if issued.is_err() {
            *prepared = Prepared::Refused;
        }
        issued.ok()
    }
}
