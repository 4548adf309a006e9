//! A client's module: an image on a device, with variables of its own.

use std::sync::{Arc, OnceLock};

use cuda_abi::CUresult;
use cuda_abi::types::{CUfunction, CUfunction_attribute};
use engine::{Observer, Window};

use crate::context::Context;
use crate::image::{Image, Loaded, ManagedVariable, Placed};
use crate::memory::Memory;
use crate::sync::Handle;

/// One module of a client.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    image: Arc<Image>,
    loaded: Loaded,
    functions: Vec<OnceLock<Handle<CUfunction>>>,
    /// Where each variable is, in the descriptor's order.
    variables: Vec<Window>,
}

impl Module {
    /// Loads an image in a context. Its managed variables get memory of the client's.
    ///
    /// # Errors
    /// The driver's status; CUDA_ERROR_OUT_OF_MEMORY if there is no memory for managed variables.
    pub(crate) fn new(
        context: &Arc<Context>,
        image: Arc<Image>,
        memory: &mut Memory,
        observer: &dyn Observer,
    ) -> Result<Self, CUresult> {
        let loaded = image.instantiate(context.device())?;
        let mut variables = Vec::with_capacity(image.variables().len());
        for placed in image.variables() {
            variables.push(match placed {
                Placed::ByDriver(name) => {
                    let (base, bytes) = loaded.variable(name)?;
                    Window { base, bytes }
                }
                Placed::Managed(variable) => {
                    let range = place(context, variable, memory, observer)?;
                    let (pointer, _) = loaded.variable(&variable.pointer)?;
                    let device = context.device().number();
                    memory.set(device, pointer, &range.base.to_le_bytes())?;
                    range
                }
            });
        }
        Ok(Self {
            context: Arc::clone(context),
            functions: image
                .kernel_names()
                .iter()
                .map(|_| OnceLock::new())
                .collect(),
            image,
            loaded,
            variables,
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn variables(&self) -> &[Window] {
        &self.variables
    }

    /// A kernel's function.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if there is no kernel of this number.
    pub(crate) fn function(&self, kernel: u32) -> Result<Handle<CUfunction>, CUresult> {
        let invalid = CUresult::ERROR_INVALID_HANDLE;
        let cell = self.functions.get(kernel as usize).ok_or(invalid)?;
        if let Some(function) = cell.get() {
            return Ok(*function);
        }
        let name = self
            .image
            .kernel_names()
            .get(kernel as usize)
            .ok_or(invalid)?;
        let function = self.loaded.function(name)?;
        Ok(*cell.get_or_init(|| function))
    }

    /// A kernel's name.
    pub(crate) fn kernel_name(&self, kernel: u32) -> Option<&str> {
        let kernel = self.image.descriptor().kernels.get(kernel as usize)?;
        Some(&kernel.name)
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

    /// Sets an attribute of a kernel.
    ///
    /// # Errors
    /// The driver's status, or as [`Module::function`].
    pub(crate) fn set(&self, kernel: u32, attribute: u32, value: i32) -> Result<(), CUresult> {
        let function = self.function(kernel)?;
        let device = self.context.device();
        // SAFETY: the function is of our module, which is alive.
        device.confirm(unsafe {
            device
                .enter()?
                .cuFuncSetAttribute(function.0, CUfunction_attribute(attribute), value)
        })
    }
}

/// What addresses that an observer gives are aligned to at least.
const ALIGNED: u64 = 256;

/// Gives a managed variable memory in the client's host window, with its first value.
fn place(
    context: &Context,
    variable: &ManagedVariable,
    memory: &mut Memory,
    observer: &dyn Observer,
) -> Result<Window, CUresult> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    let bytes = variable.bytes.max(1);
    let slack = variable.align.saturating_sub(ALIGNED);
    let room = bytes.checked_add(slack).ok_or(wrong)?;
    let given = observer.allocate(context.id(), room, true)?;
    let base = given
        .base
        .checked_next_multiple_of(variable.align.max(1))
        .filter(|&base| given.contains(base, bytes))
        .ok_or(wrong)?;
    let range = Window {
        base,
        bytes: variable.bytes,
    };
    memory.set_host(range, &variable.init)?;
    Ok(range)
}
