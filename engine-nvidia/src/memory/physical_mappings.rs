//! Physical memory that a client made and maps itself (cuMemCreate, cuMemMap), and where it has mapped it.
//!
//! Called by the window of the device, which knows that the addresses are the client's. Must not know what else the
//! client has there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use engine::Window;

use crate::device::Device;
use crate::memory::physical::{Allocation, Mapping, Reservation};
use crate::memory::zero_fill::ZeroFillProgress;

/// Between two looks whether memory is cleared, where that must be waited for.
const PAUSE: Duration = Duration::from_micros(50);

/// Zeroed memory without an address that a client knows.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Where it is cleared. It stays there for good, so that nobody waits for the clearing to end.
    home: Mapping,
    allocation: Arc<Allocation>,
    cleared: Arc<ZeroFillProgress>,
}

impl Physical {
    /// Memory of a device, which whoever calls has cleared at [`Physical::home`]; `cleared` says when that is done.
    ///
    /// # Errors
    /// The driver's status. The device's context is current.
    pub(super) fn new(
        device: &Arc<Device>,
        bytes: u64,
        cleared: Arc<ZeroFillProgress>,
    ) -> Result<Self, CUresult> {
        let allocation = Allocation::new(device, bytes)?;
        let reservation = Reservation::anywhere(device, bytes)?;
        let home = Mapping::new(&reservation, reservation.window(), &allocation, 0)?;
        home.reach(device, true)?;
        Ok(Self {
            home,
            allocation,
            cleared,
        })
    }

    /// Where it is cleared.
    pub(super) const fn home(&self) -> Window {
        self.home.at()
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let device = self.allocation.device();
        while let Ok(driver) = device.enter()
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
    /// Kept while it is mapped.
    physical: Arc<Physical>,
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
            let Some((_, MappedPhysical { mapping, .. })) = part else {
                return false;
            };
            if !mapping.at().contains(at, 1) || !mapping.is_reached(on) {
                return false;
            }
            at = mapping.at().base + mapping.at().bytes;
        }
        true
    }

    /// Where something is mapped, and for a device.
    pub(super) fn reached(&self, on: &Device) -> impl Iterator<Item = Window> {
        let mappings = self.0.values().map(|mapped| &mapped.mapping);
        let reached = mappings.filter(|mapping| mapping.is_reached(on));
        reached.map(Mapping::at)
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
