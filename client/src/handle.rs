//! Handles as a program sees them: tagged numbers, never addresses.
//!
//! A handle says what kind of object it names, which slot of that kind's table, and the slot's
//! generation when the object was made. So a dead, foreign or invented handle is found out by
//! comparing numbers; nothing that a program passes is ever followed as a pointer. The top byte makes
//! every handle a non-canonical address, so that a program that follows one fails at once. Its top bit
//! is clear: a pointer to a real object is positive, and bindings (cuda.core) read handles as signed.
//!
//! Used by every table that gives out handles, and by `api`. Must not know what is in a slot: it names a kind, no
//! more.

pub(crate) mod object_table;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    /// CUcontext
    Context = 0x41,
    /// CUstream
    Stream = 0x42,
    /// CUevent
    Event = 0x43,
    /// CUmodule
    Module = 0x44,
    /// CUfunction and CUkernel: both are accepted where either is declared.
    Function = 0x45,
    /// CUlibrary
    Library = 0x46,
    /// CUgreenCtx: the place is that of its context.
    GreenContext = 0x47,
    /// CUdevResourceDesc: what it describes is in the handle itself.
    Resources = 0x48,
    /// CUmemoryPool
    Pool = 0x51,
    /// CUarray
    Array = 0x52,
    /// CUmipmappedArray
    Mipmaps = 0x53,
    /// CUlinkState
    Link = 0x54,
    /// CUtexref
    TextureReference = 0x55,
    /// CUsurfref
    SurfaceReference = 0x56,
    /// CUgraph
    Graph = 0x61,
    /// CUgraphNode
    GraphNode = 0x62,
    /// CUgraphExec
    GraphExec = 0x63,
    /// CUuserObject
    UserObject = 0x64,
}

/// A place in a table of objects: which slot, and which of its tenants. One word, as it stands in a
/// handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(u64);

const INDEX_BITS: u32 = 24;
const GENERATION_SHIFT: u32 = INDEX_BITS;
const KIND_SHIFT: u32 = 56;

/// Slots that a table can have at most.
pub(crate) const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

impl Key {
    /// The place of a slot's occupant of some generation.
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << GENERATION_SHIFT | index as u64)
    }

    /// The slot.
    pub(crate) const fn index(self) -> u32 {
        self.0 as u32 & MAX_INDEX
    }

    /// The slot's generation.
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// The handle of an object of a kind.
    pub(crate) const fn handle(self, kind: HandleKind) -> u64 {
        debug_assert!((kind as u8) < 0x80, "a handle is positive");
        (kind as u64) << KIND_SHIFT | self.0
    }

    /// The place that a handle names, if it is of this kind.
    pub(crate) const fn of(handle: u64, kind: HandleKind) -> Option<Self> {
        if handle >> KIND_SHIFT != kind as u64 {
            return None;
        }
        Some(Self(handle & ((1 << KIND_SHIFT) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_back_its_place_and_only_to_its_kind() {
        let key = Key::new(MAX_INDEX, u32::MAX);
        assert_eq!((key.index(), key.generation()), (MAX_INDEX, u32::MAX));
        let handle = key.handle(HandleKind::Stream);
        assert_eq!(Key::of(handle, HandleKind::Stream), Some(key));
        assert_eq!(Key::of(handle, HandleKind::Event), None);
        assert!(handle.cast_signed() > 0);
        for plain in [0, 1, 2, 0x7fff_1234_5678] {
            assert_eq!(Key::of(plain, HandleKind::Stream), None);
        }
    }
}
