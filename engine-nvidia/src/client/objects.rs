//! A client's objects, found by its handles, made and ended.
//!
//! Owns nothing: it is how the operations in `client` reach the tables of their client, and what goes with an entry
//! that comes or goes. Must not know how an operation is encoded.

use std::sync::Arc;

use engine::CUresult;
use protocol::operations::{self, At};

use super::NvidiaClient;
use crate::code::module::Module;
use crate::device::Device;
use crate::device::context::Context;
use crate::submit::command::CommandKind;
use crate::submit::launch::Launch;
use crate::submit::stream::Stream;

impl NvidiaClient {
    pub(super) fn context(&self, id: u32) -> Result<&Arc<Context>, CUresult> {
        self.contexts
            .get(&id)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    pub(super) fn device(&self, number: u32) -> Result<&Device, CUresult> {
        let device = self.shared.devices.get(number as usize);
        device
            .map(|device| &**device)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    pub(super) fn stream(&self, slot: u32) -> Result<&Arc<Stream>, CUresult> {
        self.streams
            .get(&slot)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// The number of the device that a place in a stream is on.
    pub(super) fn device_of(&self, at: At) -> Result<usize, CUresult> {
        Ok(self.stream(at.stream)?.context().device().number())
    }

    pub(super) fn module(&self, handle: u64) -> Result<&Arc<Module>, CUresult> {
        self.modules
            .get(&handle)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    pub(super) fn add_stream(
        &mut self,
        slot: u32,
        priority: i32,
        context: Arc<Context>,
    ) -> Result<(), CUresult> {
        let before = self.streams.get(&slot).cloned();
        if before.as_ref().is_some_and(|stream| !stream.is_ending()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let common = Arc::clone(&self.client_streams);
        let stream = Stream::new(slot, priority, context, common, before)?;
        if let Some(before) = self.streams.insert(slot, stream) {
            self.replaced_streams.retain(|stream| !stream.is_idle());
            self.replaced_streams.push(before);
        }
        Ok(())
    }

    /// Posts what was planned; if the planning failed, that is told in the stream's order.
    pub(super) fn post(
        &self,
        at: At,
        planned: Result<CommandKind, CUresult>,
    ) -> Result<(), CUresult> {
        self.stream(at.stream)?
            .post(at.sequence, planned.unwrap_or_else(CommandKind::Refused))
    }

    /// Checks a launch of a module's kernel, and has its device ready for it.
    pub(super) fn plan_launch(
        &self,
        module: &Arc<Module>,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<Launch, CUresult> {
        if !module.is_loaded() {
            // As for local memory.
            self.client_streams.stop_polling();
        }
        let mut launch = Launch::new(module, request, data)?;
        let device = module.context().device();
        let local = module.local_bytes(request.kernel);
        if !device.has_local_memory(local) {
            // It may take as long as kernels run.
            self.client_streams.stop_polling();
            device.reserve_local_memory(local)?;
        }
        launch.set_priorities(|asked| self.client_streams.driver_priority(device, asked));
        Ok(launch)
    }

    /// Ends a module, which launches that were posted before keep.
    pub(super) fn drop_module(&mut self, module: Arc<Module>) {
        for variable in module.variables() {
            self.memory.remove_variable(variable.base);
        }
        if !self.memory.looks_are_over() {
            self.unloaded_modules.push(module);
        }
    }
}
