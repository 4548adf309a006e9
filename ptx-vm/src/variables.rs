//! Variables of a module: what the layer above must know to place them in device memory.
//!
//! Made by lowering, read by the engine. Must not know addresses: the engine gives them.

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
    /// The index in [`crate::Module::globals`] whose address is wanted; `None` for a function, whose address is
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
