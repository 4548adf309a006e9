//! Modules, which belong to a context, and libraries, which belong to none and become a module in
//! each context that uses them.
//!
//! Owns both tables. `api::module` and `api::library` call it; what an image holds the server said when it was
//! loaded.
//!
//! Must not know files nor how an image was found: `code::image` hands it one that the server has.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::CUresult;
use protocol::operations::{ModuleLoad, ModuleUnload, Object};

use crate::code::function::Functions;
use crate::code::image::Image;
use crate::context::Current;
use crate::handle::object_table::{ArcSlot, Slots};
use crate::handle::{HandleKind, Key};
use crate::memory::ranges::{Origin, Range, Ranges};
use crate::session::connection::Connection;

/// Bytes of a reply that always travel in its slot; a longer one gets a place in staging.
const SHORT_REPLY: usize = 2048;

/// An image in a context.
#[derive(Debug)]
pub(crate) struct Module {
    number: u64,
    handle: AtomicU64,
    /// The handle of its context.
    pub context: u64,
    pub image: Arc<Image>,
    /// Addresses of the image's variables, in its order.
    addresses: Vec<u64>,
    /// Handles of the functions that the program has asked for, by their numbers.
    functions: Mutex<HashMap<u32, Key>>,
    /// The handle of the library that it was made for, or 0.
    library: u64,
}

/// An image that becomes a module wherever it is needed.
#[derive(Debug)]
pub(crate) struct Library {
    handle: AtomicU64,
    pub image: Arc<Image>,
    /// Its modules, by the handles of their contexts.
    modules: Mutex<HashMap<u64, u64>>,
    kernels: Mutex<HashMap<u32, Key>>,
}

/// All modules of the process.
#[derive(Debug)]
pub(crate) struct Modules {
    connection: &'static Connection,
    ranges: &'static Ranges,
    table: Slots<ArcSlot<Module>>,
    last: AtomicU64,
}

/// All libraries of the process.
#[derive(Debug)]
pub(crate) struct Libraries {
    table: Slots<ArcSlot<Library>>,
}

impl Modules {
    pub(crate) fn new(connection: &'static Connection, ranges: &'static Ranges) -> Self {
        Self {
            connection,
            ranges,
            table: Slots::new(0, u32::MAX),
            last: AtomicU64::new(0),
        }
    }

    /// The module of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<Module>, CUresult> {
        Key::of(handle, HandleKind::Module)
            .and_then(|key| self.table.get(key)?.get())
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Makes a module of an image in the current context.
    pub(crate) fn load(
        &self,
        current: &Current,
        image: Arc<Image>,
        library: u64,
    ) -> Result<u64, CUresult> {
        let connection = self.connection;
        if image.descriptor.heap {
            current.make_heap()?;
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = image.descriptor.variables.len() * 8;
        let room = match wanted {
            ..=SHORT_REPLY => None,
            more => Some(connection.stage(more)?),
        };
        let reply = connection.call(&ModuleLoad {
            module: number,
            image: image.number,
            context: current.slot(),
            staging: room.as_ref().map_or(0, |room| room.offset()),
            capacity: room.as_ref().map_or(0, |room| room.len()) as u64,
        })?;
        let mut data = reply.data;
        if data.len() < wanted
            && let Some(room) = &room
        {
            data.resize(wanted, 0);
            room.copy_out(0, &mut data);
            connection.keep_answer(Object::Module(number), &data);
        }
        let addresses: Vec<u64> = data
            .chunks_exact(8)
            .map(|word| {
                u64::from_le_bytes([
                    word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
                ])
            })
            .collect();
        if addresses.len() != image.descriptor.variables.len() {
            crate::log::log!(
                "a module is not loaded: the server gave addresses for {} of its {} variables",
                addresses.len(),
                image.descriptor.variables.len()
            );
            return Err(CUresult::ERROR_UNKNOWN);
        }
        let mut reserved = addresses.iter();
        if let Err(code) = reserved.try_for_each(|&address| connection.reserve_around(address)) {
            connection.post(&ModuleUnload { module: number })?;
            return Err(code);
        }
        for (address, variable) in addresses.iter().zip(&image.descriptor.variables) {
            let origin = match connection.is_in_host_window(*address) {
                true => Origin::ManagedVariable,
                false => Origin::Variable,
            };
            let range = Range::new(current, origin, *address, variable.bytes);
            self.ranges.insert(range);
        }
        let module = Arc::new(Module {
            number,
            handle: AtomicU64::new(0),
            context: current.handle(),
            image,
            addresses,
            functions: Mutex::default(),
            library,
        });
        let key = self.table.insert(
            |_, _| true,
            |_, held| drop(held.put(Some(Arc::clone(&module)))),
        );
        let Some(key) = key else {
            // It has no functions yet.
            module.forget_variables(self.ranges);
            connection.post(&ModuleUnload { module: number })?;
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        };
        let handle = key.handle(HandleKind::Module);
        module.handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// Ends a module that the program loaded.
    pub(crate) fn unload(&self, functions: &Functions, handle: u64) -> Result<(), CUresult> {
        if self.get(handle)?.library != 0 {
            // It goes with its library.
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        self.connection.print_kernel_output();
        let module = self.remove(handle)?;
        self.end(functions, &module)
    }

    fn end(&self, functions: &Functions, module: &Module) -> Result<(), CUresult> {
        module.forget_functions(functions);
        module.forget_variables(self.ranges);
        self.connection.post(&ModuleUnload {
            module: module.number,
        })
    }

    fn remove(&self, handle: u64) -> Result<Arc<Module>, CUresult> {
        let key = Key::of(handle, HandleKind::Module).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let held = self
            .table
            .remove(key)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let module = held.put(None);
        self.table.release(key.index());
        module.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Forgets the modules of a context that ends. The server ends them with it.
    pub(crate) fn forget(&self, functions: &Functions, context: u64) {
        let handles: Vec<u64> = self
            .table
            .live()
            .filter(|(_, held)| held.get().is_some_and(|module| module.context == context))
            .map(|(key, _)| key.handle(HandleKind::Module))
            .collect();
        for handle in handles {
            if let Ok(module) = self.remove(handle) {
                module.forget_functions(functions);
                module.forget_variables(self.ranges);
            }
        }
    }
}

impl Module {
    /// The handle of a function, by its number in the image.
    pub(crate) fn function(&self, table: &Functions, index: u32) -> Result<Key, CUresult> {
        let kernel = self
            .image
            .descriptor
            .kernels
            .get(index as usize)
            .ok_or(CUresult::ERROR_NOT_FOUND)?;
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = functions.get(&index) {
            return Ok(*known);
        }
        let owner = self.handle.load(Ordering::Acquire);
        let key = table.create(owner, self.number, self.context, index, kernel)?;
        functions.insert(index, key);
        Ok(key)
    }

    /// Address and bytes of a variable.
    pub(crate) fn variable(&self, name: &[u8]) -> Result<(u64, u64), CUresult> {
        let at = self.image.variable(name)?;
        Ok((
            self.addresses[at],
            self.image.descriptor.variables[at].bytes,
        ))
    }

    /// Address and bytes of a managed variable.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND when there is none of this name.
    pub(crate) fn managed_variable(
        &self,
        connection: &Connection,
        name: &[u8],
    ) -> Result<(u64, u64), CUresult> {
        self.variable(name)
            .ok()
            .filter(|(address, _)| connection.is_in_host_window(*address))
            .ok_or(CUresult::ERROR_NOT_FOUND)
    }

    fn forget_functions(&self, table: &Functions) {
        let functions = std::mem::take(
            &mut *self
                .functions
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for key in functions.into_values() {
            table.destroy(key);
        }
    }

    fn forget_variables(&self, ranges: &Ranges) {
        for address in &self.addresses {
            ranges.remove(*address, |range| {
                matches!(range.origin, Origin::Variable | Origin::ManagedVariable)
            });
        }
    }
}

impl Libraries {
    pub(crate) fn new() -> Self {
        Self {
            table: Slots::new(0, u32::MAX),
        }
    }

    /// The library of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<Library>, CUresult> {
        Key::of(handle, HandleKind::Library)
            .and_then(|key| self.table.get(key)?.get())
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Makes a library of an image.
    pub(crate) fn load(&self, image: Arc<Image>) -> Result<u64, CUresult> {
        let library = Arc::new(Library {
            handle: AtomicU64::new(0),
            image,
            modules: Mutex::default(),
            kernels: Mutex::default(),
        });
        let key = self
            .table
            .insert(
                |_, _| true,
                |_, held| drop(held.put(Some(Arc::clone(&library)))),
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let handle = key.handle(HandleKind::Library);
        library.handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// Ends a library, its kernels, and its modules in all contexts.
    pub(crate) fn unload(
        &self,
        modules: &Modules,
        functions: &Functions,
        handle: u64,
    ) -> Result<(), CUresult> {
        let key = Key::of(handle, HandleKind::Library).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let held = self
            .table
            .remove(key)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let library = held.put(None);
        self.table.release(key.index());
        let library = library.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let kernels = std::mem::take(
            &mut *library
                .kernels
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for key in kernels.into_values() {
            functions.destroy(key);
        }
        let made = std::mem::take(
            &mut *library
                .modules
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for module in made.into_values() {
            // Gone already where its context is.
            if let Ok(module) = modules.remove(module) {
                modules.end(functions, &module)?;
            }
        }
        Ok(())
    }
}

impl Library {
    /// The handle of its module in a context, which is made at the first use.
    pub(crate) fn module_in(&self, modules: &Modules, current: &Current) -> Result<u64, CUresult> {
        // Held over the load, so that there is one module a context.
        let mut known = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = known.get(&current.handle())
            && modules.get(*handle).is_ok()
        {
            return Ok(*handle);
        }
        let owner = self.handle.load(Ordering::Acquire);
        let handle = modules.load(current, Arc::clone(&self.image), owner)?;
        known.insert(current.handle(), handle);
        Ok(handle)
    }

    /// The handle of a kernel, by its number in the image.
    pub(crate) fn kernel(&self, table: &Functions, index: u32) -> Result<Key, CUresult> {
        let kernel = self
            .image
            .descriptor
            .kernels
            .get(index as usize)
            .ok_or(CUresult::ERROR_NOT_FOUND)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.get(&index) {
            return Ok(*known);
        }
        let owner = self.handle.load(Ordering::Acquire);
        let key = table.create(owner, 0, 0, index, kernel)?;
        kernels.insert(index, key);
        Ok(key)
    }
}
