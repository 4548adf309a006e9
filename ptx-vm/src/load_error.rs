//! Why a module cannot be loaded. Lowering says it, the engine makes a CUDA error and a JIT log of it.
//!
//! Knows instructions and lines; the code that a program is answered with is chosen in `engine-soft/src/image.rs`.

use std::fmt;

/// Why a module cannot be loaded: becomes CUDA_ERROR_INVALID_PTX or CUDA_ERROR_OUT_OF_MEMORY, and the JIT
/// log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Line of the PTX text, from 1; 0 where no line is at fault.
    pub line: u32,
    /// The function that it stands in, or empty.
    pub function: String,
    /// What is wrong; names the instruction as it is written.
    pub message: String,
    /// It asks for more than the software GPU gives to one module (`limits.rs`), rather than being
    /// wrong.
    pub limit: bool,
}

impl LoadError {
    /// What is wrong with a line of a function.
    pub(crate) fn new(line: u32, function: &str, message: impl Into<String>) -> Self {
        Self {
            line,
            function: function.into(),
            message: message.into(),
            limit: false,
        }
    }

    /// A refusal: `what` is more than `most`.
    pub(crate) fn beyond(line: u32, function: &str, what: &str, most: u64) -> Self {
        Self {
            limit: true,
            ..Self::new(
                line,
                function,
                format!("{what}: the software GPU takes {most} at most"),
            )
        }
    }
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
