//! One launch, checked: what all blocks of a grid share. And how a grid ends badly.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::machine::Machine;
use super::memory::AddressSpace;
use super::module::Kernel;
use super::ops::special::RESERVED_SHARED;
use super::program::Program;
use super::regs::Bytes;
use super::texture::Textures;

/// The most shared memory that a block may have, static and dynamic together, in bytes.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// What all blocks of a grid share.
#[derive(Debug)]
pub struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    /// The kernel for gangs of `lanes` lanes.
    pub(crate) program: Arc<Program>,
    pub(crate) lanes: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Bytes,
    pub(crate) globals: Arc<[u64]>,
    pub(crate) memory: Arc<AddressSpace>,
    pub(crate) textures: Arc<Textures>,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) grid_id: u64,
    pub(crate) sm_count: u32,
    pub(crate) services: Arc<dyn Services>,
    /// Where a cooperative grid's blocks meet, zeroed.
    pub(crate) grid_memory: Bytes,
    pub(crate) cooperative: bool,
    /// Where the module's constants lie and their bytes, ascending; empty if the kernel does not ask.
    pub(crate) constants: Vec<(u64, u64)>,
}

/// Bytes in which a cooperative grid's blocks meet: the compiler's code uses the first few words.
const GRID_MEMORY: usize = 256;

/// What kernels ask of their context beside memory. Called from within [`super::Block::run`], by any
/// number of threads; must not block for long.
pub trait Services: Send + Sync + fmt::Debug {
    /// Takes the text of one call of `printf`.
    fn print(&self, text: Vec<u8>);

    /// Takes the message of a failed assertion; its thread faults afterwards.
    fn assertion_failed(&self, text: Vec<u8>);

    /// So many bytes of the device heap, aligned to 16; 0 if there is no room.
    fn allocate(&self, bytes: u64) -> u64;

    /// Gives memory back to the heap. False if it is none that was given.
    fn free(&self, address: u64) -> bool;
}

/// Nobody reads, and there is no heap.
impl Services for () {
    fn print(&self, _: Vec<u8>) {}

    fn assertion_failed(&self, _: Vec<u8>) {}

    fn allocate(&self, _: u64) -> u64 {
        0
    }

    fn free(&self, _: u64) -> bool {
        false
    }
}

/// Why a launch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// A dimension is 0 or too large, a block has too many threads, also for this kernel, `.reqntid` is
    /// not met, or the parameter buffer has the wrong length: CUDA_ERROR_INVALID_VALUE.
    InvalidValue,
    /// More shared memory than [`MAX_SHARED_BYTES`], or no memory for it: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES.
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
    /// What `%nsmid` reads; `%smid` is below it.
    pub sm_count: u32,
    /// Who prints and gives heap memory.
    pub services: Arc<dyn Services>,
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
            dynamic_shared,
            params,
            globals,
            memory,
            textures,
            cancel,
            grid_id,
            sm_count,
            services,
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
        if kernel.shared_bytes.saturating_add(dynamic_shared) > MAX_SHARED_BYTES {
            return Err(LaunchError::OutOfResources);
        }
        let resources = LaunchError::OutOfResources;
        let buffer = Bytes::from_slice(&params).ok_or(resources)?;
        let grid_memory = if cooperative { GRID_MEMORY } else { 0 };
        let grid_memory = Bytes::new(grid_memory).ok_or(resources)?;
        let (program, lanes) = kernel.program(threads as usize);
        let constants = kernel.constants.iter().filter_map(|&(index, bytes)| {
            let base = *globals.get(index as usize)?;
            Some((base, bytes))
        });
        let mut constants: Vec<(u64, u64)> = constants.collect();
        constants.sort_unstable();
        Ok(Self {
            kernel,
            program,
            lanes,
            constants,
            grid,
            block,
            dynamic_shared,
            params: buffer,
            globals,
            memory,
            textures,
            cancel,
            grid_id,
            sm_count,
            services,
            grid_memory,
            cooperative,
        })
    }

    /// Blocks of the grid.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Threads of a block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Where the system's part of a block's shared memory begins, if the kernel uses it.
    pub(crate) fn reserved_shared(&self) -> u32 {
        (self.kernel.shared_bytes + self.dynamic_shared).next_multiple_of(16)
    }

    /// Bytes of a block's shared memory, with the system's part.
    pub(crate) fn shared(&self) -> u32 {
        match self.kernel.asks_reserved {
            true => self.reserved_shared() + RESERVED_SHARED,
            false => self.kernel.shared_bytes + self.dynamic_shared,
        }
    }

    /// Bytes that a block takes while it is under way, before it calls anything.
    pub(crate) fn block_bytes(&self) -> u64 {
        let gangs = (self.threads() as usize).div_ceil(self.lanes);
        let registers = self.program.functions[0].frame as usize + Machine::SCRATCH_BYTES;
        let local = self.program.local_stride as usize * self.lanes;
        let shared = u64::from(self.shared());
        (gangs * (registers + local)) as u64 + shared
    }

    /// The kernel.
    #[must_use]
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }
}

/// The kind of a [`Fault`]; each is one CUDA error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `assert` in device code: CUDA_ERROR_ASSERT.
    Assert,
    /// Outside the client's memory: CUDA_ERROR_ILLEGAL_ADDRESS.
    IllegalAddress,
    /// `brkpt`, or an instruction whose operands make no sense: CUDA_ERROR_ILLEGAL_INSTRUCTION.
    IllegalInstruction,
    /// An indirect call to what is no function: CUDA_ERROR_INVALID_PC.
    InvalidPc,
    /// An address not aligned to its access: CUDA_ERROR_MISALIGNED_ADDRESS.
    MisalignedAddress,
    /// Calls too deep: CUDA_ERROR_HARDWARE_STACK_ERROR.
    StackOverflow,
    /// `trap`: CUDA_ERROR_LAUNCH_FAILED.
    Trap,
}

/// How a block ended badly. The client's context is broken by it (a sticky error).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The address that was wrong; 0 where none is.
    pub address: u64,
    /// The block.
    pub block: [u32; 3],
    /// The lowest thread that did it.
    pub thread: [u32; 3],
    /// Line of the PTX text, 0 if not known.
    pub line: u32,
    /// The kernel.
    pub kernel: String,
}

impl FaultKind {
    /// The number of the CUresult that it is.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::IllegalAddress => 700,
            Self::Assert => 710,
            Self::StackOverflow => 714,
            Self::IllegalInstruction => 715,
            Self::MisalignedAddress => 716,
            Self::InvalidPc => 718,
            Self::Trap => 719,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            address,
            block,
            thread,
            line,
            kernel,
        } = self;
        write!(
            f,
            "{kind:?} at {address:#x} in {kernel}, block {block:?}, thread {thread:?}, line {line}"
        )
    }
}

impl std::error::Error for Fault {}
