//! A client's contexts: made with their legacy stream and their part of the device's multiprocessors, and ended with
//! everything in them.
//!
//! Called by the operations in `client`. Must not know what the driver makes of a context, which is `device`'s.

use std::sync::Arc;

use engine::CUresult;
use protocol::operations::{self, CONTEXT_SLOTS};

use super::NvidiaClient;
use crate::code::module::Module;
use crate::device::context::Context;
use crate::device::fault_record::FaultRecord;

impl NvidiaClient {
    /// Makes a context.
    pub(super) fn create_context(
        &mut self,
        request: &operations::ContextCreate,
    ) -> Result<(), CUresult> {
        let device = self
            .shared
            .devices
            .get(request.device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        device.check()?;
        let id = request.context;
        if id >= CONTEXT_SLOTS || self.contexts.contains_key(&id) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let observer = Arc::clone(&self.client_streams.observer);
        let device = Arc::clone(device);
        let record = self.records.get_mut(device.number());
        let record = record.map(|record| -> Result<_, CUresult> {
            // What is written in the old one was of contexts that are dead.
            if record.read().is_some() {
                *record = Arc::new(FaultRecord::new(&device)?);
            }
            Ok(Arc::clone(record))
        });
        let context = Arc::new(Context::new(
            id,
            device,
            (request.share, request.flags),
            observer,
            record.transpose()?,
        ));
        self.claim.add(&context)?;
        self.client_streams.add_context(Arc::clone(&context));
        // The legacy stream comes with its context.
        let added = self.add_stream(id, 0, Arc::clone(&context));
        if added.is_err() {
            self.client_streams.remove_context(&context);
            self.claim.remove(&context);
            return added;
        }
        self.contexts.insert(id, context);
        Ok(())
    }

    /// Ends a context. What the driver has of it runs to its end, what waits fails.
    pub(super) fn destroy_context(&mut self, id: u32) -> Result<(), CUresult> {
        let context = self
            .contexts
            .remove(&id)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        context.destroy();
        self.client_streams.remove_context(&context);
        self.claim.remove(&context);
        for stream in self.streams.values() {
            if Arc::ptr_eq(stream.context(), &context) {
                stream.end();
            }
        }
        let of_context = |module: &Arc<Module>| Arc::ptr_eq(module.context(), &context);
        let gone: Vec<_> = self
            .modules
            .extract_if(|_, module| of_context(module))
            .collect();
        for (_, module) in gone {
            self.drop_module(module);
        }
        self.runs.refuse(|run| run.modules().iter().any(of_context));
        self.textures
            .retain(|_, texture| !Arc::ptr_eq(texture.context(), &context));
        self.arrays
            .retain(|_, array| !Arc::ptr_eq(array.context(), &context));
        Ok(())
    }
}
