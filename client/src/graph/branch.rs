//! Launches of conditional nodes: which graph runs, and when.
//!
//! The node stands in its graph stream as a host function does. When all before it is done, a thread of ours reads
//! the handle's word, launches the body that it chooses in a stream of the node's own, waits for it, and does
//! so again for a loop; then its graph stream goes on. `lower` makes one of each node; a body is a schedule itself.
//!
//! Launches put it into its graph stream, and a thread of `host_function` calls it, as internal work. Must not know how a
//! body was lowered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::CU_STREAM_NON_BLOCKING;

use super::conditional::{Conditional, ConditionalKind, Handle};
use super::listed::Listed;
use super::node::Payload;
use super::schedule::Schedule;
use super::step::{Bodies, Refusal};
use super::table::{Graphs, MOST_DEPTH};
use crate::context;
use crate::handle::Key;
use crate::stream::LEAST_PRIORITY;
use crate::stream::host_function;

/// A conditional node that is ready to be launched.
#[derive(Debug)]
pub(super) struct Branch {
    handle: Arc<Handle>,
    kind: ConditionalKind,
    bodies: Vec<BranchBody>,
}

/// A graph of a conditional node, and the stream in which it is launched.
#[derive(Debug)]
struct BranchBody {
    schedule: Mutex<Schedule>,
    graphs: &'static Graphs,
    stream: Key,
    context: u64,
}

impl Branch {
    /// Makes a node ready that stands inside of `depth` others.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for nodes that stand too deep and for kinds of nodes that bodies cannot
    /// have, and as for any graph.
    pub(super) fn new(
        graphs: &'static Graphs,
        node: &Conditional,
        depth: usize,
    ) -> Result<Arc<Self>, CUresult> {
        if depth >= MOST_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let bodies = node
            .bodies
            .iter()
            .map(|graph| BranchBody::new(graphs, *graph, node.context, depth + 1));
        Ok(Arc::new(Self {
            handle: Arc::clone(&node.handle),
            kind: node.kind,
            bodies: bodies.collect::<Result<_, _>>()?,
        }))
    }
}

impl host_function::InternalWork for Branch {
    fn run(&self) {
        while let Some(body) = self.kind.choose(self.handle.value(), self.bodies.len()) {
            // After an error the context is dead, which the program is told where it asks next.
            if self.bodies[body].run().is_err() || self.kind != ConditionalKind::While {
                return;
            }
        }
    }
}

impl Bodies for Branch {
    fn set(&self, node: u64, payload: &Payload) -> Option<Result<(), CUresult>> {
        self.bodies.iter().find_map(|body| body.set(node, payload))
    }

    fn payload(&self, node: u64) -> Option<Payload> {
        self.bodies.iter().find_map(|body| body.payload(node))
    }

    fn compare(&self, body: usize, list: &[Listed]) -> Result<(), Refusal> {
        let body = self.bodies.get(body);
        body.map_or(Ok(()), |body| body.compare(list))
    }
}

impl BranchBody {
    fn new(
        graphs: &'static Graphs,
        graph: u64,
        context: u64,
        depth: usize,
    ) -> Result<Self, CUresult> {
        let schedule = Schedule::new(graphs, graph, depth)?;
        if !schedule
            .nodes
            .iter()
            .all(|node| node.listed.payload.may_be_conditional())
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let current = context::usable(graphs.streams.contexts, context)?;
        // What is behind the node waits for it, also in streams that share its stream's connection.
        let stream =
            graphs
                .streams
                .create_unconnected(&current, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY)?;
        Ok(Self {
            schedule: Mutex::new(schedule),
            graphs,
            stream,
            context,
        })
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Schedule::set`].
    fn set(&self, node: u64, payload: &Payload) -> Option<Result<(), CUresult>> {
        self.schedule().set(node, payload)
    }

    /// As [`Schedule::payload`].
    fn payload(&self, node: u64) -> Option<Payload> {
        self.schedule().payload(node)
    }

    /// As [`Schedule::compare`].
    fn compare(&self, list: &[Listed]) -> Result<(), Refusal> {
        self.schedule().compare(list)
    }

    /// Launches it and waits for it.
    fn run(&self) -> Result<(), CUresult> {
        let graphs = self.graphs;
        let current = context::usable(graphs.streams.contexts, self.context)?;
        let target = graphs.streams.target(&current, self.stream)?;
        let (slot, until) = self.schedule().launch(&target, false)?;
        graphs.connection.wait(slot, until)?;
        graphs.connection.check_fault(current.slot())
    }
}

impl Drop for BranchBody {
    fn drop(&mut self) {
        // Its context may have ended before.
        let _ = self.graphs.streams.destroy(self.stream);
    }
}
