//! What a node puts into its stream, step by step.
//!
//! Plain data: `lower` makes steps of what a node does, launches and runs read them. What stands inside of a
//! conditional node is known here by a trait only, since it is a schedule of steps itself.

use std::fmt::Debug;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUgraphExecUpdateResult;
use transport::session::EncodedRequest;

use super::listed::Listed;
use super::memory::Allocation;
use super::node::Payload;
use crate::stream::host_function::{HostCall, InternalWork};

/// Something to put into a stream.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request, written down.
    Post(Arc<EncodedRequest>),
    /// A call in this process.
    Call(HostCall),
    /// The record of the event of this handle.
    Record(u64),
    /// A wait for the event of this handle.
    Wait(u64),
    /// Nothing; but memory is the program's from here on.
    Allocate(Arc<Allocation>),
    /// Nothing; but memory is the program's no more.
    Free(u64),
    /// The graph that a value chooses.
    Branch(Arc<dyn Bodies>),
}

/// A node with what it puts into its stream.
#[derive(Debug)]
pub(super) struct ScheduledNode {
    pub listed: Listed,
    pub steps: Vec<Step>,
    pub enabled: bool,
    pub graph_stream: u32,
    /// Nodes of other graph streams that it waits for.
    pub waits: Vec<usize>,
}

/// Why a schedule cannot take the parameters of a graph, and the node because of which it cannot.
pub(super) type Refusal = (CUgraphExecUpdateResult, u64);

/// The graphs of a conditional node, ready to be launched.
pub(super) trait Bodies: InternalWork + Debug {
    /// Gives a node of one of them other parameters; `None` if it is in none.
    fn set(&self, node: u64, payload: &Payload) -> Option<Result<(), CUresult>>;

    /// What a node of one of them does; `None` if it is in none.
    fn payload(&self, node: u64) -> Option<Payload>;

    /// Whether one of them can take the parameters of the nodes of a list.
    ///
    /// # Errors
    /// Why not.
    fn compare(&self, body: usize, list: &[Listed]) -> Result<(), Refusal>;
}
