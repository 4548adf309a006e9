//! What a session holds back, and how it ends.

use cuda_abi::CUresult;
use cuda_abi::operations::{Opcode, StreamCreate, TextureDestroy};
use engine::{Client, Window};
use transport::handshake::Ending;
use transport::ring::Record;

use crate::addresses::Account;
use crate::arrays::Charge;
use crate::heap::Backing;
use crate::memory::Block;

/// How a session came to its end.
#[derive(Debug)]
pub struct End {
    /// In a word.
    pub how: Ending,
    /// In more.
    pub reason: Option<String>,
}

impl End {
    /// The client broke a rule.
    pub(super) fn violation(reason: impl std::fmt::Display) -> Self {
        Self {
            how: Ending::Malformed,
            reason: Some(reason.to_string()),
        }
    }
}

/// Something that was held.
#[derive(Debug)]
pub enum Item {
    /// A stream's record.
    Record(Record),
    /// A stream, to be made when its slot's former one has finished.
    Create(StreamCreate),
}

/// Something to be done when all work taken before it is complete.
#[derive(Debug)]
pub enum Action {
    /// Free memory.
    Free(Block),
    /// Unload a module.
    Unload(u64),
    /// End an array.
    EndArray(u64, Charge),
    /// End a texture or surface.
    EndTexture(TextureDestroy),
    /// End a context.
    EndContext(u32),
    /// Let nothing new reach a mapping of physical memory.
    Withdraw(u64),
    /// Take a mapping of physical memory away.
    Unmap(u64),
    /// Give addresses of a device back.
    Unreserve(u32, Window),
    /// Close another client's block.
    Close(u64),
    /// Forget a shared event.
    ForgetEvent(u32),
    /// Carry out a call that there was no memory for, or no free addresses.
    Again(Record),
}

/// An engine's client as the memory's backing, and what it has of the arena.
pub struct Committer<'a>(pub &'a mut dyn Client, pub &'a Account);

impl Backing for Committer<'_> {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        self.0.commit(range)
    }
    fn decommit(&mut self, range: Window) {
        self.0.decommit(range);
    }
    fn extend(&mut self, device: u32, bytes: u64) -> Result<Window, CUresult> {
        let addresses = self.1.take(bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let window = addresses.window();
        self.0.window_add(device, window, addresses)?;
        Ok(window)
    }
    fn retract(&mut self, window: Window) {
        self.0.window_remove(window);
    }
}

/// Whether a record asks for memory, or addresses that are to be free, and waits for the answer.
pub(super) fn takes_memory(record: &Record) -> bool {
    [
        Opcode::MemAlloc,
        Opcode::HostAlloc,
        Opcode::ManagedAlloc,
        Opcode::ModuleLoad,
        Opcode::PhysicalCreate,
        Opcode::PhysicalMap,
        Opcode::ArrayCreate,
    ]
    .iter()
    .any(|&opcode| record.header.opcode == opcode as u16)
}
