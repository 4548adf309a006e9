//! A client's modules: the memory of their variables, and their end in the order of its work. What
//! they are is the engine's business.

use std::collections::HashMap;

use cuda_abi::CUresult;
use cuda_abi::operations::{ModuleLoad, ModuleLoadReply, ModuleUnload};
use engine::Window;

use crate::images::{Needed, UNUSED_ON};
use crate::memory::Place;
use crate::observer::Lent;
use crate::session::{Action, Session};

/// Modules that a client may have.
const MAX_MODULES: usize = 1 << 16;

/// A client's modules, by its handles.
#[derive(Debug, Default)]
pub struct Modules {
    modules: HashMap<u64, Module>,
}

#[derive(Debug)]
struct Module {
    context: u32,
    /// The client has unloaded it, and cannot do so again.
    ending: bool,
    /// Where its variables are: on the device, and managed ones.
    variables: Vec<u64>,
    /// What counts for those that the engine keeps.
    kept: Kept,
}

/// Bytes of a device that an engine took for variables.
#[derive(Clone, Copy, Debug)]
struct Kept {
    device: u32,
    bytes: u64,
}

impl Session {
    /// Loads a module of an image, in memory of the client's for its variables.
    pub(crate) fn load_module(
        &mut self,
        request: &ModuleLoad,
        reply: &mut Vec<u8>,
    ) -> Result<ModuleLoadReply, CUresult> {
        let device = self.device_of(request.context)?;
        let known = &self.modules.modules;
        if known.len() >= MAX_MODULES || known.contains_key(&request.module) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut needed = self.images.variables(request.image)?;
        let mut kept = Kept { device, bytes: 0 };
        if self.shared.keeps_variables() {
            kept.bytes = std::mem::take(&mut needed.device);
        }
        // The one that nobody used is this one now, or is no more.
        let unused = self.images.set_unused(request.image, 0);
        let (taken, freed) = match device == UNUSED_ON {
            true => (kept.bytes - unused.min(kept.bytes), 0),
            false => (kept.bytes, unused),
        };
        let mut variables = Vec::new();
        let loaded = self.memory.charge(device, taken).and_then(|()| {
            let loaded = self
                .take_variables(device, request.context, needed, &mut variables)
                .and_then(|lent| {
                    self.shared.lend_variables(lent);
                    let loaded = self.client.module_load(request, &[], reply);
                    self.shared.lend_variables(Lent::NOTHING);
                    loaded
                });
            loaded.inspect_err(|_| self.memory.uncharge(device, taken))
        });
        if loaded.is_err() {
            self.images.set_unused(request.image, unused);
            self.release_variables(&variables);
            return loaded;
        }
        self.memory.uncharge(UNUSED_ON, freed);
        let module = Module {
            context: request.context,
            ending: false,
            variables,
            kept,
        };
        self.modules.modules.insert(request.module, module);
        loaded
    }

    /// Takes memory for the variables of a module.
    fn take_variables(
        &mut self,
        device: u32,
        context: u32,
        needed: Needed,
        blocks: &mut Vec<u64>,
    ) -> Result<Lent, CUresult> {
        let mut lent = Lent::NOTHING;
        for (place, bytes, window) in [
            (Place::Device(device), needed.device, &mut lent.device),
            (Place::Managed(device), needed.managed, &mut lent.managed),
        ] {
            if bytes > 0 {
                let base = self.allocate(place, context, bytes)?;
                blocks.push(base);
                *window = Window { base, bytes };
            }
        }
        Ok(lent)
    }

    fn release_variables(&mut self, blocks: &[u64]) {
        for &address in blocks {
            if let Some(block) = self.memory.remove(address, true) {
                self.release_block(block);
            }
        }
    }

    /// Unloads a module once nothing uses it any more.
    pub(crate) fn unload_later(&mut self, request: &ModuleUnload) -> Result<(), CUresult> {
        let module = self.modules.modules.get_mut(&request.module);
        let module = module
            .filter(|module| !module.ending)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.ending = true;
        self.defer(Action::Unload(request.module));
        Ok(())
    }

    /// Unloads a module that nothing uses any more.
    pub(crate) fn unload(&mut self, module: u64) {
        let _ = self.client.module_unload(&ModuleUnload { module }, &[]);
        if let Some(module) = self.modules.modules.remove(&module) {
            self.release_variables(&module.variables);
            self.memory.uncharge(module.kept.device, module.kept.bytes);
        }
    }

    /// Forgets the modules of a context that ended. The engine ended them with it, and the memory that it
    /// was given for them goes with the context's.
    pub(crate) fn forget_modules(&mut self, context: u32) {
        let memory = &mut self.memory;
        self.modules.modules.retain(|_, module| {
            if module.context == context {
                memory.uncharge(module.kept.device, module.kept.bytes);
            }
            module.context != context
        });
    }
}
