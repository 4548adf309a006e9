//! Executable graphs.
//!
//! Owns instantiating, updating and launching, as CUDA's functions have them, and what is refused of a node's new
//! parameters. Called by the shells of `exports`. Must not know schedules: `graph::exec` has them.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent,
    CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphNode,
    CUgraphNodeParams, CUstream,
};

use super::super::Outcome;
use super::described::{copy, event, kernel, widened};
use super::nodes::generic;
use super::params::attributes_of;
use crate::context;
use crate::graph::exec::Exec;
use crate::graph::node::{FillNode, HostNode, Payload};
use crate::pointers::{In, Out, TextOut};
use crate::session::session;
use crate::stream;

/// CUgraphInstantiateResult's success and error.
const INSTANTIATED: u32 = 0;
const NOT_INSTANTIATED: u32 = 1;

fn exec(graph_exec: CUgraphExec) -> Result<&'static Exec, CUresult> {
    session()?.execs.get(graph_exec.bits())
}

pub(crate) fn cuGraphInstantiate(
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    log_buffer: TextOut,
    buffer_size: usize,
) -> Outcome {
    cuGraphInstantiate_v2(graph_exec, graph, error_node, log_buffer, buffer_size)
}

pub(crate) fn cuGraphInstantiate_v2(
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    log_buffer: TextOut,
    buffer_size: usize,
) -> Outcome {
    error_node.set_if(CUgraphNode::NULL);
    // There is nothing to say that the status does not, and no room is no error.
    let _ = log_buffer.set(i32::try_from(buffer_size).unwrap_or(i32::MAX), "");
    cuGraphInstantiateWithFlags(graph_exec, graph, 0)
}

pub(crate) fn cuGraphInstantiateWithFlags(
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    flags: u64,
) -> Outcome {
    let session = session()?;
    graph_exec.required()?;
    let made = session.execs.instantiate(graph.bits(), flags)?;
    graph_exec.set(CUgraphExec::from_bits(made))
}

pub(crate) fn cuGraphInstantiateWithParams(
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    instantiate_params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Outcome {
    let mut params = instantiate_params.get()?;
    let made = cuGraphInstantiateWithFlags(graph_exec, graph, params.flags);
    params.hErrNode_out = CUgraphNode::NULL;
    params.result_out = match made {
        Ok(()) => INSTANTIATED,
        Err(_) => NOT_INSTANTIATED,
    };
    instantiate_params.set(params)?;
    made
}

pub(crate) fn cuGraphExecDestroy(graph_exec: CUgraphExec) -> Outcome {
    session()?.execs.end(graph_exec.bits())
}

pub(crate) fn cuGraphExecGetFlags(graph_exec: CUgraphExec, flags: Out<u64>) -> Outcome {
    flags.set(exec(graph_exec)?.flags()?)
}

pub(crate) fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    let exec = exec(graph)?;
    target.refuse_captured()?;
    exec.launch(&target)
}

pub(crate) fn cuGraphUpload(graph: CUgraphExec, stream: CUstream) -> Outcome {
    let target = stream::target(stream)?;
    let exec = exec(graph)?;
    target.refuse_captured()?;
    exec.upload()
}

pub(crate) fn cuGraphExecUpdate(
    graph_exec: CUgraphExec,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    update_result: Out<CUgraphExecUpdateResult>,
) -> Outcome {
    let (updated, info) = update(graph_exec, graph)?;
    error_node.set_if(info.errorNode);
    update_result.set_if(info.result);
    updated
}

pub(crate) fn cuGraphExecUpdate_v2(
    graph_exec: CUgraphExec,
    graph: CUgraph,
    result_info: Out<CUgraphExecUpdateResultInfo>,
) -> Outcome {
    let (updated, info) = update(graph_exec, graph)?;
    result_info.set(info)?;
    updated
}

fn update(
    graph_exec: CUgraphExec,
    graph: CUgraph,
) -> Result<(Outcome, CUgraphExecUpdateResultInfo), CUresult> {
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult::SUCCESS,
        errorNode: CUgraphNode::NULL,
        errorFromNode: CUgraphNode::NULL,
    };
    let updated = exec(graph_exec)?.update(graph.bits(), &mut info);
    if updated.is_err() && info.result == CUgraphExecUpdateResult::SUCCESS {
        info.result = CUgraphExecUpdateResult::ERROR;
    }
    Ok((updated, info))
}

pub(crate) fn cuGraphExecNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUgraphNodeParams>,
) -> Outcome {
    let exec = exec(graph_exec)?;
    let params = node_params.get()?;
    let former = attributes_of(node).unwrap_or_default();
    exec.set(node.bits(), generic(&params, None, former)?)
}

pub(crate) fn cuGraphExecKernelNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let params = widened(&node_params.get()?);
    cuGraphExecKernelNodeSetParams_v2(graph_exec, node, In::of(&params))
}

pub(crate) fn cuGraphExecKernelNodeSetParams_v2(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let exec = exec(graph_exec)?;
    let Payload::Kernel(now) = exec.payload(node.bits())? else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    let then = kernel(&node_params.get()?, now.attributes)?;
    exec.set(node.bits(), Payload::Kernel(Box::new(then)))
}

pub(crate) fn cuGraphExecMemcpyNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> Outcome {
    let then = copy(&copy_params.get()?, ctx)?;
    exec(graph_exec)?.set(node.bits(), Payload::Copy(Box::new(then)))
}

pub(crate) fn cuGraphExecMemsetNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> Outcome {
    let current = match ctx.is_null() {
        true => context::current()?,
        false => context::usable(session()?.contexts, ctx.bits())?,
    };
    let then = FillNode::new(session()?.ranges, &memset_params.get()?, &current)?;
    exec(graph_exec)?.set(node.bits(), Payload::Fill(then))
}

pub(crate) fn cuGraphExecHostNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    let params = node_params.get()?;
    // SAFETY: the program promises so of the function that it describes.
    let then = unsafe { HostNode::new(&params)? };
    exec(graph_exec)?.set(node.bits(), Payload::Host(then))
}

pub(crate) fn cuGraphExecChildGraphNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    child_graph: CUgraph,
) -> Outcome {
    exec(graph_exec)?.set_child(node.bits(), child_graph.bits())
}

pub(crate) fn cuGraphExecEventRecordNodeSetEvent(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    of: CUevent,
) -> Outcome {
    exec(graph_exec)?.set(node.bits(), Payload::Record(event(of)?))
}

pub(crate) fn cuGraphExecEventWaitNodeSetEvent(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    of: CUevent,
) -> Outcome {
    exec(graph_exec)?.set(node.bits(), Payload::Wait(event(of)?))
}

pub(crate) fn cuGraphNodeGetEnabled(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: Out<u32>,
) -> Outcome {
    is_enabled.required()?;
    is_enabled.set(u32::from(exec(graph_exec)?.enabled(node.bits())?))
}

pub(crate) fn cuGraphNodeSetEnabled(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: u32,
) -> Outcome {
    exec(graph_exec)?.enable(node.bits(), is_enabled != 0)
}
