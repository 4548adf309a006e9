//! Code: the images that programs hand over, what is loaded of them, and how it is launched.
//!
//! Owns modules, kernels and links by their handles, and what launches need of them. `api` calls it,
//! graphs launch through it. It knows nothing of what an image holds: the server reads that.

pub(crate) mod function;
pub(crate) mod image;
pub(crate) mod launch;
pub(crate) mod legacy_launch;
pub(crate) mod linker;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod tensor_map_cache;
pub(crate) mod texture_references;

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use cuda_abi::CUresult;
use cuda_abi::types::CUfunction_attribute;

use crate::context::Current;
use crate::handle::HandleKind;
use crate::memory::ranges::Ranges;
use crate::session::connection::Connection;
use crate::stream::event::Events;
use function::{ATTRIBUTES, Function, Functions};
use image::Image;
use linker::Links;
use module::{Libraries, Modules};
use tensor_map_cache::TensorMaps;
use texture_references::References;

/// All code of the process.
#[derive(Debug)]
pub(crate) struct Code {
    pub modules: Modules,
    pub libraries: Libraries,
    pub functions: Functions,
    pub links: Links,
    pub references: Mutex<References>,
    pub tensor_maps: TensorMaps,
    /// Those that launches record.
    events: &'static Events,
}

impl Code {
    /// No code yet. Modules note their variables among the ranges; launches may record events.
    pub(crate) fn new(
        connection: &'static Connection,
        ranges: &'static Ranges,
        events: &'static Events,
    ) -> Self {
        Self {
            modules: Modules::new(connection, ranges),
            libraries: Libraries::new(),
            functions: Functions::new(connection),
            links: Links::default(),
            references: Mutex::default(),
            tensor_maps: TensorMaps::default(),
            events,
        }
    }

    /// The function in a context that a handle means: itself, or, of a library's kernel, the one of
    /// that context, for which the library's module is loaded there if it was not yet.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a dead handle and for a function of another context, and what
    /// loading the module may give.
    #[inline]
    pub(crate) fn in_context(
        &'static self,
        handle: u64,
        current: &Current,
    ) -> Result<(u64, &'static Function), CUresult> {
        let function = self.functions.get(handle)?;
        let known = match function.module() {
            0 => function.place_in(current).load(Ordering::Acquire),
            _ => handle,
        };
        match self.functions.get(known) {
            Ok(found) if found.context() == current.resource_context_handle() => Ok((known, found)),
            _ if function.module() != 0 => Err(CUresult::ERROR_INVALID_HANDLE),
            _ => self.load(function, current),
        }
    }

    /// Makes the function of a library's kernel in a context.
    #[cold]
    fn load(
        &'static self,
        kernel: &Function,
        current: &Current,
    ) -> Result<(u64, &'static Function), CUresult> {
        let library = self.libraries.get(kernel.owner())?;
        let module = library.module_in(&self.modules, &current.resource_context()?)?;
        let module = self.modules.get(module)?;
        let made = module.function(&self.functions, kernel.index())?;
        let handle = made.handle(HandleKind::Function);
        let function = self.functions.get(handle)?;
        for number in 0..ATTRIBUTES as u32 {
            let attribute = CUfunction_attribute(number);
            let wanted = kernel.attribute(attribute)?;
            if function.attribute(attribute)? != wanted {
                self.functions.set(handle, attribute, wanted)?;
            }
        }
        kernel.place_in(current).store(handle, Ordering::Release);
        Ok((handle, function))
    }

    /// The name of a function or kernel that is there.
    pub(crate) fn kernel_name(&self, handle: u64) -> Option<String> {
        let function = self.functions.get(handle).ok()?;
        let name = |image: &Image| {
            let name = image.name(function.index()).ok()?;
            Some(name.to_string_lossy().into_owned())
        };
        match function.is_kernel() {
            true => name(&self.libraries.get(function.owner()).ok()?.image),
            false => name(&self.modules.get(function.owner()).ok()?.image),
        }
    }
}
