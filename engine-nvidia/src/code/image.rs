//! An image: device code as the driver takes it, what the driver says of it, and the modules that are made of it.
//!
//! Owns modules that all clients share, and those that nobody has. Called by clients' modules, and by who keeps images. Must
//! not know contexts of clients.

use parking_lot::Mutex;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, OnceLock};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use protocol::image_descriptor::{Descriptor, Kernel, Variable};

use crate::code::loaded::{LoadRequest, Loaded};
use crate::code::moved_variables::MovedVariables;
use crate::code::prepare::Prepared;
use crate::code::refused::Refused;
use crate::code::room::{CodeRoom, RoomCharge};
use crate::code::variable_layout::VariableSection;
use crate::device::{Device, Turn};
use crate::driver::Driver;

/// Kernels of an image, and parameters of a kernel, beyond which the driver is not believed.
const MOST_KERNELS: u32 = 1 << 20;
const MOST_PARAMETERS: usize = 1 << 16;

/// Modules of an image that nobody has, of all devices.
const MOST_SPARES: usize = 16;

/// An image that the driver takes.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Arc<[u8]>,
    descriptor: Descriptor,
    /// How its variables can lie in memory of a client's, if they can, and what that client is told. Found out for the first who is
    /// kept.
    moved: OnceLock<Option<(MovedVariables, Descriptor)>>,
    /// Names of the kernels, in the descriptor's order, for the driver.
    kernels: Vec<CString>,
    /// The variables in the descriptor's order.
    variables: Vec<Placed>,
    /// Its kernels print to a ring of the module's.
    prints: bool,
    /// How many instructions are checked, if it is for fenced clients.
    checked: Option<usize>,
    /// Where its variables are, if all that can change in a module of it is known.
    sections: Option<Vec<VariableSection>>,
    /// Bytes of device memory that a module of it is taken to need.
    module_bytes: usize,
    room: Arc<CodeRoom>,
    /// Without variables there is nothing in a module that its users could change under each other, and all
    /// have the same one, one a device: loading another would wait for all kernels.
    shared: Mutex<Vec<SharedModule>>,
    /// Modules that nobody has, of an image with variables: the one that was made to learn all this, such as were
    /// loaded ahead, and those of clients that have gone which can be as new.
    spares: Mutex<Vec<Spare>>,
    /// Held by who loads one ahead, which waits for nobody: who comes meanwhile has that one instead of loading another.
    loading_ahead: Mutex<()>,
}

/// A device's module of an image without variables.
#[derive(Debug)]
struct SharedModule {
    device: Arc<Device>,
    /// `None` until it is loaded, which is done under this lock, so that of two who come at once one loads it. A lock for each
    /// device: a load on one may wait for what waits for another.
    loaded: Arc<Mutex<Option<Arc<Loaded>>>>,
}

/// A module that nobody has.
#[derive(Debug)]
struct Spare {
    loaded: Arc<Loaded>,
    /// `None` for the one that came with the image.
    held: Option<RoomCharge>,
}

/// Where a variable of an image is.
#[derive(Debug)]
pub(crate) enum Placed {
    /// Where the driver put the variable of this name.
    ByDriver(CString),
    /// In managed memory, whose address stands in a variable of the driver's.
    Managed(ManagedVariable),
}

/// A `__managed__` variable.
#[derive(Debug)]
pub(crate) struct ManagedVariable {
    /// The name of the variable with its address.
    pub(crate) pointer: CString,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    /// Its first bytes; zeroes follow.
    pub(crate) init: Vec<u8>,
}

/// Whether an address lies in the driver's managed memory.
fn is_managed(driver: &Driver, address: CUdeviceptr) -> bool {
    let mut managed = 0_u32;
    // SAFETY: the attribute is a word, and the pointer is to a local one.
    let asked = unsafe {
        driver.cuPointerGetAttribute(
            (&raw mut managed).cast(),
            CUpointer_attribute::IS_MANAGED,
            address,
        )
    };
    asked.is_ok() && managed != 0
}

impl Image {
    /// Loads it on a device, and learns what the driver says of it.
    ///
    /// # Errors
    /// As [`Loaded::new`].
    pub(crate) fn new(
        device: &Arc<Device>,
        prepared: &Prepared,
        room: &Arc<CodeRoom>,
        turn: Turn,
    ) -> Result<Self, Refused> {
        let Prepared {
            code,
            names,
            changes,
            sections,
            ..
        } = prepared;
        let request = LoadRequest {
            code,
            variables: sections.as_deref().map(|sections| (sections, room)),
            turn,
        };
        let loaded = Loaded::new(device, request)?;
        let driver = device.enter()?;
        let (kernels, kernel_names) = kernels(driver, loaded.module())?;
        let mut variables = Vec::new();
        let mut placed = Vec::new();
        for name in changes.variables(names.clone()) {
            if let Some(managed) = changes.managed(&name) {
                variables.push(Variable {
                    name: name.clone(),
                    bytes: managed.size,
                    managed: true,
                    align: managed.align,
                });
                placed.push(Placed::Managed(ManagedVariable {
                    pointer: CString::new(managed.pointer.as_str())
                        .map_err(|_| CUresult::ERROR_INVALID_PTX)?,
                    bytes: managed.size,
                    align: managed.align,
                    init: managed.init.clone(),
                }));
                continue;
            }
            // What holds a NUL is no name that a program could ask for.
            let Ok(c_name) = CString::new(name.as_str()) else {
                continue;
            };
            if let Ok((address, bytes)) = loaded.variable(&c_name) {
                if is_managed(driver, address) {
                    return Err(Refused {
                        code: CUresult::ERROR_NOT_SUPPORTED,
                        log: format!(
                            "variable `{name}` is __managed__: the driver keeps it where only this server \
                             reaches it; memory of cudaMallocManaged is shared"
                        ),
                    });
                }
                variables.push(Variable {
                    name: name.clone(),
                    bytes,
                    managed: false,
                    align: 0,
                });
                placed.push(Placed::ByDriver(c_name));
            }
        }
        let of_variables = variables.iter().map(|variable| variable.bytes);
        let of_variables = of_variables.fold(0, u64::saturating_add);
        let module_bytes = usize::try_from(of_variables).unwrap_or(usize::MAX);
        let image = Self {
            bytes: Arc::clone(code),
            // The real driver keeps the device heap itself.
            descriptor: Descriptor {
                kernels,
                variables,
                heap: false,
            },
            moved: OnceLock::new(),
            kernels: kernel_names,
            variables: placed,
            prints: changes.prints,
            checked: changes.checked,
            sections: sections.clone(),
            module_bytes: module_bytes.saturating_add(code.len()),
            room: Arc::clone(room),
            shared: Mutex::default(),
            spares: Mutex::default(),
            loading_ahead: Mutex::default(),
        };
        let loaded = Arc::new(loaded);
        match image.is_shared() {
            true => *image.shared_module(device).lock() = Some(loaded),
            false => image.spares.lock().push(Spare { loaded, held: None }),
        }
        Ok(image)
    }

    /// What is told of it.
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What is told of it to a client in whose memory its variables lie, and how they do. `None` if they cannot.
    pub(crate) fn moved(&self) -> Option<(&MovedVariables, &Descriptor)> {
        let moved = self.moved.get_or_init(|| {
            let moved = MovedVariables::new(&self.bytes, self.sections.as_deref()?)?;
            let descriptor = moved_descriptor(&moved, &self.descriptor);
            Some((moved, descriptor))
        });
        moved
            .as_ref()
            .map(|(moved, descriptor)| (moved, descriptor))
    }

    pub(crate) fn kernel_names(&self) -> &[CString] {
        &self.kernels
    }

    pub(crate) fn variables(&self) -> &[Placed] {
        &self.variables
    }

    /// It, as the driver gets it.
    pub(crate) fn code(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of it, as the driver gets them.
    pub(crate) fn code_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether its users have one module.
    pub(crate) fn is_shared(&self) -> bool {
        // What a fenced client's kernels may reach stands in the module.
        self.variables.is_empty() && !self.prints && self.checked.is_none()
    }

    /// Whether its kernels print to a ring of the module's.
    pub(crate) fn prints(&self) -> bool {
        self.prints
    }

    /// How many instructions are checked, if it is for fenced clients.
    pub(crate) fn checked(&self) -> Option<usize> {
        self.checked
    }

    /// Bytes of device memory that a module of it is taken to need.
    pub(crate) fn module_bytes(&self) -> usize {
        self.module_bytes
    }

    /// A module of this image on a device, that nobody else uses but where all have the same.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn instantiate(&self, device: &Arc<Device>) -> Result<Arc<Loaded>, CUresult> {
        if self.is_shared() {
            let shared = self.shared_module(device);
            let mut shared = device.gate().lock_for_client(&shared)?;
            if let Some(loaded) = &*shared {
                return Ok(Arc::clone(loaded));
            }
            let loaded = self.instantiate_alone(device)?;
            *shared = Some(Arc::clone(&loaded));
            return Ok(loaded);
        }
        let ahead = || {
            let _loaded = self.loading_ahead.lock();
            self.take_spare(device)
        };
        if let Some(loaded) = self.take_spare(device).or_else(ahead) {
            return Ok(loaded);
        }
        let loaded = self.instantiate_alone(device)?;
        self.count_spares();
        Ok(loaded)
    }

    /// Where the module of a device is that all clients share.
    fn shared_module(&self, device: &Arc<Device>) -> Arc<Mutex<Option<Arc<Loaded>>>> {
        let mut shared = self.shared.lock();
        let there = shared
            .iter()
            .find(|module| Arc::ptr_eq(&module.device, device));
        if let Some(module) = there {
            return Arc::clone(&module.loaded);
        }
        let loaded = Arc::default();
        shared.push(SharedModule {
            device: Arc::clone(device),
            loaded: Arc::clone(&loaded),
        });
        loaded
    }

    /// Counts the module that came with the image among those that are kept, or gives it up: until now it counted for a client,
    /// which has another.
    pub(crate) fn count_spares(&self) {
        let mut spares = self.spares.lock();
        spares.retain_mut(|spare| {
            if spare.held.is_none() {
                spare.held = self.room.charge_spare(self.module_bytes);
            }
            spare.held.is_some()
        });
    }

    /// As [`Image::instantiate`], of which nobody else has anything.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn instantiate_alone(&self, device: &Arc<Device>) -> Result<Arc<Loaded>, CUresult> {
        self.load(device, Turn::Wait).map(Arc::new)
    }

    fn load(&self, device: &Arc<Device>, turn: Turn) -> Result<Loaded, CUresult> {
        let sections = self.sections.as_deref();
        let request = LoadRequest {
            code: &self.bytes,
            variables: sections.map(|sections| (sections, &self.room)),
            turn,
        };
        Loaded::new(device, request).map_err(|refused| refused.code)
    }

    fn take_spare(&self, device: &Arc<Device>) -> Option<Arc<Loaded>> {
        let mut spares = self.spares.lock();
        let at = spares
            .iter()
            .position(|spare| Arc::ptr_eq(spare.loaded.device(), device))?;
        Some(spares.swap_remove(at).loaded)
    }

    /// A module of it that a client had, of which nothing runs any more: the next client who loads it has it, if it can be
    /// as new.
    pub(crate) fn give_back(&self, loaded: &Arc<Loaded>) {
        if self.is_shared() || !loaded.is_restorable() {
            return;
        }
        let Some(held) = self.room.charge_spare(self.module_bytes) else {
            return;
        };
        let mut spares = self.spares.lock();
        if spares.len() < MOST_SPARES {
            spares.push(Spare {
                loaded: Arc::clone(loaded),
                held: Some(held),
            });
        }
    }

    /// Whether the next who comes with it on a device would wait for a module.
    pub(crate) fn wants_spare(&self, device: &Arc<Device>) -> bool {
        let there = |spare: &Spare| Arc::ptr_eq(spare.loaded.device(), device);
        !self.is_shared() && !self.spares.lock().iter().any(there)
    }

    /// Loads a module for the next who comes with it on a device, or all, if there is none and room for one.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY while something runs, and the driver's status.
    pub(crate) fn load_spare(&self, device: &Arc<Device>) -> Result<(), CUresult> {
        if self.is_shared() {
            let shared = self.shared_module(device);
            // Who has it locked is loading it.
            if let Some(mut shared) = shared.try_lock()
                && shared.is_none()
            {
                *shared = Some(Arc::new(self.load(device, Turn::IfIdle)?));
            }
            return Ok(());
        }
        let _one = self.loading_ahead.lock();
        if !self.wants_spare(device) {
            return Ok(());
        }
        let Some(held) = self.room.charge_spare(self.module_bytes) else {
            return Ok(());
        };
        let loaded = Arc::new(self.load(device, Turn::IfIdle)?);
        self.spares.lock().push(Spare {
            loaded,
            held: Some(held),
        });
        Ok(())
    }

    /// Gives up the modules that nobody has. Whether there was any.
    pub(crate) fn drop_spares(&self) -> bool {
        let spares = std::mem::take(&mut *self.spares.lock());
        !spares.is_empty()
    }
}

/// What a client is told of an image whose variables lie in its memory.
fn moved_descriptor(moved: &MovedVariables, descriptor: &Descriptor) -> Descriptor {
    let managed = descriptor.variables.iter();
    let managed = managed.filter(|variable| variable.managed).cloned();
    let own = moved.variables().iter().map(|variable| Variable {
        name: variable.name.clone(),
        bytes: variable.bytes,
        managed: false,
        align: moved.alignment(),
    });
    Descriptor {
        variables: own.chain(managed).collect(),
        ..descriptor.clone()
    }
}

/// The kernels of a module and their names.
fn kernels(driver: &Driver, module: CUmodule) -> Result<(Vec<Kernel>, Vec<CString>), CUresult> {
    let mut count = 0;
    // SAFETY: the pointer is to a local; the module is alive.
    unsafe { driver.cuModuleGetFunctionCount(&raw mut count, module)? };
    let count = count.min(MOST_KERNELS);
    let mut functions = vec![CUfunction::NULL; count as usize];
    if count != 0 {
        // SAFETY: the list has room for `count`; the module is alive.
        unsafe { driver.cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)? };
    }
    let mut kernels = Vec::new();
    let mut names = Vec::new();
    for function in functions {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is to a local; the function is of a module that is alive.
        unsafe { driver.cuFuncGetName(&raw mut name, function)? };
        if name.is_null() {
            return Err(CUresult::ERROR_UNKNOWN);
        }
        // SAFETY: the driver's string ends with a NUL and lives as long as the module.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        kernels.push(kernel(
            driver,
            function,
            name.to_string_lossy().into_owned(),
        )?);
        names.push(name);
    }
    Ok((kernels, names))
}

fn kernel(driver: &Driver, function: CUfunction, name: String) -> Result<Kernel, CUresult> {
    let mut params = Vec::new();
    while params.len() < MOST_PARAMETERS {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the pointers are to locals; the function is alive.
        let asked = unsafe {
            driver.cuFuncGetParamInfo(function, params.len(), &raw mut offset, &raw mut size)
        };
        match asked {
            Ok(()) => params.push((offset as u32, size as u32)),
            // There is no parameter of this number.
            Err(CUresult::ERROR_INVALID_VALUE) => break,
            Err(code) => return Err(code),
        }
    }
    let fact = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a local; the function is alive.
        unsafe { driver.cuFuncGetAttribute(&raw mut value, attribute, function)? };
        Ok(value as u32)
    };
    // A driver from before clusters does not know what is asked.
    let cluster = |attribute| match fact(attribute) {
        Err(CUresult::ERROR_INVALID_VALUE) => Ok(0),
        known => known,
    };
    Ok(Kernel {
        name,
        params,
        max_threads: fact(CUfunction_attribute::MAX_THREADS_PER_BLOCK)?,
        shared_bytes: fact(CUfunction_attribute::SHARED_SIZE_BYTES)?,
        const_bytes: fact(CUfunction_attribute::CONST_SIZE_BYTES)?,
        local_bytes: fact(CUfunction_attribute::LOCAL_SIZE_BYTES)?,
        registers: fact(CUfunction_attribute::NUM_REGS)?,
        ptx_version: fact(CUfunction_attribute::PTX_VERSION)?,
        binary_version: fact(CUfunction_attribute::BINARY_VERSION)?,
        required_cluster: [
            cluster(CUfunction_attribute::REQUIRED_CLUSTER_WIDTH)?,
            cluster(CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT)?,
            cluster(CUfunction_attribute::REQUIRED_CLUSTER_DEPTH)?,
        ],
        cluster_must_be_set: cluster(CUfunction_attribute::CLUSTER_SIZE_MUST_BE_SET)?,
        // Only who launches learns of it.
        max_cluster: 0,
    })
}
