//! A loaded module: its kernels with the facts that a driver reports of them, and its variables.
//!
//! Owns the compiled code. Made by the engine of a syntax tree; launches keep it. Must not know clients.

use std::sync::{Arc, OnceLock};

use super::emit::emit;
use super::ir::Func;
use super::isa::{Isa, Target, gathers};
use super::kept::KeptCode;
use super::limits::{
    INSTRUCTION_BYTES, KERNEL_COST, KERNEL_INSTRUCTIONS, MAX_GROUP_LANES, MODULE_INSTRUCTIONS,
    REGISTERS_PER_SM,
};
use super::load_error::LoadError;
use super::lower::{ModuleFacts, function_address};
use super::mask::WARP;
use super::program::Program;
use super::variables::{Global, GlobalSpace, Relocated};

/// What [`Module::load`] may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The most registers a thread may have (`CU_JIT_MAX_REGISTERS`); only reported, nothing spills.
    pub max_registers: Option<u32>,
    /// The vector unit to compile for, if this machine has it; else the best.
    pub isa: Option<Isa>,
    /// Whether runs of arithmetic become machine code; `None`: yes, unless `OPENMPS_SOFT_JIT` is `0`.
    pub jit: Option<bool>,
    /// Whether words from apart are loaded by the vector unit's gather also where all lanes run; `None`: where that is fast.
    pub gathers: Option<bool>,
    /// The most lanes of a lane group: 32, 64, 128 or [`MAX_GROUP_LANES`], which is also what anything else means.
    pub group_lanes: Option<usize>,
    /// Who keeps the programs of its kernels.
    pub kept: Option<Arc<dyn KeptCode>>,
}

impl Options {
    /// What is compiled for.
    pub(crate) fn target(&self) -> Target {
        let isa = self.isa.filter(|isa| isa.available());
        let jit = || std::env::var_os("OPENMPS_SOFT_JIT").is_none_or(|value| value != "0");
        Target {
            isa: isa.unwrap_or_else(Isa::best),
            jit: self.jit.unwrap_or_else(jit),
            gathers: self.gathers.unwrap_or_else(gathers),
        }
    }

    /// The most lanes of a lane group.
    pub(crate) fn lanes(&self) -> usize {
        let lanes = self.group_lanes;
        let lanes = lanes.filter(|lanes| [32, 64, 128].contains(lanes));
        lanes.unwrap_or(MAX_GROUP_LANES)
    }
}

/// Where a kernel's parameter lies in its parameter buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamFact {
    /// Bytes from the buffer's start.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// A compiled entry. Independent of any client: addresses come with the launch.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub params: Vec<ParamFact>,
    /// Bytes of its parameter buffer.
    pub param_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of local memory of a thread (without the frames of recursive calls).
    pub local_bytes: u32,
    /// Bytes of the module's user-defined `.const` variables.
    pub const_bytes: u32,
    /// The most threads a block may have: `.maxntid`, `.reqntid`, or 1024.
    pub max_threads: u32,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// Blocks of a cluster that every launch has: `.reqnctapercluster`.
    pub required_cluster: Option<[u32; 3]>,
    /// The most blocks of a cluster: `.maxclusterrank`.
    pub max_cluster: Option<u32>,
    /// Whether a launch must say what its clusters are if the kernel does not: `.explicitcluster`.
    pub explicit_cluster: bool,
    /// Registers of a thread: an estimate from the most values that are live at once, 16 to 255.
    pub registers: u32,
    /// The architecture that the PTX was compiled for, 10 × major + minor: what CUDA calls the PTX
    /// version of a function, and what CUB selects its policies by.
    pub ptx_version: u32,
    /// The `.const` variables of the module, if the kernel asks of addresses whether they are in one: indices
    /// of globals, and their bytes.
    pub(crate) constants: Arc<[(u32, u64)]>,
    /// Whether it uses the system's part of shared memory.
    pub(crate) asks_reserved: bool,
    /// Whether it calls CUDA's device runtime, as kernels do that launch others.
    pub asks_runtime: bool,
    /// What its programs are compiled from, with the module's other kernels.
    pub(crate) code: Arc<Code>,
    /// Which of them it is.
    pub(crate) index: u32,
    /// The program for lane groups of 32, 64, 128 and 256 lanes, compiled or found when first wanted.
    pub(crate) programs: [OnceLock<Arc<Program>>; 4],
}

/// What the programs of a module's kernels are compiled from and for.
#[derive(Debug)]
pub(crate) struct Code {
    target: Target,
    /// The most lanes of a lane group.
    lanes: usize,
    /// By kernel; not there yet of a module that was read from what was kept.
    lowered: OnceLock<Vec<KernelCode>>,
    kept: Option<Arc<dyn KeptCode>>,
}

/// Where the code came from that a launch has its kernel run by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// An earlier launch had it.
    Ready,
    /// It was kept, by [`Options::kept`].
    Kept,
    /// It was compiled for this launch.
    Compiled,
}

/// What a kernel's programs are compiled from.
#[derive(Debug)]
struct KernelCode {
    /// The entry and what it calls.
    funcs: Vec<Func>,
    by_address: Vec<u32>,
    local_stride: u32,
}

impl Code {
    /// Of a module that is loaded with these options, where nothing is lowered yet.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            target: options.target(),
            lanes: options.lanes(),
            lowered: OnceLock::new(),
            kept: options.kept.clone(),
        }
    }

    /// What a kernel is compiled from. `None` if it was not kept and is not to be had again.
    fn lowered(&self, kernel: u32) -> Option<&KernelCode> {
        if self.lowered.get().is_none() {
            let module = self.kept.as_ref()?.compile()?;
            let code = Arc::clone(&module.kernels.first()?.code);
            drop(module);
            // Another launch may have been quicker.
            let _ = self
                .lowered
                .set(Arc::into_inner(code)?.lowered.into_inner()?);
        }
        self.lowered.get()?.get(kernel as usize)
    }

    /// The program of a kernel for lane groups of so many lanes: what was kept, or compiled.
    fn program(&self, kernel: u32, lanes: usize) -> Option<(Program, CodeSource)> {
        let kept = self.kept.as_ref();
        let found = kept.and_then(|kept| kept.find(kernel, lanes as u32));
        // SAFETY: who keeps it gives what it was given, by this build, for a module that was loaded with these options.
        if let Some(program) = found.and_then(|bytes| unsafe { Program::from_kept(bytes) }) {
            return Some((program, CodeSource::Kept));
        }
        let code = self.lowered(kernel)?;
        let (by_address, stride) = (code.by_address.clone(), code.local_stride);
        let program = emit(&code.funcs, by_address, stride, self.target, lanes);
        if let Some(kept) = kept {
            kept.compiled(kernel, lanes as u32, program.to_kept().as_deref());
        }
        Some((program, CodeSource::Compiled))
    }
}

impl Kernel {
    /// The program for blocks of so many threads, and the lanes of its lane groups. Compiles it if nobody has yet and it was
    /// not kept, which is for [`super::Launch::new`] to ask for: workers have all clients' blocks to run. `None` if what it is
    /// compiled from is not to be had.
    pub(crate) fn program(&self, threads: usize) -> Option<(Arc<Program>, usize, CodeSource)> {
        let lanes = threads.next_power_of_two().clamp(32, self.code.lanes);
        let index = (lanes / 32).trailing_zeros() as usize;
        let (program, source) = match self.programs[index].get() {
            Some(program) => (program, CodeSource::Ready),
            None => {
                let (program, source) = self.code.program(self.index, lanes)?;
                let program = Arc::new(program);
                (self.programs[index].get_or_init(|| program), source)
            }
        };
        Some((Arc::clone(program), lanes, source))
    }
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(crate) globals: Vec<Global>,
    pub(crate) uses_heap: bool,
    pub(crate) instructions: u64,
    /// Kernels by the addresses that device code knows them by, ascending.
    pub(crate) entries: Vec<(u64, u32)>,
}

impl Module {
    /// Compiles every entry of a parsed module.
    ///
    /// # Errors
    /// [`LoadError`] at the first instruction that is wrong or not built.
    pub fn load(module: &ptx::ast::Module<'_>, options: &Options) -> Result<Self, LoadError> {
        Self::load_within(module, options, &ptx::Unlimited)
    }

    /// As [`Module::load`], with only so much memory for what becomes of it.
    ///
    /// # Errors
    /// As there, and a limit's where the memory ends.
    pub fn load_within(
        module: &ptx::ast::Module<'_>,
        options: &Options,
        memory: &dyn ptx::Memory,
    ) -> Result<Self, LoadError> {
        let code = Arc::new(Code::new(options));
        let facts = ModuleFacts::new(module)?;
        let const_bytes = facts
            .globals
            .iter()
            .filter(|global| global.space == GlobalSpace::Const)
            .map(|global| global.size)
            .sum::<u64>();
        let constants: Arc<[(u32, u64)]> = facts
            .globals
            .iter()
            .enumerate()
            .filter(|(_, global)| global.space == GlobalSpace::Const)
            .map(|(index, global)| (index as u32, global.size))
            .collect();
        let no_constants: Arc<[(u32, u64)]> = Arc::default();
        let mut kernels: Vec<Arc<Kernel>> = Vec::new();
        let mut all_lowered = Vec::new();
        let mut left = MODULE_INSTRUCTIONS;
        // What a kernel may become is taken before it does; what is not used of it, the next one has.
        let length = |function: &ptx::ast::Function<'_>| {
            function.body.as_ref().map_or(0, |body| body.len() as u64)
        };
        let called = module.functions.iter().filter(|function| !function.entry);
        let called: u64 = called.map(length).sum();
        let mut spare = 0;
        let mut entries = Vec::new();
        for (index, function) in module.functions.iter().enumerate() {
            if !function.entry || function.body.is_none() {
                continue;
            }
            if function.blocks_are_clusters {
                return Err(LoadError {
                    line: function.line,
                    function: function.name.into(),
                    message: ".blocksareclusters is not built: see docs/instructions.md".into(),
                    limit: false,
                });
            }
            let most = (length(function) + called + KERNEL_COST).min(KERNEL_INSTRUCTIONS);
            let bytes = most * INSTRUCTION_BYTES;
            if spare < bytes && !memory.take(bytes - spare) {
                return Err(LoadError {
                    line: function.line,
                    function: function.name.into(),
                    message: "there is no memory left for this program's code".into(),
                    limit: true,
                });
            }
            entries.push((function_address(index), kernels.len() as u32));
            let before = left;
            spare = spare.max(bytes);
            let lowered = facts.kernel(index, code.lanes, &mut left)?;
            spare = spare.saturating_sub((before - left) * INSTRUCTION_BYTES);
            let params: Vec<ParamFact> = ptx::layout::params(function)
                .into_iter()
                .map(|(offset, size)| ParamFact {
                    offset: offset as u32,
                    size: size as u32,
                })
                .collect();
            let required = function.required_threads;
            let threads = required.map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
            let max_threads = function
                .max_threads
                .or(threads)
                .unwrap_or(1024)
                .clamp(1, 1024);
            let asked = [function.max_registers, options.max_registers];
            let asked = asked.into_iter().flatten().min();
            let blocks = function.min_blocks.unwrap_or(1);
            let registers = registers(lowered.pressure, most_registers(max_threads, blocks, asked));
            kernels.push(Arc::new(Kernel {
                name: function.name.into(),
                params,
                param_bytes: ptx::layout::params_size(function) as u32,
                shared_bytes: lowered.shared_bytes,
                local_bytes: lowered.local_bytes,
                const_bytes: u32::try_from(const_bytes).unwrap_or(u32::MAX),
                max_threads,
                required_threads: required,
                required_cluster: function.cluster,
                max_cluster: function.max_cluster,
                explicit_cluster: function.explicit_cluster,
                registers,
                ptx_version: module.target,
                constants: Arc::clone(if lowered.asks_constants {
                    &constants
                } else {
                    &no_constants
                }),
                asks_reserved: lowered.asks_reserved,
                asks_runtime: lowered.asks_runtime,
                code: Arc::clone(&code),
                index: kernels.len() as u32,
                programs: Default::default(),
            }));
            all_lowered.push(KernelCode {
                funcs: lowered.funcs,
                by_address: lowered.by_address,
                local_stride: lowered.local_stride,
            });
        }
        // Nobody else has it yet.
        let _ = code.lowered.set(all_lowered);
        // Parameters of launches from kernels lie in the heap too.
        let uses_heap = kernels.iter().any(|kernel| kernel.asks_runtime)
            || module
                .functions
                .iter()
                .any(|function| function.body.is_none() && function.name == "malloc");
        Ok(Self {
            kernels,
            globals: facts.globals,
            uses_heap,
            instructions: MODULE_INSTRUCTIONS - left,
            entries,
        })
    }

    /// Its entries in order of the source.
    #[must_use]
    pub fn kernels(&self) -> &[Arc<Kernel>] {
        &self.kernels
    }

    /// Bytes that it takes, about: its code as lowered, and its variables' first values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let values = self.globals.iter().map(|global| {
            let relocations = size_of::<Relocated>() * global.relocations.len();
            (size_of::<Global>() + global.name.len() + global.init.len() + relocations) as u64
        });
        self.instructions * INSTRUCTION_BYTES + values.sum::<u64>()
    }

    /// What it keeps, counted in instructions of all kernels.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// The kernel whose address device code has: its index in [`Module::kernels`].
    #[must_use]
    pub fn kernel_at(&self, address: u64) -> Option<u32> {
        let found = self.entries.binary_search_by_key(&address, |entry| entry.0);
        Some(self.entries[found.ok()?].1)
    }

    /// Whether device code uses the heap: it calls `malloc`, or launches kernels.
    #[must_use]
    pub fn uses_heap(&self) -> bool {
        self.uses_heap
    }

    /// The entry of this name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Its `.global` and `.const` variables, to be placed by the layer above.
    #[must_use]
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }
}

/// How many registers a thread would have: as many 32-bit ones as are live at once, in the entry or in
/// what it calls, and a few for addresses; at most `most`. Nothing spills here, so fewer than that do no harm.
fn registers(live: u32, most: u32) -> u32 {
    (live + 6).max(LEAST_REGISTERS).min(most)
}

/// The fewest registers that a thread is said to have.
const LEAST_REGISTERS: u32 = 10;

/// The most registers that a thread may be said to have, so that a block of `threads` fits a multiprocessor,
/// and `blocks` of them where such are asked for and can be: programs divide by how many fit. `asked` is a
/// limit by itself.
fn most_registers(threads: u32, blocks: u32, asked: Option<u32>) -> u32 {
    let warps = threads.div_ceil(WARP);
    let a_thread = REGISTERS_PER_SM / WARP / warps / blocks.max(1);
    // Registers are given to a warp by 256.
    let most = (a_thread / 8 * 8).clamp(16, 255);
    asked.map_or(most, |asked| most.min(asked.max(16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_that_may_be_launched_fits_the_registers_of_a_multiprocessor() {
        for threads in 1..=1024 {
            let most = most_registers(threads, 1, None);
            let a_warp = (registers(10_000, most) * WARP).next_multiple_of(256);
            assert!(
                a_warp * threads.div_ceil(WARP) <= REGISTERS_PER_SM,
                "{threads} threads"
            );
        }
    }

    #[test]
    fn limits_of_registers_hold_together() {
        assert_eq!(registers(500, most_registers(1024, 1, None)), 64);
        assert_eq!(registers(500, most_registers(640, 1, None)), 96);
        assert_eq!(registers(500, most_registers(128, 1, None)), 255);
        assert_eq!(registers(500, most_registers(128, 4, None)), 128);
        assert_eq!(registers(500, most_registers(128, 4, Some(40))), 40);
        assert_eq!(registers(500, most_registers(1024, u32::MAX, Some(0))), 16);
        assert_eq!(registers(1, most_registers(32, 1, None)), LEAST_REGISTERS);
    }
}
