//! What nodes of graphs do.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::operations::Fill;
use cuda_abi::types::{
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphNodeType, CUhostFn, CUlaunchAttribute,
    CUmemorytype,
};
use transport::session::Written;

use super::batch::Batch;
use super::conditional::Conditional;
use super::memory::Allocation;
use crate::context::Current;
use crate::copy::{Extent, Place, Side};
use crate::function::Layout;
use crate::launch::Shape;

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Nothing.
    Empty,
    Kernel(Box<Kernel>),
    Copy(Box<CopyNode>),
    Fill(FillNode),
    Host(HostNode),
    /// Runs the graph of this handle, which is the node's own.
    Child(u64),
    /// Records the event of this handle.
    Record(u64),
    /// Waits for the event of this handle.
    Wait(u64),
    /// Allocates memory.
    Allocate(Arc<Allocation>),
    /// Frees memory that a graph allocated.
    Free(u64),
    /// Waits for values in memory and writes values.
    Batch(Arc<Batch>),
    /// Runs one of its graphs, or none.
    Conditional(Arc<Conditional>),
    /// An operation that no function of the graph interfaces describes.
    Written {
        kind: CUgraphNodeType,
        /// The handle of the context that it belongs to.
        context: u64,
        written: Arc<Written>,
    },
}

/// A kernel's launch.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The function or kernel that the program named.
    pub function: u64,
    /// The kernel of which it is the function, if the program said so; 0 otherwise.
    pub kernel: u64,
    /// The handle of the context that it runs in.
    pub context: u64,
    pub shape: Shape,
    pub attributes: Vec<CUlaunchAttribute>,
    /// The parameter block.
    pub block: Box<[u8]>,
    /// Where each parameter is in the block, as addresses, for who asks.
    each: Box<[usize]>,
}

impl Kernel {
    pub(crate) fn new(
        function: u64,
        context: u64,
        shape: Shape,
        attributes: Vec<CUlaunchAttribute>,
        block: Box<[u8]>,
        layout: &Layout,
    ) -> Self {
        let base = block.as_ptr().expose_provenance();
        let each = layout.params.iter();
        Self {
            each: each.map(|(offset, _)| base + *offset as usize).collect(),
            function,
            kernel: 0,
            context,
            shape,
            attributes,
            block,
        }
    }

    /// The pointers to its parameters, which live as long as these parameters are the node's.
    pub(crate) fn params(&self) -> *mut *mut c_void {
        self.each.as_ptr().cast_mut().cast()
    }
}

impl Clone for Kernel {
    fn clone(&self) -> Self {
        let block = self.block.clone();
        let (before, base) = (
            self.block.as_ptr().addr(),
            block.as_ptr().expose_provenance(),
        );
        Self {
            each: self.each.iter().map(|at| at - before + base).collect(),
            function: self.function,
            kernel: self.kernel,
            context: self.context,
            shape: self.shape,
            attributes: self.attributes.clone(),
            block,
        }
    }
}

/// A copy.
#[derive(Clone, Debug)]
pub(crate) struct CopyNode {
    pub to: Side,
    pub from: Side,
    pub extent: Extent,
    /// The handle of the context that it runs in.
    pub context: u64,
    /// How the program described it, unless it was captured.
    pub given: Option<Box<CUDA_MEMCPY3D>>,
}

// SAFETY: the pointers into the program's memory are followed only when the graph runs, and the
// program promised that they may be then, by any thread.
unsafe impl Send for CopyNode {}
// SAFETY: as above; a shared one is only read.
unsafe impl Sync for CopyNode {}

/// Kind and address of a place, as CUDA describes them.
fn kind(place: Place) -> (CUmemorytype, u64) {
    match place {
        Place::Device(address) => (CUmemorytype::DEVICE, address),
        Place::Pinned(address) => (CUmemorytype::UNIFIED, address),
        Place::Program(pointer) => (CUmemorytype::HOST, pointer.expose_provenance() as u64),
        Place::Array(_) => (CUmemorytype::ARRAY, 0),
    }
}

impl CopyNode {
    /// It as CUDA describes copies.
    pub(crate) fn described(&self) -> CUDA_MEMCPY3D {
        if let Some(given) = &self.given {
            return **given;
        }
        let pitch = |side: &Side| match side.pitch {
            0 => self.extent.width,
            pitch => pitch,
        };
        let rows = |side: &Side| side.slice.checked_div(pitch(side)).unwrap_or(0);
        let ((to_kind, to), (from_kind, from)) = (kind(self.to.place), kind(self.from.place));
        let null = std::ptr::null_mut();
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: from_kind,
            srcHost: std::ptr::with_exposed_provenance(from as usize),
            srcDevice: from,
            srcArray: cuda_abi::types::CUarray::NULL,
            reserved0: null,
            srcPitch: pitch(&self.from) as usize,
            srcHeight: rows(&self.from) as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: to_kind,
            dstHost: std::ptr::with_exposed_provenance_mut(to as usize),
            dstDevice: to,
            dstArray: cuda_abi::types::CUarray::NULL,
            reserved1: null,
            dstPitch: pitch(&self.to) as usize,
            dstHeight: rows(&self.to) as usize,
            WidthInBytes: self.extent.width as usize,
            Height: self.extent.height as usize,
            Depth: self.extent.depth as usize,
        }
    }

    /// Between which kinds of memory it copies: what an executable graph cannot change.
    pub(crate) fn direction(&self) -> (bool, bool) {
        let device = |side: &Side| matches!(side.place, Place::Device(_));
        (device(&self.to), device(&self.from))
    }
}

/// A fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillNode {
    pub fill: Fill,
    /// The handle of the context that it runs in.
    pub context: u64,
}

impl FillNode {
    /// A fill as the program describes it, checked.
    pub(crate) fn new(
        params: &CUDA_MEMSET_NODE_PARAMS,
        current: &Current,
    ) -> Result<Self, CUresult> {
        if params.width == 0 || params.height == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let fill = Fill {
            to: params.dst,
            pitch: if params.height == 1 {
                0
            } else {
                params.pitch as u64
            },
            value: params.value,
            element: params.elementSize,
            width: params.width as u64,
            height: params.height as u64,
        };
        crate::api::check_fill(current.session, &fill)?;
        Ok(Self {
            fill,
            context: current.handle(),
        })
    }

    /// It as CUDA describes fills.
    pub(crate) fn described(&self) -> CUDA_MEMSET_NODE_PARAMS {
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.fill.to,
            pitch: self.fill.pitch as usize,
            value: self.fill.value,
            elementSize: self.fill.element,
            width: self.fill.width as usize,
            height: self.fill.height as usize,
        }
    }
}

/// A host function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostNode {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

// SAFETY: as `CopyNode`'s.
unsafe impl Send for HostNode {}
// SAFETY: as above.
unsafe impl Sync for HostNode {}

impl HostNode {
    pub(crate) fn new(function: CUhostFn, data: *mut c_void) -> Result<Self, CUresult> {
        let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Self { function, data })
    }
}

impl Payload {
    /// The kind of its node.
    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Self::Empty => CUgraphNodeType::EMPTY,
            Self::Kernel(_) => CUgraphNodeType::KERNEL,
            Self::Copy(_) => CUgraphNodeType::MEMCPY,
            Self::Fill(_) => CUgraphNodeType::MEMSET,
            Self::Host(_) => CUgraphNodeType::HOST,
            Self::Child(_) => CUgraphNodeType::GRAPH,
            Self::Record(_) => CUgraphNodeType::EVENT_RECORD,
            Self::Wait(_) => CUgraphNodeType::WAIT_EVENT,
            Self::Allocate(_) => CUgraphNodeType::MEM_ALLOC,
            Self::Free(_) => CUgraphNodeType::MEM_FREE,
            Self::Batch(_) => CUgraphNodeType::BATCH_MEM_OP,
            Self::Conditional(_) => CUgraphNodeType::CONDITIONAL,
            Self::Written { kind, .. } => *kind,
        }
    }

    /// The handle of the context that it needs, if it needs one.
    pub(crate) fn context(&self) -> Option<u64> {
        match self {
            Self::Kernel(kernel) => Some(kernel.context),
            Self::Copy(copy) => Some(copy.context),
            Self::Fill(fill) => Some(fill.context),
            Self::Written { context, .. } => Some(*context),
            Self::Allocate(allocation) => Some(allocation.context()),
            Self::Batch(batch) => Some(batch.context),
            Self::Conditional(node) => Some(node.context),
            _ => None,
        }
    }

    /// The handles of the graphs that are the node's own.
    pub(crate) fn graphs(&self) -> &[u64] {
        match self {
            Self::Child(graph) => std::slice::from_ref(graph),
            Self::Conditional(node) => &node.bodies,
            _ => &[],
        }
    }

    /// Whether the graph of a conditional node may have it.
    pub(crate) fn may_be_conditional(&self) -> bool {
        let here = |place: Place| matches!(place, Place::Program(_));
        match self {
            Self::Empty | Self::Kernel(_) | Self::Fill(_) => true,
            Self::Child(_) | Self::Conditional(_) | Self::Written { .. } => true,
            Self::Copy(copy) => !here(copy.to.place) && !here(copy.from.place),
            _ => false,
        }
    }

    /// Whether it may be disabled in an executable graph.
    pub(crate) fn can_be_disabled(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Copy(_) | Self::Fill(_))
    }
}
