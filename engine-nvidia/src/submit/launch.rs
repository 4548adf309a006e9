//! Launches: the client's request checked, and given to the driver.
//!
//! Owns a launch's arguments in the form that the driver takes. Made by the client, issued by streams and launch
//! batches. Must not know what else is in its stream.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::plan;
use protocol::operations;

use crate::code::module::Module;
use crate::device::work_signature::WorkSignature;
use crate::driver::Driver;
use crate::sync::Handle;

/// Attributes whose values are numbers. The others name events or addresses of the process that sets
/// them, which the driver would follow in this one.
const PLAIN: &[CUlaunchAttributeID] = &[
    CUlaunchAttributeID::IGNORE,
    CUlaunchAttributeID::COOPERATIVE,
    CUlaunchAttributeID::SYNCHRONIZATION_POLICY,
    CUlaunchAttributeID::CLUSTER_DIMENSION,
    CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION,
    CUlaunchAttributeID::PRIORITY,
    CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP,
    CUlaunchAttributeID::MEM_SYNC_DOMAIN,
    CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION,
    CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Those of them that a node of a graph has too. A kernel that may begin before the one before it has ended is an edge of
/// another kind there, and how a thread waits is no kernel's.
const OF_NODES: &[CUlaunchAttributeID] = &[
    CUlaunchAttributeID::COOPERATIVE,
    CUlaunchAttributeID::CLUSTER_DIMENSION,
    CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CUlaunchAttributeID::PRIORITY,
    CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP,
    CUlaunchAttributeID::MEM_SYNC_DOMAIN,
    CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION,
    CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Attributes of one launch; CUDA has fewer.
const MOST_ATTRIBUTES: u32 = 32;

/// A launch that was found to be sound.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Keeps the function.
    module: Arc<Module>,
    kernel: u32,
    attributes: Vec<CUlaunchAttribute>,
    call: DriverLaunch,
}

/// What a launch tells the driver, without its attributes.
#[derive(Clone, Debug)]
struct DriverLaunch {
    function: Handle<CUfunction>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    parameters: Vec<u8>,
}

/// A kernel that the driver has, whose module must stay until it has ended.
#[derive(Debug)]
pub(crate) struct RunningKernel {
    pub(crate) module: Arc<Module>,
    pub(crate) kernel: u32,
}

impl RunningKernel {
    /// The kernel's name.
    pub(crate) fn kernel_name(&self) -> Option<String> {
        self.module.kernel_name(self.kernel).map(str::to_owned)
    }
}

impl Launch {
    /// Checks a request. `data` is its launch attributes, then its parameter block.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a kernel that is not there, CUDA_ERROR_INVALID_VALUE for data
    /// that does not fit it, and CUDA_ERROR_NOT_SUPPORTED for attributes that name events or memory.
    pub(crate) fn new(
        module: &Arc<Module>,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<Self, CUresult> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let function = module.function(request.kernel)?;
        let cooperative = plan::launch::is_cooperative(request)?;
        let (mut attributes, parameters) = split_attributes(request.attributes, data)?;
        if cooperative {
            let mut value = [0; 64];
            value[0] = 1;
            attributes.push(CUlaunchAttribute {
                id: CUlaunchAttributeID::COOPERATIVE,
                pad: [0; 4],
                value: CUlaunchAttributeValue(value),
            });
        }
        if parameters.len() != module.parameter_bytes(request.kernel) {
            return Err(invalid);
        }
        Ok(Self {
            module: Arc::clone(module),
            kernel: request.kernel,
            attributes,
            call: DriverLaunch {
                function,
                grid: request.grid,
                block: request.block,
                shared: request.shared,
                parameters: parameters.to_vec(),
            },
        })
    }

    /// Where the program asked for a priority, the driver is asked for what `of` makes of it.
    pub(crate) fn set_priorities(&mut self, of: impl Fn(i32) -> i32) {
        let asks =
            |attribute: &&mut CUlaunchAttribute| attribute.id == CUlaunchAttributeID::PRIORITY;
        for attribute in self.attributes.iter_mut().filter(asks) {
            if let Some(value) = attribute.value.0.first_chunk_mut() {
                *value = of(i32::from_ne_bytes(*value)).to_ne_bytes();
            }
        }
    }

    /// See [`CommandKind::signature`](crate::submit::command::CommandKind::signature).
    pub(crate) fn signature(&self) -> WorkSignature {
        let [x, y, z] = self.call.grid.map(u64::from);
        let block = self
            .call
            .block
            .iter()
            .fold(1, |all, &side| all * u64::from(side));
        let kind = WorkSignature::default().and(self.call.function.0.0.addr() as u64);
        kind.and(x).and(y << 32 | z).and(block)
    }

    /// See [`CommandKind::sort`](crate::submit::command::CommandKind::sort): grids of sizes up to twice as large are alike.
    pub(crate) fn sort(&self) -> WorkSignature {
        let sides = self.call.grid.iter().map(|side| side.max(&1).ilog2());
        let size = sides.sum::<u32>();
        let function = self.call.function.0.0.addr() as u64;
        WorkSignature::default().and(function).and(size.into())
    }

    /// Bytes that it keeps while it waits.
    pub(crate) fn held_bytes(&self) -> usize {
        self.call.parameters.len() + self.attributes.len() * size_of::<CUlaunchAttribute>()
    }

    /// Whether the driver has taken the kernel before, and the launch asks for nothing special.
    pub(crate) fn is_known_and_plain(&self) -> bool {
        self.attributes.is_empty() && self.module.was_launched(self.kernel)
    }

    /// Whether the driver has taken the kernel before, and a node of a graph can have all that the launch asks for.
    pub(crate) fn is_known_and_fit_for_a_node(&self) -> bool {
        let fits = |attribute: &CUlaunchAttribute| {
            says_nothing(attribute) || OF_NODES.contains(&attribute.id)
        };
        self.attributes.iter().all(fits) && self.module.was_launched(self.kernel)
    }

    /// What the node of a graph that is made of it has to be given, beside its parameters.
    pub(crate) fn node_attributes(&self) -> impl Iterator<Item = &CUlaunchAttribute> {
        let all = self.attributes.iter();
        all.filter(|attribute| !says_nothing(attribute))
    }

    /// Gives it to the driver. The device's context is current. What is returned keeps the
    /// module until the kernel has finished.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(
        mut self,
        driver: &Driver,
        stream: CUstream,
    ) -> Result<RunningKernel, CUresult> {
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
            (self.call.grid, self.call.block);
        let (function, shared) = (self.call.function.0, self.call.shared);
        if self.attributes.is_empty() {
            self.with_parameters(|extra| {
                // SAFETY: the module keeps the function; the driver copies the parameters.
                unsafe {
                    driver.cuLaunchKernel(
                        function,
                        grid_x,
                        grid_y,
                        grid_z,
                        block_x,
                        block_y,
                        block_z,
                        shared,
                        stream,
                        std::ptr::null_mut(),
                        extra,
                    )
                }
            })?;
        } else {
            let config = CUlaunchConfig {
                gridDimX: grid_x,
                gridDimY: grid_y,
                gridDimZ: grid_z,
                blockDimX: block_x,
                blockDimY: block_y,
                blockDimZ: block_z,
                sharedMemBytes: shared,
                hStream: stream,
                attrs: self.attributes.as_mut_ptr(),
                numAttrs: self.attributes.len() as u32,
            };
            self.with_parameters(|extra| {
                // SAFETY: the configuration is a local, the attributes in it are as many as said and hold
                // numbers only, and `extra` is NULL or a list with its end mark, of parameters that outlive the call.
                unsafe {
                    driver.cuLaunchKernelEx(
                        &raw const config,
                        function,
                        std::ptr::null_mut(),
                        extra,
                    )
                }
            })?;
        }
        self.module.launched(self.kernel);
        Ok(self.into_running())
    }

    /// Calls with what makes a graph's node of it, but for its attributes.
    pub(crate) fn with_node<T>(&mut self, call: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> T) -> T {
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
            (self.call.grid, self.call.block);
        let (function, shared) = (self.call.function.0, self.call.shared);
        self.with_parameters(|extra| {
            call(&CUDA_KERNEL_NODE_PARAMS {
                func: function,
                gridDimX: grid_x,
                gridDimY: grid_y,
                gridDimZ: grid_z,
                blockDimX: block_x,
                blockDimY: block_y,
                blockDimZ: block_z,
                sharedMemBytes: shared,
                kernelParams: std::ptr::null_mut(),
                extra,
                kern: CUkernel::NULL,
                ctx: CUcontext::NULL,
            })
        })
    }

    /// The kernel's name.
    pub(crate) fn kernel_name(&self) -> Option<String> {
        self.module.kernel_name(self.kernel).map(str::to_owned)
    }

    /// What has the kernel.
    pub(crate) fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// What keeps the module until the kernel has finished.
    pub(crate) fn into_running(self) -> RunningKernel {
        RunningKernel {
            module: self.module,
            kernel: self.kernel,
        }
    }

    /// Calls with the parameters in the driver's form, which is good for the call.
    fn with_parameters<T>(&mut self, call: impl FnOnce(*mut *mut c_void) -> T) -> T {
        let mut size = self.call.parameters.len();
        let marker = std::ptr::without_provenance_mut::<c_void>;
        let mut extra = [
            marker(CU_LAUNCH_PARAM_BUFFER_POINTER),
            self.call.parameters.as_mut_ptr().cast(),
            marker(CU_LAUNCH_PARAM_BUFFER_SIZE),
            (&raw mut size).cast(),
            marker(CU_LAUNCH_PARAM_END),
        ];
        call(if size == 0 {
            std::ptr::null_mut()
        } else {
            extra.as_mut_ptr()
        })
    }
}

/// Asks the driver how many clusters of a launch's shape fit on the device at once, or, if the request
/// says so, how many blocks its largest cluster may have. `data` is its launch attributes.
///
/// # Errors
/// As for [`Launch::new`], and the driver's status.
pub(crate) fn cluster_occupancy(
    module: &Module,
    request: &operations::ClusterOccupancy,
    data: &[u8],
) -> Result<u32, CUresult> {
    let function = module.function(request.kernel)?;
    let (mut attributes, rest) = split_attributes(request.attributes, data)?;
    if !rest.is_empty() || request.largest > 1 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (request.grid, request.block);
    let config = CUlaunchConfig {
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: request.shared,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    let device = module.context().device();
    let driver = device.enter()?;
    let mut count = 0;
    // SAFETY: the module keeps the function; the attributes are as many as said, and hold numbers only.
    device.confirm(unsafe {
        if request.largest == 1 {
            driver.cuOccupancyMaxPotentialClusterSize(&raw mut count, function.0, &raw const config)
        } else {
            driver.cuOccupancyMaxActiveClusters(&raw mut count, function.0, &raw const config)
        }
    })?;
    u32::try_from(count).map_err(|_| CUresult::ERROR_UNKNOWN)
}

/// Whether a launch is the same without an attribute.
fn says_nothing(attribute: &CUlaunchAttribute) -> bool {
    let is_off = attribute.value.0[..4] == [0; 4];
    match attribute.id {
        CUlaunchAttributeID::IGNORE => true,
        CUlaunchAttributeID::COOPERATIVE
        | CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION => is_off,
        _ => false,
    }
}

/// Takes `count` launch attributes off the front of a request's data.
fn split_attributes(count: u32, data: &[u8]) -> Result<(Vec<CUlaunchAttribute>, &[u8]), CUresult> {
    if count > MOST_ATTRIBUTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let (attributes, rest) = plan::launch::split(count, data)?;
    let plain = |attribute: CUlaunchAttribute| {
        let known = PLAIN.contains(&attribute.id).then_some(attribute);
        known.ok_or(CUresult::ERROR_NOT_SUPPORTED)
    };
    Ok((attributes.map(plain).collect::<Result<_, _>>()?, rest))
}
