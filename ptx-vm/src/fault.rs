//! What a kernel can do wrong while it runs, and which CUDA error that is.
//!
//! Operations say the kind; a block adds where it happened; the engine breaks the client's context with it.
//!
//! Must not know contexts: whose is broken by it, the engine says.

use std::fmt;

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
