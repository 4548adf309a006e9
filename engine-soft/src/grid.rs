//! A launch: whether it is allowed, and its grid as a task of thread blocks.
//!
//! Called by clients' launches and by launches from kernels. Must not know streams or who is next.

use std::sync::Arc;
use std::time::Duration;

use cuda_abi::types::{CUlaunchAttribute, CUlaunchAttributeID as Attribute};
use engine::plan;
use engine::{Activity, CUresult};
use protocol::operations;

use crate::block_cost::BlockCost;
use crate::client_state::ClientState;
use crate::context::Context;
use crate::module::Module;
use crate::multiprocessor::{
    BLOCKS_PER_SM, RESERVED_SHARED_BYTES, SHARED_BYTES_PER_SM, THREADS_PER_SM,
};
use crate::work::{Piece, Progress, SliceClock, Task};
use ptx_vm::{
    AddressSpace, Block, DeviceRuntime, Launch, LaunchError, LaunchSpec, Outcome, RESIDENT_BYTES,
    Textures,
};

/// Operations that a block runs between two looks at the clock.
const SLICE: u64 = 2048;

/// How long a time slice of an ordinary grid is.
const QUANTUM: Duration = Duration::from_millis(3);

/// How long a time slice of a cooperative grid is, whose blocks wait for each other.
const COOPERATIVE_QUANTUM: Duration = Duration::from_micros(200);

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
}

impl Grid {
    /// Checks a client's launch; `runtime` as for [`Grid::shaped`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    /// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, and CUDA_ERROR_NOT_SUPPORTED for attributes that ask
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
            ..
        } = place;
        let kernel = module.kernel(shape.kernel)?;
        if shape.shared > module.dynamic_shared_limit(shape.kernel) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let shared = kernel.shared_bytes + shape.shared + RESERVED_SHARED_BYTES;
        let launch = Launch::new(LaunchSpec {
            kernel: Arc::clone(kernel),
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.shared,
            params: params.into(),
            globals: Arc::clone(&module.globals),
            memory: Arc::clone(space),
            textures: Arc::clone(textures),
            cancel: Arc::clone(&context.cancel),
            grid_id: module.next_grid(),
            sm_count: u32::try_from(*sms).unwrap_or(u32::MAX),
            services: Arc::clone(&context.services) as _,
            runtime,
            cooperative: shape.cooperative,
        })
        .map_err(refused)?;
        let on_one = (THREADS_PER_SM / launch.threads())
            .min(SHARED_BYTES_PER_SM / shared)
            .clamp(1, BLOCKS_PER_SM);
        // Blocks of a kernel that takes much memory wait for each other.
        let fitting = (RESIDENT_BYTES / launch.block_bytes().max(1)).max(1);
        let most_resident = (u64::from(on_one) * sms).min(fitting);
        if shape.cooperative && launch.blocks() > most_resident {
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
        })
    }

    /// About how many bytes it takes while it waits.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of::<Launch>() + self.param_bytes) as u64
    }

    /// About how much time all blocks take together.
    pub(crate) fn cost(&self) -> Duration {
        let block = self.unit_cost().unwrap_or(UNKNOWN_COST.as_nanos() as u64);
        Duration::from_nanos(block.saturating_mul(self.launch.blocks()))
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

fn refused(error: LaunchError) -> CUresult {
    match error {
        LaunchError::InvalidValue => CUresult::ERROR_INVALID_VALUE,
        LaunchError::OutOfResources => CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES,
    }
}

/// What launch attributes can change.
struct Asked {
    cooperative: bool,
    priority: i32,
}

impl Asked {
    /// Applies one attribute.
    fn attribute(&mut self, attribute: &CUlaunchAttribute) -> Result<(), CUresult> {
        let (words, _) = attribute.value.0.as_chunks::<4>();
        let word = |index: usize| u32::from_le_bytes(words[index]);
        let is_one_block = || (0..3).all(|index| word(index) <= 1);
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
            // One block is no cluster.
            Attribute::CLUSTER_DIMENSION | Attribute::PREFERRED_CLUSTER_DIMENSION
                if is_one_block() =>
            {
                Ok(())
            }
            // Only the wish for one is refused.
            Attribute::DEVICE_UPDATABLE_KERNEL_NODE if word(0) == 0 => Ok(()),
            // Clusters, programmatic and completion events, and what is newer than this.
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
        self.launch.blocks()
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
        let (mut finished, learns) = (0, piece.block.is_none());
        // A block that has finished, whose memory the next one takes over.
        let mut spare: Option<Block> = None;
        loop {
            let mut block = match piece.block.take() {
                Some(block) => block,
                None => match (piece.fresh.next(), spare.take()) {
                    (Some(index), Some(mut block)) => {
                        block.restart(index, sm);
                        block
                    }
                    (Some(index), None) => match Block::new(Arc::clone(&self.launch), index, sm) {
                        Ok(block) => block,
                        Err(error) => return Progress::Failed(refused(error)),
                    },
                    (None, _) => break,
                },
            };
            match block.run(SLICE) {
                Outcome::Finished => {
                    finished += 1;
                    spare = Some(block);
                }
                Outcome::Yielded => piece.block = Some(block),
                Outcome::Waits => {
                    piece.block = Some(block);
                    clock.is_up();
                    break;
                }
                Outcome::Fault(fault) => {
                    let code = CUresult(fault.kind.code());
                    return Progress::Failed(self.context.fault(code, &fault.to_string()));
                }
                Outcome::Cancelled => return Progress::Failed(self.context.cancelled()),
            }
            if clock.is_up() {
                break;
            }
        }
        if learns && let Some(cost) = self.block_cost() {
            // One that is not finished counts as if it were: better too cheap than unknown.
            cost.learn(clock.took(), finished + u64::from(piece.block.is_some()));
        }
        if piece.is_empty() {
            Progress::Finished
        } else {
            Progress::Yielded
        }
    }
}
