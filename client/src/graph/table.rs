//! The tables of graphs and their nodes, and what concerns whole graphs: copies, lists of all nodes, ends.
//!
//! Owns every graph and the handles of nodes, and holds the parts of the library that graphs run by. Captures
//! fill it, executable graphs are made of what it lists. It knows neither.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::CUgraphEdgeData;

use super::body::{Edge, GraphBody};
use super::listed::{AFTER_CHILD, Listed};
use super::node::Payload;
use super::object::Object;
use super::{memory, run};
use crate::code::Code;
use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::memory::pool::Pools;
use crate::memory::ranges::Ranges;
use crate::session::connection::Connection;
use crate::stream::Streams;
use crate::stream::event::Events;

/// How deep graphs may stand inside of one another.
pub(super) const MOST_DEPTH: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Graph {
    body: Mutex<GraphBody>,
}

/// Where the node of a handle is.
#[derive(Debug, Default)]
struct NodePlace {
    graph: AtomicU64,
    serial: AtomicU64,
}

/// All graphs of the process.
#[derive(Debug)]
pub(crate) struct Graphs {
    pub(super) connection: &'static Connection,
    pub(super) streams: &'static Streams,
    pub(super) events: &'static Events,
    pub(super) code: &'static Code,
    graphs: Slots<Graph>,
    nodes: Slots<NodePlace>,
    pub(super) objects: Slots<Object>,
    pub(super) runs: &'static run::RunRegister,
    pub memories: &'static memory::Memories,
}

impl Graph {
    /// What it holds, for the caller alone.
    pub(crate) fn body(&self) -> MutexGuard<'_, GraphBody> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node that an edge comes from, as the program names it.
pub(crate) type From = (u64, CUgraphEdgeData);

impl Graphs {
    /// No graphs yet; they run by these parts.
    pub(crate) fn new(
        streams: &'static Streams,
        events: &'static Events,
        ranges: &'static Ranges,
        pools: &'static Pools,
        code: &'static Code,
    ) -> Self {
        Self {
            connection: streams.connection,
            streams,
            events,
            code,
            graphs: Slots::new(0, u32::MAX),
            nodes: Slots::new(0, u32::MAX),
            objects: Slots::new(0, u32::MAX),
            runs: Box::leak(Box::new(run::RunRegister::new(streams.connection))),
            memories: Box::leak(Box::new(memory::Memories::new(
                streams.connection,
                ranges,
                pools,
            ))),
        }
    }

    /// Makes an empty graph. Gives its handle.
    pub(crate) fn create(&self, embedded: bool) -> Result<u64, CUresult> {
        let key = self.graphs.insert(
            |_, _| true,
            |_, graph| {
                let mut body = graph.body();
                *body = GraphBody::default();
                body.embedded = embedded;
            },
        );
        key.map(|key| key.handle(HandleKind::Graph))
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// The graph of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that names none.
    pub(crate) fn get(&self, graph: u64) -> Result<&Graph, CUresult> {
        Key::of(graph, HandleKind::Graph)
            .and_then(|key| self.graphs.get(key))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The graph of a node, by handle, and the node's serial number there.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that names none.
    pub(crate) fn place(&self, node: u64) -> Result<(u64, u64), CUresult> {
        let place = Key::of(node, HandleKind::GraphNode).and_then(|key| self.nodes.get(key));
        let place = place.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let graph = place.graph.load(Ordering::Relaxed);
        Ok((graph, place.serial.load(Ordering::Relaxed)))
    }

    /// The serial numbers of nodes of one graph.
    pub(crate) fn serials(&self, graph: u64, nodes: &[u64]) -> Result<Vec<u64>, CUresult> {
        let serial = |node: &u64| match self.place(*node)? {
            (of, serial) if of == graph => Ok(serial),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        };
        nodes.iter().map(serial).collect()
    }

    /// Does something with what a node does.
    pub(crate) fn with_node<T>(
        &self,
        node: u64,
        use_it: impl FnOnce(&mut Payload) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let (graph, serial) = self.place(node)?;
        let mut body = self.get(graph)?.body();
        let node = body.nodes.get_mut(&serial);
        use_it(&mut node.ok_or(CUresult::ERROR_INVALID_VALUE)?.payload)
    }

    /// What a node does.
    pub(crate) fn payload(&self, node: u64) -> Result<Payload, CUresult> {
        self.with_node(node, |payload| Ok(payload.clone()))
    }

    fn new_handle(&self, graph: u64, serial: u64) -> Result<u64, CUresult> {
        let key = self.nodes.insert(
            |_, _| true,
            |_, place| {
                place.graph.store(graph, Ordering::Relaxed);
                place.serial.store(serial, Ordering::Relaxed);
            },
        );
        key.map(|key| key.handle(HandleKind::GraphNode))
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    fn end_handle(&self, node: u64) {
        if let Some(key) = Key::of(node, HandleKind::GraphNode)
            && self.nodes.remove(key).is_some()
        {
            self.nodes.release(key.index());
        }
    }

    /// Adds a node to a graph, behind others. Gives its handle. Graphs that are the node's own end if
    /// it cannot be added.
    pub(crate) fn add(
        &self,
        graph: u64,
        after: &[From],
        payload: Payload,
    ) -> Result<u64, CUresult> {
        let inside = payload.graphs().to_vec();
        let added = self.add_node(graph, after, payload);
        if added.is_err() {
            self.end_all(&inside);
        }
        added
    }

    fn add_node(&self, graph: u64, after: &[From], payload: Payload) -> Result<u64, CUresult> {
        let handles: Vec<u64> = after.iter().map(|(node, _)| *node).collect();
        let serials = self.serials(graph, &handles)?;
        let edges = serials.into_iter().zip(after);
        let edges = edges.map(|(from, (_, data))| Edge { from, data: *data });
        let mut body = self.get(graph)?.body();
        let serial = body.add(payload, edges.collect())?;
        match self.new_handle(graph, serial) {
            Ok(handle) => {
                if let Some(node) = body.nodes.get_mut(&serial) {
                    node.handle = handle;
                }
                Ok(handle)
            }
            Err(error) => {
                body.remove(serial);
                Err(error)
            }
        }
    }

    /// Takes a node out of its graph.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for nodes of a graph that allocates or frees memory.
    pub(crate) fn destroy_node(&self, node: u64) -> Result<(), CUresult> {
        let (graph, serial) = self.place(node)?;
        let mut body = self.get(graph)?.body();
        if body.has_memory {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let gone = body.remove(serial).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        drop(body);
        self.end_handle(node);
        self.end_all(gone.payload.graphs());
        Ok(())
    }

    /// Ends a graph that the program may end.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a graph inside of another.
    pub(crate) fn destroy(&self, graph: u64) -> Result<(), CUresult> {
        if self.get(graph)?.body().embedded {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        match self.end(graph) {
            true => Ok(()),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Ends graphs that are a node's own.
    pub(crate) fn end_all(&self, graphs: &[u64]) {
        for graph in graphs {
            self.end(*graph);
        }
    }

    /// Ends a graph with all that is in it.
    fn end(&self, graph: u64) -> bool {
        let mut left = vec![graph];
        let mut ended = false;
        while let Some(graph) = left.pop() {
            let Some(key) = Key::of(graph, HandleKind::Graph) else {
                continue;
            };
            let Some(gone) = self.graphs.remove(key) else {
                continue;
            };
            ended = true;
            let body = std::mem::take(&mut *gone.body());
            self.graphs.release(key.index());
            for node in body.nodes.into_values() {
                self.end_handle(node.handle);
                left.extend_from_slice(node.payload.graphs());
            }
            self.release_objects(body.objects);
        }
        ended
    }

    /// Copies a graph. Gives the copy's handle.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for a graph that allocates or frees memory or has conditional nodes.
    pub(crate) fn copy(&self, graph: u64, embedded: bool) -> Result<u64, CUresult> {
        self.copy_at(graph, embedded, 0)
    }

    fn copy_at(&self, graph: u64, embedded: bool, depth: usize) -> Result<u64, CUresult> {
        if depth >= MOST_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // Taken out first: the graph may be added to itself.
        let (nodes, objects) = {
            let body = self.get(graph)?.body();
            if body.has_memory || body.is_conditional() {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            let nodes: Vec<_> = body
                .nodes
                .iter()
                .map(|(serial, node)| {
                    let edges = node.edges.clone();
                    (*serial, node.handle, node.payload.clone(), edges)
                })
                .collect();
            (nodes, body.objects.clone())
        };
        let copy = self.create(embedded)?;
        let filled = self.fill_copy(copy, nodes, depth);
        if filled.is_err() {
            self.end(copy);
        } else {
            self.retain_objects(&objects);
            self.get(copy)?.body().objects = objects;
        }
        filled.map(|()| copy)
    }

    fn fill_copy(
        &self,
        copy: u64,
        nodes: Vec<(u64, u64, Payload, Vec<Edge>)>,
        depth: usize,
    ) -> Result<(), CUresult> {
        let mut copies: HashMap<u64, u64> = HashMap::new();
        for (serial, original, payload, _) in &nodes {
            let payload = match payload {
                Payload::Child(inside) => Payload::Child(self.copy_at(*inside, true, depth + 1)?),
                other => other.clone(),
            };
            let handle = self.add(copy, &[], payload)?;
            let (_, new) = self.place(handle)?;
            copies.insert(*serial, new);
            if let Some(node) = self.get(copy)?.body().nodes.get_mut(&new) {
                node.original = *original;
            }
        }
        let mut body = self.get(copy)?.body();
        for (serial, _, _, edges) in nodes {
            let Some(node) = copies
                .get(&serial)
                .and_then(|serial| body.nodes.get_mut(serial))
            else {
                continue;
            };
            node.edges = edges
                .into_iter()
                .filter_map(|edge| {
                    Some(Edge {
                        from: *copies.get(&edge.from)?,
                        data: edge.data,
                    })
                })
                .collect();
        }
        Ok(())
    }

    /// The node of a copied graph that is the copy of another graph's node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is none.
    pub(crate) fn find_copy(&self, original: u64, copy: u64) -> Result<u64, CUresult> {
        self.place(original)?;
        let mut left = vec![copy];
        let mut first = true;
        while let Some(graph) = left.pop() {
            let Ok(found) = self.get(graph) else {
                if first {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                continue;
            };
            first = false;
            let body = found.body();
            for node in body.nodes.values() {
                if node.original == original {
                    return Ok(node.handle);
                }
                if let Payload::Child(inside) = node.payload {
                    left.push(inside);
                }
            }
        }
        Err(CUresult::ERROR_INVALID_VALUE)
    }

    /// All nodes of a graph and of those inside of it, in the order in which they were added.
    pub(super) fn list(&self, graph: u64) -> Result<Vec<Listed>, CUresult> {
        let mut list = Vec::new();
        self.list_into(graph, None, &mut list, 0)?;
        Ok(list)
    }

    fn list_into(
        &self,
        graph: u64,
        before: Option<usize>,
        list: &mut Vec<Listed>,
        depth: usize,
    ) -> Result<(), CUresult> {
        if depth >= MOST_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let nodes: Vec<_> = self
            .get(graph)?
            .body()
            .nodes
            .iter()
            .map(|(serial, node)| {
                let edges: Vec<u64> = node.edges.iter().map(|edge| edge.from).collect();
                (*serial, node.handle, node.payload.clone(), edges)
            })
            .collect();
        // Where each node begins and ends in the list. Edges may lead to nodes added later, so they
        // are looked up when all have their place.
        let mut places: HashMap<u64, (usize, usize)> = HashMap::new();
        let mut edges_of = Vec::new();
        for (serial, handle, payload, edges) in nodes {
            let begin = list.len();
            let kind = payload.kind().0;
            let inside = match payload {
                Payload::Child(inside) => Some(inside),
                _ => None,
            };
            list.push(Listed {
                handle,
                kind,
                payload,
                after: Vec::new(),
            });
            if let Some(inside) = inside {
                self.list_into(inside, Some(begin), list, depth + 1)?;
                let end = list.len();
                // Behind all of its nodes, or there would be nothing to come after.
                let mut after: Vec<usize> = (begin..end).collect();
                let followed: std::collections::BTreeSet<usize> = list[begin..]
                    .iter()
                    .flat_map(|node| node.after.iter().copied())
                    .collect();
                after.retain(|at| !followed.contains(at));
                list.push(Listed {
                    handle,
                    kind: AFTER_CHILD,
                    payload: Payload::Empty,
                    after,
                });
            }
            places.insert(serial, (begin, list.len() - 1));
            edges_of.push((begin, edges));
        }
        for (at, edges) in edges_of {
            let after = edges
                .iter()
                .filter_map(|from| Some(places.get(from)?.1))
                .collect::<Vec<_>>();
            list[at].after = match (after.is_empty(), before) {
                (true, Some(before)) => vec![before],
                _ => after,
            };
        }
        Ok(())
    }

    pub(super) fn mark_instantiated(&self, graph: u64) -> Result<(), CUresult> {
        let mut body = self.get(graph)?.body();
        if (body.has_memory || body.is_conditional()) && body.instances > 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        body.instances += 1;
        Ok(())
    }

    pub(super) fn mark_instance_destroyed(&self, graph: u64) {
        if let Ok(graph) = self.get(graph) {
            let mut body = graph.body();
            body.instances = body.instances.saturating_sub(1);
        }
    }
}
