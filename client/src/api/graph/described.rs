//! What the program says of a node, checked and made a payload; and the two things that are done with
//! one: a node is added, or given it in place of its own.
//!
//! The functions of nodes, batches, conditionals and executable graphs call it. It exports nothing of
//! CUDA's and knows none of its callers.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUcontext, CUevent,
    CUgraph, CUgraphNode, CUkernel, CUlaunchAttribute,
};

use super::super::Outcome;
use super::super::copy_box::sides_of_node;
use super::graphs;
use crate::code::launch::recorded::RecordedLaunch;
use crate::code::launch::{self, LaunchShape, Params};
use crate::context::{self, Current, current};
use crate::graph::From;
use crate::graph::node::Payload;
use crate::memory::copy::recorded::RecordedCopy;
use crate::pointers::Out;
use crate::session::session;
use crate::stream::attribute_values::word;

/// CUmemAllocationType, twice, and CUmemLocationType of memory that graphs can allocate.
pub(super) const PINNED: u32 = 1;
pub(super) const MANAGED: u32 = 2;
pub(super) const DEVICE: u32 = 1;

/// The context that a node is to run in: the named one, or the calling thread's.
pub(super) fn in_context(ctx: CUcontext) -> Result<Current, CUresult> {
    match ctx.is_null() {
        true => current(),
        false => context::usable(session()?.contexts, ctx.bits()),
    }
}

/// A kernel node's launch, in the form that has everything.
pub(super) fn widened(old: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: old.func,
        gridDimX: old.gridDimX,
        gridDimY: old.gridDimY,
        gridDimZ: old.gridDimZ,
        blockDimX: old.blockDimX,
        blockDimY: old.blockDimY,
        blockDimZ: old.blockDimZ,
        sharedMemBytes: old.sharedMemBytes,
        kernelParams: old.kernelParams,
        extra: old.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

/// What the program describes, checked. `former` are the attributes of the node that it is for.
pub(super) fn kernel(
    params: &CUDA_KERNEL_NODE_PARAMS,
    former: Vec<CUlaunchAttribute>,
) -> Result<RecordedLaunch, CUresult> {
    let handle = match params.func.is_null() {
        true => params.kern.bits(),
        false => params.func.bits(),
    };
    let functions = &session()?.code.functions;
    let current = match functions.get(handle)?.context() {
        0 => in_context(params.ctx)?,
        own => context::usable(session()?.contexts, own)?,
    };
    let cooperative = former.iter().any(|attribute| {
        attribute.id == cuda_abi::types::CUlaunchAttributeID::COOPERATIVE
            && word(&attribute.value, 0) != 0
    });
    let shape = LaunchShape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared: params.sharedMemBytes,
        cooperative,
    };
    let each = Params {
        each: params.kernelParams,
        extra: params.extra,
    };
    // SAFETY: the program promises parameters as the kernel has them.
    let mut kernel =
        unsafe { launch::node(session()?.code, &current, handle, shape, each, former)? };
    kernel.kernel = params.kern.bits();
    Ok(kernel)
}

/// A copy as the program describes it, checked.
pub(super) fn copy(params: &CUDA_MEMCPY3D, ctx: CUcontext) -> Result<RecordedCopy, CUresult> {
    let current = in_context(ctx)?;
    let (to, from, extent) = sides_of_node(session()?, params)?;
    session()?.addresses.check_side(&to, &extent)?;
    session()?.addresses.check_side(&from, &extent)?;
    Ok(RecordedCopy {
        to,
        from,
        extent,
        context: current.handle(),
        original: Some(Box::new(*params)),
    })
}

/// An event that may be in a node.
pub(super) fn event(event: CUevent) -> Result<u64, CUresult> {
    let known = session()?.events.get(event);
    known.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    Ok(event.bits())
}

/// Adds a node, if there is a place to put its handle.
pub(super) fn add(
    node: &Out<CUgraphNode>,
    graph: CUgraph,
    after: &[From],
    payload: impl FnOnce() -> Result<Payload, CUresult>,
) -> Outcome {
    let graphs = graphs()?;
    node.required()?;
    graphs.get(graph.bits())?;
    let made = graphs.add(graph.bits(), after, payload()?)?;
    node.set(CUgraphNode::from_bits(made))
}

/// Gives a node other parameters of its own kind.
pub(super) fn set(node: CUgraphNode, payload: Payload) -> Outcome {
    graphs()?.with_node(node.bits(), |now| {
        if now.kind() != payload.kind() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        *now = payload;
        Ok(())
    })
}
