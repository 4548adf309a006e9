//! Memory of a client's that others use: the chunks that it lies in, which live as long as anybody has them.
//!
//! Made by the window of the client that shares it, kept by those that import it. Must not know who they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{ExportedMemory, MemoryPiece, Window};

use crate::device::Device;
use crate::memory::physical::Mapping;
use crate::memory::zero_fill::ZeroFillProgress;

/// Memory of a client's that others use.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    range: Window,
    device: Arc<Device>,
    /// The memory, which lives as long as this, whether the client does or not.
    chunks: Vec<Arc<Mapping>>,
    /// When it is cleared, with whatever else its owner has there by then.
    cleared: Arc<ZeroFillProgress>,
    /// It is.
    is_cleared: AtomicBool,
}

impl SharedBlock {
    /// A range, the chunks that it lies in, in order, and when it is cleared or whether it is.
    pub(super) fn new(
        range: Window,
        device: Arc<Device>,
        chunks: Vec<Arc<Mapping>>,
        (cleared, is_cleared): (Arc<ZeroFillProgress>, bool),
    ) -> Self {
        Self {
            range,
            device,
            chunks,
            cleared,
            is_cleared: AtomicBool::new(is_cleared),
        }
    }

    pub(crate) const fn range(&self) -> Window {
        self.range
    }

    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// When it is cleared.
    pub(super) const fn cleared(&self) -> &Arc<ZeroFillProgress> {
        &self.cleared
    }

    /// See [`engine::Engine::export_memory`].
    ///
    /// # Errors
    /// As [`ZeroFillProgress::wait_until_over`], and the driver's status.
    pub(crate) fn export(&self, within: Duration) -> Result<ExportedMemory, CUresult> {
        // What its owner has got since may be cleared late: behind a long kernel.
        if !self.is_cleared.load(Ordering::Relaxed) {
            self.cleared.wait_until_over(within)?;
            self.is_cleared.store(true, Ordering::Relaxed);
        }
        let export = |chunk: &Arc<Mapping>| {
            Ok(MemoryPiece {
                bytes: chunk.at().bytes,
                descriptor: chunk.export()?,
            })
        };
        let first = self.chunks.first().map_or(0, |chunk| chunk.at().base);
        Ok(ExportedMemory {
            pieces: self.chunks.iter().map(export).collect::<Result<_, _>>()?,
            offset: self.range.base - first,
        })
    }

    /// Whether a device reaches it.
    pub(crate) fn is_reached_by(&self, device: &Device) -> bool {
        self.chunks.iter().all(|chunk| chunk.is_reached(device))
    }

    /// Lets a device reach it.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn reach(&self, device: &Device) -> Result<(), CUresult> {
        self.chunks
            .iter()
            .try_for_each(|chunk| chunk.reach(device, true))
    }
}
