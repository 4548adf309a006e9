//! Images, modules made of them, and what their kernels print.
//!
//! Called by the operations in `client`. Compiling itself is in `image`; must not know PTX.

use std::collections::HashSet;
use std::sync::Arc;

use engine::{CUresult, Charge};
use protocol::operations::{
    self, IMAGE_PART, IMAGE_REGISTERS_SHIFT, IMAGE_VERBOSE, OUTPUT_NONE, OUTPUT_PIECE,
    OUTPUT_STDERR, OUTPUT_STDOUT,
};

use super::objects::{MOST_OBJECTS, Objects};
use crate::device::Devices;
use crate::image;
use crate::image::{Refused, Workspace};
use crate::module::{Image, Module};
use crate::services::Sink;

impl Objects {
    /// See [`engine::Client::image_load`].
    pub(super) fn load_image(
        &mut self,
        devices: &Devices,
        request: &operations::ImageLoad,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::ImageLoadReply, CUresult> {
        if self.images.contains_key(&request.image) || self.images.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let most = request.options >> IMAGE_REGISTERS_SHIFT & 0xff;
        let most = Some(most).filter(|&most| most != 0);
        let loaded = if request.options & IMAGE_PART != 0 {
            let memory = Workspace::new(&self.held);
            image::check_part(data, devices.capability, &memory).map(|()| None)
        } else {
            let hold = |bytes| self.hold(bytes);
            let image = devices
                .images
                .load(data, most, devices.capability, &self.held, hold);
            image
                .inspect(|(_, source)| {
                    if let Some(source) = *source {
                        self.client.observer.code_came(request.device, source);
                    }
                })
                .and_then(|(image, _)| self.check_instructions(&image).map(|()| image))
                .map(Some)
        };
        Ok(match loaded {
            Ok(None) => operations::ImageLoadReply::default(),
            Ok(Some(image)) => {
                let mut log = image.notes.clone();
                if request.options & IMAGE_VERBOSE != 0 {
                    log.push_str(&image::remarks(&image.module));
                }
                let descriptor = &image.descriptor;
                let fields = operations::ImageLoadReply::written(
                    CUresult::SUCCESS,
                    descriptor,
                    log.as_bytes(),
                    reply,
                );
                self.images.insert(request.image, image);
                fields
            }
            Err(refused) => {
                let log = refused.log.as_bytes();
                operations::ImageLoadReply::written(refused.code, &[], log, reply)
            }
        })
    }

    /// Takes so much of what the server holds for the client, for an image that it is the first to have.
    fn hold(&self, bytes: u64) -> Result<Charge, Refused> {
        let mut charge = Charge::new(Arc::clone(&self.held));
        if charge.grow(bytes) {
            return Ok(charge);
        }
        let why = format!(
            "the server holds no more for this client: its code takes {bytes} bytes more, and {} are left of {}",
            self.held.remaining(),
            self.held.limit()
        );
        Err(Refused::new(CUresult::ERROR_OUT_OF_MEMORY, &why))
    }

    /// Refuses an image with which the client's have too many instructions.
    fn check_instructions(&self, image: &Arc<Image>) -> Result<(), Refused> {
        let modules = self.modules.values().map(|module| &module.image);
        let mut seen = HashSet::from([Arc::as_ptr(image)]);
        let kept: u64 = self
            .images
            .values()
            .chain(modules)
            .filter(|kept| seen.insert(Arc::as_ptr(kept)))
            .map(|kept| kept.module.instructions())
            .sum();
        if kept + image.module.instructions() > ptx_vm::CLIENT_INSTRUCTIONS {
            let why = "the program's modules have more instructions than the software GPU keeps for one client";
            return Err(Refused::new(CUresult::ERROR_OUT_OF_MEMORY, &why));
        }
        Ok(())
    }

    /// See [`engine::Client::module_load`].
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
        let observer = Arc::clone(&self.client.observer);
        let allocate = |bytes, managed| observer.allocate(request.context, bytes, managed);
        let place = (&self.memory, observer.has_variables());
        let module = Module::new(Arc::clone(image), context, place, allocate)?;
        for address in &*module.globals {
            reply.extend(address.to_le_bytes());
        }
        let addresses = module.globals.len() as u64;
        self.modules.insert(request.module, Arc::new(module));
        Ok(operations::ModuleLoadReply { addresses })
    }

    /// See [`engine::Client::output_take`].
    pub(super) fn take_output(
        &self,
        reply: &mut Vec<u8>,
    ) -> Result<operations::OutputTakeReply, CUresult> {
        let contexts = &self.contexts;
        let mut slots: Vec<u32> = contexts.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            let taken = contexts
                .get(&slot)
                .and_then(|context| context.services.take(OUTPUT_PIECE, reply));
            if let Some((sink, _)) = taken {
                // Whoever takes on finds out whether that was all.
                return Ok(operations::OutputTakeReply {
                    sink: match sink {
                        Sink::Out => OUTPUT_STDOUT,
                        Sink::Err => OUTPUT_STDERR,
                    },
                });
            }
        }
        Ok(operations::OutputTakeReply { sink: OUTPUT_NONE })
    }
}
