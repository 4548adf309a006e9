//! A loaded module: its kernels with the facts that a driver reports of them, and its variables.

use std::fmt;
use std::sync::Arc;

/// What [`Module::load`] may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The most registers a thread may have (`CU_JIT_MAX_REGISTERS`); only reported, nothing spills.
    pub max_registers: Option<u32>,
}

/// Why a module cannot be loaded: becomes CUDA_ERROR_INVALID_PTX and the JIT log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Line of the PTX text, from 1; 0 where no line is at fault.
    pub line: u32,
    /// The function that it stands in, or empty.
    pub function: String,
    /// What is wrong; names the instruction as it is written.
    pub message: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line != 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.message)?;
        if !self.function.is_empty() {
            write!(f, " (in {})", self.function)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// The state space of a [`Global`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalSpace {
    /// `.global`
    Global,
    /// `.const`: placed in device memory like the others; kernels do not write it.
    Const,
}

/// An address that stands in a [`Global`]'s initial bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Where in the variable the 8 bytes lie.
    pub offset: u64,
    /// The index in [`Module::globals`] whose address is wanted; `None` for a function, whose address is
    /// all in `addend`.
    pub target: Option<usize>,
    /// What is added to that address.
    pub addend: u64,
}

/// A module-scope `.global` or `.const` variable. The layer above gives it device memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its state space.
    pub space: GlobalSpace,
    /// Bytes.
    pub size: u64,
    /// Alignment in bytes, a power of two.
    pub align: u64,
    /// First bytes; zeroes follow up to `size`.
    pub init: Vec<u8>,
    /// Addresses to write over `init`, 8 little-endian bytes each.
    pub relocations: Vec<Relocated>,
    /// Whether other modules and cuModuleGetGlobal see it.
    pub visible: bool,
    /// `.attribute(.managed)`
    pub managed: bool,
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
    /// Registers of a thread: an estimate from the most values that are live at once, 16 to 255.
    pub registers: u32,
    /// PTX version as CUDA reports it: 10 × major + minor.
    pub ptx_version: u32,
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Arc<Kernel>>,
    globals: Vec<Global>,
}

impl Module {
    /// Compiles every entry of a parsed module.
    ///
    /// # Errors
    /// [`LoadError`] at the first instruction that is wrong or not built.
    pub fn load(module: &ptx::ast::Module<'_>, options: &Options) -> Result<Self, LoadError> {
        let _ = (module, options);
        Err(LoadError {
            line: 0,
            function: String::new(),
            message: "the executor is being built".into(),
        })
    }

    /// Its entries in order of the source.
    #[must_use]
    pub fn kernels(&self) -> &[Arc<Kernel>] {
        &self.kernels
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
