//! A module of the driver's: an image that is loaded on a device.
//!
//! Owns the module, and what it takes to make it as new again once a client has had it: what its variables held at first,
//! and attributes of its kernels. Called by images and by clients' modules. Must not know whose it is.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::code::initial_contents::InitialContents;
use crate::code::refused::Refused;
use crate::code::room::CodeRoom;
use crate::code::variable_layout::VariableSection;
use crate::device::{Device, Turn};
use crate::memory::address_space::ClientAddressSpace;
use crate::memory::zero_fill::ZeroFillProgress;
use crate::sync::Handle;

/// Bytes of the driver's log that are kept.
const LOG: usize = 16 << 10;

/// Attributes of kernels that a client may change of a module that is used again.
const MOST_CHANGED: usize = 1 << 12;

/// How a module is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadRequest<'a> {
    /// The image with its padding.
    pub(crate) code: &'a [u8],
    /// Where its variables are, if what they hold at first is to be kept.
    pub(crate) variables: Option<(&'a [VariableSection], &'a Arc<CodeRoom>)>,
    /// When.
    pub(crate) turn: Turn,
}

/// A module of the driver's; unloaded on drop.
#[derive(Debug)]
pub(crate) struct Loaded {
    device: Arc<Device>,
    module: Handle<CUmodule>,
    /// By kernel, the most dynamic shared memory that any of its users asked for.
    most_shared: Mutex<HashMap<u32, i32>>,
    /// What its variables hold before anybody has it. `None` where that is not known of all of them.
    initial: Option<InitialContents>,
    /// What who had it last has written to its variables before its work, if somebody had it.
    last_writes: Mutex<Option<Arc<ZeroFillProgress>>>,
    /// Attributes that were set, as they were before. `None` if that is not known of one.
    changed: Mutex<Option<Vec<ChangedAttribute>>>,
}

/// An attribute as it was.
#[derive(Clone, Copy, Debug)]
struct ChangedAttribute {
    function: Handle<CUfunction>,
    attribute: CUfunction_attribute,
    value: i32,
}

impl Loaded {
    /// Loads an image.
    ///
    /// # Errors
    /// What the driver says, with its log; CUDA_ERROR_NOT_READY where it is not the [turn](Turn) now.
    pub(crate) fn new(device: &Arc<Device>, request: LoadRequest<'_>) -> Result<Self, Refused> {
        let driver = device.enter()?;
        let mut module = CUmodule::NULL;
        let mut log = vec![0_u8; LOG];
        let mut options = [
            CUjit_option::ERROR_LOG_BUFFER,
            CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            std::ptr::without_provenance_mut(LOG - 1),
        ];
        let result = device.run_in(request.turn, || {
            // SAFETY: pointers are to locals; the image's tables were found to stay within it, PTX ends
            // with a NUL, and the options say the log's size.
            unsafe {
                driver.cuModuleLoadDataEx(
                    &raw mut module,
                    request.code.as_ptr().cast(),
                    options.len() as u32,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )?;
            }
            // Now, while no copy waits for anything.
            let variables = request.variables;
            Ok(variables
                .and_then(|(sections, room)| InitialContents::read(driver, module, sections, room)))
        });
        let initial = device.confirm(result).map_err(|code| {
            let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            if code == CUresult::ERROR_DEVICE_UNAVAILABLE && device.gate().is_stuck() {
                let log = "the device waits for work of a client that has gone, which does not end: the \
                           server's log says of which client, and what to do";
                return Refused {
                    code,
                    log: log.to_owned(),
                };
            }
            if text.is_empty() {
                return Refused::from(code);
            }
            Refused {
                code,
                log: text.to_string_lossy().into_owned(),
            }
        })?;
        Ok(Self {
            device: Arc::clone(device),
            module: Handle(module),
            most_shared: Mutex::default(),
            initial,
            last_writes: Mutex::default(),
            changed: Mutex::new(Some(Vec::new())),
        })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn module(&self) -> CUmodule {
        self.module.0
    }

    pub(crate) fn most_shared(&self) -> MutexGuard<'_, HashMap<u32, i32>> {
        self.most_shared.lock()
    }

    /// Whether it can be as new for the next who has it.
    pub(crate) fn is_restorable(&self) -> bool {
        self.initial.is_some() && self.changed.lock().is_some() && self.device.check().is_ok()
    }

    /// Sees to it that the client with this memory finds it as new, whoever had it before: before all of the client's
    /// later work. Nothing of it runs any more.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn begin_use(&self, memory: &mut ClientAddressSpace) -> Result<(), CUresult> {
        let mut last = self.last_writes.lock();
        let number = self.device.number();
        let writes = memory.set_after(number, last.as_ref())?;
        if last.replace(writes).is_none() {
            return Ok(());
        }
        drop(last);
        let unknown = CUresult::ERROR_UNKNOWN;
        let initial = self.initial.as_ref().ok_or(unknown)?;
        initial.restore(number, memory)?;
        self.most_shared.lock().clear();
        let mut changed = self.changed.lock();
        for was in changed.as_mut().ok_or(unknown)?.drain(..) {
            let driver = self.device.enter()?;
            // SAFETY: the function is of this module, which is alive.
            unsafe { driver.cuFuncSetAttribute(was.function.0, was.attribute, was.value)? };
        }
        Ok(())
    }

    /// An attribute of a kernel is about to be set.
    ///
    /// # Errors
    /// What the device died of.
    pub(crate) fn will_set(
        &self,
        function: Handle<CUfunction>,
        attribute: CUfunction_attribute,
    ) -> Result<(), CUresult> {
        let mut changed = self.changed.lock();
        let Some(known) = &mut *changed else {
            return Ok(());
        };
        if known
            .iter()
            .any(|was| was.function == function && was.attribute == attribute)
        {
            return Ok(());
        }
        let mut value = 0;
        // SAFETY: the pointer is to a local; the function is of this module, which is alive.
        let asked = unsafe {
            let driver = self.device.enter()?;
            driver.cuFuncGetAttribute(&raw mut value, attribute, function.0)
        };
        if asked.is_ok() && known.len() < MOST_CHANGED {
            known.push(ChangedAttribute {
                function,
                attribute,
                value,
            });
        } else {
            *changed = None;
        }
        Ok(())
    }

    /// A kernel's function.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND, or what the device died of.
    pub(crate) fn function(&self, name: &CStr) -> Result<Handle<CUfunction>, CUresult> {
        let mut function = CUfunction::NULL;
        // SAFETY: the pointers are to a local and to a string with its NUL; the module is alive.
        unsafe {
            self.device.enter()?.cuModuleGetFunction(
                &raw mut function,
                self.module.0,
                name.as_ptr(),
            )?;
        }
        Ok(Handle(function))
    }

    /// A variable's address and size.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND, or what the device died of.
    pub(crate) fn variable(&self, name: &CStr) -> Result<(u64, u64), CUresult> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are to locals and to a string with its NUL; the module is alive.
        unsafe {
            self.device.enter()?.cuModuleGetGlobal_v2(
                &raw mut address,
                &raw mut bytes,
                self.module.0,
                name.as_ptr(),
            )?;
        }
        Ok((address, bytes as u64))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let module = self.module;
        self.device.when_idle(0, move |driver| {
            // SAFETY: made in `new`; whoever had it waited for the work that used it.
            let _ = unsafe { driver.cuModuleUnload(module.raw()) };
        });
    }
}
