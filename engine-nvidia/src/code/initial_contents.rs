//! What the variables of a module hold when it is new, so that a module whose client has gone can be another's.
//!
//! Read from the device when the module is loaded, since addresses are among it that are this module's. Each variable by
//! itself: NVIDIA's driver has those of a section apart, each in memory of its own, but constants, which are in one
//! piece. Called by `loaded`. Must not know clients.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUmodule;

use crate::code::room::{CodeRoom, RoomCharge};
use crate::code::variable_layout::{VariableSection, VariableSymbol};
use crate::driver::Driver;
use crate::memory::address_space::ClientAddressSpace;

/// Bytes of a module's variables beyond which they are not kept: reading them takes time in which nothing runs.
const MOST_BYTES: u64 = 1 << 20;
/// Likewise, variables: each takes a copy of its own.
const MOST_VARIABLES: usize = 128;

/// See the module.
#[derive(Debug)]
pub(crate) struct InitialContents {
    variables: Vec<InitialVariable>,
    _held: RoomCharge,
}

#[derive(Debug)]
struct InitialVariable {
    address: u64,
    bytes: Vec<u8>,
}

impl InitialContents {
    /// Reads them, while nothing runs; the module's context is current. `None` if the driver has not just these variables, if
    /// there are too many, or no room.
    pub(crate) fn read(
        driver: &Driver,
        module: CUmodule,
        sections: &[VariableSection],
        room: &Arc<CodeRoom>,
    ) -> Option<Self> {
        let symbols = || sections.iter().flat_map(|section| &section.symbols);
        let bytes = symbols().map(|symbol| symbol.bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        if bytes > MOST_BYTES || symbols().count() > MOST_VARIABLES {
            return None;
        }
        let held = room.charge_contents(usize::try_from(bytes).ok()?)?;
        let variables = symbols().map(|symbol| InitialVariable::read(driver, module, symbol));
        let mut variables = variables.collect::<Option<Vec<_>>>()?;
        variables.sort_by_key(|variable| variable.address);
        // Of two symbols with one name the driver finds one, twice: the other's variable would keep what it holds.
        let ends_before_next = |two: &[InitialVariable]| {
            two[0].address + two[0].bytes.len() as u64 <= two[1].address && !two[0].bytes.is_empty()
        };
        variables.windows(2).all(ends_before_next).then_some(Self {
            variables,
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
        for variable in &self.variables {
            memory.set(device, variable.address, &variable.bytes)?;
        }
        Ok(())
    }
}

impl InitialVariable {
    /// `None` if the driver does not find it, or finds something else.
    fn read(driver: &Driver, module: CUmodule, symbol: &VariableSymbol) -> Option<Self> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are to locals and to a string with its NUL; the module is alive.
        unsafe {
            driver.cuModuleGetGlobal_v2(
                &raw mut address,
                &raw mut bytes,
                module,
                symbol.name.as_ptr(),
            )
        }
        .ok()?;
        if bytes as u64 != symbol.bytes {
            return None;
        }
        let mut contents = vec![0_u8; bytes];
        // SAFETY: the variable has so many bytes, as long as its module is there; the list has room for them, and the copy
        // is over when this returns.
        unsafe { driver.cuMemcpyDtoH_v2(contents.as_mut_ptr().cast(), address, bytes) }.ok()?;
        Some(Self {
            address,
            bytes: contents,
        })
    }
}
