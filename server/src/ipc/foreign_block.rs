//! A block of another server's client, mapped at addresses of a client's own.
//!
//! Called by `blocks`. Must not know who shares it, nor how it was found.

use cuda_abi::CUresult;
use engine::{Client, Window};
use protocol::operations::MemImportReply;

use crate::ipc::elsewhere::{ForeignBlock, Lease};
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::ClientMemory;

/// What devices map memory in: pieces begin at a multiple of it.
const UNIT: u64 = 2 << 20;

/// A block that is mapped.
#[derive(Debug)]
pub struct MappedBlock {
    device: u32,
    /// The block.
    block: Window,
    /// The addresses that were reserved for the pieces in which it lies.
    reserved: Window,
    /// Where they are mapped.
    pieces: Vec<Window>,
    _lease: Lease,
}

impl MappedBlock {
    /// Maps a block.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are not as many addresses, and what the engine says. Then nothing is left of it.
    pub fn map(
        block: ForeignBlock,
        memory: &mut ClientMemory,
        backing: &mut ClientBacking<'_>,
    ) -> Result<Self, CUresult> {
        let ForeignBlock {
            device,
            bytes,
            offset,
            pieces,
            lease,
        } = block;
        if !pieces.iter().all(|piece| piece.bytes.is_multiple_of(UNIT)) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let whole = pieces.iter().map(|piece| piece.bytes).sum();
        let base = memory.reserve(device, whole, UNIT, backing)?;
        let mut mapped = Self {
            device,
            block: Window {
                base: base + offset,
                bytes,
            },
            reserved: Window { base, bytes: whole },
            pieces: Vec::with_capacity(pieces.len()),
            _lease: lease,
        };
        let mut at = base;
        for piece in &pieces {
            let place = Window {
                base: at,
                bytes: piece.bytes,
            };
            at += piece.bytes;
            let placed = backing.0.foreign_import(device, piece).and_then(|memory| {
                let part = mapped.part(place);
                backing.0.foreign_map(place, &memory, part)
            });
            if let Err(code) = placed {
                mapped.end(backing.0, memory);
                return Err(code);
            }
            mapped.pieces.push(place);
        }
        Ok(mapped)
    }

    /// What of a piece belongs to the block.
    fn part(&self, piece: Window) -> Window {
        let base = self.block.base.clamp(piece.base, piece.base + piece.bytes);
        let end = (self.block.base + self.block.bytes).clamp(base, piece.base + piece.bytes);
        Window {
            base,
            bytes: end - base,
        }
    }

    /// What the client is told.
    #[must_use]
    pub const fn reply(&self) -> MemImportReply {
        MemImportReply {
            address: self.block.base,
            bytes: self.block.bytes,
            device: self.device,
        }
    }

    /// Lets no new work reach it.
    pub fn withdraw(&self, client: &mut dyn Client) {
        for &piece in &self.pieces {
            // Devices that never reached it do not either way; after the last one there is none.
            let mut devices = 0..u64::BITS;
            let nowhere = Err(CUresult::ERROR_INVALID_DEVICE);
            devices.find(|&device| client.physical_access(piece, device, false) == nowhere);
        }
    }

    /// Takes it away, when nothing that the client has begun uses it any more.
    pub fn end(self, client: &mut dyn Client, memory: &mut ClientMemory) {
        for &piece in &self.pieces {
            client.physical_unmap(piece);
        }
        let Window { base, bytes } = self.reserved;
        memory.unreserve(self.device, base, bytes);
    }
}
