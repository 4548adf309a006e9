//! What a fenced client's module is told of what its kernels may reach: the words of `ptx::fence`'s variable in it.
//!
//! Owns where that variable is and what was written there last, before the client's later work. Renewed by the client
//! before each launch. Must not know what the windows are of.

use parking_lot::Mutex;

use cuda_abi::CUresult;
use ptx::fence::{VARIABLE, VARIABLES, Windows};

use crate::code::loaded::Loaded;
use crate::device::context::Context;
use crate::memory::address_space::ClientAddressSpace;

/// See the module.
#[derive(Debug)]
pub(crate) struct ModuleFence {
    device: usize,
    /// Where the variable is; `None` in a module that checks nothing, and has none.
    variable: Option<u64>,
    /// Where checks write.
    record: u64,
    /// What stands there: nothing before the first launch.
    told: Mutex<Option<Windows>>,
}

impl ModuleFence {
    /// That of a module in a fenced client's context. `own` are addresses, and bytes, that only this module's kernels reach.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND for a module with checks and without the variable, and the driver's status.
    pub(crate) fn new(
        context: &Context,
        loaded: &Loaded,
        checked: usize,
        own: Option<(u64, u64)>,
        memory: &mut ClientAddressSpace,
    ) -> Result<Self, CUresult> {
        let device = context.device().number();
        let found =
            |name: &str| match loaded.variable(&std::ffi::CString::new(name).unwrap_or_default()) {
                Ok((address, _)) => Ok(Some(address)),
                Err(CUresult::ERROR_NOT_FOUND) if checked == 0 => Ok(None),
                Err(code) => Err(code),
            };
        let variable = found(VARIABLE)?;
        if let Some((address, bytes)) = own
            && let Some(list) = found(VARIABLES)?
        {
            let words = [address, bytes].map(u64::to_le_bytes);
            memory.set(device, list, words.as_flattened())?;
        }
        let record = context.record().ok_or(CUresult::ERROR_UNKNOWN)?;
        Ok(Self {
            device,
            variable,
            record: record.address(),
            told: Mutex::default(),
        })
    }

    /// Has the module say what its client has now. The window that is looked at first is the largest at the first launch, and
    /// from then on what there is from where it begins: kernels that run may read the words while they are written, one
    /// after the other.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn renew(&self, memory: &mut ClientAddressSpace) -> Result<(), CUresult> {
        let (Some(variable), Some(table)) = (self.variable, memory.table(self.device)) else {
            return Ok(());
        };
        let mut told = self.told.lock();
        let first = table.window_from(told.map(|told| told.base));
        let now = Windows {
            base: first.base,
            size: first.bytes,
            table: table.address(),
            count: table.count(),
            record: self.record,
        };
        if *told == Some(now) {
            return Ok(());
        }
        let words = now.words().map(u64::to_le_bytes);
        memory.set(self.device, variable, words.as_flattened())?;
        // A window of nothing begins nowhere yet.
        *told = Some(now).filter(|now| now.size > 0 || told.is_some());
        Ok(())
    }
}
