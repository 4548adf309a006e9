//! A launch: whether it is allowed, and its grid as a task of thread blocks.
//!
//! Called by clients' launches and by launches from kernels. Must not know streams or who is next.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use cuda_abi::types::{CUlaunchAttribute, CUlaunchAttributeID as Attribute};
use engine::plan;
use engine::{Activity, CUresult, CodeSource};
use protocol::operations;

use crate::block_cost::BlockCost;
use crate::client_state::ClientState;
use crate::context::Context;
use crate::device_graph::CurrentGraph;
use crate::module::Module;
use crate::multiprocessor::{
    BLOCKS_PER_SM, RESERVED_SHARED_BYTES, SHARED_BYTES_PER_SM, THREADS_PER_SM,
};
use crate::work::{Piece, Progress, SliceClock, Task};
use ptx_vm::{
    AddressSpace, Cluster, DeviceRuntime, Launch, LaunchError, LaunchSpec, Outcome, RESIDENT_BYTES,
    Textures,
};

/// Operations that a block runs between two looks at the clock.
const SLICE: u64 = 2048;

/// How long a time slice of an ordinary grid is.
const QUANTUM: Duration = Duration::from_millis(3);

/// How long a time slice of a cooperative grid is, whose blocks wait for each other.
const COOPERATIVE_QUANTUM: Duration = Duration::from_micros(200);

/// How long clusters may run that are over without a look at the clock, and how many of them.
const UNSEEN: Duration = Duration::from_micros(10);
const MOST_UNSEEN: u64 = 16;

/// What a grid is expected to take that was never run, per block.
const UNKNOWN_COST: Duration = Duration::from_micros(10);

/// Where a grid runs, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) module: Arc<Module>,
    pub(crate) context: Arc<Context>,
    /// What its kernel may touch.
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) textures: Arc<Textures>,
    /// How many SMs the device has.
    pub(crate) sms: u64,
    pub(crate) client: Arc<ClientState>,
    /// The run of a graph that kernels may launch, if it is in one.
    pub(crate) graph: Option<Arc<dyn CurrentGraph>>,
}

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kernel: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) cooperative: bool,
    /// Blocks of a cluster in x, y, z, if it is said.
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) priority: i32,
}

/// A launch that was found to be allowed.
#[derive(Debug)]
pub(crate) struct Grid {
    launch: Arc<Launch>,
    context: Arc<Context>,
    module: Arc<Module>,
    kernel: u32,
    param_bytes: usize,
    cooperative: bool,
    priority: i32,
    most_resident: u64,
    /// Clusters that have finished, whose memory the next ones take over.
    spares: Mutex<Vec<Cluster>>,
}

impl Grid {
    /// Checks a client's launch; `runtime` as for [`Grid::shaped`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    /// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_INVALID_CLUSTER_SIZE, and CUDA_ERROR_NOT_SUPPORTED for attributes that ask
    /// for what is not built.
    pub(crate) fn new(
        place: &Place,
        priority: i32,
        request: &operations::Launch,
        data: &[u8],
        runtime: Option<Arc<dyn DeviceRuntime>>,
    ) -> Result<Self, CUresult> {
        if !place.context.runs_kernels_of(&place.module.context) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let cooperative = plan::launch::is_cooperative(request)?;
        let (attributes, params) = plan::launch::split(request.attributes, data)?;
        let mut asked = Asked {
            cooperative,
            cluster: None,
            priority,
        };
        for attribute in attributes {
            asked.attribute(&attribute)?;
        }
        let shape = Shape {
            kernel: request.kernel,
            grid: request.grid,
            block: request.block,
            shared: request.shared,
            cooperative: asked.cooperative,
            cluster: asked.cluster,
            priority: asked.priority,
        };
        Self::shaped(place, &shape, params, runtime)
    }

    /// Checks a launch. `runtime` launches for a kernel that launches others.
    ///
    /// # Errors
    /// As [`Grid::new`].
    pub(crate) fn shaped(
        place: &Place,
        shape: &Shape,
        params: &[u8],
        runtime: Option<Arc<dyn DeviceRuntime>>,
    ) -> Result<Self, CUresult> {
        let Place {
            module,
            context,
            space,
            textures,
            sms,
            graph,
            client,
        } = place;
        let kernel = module.kernel(shape.kernel)?;
        if shape.shared > module.dynamic_shared_limit(shape.kernel) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let shared = kernel.shared_bytes + shape.shared + RESERVED_SHARED_BYTES;
        let cluster = module.cluster(shape.kernel, shape.cluster)?;
        let launch = Launch::new(LaunchSpec {
            kernel: Arc::clone(kernel),
            grid: shape.grid,
            block: shape.block,
            cluster,
            dynamic_shared: shape.shared,
            params: params.into(),
            globals: Arc::clone(&module.globals),
            memory: Arc::clone(space),
            textures: Arc::clone(textures),
            cancel: Arc::clone(&context.cancel),
            grid_id: module.next_grid(),
            graph: graph.as_ref().map_or(0, |run| run.number()),
            sm_count: u32::try_from(*sms).unwrap_or(u32::MAX),
            services: Arc::clone(&context.services) as _,
            runtime,
            cooperative: shape.cooperative,
        })
        .map_err(refused)?;
        let source = match launch.code_source() {
            ptx_vm::CodeSource::Ready => None,
            ptx_vm::CodeSource::Kept => Some(CodeSource::Disk),
            ptx_vm::CodeSource::Compiled => Some(CodeSource::Compiler),
        };
        if let Some(source) = source {
            client.observer.code_came(context.device, source);
        }
        if launch.cluster_blocks() > module.most_cluster_blocks(shape.kernel) {
            return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
        }
        let on_one = blocks_on_one(launch.threads(), shared);
        // Blocks of a kernel that takes much memory wait for each other.
        let fitting = (RESIDENT_BYTES / launch.block_bytes().max(1)).max(1);
        // A cluster may lie on several SMs.
        let most_resident = (u64::from(on_one) * sms).min(fitting);
        let most_resident = (most_resident / u64::from(launch.cluster_blocks())).max(1);
        if shape.cooperative && launch.clusters() > most_resident {
            return Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(Self {
            launch: Arc::new(launch),
            context: Arc::clone(context),
            module: Arc::clone(module),
            kernel: shape.kernel,
            param_bytes: params.len(),
            cooperative: shape.cooperative,
            priority: shape.priority,
            most_resident,
            spares: Mutex::default(),
        })
    }

    /// About how many bytes it takes while it waits.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of::<Launch>() + self.param_bytes) as u64
    }

    /// About how much time all blocks take together.
    pub(crate) fn cost(&self) -> Duration {
        let cluster = self.unit_cost().unwrap_or(UNKNOWN_COST.as_nanos() as u64);
        Duration::from_nanos(cluster.saturating_mul(self.launch.clusters()))
    }

    /// Its urgency; lower goes first.
    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// Bytes of its parameters.
    pub(crate) fn param_bytes(&self) -> usize {
        self.param_bytes
    }

    fn block_cost(&self) -> Option<&BlockCost> {
        self.module.image.costs.get(self.kernel as usize)
    }
}

/// Blocks of so many threads and bytes of shared memory that an SM holds; it always holds one.
fn blocks_on_one(threads: u32, shared: u32) -> u32 {
    (THREADS_PER_SM / threads.max(1))
        .min(SHARED_BYTES_PER_SM / shared.max(1))
        .clamp(1, BLOCKS_PER_SM)
}

/// How many clusters of a launch's shape are under way at once on `sms` SMs, or, if the request says so, how many
/// blocks its largest cluster may have. `data` is its launch attributes.
///
/// # Errors
/// As [`Grid::new`].
pub(crate) fn cluster_occupancy(
    module: &Module,
    sms: u64,
    request: &operations::ClusterOccupancy,
    data: &[u8],
) -> Result<u32, CUresult> {
    let kernel = module.kernel(request.kernel)?;
    let most = module.most_cluster_blocks(request.kernel);
    let most = most.min(kernel.max_cluster.unwrap_or(most));
    let (attributes, rest) = plan::launch::split(request.attributes, data)?;
    let mut asked = Asked {
        cooperative: false,
        cluster: None,
        priority: 0,
    };
    for attribute in attributes {
        asked.attribute(&attribute)?;
    }
    let threads = request
        .block
        .iter()
        .try_fold(1_u32, |all, &n| all.checked_mul(n));
    let threads = threads.filter(|threads| (1..=kernel.max_threads).contains(threads));
    let (Some(threads), true) = (threads, rest.is_empty() && request.largest <= 1) else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    if request.largest == 1 {
        return Ok(most);
    }
    let named = module.cluster(request.kernel, asked.cluster)?;
    let sides = named.or(kernel.required_cluster).unwrap_or([1; 3]);
    let own = kernel.required_cluster.unwrap_or(sides);
    if own != sides {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    let blocks = sides.iter().try_fold(1_u32, |all, &n| all.checked_mul(n));
    let blocks = blocks.filter(|blocks| (1..=most).contains(blocks));
    let blocks = blocks.ok_or(CUresult::ERROR_INVALID_CLUSTER_SIZE)?;
    let shared = kernel.shared_bytes + RESERVED_SHARED_BYTES;
    let on_one = blocks_on_one(threads, shared.saturating_add(request.shared));
    // Blocks of a cluster take turns where SMs are few: one is always under way.
    let clusters = u64::from(on_one) * sms / u64::from(blocks);
    Ok(u32::try_from(clusters).unwrap_or(u32::MAX).max(1))
}

fn refused(error: LaunchError) -> CUresult {
    match error {
        LaunchError::InvalidValue => CUresult::ERROR_INVALID_VALUE,
        LaunchError::InvalidClusterSize => CUresult::ERROR_INVALID_CLUSTER_SIZE,
        LaunchError::OutOfResources => CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES,
    }
}

/// What launch attributes can change.
struct Asked {
    cooperative: bool,
    cluster: Option<[u32; 3]>,
    priority: i32,
}

impl Asked {
    /// Applies one attribute.
    fn attribute(&mut self, attribute: &CUlaunchAttribute) -> Result<(), CUresult> {
        let (words, _) = attribute.value.0.as_chunks::<4>();
        let word = |index: usize| u32::from_le_bytes(words[index]);
        match attribute.id {
            // Hints that a software GPU has no use for, and an overlap that need not happen.
            Attribute::IGNORE
            | Attribute::ACCESS_POLICY_WINDOW
            | Attribute::SYNCHRONIZATION_POLICY
            | Attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | Attribute::PROGRAMMATIC_STREAM_SERIALIZATION
            | Attribute::MEM_SYNC_DOMAIN_MAP
            | Attribute::MEM_SYNC_DOMAIN
            | Attribute::PREFERRED_SHARED_MEMORY_CARVEOUT
            | Attribute::NVLINK_UTIL_CENTRIC_SCHEDULING => Ok(()),
            Attribute::COOPERATIVE => {
                self.cooperative |= word(0) != 0;
                Ok(())
            }
            Attribute::PRIORITY => {
                self.priority = word(0).cast_signed();
                Ok(())
            }
            Attribute::CLUSTER_DIMENSION => {
                let sides = [word(0), word(1), word(2)];
                self.cluster = (sides != [0; 3]).then_some(sides);
                Ok(())
            }
            // A wish that need not be met.
            Attribute::PREFERRED_CLUSTER_DIMENSION => Ok(()),
            // Only the wish for one is refused.
            Attribute::DEVICE_UPDATABLE_KERNEL_NODE if word(0) == 0 => Ok(()),
            // Programmatic and completion events, and what is newer than this.
            _ => Err(CUresult::ERROR_NOT_SUPPORTED),
        }
    }
}

impl Task for Grid {
    fn name(&self) -> &str {
        &self.launch.kernel().name
    }

    fn activity(&self) -> Activity {
        Activity::Kernel
    }

    fn units(&self) -> u64 {
        self.launch.clusters()
    }

    fn unit_cost(&self) -> Option<u64> {
        self.block_cost()?.known()
    }

    fn most_resident(&self) -> u64 {
        self.most_resident
    }

    fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    fn quantum(&self) -> Duration {
        if self.cooperative {
            COOPERATIVE_QUANTUM
        } else {
            QUANTUM
        }
    }

    fn run(&self, piece: &mut Piece, clock: &mut SliceClock, sm: u32) -> Progress {
        // A block that was suspended says nothing of how long one takes.
        let (mut finished, learns) = (0, piece.cluster.is_none());
        // Of this piece, or of one before it.
        let mut spare = self.spares.lock().pop();
        // Clusters until the clock is looked at: that takes a part of what a small one does.
        let (mut unseen, mut most_unseen) = (0, 1);
        loop {
            let mut cluster = match piece.cluster.take() {
                Some(cluster) => cluster,
                None => match (piece.fresh.next(), spare.take()) {
                    (Some(index), Some(mut cluster)) => {
                        cluster.restart(index, sm);
                        cluster
                    }
                    (Some(index), None) => {
                        match Cluster::new(Arc::clone(&self.launch), index, sm) {
                            Ok(cluster) => cluster,
                            Err(error) => return Progress::Failed(refused(error)),
                        }
                    }
                    (None, _) => break,
                },
            };
            // Those of the piece that follow it, until the clock is looked at.
            let before = piece.fresh.start;
            let outcome = cluster.run_on(SLICE, &mut piece.fresh, most_unseen - unseen - 1);
            let begun = piece.fresh.start - before;
            finished += begun;
            unseen += begun;
            match outcome {
                Outcome::Finished => {
                    finished += 1;
                    spare = Some(cluster);
                }
                Outcome::Yielded => piece.cluster = Some(cluster),
                Outcome::Waits => {
                    piece.cluster = Some(cluster);
                    clock.is_up();
                    break;
                }
                Outcome::Fault(fault) => {
                    let code = CUresult(fault.kind.code());
                    return Progress::Failed(self.context.fault(code, &fault.to_string()));
                }
                Outcome::Cancelled => return Progress::Failed(self.context.cancelled()),
            }
            unseen += 1;
            if unseen >= most_unseen || piece.cluster.is_some() {
                unseen = 0;
                if clock.is_up() {
                    break;
                }
                let each = clock.took() / u32::try_from(finished.max(1)).unwrap_or(u32::MAX);
                let unseen = UNSEEN.as_nanos() as u64 / (each.as_nanos() as u64).max(1);
                most_unseen = unseen.clamp(1, MOST_UNSEEN);
            }
        }
        if unseen > 0 {
            clock.is_up();
        }
        self.spares.lock().extend(spare);
        if learns && let Some(cost) = self.block_cost() {
            // One that is not finished counts as if it were: better too cheap than unknown.
            cost.learn(clock.took(), finished + u64::from(piece.cluster.is_some()));
        }
        if piece.is_empty() {
            Progress::Finished
        } else {
            Progress::Yielded
        }
    }
}
