//! Runs: launches that a client makes together, again and again, as those of a graph.
//!
//! Owns a run's launches and the [chain](Chain) that the driver has of them, of which only the signal is
//! changed from one time to the next. Made by the client; issued by the stream that it is launched in, with
//! its lock held. Must not know which streams those are.

use std::sync::{Arc, Mutex};

use cuda_abi::types::{CUcontext, CUstream};

use crate::chain::{Chain, Signal};
use crate::common::Common;
use crate::context::Context;
use crate::device::Device;
use crate::launch::Launch;
use crate::module::Module;
use crate::rhythm::Kind;
use crate::sync::{Handle, lock};

/// Nodes of the chains of all of a client's runs. What one takes, see
/// [`MOST_NODES`](crate::chain::MOST_NODES).
pub(crate) const MOST_RUN_NODES: usize = 1024;

/// Launches that are made together.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Goes before the launches, which keep the modules of its nodes.
    kept: Mutex<Kept>,
    launches: Vec<Launch>,
    /// Those that have its kernels, each once: they are looked at whenever it is launched and has ended.
    modules: Vec<Arc<Module>>,
    kind: Kind,
}

/// What the driver has of a run.
#[derive(Debug, Default)]
enum Kept {
    /// Nothing yet.
    #[default]
    Nothing,
    Chain(RunChain),
    /// Nothing: it was refused.
    Refused,
}

/// A run's chain.
#[derive(Debug)]
struct RunChain {
    chain: Chain,
    /// The context that it was made in.
    home: Handle<CUcontext>,
    device: Arc<Device>,
    /// Which keeps count of the nodes.
    common: Arc<Common>,
}

impl Drop for RunChain {
    fn drop(&mut self) {
        self.chain.end(&self.device, &self.common.run_nodes);
    }
}

impl Run {
    /// Adds a launch behind the others.
    pub(crate) fn add(&mut self, launch: Launch) {
        self.kind = self.kind.then(launch.kind());
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

    /// See [`Work::kind`](crate::work::Work::kind).
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The modules that have its kernels.
    pub(crate) fn modules(&self) -> &[Arc<Module>] {
        &self.modules
    }

    /// Whether kernels of it may print.
    pub(crate) fn prints(&self) -> bool {
        self.modules.iter().any(|module| module.ring().is_some())
    }

    /// Whether its kernels can run in streams of a context.
    pub(crate) fn is_for(&self, context: &Context) -> bool {
        let mut modules = self.modules.iter();
        modules.all(|module| context.runs_kernels_of(module.context()))
    }

    /// Gives all of it to the driver as one chain, and has the GPU give the signal. The device's context is
    /// current; `home` is the one in which the stream's kernels run. `None` if there can be no chain: then each
    /// launch is to be issued by itself.
    pub(crate) fn issue(
        &self,
        (device, common): (&Arc<Device>, &Arc<Common>),
        home: Handle<CUcontext>,
        stream: CUstream,
        signal: Signal,
    ) -> Option<()> {
        let mark = device.mark()?;
        let mut kept = lock(&self.kept);
        if matches!(&*kept, Kept::Chain(chain) if chain.home != home) {
            *kept = Kept::Nothing;
        }
        let issued = match &*kept {
            Kept::Refused => return None,
            Kept::Chain(RunChain { chain, .. }) => device.within(home, |driver| {
                chain.set_signal(driver, mark, signal)?;
                chain.launch(driver, stream)
            }),
            Kept::Nothing => {
                // What was never launched may need more local memory than there is, for which the driver waits;
                // and what it refuses by itself is best refused by itself.
                if !self.launches.iter().all(Launch::is_known_and_plain) {
                    return None;
                }
                let (room, mut launches) = (&common.run_nodes, self.launches.clone());
                let made = Chain::first((device, home), room, stream, &mut launches, signal)?;
                made.map(|chain| {
                    *kept = Kept::Chain(RunChain {
                        chain,
                        home,
                        device: Arc::clone(device),
                        common: Arc::clone(common),
                    });
                })
            }
        };
        if issued.is_err() {
            *kept = Kept::Refused;
        }
        issued.ok()
    }
}
