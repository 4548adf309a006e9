//! What this server's clients share, for clients of the user's other servers: found by its token, exported, and leased.
//!
//! Called by the main thread when the daemon asks. What may have to wait is for a thread of its own. Must not know who asks.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::ExportedMemory;
use protocol::control_messages::{SharedDevice, SharedObject};
use transport::socket::DESCRIPTORS_MAX;

use crate::admission::ServerResources;
use crate::ipc::descriptors::Leased;
use crate::ipc::exports::{ExportedObject, Token};
use crate::log::Log;

/// How long what is shared may take to be cleared.
const CLEARED_WITHIN: Duration = Duration::from_millis(1500);

/// Objects that are exported at a time.
const MOST_AT_ONCE: usize = 64;

/// How many objects are being exported for other servers.
#[derive(Debug, Default)]
pub struct ExportsUnderWay(AtomicUsize);

/// One of them.
#[derive(Debug)]
pub struct ExportUnderWay<'c>(&'c ExportsUnderWay);

impl ExportsUnderWay {
    /// One more, unless there are many.
    #[must_use]
    pub fn begin(&self) -> Option<ExportUnderWay<'_>> {
        let begun = ExportUnderWay(self);
        // Counted down again by the drop.
        (self.0.fetch_add(1, Ordering::AcqRel) < MOST_AT_ONCE).then_some(begun)
    }
}

impl Drop for ExportUnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What another server gets of an object, with its descriptors. May wait for its memory to be cleared. Nothing if it cannot be
/// another server's, or is going.
#[must_use]
pub fn export(
    host: &ServerResources,
    log: &dyn Log,
    token: Token,
    object: &ExportedObject,
) -> Option<(SharedObject, Vec<OwnedFd>)> {
    let _one = host.exports_under_way.begin()?;
    let shared_device = |number: u32| {
        let facts = host.engine.devices().get(number as usize)?;
        let uuid = facts.uuid;
        Some(SharedDevice { number, uuid })
    };
    let (held, leased, owner) = match object {
        ExportedObject::Block(block) => {
            let import = block.import().ok()?;
            (&block.held, Leased::Block(import), block.session)
        }
        ExportedObject::Physical(memory) => {
            let owner = memory.charge.session();
            (&memory.held, Leased::Physical(memory.clone()), owner)
        }
        ExportedObject::Event(_) => return None,
    };
    let exported = host.engine.export_memory(held, CLEARED_WITHIN);
    let ExportedMemory { pieces, offset } = exported
        .inspect_err(|code| {
            let text = format!(
                "Memory that another server of the user asks for is not to be had there: {code}"
            );
            log.line(false, &text);
        })
        .ok()?;
    if pieces.len() >= DESCRIPTORS_MAX {
        let count = pieces.len();
        let text = format!(
            "Memory that another server of the user asks for lies in {count} pieces: it can be opened in this server only"
        );
        log.line(false, &text);
        return None;
    }
    let lease = host.descriptors.lease(owner, token, leased).ok()?;
    let object = match object {
        ExportedObject::Block(block) => SharedObject::Block {
            device: shared_device(block.device)?,
            bytes: block.range.bytes,
            offset,
            pieces: pieces.iter().map(|piece| piece.bytes).collect(),
        },
        ExportedObject::Physical(memory) => SharedObject::Physical {
            device: shared_device(memory.charge.device)?,
            bytes: memory.charge.bytes,
        },
        ExportedObject::Event(_) => return None,
    };
    let pieces = pieces.into_iter().map(|piece| piece.descriptor);
    Some((object, std::iter::once(lease).chain(pieces).collect()))
}
