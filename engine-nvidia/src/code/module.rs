//! A client's module: an image on a device, with variables and attributes of its own.
//!
//! Owns the driver's module, or a share of the image's, and the attributes that were set. Called by the client;
//! kept by launches as long as they run. Must not know streams.

use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::CUresult;
use cuda_abi::types::{CUfunction, CUfunction_attribute};
use engine::{Observer, Window};

use crate::code::budget::CodeCharge;
use crate::code::client_code::ClientCode;
use crate::code::image::{ManagedVariable, Placed};
use crate::code::images::ClientImage;
use crate::code::loaded::Loaded;
use crate::code::module_fence::ModuleFence;
use crate::code::output::{RING, Ring};
use crate::code::own_variables::{OwnVariables, TwinConstant, variable_memory};
use crate::device::context::Context;
use crate::memory::address_space::ClientAddressSpace;
use crate::sync::Handle;

/// One module of a client.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    image: Arc<ClientImage>,
    /// The driver's.
    loaded: OnceLock<Arc<Loaded>>,
    /// If that is loaded when it is first needed, the block of its variables until then. Locked by who loads it.
    late: Mutex<Option<u64>>,
    /// Other clients' modules may have the same `loaded`.
    shared: bool,
    /// Attributes that were set: kernel, attribute, value.
    attributes: Mutex<Vec<(u32, CUfunction_attribute, i32)>>,
    functions: Vec<OnceLock<Handle<CUfunction>>>,
    /// Kernels of which the driver has taken a launch.
    launched: Vec<AtomicBool>,
    /// Where each variable is, in the descriptor's order.
    variables: Vec<Window>,
    /// Those of its variables that are constants and lie in the client's memory.
    constants: Vec<TwinConstant>,
    /// Where its kernels print to.
    ring: Option<OwnRing>,
    /// What it is told of what its kernels may reach, in a fenced client.
    fence: Option<ModuleFence>,
    /// What it counts of code, if `loaded` is its own.
    _code: Option<CodeCharge>,
}

/// A module's ring, which counts among its client's.
#[derive(Debug)]
struct OwnRing {
    ring: Ring,
    bytes: usize,
    client: Arc<ClientCode>,
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        self.client.output().ring_freed(self.bytes);
    }
}

impl Module {
    /// Loads an image in a context. Its managed variables get memory of the client's, and if what the client has `is_kept` for
    /// another server, all that can.
    ///
    /// # Errors
    /// The driver's status; CUDA_ERROR_OUT_OF_MEMORY if there is no memory for managed variables.
    pub(crate) fn new(
        context: &Arc<Context>,
        image: Arc<ClientImage>,
        memory: &mut ClientAddressSpace,
        client: &Arc<ClientCode>,
        is_kept: bool,
    ) -> Result<Self, CUresult> {
        let shared = image.is_shared();
        let code = match shared {
            true => None,
            false => Some(own_code(context, &image, client)?),
        };
        let observer = client.observer();
        let own = match is_kept {
            true => OwnVariables::place(context, &image, observer)?,
            false => None,
        };
        let are_written = observer.has_variables();
        if let Some(own) = &own
            && are_written
            && can_be_late(&image, own)
        {
            // Another server had it: its client is not to wait for code that it may not use soon, or ever.
            let (base, variables) = (own.base(), own.windows().collect());
            return Ok(Self::of(context, image.clone(), Err(base), code, variables));
        }
        let file = own.as_ref().map(OwnVariables::file).transpose()?;
        let file = file.as_deref().unwrap_or_default();
        let loaded = match &own {
            Some(own) if own.has_addresses() => {
                let loaded = own.load(context, file)?;
                image.count_spares();
                loaded
            }
            _ => image.instantiate(context.device())?,
        };
        if !shared {
            loaded.begin_use(memory)?;
        }
        let mut variables = Vec::with_capacity(image.variables().len());
        let mut constants = Vec::new();
        if let Some(own) = &own {
            variables.extend(own.windows());
            constants = own.set(context, (&loaded, file), memory, are_written)?;
        }
        for placed in image.variables() {
            variables.push(match placed {
                Placed::ByDriver(_) if own.is_some() => continue,
                Placed::ByDriver(name) => {
                    let (base, bytes) = loaded.variable(name)?;
                    Window { base, bytes }
                }
                Placed::Managed(variable) => {
                    let range = place(context, variable, observer)?;
                    if !are_written {
                        memory.set_host(range, &variable.init)?;
                    }
                    let (pointer, _) = loaded.variable(&variable.pointer)?;
                    let device = context.device().number();
                    memory.set(device, pointer, &range.base.to_le_bytes())?;
                    range
                }
            });
        }
        let ring = match image.prints() {
            true => make_ring(context, &loaded, memory, client)?,
            false => None,
        };
        let fence = match image.checked() {
            Some(checked) => {
                let own = ring.as_ref().map(|own| own.ring.place());
                Some(ModuleFence::new(context, &loaded, checked, own, memory)?)
            }
            None => None,
        };
        let mut module = Self::of(context, image.clone(), Ok(loaded), code, variables);
        (module.ring, module.fence) = (ring, fence);
        module.constants = constants;
        Ok(module)
    }

    /// The same module, but that no other client has a part in it any more. It has no variables, as no
    /// shared one has.
    ///
    /// # Errors
    /// The driver's status; CUDA_ERROR_OUT_OF_MEMORY if the client has much code of its own.
    pub(crate) fn apart(&self, client: &ClientCode) -> Result<Self, CUresult> {
        let image = Arc::clone(&self.image);
        let code = own_code(&self.context, &image, client)?;
        let loaded = image.instantiate_alone(self.context.device())?;
        let apart = Self::of(&self.context, image, Ok(loaded), Some(code), Vec::new());
        for &(kernel, attribute, value) in &*self.attributes.lock() {
            apart.set(kernel, attribute, value)?;
        }
        Ok(apart)
    }

    /// One with the driver's module, or the block of its variables, for which that is loaded later.
    fn of(
        context: &Arc<Context>,
        image: Arc<ClientImage>,
        loaded: Result<Arc<Loaded>, u64>,
        code: Option<CodeCharge>,
        variables: Vec<Window>,
    ) -> Self {
        let late = loaded.as_ref().err().copied();
        Self {
            context: Arc::clone(context),
            functions: image
                .kernel_names()
                .iter()
                .map(|_| OnceLock::new())
                .collect(),
            launched: image
                .kernel_names()
                .iter()
                .map(|_| AtomicBool::default())
                .collect(),
            image,
            loaded: loaded.map(OnceLock::from).unwrap_or_default(),
            late: Mutex::new(late),
            shared: code.is_none(),
            attributes: Mutex::default(),
            variables,
            constants: Vec::new(),
            ring: None,
            fence: None,
            _code: code,
        }
    }

    /// Has it say what its kernels may reach, before the client's later work, if the client is fenced.
    ///
    /// # Errors
    /// What a kernel of its context was not let do before, and the driver's status.
    pub(crate) fn renew_fence(&self, memory: &mut ClientAddressSpace) -> Result<(), CUresult> {
        match &self.fence {
            Some(fence) => {
                self.context.check_record()?;
                fence.renew(memory)
            }
            None => Ok(()),
        }
    }

    /// Whether its kernels may print.
    pub(crate) fn prints(&self) -> bool {
        self.ring.is_some()
    }

    /// Takes what its kernels have printed, and tells the client.
    pub(crate) fn drain_output(&self) {
        if let Some(own) = &self.ring {
            own.client.drain(&own.ring);
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn variables(&self) -> &[Window] {
        &self.variables
    }

    /// Those of its variables that are constants and lie in the client's memory, and where the driver has them.
    pub(crate) fn constants(&self) -> &[TwinConstant] {
        &self.constants
    }

    /// Whether the driver has it.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.get().is_some()
    }

    /// Has the driver load it, if it has not yet.
    ///
    /// # Errors
    /// As [`Module::loaded`].
    pub(crate) fn load(&self) -> Result<(), CUresult> {
        self.loaded().map(drop)
    }

    /// The driver's module, which is loaded now if it is not yet.
    ///
    /// # Errors
    /// Why it is not; whoever needs it next tries again.
    fn loaded(&self) -> Result<&Arc<Loaded>, CUresult> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let mut late = self.late.lock();
        if let Some(base) = *late {
            let invalid = CUresult::ERROR_INVALID_IMAGE;
            let own = OwnVariables::at(&self.image, base).ok_or(invalid)?;
            let loaded = own.load(&self.context, &own.file()?)?;
            self.image.count_spares();
            for &(kernel, attribute, value) in &*self.attributes.lock() {
                self.set_in_driver(&loaded, (kernel, attribute, value))?;
            }
            // Nobody else sets it.
            let _ = self.loaded.set(loaded);
            *late = None;
        }
        self.loaded.get().ok_or(CUresult::ERROR_UNKNOWN)
    }

    /// A kernel's function.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if there is no kernel of this number; as [`Module::loaded`].
    pub(crate) fn function(&self, kernel: u32) -> Result<Handle<CUfunction>, CUresult> {
        let invalid = CUresult::ERROR_INVALID_HANDLE;
        let cell = self.functions.get(kernel as usize).ok_or(invalid)?;
        if let Some(function) = cell.get() {
            return Ok(*function);
        }
        let function = self.loaded()?.function(self.name(kernel)?)?;
        Ok(*cell.get_or_init(|| function))
    }

    /// A kernel's name for the driver.
    fn name(&self, kernel: u32) -> Result<&CStr, CUresult> {
        let name = self.image.kernel_names().get(kernel as usize);
        name.map(CString::as_c_str)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Bytes of local memory that each thread of a kernel needs.
    pub(crate) fn local_bytes(&self, kernel: u32) -> u64 {
        let kernel = self.image.descriptor().kernels.get(kernel as usize);
        kernel.map_or(0, |kernel| kernel.local_bytes.into())
    }

    /// The driver has taken a launch of a kernel.
    pub(crate) fn launched(&self, kernel: u32) {
        if let Some(launched) = self.launched.get(kernel as usize)
            && !launched.load(Ordering::Relaxed)
        {
            launched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the driver has taken a launch of a kernel.
    pub(crate) fn was_launched(&self, kernel: u32) -> bool {
        self.launched
            .get(kernel as usize)
            .is_some_and(|launched| launched.load(Ordering::Relaxed))
    }

    /// A kernel's name, for who reads of it.
    pub(crate) fn kernel_name(&self, kernel: u32) -> Option<&str> {
        let kernel = self.image.descriptor().kernels.get(kernel as usize)?;
        Some(beginning(&kernel.name))
    }

    /// Bytes of a kernel's parameter block.
    pub(crate) fn parameter_bytes(&self, kernel: u32) -> usize {
        let kernel = self.image.descriptor().kernels.get(kernel as usize);
        kernel
            .and_then(|kernel| {
                let ends = kernel
                    .params
                    .iter()
                    .map(|&(offset, size)| offset as usize + size as usize);
                ends.max()
            })
            .unwrap_or(0)
    }

    /// Whether an attribute can be set without a change for other clients. The most of dynamic shared
    /// memory is a limit, which each client's library holds its own launches to.
    pub(crate) fn can_set(&self, attribute: CUfunction_attribute) -> bool {
        !self.shared || attribute == CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES
    }

    /// Sets an attribute of a kernel, which [`Module::can_set`] allows.
    ///
    /// # Errors
    /// The driver's status, or as [`Module::function`].
    pub(crate) fn set(
        &self,
        kernel: u32,
        attribute: CUfunction_attribute,
        value: i32,
    ) -> Result<(), CUresult> {
        match self.loaded.get() {
            Some(loaded) => self.set_in_driver(loaded, (kernel, attribute, value))?,
            // When it is loaded.
            None => drop(self.name(kernel)?),
        }
        let mut attributes = self.attributes.lock();
        attributes.retain(|&(of, which, _)| (of, which) != (kernel, attribute));
        attributes.push((kernel, attribute, value));
        Ok(())
    }

    /// Has the driver set an attribute of a kernel.
    fn set_in_driver(
        &self,
        loaded: &Loaded,
        (kernel, attribute, value): (u32, CUfunction_attribute, i32),
    ) -> Result<(), CUresult> {
        let function = loaded.function(self.name(kernel)?)?;
        let device = self.context.device();
        if !self.shared {
            loaded.will_set(function, attribute)?;
        }
        let mut most = loaded.most_shared();
        // What is no size is for the driver to refuse.
        let raised = if self.shared && value >= 0 {
            value.max(most.get(&kernel).copied().unwrap_or(value))
        } else {
            value
        };
        // SAFETY: the function is of our module, which is alive.
        device.confirm(unsafe {
            device
                .enter()?
                .cuFuncSetAttribute(function.0, attribute, raised)
        })?;
        if attribute == CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
            most.insert(kernel, raised);
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Whoever had it waited for the work that used it.
        if let Some(loaded) = self.loaded.get().filter(|_| !self.shared) {
            self.image.give_back(loaded);
        }
    }
}

/// Whether a module whose variables another server has written is loaded when it is first needed: nothing has to be read of the
/// driver's, and nothing of it is set.
fn can_be_late(image: &ClientImage, own: &OwnVariables<'_>) -> bool {
    let mut variables = image.variables().iter();
    own.has_addresses()
        && !own.has_constants()
        && variables.all(|placed| matches!(placed, Placed::ByDriver(_)))
        && !image.prints()
        && image.checked().is_none()
}

/// Counts the code of a module that is one client's only.
fn own_code(
    context: &Context,
    image: &ClientImage,
    client: &ClientCode,
) -> Result<CodeCharge, CUresult> {
    let device = context.device().number();
    client.charge(device, image.code_bytes())
}

/// Gives a module that prints its ring, if there is room for one: printing is no reason to fail.
fn make_ring(
    context: &Context,
    loaded: &Loaded,
    memory: &mut ClientAddressSpace,
    client: &Arc<ClientCode>,
) -> Result<Option<OwnRing>, CUresult> {
    let (variable, _) = loaded.variable(RING)?;
    let Some(bytes) = client.output().ring_bytes() else {
        return Ok(None);
    };
    let Ok(ring) = Ring::new(context.device(), bytes) else {
        client.output().ring_freed(bytes);
        return context.device().check().map(|()| None);
    };
    let own = OwnRing {
        ring,
        bytes,
        client: Arc::clone(client),
    };
    let device = context.device().number();
    memory.set(device, variable, &own.ring.address().to_le_bytes())?;
    Ok(Some(own))
}

/// Gives a managed variable memory in the client's host window.
fn place(
    context: &Context,
    variable: &ManagedVariable,
    observer: &dyn Observer,
) -> Result<Window, CUresult> {
    let size = (variable.bytes, variable.align);
    let base = variable_memory(context, observer, size, true)?;
    Ok(Window {
        base,
        bytes: variable.bytes,
    })
}

/// As much of a name as lines of a log have room for: it is the client's, who may make it as long as an image.
fn beginning(name: &str) -> &str {
    const MOST: usize = 1024;
    &name[..name.floor_char_boundary(MOST)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_very_long_name_the_beginning_is_told() {
        assert_eq!(beginning("saxpy"), "saxpy");
        assert_eq!(beginning(&"k".repeat(5_000)), "k".repeat(1_024));
        // In the middle of a character.
        assert_eq!(beginning(&"\u{20ac}".repeat(5_000)), "\u{20ac}".repeat(341));
    }
}
