//! Executable graphs: a schedule of what a graph's nodes put into streams.
//!
//! Nodes stand in *lanes*. Lane 0 is the stream that the graph is launched in; the others are streams
//! of the executable graph's own. A node that follows another in its lane needs nothing more to come
//! after it; one that depends on a node of another lane waits for that node's place. So a launch is
//! nothing but what a program could do with streams, and limits, quotas and faults hold as they do
//! for any stream.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_STREAM_NON_BLOCKING, CUevent, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo,
    CUgraphNode,
};

use super::Graphs;
use super::launch::Launch;
use super::lower::{Step, lower};
use super::node::Payload;
use crate::context;
use crate::handle::Key;
use crate::host;
use crate::session::Session;
use crate::stream::{LEAST_PRIORITY, Target};

/// Lanes that one executable graph may have.
const MOST_LANES: u32 = 16;

/// Free what the last launch allocated and nobody freed, before the next launch.
pub(crate) const AUTO_FREE: u64 = 1;
/// All flags of cuGraphInstantiateWithFlags but the one that lets devices launch.
const FLAGS: u64 = 1 | 2 | 8;
/// The flag that lets devices launch it.
const DEVICE_LAUNCH: u64 = 4;

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

/// A node with what it puts into its stream.
#[derive(Debug)]
pub(super) struct Node {
    listed: Listed,
    pub steps: Vec<Step>,
    pub enabled: bool,
    pub lane: u32,
    /// Nodes of other lanes that it waits for.
    pub waits: Vec<usize>,
}

/// An executable graph.
#[derive(Debug, Default)]
pub(crate) struct Exec {
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    session: &'static Session,
    /// The handle of the graph of which it was made.
    graph: u64,
    flags: u64,
    nodes: Vec<Node>,
    /// Where nodes stand in `nodes`, by handle.
    places: HashMap<u64, usize>,
    /// `nodes` in an order in which each comes behind all that it depends on.
    order: Vec<usize>,
    /// The streams of lanes 1 and up.
    lanes: Vec<Key>,
    /// Where the last launch ends.
    end: Option<(u32, u64)>,
    /// User objects that it holds, and how often.
    objects: HashMap<u64, u32>,
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

/// Gives each node a lane, and what it must wait for in others. Returns how many lanes there are.
fn assign(nodes: &mut [Node], order: &[usize]) -> u32 {
    // The last node of each lane.
    let mut tails: Vec<usize> = Vec::new();
    for &at in order {
        let after = nodes[at].listed.after.clone();
        let follows = tails.iter().position(|tail| after.contains(tail));
        let lane = match follows {
            Some(lane) => lane,
            None if tails.len() < MOST_LANES as usize => {
                tails.push(at);
                tails.len() - 1
            }
            // Any lane does: a wait too many leads back to nodes that are earlier in the order.
            None => at % tails.len(),
        };
        tails[lane] = at;
        nodes[at].lane = lane as u32;
        nodes[at].waits = after
            .into_iter()
            .filter(|&before| nodes[before].lane != lane as u32)
            .collect();
    }
    tails.len() as u32
}

impl Graphs {
    /// Makes a graph executable.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for flags that there are not and for a graph with a cycle,
    /// CUDA_ERROR_NOT_SUPPORTED for a launch from devices and for a second instance of a graph that
    /// allocates, and what the nodes' parameters give.
    pub(crate) fn instantiate(
        &'static self,
        session: &'static Session,
        graph: u64,
        flags: u64,
    ) -> Result<u64, CUresult> {
        if flags & !(FLAGS | DEVICE_LAUNCH) != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let list = self.list(graph)?;
        let order = in_order(&list)?;
        let mut nodes = Vec::with_capacity(list.len());
        for listed in list {
            nodes.push(Node {
                steps: lower(session, &listed.payload)?,
                listed,
                enabled: true,
                lane: 0,
                waits: Vec::new(),
            });
        }
        let count = assign(&mut nodes, &order);
        self.take_instance(graph)?;
        let made = self.make_exec(session, graph, flags, nodes, order, count);
        if made.is_err() {
            self.give_instance(graph);
        }
        made
    }

    fn make_exec(
        &'static self,
        session: &'static Session,
        graph: u64,
        flags: u64,
        nodes: Vec<Node>,
        order: Vec<usize>,
        lanes: u32,
    ) -> Result<u64, CUresult> {
        let mut keys = Vec::new();
        if lanes > 1 {
            let context = nodes.iter().find_map(|node| node.listed.payload.context());
            let current = match context {
                Some(context) => context::usable(session, context)?,
                None => context::current()?,
            };
            for _ in 1..lanes {
                match session
                    .streams
                    .create(&current, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY)
                {
                    Ok(key) => keys.push(key),
                    Err(error) => {
                        end_lanes(session, &keys);
                        return Err(error);
                    }
                }
            }
        }
        let objects = self.retain_objects_of(graph);
        let places = nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.listed.kind != AFTER_CHILD)
            .map(|(at, node)| (node.listed.handle, at))
            .collect();
        let state = State {
            session,
            graph,
            flags,
            nodes,
            places,
            order,
            lanes: keys,
            end: None,
            objects,
        };
        let mut state = Some(state);
        let key = self
            .execs
            .insert(|_, _| true, |_, exec| *exec.state() = state.take());
        if let (None, Some(state)) = (key, state) {
            end_lanes(session, &state.lanes);
            self.release_objects(state.objects);
        }
        key.map(|key| key.handle(crate::handle::Kind::GraphExec))
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }
}

fn end_lanes(session: &Session, lanes: &[Key]) {
    for key in lanes {
        // Their context may have ended before.
        let _ = session.streams.destroy(session, *key);
    }
}

/// Work that is done when the last launch has: the user objects go.
#[derive(Debug)]
struct Ended {
    session: &'static Session,
    objects: Mutex<HashMap<u64, u32>>,
}

impl host::Ours for Ended {
    fn run(&self) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        self.session
            .graphs
            .release_objects(std::mem::take(&mut *objects));
    }
}

impl Exec {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        use_it: impl FnOnce(&mut State) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let mut state = self.state();
        use_it(state.as_mut().ok_or(CUresult::ERROR_INVALID_VALUE)?)
    }

    /// Ends it. What was launched goes on.
    pub(super) fn end(&self) {
        let Some(state) = self.state().take() else {
            return;
        };
        let session = state.session;
        end_lanes(session, &state.lanes);
        session.graphs.give_instance(state.graph);
        if !state.objects.is_empty() {
            let ended = std::sync::Arc::new(Ended {
                session,
                objects: Mutex::new(state.objects),
            });
            let (slot, sequence) = state.end.unwrap_or((0, 0));
            host::after(session, slot, sequence, ended);
        }
    }

    /// The flags that it was made with.
    pub(crate) fn flags(&self) -> Result<u64, CUresult> {
        self.with(|state| Ok(state.flags))
    }

    /// Whether a node is enabled.
    pub(crate) fn enabled(&self, node: u64) -> Result<bool, CUresult> {
        self.with(|state| Ok(state.node_that_can_be_disabled(node)?.enabled))
    }

    /// Enables or disables a node.
    pub(crate) fn enable(&self, node: u64, enabled: bool) -> Result<(), CUresult> {
        self.with(|state| {
            state.node_that_can_be_disabled(node)?.enabled = enabled;
            Ok(())
        })
    }

    /// Gives a node other parameters of its kind.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node that is not the graph's, and for parameters that its
    /// executable form cannot take.
    pub(crate) fn set(&self, node: u64, payload: Payload) -> Result<(), CUresult> {
        self.with(|state| {
            let session = state.session;
            let node = state.node(node)?;
            if cannot_become(&node.listed.payload, &payload).is_some() {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            node.steps = lower(session, &payload)?;
            node.listed.payload = payload;
            Ok(())
        })
    }

    /// What a node does now.
    pub(crate) fn payload(&self, node: u64) -> Result<Payload, CUresult> {
        self.with(|state| Ok(state.node(node)?.listed.payload.clone()))
    }

    /// Gives the nodes of a child graph the parameters of another graph's.
    pub(crate) fn set_child(&self, node: u64, graph: u64) -> Result<(), CUresult> {
        self.with(|state| {
            let at = *state
                .places
                .get(&node)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let end = state.nodes[at..]
                .iter()
                .position(|it| it.listed.kind == AFTER_CHILD && it.listed.handle == node)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let list = state.session.graphs.list(graph)?;
            let inside = &state.nodes[at + 1..at + end];
            // Its first nodes come behind the one before them, which the other graph does not have.
            let same = |own: &Node, other: &Listed| {
                let own_after: BTreeSet<usize> = own
                    .listed
                    .after
                    .iter()
                    .filter(|&&before| before != at)
                    .map(|before| before - (at + 1))
                    .collect();
                own_after == other.after.iter().copied().collect()
            };
            let topology = inside.len() == list.len()
                && inside
                    .iter()
                    .zip(&list)
                    .all(|(own, other)| same(own, other));
            if !topology {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let mut lowered = Vec::with_capacity(list.len());
            for (own, other) in inside.iter().zip(&list) {
                if own.listed.kind != other.kind
                    || cannot_become(&own.listed.payload, &other.payload).is_some()
                {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                lowered.push(lower(state.session, &other.payload)?);
            }
            for ((own, other), steps) in state.nodes[at + 1..].iter_mut().zip(list).zip(lowered) {
                own.listed.payload = other.payload;
                own.steps = steps;
            }
            Ok(())
        })
    }

    /// Takes the parameters of all nodes of another graph of the same form.
    ///
    /// # Errors
    /// CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, with the reason in `info`.
    pub(crate) fn update(
        &self,
        graph: u64,
        info: &mut CUgraphExecUpdateResultInfo,
    ) -> Result<(), CUresult> {
        self.with(|state| {
            let list = state.session.graphs.list(graph)?;
            let mut refuse = |result, node: u64| {
                info.result = result;
                info.errorNode = CUgraphNode::from_bits(node);
                Err(CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE)
            };
            if list.len() != state.nodes.len() {
                return refuse(CUgraphExecUpdateResult::TOPOLOGY_CHANGED, 0);
            }
            let set = |after: &[usize]| after.iter().copied().collect::<BTreeSet<usize>>();
            for (own, other) in state.nodes.iter().zip(&list) {
                if set(&own.listed.after) != set(&other.after) {
                    return refuse(CUgraphExecUpdateResult::TOPOLOGY_CHANGED, other.handle);
                }
            }
            let mut lowered = Vec::with_capacity(list.len());
            for (own, other) in state.nodes.iter().zip(&list) {
                if own.listed.kind != other.kind {
                    return refuse(CUgraphExecUpdateResult::NODE_TYPE_CHANGED, other.handle);
                }
                if let Some(result) = cannot_become(&own.listed.payload, &other.payload) {
                    return refuse(result, other.handle);
                }
                match lower(state.session, &other.payload) {
                    Ok(steps) => lowered.push(steps),
                    Err(_) => {
                        return refuse(CUgraphExecUpdateResult::PARAMETERS_CHANGED, other.handle);
                    }
                }
            }
            for ((own, other), steps) in state.nodes.iter_mut().zip(list).zip(lowered) {
                own.listed.payload = other.payload;
                own.steps = steps;
            }
            Ok(())
        })
    }

    /// Launches it in a stream that is not captured.
    pub(crate) fn launch(&self, target: &Target) -> Result<(), CUresult> {
        self.with(|state| state.launch(target))
    }
}

/// Why a node of an executable graph cannot take these parameters.
fn cannot_become(now: &Payload, then: &Payload) -> Option<CUgraphExecUpdateResult> {
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
        _ => false,
    };
    changed.then_some(CUgraphExecUpdateResult::PARAMETERS_CHANGED)
}

impl State {
    fn node(&mut self, node: u64) -> Result<&mut Node, CUresult> {
        let place = self.places.get(&node);
        let place = *place.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(&mut self.nodes[place])
    }

    fn node_that_can_be_disabled(&mut self, node: u64) -> Result<&mut Node, CUresult> {
        let node = self.node(node)?;
        match node.listed.payload.can_be_disabled() {
            true => Ok(node),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn launch(&mut self, target: &Target) -> Result<(), CUresult> {
        let session = self.session;
        let steps = || self.nodes.iter().flat_map(|node| &node.steps);
        if steps().any(|step| matches!(step, Step::Call(_))) {
            host::ready(session)?;
        }
        let again = self.flags & AUTO_FREE != 0;
        for step in steps() {
            if let Step::Allocate(allocation) = step
                && !again
                && session.graphs.memories.is_live(allocation.address())
            {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        for step in steps() {
            if let Step::Record(event) | Step::Wait(event) = step {
                session.events.get(CUevent::from_bits(*event))?;
            }
        }
        let own: Vec<Target> = self
            .lanes
            .iter()
            .map(|key| {
                let stream = session.streams.get(*key);
                Ok(Target {
                    current: target.current,
                    slot: key.index(),
                    stream: stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?,
                })
            })
            .collect::<Result<_, CUresult>>()?;
        let mut launch = Launch::begin(target, &own, self.end)?;
        for &at in &self.order {
            launch.node(&self.nodes, at, again)?;
        }
        self.end = Some(launch.finish()?);
        Ok(())
    }
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

    fn scheduled(graph: &[&[usize]]) -> (Vec<Node>, Vec<usize>, u32) {
        let list: Vec<Listed> = graph.iter().map(|after| listed(after)).collect();
        let order = in_order(&list).unwrap();
        let mut nodes: Vec<Node> = list
            .into_iter()
            .map(|listed| Node {
                listed,
                steps: Vec::new(),
                enabled: true,
                lane: 0,
                waits: Vec::new(),
            })
            .collect();
        let lanes = assign(&mut nodes, &order);
        (nodes, order, lanes)
    }

    #[test]
    fn a_chain_is_one_lane_and_waits_for_nothing() {
        let (nodes, order, lanes) = scheduled(&[&[1], &[2], &[]]);
        assert_eq!((order, lanes), (vec![2, 1, 0], 1));
        assert!(nodes.iter().all(|node| node.waits.is_empty()));
    }

    #[test]
    fn branches_have_lanes_of_their_own_and_meet_again() {
        let (nodes, _, lanes) = scheduled(&[&[], &[0], &[0], &[1, 2]]);
        assert_eq!(lanes, 2);
        assert_eq!((nodes[1].lane, nodes[2].lane), (0, 1));
        assert_eq!(nodes[2].waits, [0]);
        assert_eq!((nodes[3].lane, nodes[3].waits.clone()), (0, vec![2]));
    }

    #[test]
    fn a_wide_graph_shares_lanes_and_a_cycle_is_refused() {
        let roots = vec![&[][..]; 100];
        let (nodes, order, lanes) = scheduled(&roots);
        assert_eq!(lanes, MOST_LANES);
        assert_eq!(order.len(), nodes.len());
        assert!(in_order(&[listed(&[1]), listed(&[0])]).is_err());
    }
}
