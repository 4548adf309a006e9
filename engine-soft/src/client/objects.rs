//! What a client has, by its own handles.
//!
//! Owns the tables and how an entry is found or made. Called by the operations in `client`. Must not know how an
//! operation travels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Bound, CUresult, Granularity, Runs};
use protocol::operations::{self, At};

use crate::array::Array;
use crate::client_state::ClientState;
use crate::context::Context;
use crate::family::Launched;
use crate::grid::Place;
use crate::memory::ClientMemory;
use crate::module::{Image, Module};
use crate::stream::{Operation, Stream};

/// Objects that a client may have of a kind; more are refused, so that it cannot fill the server.
pub(super) const MOST_OBJECTS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Objects {
    pub(super) client: Arc<ClientState>,
    /// SMs that the client sees. Its share may change, but not what it was told.
    pub(super) sms: u64,
    pub(super) memory: ClientMemory,
    pub(super) contexts: HashMap<u32, Arc<Context>>,
    pub(super) streams: HashMap<u32, Arc<Stream>>,
    /// Of the server's memory, what may be held for the client.
    pub(super) held: Arc<Bound>,
    pub(super) images: HashMap<u64, Arc<Image>>,
    pub(super) modules: HashMap<u64, Arc<Module>>,
    /// Launches as they were asked for: what they may reach is found anew each time.
    pub(super) runs: Runs<Vec<(operations::Launch, Box<[u8]>)>>,
    pub(super) arrays: HashMap<u64, Arc<Array>>,
    /// What kernels read of them, and whose those numbers are; `true` for surfaces.
    pub(super) textures: Arc<ptx_vm::Textures>,
    pub(super) texture_owners: HashMap<(u64, bool), TextureOwner>,
}

/// Whose a texture or surface is.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextureOwner {
    pub(super) context: u32,
    /// The array that it is made of.
    pub(super) array: Option<u64>,
}

/// The SMs, of `all`, that a percentage grants.
pub(super) fn granted(all: usize, percentage: f32) -> u64 {
    let all = u32::try_from(all).unwrap_or(u32::MAX);
    Granularity::default().granted(all, percentage).into()
}

impl Objects {
    pub(super) fn context(&self, id: u32) -> Result<&Arc<Context>, CUresult> {
        self.contexts
            .get(&id)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    pub(super) fn stream(&self, slot: u32) -> Result<&Arc<Stream>, CUresult> {
        self.streams
            .get(&slot)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
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
        if let Some(stream) = self.streams.get(&slot) {
            return stream.renew(priority, context);
        }
        let client = Arc::clone(&self.client);
        let stream = Stream::new(slot, priority, context, client);
        self.streams.insert(slot, stream);
        Ok(())
    }

    /// Lets go of the runs that have a module which is gone.
    pub(super) fn forget_runs(&mut self) {
        let Self { modules, runs, .. } = self;
        runs.refuse(|launches| {
            let mut launches = launches.iter();
            launches.any(|(launch, _)| !modules.contains_key(&launch.module))
        });
    }

    pub(super) fn post(&self, at: At, operation: Operation<'_>) -> Result<(), CUresult> {
        self.stream(at.stream)?.post(at.sequence, operation)
    }

    pub(super) fn grid(
        &self,
        stream: &Stream,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<Launched, CUresult> {
        let (context, priority) = stream.place()?;
        context.check()?;
        let peers = context.peers.load(Ordering::Relaxed);
        let place = Place {
            module: Arc::clone(self.module(request.module)?),
            space: Arc::clone(self.memory.kernel_space(context.device, peers)?),
            textures: Arc::clone(&self.textures),
            sms: self
                .sms
                .min(granted(self.client.scheduler.workers(), context.part)),
            client: Arc::clone(&self.client),
            context,
        };
        Launched::new(place, priority, request, data)
    }
}
