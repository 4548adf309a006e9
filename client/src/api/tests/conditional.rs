//! Conditional nodes, and nodes of memory operations.
//!
//! They show that a value decides what a launch does, and what such nodes are refused.

use std::ffi::c_void;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, List};
use crate::testing::*;

const STORE: &str = "kernel store 8 8\n\0";

fn none() -> List<CUgraphNode> {
    List::null()
}

fn graph() -> CUgraph {
    let mut graph = CUgraph::NULL;
    cuGraphCreate(out(&mut graph), 0).unwrap();
    graph
}

fn handle(graph: CUgraph, context: CUcontext, value: u32, flags: u32) -> u64 {
    let mut handle = 0;
    cuGraphConditionalHandleCreate(out(&mut handle), graph, context, value, flags).unwrap();
    handle
}

/// Adds a conditional node behind all of `after`. Gives its graphs.
fn conditional(
    graph: CUgraph,
    after: &[CUgraphNode],
    (handle, context): (u64, CUcontext),
    (form, count): (u64, u64),
) -> Result<Vec<CUgraph>, CUresult> {
    let mut params = CUgraphNodeParams {
        r#type: CUgraphNodeType::CONDITIONAL,
        reserved0: [0; 3],
        body: [0; 29],
        reserved2: 0,
    };
    params.body[..4].copy_from_slice(&[handle, form | count << 32, 0, context.bits()]);
    let mut node = CUgraphNode::NULL;
    // SAFETY: as many nodes stand there.
    let list = unsafe { List::new(after.as_ptr(), after.len()) };
    cuGraphAddNode(out(&mut node), graph, list, after.len(), out(&mut params))?;
    let told: *const CUgraph = std::ptr::with_exposed_provenance(params.body[2] as usize);
    // SAFETY: the node's own graphs, as many as were asked for.
    Ok((0..count as usize)
        .map(|at| unsafe { *told.add(at) })
        .collect())
}

/// Adds a kernel that puts `value` where `to` is.
fn store(graph: CUgraph, function: CUfunction, mut to: u64, mut value: u64) -> CUgraphNode {
    let mut each: [*mut c_void; 2] = [(&raw mut to).cast(), (&raw mut value).cast()];
    let params = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: each.as_mut_ptr(),
        extra: std::ptr::null_mut(),
    };
    let mut node = CUgraphNode::NULL;
    cuGraphAddKernelNode(out(&mut node), graph, none(), 0, In::of(&params)).unwrap();
    node
}

fn number(at: u64) -> u64 {
    u64::from_le_bytes(read(at, 8).try_into().unwrap())
}

fn instantiated(graph: CUgraph) -> Result<CUgraphExec, CUresult> {
    let mut exec = CUgraphExec::NULL;
    cuGraphInstantiateWithFlags(out(&mut exec), graph, 0).map(|()| exec)
}

#[test]
fn a_value_decides_what_a_launch_does() {
    let mine = context(0);
    let store_it = function(load(STORE), "store\0");
    let mut on = CUstream::NULL;
    cuStreamCreate(out(&mut on), CU_STREAM_NON_BLOCKING).unwrap();
    let (chosen, inner) = (allocate(8), allocate(8));
    let whole = graph();
    let which = handle(whole, mine, 0, 0);
    let once = handle(whole, mine, 1, 1);
    let first = store(whole, store_it, which, 1);
    let bodies = conditional(whole, &[first], (which, mine), (2, 3)).unwrap();
    for (value, body) in (10..).zip(&bodies) {
        store(*body, store_it, chosen, value);
    }
    // A loop that ends itself, and in it a condition of its own.
    let turns = conditional(whole, &[], (once, mine), (1, 1)).unwrap()[0];
    store(turns, store_it, once, 0);
    let deep = handle(turns, mine, 1, 1);
    let deepest = conditional(turns, &[], (deep, mine), (0, 1)).unwrap()[0];
    let innermost = store(deepest, store_it, inner, 7);
    let exec = instantiated(whole).unwrap();
    assert_eq!(instantiated(whole), Err(CUresult::ERROR_NOT_SUPPORTED));
    for _ in 0..2 {
        cuMemsetD32_v2(chosen, 0, 2).unwrap();
        cuMemsetD32_v2(inner, 0, 2).unwrap();
        cuGraphLaunch(exec, on).unwrap();
        cuStreamSynchronize(on).unwrap();
        assert_eq!((number(chosen), number(inner)), (11, 7));
    }
    // Nodes inside change as others do.
    let (mut to, mut value) = (inner, 9_u64);
    let mut each: [*mut c_void; 2] = [(&raw mut to).cast(), (&raw mut value).cast()];
    let params = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: store_it,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: each.as_mut_ptr(),
        extra: std::ptr::null_mut(),
    };
    cuGraphExecKernelNodeSetParams(exec, innermost, In::of(&params)).unwrap();
    cuGraphLaunch(exec, on).unwrap();
    cuStreamSynchronize(on).unwrap();
    assert_eq!(number(inner), 9);
    cuGraphExecDestroy(exec).unwrap();
    cuGraphDestroy(whole).unwrap();
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn what_conditional_nodes_cannot_be() {
    let mine = context(0);
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let (whole, other) = (graph(), graph());
    let value = handle(whole, mine, 0, 0);
    let foreign = handle(other, mine, 0, 0);
    let mut none_made = 0;
    let mut made = |graph, context, flags| {
        cuGraphConditionalHandleCreate(out(&mut none_made), graph, context, 0, flags)
    };
    assert_eq!(made(whole, mine, 2), Err(invalid));
    assert_eq!(made(CUgraph::NULL, mine, 0), Err(invalid));
    let nowhere = Err(CUresult::ERROR_INVALID_CONTEXT);
    assert_eq!(made(whole, CUcontext::NULL, 0), nowhere);
    let node = |handle, form| conditional(whole, &[], (handle, mine), form).err();
    for form in [(0, 0), (0, 3), (1, 2), (2, 0), (2, 1 << 31), (3, 1)] {
        assert_eq!(node(value, form), Some(invalid), "{form:?}");
    }
    assert_eq!(node(foreign, (0, 1)), Some(invalid));
    assert_eq!(node(value + 4, (0, 1)), Some(invalid));
    let body = conditional(whole, &[], (value, mine), (0, 1)).unwrap()[0];
    assert_eq!(node(value, (0, 1)), Some(invalid), "its handle is taken");
    assert_eq!(cuGraphDestroy(body), Err(invalid), "it is the node's");
    let mut copy = CUgraph::NULL;
    let unsupported = Err(CUresult::ERROR_NOT_SUPPORTED);
    assert_eq!(cuGraphClone(out(&mut copy), whole), unsupported);
    // Bodies do what devices can do alone.
    extern "C" fn nothing(_: *mut c_void) {}
    let params = CUDA_HOST_NODE_PARAMS {
        r#fn: Some(nothing),
        userData: std::ptr::null_mut(),
    };
    let mut host = CUgraphNode::NULL;
    cuGraphAddHostNode(out(&mut host), body, none(), 0, In::of(&params)).unwrap();
    assert_eq!(instantiated(whole), Err(invalid));
    cuGraphDestroyNode(host).unwrap();
    let exec = instantiated(whole).unwrap();
    cuGraphExecDestroy(exec).unwrap();
    cuGraphDestroy(whole).unwrap();
    assert_eq!(
        cuGraphAddHostNode(out(&mut host), body, none(), 0, In::of(&params)),
        Err(invalid),
        "gone with its node"
    );
    cuGraphDestroy(other).unwrap();
    cuCtxDestroy_v2(mine).unwrap();
}
