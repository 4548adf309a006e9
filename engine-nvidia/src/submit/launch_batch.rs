//! A launch batch: launches that the driver is given as one graph, whose last kernel writes the stream's completion word.
//!
//! A launch holds the context's lock for 1.4 µs and the write of a word for 1 µs, however many threads
//! there are; a graph of up to 32 kernels holds it for 2.7 µs in all, since changing a node's parameters
//! does not take it (`benches/gpu/batches.cu`; docs/notes/launch-batches.md has the figures).
//!
//! Made by the supply and by runs, while nothing runs on the device. Must not know when launches are batched, nor who waits for them.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::code::module::Module;
use crate::device::Device;
use crate::device::signal_kernel::SignalKernel;
use crate::driver::Driver;
use crate::submit::client_words::ClientSignal;
use crate::submit::launch::Launch;
use crate::sync::Handle;

/// Kernels of the batches that a stream may have: what is batched goes in such pieces.
pub(crate) const LENGTHS: [usize; 6] = [32, 16, 8, 4, 2, 1];

/// Where a batch's last kernel writes what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) word: CUdeviceptr,
    pub(crate) fence_value: u32,
    /// What it tells the client besides.
    pub(crate) client: Option<ClientSignal>,
}

impl Signal {
    /// Nobody's: of a batch that is not launched before it has another.
    const NONE: Self = Self {
        word: 0,
        fence_value: 0,
        client: None,
    };

    /// As this, which is of the operation before, behind so many more.
    pub(crate) fn after(self, operations: usize) -> Self {
        let client = self.client.map(|client| ClientSignal {
            sequence: client.sequence + operations as u64,
            ..client
        });
        Self { client, ..self }
    }

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
        let (mut client_word, mut sequence) = self
            .client
            .map_or((0, 0), |client| (client.word, client.sequence));
        let mut parameters = [
            (&raw mut self.word).cast::<c_void>(),
            (&raw mut self.fence_value).cast::<c_void>(),
            (&raw mut client_word).cast::<c_void>(),
            (&raw mut sequence).cast::<c_void>(),
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

/// Launches, and a signal kernel behind them, as one graph of the driver's.
#[derive(Debug)]
pub(crate) struct LaunchBatch {
    graph: Handle<CUgraph>,
    executable: Handle<CUgraphExec>,
    /// One after another; the last is the signal kernel.
    nodes: Vec<Handle<CUgraphNode>>,
    /// What has the kernels now, if that is not ours. The driver may look at it when a node is changed, so that a batch of which
    /// one has gone is of no use any more.
    modules: Vec<Option<Weak<Module>>>,
}

impl LaunchBatch {
    /// Makes a batch of so many launches, in whose places there are kernels of ours, in the current context. Nothing runs on the device.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn blank(
        driver: &Driver,
        signal_kernel: &SignalKernel,
        length: usize,
    ) -> Result<Self, CUresult> {
        Self::new(driver, |batch| {
            for _ in 0..=length {
                Signal::NONE.with(signal_kernel, |parameters| batch.add(driver, parameters))?;
            }
            batch.modules = vec![None; length];
            Ok(())
        })
    }

    /// Makes the batch of these launches, in the current context. Nothing runs on the device.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn of(
        driver: &Driver,
        signal_kernel: &SignalKernel,
        launches: &mut [Launch],
    ) -> Result<Self, CUresult> {
        Self::new(driver, |batch| {
            for launch in launches {
                let node = launch.with_node(|parameters| batch.add(driver, parameters))?;
                for attribute in launch.node_attributes() {
                    let value = &raw const attribute.value;
                    // SAFETY: the node is of our graph; the value is a number's, of which the driver keeps a copy.
                    unsafe { driver.cuGraphKernelNodeSetAttribute(node.0, attribute.id, value)? };
                }
                batch.modules.push(Some(Arc::downgrade(launch.module())));
            }
            let added =
                Signal::NONE.with(signal_kernel, |parameters| batch.add(driver, parameters));
            added.map(drop)
        })
    }

    /// Makes a graph of the nodes that are added.
    fn new(
        driver: &Driver,
        add_nodes: impl FnOnce(&mut Self) -> Result<(), CUresult>,
    ) -> Result<Self, CUresult> {
        let mut graph = CUgraph::NULL;
        // SAFETY: the pointer is to a local.
        unsafe { driver.cuGraphCreate(&raw mut graph, 0)? };
        let mut batch = Self {
            graph: Handle(graph),
            executable: Handle(CUgraphExec::NULL),
            nodes: Vec::new(),
            modules: Vec::new(),
        };
        let added = add_nodes(&mut batch);
        let executable = &raw mut batch.executable.0;
        // SAFETY: the pointer is to our own field, the graph ours.
        let made = added.and_then(|()| unsafe {
            driver.cuGraphInstantiateWithFlags(executable, batch.graph.0, 0)
        });
        made.inspect_err(|_| batch.destroy(driver))?;
        Ok(batch)
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

    /// Makes it the batch of these launches, as many as it has. What was issued stays as it was. Not of one that is stale.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn change(
        &mut self,
        driver: &Driver,
        signal_kernel: &SignalKernel,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<(), CUresult> {
        let executable = self.executable;
        for ((node, module), launch) in self.nodes.iter().zip(&mut self.modules).zip(launches) {
            launch.with_node(|parameters| set_node(driver, executable, *node, parameters))?;
            let is_same =
                |has: &Weak<Module>| std::ptr::eq(has.as_ptr(), Arc::as_ptr(launch.module()));
            if !module.as_ref().is_some_and(is_same) {
                *module = Some(Arc::downgrade(launch.module()));
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
    pub(crate) fn is_stale(&self) -> bool {
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

    /// Destroys it, unless the device has died.
    pub(crate) fn end(&self, device: &Device) {
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
    // with and has now are there: ours always are, else the batch is not stale, and no module is unloaded while launches have
    // passed the gate, as these have.
    unsafe {
        driver.cuGraphExecKernelNodeSetParams_v2(
            executable.0,
            node.0,
            std::ptr::from_ref(parameters),
        )
    }
}
