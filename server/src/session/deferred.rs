//! What a session defers until other work is complete, and how it ends.
//!
//! Called by the session's loop and by `dispatch`. Must not know when work is complete: `stream_scheduler` says that.

use engine::Window;
use protocol::control_messages::Ending;
use protocol::operations::{Opcode, StreamCreate, TextureDestroy};
use transport::ring::Record;

use crate::code::arrays::ArrayCharge;
use crate::ipc::foreign_block::MappedBlock;
use crate::memory::client_memory::MemoryBlock;

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

/// Work of a stream that is blocked behind other work.
#[derive(Debug)]
pub enum BlockedWork {
    /// A stream's record, and when it came, in nanoseconds of CLOCK_MONOTONIC; 0 if nobody asks.
    Record(Record, u64),
    /// A stream, to be made when its slot's former one has finished.
    Create(StreamCreate),
}

/// Something to be done when all work taken before it is complete.
#[derive(Debug)]
pub enum DeferredAction {
    /// Free memory.
    Free(MemoryBlock),
    /// Unload a module.
    Unload(u64),
    /// End an array.
    EndArray(u64, ArrayCharge),
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
    CloseImport(u64),
    /// Take a block of another server's client away.
    EndImport(MappedBlock),
    /// Free the slot of a shared event, by the event's number.
    CloseEvent(u32),
    /// Let a semaphore of another interface go.
    EndSemaphore(u64),
    /// Carry out a call that there was no memory for, or no free addresses.
    Retry(Record),
}

/// Whether a record asks for memory, or addresses that are to be free, and waits for the answer.
pub(super) fn takes_memory(record: &Record) -> bool {
    [
        Opcode::MemAlloc,
        Opcode::HostAlloc,
        Opcode::HostReserve,
        Opcode::ManagedAlloc,
        Opcode::ModuleLoad,
        Opcode::PhysicalCreate,
        Opcode::PhysicalMap,
        Opcode::ArrayCreate,
    ]
    .iter()
    .any(|&opcode| record.header.opcode == opcode as u16)
}
