//! One launch, checked: a kernel, compiled for its blocks, and the grid that it is launched with.
//!
//! The engine makes it; [`super::Cluster`]s are made of it.
//!
//! Must not know streams, nor when the grid runs; `engine-soft/src/grid.rs` keeps it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::device_runtime::DeviceRuntime;
use super::grid::{Grid, MEETING_BYTES};
use super::limits::{MAX_CLUSTER, MAX_SHARED_BYTES};
use super::machine::Machine;
use super::memory::AddressSpace;
use super::module::{CodeSource, Kernel};
use super::program::Program;
use super::reach::Readable;
use super::regs::Bytes;
use super::services::Services;
use super::texture::Textures;

/// A kernel with what one grid of it is launched with: what its blocks are made of.
#[derive(Debug)]
pub struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    /// The kernel for lane groups of `lanes` lanes.
    pub(crate) program: Arc<Program>,
    pub(crate) lanes: usize,
    pub(crate) grid: Grid,
    code_source: CodeSource,
}

/// Why a launch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// A dimension is 0 or too large, a block has too many threads, also for this kernel, `.reqntid` is
    /// not met, or the parameter buffer has the wrong length: CUDA_ERROR_INVALID_VALUE.
    InvalidValue,
    /// The grid is not made of whole clusters, or they have more blocks than they may, or others than the kernel
    /// wants, or nobody says what they are though the kernel wants that: CUDA_ERROR_INVALID_CLUSTER_SIZE.
    InvalidClusterSize,
    /// More shared memory than [`MAX_SHARED_BYTES`], no memory for it, or none to compile a kernel again that was kept:
    /// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES.
    OutOfResources,
}

/// What one launch asks for. See [`Launch::new`].
#[derive(Debug)]
pub struct LaunchSpec {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z, if the launch names them.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameter buffer: [`Kernel::param_bytes`] bytes, laid out as [`Kernel::params`] say.
    pub params: Box<[u8]>,
    /// Addresses of the module's globals in order of [`super::Module::globals`].
    pub globals: Arc<[u64]>,
    /// What the kernel may touch. Windows that are made later are not seen by this launch.
    pub memory: Arc<AddressSpace>,
    /// The client's textures and surfaces.
    pub textures: Arc<Textures>,
    /// Set to end the grid: its blocks answer [`super::Outcome::Cancelled`] at their next loop iteration.
    pub cancel: Arc<AtomicBool>,
    /// What `%gridid` reads.
    pub grid_id: u64,
    /// What `%current_graph_exec` reads.
    pub graph: u64,
    /// What `%nsmid` reads; `%smid` is below it.
    pub sm_count: u32,
    /// Who prints and gives heap memory.
    pub services: Arc<dyn Services>,
    /// Who launches for a kernel that [`Kernel::asks_runtime`]; `None` for others.
    pub runtime: Option<Arc<dyn DeviceRuntime>>,
    /// Whether all blocks are under way at once, so that they may wait for each other.
    pub cooperative: bool,
}

impl Launch {
    /// Checks a launch, and compiles the kernel if this is the first one of such blocks. That may take long:
    /// it is for whoever wants the launch to do it, not for those who run everybody's blocks.
    ///
    /// # Errors
    /// See [`LaunchError`].
    pub fn new(spec: LaunchSpec) -> Result<Self, LaunchError> {
        let LaunchSpec {
            kernel,
            grid,
            block,
            cluster,
            dynamic_shared,
            params,
            globals,
            memory,
            textures,
            cancel,
            grid_id,
            graph,
            sm_count,
            services,
            runtime,
            cooperative,
        } = spec;
        let threads = block
            .iter()
            .fold(1_u64, |all, &n| all.saturating_mul(n.into()));
        if grid.contains(&0)
            || grid[0] > i32::MAX.unsigned_abs()
            || grid[1] > 65535
            || grid[2] > 65535
            || threads == 0
            || block[0] > 1024
            || block[1] > 1024
            || block[2] > 64
            || threads > 1024
            || threads > u64::from(kernel.max_threads)
            || params.len() != kernel.param_bytes as usize
            || kernel
                .required_threads
                .is_some_and(|required| required != block)
        {
            return Err(LaunchError::InvalidValue);
        }
        let sides = cluster_of(&kernel, grid, cluster)?;
        if kernel.shared_bytes.saturating_add(dynamic_shared) > MAX_SHARED_BYTES {
            return Err(LaunchError::OutOfResources);
        }
        let resources = LaunchError::OutOfResources;
        let buffer = Bytes::from_slice(&params).ok_or(resources)?;
        let grid_memory = if cooperative { MEETING_BYTES } else { 0 };
        let grid_memory = Bytes::new(grid_memory).ok_or(resources)?;
        let (program, lanes, code_source) = kernel.program(threads as usize).ok_or(resources)?;
        let constants = kernel.constants.iter().filter_map(|&(index, bytes)| {
            let base = *globals.get(index as usize)?;
            Some((base, bytes))
        });
        let mut constants: Vec<(u64, u64)> = constants.collect();
        constants.sort_unstable();
        let grid = Grid {
            size: grid,
            block,
            cluster: sides,
            has_clusters: cluster.or(kernel.required_cluster).is_some(),
            static_shared: kernel.shared_bytes,
            dynamic_shared,
            has_reserved_shared: kernel.asks_reserved,
            params: buffer,
            param_bytes: kernel.param_bytes,
            globals,
            constants,
            memory,
            readable: Readable::default(),
            textures,
            cancel,
            id: grid_id,
            graph,
            sm_count,
            services,
            runtime,
            meeting: grid_memory,
            cooperative,
        };
        Ok(Self {
            kernel,
            program,
            lanes,
            grid,
            code_source,
        })
    }

    /// Where its kernel's code came from.
    #[must_use]
    pub fn code_source(&self) -> CodeSource {
        self.code_source
    }

    /// Blocks of the grid.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.grid.size.iter().map(|&n| u64::from(n)).product()
    }

    /// Clusters of the grid, which are its blocks where it names none.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.grid.clusters().iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks of a cluster.
    #[must_use]
    pub fn cluster_blocks(&self) -> u32 {
        self.grid.cluster_blocks()
    }

    /// Threads of a block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.grid.threads()
    }

    /// Bytes that a block takes while it is under way, before it calls anything.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        let groups = (self.threads() as usize).div_ceil(self.lanes);
        let registers = self.program.functions[0].frame as usize + Machine::SCRATCH_BYTES;
        let local = self.program.local_stride as usize * self.lanes;
        let shared = u64::from(self.grid.shared());
        (groups * (registers + local)) as u64 + shared
    }

    /// The kernel.
    #[must_use]
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }
}

/// The sides of a launch's clusters: what the launch says, what the kernel requires, or one block.
fn cluster_of(
    kernel: &Kernel,
    grid: [u32; 3],
    asked: Option<[u32; 3]>,
) -> Result<[u32; 3], LaunchError> {
    let said = asked.or(kernel.required_cluster);
    if said.is_none() && kernel.explicit_cluster {
        return Err(LaunchError::InvalidClusterSize);
    }
    let sides = said.unwrap_or([1; 3]);
    let is_required = kernel
        .required_cluster
        .is_none_or(|required| required == sides);
    let whole = (0..3).all(|axis| sides[axis] != 0 && grid[axis].is_multiple_of(sides[axis]));
    let blocks = sides
        .iter()
        .fold(1_u64, |all, &n| all.saturating_mul(n.into()));
    let most = kernel.max_cluster.unwrap_or(MAX_CLUSTER).min(MAX_CLUSTER);
    if is_required && whole && blocks <= most.into() {
        Ok(sides)
    } else {
        Err(LaunchError::InvalidClusterSize)
    }
}
