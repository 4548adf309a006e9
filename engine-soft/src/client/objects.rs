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
use crate::device_graph::{DeviceGraph, Launches};
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
    pub(super) runs: Runs<Launches>,
    /// The runs that kernels may launch.
    pub(super) graphs: HashMap<u32, Arc<DeviceGraph>>,
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
        let published: Vec<u32> = self.graphs.keys().copied().collect();
        for run in published {
            if self.runs.get(run).is_err() {
                self.withdraw(run);
            }
        }
    }

    /// Lets kernels launch a run, as the graph of this number, instead of the one that was that before.
    ///
    /// # Errors
    /// What is wrong with the run, and CUDA_ERROR_INVALID_VALUE for one that was published.
    pub(super) fn publish(&mut self, run: u32, number: u64) -> Result<(), CUresult> {
        let launches = Arc::clone(self.runs.get(run)?);
        let modules = launches
            .iter()
            .map(|(launch, _)| self.module(launch.module).cloned());
        let modules = modules.collect::<Result<Vec<_>, _>>()?;
        if self.graphs.contains_key(&run) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let graph = DeviceGraph::new(number, launches, modules);
        self.graphs.insert(run, Arc::clone(&graph));
        self.client.graphs.lock().insert(number, graph);
        Ok(())
    }

    /// Kernels launch the run no more, if they might. What was launched of it goes on.
    pub(super) fn withdraw(&mut self, run: u32) {
        let Some(graph) = self.graphs.remove(&run) else {
            return;
        };
        let mut graphs = self.client.graphs.lock();
        let number = graph.number();
        if graphs
            .get(&number)
            .is_some_and(|now| Arc::ptr_eq(now, &graph))
        {
            graphs.remove(&number);
        }
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
        let (place, priority) = self.place(stream, self.module(request.module)?)?;
        Launched::new(place, priority, request, data)
    }

    /// Where kernels of a module run in a stream, and how urgent they are.
    pub(super) fn place(
        &self,
        stream: &Stream,
        module: &Arc<Module>,
    ) -> Result<(Place, i32), CUresult> {
        let (context, priority) = stream.place()?;
        context.check()?;
        let peers = context.peers.load(Ordering::Relaxed);
        let place = Place {
            module: Arc::clone(module),
            space: Arc::clone(self.memory.kernel_space(context.device, peers)?),
            textures: Arc::clone(&self.textures),
            sms: self
                .sms
                .min(granted(self.client.scheduler.workers(), context.part)),
            client: Arc::clone(&self.client),
            context,
            graph: None,
        };
        Ok((place, priority))
    }
}
