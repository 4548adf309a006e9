//! What a grid's threads ask of CUDA's device runtime, with the status that CUDA's documentation has for what is wrong.
//!
//! Called by operations of the grid's blocks, on any number of threads. Must not know other clients' grids or the
//! scheduler.

use std::sync::Arc;

use engine::CUresult;
use protocol::operations;
use ptx_vm::{DeviceCall, DeviceFunction, DeviceRuntime, Reply, Services};

use super::errors::{
    Called, INVALID_CONFIGURATION, INVALID_FUNCTION, INVALID_HANDLE, INVALID_VALUE, NO_MEMORY,
    OUT_OF_RESOURCES, SUCCESS, TOO_DEEP,
};
use super::streams::{Begins, Item, Streams, What};
use super::{DEEPEST, Family, Queued, State, Waiting};
use crate::copy::Transfer;
use crate::grid::{Grid, Shape};
use crate::launch_pool::{Object, Slot};
use crate::memory;

/// cudaStreamTailLaunch
const TAIL: u64 = 3;
/// cudaStreamFireAndForget
const ALONE: u64 = 4;
/// cudaStreamNonBlocking, as CUDA's manual has it that streams of device code must be. An H200 takes cudaStreamDefault for the same.
const DEFAULT: u64 = 0;
const NON_BLOCKING: u64 = 1;
/// cudaEventDisableTiming, which events of device code must have, and what else is allowed beside it.
const DISABLE_TIMING: u64 = 2;
const EVENT_FLAGS: u64 = 0b111;
/// The largest of cudaMemcpyKind.
const MOST_KIND: u64 = 4;
/// Bytes of a kernel's parameters, at most.
const MOST_PARAMETERS: u64 = 32764;

/// A parameter buffer that a thread was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// What is to be launched, if that was said with it.
    shape: Option<Shape>,
    bytes: u32,
}

impl DeviceRuntime for Family {
    fn reserve(&self, block: u64, launches: u64) -> Option<u64> {
        let pool = &self.place.client.launches;
        let granted = pool.reserve(launches);
        let mut state = self.state.lock();
        let was_blocked = !state.blocked.is_empty();
        match granted {
            None => state.blocked.insert(block),
            Some(_) => state.blocked.remove(&block),
        };
        let is_blocked = !state.blocked.is_empty();
        if state.resident && was_blocked != is_blocked {
            pool.set_blocked(is_blocked);
        }
        granted
    }

    fn call(&self, call: &DeviceCall<'_>) -> Reply {
        let [a, b, c, d, e, f, g, ..] = call.arguments;
        let status = |called: Called<()>| Reply::Status(called.err().unwrap_or(SUCCESS));
        let created = |handle: Called<u64>| match handle {
            Ok(handle) => Reply::written(&handle.to_le_bytes()),
            Err(error) => Reply::Status(error),
        };
        let address = |address: Called<u64>| match address {
            Ok(address) => Reply::Address(address, SUCCESS),
            Err(error) => Reply::Address(0, error),
        };
        match call.function {
            DeviceFunction::ParameterBuffer => address(self.buffer(b, None)),
            DeviceFunction::ParameterBufferV2 => address(self.shaped_buffer(call)),
            DeviceFunction::Launch => status(self.launch_v1(call)),
            DeviceFunction::LaunchV2 => status(self.launch_v2(call)),
            DeviceFunction::GraphLaunch => status(match &self.place.graph {
                Some(run) => run.launch(a, b),
                // Only kernels of such graphs launch graphs.
                None => Err(INVALID_VALUE),
            }),
            DeviceFunction::Synchronize => self.synchronize(call.block),
            DeviceFunction::StreamCreate => created(match b {
                DEFAULT | NON_BLOCKING => self.create(Streams::create_stream),
                _ => Err(INVALID_VALUE),
            }),
            DeviceFunction::StreamDestroy => {
                let destroyed = self.state.lock().streams.destroy_stream(a);
                status(destroyed.then_some(()).ok_or(INVALID_HANDLE))
            }
            DeviceFunction::StreamWait => status(self.mark(call.block, a, |state, stream, by| {
                state.streams.wait(stream, b, by)
            })),
            DeviceFunction::EventCreate => {
                let known = b & !EVENT_FLAGS == 0 && b & DISABLE_TIMING != 0;
                created(match known {
                    true => self.create(Streams::create_event),
                    false => Err(INVALID_VALUE),
                })
            }
            DeviceFunction::EventRecord => status(self.mark(call.block, b, |state, stream, by| {
                state.streams.record(stream, a, by)
            })),
            DeviceFunction::EventDestroy => {
                let destroyed = self.state.lock().streams.destroy_event(a);
                status(destroyed.then_some(()).ok_or(INVALID_HANDLE))
            }
            // The executor keeps the errors.
            DeviceFunction::TakeError | DeviceFunction::PeekError => Reply::Status(SUCCESS),
            DeviceFunction::Device => self.device(),
            DeviceFunction::Attribute => self.attribute(b as u32, c as u32),
            DeviceFunction::KernelFacts => match self.kernel_facts(b) {
                Ok(facts) => Reply::written(&facts),
                Err(error) => Reply::Status(error),
            },
            DeviceFunction::Occupancy => match self.occupancy(b, c as u32, d) {
                Ok(blocks) => Reply::written(&blocks.to_le_bytes()),
                Err(error) => Reply::Status(error),
            },
            DeviceFunction::ErrorName => address(self.error_text(a as u32, true)),
            DeviceFunction::ErrorText => address(self.error_text(a as u32, false)),
            DeviceFunction::Allocate => match self.place.context.services.allocate(b) {
                0 => Reply::Status(NO_MEMORY),
                address => Reply::written(&address.to_le_bytes()),
            },
            DeviceFunction::Free => {
                let freed = a == 0 || self.free(a);
                status(freed.then_some(()).ok_or(INVALID_VALUE))
            }
            DeviceFunction::Copy => status(self.copy([a, c, b, c, c, 1], d, e, call.block)),
            DeviceFunction::Copy2D => {
                let stream = call.arguments[7];
                status(self.copy([a, b, c, d, e, f], g, stream, call.block))
            }
            DeviceFunction::Fill => status(self.fill([a, c, b, c, 1], d, call.block)),
            DeviceFunction::Fill2D => status(self.fill([a, b, c, d, e], f, call.block)),
        }
    }
}

impl Family {
    /// Gives memory back to the device heap.
    pub(super) fn free(&self, address: u64) -> bool {
        self.place.context.services.free(address)
    }

    /// Room for so many bytes of parameters, in the device heap: threads write them as they write all memory.
    fn buffer(&self, bytes: u64, shape: Option<Shape>) -> Called<u64> {
        if bytes > MOST_PARAMETERS {
            return Err(INVALID_VALUE);
        }
        let address = self.place.context.services.allocate(bytes);
        if address == 0 {
            return Err(OUT_OF_RESOURCES);
        }
        let bytes = bytes as u32;
        let prepared = Prepared { shape, bytes };
        self.state.lock().prepared.insert(address, prepared);
        Ok(address)
    }

    fn shaped_buffer(&self, call: &DeviceCall<'_>) -> Called<u64> {
        let [kernel, gx, gy, gz, bx, by, bz, shared, ..] = call.arguments;
        let shape = self.shape(kernel, [gx, gy, gz], [bx, by, bz], shared)?;
        let kernel = self.place.module.kernel(shape.kernel);
        let bytes = kernel.map_err(|_| INVALID_FUNCTION)?.param_bytes;
        self.buffer(bytes.into(), Some(shape))
    }

    fn shape(&self, kernel: u64, grid: [u64; 3], block: [u64; 3], shared: u64) -> Called<Shape> {
        Ok(Shape {
            kernel: self.kernel(kernel)?.0,
            grid: grid.map(|n| n as u32),
            block: block.map(|n| n as u32),
            shared: shared as u32,
            cooperative: false,
            cluster: None,
            priority: self.root.get().map_or(0, |root| root.priority),
        })
    }

    fn launch_v1(&self, call: &DeviceCall<'_>) -> Called<()> {
        let [kernel, buffer, gx, gy, gz, bx, by, bz, shared, stream] = call.arguments;
        let slot = self.place.client.launches.slot();
        let prepared = self.take(buffer)?;
        let shape = self.shape(kernel, [gx, gy, gz], [bx, by, bz], shared)?;
        self.launch(call, slot, (buffer, prepared), &shape, stream)
    }

    fn launch_v2(&self, call: &DeviceCall<'_>) -> Called<()> {
        let [buffer, stream, ..] = call.arguments;
        let slot = self.place.client.launches.slot();
        let prepared = self.take(buffer)?;
        let shape = prepared.shape.ok_or(INVALID_VALUE)?;
        self.launch(call, slot, (buffer, prepared), &shape, stream)
    }

    /// Takes a parameter buffer, whose memory still is to be freed.
    fn take(&self, buffer: u64) -> Called<Prepared> {
        let prepared = self.state.lock().prepared.remove(&buffer);
        prepared.ok_or(INVALID_VALUE)
    }

    fn launch(
        &self,
        call: &DeviceCall<'_>,
        slot: Slot,
        (buffer, prepared): (u64, Prepared),
        shape: &Shape,
        stream: u64,
    ) -> Called<()> {
        let kernel = self.place.module.kernel(shape.kernel);
        let kernel = kernel.map_err(|_| INVALID_FUNCTION)?;
        let mut params = vec![0; kernel.param_bytes as usize];
        let fits = kernel.param_bytes <= prepared.bytes
            && (params.is_empty() || (call.read)(buffer, &mut params));
        self.free(buffer);
        if !fits {
            return Err(INVALID_VALUE);
        }
        // What a tail launches is as deep as what it follows.
        let depth = self.depth + u32::from(stream != TAIL);
        if depth > DEEPEST {
            return Err(TOO_DEEP);
        }
        let family = Self::new(self.place.clone(), depth);
        let runtime = kernel.asks_runtime.then(|| Arc::clone(&family) as _);
        let grid = Grid::shaped(&self.place, shape, &params, runtime);
        let grid = grid.map_err(|code| match code {
            CUresult::ERROR_INVALID_VALUE => INVALID_CONFIGURATION,
            code => code.0,
        })?;
        let queued = Queued {
            waiting: self.waiting(slot, grid.bytes())?,
            grid,
            family,
        };
        let block = call.block;
        let mut state = self.state.lock();
        match stream {
            TAIL => {
                state.tails.push_back(queued);
                Ok(())
            }
            ALONE => {
                state.alone += 1;
                drop(state);
                let parent = self.parent(None, block).ok_or(INVALID_VALUE)?;
                self.start(self.grid_start(queued, parent));
                Ok(())
            }
            handle => {
                let stream = state.streams.find(handle, block).ok_or(INVALID_HANDLE)?;
                let what = What::Grid(Box::new(queued));
                let begins = state.streams.push(stream, Item { what, block });
                drop(state);
                self.begin_all(begins);
                Ok(())
            }
        }
    }

    /// Counts what waits among the client's.
    fn waiting(&self, slot: Slot, bytes: u64) -> Called<Waiting> {
        let client = &self.place.client;
        if !client.wait(bytes) {
            return Err(OUT_OF_RESOURCES);
        }
        Ok(Waiting {
            _slot: slot,
            client: Arc::clone(client),
            bytes,
        })
    }

    fn create(&self, make: impl FnOnce(&mut Streams, Object) -> u64) -> Called<u64> {
        let object = self.place.client.launches.object().ok_or(NO_MEMORY)?;
        Ok(make(&mut self.state.lock().streams, object))
    }

    /// Puts a record or a wait into a stream.
    fn mark(
        &self,
        block: u64,
        stream: u64,
        put: impl FnOnce(&mut State, u64, (u64, Object)) -> Option<Begins>,
    ) -> Called<()> {
        let object = self.place.client.launches.object().ok_or(NO_MEMORY)?;
        let mut state = self.state.lock();
        let stream = state.streams.find(stream, block).ok_or(INVALID_HANDLE)?;
        let begins = put(&mut state, stream, (block, object)).ok_or(INVALID_HANDLE)?;
        drop(state);
        self.begin_all(begins);
        Ok(())
    }

    /// Whether all that a block has launched is over.
    fn synchronize(&self, block: u64) -> Reply {
        let mut state = self.state.lock();
        if state.streams.is_block_idle(block) {
            return Reply::Status(SUCCESS);
        }
        // What it waits for may itself wait for its turn.
        let resident = std::mem::take(&mut state.resident);
        let blocked = !state.blocked.is_empty();
        drop(state);
        if resident {
            let pool = &self.place.client.launches;
            if blocked {
                pool.set_blocked(false);
            }
            pool.ended();
        }
        Reply::Later
    }

    /// A copy from `from` to `to`, each with its pitch, of `height` rows of `width` bytes.
    fn copy(
        &self,
        [to, to_pitch, from, from_pitch, width, height]: [u64; 6],
        kind: u64,
        stream: u64,
        block: u64,
    ) -> Called<()> {
        if kind > MOST_KIND || to_pitch < width || from_pitch < width {
            return Err(INVALID_VALUE);
        }
        let unified = operations::Space::Unified as u32;
        let request = operations::Copy {
            to_space: unified,
            to,
            to_pitch,
            to_slice: 0,
            from_space: unified,
            from,
            from_pitch,
            from_slice: 0,
            width,
            height,
            depth: 1,
        };
        let space = memory::read(&self.place.client.spaces);
        self.transfer(Transfer::copy(&space, &request), stream, block)
    }

    /// A fill of `height` rows of `width` bytes.
    fn fill(
        &self,
        [to, pitch, value, width, height]: [u64; 5],
        stream: u64,
        block: u64,
    ) -> Called<()> {
        if pitch < width {
            return Err(INVALID_VALUE);
        }
        let request = operations::Fill {
            to,
            pitch,
            value: value as u32 & 0xff,
            element: 1,
            width,
            height,
        };
        let space = memory::read(&self.place.client.spaces);
        self.transfer(Transfer::fill(&space, &request), stream, block)
    }

    fn transfer(
        &self,
        transfer: Result<Transfer, CUresult>,
        stream: u64,
        block: u64,
    ) -> Called<()> {
        let transfer = transfer.map_err(|_| INVALID_VALUE)?;
        if transfer.bytes() == 0 {
            return Ok(());
        }
        let pool = &self.place.client.launches;
        if pool.reserve(1) != Some(1) {
            return Err(OUT_OF_RESOURCES);
        }
        let waiting = self.waiting(pool.slot(), size_of::<Transfer>() as u64)?;
        let mut state = self.state.lock();
        let stream = state.streams.find(stream, block).ok_or(INVALID_HANDLE)?;
        let what = What::Transfer(Box::new(transfer), waiting);
        let begins = state.streams.push(stream, Item { what, block });
        drop(state);
        self.begin_all(begins);
        Ok(())
    }
}
