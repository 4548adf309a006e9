//! Graphs: whole ones, their edges, memory and user objects. Nodes and executable graphs have
//! modules of their own.
//!
//! Owns also the reading of edges, which captures (`api::capture`) share. Called by the shells of `exports`. Must
//! not know what a node does.

mod batch;
mod conditional;
mod described;
mod exec;
mod nodes;
mod params;
mod semaphores;

use std::os::unix::ffi::OsStrExt;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdevice, CUgraph, CUgraphEdgeData, CUgraphMem_attribute, CUgraphNode, CUgraphNodeType,
    CUhostFn, CUuserObject,
};

pub(crate) use batch::*;
pub(crate) use conditional::*;
pub(crate) use exec::*;
pub(crate) use nodes::*;
pub(crate) use params::*;
pub(crate) use semaphores::*;

use super::Outcome;
use crate::graph::{From, Graphs};
use crate::pointers::{CallbackData, List, ListOut, Out, Text, Untyped};
use crate::session::session;

/// The flag of cuUserObjectCreate that must be set: destructors are not waited for.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The flag of cuGraphRetainUserObject: the graph gets the caller's shares.
const MOVE: u32 = 1;

fn graphs() -> Result<&'static Graphs, CUresult> {
    Ok(session()?.graphs)
}

/// A list whose length is a size_t.
fn many<T: Copy>(list: &List<T>, count: usize) -> Result<Vec<T>, CUresult> {
    list.get(u32::try_from(count).map_err(|_| CUresult::ERROR_INVALID_VALUE)?)
}

/// Nodes that edges come from, with what the edges mean; NULL is the default.
pub(super) fn edges_from(
    nodes: &List<CUgraphNode>,
    data: &List<CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<From>, CUresult> {
    let nodes = many(nodes, count)?;
    let data = match data.pointer().is_null() {
        true => vec![CUgraphEdgeData::default(); nodes.len()],
        false => many(data, count)?,
    };
    Ok(nodes.iter().map(|node| node.bits()).zip(data).collect())
}

/// Nodes that edges without data come from.
fn after(nodes: &List<CUgraphNode>, count: usize) -> Result<Vec<From>, CUresult> {
    edges_from(nodes, &List::null(), count)
}

/// Writes a list as CUDA does: how many there are if nothing else is asked, else as many as there is
/// room for, NULL behind them, and how many were written.
fn write_list(list: &ListOut<CUgraphNode>, count: &Out<usize>, nodes: &[u64]) -> Outcome {
    if list.is_null() {
        return count.set(nodes.len());
    }
    let room = count.get()?;
    let padding = std::iter::repeat_n(0, room.saturating_sub(nodes.len()));
    let room = u32::try_from(room).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    let all = nodes.iter().copied().chain(padding);
    list.set(room, all.map(CUgraphNode::from_bits))?;
    count.set(nodes.len().min(room as usize))
}

pub(crate) fn cuGraphCreate(graph: Out<CUgraph>, flags: u32) -> Outcome {
    let graphs = graphs()?;
    graph.required()?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    graph.set(CUgraph::from_bits(graphs.create(false)?))
}

pub(crate) fn cuGraphDestroy(graph: CUgraph) -> Outcome {
    graphs()?.destroy(graph.bits())
}

pub(crate) fn cuGraphClone(graph_clone: Out<CUgraph>, original_graph: CUgraph) -> Outcome {
    let graphs = graphs()?;
    graph_clone.required()?;
    let copy = graphs.copy(original_graph.bits(), false)?;
    graph_clone.set(CUgraph::from_bits(copy))
}

pub(crate) fn cuGraphNodeFindInClone(
    node: Out<CUgraphNode>,
    original_node: CUgraphNode,
    cloned_graph: CUgraph,
) -> Outcome {
    let found = graphs()?.find_copy(original_node.bits(), cloned_graph.bits())?;
    node.set(CUgraphNode::from_bits(found))
}

pub(crate) fn cuGraphDestroyNode(node: CUgraphNode) -> Outcome {
    graphs()?.destroy_node(node.bits())
}

pub(crate) fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<CUgraphNodeType>) -> Outcome {
    kind.set(graphs()?.payload(node.bits())?.kind())
}

pub(crate) fn cuGraphGetNodes(
    graph: CUgraph,
    nodes: ListOut<CUgraphNode>,
    num_nodes: Out<usize>,
) -> Outcome {
    let all: Vec<u64> = {
        let body = graphs()?.get(graph.bits())?.body();
        body.nodes.values().map(|node| node.handle).collect()
    };
    write_list(&nodes, &num_nodes, &all)
}

pub(crate) fn cuGraphGetRootNodes(
    graph: CUgraph,
    root_nodes: ListOut<CUgraphNode>,
    num_root_nodes: Out<usize>,
) -> Outcome {
    let roots: Vec<u64> = {
        let body = graphs()?.get(graph.bits())?.body();
        let roots = body.nodes.values().filter(|node| node.edges.is_empty());
        roots.map(|node| node.handle).collect()
    };
    write_list(&root_nodes, &num_root_nodes, &roots)
}

/// Edges as the program is shown them: from, to, and what they mean.
#[derive(Default)]
struct EdgeLists {
    from: Vec<u64>,
    to: Vec<u64>,
    data: Vec<CUgraphEdgeData>,
}

impl EdgeLists {
    /// The edges of a graph that `wanted` picks by the handles of their ends.
    fn of(graph: u64, wanted: impl Fn(u64, u64) -> bool) -> Result<Self, CUresult> {
        let body = graphs()?.get(graph)?.body();
        let mut told = Self::default();
        for (from, to, data) in body.edges() {
            if let (Some(from), Some(to)) = (body.nodes.get(&from), body.nodes.get(&to))
                && wanted(from.handle, to.handle)
            {
                told.from.push(from.handle);
                told.to.push(to.handle);
                told.data.push(data);
            }
        }
        Ok(told)
    }

    /// Refuses to leave out what edges mean.
    fn check_plain(&self) -> Outcome {
        let plain = CUgraphEdgeData::default();
        match self.data.iter().all(|data| *data == plain) {
            true => Ok(()),
            false => Err(CUresult::ERROR_LOSSY_QUERY),
        }
    }

    fn tell_data(&self, list: &ListOut<CUgraphEdgeData>, room: usize) -> Outcome {
        if list.is_null() {
            return self.check_plain();
        }
        let room = u32::try_from(room).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        list.set(room, self.data.iter().copied())
    }
}

pub(crate) fn cuGraphGetEdges(
    graph: CUgraph,
    from: ListOut<CUgraphNode>,
    to: ListOut<CUgraphNode>,
    num_edges: Out<usize>,
) -> Outcome {
    let told = EdgeLists::of(graph.bits(), |_, _| true)?;
    if from.is_null() != to.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !from.is_null() {
        told.check_plain()?;
        let room = num_edges.get()?;
        write_list(&from, &num_edges, &told.from)?;
        num_edges.set(room)?;
    }
    write_list(&to, &num_edges, &told.to)
}

pub(crate) fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: ListOut<CUgraphNode>,
    to: ListOut<CUgraphNode>,
    edge_data: ListOut<CUgraphEdgeData>,
    num_edges: Out<usize>,
) -> Outcome {
    let told = EdgeLists::of(graph.bits(), |_, _| true)?;
    if from.is_null() != to.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !from.is_null() {
        let room = num_edges.get()?;
        told.tell_data(&edge_data, room)?;
        write_list(&from, &num_edges, &told.from)?;
        num_edges.set(room)?;
    }
    write_list(&to, &num_edges, &told.to)
}

fn neighbours(
    node: CUgraphNode,
    before: bool,
    list: &ListOut<CUgraphNode>,
    data: Option<&ListOut<CUgraphEdgeData>>,
    count: &Out<usize>,
) -> Outcome {
    let (graph, _) = graphs()?.place(node.bits())?;
    let told = EdgeLists::of(graph, |from, to| match before {
        true => to == node.bits(),
        false => from == node.bits(),
    })?;
    if !list.is_null() {
        match data {
            Some(data) => told.tell_data(data, count.get()?)?,
            None => told.check_plain()?,
        }
    }
    let nodes = if before { &told.from } else { &told.to };
    write_list(list, count, nodes)
}

pub(crate) fn cuGraphNodeGetDependencies(
    node: CUgraphNode,
    dependencies: ListOut<CUgraphNode>,
    num_dependencies: Out<usize>,
) -> Outcome {
    neighbours(node, true, &dependencies, None, &num_dependencies)
}

pub(crate) fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    dependencies: ListOut<CUgraphNode>,
    edge_data: ListOut<CUgraphEdgeData>,
    num_dependencies: Out<usize>,
) -> Outcome {
    let data = Some(&edge_data);
    neighbours(node, true, &dependencies, data, &num_dependencies)
}

pub(crate) fn cuGraphNodeGetDependentNodes(
    node: CUgraphNode,
    dependent_nodes: ListOut<CUgraphNode>,
    num_dependent_nodes: Out<usize>,
) -> Outcome {
    neighbours(node, false, &dependent_nodes, None, &num_dependent_nodes)
}

pub(crate) fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    dependent_nodes: ListOut<CUgraphNode>,
    edge_data: ListOut<CUgraphEdgeData>,
    num_dependent_nodes: Out<usize>,
) -> Outcome {
    let data = Some(&edge_data);
    neighbours(node, false, &dependent_nodes, data, &num_dependent_nodes)
}

/// An edge: the serial numbers of both ends, and what it means if the program says that.
type Edge = (u64, u64, Option<CUgraphEdgeData>);

fn edges(
    graph: CUgraph,
    from: &List<CUgraphNode>,
    to: &List<CUgraphNode>,
    data: &List<CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<Edge>, CUresult> {
    let graphs = graphs()?;
    let serials = |list: &List<CUgraphNode>| -> Result<Vec<u64>, CUresult> {
        let nodes: Vec<u64> = many(list, count)?.iter().map(|node| node.bits()).collect();
        graphs.serials(graph.bits(), &nodes)
    };
    let (from, to) = (serials(from)?, serials(to)?);
    let data = match data.pointer().is_null() {
        true => vec![None; from.len()],
        false => many(data, count)?.into_iter().map(Some).collect(),
    };
    let ends = from.into_iter().zip(to).zip(data);
    Ok(ends.map(|((from, to), data)| (from, to, data)).collect())
}

pub(crate) fn cuGraphAddDependencies(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    cuGraphAddDependencies_v2(graph, from, to, List::null(), num_dependencies)
}

pub(crate) fn cuGraphAddDependencies_v2(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    edge_data: List<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Outcome {
    let found = graphs()?.get(graph.bits())?;
    let edges: Vec<_> = edges(graph, &from, &to, &edge_data, num_dependencies)?
        .into_iter()
        .map(|(from, to, data)| (from, to, data.unwrap_or_default()))
        .collect();
    let mut body = found.body();
    body.connect(&edges)
}

pub(crate) fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    cuGraphRemoveDependencies_v2(graph, from, to, List::null(), num_dependencies)
}

pub(crate) fn cuGraphRemoveDependencies_v2(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    edge_data: List<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Outcome {
    let found = graphs()?.get(graph.bits())?;
    let edges = edges(graph, &from, &to, &edge_data, num_dependencies)?;
    let mut body = found.body();
    body.disconnect(&edges)
}

pub(crate) fn cuGraphDebugDotPrint(graph: CUgraph, path: Text, flags: u32) -> Outcome {
    let session = session()?;
    let path = std::ffi::OsStr::from_bytes(path.get()?);
    crate::graph::dot::print(session.graphs, graph.bits(), path.as_ref(), flags)
}

/// Where a number about the memory of graphs is read or written.
fn number(value: Untyped) -> Result<Out<u64>, CUresult> {
    // SAFETY: every attribute of graphs' memory is a 64-bit number.
    let number = unsafe { value.typed() };
    number.required()?;
    Ok(number)
}

pub(crate) fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: CUgraphMem_attribute,
    value: Untyped,
) -> Outcome {
    let session = session()?;
    session.device(device)?;
    let value = number(value)?;
    let count = session.graphs.memories.attribute(device, attribute)?;
    value.set(count)
}

pub(crate) fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attribute: CUgraphMem_attribute,
    value: Untyped,
) -> Outcome {
    let session = session()?;
    session.device(device)?;
    if number(value)?.get()? != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    session.graphs.memories.reset(device, attribute)
}

pub(crate) fn cuDeviceGraphMemTrim(device: CUdevice) -> Outcome {
    // Memory that no graph has goes back at once; there is never any more to give.
    session()?.device(device).map(drop)
}

pub(crate) fn cuUserObjectCreate(
    object: Out<CUuserObject>,
    ptr: CallbackData,
    destroy: CUhostFn,
    initial_refcount: u32,
    flags: u32,
) -> Outcome {
    let graphs = graphs()?;
    object.required()?;
    let end = destroy.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let most = i32::MAX.cast_unsigned();
    if flags != NO_DESTRUCTOR_SYNC || initial_refcount == 0 || initial_refcount > most {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let made = graphs.create_object(ptr, end, initial_refcount)?;
    object.set(CUuserObject::from_bits(made))
}

/// Refuses counts that CUDA does.
fn check_count(count: u32) -> Outcome {
    match count {
        0 => Err(CUresult::ERROR_INVALID_VALUE),
        count if count > i32::MAX.cast_unsigned() => Err(CUresult::ERROR_INVALID_VALUE),
        _ => Ok(()),
    }
}

pub(crate) fn cuUserObjectRetain(object: CUuserObject, count: u32) -> Outcome {
    check_count(count)?;
    graphs()?.retain_object(object.bits(), count)
}

pub(crate) fn cuUserObjectRelease(object: CUuserObject, count: u32) -> Outcome {
    check_count(count)?;
    graphs()?.release_object(object.bits(), count)
}

pub(crate) fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Outcome {
    check_count(count)?;
    if flags & !MOVE != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let moved = flags & MOVE != 0;
    graphs()?.add_user_object(graph.bits(), object.bits(), count, moved)
}

pub(crate) fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> Outcome {
    check_count(count)?;
    graphs()?.remove_user_object(graph.bits(), object.bits(), count)
}
