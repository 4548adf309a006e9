//! Runs: launches that a client makes together, again and again, as those of a graph.
//!
//! Owns a run's launches and the [launch batch](LaunchBatch) that the driver has of them, of which only the signal is
//! changed from one time to the next; it is made when nothing runs on the device, after the run was first launched. Made by the client; issued by the stream that it is launched in, with
//! its lock held. Must not know which streams those are.

use parking_lot::Mutex;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUstream};
use engine::Counted;

use crate::code::module::Module;
use crate::device::Device;
use crate::device::context::Context;
use crate::device::work_signature::WorkSignature;
use crate::submit::batch_supply::BatchSupply;
use crate::submit::launch::Launch;
use crate::submit::launch_batch::{LaunchBatch, Signal};
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
    /// Nothing yet, but it will be made in this context.
    Asked(Handle<CUcontext>),
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
    /// For its nodes.
    _room: Room,
}

/// Nodes that were taken of what a client may have.
#[derive(Debug)]
struct Room {
    all: Arc<BoundedCount>,
    nodes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.subtract(self.nodes);
    }
}

impl Drop for RunBatch {
    fn drop(&mut self) {
        self.batch.end(&self.device);
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

    /// Gives all of a run to the driver as one batch, and has the GPU give the signal. The device's context is
    /// current; `home` is the one in which the stream's kernels run. `None` if there is no batch, or not yet: then each
    /// launch is to be issued by itself.
    pub(crate) fn issue(
        run: &Arc<Counted<Self>>,
        (device, supply): (&Arc<Device>, &Arc<BatchSupply>),
        room: &Arc<BoundedCount>,
        (home, stream): (Handle<CUcontext>, CUstream),
        signal: Signal,
    ) -> Option<()> {
        let signal_kernel = device.signal_kernel()?;
        let mut prepared = run.prepared.lock();
        if matches!(&*prepared, Prepared::LaunchBatch(batch) if batch.home != home) {
            *prepared = Prepared::Nothing;
        }
        let RunBatch { batch, .. } = match &*prepared {
            Prepared::Refused | Prepared::Asked(_) => return None,
            Prepared::LaunchBatch(batch) => batch,
            Prepared::Nothing => {
                *prepared = Self::ask(run, (device, supply), room, home)?;
                return None;
            }
        };
        let issued = device.within(home, |driver| {
            batch.set_signal(driver, signal_kernel, signal)?;
            batch.launch(driver, stream)
        });
        if issued.is_err() {
            *prepared = Prepared::Refused;
        }
        issued.ok()
    }

    /// Has the batch made when there is time, if there can be one.
    fn ask(
        run: &Arc<Counted<Self>>,
        (device, supply): (&Arc<Device>, &Arc<BatchSupply>),
        room: &Arc<BoundedCount>,
        home: Handle<CUcontext>,
    ) -> Option<Prepared> {
        // What was never launched may need more local memory than there is, for which the driver waits;
        // and what it refuses by itself is best refused by itself.
        let mut launches = run.launches.iter();
        let nodes = run.launches.len() + 1;
        if !launches.all(Launch::is_known_and_fit_for_a_node) || !room.try_add(nodes) {
            return None;
        }
        let room = Room {
            all: Arc::clone(room),
            nodes,
        };
        let (run, device) = (Arc::downgrade(run), Arc::downgrade(device));
        let is_asked = supply.when_idle(move |_| {
            if let (Some(run), Some(device)) = (run.upgrade(), device.upgrade()) {
                run.prepare(&device, home, room);
            }
        });
        is_asked.then_some(Prepared::Asked(home))
    }

    /// Makes the batch that was asked for. Nothing runs on the device.
    fn prepare(&self, device: &Arc<Device>, home: Handle<CUcontext>, room: Room) {
        let mut prepared = self.prepared.lock();
        if !matches!(&*prepared, Prepared::Asked(asked) if *asked == home) {
            return;
        }
        let made = device.within(home, |driver| {
            let signal_kernel = device.signal_kernel();
            let signal_kernel = signal_kernel.ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
            LaunchBatch::of(driver, signal_kernel, &mut self.launches.clone())
        });
        *prepared = made.map_or(Prepared::Refused, |batch| {
            Prepared::LaunchBatch(RunBatch {
                batch,
                home,
                device: Arc::clone(device),
                _room: room,
            })
        });
    }
}
