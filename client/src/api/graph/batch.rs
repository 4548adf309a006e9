//! Nodes of waits for values in memory and of writes of values.
//!
//! Owns the four functions of such nodes, those for executable graphs too. Called by the shells of `exports`, and
//! by `nodes` for generic descriptions. Must not judge an operation: `memory_ops` does, as for streams.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUcontext, CUgraph, CUgraphExec, CUgraphNode,
    CUstreamBatchMemOpParams,
};

use super::super::Outcome;
use super::super::memory_ops::{MOST, check_device, checked};
use super::described::{add, in_context, set};
use super::{after, graphs};
use crate::graph::batch::Batch;
use crate::graph::node::Payload;
use crate::pointers::{In, List, Out};
use crate::session::session;

/// What the program describes, checked.
pub(super) fn batch(params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<Payload, CUresult> {
    // An H200's driver refuses NULL here, and takes an empty list.
    if params.flags != 0 || params.ctx.is_null() || params.count > MOST {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let current = in_context(params.ctx)?;
    check_device(&current)?;
    // SAFETY: the program promises as many operations as it says.
    let list: List<CUstreamBatchMemOpParams> =
        unsafe { List::new(params.paramArray, params.count as usize) };
    let list = list.get(params.count)?;
    let operations = list.iter().map(checked);
    let operations = operations.collect::<Result<_, _>>()?;
    Ok(Payload::Batch(Arc::new(Batch {
        context: current.handle(),
        flags: params.flags,
        params: list.into(),
        operations,
    })))
}

pub(crate) fn cuGraphAddBatchMemOpNode(
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Outcome {
    let after = after(&dependencies, num_dependencies)?;
    let params = node_params.get()?;
    add(&graph_node, graph, &after, || batch(&params))
}

pub(crate) fn cuGraphBatchMemOpNodeGetParams(
    node: CUgraphNode,
    node_params: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Outcome {
    let Payload::Batch(batch) = graphs()?.payload(node.bits())? else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    node_params.set(CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: CUcontext::from_bits(batch.context),
        count: batch.params.len() as u32,
        // The node's own, as long as these parameters are.
        paramArray: batch.params.as_ptr().cast_mut(),
        flags: batch.flags,
    })
}

pub(crate) fn cuGraphBatchMemOpNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Outcome {
    set(node, batch(&node_params.get()?)?)
}

pub(crate) fn cuGraphExecBatchMemOpNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Outcome {
    let exec = session()?.execs.get(graph_exec.bits())?;
    exec.set(node.bits(), batch(&node_params.get()?)?)
}
