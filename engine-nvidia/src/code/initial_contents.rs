//! What the variables of a module hold when it is new, so that a module whose client has gone can be another's.
//!
//! Read from the device when the module is loaded, since addresses are among it that are this module's. Whole sections
//! are kept, with what is between variables, where the driver has them so. Called by `loaded`. Must not know clients.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUmodule;
use engine::Window;

use crate::code::room::{CodeRoom, RoomCharge};
use crate::code::variable_layout::VariableSection;
use crate::driver::Driver;
use crate::memory::address_space::ClientAddressSpace;

/// Bytes of a module's variables beyond which they are not kept: reading them takes time in which nothing runs.
const MOST: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct InitialContents {
    pieces: Vec<Piece>,
    _held: RoomCharge,
}

/// A section, or one variable of it.
#[derive(Debug)]
struct Piece {
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
        let mut kept = Vec::new();
        for section in sections {
            for place in places(driver, module, section)? {
                let mut bytes = vec![0_u8; place.bytes as usize];
                // SAFETY: the driver has so many bytes of variables from there on, as long as the module; the list has room
                // for them, and the copy is over when this returns.
                unsafe {
                    driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), place.base, bytes.len())
                }
                .ok()?;
                let base = place.base;
                kept.push(Piece { base, bytes });
            }
        }
        Some(Self {
            pieces: kept,
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
        for piece in &self.pieces {
            memory.set(device, piece.base, &piece.bytes)?;
        }
        Ok(())
    }
}

/// Where a module has a section: in one piece, if all variables in it that the driver finds say so; else each of its variables,
/// if the driver finds them all.
fn places(driver: &Driver, module: CUmodule, section: &VariableSection) -> Option<Vec<Window>> {
    let mut found = Vec::new();
    for symbol in &section.symbols {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the pointers are to locals and to a string with its NUL; the module is alive.
        let asked = unsafe {
            driver.cuModuleGetGlobal_v2(&raw mut base, &raw mut bytes, module, symbol.name.as_ptr())
        };
        if asked.is_ok() {
            let bytes = bytes as u64;
            if bytes != symbol.bytes {
                return None;
            }
            found.push((Window { base, bytes }, base.checked_sub(symbol.offset)?));
        }
    }
    let &(_, base) = found.first()?;
    if found.iter().all(|&(_, other)| other == base) {
        let bytes = section.bytes;
        return Some(vec![Window { base, bytes }]);
    }
    let are_all = found.len() == section.symbols.len();
    are_all.then(|| found.into_iter().map(|(place, _)| place).collect())
}
