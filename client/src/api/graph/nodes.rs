//! Nodes of graphs: making them, and their parameters.
//!
//! One function for each of CUDA's that adds a node, and the generic ones. What a description means stands in
//! `described`; the graphs themselves in `graph`.
//!
//! Called by the shells of `exports`; `exec` and `params` read generic descriptions through it. Must not know
//! schedules nor launches.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr,
    CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUgraphNodeType,
    CUlaunchAttribute,
};

use super::super::Outcome;
use super::batch::batch;
use super::conditional::conditional;
use super::described::{DEVICE, MANAGED, PINNED, add, copy, event, in_context, kernel, widened};
use super::semaphores::{signal_node, wait_node};
use super::{after, edges_from, graphs};
use crate::context::{self, current};
use crate::graph::node::{FillNode, HostNode, Payload};
use crate::pointers::{In, List, Out};
use crate::session::session;

pub(crate) fn cuGraphAddEmptyNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    add(&graph_node, graph, &after, || Ok(Payload::Empty))
}

pub(crate) fn cuGraphAddKernelNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let wide = widened(&node_params.get()?);
    let params = In::of(&wide);
    cuGraphAddKernelNode_v2(graph_node, graph, dependencies, num_dependencies, params)
}

pub(crate) fn cuGraphAddKernelNode_v2(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let params = node_params.get()?;
    add(&graph_node, graph, &after, || {
        Ok(Payload::Kernel(Box::new(kernel(&params, Vec::new())?)))
    })
}

pub(crate) fn cuGraphAddMemcpyNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let params = copy_params.get()?;
    add(&graph_node, graph, &after, || {
        Ok(Payload::Copy(Box::new(copy(&params, ctx)?)))
    })
}

pub(crate) fn cuGraphAddMemsetNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let params = memset_params.get()?;
    add(&graph_node, graph, &after, || {
        Ok(Payload::Fill(FillNode::new(
            session()?.ranges,
            &params,
            &in_context(ctx)?,
        )?))
    })
}

pub(crate) fn cuGraphAddHostNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let params = node_params.get()?;
    add(&graph_node, graph, &after, || {
        // SAFETY: the program promises so of the function that it describes.
        Ok(Payload::Host(unsafe { HostNode::new(&params)? }))
    })
}

pub(crate) fn cuGraphAddChildGraphNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    child_graph: CUgraph,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    add(&graph_node, graph, &after, || child(child_graph))
}

fn child(graph: CUgraph) -> Result<Payload, CUresult> {
    Ok(Payload::Child(graphs()?.copy(graph.bits(), true)?))
}

pub(crate) fn cuGraphAddEventRecordNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    of: CUevent,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    add(&graph_node, graph, &after, || {
        Ok(Payload::Record(event(of)?))
    })
}

pub(crate) fn cuGraphAddEventWaitNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    of: CUevent,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    add(&graph_node, graph, &after, || Ok(Payload::Wait(event(of)?)))
}

/// Memory for an allocation node. Its address is known at once.
fn allocation(params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Result<Payload, CUresult> {
    if !matches!(params.allocType, PINNED | MANAGED) || params.bytesize == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if params.handleTypes != 0 || params.location.r#type != DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let session = session()?;
    session.device(params.location.id)?;
    let mut current = current()?;
    if current.context.device() != params.location.id {
        current = session.contexts.primary(params.location.id)?;
        current = context::usable(session.contexts, current.handle())?;
    }
    let managed = params.allocType == MANAGED;
    let made = session.graphs.memories.allocate(
        &current.resource_context()?,
        params.bytesize as u64,
        managed,
    )?;
    Ok(Payload::Allocate(made))
}

pub(crate) fn cuGraphAddMemAllocNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let mut params = node_params.get()?;
    let mut address = 0;
    add(&graph_node, graph, &after, || {
        let made = allocation(&params)?;
        if let Payload::Allocate(allocation) = &made {
            address = allocation.address();
        }
        Ok(made)
    })?;
    params.dptr = address;
    node_params.set(params)
}

/// A free node's memory: that of a graph.
fn freed(address: CUdeviceptr, graph: CUgraph) -> Result<Payload, CUresult> {
    let session = session()?;
    if !session.graphs.memories.contains(address) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let body = session.graphs.get(graph.bits())?.body();
    let twice = |payload: &Payload| matches!(payload, Payload::Free(other) if *other == address);
    if body.nodes.values().any(|node| twice(&node.payload)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(Payload::Free(address))
}

pub(crate) fn cuGraphAddMemFreeNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    dptr: CUdeviceptr,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    add(&graph_node, graph, &after, || freed(dptr, graph))
}

pub(crate) fn cuGraphAddNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Outcome {
    let plain = List::null();
    cuGraphAddNode_v2(
        graph_node,
        graph,
        dependencies,
        plain,
        num_dependencies,
        node_params,
    )
}

pub(crate) fn cuGraphAddNode_v2(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    dependency_data: List<CUgraphEdgeData>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Outcome {
    let after = edges_from(&dependencies, &dependency_data, num_dependencies)?;
    let mut params = node_params.get()?;
    let mut told = None;
    add(&graph_node, graph, &after, || {
        let made = generic(&params, Some(graph), Vec::new())?;
        // Where the parameters have what the program is told.
        told = match &made {
            Payload::Allocate(allocation) => Some((14, allocation.address())),
            Payload::Conditional(node) => {
                Some((2, node.bodies.as_ptr().expose_provenance() as u64))
            }
            _ => None,
        };
        Ok(made)
    })?;
    if let Some((at, value)) = told {
        params.body[at] = value;
        node_params.set(params)?;
    }
    Ok(())
}

/// The structure that the union of generic parameters begins with.
///
/// # Safety
/// `T` is made of numbers and pointers, in at most the union's bytes.
unsafe fn body<T: Copy>(params: &CUgraphNodeParams) -> T {
    const { assert!(size_of::<T>() <= 29 * 8) };
    // SAFETY: the union is as long as that, and every bit pattern is a `T` as the caller says.
    unsafe { params.body.as_ptr().cast::<T>().read_unaligned() }
}

/// What generic parameters describe. `graph` is the one that the node will be in; a node that is
/// there already cannot come to allocate, to free, or to hold another graph.
pub(super) fn generic(
    params: &CUgraphNodeParams,
    graph: Option<CUgraph>,
    former: Vec<CUlaunchAttribute>,
) -> Result<Payload, CUresult> {
    let zero = |words: &[u64]| words.iter().all(|word| *word == 0);
    if params.reserved0 != [0; 3] || params.reserved2 != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(match (params.r#type, graph) {
        (CUgraphNodeType::EMPTY, _) => Payload::Empty,
        (CUgraphNodeType::KERNEL, _) => {
            // SAFETY: the structure is numbers and pointers.
            let launch: CUDA_KERNEL_NODE_PARAMS = unsafe { body(params) };
            Payload::Kernel(Box::new(kernel(&launch, former)?))
        }
        (CUgraphNodeType::MEMCPY, _) => {
            // Flags and padding, the context, the copy.
            if params.body[0] != 0 {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let mut shifted = *params;
            shifted.body.copy_within(2.., 0);
            // SAFETY: the structure is numbers and pointers.
            let described: CUDA_MEMCPY3D = unsafe { body(&shifted) };
            Payload::Copy(Box::new(copy(
                &described,
                CUcontext::from_bits(params.body[1]),
            )?))
        }
        (CUgraphNodeType::MEMSET, _) => {
            // SAFETY: the structure is numbers.
            let described: CUDA_MEMSET_NODE_PARAMS = unsafe { body(params) };
            let current = in_context(CUcontext::from_bits(params.body[5]))?;
            Payload::Fill(FillNode::new(session()?.ranges, &described, &current)?)
        }
        (CUgraphNodeType::HOST, _) => {
            // SAFETY: the structure is pointers, and NULL is no function.
            let described: CUDA_HOST_NODE_PARAMS = unsafe { body(params) };
            // SAFETY: the program promises so of the function that it describes.
            Payload::Host(unsafe { HostNode::new(&described)? })
        }
        (CUgraphNodeType::WAIT_EVENT, _) => {
            Payload::Wait(event(CUevent::from_bits(params.body[0]))?)
        }
        (CUgraphNodeType::EVENT_RECORD, _) => {
            Payload::Record(event(CUevent::from_bits(params.body[0]))?)
        }
        (CUgraphNodeType::GRAPH, Some(_)) => {
            let (graph, ownership) = (params.body[0], params.body[1] as u32);
            match ownership {
                0 => child(CUgraph::from_bits(graph))?,
                1 => return Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
        }
        (CUgraphNodeType::MEM_ALLOC, Some(_)) => {
            // SAFETY: the structure is numbers and pointers.
            allocation(&unsafe { body(params) })?
        }
        (CUgraphNodeType::MEM_FREE, Some(graph)) if zero(&params.body[1..]) => {
            freed(params.body[0], graph)?
        }
        (CUgraphNodeType::BATCH_MEM_OP, _) => {
            // SAFETY: the structure is numbers and pointers.
            batch(&unsafe { body(params) })?
        }
        (CUgraphNodeType::CONDITIONAL, Some(graph)) if zero(&params.body[4..]) => {
            conditional(params, graph)?
        }
        (CUgraphNodeType::EXT_SEMAS_SIGNAL, _) => {
            // SAFETY: the structure is numbers and pointers.
            signal_node(&unsafe { body(params) })?
        }
        (CUgraphNodeType::EXT_SEMAS_WAIT, _) => {
            // SAFETY: the structure is numbers and pointers.
            wait_node(&unsafe { body(params) })?
        }
        (CUgraphNodeType::CONDITIONAL, None) => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}
