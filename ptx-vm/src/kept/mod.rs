//! Compiled code in a form that can lie in a file until a later process of the same program has the same text to run.
//!
//! A module is kept as what is known of it, without its code; each program of a kernel by itself, as it was emitted. What
//! runs operations are functions of this program, which lies elsewhere in every process: a kept program has them as
//! distances from where this program's own code begins, and they are looked up again when it is read. So what is kept is
//! good for exactly this build ([`compiled_for`] names it), and a reader is given nothing but what that build wrote: who
//! has the files answers for that, by a checksum and by whose they are. Whatever the bytes are, a reader reads them without harm.
//!
//! Called by `module`. Must not know files.

mod build;
mod bytes;
mod module;
mod program;

use std::fmt::Debug;

use super::module::{Module, Options};

/// Who keeps what is compiled of one module, and has it compiled again where something is missing.
pub trait KeptCode: Debug + Send + Sync {
    /// The program of a kernel for lane groups of so many lanes, as [`KeptCode::keep`] was given it, whole and by this build.
    fn find(&self, kernel: u32, lanes: u32) -> Option<Vec<u8>>;

    /// A program has been compiled; `bytes` if it can be kept.
    fn compiled(&self, kernel: u32, lanes: u32, bytes: Option<&[u8]>);

    /// Compiles the text of a module that was read from what was kept, for the code of its kernels. `None` if that is not
    /// possible any more.
    fn compile(&self) -> Option<Module>;
}

/// What code depends on beside the module's text and [`Options::max_registers`]: this build of the program, and what it compiles
/// for on this machine. `None` where a build cannot be told from another.
#[must_use]
pub fn compiled_for(options: &Options) -> Option<Vec<u8>> {
    let mut name = build::own()?.id.clone();
    let target = options.target();
    name.extend([target.isa as u8, u8::from(target.jit)]);
    name.extend(options.lanes().to_le_bytes());
    Some(name)
}
