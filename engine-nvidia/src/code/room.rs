//! Bounds of what is kept of code beside what clients have: modules that nobody has at the moment, and what variables held at
//! first.
//!
//! One for all devices of an engine. Must not know what is counted.

use std::sync::Arc;

use crate::sync::BoundedCount;

/// Bytes of host memory for first contents of variables.
const MOST_CONTENTS: usize = 64 << 20;
/// Bytes of device memory that modules may take which nobody has: so much, and such a part of the smallest device.
const MOST_CODE: u64 = 512 << 20;
const PART: u64 = 128;

/// Room for what is kept.
#[derive(Debug)]
pub(crate) struct CodeRoom {
    most: usize,
    contents: BoundedCount,
    spares: BoundedCount,
}

/// What something takes of the room, until this is dropped.
#[derive(Debug)]
pub(crate) struct RoomCharge {
    room: Arc<CodeRoom>,
    of: fn(&CodeRoom) -> &BoundedCount,
    bytes: usize,
}

impl CodeRoom {
    /// For devices of which the smallest has so much memory.
    pub(crate) fn new(memory: u64) -> Arc<Self> {
        let most = usize::try_from(MOST_CODE.min(memory / PART)).unwrap_or(usize::MAX);
        Arc::new(Self {
            most,
            contents: BoundedCount::of(MOST_CONTENTS),
            spares: BoundedCount::of(most),
        })
    }

    /// Bytes of code that may be kept of images that no client has; and again of modules that no client has.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Room for first contents, if there is so much.
    pub(crate) fn charge_contents(self: &Arc<Self>, bytes: usize) -> Option<RoomCharge> {
        self.charge(|room| &room.contents, bytes)
    }

    /// Room for a module that nobody has, if there is so much.
    pub(crate) fn charge_spare(self: &Arc<Self>, bytes: usize) -> Option<RoomCharge> {
        self.charge(|room| &room.spares, bytes)
    }

    fn charge(
        self: &Arc<Self>,
        of: fn(&Self) -> &BoundedCount,
        bytes: usize,
    ) -> Option<RoomCharge> {
        of(self).try_add(bytes).then(|| RoomCharge {
            room: Arc::clone(self),
            of,
            bytes,
        })
    }
}

impl Drop for RoomCharge {
    fn drop(&mut self) {
        (self.of)(&self.room).subtract(self.bytes);
    }
}
