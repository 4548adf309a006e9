//! Through which pointers among its parameters a kernel reads and writes global memory, or why that cannot be said.
//!
//! A flow of data, not of control: of each register is found of which bytes of the parameters its value may be made, and
//! whether it may be something else, in any order of the instructions, until nothing is added. An address is understood if
//! a whole pointer from the parameters may be in it, and nothing that was loaded from memory. That a pointer stays within
//! its allocation, whatever is added to it, is CUDA's rule, and is taken for granted.
//!
//! Called by the engines where work that was cut off may have to be done again: so what depends on anything but memory
//! and parameters is refused too, and whatever other threads of the device could tell apart. An instruction that stands in
//! no list here is refused. Must not know launches: where pointers point is others' to find out.

mod flow;
mod forms;
mod origin;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use crate::ast::Module;

/// Through what a kernel reads and writes global memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    /// What it reads.
    pub reads: BTreeSet<Place>,
    /// What it writes.
    pub writes: BTreeSet<Place>,
}

/// What addresses of a kernel are made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The offsets in the parameters, in bytes, of all pointers, of 8 bytes, that may be in it. There may also be something
    /// that is no pointer, and they may overlap.
    pub offsets: Vec<u32>,
    /// Whether it may lie below the pointer.
    pub is_lowered: bool,
}

/// Why it cannot be said what a kernel reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The line of the text, from 1.
    pub line: u32,
    /// What stands there.
    pub why: &'static str,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Through which pointers a kernel of a module reads and writes.
///
/// # Errors
/// What of the kernel is not understood.
pub fn pointers(module: &Module<'_>, kernel: &str) -> Result<Pointers, Unknown> {
    let entry = module
        .functions
        .iter()
        .find(|function| function.entry && function.name == kernel && function.body.is_some())
        .ok_or(Unknown {
            line: 1,
            why: "there is no such kernel",
        })?;
    flow::of_kernel(module, entry)
}
