//! Images: device code as clients send it, kept by content, and what the driver says of it.
//!
//! Owns the images of all clients, each once, for as long as anybody has it. Called by clients that load one. Must
//! not know contexts of clients.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Charge;
use protocol::image_descriptor::{Descriptor, Kernel, Variable};
use protocol::linked_image;
use ptx::image::{ImageKind, classify};

use crate::code::link;
use crate::code::rewrite::{self, Changes};
use crate::code::symbols;
use crate::device::Device;
use crate::driver::Driver;
use crate::sync::Handle;

/// Zeroes behind an image: a NUL for PTX, and room for a reader that goes a little too far.
pub(crate) const PADDING: usize = 4096;

/// Bytes of the driver's log that are kept.
const LOG: usize = 16 << 10;

/// Kernels of an image, and parameters of a kernel, beyond which the driver is not believed.
const MOST_KERNELS: u32 = 1 << 20;
const MOST_PARAMETERS: usize = 1 << 16;

/// Why an image was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: CUresult,
    pub(crate) log: String,
}

impl From<CUresult> for Refused {
    fn from(code: CUresult) -> Self {
        Self {
            code,
            log: code.to_string(),
        }
    }
}

/// All images that clients have at the moment, by their bytes.
#[derive(Debug, Default)]
pub(crate) struct Images {
    known: Mutex<HashMap<Arc<[u8]>, Weak<Image>>>,
}

impl Images {
    /// The image with these bytes; the driver is asked only if nobody has it already. `charge` is for what is
    /// made meanwhile, and for the image as long as anybody has it.
    ///
    /// # Errors
    /// Why the driver does not take it, with its log.
    pub(crate) fn load(
        &self,
        device: &Arc<Device>,
        bytes: &[u8],
        mut charge: Charge,
    ) -> Result<Arc<Image>, Refused> {
        let linked = match linked_image::is_linked(bytes) {
            true => Some(link::link(device, bytes)?),
            false => None,
        };
        let bytes = linked.as_ref().map_or(bytes, |linked| &linked.code[..]);
        let padded: Arc<[u8]> = link::padded(bytes).into();
        if let Some(image) = self.known.lock().get(&padded).and_then(Weak::upgrade) {
            return Ok(image);
        }
        // Not under the lock: compiling takes long. Two that come at once both compile.
        let mut names = symbols::variables(bytes)?;
        let rewritten = match &linked {
            Some(_) => None,
            None => rewrite::rewritten(bytes, device.architecture()),
        };
        if !matches!(rewritten, Some(Ok(_)))
            && linked.is_none()
            && rewrite::sets_conditions(bytes, device.architecture())
        {
            return Err(Refused {
                code: CUresult::ERROR_NOT_SUPPORTED,
                log: "machine code that calls cudaGraphSetConditional: conditional nodes need PTX here; \
                      build with -gencode arch=compute_XX,code=compute_XX and without -rdc=true"
                    .to_owned(),
            });
        }
        let mut changes = linked
            .as_ref()
            .map_or_else(Changes::default, |linked| linked.changes.clone());
        let text = match &rewritten {
            Some(Ok(rewritten)) => {
                changes.add(rewritten);
                // It is this text that is loaded, and references have other names in it.
                names = symbols::variables(rewritten.text.as_bytes())?;
                Some(rewritten.text.as_bytes())
            }
            _ => (classify(bytes) == Some(ImageKind::Ptx)).then_some(bytes),
        };
        let code = text.map_or_else(
            || Arc::clone(&padded),
            |text| {
                let compiled = link::compile(device, text);
                link::padded(compiled.as_deref().unwrap_or(text)).into()
            },
        );
        charge.shrink_to(padded.len() as u64);
        let image = Image::new(device, code, names, &changes, charge).map_err(|refused| {
            // Why what might have helped did not.
            match &rewritten {
                Some(Err(why)) => Refused {
                    log: format!(
                        "{}; the image's PTX cannot be rewritten: {why}",
                        refused.log
                    ),
                    ..refused
                },
                _ => refused,
            }
        })?;
        let image = Arc::new(image);
        let mut known = self.known.lock();
        known.retain(|_, image| image.strong_count() > 0);
        known.insert(padded, Arc::downgrade(&image));
        Ok(image)
    }
}

/// An image that the driver takes.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Arc<[u8]>,
    descriptor: Descriptor,
    /// Names of the kernels, in the descriptor's order, for the driver.
    kernels: Vec<CString>,
    /// The variables in the descriptor's order.
    variables: Vec<Placed>,
    /// Its kernels print to a ring of the module's.
    prints: bool,
    /// Modules of it, at most one a device. Without variables there is nothing in a module that its
    /// users could change under each other, and all have the same one: loading another would wait for
    /// all kernels. With variables there is the one here that was made to learn all this, until the
    /// first user comes, who takes it if it is on the right device.
    loaded: Mutex<Vec<Arc<Loaded>>>,
    /// What of the server's memory is held for it, of that of the client which brought it first.
    _held: Charge,
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

/// A module of the driver's; unloaded on drop.
#[derive(Debug)]
pub(crate) struct Loaded {
    device: Arc<Device>,
    module: Handle<CUmodule>,
    /// By kernel, the most dynamic shared memory that any of its users asked for.
    most_shared: Mutex<HashMap<u32, i32>>,
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
    fn new(
        device: &Arc<Device>,
        bytes: Arc<[u8]>,
        names: Vec<String>,
        changes: &Changes,
        held: Charge,
    ) -> Result<Self, Refused> {
        let loaded = Loaded::new(device, &bytes)?;
        let driver = device.enter()?;
        let (kernels, kernel_names) = kernels(driver, loaded.module.0)?;
        let mut variables = Vec::new();
        let mut placed = Vec::new();
        for name in changes.variables(names) {
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
        Ok(Self {
            bytes,
            // The real driver keeps the device heap itself.
            descriptor: Descriptor {
                kernels,
                variables,
                heap: false,
            },
            kernels: kernel_names,
            variables: placed,
            prints: changes.prints,
            loaded: Mutex::new(vec![Arc::new(loaded)]),
            _held: held,
        })
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(crate) fn kernel_names(&self) -> &[CString] {
        &self.kernels
    }

    pub(crate) fn variables(&self) -> &[Placed] {
        &self.variables
    }

    /// Bytes of it, as the driver gets them.
    pub(crate) fn code_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether its users have one module.
    pub(crate) fn is_shared(&self) -> bool {
        self.variables.is_empty() && !self.prints
    }

    /// Whether its kernels print to a ring of the module's.
    pub(crate) fn prints(&self) -> bool {
        self.prints
    }

    /// A module of this image on a device, that nobody else uses but where all have the same.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn instantiate(&self, device: &Arc<Device>) -> Result<Arc<Loaded>, CUresult> {
        let mut known = self.loaded.lock();
        let there = known
            .iter()
            .position(|loaded| Arc::ptr_eq(&loaded.device, device));
        match there {
            Some(at) if self.is_shared() => Ok(Arc::clone(&known[at])),
            Some(at) => Ok(known.swap_remove(at)),
            // Under the lock, so that of two who share it one loads it.
            None if self.is_shared() => {
                known.push(self.instantiate_alone(device)?);
                Ok(Arc::clone(&known[known.len() - 1]))
            }
            None => {
                // The one that nobody took is not kept for good.
                let unused = std::mem::take(&mut *known);
                drop(known);
                drop(unused);
                self.instantiate_alone(device)
            }
        }
    }

    /// As [`Image::instantiate`], of which nobody else has anything.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn instantiate_alone(&self, device: &Arc<Device>) -> Result<Arc<Loaded>, CUresult> {
        let loaded = Loaded::new(device, &self.bytes).map_err(|refused| refused.code)?;
        Ok(Arc::new(loaded))
    }
}

impl Loaded {
    /// Loads an image with its padding.
    ///
    /// # Errors
    /// What the driver says, with its log.
    pub(crate) fn new(device: &Arc<Device>, padded: &[u8]) -> Result<Self, Refused> {
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
        // SAFETY: pointers are to locals; the image's tables were found to stay within it, PTX ends
        // with a NUL, and the options say the log's size.
        let result = device.run_exclusive(|| unsafe {
            driver.cuModuleLoadDataEx(
                &raw mut module,
                padded.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        device.confirm(result).map_err(|code| {
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
        })
    }

    pub(crate) fn most_shared(&self) -> MutexGuard<'_, HashMap<u32, i32>> {
        self.most_shared.lock()
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
        self.device.destroy_later(0, move |driver| {
            // SAFETY: made in `new`; whoever had it waited for the work that used it.
            let _ = unsafe { driver.cuModuleUnload(module.raw()) };
        });
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
    })
}
