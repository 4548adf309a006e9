//! Nodes as a list of all that is in a graph has them, with those of graphs inside of it.
//!
//! Plain data, between the tables that make the list and the schedules that are made of it.

use super::node::Payload;

/// A node of a graph, or of a graph inside of it, as a list has it; child graphs are a node before
/// and one after their own.
#[derive(Debug)]
pub(super) struct Listed {
    pub handle: u64,
    /// The node's kind; the node after a child graph's own has [`AFTER_CHILD`].
    pub kind: u32,
    pub payload: Payload,
    /// Where in the list those stand that come before.
    pub after: Vec<usize>,
}

/// The kind of what stands after a child graph's nodes.
pub(super) const AFTER_CHILD: u32 = 0x100;
