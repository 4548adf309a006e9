//! Schedules: nodes in *graph streams*, and what each puts into its stream.
//!
//! Graph stream 0 is the stream that the graph is launched in; the others are streams of the schedule's own. A node
//! that follows another in its graph stream needs nothing more to come after it; one that depends on a node of
//! another graph stream waits for that node's place. So a launch is nothing but what a program could do with
//! streams, and limits, quotas and faults hold as they do for any stream.
//!
//! Owns the graph streams, the streams behind them and the steps of each node. Called by `exec`, and by `branch` for
//! bodies. Must not know executable graphs; how a step is posted is `launch`'s business.

use std::collections::BTreeSet;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUevent, CUgraphExecUpdateResult};

use super::conditional::Handle;
use super::launch::Launch;
use super::listed::{AFTER_CHILD, Listed};
use super::lower::lower;
use super::node::Payload;
use super::run::{Unit, Units};
use super::step::{Bodies, Refusal, ScheduledNode, Step};
use super::table::Graphs;
use crate::context;
use crate::handle::Key;
use crate::stream::host_function;
use crate::stream::{LEAST_PRIORITY, StreamTarget};

/// Graph streams that one schedule may have.
const MOST_GRAPH_STREAMS: u32 = 16;

/// The nodes of a graph, ready to be launched.
#[derive(Debug)]
pub(super) struct Schedule {
    pub graphs: &'static Graphs,
    pub nodes: Vec<ScheduledNode>,
    /// `nodes` in an order in which each comes behind all that it depends on.
    order: Vec<usize>,
    /// The streams of graph streams 1 and up.
    graph_streams: Vec<Key>,
    units: Units,
    /// Where the last launch ends.
    pub end: Option<(u32, u64)>,
    /// The conditional handles of the graph.
    pub handles: Vec<Arc<Handle>>,
}

/// Puts a list in order.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if there is none, because of a cycle.
fn in_order(list: &[Listed]) -> Result<Vec<usize>, CUresult> {
    let mut missing: Vec<usize> = list.iter().map(|node| node.after.len()).collect();
    let mut behind = vec![Vec::new(); list.len()];
    for (at, node) in list.iter().enumerate() {
        for &before in &node.after {
            behind[before].push(at);
        }
    }
    let mut free: BTreeSet<usize> = (0..list.len()).filter(|&at| missing[at] == 0).collect();
    let mut order = Vec::with_capacity(list.len());
    while let Some(at) = free.pop_first() {
        order.push(at);
        for &next in &behind[at] {
            missing[next] -= 1;
            if missing[next] == 0 {
                free.insert(next);
            }
        }
    }
    match order.len() == list.len() {
        true => Ok(order),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Gives each node a graph stream, and what it must wait for in others. Returns how many graph streams there are.
fn assign(nodes: &mut [ScheduledNode], order: &[usize]) -> u32 {
    // The last node of each graph stream.
    let mut tails: Vec<usize> = Vec::new();
    for &at in order {
        let after = nodes[at].listed.after.clone();
        let follows = tails.iter().position(|tail| after.contains(tail));
        let graph_stream = match follows {
            Some(graph_stream) => graph_stream,
            None if tails.len() < MOST_GRAPH_STREAMS as usize => {
                tails.push(at);
                tails.len() - 1
            }
            // Any graph stream does: a wait too many leads back to nodes that are earlier in the order.
            None => at % tails.len(),
        };
        tails[graph_stream] = at;
        nodes[at].graph_stream = graph_stream as u32;
        nodes[at].waits = after
            .into_iter()
            .filter(|&before| nodes[before].graph_stream != graph_stream as u32)
            .collect();
    }
    tails.len() as u32
}

impl Schedule {
    /// Makes a graph's schedule. `depth` is how many conditional nodes it stands inside of.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a graph with a cycle, and what the nodes' parameters give.
    pub(super) fn new(graphs: &'static Graphs, graph: u64, depth: usize) -> Result<Self, CUresult> {
        let list = graphs.list(graph)?;
        let order = in_order(&list)?;
        let mut nodes = Vec::with_capacity(list.len());
        for listed in list {
            nodes.push(ScheduledNode {
                steps: lower(graphs, &listed.payload, depth)?,
                listed,
                enabled: true,
                graph_stream: 0,
                waits: Vec::new(),
            });
        }
        let count = assign(&mut nodes, &order);
        let mut schedule = Self {
            graphs,
            nodes,
            order,
            graph_streams: Vec::new(),
            units: Units::default(),
            end: None,
            // All of a launch begin with it, those of graphs inside too.
            handles: match depth {
                0 => graphs.handles_of(graph)?,
                _ => Vec::new(),
            },
        };
        schedule.make_lanes(count, depth)?;
        Ok(schedule)
    }

    fn make_lanes(&mut self, count: u32, depth: usize) -> Result<(), CUresult> {
        if count <= 1 {
            return Ok(());
        }
        let mut contexts = self.nodes.iter().map(|node| node.listed.payload.context());
        let current = match contexts.find_map(|context| context) {
            Some(context) => context::usable(self.graphs.streams.contexts, context)?,
            None => context::current()?,
        };
        let streams = self.graphs.streams;
        for _ in 1..count {
            let made = match depth {
                0 => streams.create(&current, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY),
                // Others wait for what runs inside of a conditional node.
                _ => streams.create_unconnected(&current, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY),
            };
            self.graph_streams.push(made?);
        }
        Ok(())
    }

    /// The node of a handle, or what looks for it in the bodies of its conditional nodes.
    fn find<T>(
        &mut self,
        node: u64,
        here: impl FnOnce(&'static Graphs, &mut ScheduledNode) -> T,
        inside: impl Fn(&dyn Bodies) -> Option<T>,
    ) -> Option<T> {
        let is = |it: &ScheduledNode| it.listed.handle == node && it.listed.kind != AFTER_CHILD;
        if let Some(at) = self.nodes.iter().position(is) {
            return Some(here(self.graphs, &mut self.nodes[at]));
        }
        let steps = self.nodes.iter().flat_map(|node| &node.steps);
        let mut branches = steps.filter_map(|step| match step {
            Step::Branch(bodies) => Some(&**bodies),
            _ => None,
        });
        branches.find_map(inside)
    }

    /// Gives a node other parameters of its kind; `None` if it is not among these, nor inside of them.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for parameters that it cannot take.
    pub(super) fn set(&mut self, node: u64, payload: &Payload) -> Option<Result<(), CUresult>> {
        let set = |graphs, node: &mut ScheduledNode| {
            if update_refusal(&node.listed.payload, payload).is_some() {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            node.steps = lower(graphs, payload, 0)?;
            node.listed.payload = payload.clone();
            Ok(())
        };
        let set = self.find(node, set, |bodies| bodies.set(node, payload));
        self.invalidate_runs();
        set
    }

    /// What a node does; `None` if it is not among these, nor inside of them.
    pub(super) fn payload(&mut self, node: u64) -> Option<Payload> {
        let told = |_, node: &mut ScheduledNode| node.listed.payload.clone();
        self.find(node, told, |bodies| bodies.payload(node))
    }

    /// Nodes have changed.
    pub(super) fn invalidate_runs(&mut self) {
        self.units.forget(self.graphs.runs, self.end);
    }

    /// From now on kernels may launch it by this number.
    ///
    /// # Errors
    /// As [`Schedule::upload`].
    pub(super) fn publish(&mut self, number: u64) -> Result<(), CUresult> {
        self.units.publish_as(number);
        self.upload()
    }

    /// Gives the server what kernels launch, if they may and if nodes have changed.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for what kernels cannot launch, CUDA_ERROR_INVALID_VALUE for nothing, CUDA_ERROR_OUT_OF_MEMORY
    /// without room for it.
    pub(super) fn upload(&mut self) -> Result<(), CUresult> {
        if !self.units.are_published() {
            // Everything is ready when it is instantiated.
            return Ok(());
        }
        let units = &mut self.units;
        let made = units.next_launches(self.graphs.runs, &self.nodes, &self.order);
        made.map(drop)
    }

    /// Whether it can take the parameters of the nodes of a list.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn compare(&self, list: &[Listed]) -> Result<(), Refusal> {
        let topology = CUgraphExecUpdateResult::TOPOLOGY_CHANGED;
        if list.len() != self.nodes.len() {
            return Err((topology, 0));
        }
        let set = |after: &[usize]| after.iter().copied().collect::<BTreeSet<usize>>();
        for (own, other) in self.nodes.iter().zip(list) {
            if set(&own.listed.after) != set(&other.after) {
                return Err((topology, other.handle));
            }
        }
        for (own, other) in self.nodes.iter().zip(list) {
            own.compare(self.graphs, other)?;
        }
        Ok(())
    }

    /// Puts a launch into a stream that is not captured. `again` is whether memory that is not freed yet
    /// counts as freed. Gives where it ends.
    pub(super) fn launch(
        &mut self,
        target: &StreamTarget,
        again: bool,
    ) -> Result<(u32, u64), CUresult> {
        let graphs = self.graphs;
        let units = self
            .units
            .next_launches(graphs.runs, &self.nodes, &self.order)?;
        // Those of runs are launches.
        let alone = units.iter().filter_map(|unit| match unit {
            Unit::Node(at) => Some(&self.nodes[*at]),
            Unit::Run(_) => None,
        });
        let steps = || alone.clone().flat_map(|node| &node.steps);
        if steps().any(|step| matches!(step, Step::Call(_) | Step::Branch(_))) {
            host_function::ready(graphs.streams)?;
        }
        for step in steps() {
            if let Step::Allocate(allocation) = step
                && !again
                && graphs.memories.is_live(allocation.address())
            {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        for step in steps() {
            if let Step::Record(event) | Step::Wait(event) = step {
                graphs.events.get(CUevent::from_bits(*event))?;
            }
        }
        let own: Vec<StreamTarget> = self
            .graph_streams
            .iter()
            .map(|key| graphs.streams.target(&target.current, *key))
            .collect::<Result<_, CUresult>>()?;
        let mut launch = Launch::begin(graphs, target, &own, self.end)?;
        for handle in &self.handles {
            launch.begin_with(handle)?;
        }
        launch.started();
        for unit in units {
            match unit {
                Unit::Node(at) => launch.node(&self.nodes, *at, again)?,
                Unit::Run(run) => launch.run(&self.nodes, run)?,
            }
        }
        let end = launch.finish()?;
        self.end = Some(end);
        Ok(end)
    }
}

impl Drop for Schedule {
    /// Ends its streams and runs. What was launched goes on.
    fn drop(&mut self) {
        self.invalidate_runs();
        for key in &self.graph_streams {
            // Their context may have ended before.
            let _ = self.graphs.streams.destroy(*key);
        }
    }
}

impl ScheduledNode {
    /// Whether it can take another's parameters.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn compare(&self, graphs: &Graphs, other: &Listed) -> Result<(), Refusal> {
        if self.listed.kind != other.kind {
            let result = CUgraphExecUpdateResult::NODE_TYPE_CHANGED;
            return Err((result, other.handle));
        }
        if let Some(result) = update_refusal(&self.listed.payload, &other.payload) {
            return Err((result, other.handle));
        }
        let (Payload::Conditional(node), Some(Step::Branch(bodies))) =
            (&other.payload, self.steps.first())
        else {
            return Ok(());
        };
        for (at, body) in node.bodies.iter().enumerate() {
            let list = graphs.list(*body);
            let list =
                list.map_err(|_| (CUgraphExecUpdateResult::TOPOLOGY_CHANGED, other.handle))?;
            bodies.compare(at, &list)?;
        }
        Ok(())
    }
}

impl Graphs {
    /// The conditional handles of a graph and of those inside of it.
    pub(super) fn handles_of(&self, graph: u64) -> Result<Vec<Arc<Handle>>, CUresult> {
        let mut handles = Vec::new();
        let mut left = vec![graph];
        while let Some(graph) = left.pop() {
            let body = self.get(graph)?.body();
            handles.extend(body.handles.values().cloned());
            for node in body.nodes.values() {
                left.extend_from_slice(node.payload.graphs());
            }
        }
        Ok(handles)
    }
}

/// Why a node cannot take these parameters.
pub(super) fn update_refusal(now: &Payload, then: &Payload) -> Option<CUgraphExecUpdateResult> {
    if now.kind() != then.kind() {
        return Some(CUgraphExecUpdateResult::NODE_TYPE_CHANGED);
    }
    let changed = match (now, then) {
        (Payload::Kernel(now), Payload::Kernel(then)) if now.context != then.context => {
            return Some(CUgraphExecUpdateResult::FUNCTION_CHANGED);
        }
        (Payload::Copy(now), Payload::Copy(then)) => {
            now.direction() != then.direction() || now.context != then.context
        }
        (Payload::Fill(now), Payload::Fill(then)) => {
            now.context != then.context || (now.fill.height == 1) != (then.fill.height == 1)
        }
        (Payload::Allocate(now), Payload::Allocate(then)) => now.address() != then.address(),
        (Payload::Free(now), Payload::Free(then)) => now != then,
        (Payload::Batch(now), Payload::Batch(then)) => !now.has_form_of(then),
        (Payload::Semaphores(now), Payload::Semaphores(then)) => !now.has_form_of(then),
        (Payload::Conditional(now), Payload::Conditional(then)) => {
            now.context != then.context
                || now.kind != then.kind
                || now.bodies.len() != then.bodies.len()
        }
        _ => false,
    };
    changed.then_some(CUgraphExecUpdateResult::PARAMETERS_CHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(after: &[usize]) -> Listed {
        Listed {
            handle: 0,
            kind: 5,
            payload: Payload::Empty,
            after: after.to_vec(),
        }
    }

    fn scheduled(graph: &[&[usize]]) -> (Vec<ScheduledNode>, Vec<usize>, u32) {
        let list: Vec<Listed> = graph.iter().map(|after| listed(after)).collect();
        let order = in_order(&list).unwrap();
        let mut nodes: Vec<ScheduledNode> = list
            .into_iter()
            .map(|listed| ScheduledNode {
                listed,
                steps: Vec::new(),
                enabled: true,
                graph_stream: 0,
                waits: Vec::new(),
            })
            .collect();
        let graph_streams = assign(&mut nodes, &order);
        (nodes, order, graph_streams)
    }

    #[test]
    fn a_chain_is_one_lane_and_waits_for_nothing() {
        let (nodes, order, graph_streams) = scheduled(&[&[1], &[2], &[]]);
        assert_eq!((order, graph_streams), (vec![2, 1, 0], 1));
        assert!(nodes.iter().all(|node| node.waits.is_empty()));
    }

    #[test]
    fn branches_have_lanes_of_their_own_and_meet_again() {
        let (nodes, _, graph_streams) = scheduled(&[&[], &[0], &[0], &[1, 2]]);
        assert_eq!(graph_streams, 2);
        assert_eq!((nodes[1].graph_stream, nodes[2].graph_stream), (0, 1));
        assert_eq!(nodes[2].waits, [0]);
        assert_eq!(
            (nodes[3].graph_stream, nodes[3].waits.clone()),
            (0, vec![2])
        );
    }

    #[test]
    fn a_wide_graph_shares_lanes_and_a_cycle_is_refused() {
        let roots = vec![&[][..]; 100];
        let (nodes, order, graph_streams) = scheduled(&roots);
        assert_eq!(graph_streams, MOST_GRAPH_STREAMS);
        assert_eq!(order.len(), nodes.len());
        assert!(in_order(&[listed(&[1]), listed(&[0])]).is_err());
    }
}
