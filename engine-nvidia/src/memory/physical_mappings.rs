//! Physical memory that a client made and maps itself (cuMemCreate, cuMemMap), or that another process made, and where it is
//! mapped.
//!
//! Called by the window of the device, which knows that the addresses are the client's. Must not know what else the
//! client has there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{ExportedMemory, MemoryPiece, Window};

use crate::device::Device;
use crate::memory::physical::{Allocation, Mapping, Reservation};
use crate::memory::zero_fill::{PAUSE, ZeroFillProgress};

/// Zeroed memory without an address that a client knows.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Where it is cleared, if that is done here. It stays there for good, so that nobody waits for the clearing to end.
    home: Option<Mapping>,
    allocation: Arc<Allocation>,
    cleared: Arc<ZeroFillProgress>,
}

impl Physical {
    /// Memory of a device, which whoever calls has cleared where this says; `cleared` says when that is done.
    ///
    /// # Errors
    /// The driver's status. The device's context is current.
    pub(super) fn new(
        device: &Arc<Device>,
        bytes: u64,
        cleared: Arc<ZeroFillProgress>,
    ) -> Result<(Self, Window), CUresult> {
        let allocation = Allocation::new(device, bytes)?;
        let reservation = Reservation::anywhere(device, bytes)?;
        let home = Mapping::new(&reservation, reservation.window(), &allocation, 0)?;
        home.reach(device, true)?;
        let at = home.at();
        let made = Self {
            home: Some(home),
            allocation,
            cleared,
        };
        Ok((made, at))
    }

    /// Memory of a device that another process made and has cleared. `cleared` is that of the client's other memory there.
    ///
    /// # Errors
    /// As [`Allocation::import`].
    pub(super) fn import(
        device: &Arc<Device>,
        piece: &MemoryPiece,
        cleared: Arc<ZeroFillProgress>,
    ) -> Result<Self, CUresult> {
        Ok(Self {
            home: None,
            allocation: Allocation::import(device, piece.bytes, &piece.descriptor)?,
            cleared,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.allocation.bytes()
    }

    /// See [`engine::Engine::export_memory`].
    ///
    /// # Errors
    /// As [`ZeroFillProgress::wait_until_over`], and the driver's status.
    pub(crate) fn export(&self, within: Duration) -> Result<ExportedMemory, CUresult> {
        if self.home.is_some() {
            self.cleared.wait_until_over(within)?;
        }
        let piece = MemoryPiece {
            bytes: self.bytes(),
            descriptor: self.allocation.export()?,
        };
        Ok(ExportedMemory {
            pieces: vec![piece],
            offset: 0,
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let device = self.allocation.device();
        while self.home.is_some()
            && let Ok(driver) = device.enter()
            && !self.cleared.is_over(driver)
        {
            let _ = device.probe();
            std::thread::sleep(PAUSE);
        }
    }
}

/// Physical memory that the client has mapped.
#[derive(Debug)]
struct MappedPhysical {
    mapping: Mapping,
    /// Of another process's memory, what the client reaches of it, as it reaches what was committed. Of its own, all of it, by
    /// those devices to which it has said so. Nothing of it, once that was withdrawn.
    part: Option<Window>,
    /// Kept while it is mapped.
    physical: Arc<Physical>,
}

impl MappedPhysical {
    /// What of it can be reached.
    fn visible(&self) -> Window {
        self.part.unwrap_or(self.mapping.at())
    }
}

/// What a client has mapped itself in one window, by address.
#[derive(Debug, Default)]
pub(super) struct PhysicalMappings(BTreeMap<u64, MappedPhysical>);

impl PhysicalMappings {
    /// Whether all of a range is mapped, and for a device.
    pub(super) fn has_all(&self, range: Window, on: &Device) -> bool {
        let end = range.base + range.bytes;
        let mut at = range.base;
        while at < end {
            let part = self.0.range(..=at).next_back();
            let Some((_, mapped)) = part else {
                return false;
            };
            let visible = mapped.visible();
            // What is another process's every device comes to reach that reaches the client's own.
            if !visible.contains(at, 1) || mapped.part.is_none() && !mapped.mapping.is_reached(on) {
                return false;
            }
            at = visible.base + visible.bytes;
        }
        true
    }

    /// Where something is mapped, and for a device.
    pub(super) fn reached(&self, on: &Device) -> impl Iterator<Item = Window> {
        let mappings = self.0.values();
        let reached = mappings.filter(|mapped| mapped.mapping.is_reached(on));
        let visible = reached.map(MappedPhysical::visible);
        visible.filter(|window| window.bytes > 0)
    }

    /// Lets one more device reach what is another process's.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn let_foreign_be_reached(&self, by: &Device) -> Result<(), CUresult> {
        let shown = |mapped: &&MappedPhysical| mapped.part.is_some_and(|part| part.bytes > 0);
        let mut foreign = self.0.values().filter(shown);
        foreign.try_for_each(|mapped| mapped.mapping.reach(by, true))
    }

    /// Lets devices reach a part of the mapping that begins at an address, which is another process's.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn show_part<'d>(
        &mut self,
        base: u64,
        part: Window,
        mut by: impl Iterator<Item = &'d Arc<Device>>,
    ) -> Result<(), CUresult> {
        let mapped = self.0.get_mut(&base);
        let mapped = mapped.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        mapped.part = Some(part);
        by.try_for_each(|device| mapped.mapping.reach(device, true))
    }

    /// Lets no more work reach the mapping that begins at an address, if it is of another process's memory. That of a client's own
    /// is reached by those devices that are left to it.
    pub(super) fn withdraw(&mut self, base: u64) {
        let mapped = self.0.get_mut(&base);
        if let Some(part) = mapped.and_then(|mapped| mapped.part.as_mut()) {
            part.bytes = 0;
        }
    }

    /// Whether something is mapped in a part of a range.
    pub(super) fn has_any(&self, range: Window) -> bool {
        let before = self.0.range(..range.base + range.bytes).next_back();
        before.is_some_and(|(_, mapped)| {
            let there = mapped.mapping.at();
            there.base + there.bytes > range.base
        })
    }

    /// Where the next mapping from an address on begins.
    pub(super) fn next_from(&self, address: u64) -> Option<u64> {
        self.0.range(address..).next().map(|(&base, _)| base)
    }

    /// Maps physical memory, from an offset of it on, at addresses of a reservation where nothing is mapped.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn map(
        &mut self,
        (reservation, at): (&Arc<Reservation>, Window),
        physical: &Arc<Physical>,
        offset: u64,
    ) -> Result<(), CUresult> {
        let mapped = MappedPhysical {
            mapping: Mapping::new(reservation, at, &physical.allocation, offset)?,
            part: None,
            physical: Arc::clone(physical),
        };
        self.0.insert(at.base, mapped);
        Ok(())
    }

    /// The mapping at exactly these addresses, and when what is mapped there is cleared.
    pub(super) fn at(&self, at: Window) -> Option<(&Mapping, &Arc<ZeroFillProgress>)> {
        let mapped = self.0.get(&at.base)?;
        (mapped.mapping.at() == at).then_some((&mapped.mapping, &mapped.physical.cleared))
    }

    /// Ends the mapping that begins at an address. Whoever calls knows that no work uses it.
    pub(super) fn unmap(&mut self, base: u64) {
        self.0.remove(&base);
    }
}
