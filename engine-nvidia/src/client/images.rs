//! Images, modules made of them, and their kernels' attributes.
//!
//! Called by the operations in `client`. Must not know what the driver makes of an image, which is `code`, nor streams.

use std::sync::Arc;

use cuda_abi::types::CUfunction_attribute;
use engine::{CUresult, Charge};
use protocol::operations::{self, IMAGE_PART};

use super::{MOST_OBJECTS, NvidiaClient};
use crate::code::link::{PADDING, check_part};
use crate::code::module::Module;

impl NvidiaClient {
    /// Loads an image, or says in the reply's log why not.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that is taken, and for one too many.
    pub(super) fn load_image(
        &mut self,
        request: &operations::ImageLoad,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::ImageLoadReply, CUresult> {
        if self.images.contains_key(&request.image) || self.images.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let device = self
            .shared
            .devices
            .get(request.device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        // As it is kept, and once more while it is made ready for the driver. Who is the first to have it pays
        // for it; where it is there already, this is given back.
        let bytes = (data.len() + PADDING) as u64;
        let mut charge = Charge::new(Arc::clone(&self.server_memory));
        if !charge.grow(2 * bytes) {
            let log = format!(
                "error: the server holds no more for this client: this image takes {} bytes, and {} are left \
                 of {}\n",
                2 * bytes,
                self.server_memory.remaining(),
                self.server_memory.limit()
            );
            let code = CUresult::ERROR_OUT_OF_MEMORY;
            return Ok(operations::ImageLoadReply::written(
                code,
                &[],
                log.as_bytes(),
                reply,
            ));
        }
        let loaded = if request.options & IMAGE_PART != 0 {
            check_part(device, data).map(|()| None)
        } else {
            let share = &self.warm_share;
            let fenced = !self.records.is_empty();
            let loaded = self
                .shared
                .images
                .load(device, data, fenced, (charge, share));
            loaded.map(Some)
        };
        Ok(match loaded {
            Ok(None) => operations::ImageLoadReply::default(),
            Ok(Some(image)) => {
                let moved = self.is_kept.then(|| image.moved()).flatten();
                let descriptor = moved.map_or(image.descriptor(), |(_, descriptor)| descriptor);
                let descriptor = descriptor.encode();
                self.images.insert(request.image, image);
                operations::ImageLoadReply::written(CUresult::SUCCESS, &descriptor, &[], reply)
            }
            Err(refused) => {
                let log = refused.log.as_bytes();
                operations::ImageLoadReply::written(refused.code, &[], log, reply)
            }
        })
    }

    /// Makes a module of an image in a context; the reply has the addresses of its variables.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE for a number that is taken, what
    /// the context died of, and what the driver says.
    pub(super) fn load_module(
        &mut self,
        request: &operations::ModuleLoad,
        reply: &mut Vec<u8>,
    ) -> Result<operations::ModuleLoadReply, CUresult> {
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        let image = self
            .images
            .get(&request.image)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if self.modules.contains_key(&request.module) || self.modules.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let image = Arc::clone(image);
        let code = &self.client_streams.code;
        let module = Module::new(&context, image, &mut self.memory, code, self.is_kept)?;
        let device = context.device().number();
        for &variable in module.variables() {
            reply.extend(variable.base.to_le_bytes());
            self.memory.add_variable(variable, device);
        }
        let are_written = code.observer().has_variables();
        for &(own, drivers) in module.constants() {
            self.memory.add_twin_constant(own, drivers);
            if are_written {
                self.inherited_constants.push((device, own, drivers));
            }
        }
        let addresses = module.variables().len() as u64;
        self.modules.insert(request.module, Arc::new(module));
        if self.former_has_ended {
            self.read_inherited_constants()?;
        }
        Ok(operations::ModuleLoadReply { addresses })
    }

    /// Has code read of constants what a former process has left in the client's memory, before the client's later work.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn read_inherited_constants(&mut self) -> Result<(), CUresult> {
        let mut constants = self.inherited_constants.drain(..);
        constants
            .try_for_each(|(device, own, drivers)| self.memory.copy_constant(device, drivers, own))
    }

    /// Has a module say what its kernels may reach now, if its client is fenced.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn renew_fence(&mut self, module: u64) -> Result<(), CUresult> {
        if self.records.is_empty() {
            return Ok(());
        }
        let module = self.modules.get(&module);
        module.map_or(Ok(()), |module| module.renew_fence(&mut self.memory))
    }

    /// The same of all modules that a run has kernels of.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn renew_fences(&mut self, run: u32) -> Result<(), CUresult> {
        if self.records.is_empty() {
            return Ok(());
        }
        let modules = self.runs.get(run).map_or(&[][..], |run| run.modules());
        let mut modules = modules.iter();
        modules.try_for_each(|module| module.renew_fence(&mut self.memory))
    }

    /// Ends a module; runs that have a kernel of it are refused from then on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a module that there is not.
    pub(super) fn unload_module(
        &mut self,
        request: &operations::ModuleUnload,
    ) -> Result<(), CUresult> {
        let module = self.modules.remove(&request.module);
        self.runs.refuse(|run| {
            let mut modules = run.modules().iter();
            modules.any(|of| {
                module
                    .as_ref()
                    .is_some_and(|module| Arc::ptr_eq(of, module))
            })
        });
        self.drop_module(module.ok_or(CUresult::ERROR_INVALID_HANDLE)?);
        Ok(())
    }

    /// Sets an attribute of a kernel, for this client's module alone.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a module that there is not, and what the driver says.
    pub(super) fn set_function(
        &mut self,
        request: &operations::FunctionSet,
    ) -> Result<(), CUresult> {
        let operations::FunctionSet {
            module,
            kernel,
            attribute,
            value,
        } = *request;
        let attribute = CUfunction_attribute(attribute);
        if !self.module(module)?.can_set(attribute) {
            // Launches that were posted before keep the shared one.
            let apart = self.module(module)?.apart(&self.client_streams.code)?;
            self.modules.insert(module, Arc::new(apart));
        }
        self.module(module)?.set(kernel, attribute, value)
    }
}
