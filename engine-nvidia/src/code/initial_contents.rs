//! What the variables of a module hold when it is new, so that a module whose client has gone can be another's.
//!
//! Read from the device when the module is loaded, since addresses are among it that are this module's. Whole sections
//! are kept, with what is between variables. Called by `loaded`. Must not know clients.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUmodule;

use crate::code::room::{CodeRoom, RoomCharge};
use crate::code::variable_layout::VariableSection;
use crate::driver::Driver;
use crate::memory::address_space::ClientAddressSpace;

/// Bytes of a module's variables beyond which they are not kept: reading them takes time in which nothing runs.
const MOST: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct InitialContents {
    sections: Vec<Section>,
    _held: RoomCharge,
}

#[derive(Debug)]
struct Section {
    base: u64,
    bytes: Vec<u8>,
}

impl InitialContents {
    /// Reads them, while nothing runs; the module's context is current. `None` if the driver has not just these variables,
    /// or there is no room.
    pub(crate) fn read(
        driver: &Driver,
        module: CUmodule,
        sections: &[VariableSection],
        room: &Arc<CodeRoom>,
    ) -> Option<Self> {
        let bytes = sections.iter().map(|section| section.bytes);
        let bytes = bytes
            .fold(0_u64, u64::saturating_add)
            .try_into()
            .ok()
            .filter(|&bytes: &usize| bytes as u64 <= MOST)?;
        let held = room.charge_contents(bytes)?;
        let sections = sections.iter().map(|section| {
            let mut bytes = vec![0_u8; section.bytes as usize];
            let base = place(driver, module, section)?;
            // SAFETY: the section is in the driver's memory from there on, as long as the module; the list has room for
            // it, and the copy is over when this returns.
            unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), base, bytes.len()) }.ok()?;
            Some(Section { base, bytes })
        });
        Some(Self {
            sections: sections.collect::<Option<Vec<_>>>()?,
            _held: held,
        })
    }

    /// Puts them back, before all later work of the client with this memory.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn restore(
        &self,
        device: usize,
        memory: &mut ClientAddressSpace,
    ) -> Result<(), CUresult> {
        for section in &self.sections {
            memory.set(device, section.base, &section.bytes)?;
        }
        Ok(())
    }
}

/// Where a module has a section, if all variables in it that the driver finds say the same.
fn place(driver: &Driver, module: CUmodule, section: &VariableSection) -> Option<u64> {
    let mut place = None;
    for symbol in &section.symbols {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are to locals and to a string with its NUL; the module is alive.
        let found = unsafe {
            driver.cuModuleGetGlobal_v2(
                &raw mut address,
                &raw mut bytes,
                module,
                symbol.name.as_ptr(),
            )
        };
        if found.is_err() {
            continue;
        }
        let base = address.checked_sub(symbol.offset)?;
        if bytes as u64 != symbol.bytes || place.is_some_and(|place| place != base) {
            return None;
        }
        place = Some(base);
    }
    place
}
