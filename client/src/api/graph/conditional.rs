//! Conditional nodes and their handles.
//!
//! Owns the checks on handles and on what a node says of its bodies. Called by the shells of `exports`, and by
//! `nodes` for the generic function. Must not know how the word behind a handle is read.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUgraph, CUgraphConditionalHandle, CUgraphNodeParams};

use super::super::Outcome;
use super::described::in_context;
use super::graphs;
use crate::graph::conditional::{Conditional, ConditionalKind, Handle};
use crate::graph::node::Payload;
use crate::pointers::Out;

/// The flag of cuGraphConditionalHandleCreate that has launches begin with the default value.
const ASSIGN_DEFAULT: u32 = 1;
/// Graphs of one node.
const MOST_BODIES: u32 = 1 << 16;

pub(crate) fn cuGraphConditionalHandleCreate(
    handle: Out<CUgraphConditionalHandle>,
    graph: CUgraph,
    ctx: CUcontext,
    default_launch_value: u32,
    flags: u32,
) -> Outcome {
    let graph = graphs()?.get(graph.bits())?;
    handle.required()?;
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // The current context is not meant by NULL, as elsewhere.
    if ctx.is_null() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let current = in_context(ctx)?;
    let made = Handle::new(&current, default_launch_value, flags != 0)?;
    let name = made.name();
    graph.body().handles.insert(name, made);
    handle.set(name)
}

/// What generic parameters describe, for a node of this graph: handle; kind and number of graphs; where
/// the program is told of the graphs; context.
pub(super) fn conditional(params: &CUgraphNodeParams, graph: CUgraph) -> Result<Payload, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let [name, form, _, ctx, ..] = params.body;
    let (form, count) = (form as u32, (form >> 32) as u32);
    if count > MOST_BODIES {
        return Err(invalid);
    }
    let kind = ConditionalKind::new(form, count)?;
    let graphs = graphs()?;
    let handle = {
        let body = graphs.get(graph.bits())?.body();
        let taken = |payload: &Payload| match payload {
            Payload::Conditional(node) => node.handle.name() == name,
            _ => false,
        };
        if body.nodes.values().any(|node| taken(&node.payload)) {
            return Err(invalid);
        }
        Arc::clone(body.handles.get(&name).ok_or(invalid)?)
    };
    let context = in_context(CUcontext::from_bits(ctx))?.handle();
    if context != handle.context() {
        return Err(invalid);
    }
    let mut bodies = Vec::new();
    for _ in 0..count {
        match graphs.create(true) {
            Ok(body) => bodies.push(body),
            Err(error) => {
                graphs.end_all(&bodies);
                return Err(error);
            }
        }
    }
    Ok(Payload::Conditional(Arc::new(Conditional {
        handle,
        kind,
        context,
        bodies: bodies.into(),
    })))
}
