//! What nodes of graphs do.
//!
//! Owns one payload for each kind of node, as plain data with what CUDA shows of it. `api::graph` and captures
//! make them, `lower` reads them. It posts nothing.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUDA_HOST_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraphNodeType};
use protocol::operations::{Fill, Opcode};
use transport::session::EncodedRequest;

use super::batch::Batch;
use super::conditional::Conditional;
use super::memory::Allocation;
use super::semaphores::Semaphores;
use crate::code::launch::recorded::RecordedLaunch;
use crate::context::Current;
use crate::memory::copy::recorded::RecordedCopy;
use crate::memory::copy::sides::Location;
use crate::memory::fill::check_fill;
use crate::memory::ranges::Ranges;
use crate::pointers::{CallbackData, FromOpaque};
use crate::stream::capture::Operation;

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Nothing.
    Empty,
    Kernel(Box<RecordedLaunch>),
    Copy(Box<RecordedCopy>),
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
    /// Signals semaphores of another interface, or waits for them.
    Semaphores(Arc<Semaphores>),
    /// Runs one of its graphs, or none.
    Conditional(Arc<Conditional>),
    /// An operation that no function of the graph interfaces describes.
    Encoded {
        kind: CUgraphNodeType,
        /// The handle of the context that it belongs to.
        context: u64,
        written: Arc<EncodedRequest>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FillNode {
    pub fill: Fill,
    /// The handle of the context that it runs in.
    pub context: u64,
}

impl FillNode {
    /// A fill as the program describes it, checked.
    pub(crate) fn new(
        ranges: &Ranges,
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
        check_fill(ranges, &fill)?;
        Ok(Self {
            fill,
            context: current.handle(),
        })
    }

    /// It as CUDA describes fills.
    pub(crate) fn to_memset_params(self) -> CUDA_MEMSET_NODE_PARAMS {
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
    pub data: CallbackData,
}

impl HostNode {
    /// A host function as the program describes it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE where it names no function.
    ///
    /// # Safety
    /// The function may be called with its data by any thread, whenever the graph runs.
    pub(crate) unsafe fn new(params: &CUDA_HOST_NODE_PARAMS) -> Result<Self, CUresult> {
        let function = params.r#fn.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller vouches for function and data together.
        let data = unsafe { CallbackData::from_opaque(params.userData) };
        Ok(Self { function, data })
    }
}

/// The kind of node that an operation becomes which no function of the graph interfaces describes.
fn kind_of(opcode: Opcode) -> CUgraphNodeType {
    match opcode {
        Opcode::Launch => CUgraphNodeType::KERNEL,
        Opcode::Fill => CUgraphNodeType::MEMSET,
        Opcode::EventRecord | Opcode::StreamWait => CUgraphNodeType::EMPTY,
        _ => CUgraphNodeType::MEMCPY,
    }
}

impl From<Payload> for Operation {
    fn from(payload: Payload) -> Self {
        Self::Described(Box::new(payload))
    }
}

impl Payload {
    /// What an operation does that comes into a capture.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for one that no node does.
    pub(super) fn of(operation: Operation) -> Result<Self, CUresult> {
        let described = match operation {
            Operation::Described(described) => described,
            Operation::Encoded {
                opcode,
                context,
                written,
            } => {
                return Ok(Self::Encoded {
                    kind: kind_of(opcode),
                    context,
                    written,
                });
            }
        };
        let described = match described.downcast::<RecordedLaunch>() {
            Ok(launch) => return Ok(Self::Kernel(launch)),
            Err(other) => other,
        };
        let described = match described.downcast::<RecordedCopy>() {
            Ok(copy) => return Ok(Self::Copy(copy)),
            Err(other) => other,
        };
        let payload = described.downcast::<Self>();
        payload.map_or(Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED), |payload| {
            Ok(*payload)
        })
    }

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
            Self::Semaphores(semaphores) => semaphores.kind(),
            Self::Conditional(_) => CUgraphNodeType::CONDITIONAL,
            Self::Encoded { kind, .. } => *kind,
        }
    }

    /// The handle of the context that it needs, if it needs one.
    pub(crate) fn context(&self) -> Option<u64> {
        match self {
            Self::Kernel(kernel) => Some(kernel.context),
            Self::Copy(copy) => Some(copy.context),
            Self::Fill(fill) => Some(fill.context),
            Self::Encoded { context, .. } => Some(*context),
            Self::Allocate(allocation) => Some(allocation.context()),
            Self::Batch(batch) => Some(batch.context),
            Self::Semaphores(semaphores) => Some(semaphores.context),
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
        let here = |place: Location| matches!(place, Location::Program(_));
        match self {
            Self::Empty | Self::Kernel(_) | Self::Fill(_) => true,
            Self::Child(_) | Self::Conditional(_) | Self::Encoded { .. } => true,
            Self::Copy(copy) => !here(copy.to.place) && !here(copy.from.place),
            _ => false,
        }
    }

    /// Whether it may be disabled in an executable graph.
    pub(crate) fn can_be_disabled(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Copy(_) | Self::Fill(_))
    }
}
