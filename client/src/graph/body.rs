//! Graphs: nodes, edges, and what keeps them together.
//!
//! Owns the shape of a graph: which node comes behind which, and the data of its edges. It knows nothing of
//! streams and launches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUgraphEdgeData;

use super::conditional::Handle;
use super::node::Payload;

/// Nodes that one graph may have, those of graphs inside of it not counted.
const MOST_NODES: usize = 1 << 20;

/// What a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The serial number of the node that comes before.
    pub from: u64,
    pub data: CUgraphEdgeData,
}

/// A node of a graph.
#[derive(Debug)]
pub(crate) struct Node {
    pub handle: u64,
    pub payload: Payload,
    /// In the order in which they were added.
    pub edges: Vec<Edge>,
    /// The handle of the node of which this one is a copy, or 0.
    pub original: u64,
}

/// What a graph holds.
#[derive(Debug, Default)]
pub(crate) struct GraphBody {
    /// By serial number, and so in the order in which they were added.
    pub nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Whether it belongs to a node of another graph.
    pub embedded: bool,
    /// Whether it allocates or frees memory: then there is but one of it.
    pub has_memory: bool,
    /// How many executable graphs made of it are alive.
    pub instances: u32,
    /// User objects that it holds, and how often.
    pub objects: HashMap<u64, u32>,
    /// Its conditional handles, by what the program calls them.
    pub handles: BTreeMap<u64, Arc<Handle>>,
}

impl GraphBody {
    /// Adds a node behind others. Gives its serial number.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an edge from a node that is not in the graph, and for one that
    /// stands there twice.
    pub(crate) fn add(&mut self, payload: Payload, edges: Vec<Edge>) -> Result<u64, CUresult> {
        let mut seen = BTreeSet::new();
        for edge in &edges {
            if !self.nodes.contains_key(&edge.from) || !seen.insert(edge.from) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            check_data(&edge.data)?;
        }
        if self.nodes.len() >= MOST_NODES {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let serial = self.next;
        self.next += 1;
        self.has_memory |= matches!(payload, Payload::Allocate(_) | Payload::Free(_));
        self.nodes.insert(
            serial,
            Node {
                handle: 0,
                payload,
                edges,
                original: 0,
            },
        );
        Ok(serial)
    }

    /// Adds edges between nodes that are there, all of them or none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an edge that is there, that leads from a node to itself, or to or
    /// from a node that is not in the graph.
    pub(crate) fn connect(
        &mut self,
        edges: &[(u64, u64, CUgraphEdgeData)],
    ) -> Result<(), CUresult> {
        let mut new = BTreeSet::new();
        for (from, to, data) in edges {
            let there = |to: &Node| to.edges.iter().any(|edge| edge.from == *from);
            let target = self.nodes.get(to).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            if from == to
                || !self.nodes.contains_key(from)
                || there(target)
                || !new.insert((*from, *to))
            {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            check_data(data)?;
        }
        for (from, to, data) in edges {
            if let Some(node) = self.nodes.get_mut(to) {
                node.edges.push(Edge {
                    from: *from,
                    data: *data,
                });
            }
        }
        Ok(())
    }

    /// Takes edges out, all of them or none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an edge that is not there, CUDA_ERROR_NOT_SUPPORTED for a graph that
    /// allocates or frees memory.
    pub(crate) fn disconnect(
        &mut self,
        edges: &[(u64, u64, Option<CUgraphEdgeData>)],
    ) -> Result<(), CUresult> {
        if self.has_memory {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        for (from, to, data) in edges {
            let there = self.nodes.get(to).is_some_and(|node| {
                node.edges
                    .iter()
                    .any(|edge| edge.from == *from && data.is_none_or(|data| data == edge.data))
            });
            if !there {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        for (from, to, _) in edges {
            if let Some(node) = self.nodes.get_mut(to) {
                node.edges.retain(|edge| edge.from != *from);
            }
        }
        Ok(())
    }

    /// Whether it has conditional nodes: then there is but one of it.
    pub(crate) fn is_conditional(&self) -> bool {
        let conditional = |node: &Node| matches!(node.payload, Payload::Conditional(_));
        self.nodes.values().any(conditional)
    }

    /// Takes a node out, and its edges.
    pub(crate) fn remove(&mut self, serial: u64) -> Option<Node> {
        let node = self.nodes.remove(&serial)?;
        for other in self.nodes.values_mut() {
            other.edges.retain(|edge| edge.from != serial);
        }
        Some(node)
    }

    /// Every edge: from, to, and what it means.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (u64, u64, CUgraphEdgeData)> {
        self.nodes.iter().flat_map(|(serial, node)| {
            node.edges
                .iter()
                .map(move |edge| (edge.from, *serial, edge.data))
        })
    }

    /// Whether all of `nodes` come before one of `ends`, or are among them.
    pub(crate) fn all_before(&self, nodes: &[u64], ends: &[u64]) -> bool {
        let mut seen: BTreeSet<u64> = ends.iter().copied().collect();
        let mut left: Vec<u64> = ends.to_vec();
        while let Some(serial) = left.pop() {
            for edge in self.nodes.get(&serial).map_or(&[][..], |node| &node.edges) {
                if seen.insert(edge.from) {
                    left.push(edge.from);
                }
            }
        }
        nodes.iter().all(|serial| seen.contains(serial))
    }
}

/// What an edge may mean: the default, or the programmatic dependency of one kernel on another, which
/// holds if the whole kernel is waited for.
fn check_data(data: &CUgraphEdgeData) -> Result<(), CUresult> {
    if data.r#type > 1 || data.reserved != [0; 5] || data.to_port != 0 || data.from_port > 2 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: u64) -> Edge {
        Edge {
            from,
            data: CUgraphEdgeData::default(),
        }
    }

    #[test]
    fn edges_are_checked_and_go_with_their_nodes() {
        let none = CUgraphEdgeData::default();
        let mut body = GraphBody::default();
        let a = body.add(Payload::Empty, vec![]).unwrap();
        let b = body.add(Payload::Empty, vec![edge(a)]).unwrap();
        let c = body.add(Payload::Empty, vec![edge(a)]).unwrap();
        assert!(body.add(Payload::Empty, vec![edge(a), edge(a)]).is_err());
        assert!(body.add(Payload::Empty, vec![edge(99)]).is_err());
        assert!(body.connect(&[(b, c, none), (a, b, none)]).is_err());
        assert_eq!(body.edges().count(), 2, "all or none");
        assert!(body.connect(&[(a, a, none)]).is_err());
        body.connect(&[(b, c, none)]).unwrap();
        assert!(body.all_before(&[a, b], &[c]));
        assert!(!body.all_before(&[c], &[b]));
        assert!(body.disconnect(&[(c, b, None)]).is_err());
        assert!(body.remove(b).is_some());
        assert_eq!(body.edges().collect::<Vec<_>>(), [(a, c, none)]);
    }
}
