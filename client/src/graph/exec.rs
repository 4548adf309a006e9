//! Executable graphs: a [`Schedule`] of what a graph's nodes put into streams, what it keeps alive, and
//! how its nodes change.
//!
//! Owns the lock that launches and changes of one executable graph take. `api::graph::exec` calls it; how a
//! launch posts is `launch`'s business.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphNode};

use super::listed::{AFTER_CHILD, Listed};
use super::lower::lower;
use super::node::Payload;
use super::schedule::Schedule;
use super::step::ScheduledNode;
use super::table::Graphs;
use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::stream::StreamTarget;
use crate::stream::host_function;

/// Free what the last launch allocated and nobody freed, before the next launch.
pub(crate) const AUTO_FREE: u64 = 1;
/// All flags of cuGraphInstantiateWithFlags but the one that lets devices launch.
const FLAGS: u64 = 1 | 2 | 8;
/// The flag that lets devices launch it.
const DEVICE_LAUNCH: u64 = 4;

/// An executable graph.
#[derive(Debug, Default)]
pub(crate) struct Exec {
    state: Mutex<Option<ExecState>>,
}

#[derive(Debug)]
struct ExecState {
    schedule: Schedule,
    /// The handle of the graph of which it was made.
    graph: u64,
    flags: u64,
    /// Where nodes stand in the schedule, by handle.
    places: HashMap<u64, usize>,
    /// User objects that it holds, and how often.
    objects: HashMap<u64, u32>,
}

/// All executable graphs of the process.
#[derive(Debug)]
pub(crate) struct Execs {
    graphs: &'static Graphs,
    table: Slots<Exec>,
}

impl Execs {
    /// None yet; they are made of these graphs.
    pub(crate) fn new(graphs: &'static Graphs) -> Self {
        Self {
            graphs,
            table: Slots::new(0, u32::MAX),
        }
    }

    /// The executable graph of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that names none.
    pub(crate) fn get(&self, exec: u64) -> Result<&Exec, CUresult> {
        Key::of(exec, HandleKind::GraphExec)
            .and_then(|key| self.table.get(key))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Ends an executable graph.
    pub(crate) fn end(&self, exec: u64) -> Result<(), CUresult> {
        let key = Key::of(exec, HandleKind::GraphExec).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let ended = self.table.remove(key);
        ended.ok_or(CUresult::ERROR_INVALID_VALUE)?.finish();
        self.table.release(key.index());
        Ok(())
    }

    /// Makes a graph executable.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for flags that there are not and for a graph with a cycle,
    /// CUDA_ERROR_NOT_SUPPORTED for a second instance of a graph that allocates or has conditional nodes, what the nodes'
    /// parameters give, and of one that kernels shall launch what [`Schedule::upload`] gives.
    pub(crate) fn instantiate(&self, graph: u64, flags: u64) -> Result<u64, CUresult> {
        if flags & !(FLAGS | DEVICE_LAUNCH) != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let schedule = Schedule::new(self.graphs, graph, 0)?;
        self.graphs.mark_instantiated(graph)?;
        let objects = self.graphs.retain_objects_of(graph);
        let places = schedule
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.listed.kind != AFTER_CHILD)
            .map(|(at, node)| (node.listed.handle, at))
            .collect();
        let mut state = Some(ExecState {
            schedule,
            graph,
            flags,
            places,
            objects,
        });
        let key = self
            .table
            .insert(|_, _| true, |_, exec| *exec.state() = state.take());
        if let (None, Some(state)) = (key, state) {
            self.graphs.release_objects(state.objects);
            self.graphs.mark_instance_destroyed(graph);
        }
        let key = key.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let handle = key.handle(HandleKind::GraphExec);
        if flags & DEVICE_LAUNCH != 0
            && let Err(code) = self.get(handle)?.publish(handle)
        {
            self.end(handle)?;
            return Err(code);
        }
        Ok(handle)
    }
}

/// Work that is done when the last launch has: the user objects go.
#[derive(Debug)]
struct Ended {
    graphs: &'static Graphs,
    objects: Mutex<HashMap<u64, u32>>,
}

impl host_function::InternalWork for Ended {
    fn run(&self) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        self.graphs.release_objects(std::mem::take(&mut *objects));
    }
}

/// Releases user objects once the last launch has ended that may use them.
fn release_after(graphs: &'static Graphs, end: Option<(u32, u64)>, objects: HashMap<u64, u32>) {
    if objects.is_empty() {
        return;
    }
    let ended = Arc::new(Ended {
        graphs,
        objects: Mutex::new(objects),
    });
    let (slot, sequence) = end.unwrap_or((0, 0));
    host_function::run_after(graphs.streams, slot, sequence, ended);
}

impl Exec {
    fn state(&self) -> MutexGuard<'_, Option<ExecState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        use_it: impl FnOnce(&mut ExecState) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let mut state = self.state();
        use_it(state.as_mut().ok_or(CUresult::ERROR_INVALID_VALUE)?)
    }

    /// Ends it. What was launched goes on.
    fn finish(&self) {
        let Some(state) = self.state().take() else {
            return;
        };
        let (graphs, end) = (state.schedule.graphs, state.schedule.end);
        graphs.mark_instance_destroyed(state.graph);
        release_after(graphs, end, state.objects);
    }

    /// Lets kernels launch it by its handle.
    fn publish(&self, handle: u64) -> Result<(), CUresult> {
        self.with(|state| state.schedule.publish(handle))
    }

    /// Makes it ready to be launched by kernels, if they may.
    ///
    /// # Errors
    /// As [`Schedule::upload`].
    pub(crate) fn upload(&self) -> Result<(), CUresult> {
        self.with(|state| state.schedule.upload())
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
            let was =
                std::mem::replace(&mut state.node_that_can_be_disabled(node)?.enabled, enabled);
            if was != enabled {
                state.schedule.invalidate_runs();
            }
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
            let set = state.schedule.set(node, &payload);
            set.unwrap_or(Err(CUresult::ERROR_INVALID_VALUE))
        })
    }

    /// What a node does now.
    pub(crate) fn payload(&self, node: u64) -> Result<Payload, CUresult> {
        self.with(|state| {
            let payload = state.schedule.payload(node);
            payload.ok_or(CUresult::ERROR_INVALID_VALUE)
        })
    }

    /// Gives the nodes of a child graph the parameters of another graph's.
    pub(crate) fn set_child(&self, node: u64, graph: u64) -> Result<(), CUresult> {
        self.with(|state| {
            let at = *state
                .places
                .get(&node)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let Schedule { graphs, nodes, .. } = &mut state.schedule;
            let graphs = *graphs;
            let end = nodes[at..]
                .iter()
                .position(|it| it.listed.kind == AFTER_CHILD && it.listed.handle == node)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let list = graphs.list(graph)?;
            let inside = &nodes[at + 1..at + end];
            // Its first nodes come behind the one before them, which the other graph does not have.
            let same = |own: &ScheduledNode, other: &Listed| {
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
                if own.compare(graphs, other).is_err() {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                lowered.push(lower(graphs, &other.payload, 0)?);
            }
            for ((own, other), steps) in nodes[at + 1..].iter_mut().zip(list).zip(lowered) {
                own.listed.payload = other.payload;
                own.steps = steps;
            }
            state.schedule.invalidate_runs();
            Ok(())
        })
    }

    /// Takes the parameters of all nodes of another graph of the same form, and its user objects.
    ///
    /// # Errors
    /// CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, with the reason in `info`.
    pub(crate) fn update(
        &self,
        graph: u64,
        info: &mut CUgraphExecUpdateResultInfo,
    ) -> Result<(), CUresult> {
        self.with(|state| {
            let own = &mut state.schedule;
            let graphs = own.graphs;
            let list = graphs.list(graph)?;
            let mut refuse = |(result, node)| {
                info.result = result;
                info.errorNode = CUgraphNode::from_bits(node);
                CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE
            };
            own.compare(&list).map_err(&mut refuse)?;
            let mut lowered = Vec::with_capacity(list.len());
            for other in &list {
                let steps = lower(graphs, &other.payload, 0);
                let changed = (CUgraphExecUpdateResult::PARAMETERS_CHANGED, other.handle);
                lowered.push(steps.map_err(|_| refuse(changed))?);
            }
            own.handles = graphs.handles_of(graph)?;
            own.invalidate_runs();
            for ((own, other), steps) in own.nodes.iter_mut().zip(list).zip(lowered) {
                own.listed.payload = other.payload;
                own.steps = steps;
            }
            let objects = graphs.retain_objects_of(graph);
            let former = std::mem::replace(&mut state.objects, objects);
            release_after(graphs, state.schedule.end, former);
            Ok(())
        })
    }

    /// Launches it in a stream that is not captured.
    pub(crate) fn launch(&self, target: &StreamTarget) -> Result<(), CUresult> {
        self.with(|state| {
            let again = state.flags & AUTO_FREE != 0;
            state.schedule.launch(target, again).map(drop)
        })
    }
}

impl ExecState {
    fn node(&mut self, node: u64) -> Result<&mut ScheduledNode, CUresult> {
        let place = self.places.get(&node);
        let place = *place.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(&mut self.schedule.nodes[place])
    }

    fn node_that_can_be_disabled(&mut self, node: u64) -> Result<&mut ScheduledNode, CUresult> {
        let node = self.node(node)?;
        match node.listed.payload.can_be_disabled() {
            true => Ok(node),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}
