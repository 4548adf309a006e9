//! A client's module: an image on a device, with variables of its own.

use std::sync::{Arc, OnceLock};

use cuda_abi::CUresult;
use cuda_abi::types::{CUfunction, CUfunction_attribute};
use engine::Window;

use crate::context::Context;
use crate::image::{Image, Loaded};
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
    /// Loads an image in a context.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn new(context: &Arc<Context>, image: Arc<Image>) -> Result<Self, CUresult> {
        let loaded = image.instantiate(context.device())?;
        let variables = image
            .variable_names()
            .iter()
            .map(|name| {
                loaded
                    .variable(name)
                    .map(|(base, bytes)| Window { base, bytes })
            })
            .collect::<Result<_, _>>()?;
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
