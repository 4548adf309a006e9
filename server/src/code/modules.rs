//! A client's modules: which there are, and the memory of their variables.
//!
//! Sessions call it, and say when the work that uses a module is over. What a module is made of is the
//! engine's business; knows neither streams nor sessions.

use std::collections::HashMap;

use cuda_abi::CUresult;
use engine::Window;
use protocol::operations::{ModuleLoad, ModuleLoadReply};

use crate::code::images::{EngineVariables, Images, Needed};
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::{ClientMemory, MemoryKind};
use crate::session::observer::{ClientObserver, VariableMemory};

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
    in_engine: EngineVariables,
}

/// What a module is loaded with.
pub struct Loader<'a> {
    /// The client's images.
    pub images: &'a mut Images,
    /// Its blocks and quotas.
    pub memory: &'a mut ClientMemory,
    /// The engine's client, as the backing of its memory.
    pub backing: ClientBacking<'a>,
    /// Through which the engine asks for the variables' memory.
    pub observer: &'a ClientObserver,
    /// Where the variables lay in a former server, if they are to lie there again, with what is in them.
    pub placed: Option<PlacedVariables>,
}

/// Where the memory of a module's variables began.
#[derive(Clone, Copy, Debug)]
pub struct PlacedVariables {
    /// Of those on the device, if there are any.
    pub device: Option<u64>,
    /// Of managed ones.
    pub managed: Option<u64>,
}

impl Modules {
    /// Loads a module of an image on a device, in memory of the client's for its variables.
    ///
    /// # Errors
    /// When the handle is in use, there are too many, or image, quota or engine refuse it; CUDA_ERROR_NOT_SUPPORTED if variables are
    /// to hold what they held in another server, whose engine had them.
    pub fn load(
        &mut self,
        request: &ModuleLoad,
        device: u32,
        mut loader: Loader<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<ModuleLoadReply, CUresult> {
        if self.modules.len() >= MAX_MODULES || self.modules.contains_key(&request.module) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let needed = loader.images.variables(request.image)?;
        let in_engine = EngineVariables {
            device,
            bytes: needed.in_engine,
        };
        if in_engine.bytes > 0 && loader.placed.is_some() {
            // They are gone with the engine that had them, wherever the next one puts them.
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        // The one that nobody used is this one now, or is no more.
        let unused = loader
            .images
            .set_unused_charge(request.image, EngineVariables::default());
        let (taken, freed) = match device == unused.device {
            true => (in_engine.bytes - unused.bytes.min(in_engine.bytes), 0),
            false => (in_engine.bytes, unused.bytes),
        };
        let mut variables = Vec::new();
        let loaded = loader.memory.charge(device, taken).and_then(|()| {
            let loaded = loader
                .allocate_variables(device, request.context, needed, &mut variables)
                .and_then(|lent| {
                    loader.observer.set_variable_memory(lent);
                    let loaded = loader.backing.0.module_load(request, &[], reply);
                    loader.observer.set_variable_memory(VariableMemory::NOTHING);
                    loaded
                });
            loaded.inspect_err(|_| loader.memory.uncharge(device, taken))
        });
        if loaded.is_err() {
            loader.images.set_unused_charge(request.image, unused);
            loader.release_variables(&variables);
            return loaded;
        }
        loader.memory.uncharge(unused.device, freed);
        let module = Module {
            context: request.context,
            ending: false,
            variables,
            in_engine,
        };
        self.modules.insert(request.module, module);
        loaded
    }

    /// Takes a module's handle from the client. The module is unloaded once no work uses it any more.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` when there is no such module, or it is ending already.
    pub fn begin_unload(&mut self, module: u64) -> Result<(), CUresult> {
        let module = self.modules.get_mut(&module);
        let module = module
            .filter(|module| !module.ending)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        module.ending = true;
        Ok(())
    }

    /// Forgets a module that the engine has unloaded. Returns the blocks of its variables, which are to be
    /// released.
    #[must_use]
    pub fn remove(&mut self, module: u64, memory: &mut ClientMemory) -> Vec<u64> {
        let Some(module) = self.modules.remove(&module) else {
            return Vec::new();
        };
        memory.uncharge(module.in_engine.device, module.in_engine.bytes);
        module.variables
    }

    /// Forgets the modules of a context that ended. The engine ended them with it, and the memory that it
    /// was given for them goes with the context's.
    pub fn forget_context(&mut self, context: u32, memory: &mut ClientMemory) {
        self.modules.retain(|_, module| {
            if module.context == context {
                memory.uncharge(module.in_engine.device, module.in_engine.bytes);
            }
            module.context != context
        });
    }
}

impl Loader<'_> {
    /// Allocates memory for the variables of a module.
    fn allocate_variables(
        &mut self,
        device: u32,
        context: u32,
        needed: Needed,
        blocks: &mut Vec<u64>,
    ) -> Result<VariableMemory, CUresult> {
        let mut lent = VariableMemory {
            is_written: self.placed.is_some(),
            ..VariableMemory::NOTHING
        };
        let [device_at, managed_at] = match self.placed {
            Some(placed) => [placed.device, placed.managed],
            None => [None, None],
        };
        let device_kind = MemoryKind::Device(device);
        let managed_kind = MemoryKind::Managed(device);
        for (kind, bytes, at, window) in [
            (device_kind, needed.device, device_at, &mut lent.device),
            (managed_kind, needed.managed, managed_at, &mut lent.managed),
        ] {
            if bytes > 0 {
                let base = match (self.placed, at) {
                    (Some(_), at) => {
                        let at = at.ok_or(CUresult::ERROR_INVALID_VALUE)?;
                        let place = (kind, context);
                        self.memory.place(place, (at, bytes), &mut self.backing)?;
                        at
                    }
                    (None, _) => self
                        .memory
                        .allocate(kind, context, bytes, &mut self.backing)?,
                };
                blocks.push(base);
                *window = Window { base, bytes };
            }
        }
        Ok(lent)
    }

    /// Releases the variables of a module that was not loaded: nobody else has seen their memory.
    fn release_variables(&mut self, blocks: &[u64]) {
        for &address in blocks {
            if let Some(block) = self.memory.remove(address, true) {
                self.memory.release(&block, &mut self.backing);
            }
        }
    }
}
