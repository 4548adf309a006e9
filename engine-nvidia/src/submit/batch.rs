//! Launch batches: launches of one stream that the driver is given as one graph, whose last kernel writes the
//! stream's completion word.
//!
//! A launch holds the context's lock for 1.4 µs and the write of a word for 1 µs, however many threads
//! there are; a graph of up to 32 kernels holds it for 2.7 µs in all, since changing a node's parameters
//! does not take it (`benches/gpu/batches.cu`; docs/notes/launch-batches.md has the figures).
//!
//! Owns a stream's graphs: one of each length, which are made once there is use for them; and how any batch is
//! made, which [runs](crate::submit::graph_run) have of their own. Called by the stream, with its lock held, and by runs. Must
//! not know when launches are batched, nor who waits for them.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::code::module::Module;
use crate::device::Device;
use crate::device::signal_kernel::SignalKernel;
use crate::driver::Driver;
use crate::submit::launch::Launch;
use crate::sync::{BoundedCount, Handle};

/// Kernels of the batches that a stream may have: what is batched goes in such pieces.
const LENGTHS: [usize; 6] = [32, 16, 8, 4, 2, 1];

/// Launches that are batched at most.
pub(crate) const MAX_BATCH: usize = LENGTHS[0];

/// Launches of a stream before its first batch: making one takes as long as issuing some dozens.
const LAUNCHES_BEFORE_BATCHES: u32 = 64;

/// Launches of a stream that go by themselves after the driver has refused a batch.
const AFTER_REFUSAL: u32 = 1024;

/// Nodes of all batches of a client. Each takes about 6 KiB of the device's memory, which no quota has.
pub(crate) const MOST_NODES: usize = 8 * (2 * MAX_BATCH - 1 + LENGTHS.len());

/// Where a batch's last kernel writes what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) word: CUdeviceptr,
    pub(crate) fence_value: u32,
}

impl Signal {
    /// Has a kernel write it where a stream comes to it. The word lives as long as that may be.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn launch(
        self,
        signal_kernel: &SignalKernel,
        driver: &Driver,
        stream: CUstream,
    ) -> Result<(), CUresult> {
        self.with(signal_kernel, |call| {
            // SAFETY: the function lives as long as the context; its parameters are the call's, of which the driver keeps
            // a copy; who made the signal keeps the word.
            unsafe {
                driver.cuLaunchKernel(
                    call.func,
                    call.gridDimX,
                    call.gridDimY,
                    call.gridDimZ,
                    call.blockDimX,
                    call.blockDimY,
                    call.blockDimZ,
                    call.sharedMemBytes,
                    stream,
                    call.kernelParams,
                    call.extra,
                )
            }
        })
    }

    /// Has `call` have the signal kernel's launch.
    fn with<T>(
        mut self,
        signal_kernel: &SignalKernel,
        call: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> T,
    ) -> T {
        let mut parameters = [
            (&raw mut self.word).cast::<c_void>(),
            (&raw mut self.fence_value).cast::<c_void>(),
        ];
        call(&CUDA_KERNEL_NODE_PARAMS {
            func: signal_kernel.function(),
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: parameters.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        })
    }
}

/// One stream's batches.
#[derive(Debug)]
pub(crate) struct LaunchBatches {
    device: Arc<Device>,
    /// For the nodes of all of the client's batches.
    room: Arc<BoundedCount>,
    /// The context in which the stream's kernels run. `None` if there is no way to make graphs in it.
    home: Option<Handle<CUcontext>>,
    /// As [`LENGTHS`].
    made: [Option<LaunchBatch>; LENGTHS.len()],
    /// Launches that go by themselves before any goes in a batch.
    alone: u32,
}

/// Launches, and a signal kernel behind them, as one graph of the driver's.
#[derive(Debug)]
pub(crate) struct LaunchBatch {
    graph: Handle<CUgraph>,
    executable: Handle<CUgraphExec>,
    /// One after another; the last is the signal kernel.
    nodes: Vec<Handle<CUgraphNode>>,
    /// What had the kernels when the batch was made, and has them now. The driver may look at either when
    /// a node is changed, so that a batch of which one has gone is of no use any more.
    modules: [Vec<Weak<Module>>; 2],
}

impl LaunchBatches {
    /// Launch batches for a stream whose kernels run in the context `home`.
    pub(crate) fn new(
        device: &Arc<Device>,
        room: &Arc<BoundedCount>,
        home: Option<Handle<CUcontext>>,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            room: Arc::clone(room),
            home,
            made: [const { None }; LENGTHS.len()],
            alone: LAUNCHES_BEFORE_BATCHES,
        }
    }

    /// The context in which batches are made, if there can be any.
    pub(crate) fn home(&self) -> Option<Handle<CUcontext>> {
        self.home
    }

    /// Whether a launch is to be batched, and not to be issued by itself.
    pub(crate) fn should_batch(&mut self, launch: &Launch) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        // What was never launched may need more local memory than there is, for which the driver waits;
        // and what it refuses by itself is best refused by itself.
        self.home.is_some() && self.device.signal_kernel().is_some() && launch.is_known_and_plain()
    }

    /// Gives the driver as many of the first launches as there is a batch for, and then has the GPU give
    /// the signal. The device's context is current, and no batch of the stream waits to be issued. Returns how
    /// many.
    ///
    /// # Errors
    /// The driver's status. It has taken nothing then, and each launch is to be issued by itself.
    pub(crate) fn issue(
        &mut self,
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<usize, CUresult> {
        let issued = self.issue_some(stream, launches, signal);
        if issued.is_err() {
            self.alone = AFTER_REFUSAL;
        }
        issued
    }

    fn issue_some(
        &mut self,
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<usize, CUresult> {
        let none = CUresult::ERROR_NOT_SUPPORTED;
        let device = Arc::clone(&self.device);
        let signal_kernel = device.signal_kernel().ok_or(none)?;
        let home = self.home.ok_or(none)?;
        // The longest that is not too long, and that there is or can be.
        for (made, length) in self.made.iter_mut().zip(LENGTHS) {
            if length > launches.len() {
                continue;
            }
            let launches = &mut launches[..length];
            if let Some(stale) = made.take_if(|batch| batch.is_stale()) {
                stale.end(&device, &self.room);
            }
            if let Some(batch) = made {
                device.within(home, |driver| {
                    batch.change(driver, signal_kernel, launches, signal)?;
                    batch.launch(driver, stream)
                })?;
                return Ok(length);
            }
            let room = &self.room;
            if let Some(batch) = LaunchBatch::first((&device, home), room, stream, launches, signal)
            {
                *made = Some(batch?);
                return Ok(length);
            }
        }
        Err(none)
    }
}

impl Drop for LaunchBatches {
    fn drop(&mut self) {
        for batch in self.made.iter().flatten() {
            batch.end(&self.device, &self.room);
        }
    }
}

impl LaunchBatch {
    /// Makes a batch of these launches in the context `home`, and gives it to the driver. `None` if there is no
    /// room for its nodes, or can be no batches; what was made is to [end](Self::end) in the same room.
    pub(crate) fn first(
        (device, home): (&Device, Handle<CUcontext>),
        room: &BoundedCount,
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Option<Result<Self, CUresult>> {
        let signal_kernel = device.signal_kernel()?;
        let nodes = launches.len() + 1;
        if !room.try_add(nodes) {
            return None;
        }
        let batch = device.within(home, |driver| {
            let batch = Self::new(driver, signal_kernel, launches, signal)?;
            let launched = batch.launch(driver, stream);
            launched.inspect_err(|_| batch.destroy(driver))?;
            Ok(batch)
        });
        Some(batch.inspect_err(|_| room.subtract(nodes)))
    }

    /// Makes the graph of these launches, in the current context.
    fn new(
        driver: &Driver,
        signal_kernel: &SignalKernel,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<Self, CUresult> {
        let mut graph = CUgraph::NULL;
        // SAFETY: the pointer is to a local.
        unsafe { driver.cuGraphCreate(&raw mut graph, 0)? };
        let mut batch = Self {
            graph: Handle(graph),
            executable: Handle(CUgraphExec::NULL),
            nodes: Vec::with_capacity(launches.len() + 1),
            modules: [const { Vec::new() }; 2],
        };
        batch
            .fill(driver, signal_kernel, launches, signal)
            .inspect_err(|_| batch.destroy(driver))?;
        Ok(batch)
    }

    fn fill(
        &mut self,
        driver: &Driver,
        signal_kernel: &SignalKernel,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<(), CUresult> {
        for launch in launches {
            let node = launch.with_node(|parameters| self.add(driver, parameters))?;
            for attribute in launch.node_attributes() {
                let value = &raw const attribute.value;
                // SAFETY: the node is of our graph; the value is a number's, of which the driver keeps a copy.
                unsafe { driver.cuGraphKernelNodeSetAttribute(node.0, attribute.id, value)? };
            }
            for modules in &mut self.modules {
                modules.push(Arc::downgrade(launch.module()));
            }
        }
        signal.with(signal_kernel, |parameters| self.add(driver, parameters))?;
        // SAFETY: the pointer is to our own field, the graph ours.
        unsafe { driver.cuGraphInstantiateWithFlags(&raw mut self.executable.0, self.graph.0, 0) }
    }

    /// Adds a kernel behind the others. Gives its node.
    fn add(
        &mut self,
        driver: &Driver,
        parameters: &CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<Handle<CUgraphNode>, CUresult> {
        let mut node = CUgraphNode::NULL;
        let before = self.nodes.last().map(|last| last.0);
        // SAFETY: the pointers are to locals and to the caller's parameters, of which the driver keeps a
        // copy; there is one node before, or none.
        unsafe {
            driver.cuGraphAddKernelNode_v2(
                &raw mut node,
                self.graph.0,
                before.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                usize::from(before.is_some()),
                std::ptr::from_ref(parameters),
            )?;
        }
        self.nodes.push(Handle(node));
        Ok(Handle(node))
    }

    /// Makes it the batch of these launches, as many as it has. What was issued stays as it was.
    fn change(
        &mut self,
        driver: &Driver,
        signal_kernel: &SignalKernel,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<(), CUresult> {
        let executable = self.executable;
        let [_, now] = &mut self.modules;
        for ((node, module), launch) in self.nodes.iter().zip(now).zip(launches) {
            launch.with_node(|parameters| set_node(driver, executable, *node, parameters))?;
            if !std::ptr::eq(module.as_ptr(), Arc::as_ptr(launch.module())) {
                *module = Arc::downgrade(launch.module());
            }
        }
        self.set_signal(driver, signal_kernel, signal)
    }

    /// Changes what its end tells.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn set_signal(
        &self,
        driver: &Driver,
        signal_kernel: &SignalKernel,
        signal: Signal,
    ) -> Result<(), CUresult> {
        let last = self.nodes.last().ok_or(CUresult::ERROR_UNKNOWN)?;
        signal.with(signal_kernel, |parameters| {
            set_node(driver, self.executable, *last, parameters)
        })
    }

    /// Whether a module is gone that it has a kernel of.
    fn is_stale(&self) -> bool {
        let mut modules = self.modules.iter().flatten();
        modules.any(|module| module.strong_count() == 0)
    }

    /// Gives it to the driver.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn launch(&self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        // SAFETY: both are ours, and of one context.
        unsafe { driver.cuGraphLaunch(self.executable.0, stream) }
    }

    /// Destroys it, unless the device has died, and gives back the room for its nodes.
    pub(crate) fn end(&self, device: &Device, room: &BoundedCount) {
        room.subtract(self.nodes.len());
        if let Ok(driver) = device.enter() {
            self.destroy(driver);
        }
    }

    fn destroy(&self, driver: &Driver) {
        // SAFETY: ours, and destroyed once. What still runs of it, the driver keeps.
        unsafe {
            if !self.executable.0.is_null() {
                let _ = driver.cuGraphExecDestroy(self.executable.0);
            }
            let _ = driver.cuGraphDestroy(self.graph.0);
        }
    }
}

/// Changes a node of a batch that is not stale.
fn set_node(
    driver: &Driver,
    executable: Handle<CUgraphExec>,
    node: Handle<CUgraphNode>,
    parameters: &CUDA_KERNEL_NODE_PARAMS,
) -> Result<(), CUresult> {
    // SAFETY: the node is of this graph; the driver copies the parameters. The functions that the node was made
    // with and has now are there: the batch is not stale, and no module is unloaded while launches have passed
    // the gate, as these have.
    unsafe {
        driver.cuGraphExecKernelNodeSetParams_v2(
            executable.0,
            node.0,
            std::ptr::from_ref(parameters),
        )
    }
}
