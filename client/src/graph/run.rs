//! Runs: kernels of a graph that follow each other in one graph stream. The server keeps their launches, and launches
//! all of a run as one operation.
//!
//! Owns which nodes of a schedule go together, and what the server has of them. Called by the schedule, with the
//! executable graph's lock held. Must not know what a launch does beside.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;
use protocol::operations::{Launch, RUN_BYTES, RUN_LENGTH, RUNS, RunAdd, RunDestroy, RunPublish};

use super::step::{ScheduledNode, Step};
use crate::session::connection::Connection;

/// The runs of all of the process' graphs.
#[derive(Debug)]
pub(crate) struct RunRegister {
    connection: &'static Connection,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    /// Numbers from here on were never taken.
    next: u32,
    /// Numbers below that are free.
    free: Vec<u32>,
    /// Bytes that all runs take, as [`RunAdd::bytes`] says.
    bytes: usize,
    /// Runs that are not launched any more, each with the place where its last launch ends.
    leaving: Vec<(RunNumber, (u32, u64))>,
}

/// A run that the server has.
#[derive(Debug)]
struct RunNumber {
    number: u32,
    bytes: usize,
}

impl RunRegister {
    /// No runs yet.
    pub(super) fn new(connection: &'static Connection) -> Self {
        Self {
            connection,
            registered: Mutex::default(),
        }
    }

    /// Takes a number and so many bytes; `None` if there is no room for them.
    fn allocate(&self, bytes: usize) -> Option<RunNumber> {
        self.sweep();
        let mut state = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if state.bytes + bytes > RUN_BYTES {
            return None;
        }
        let number = match state.free.pop() {
            Some(number) => number,
            None if state.next < RUNS => {
                state.next += 1;
                state.next - 1
            }
            None => return None,
        };
        state.bytes += bytes;
        Some(RunNumber { number, bytes })
    }

    /// Has the server forget runs, once it is past the end of their last launch.
    fn retire(&self, runs: impl Iterator<Item = RunNumber>, end: (u32, u64)) {
        let mut state = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.leaving.extend(runs.map(|run| (run, end)));
        drop(state);
        self.sweep();
    }

    /// Has the server forget those of which no launch is under way.
    fn sweep(&self) {
        let mut state = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // By the server's own word: what a device alone has told of still counts there.
        let is_over = |(_, (slot, sequence)): &mut (RunNumber, (u32, u64))| {
            self.connection.link().completed(*slot) >= *sequence
        };
        let over: Vec<_> = state.leaving.extract_if(.., is_over).collect();
        for (RunNumber { number, bytes }, _) in over {
            // A session that is over has no runs.
            let _ = self.connection.post(&RunDestroy { run: number });
            state.bytes -= bytes;
            state.free.push(number);
        }
    }
}

/// Nodes that are launched together.
#[derive(Debug)]
pub(super) struct Run {
    kept: RunNumber,
    /// Where they stand in the schedule, in their order.
    nodes: Vec<usize>,
}

impl Run {
    /// By which the server knows it.
    pub(super) fn number(&self) -> u32 {
        self.kept.number
    }

    /// Where its nodes stand in the schedule, in their order.
    pub(super) fn nodes(&self) -> &[usize] {
        &self.nodes
    }
}

/// What is launched at once.
#[derive(Debug)]
pub(super) enum Unit {
    /// The node at this place of the schedule.
    Node(usize),
    Run(Run),
}

/// What a schedule launches, in its order.
#[derive(Debug, Default)]
pub(super) struct Units {
    list: Vec<Unit>,
    age: Age,
    /// The number by which kernels launch them, if they may: then all are one run.
    published: Option<u64>,
}

/// How often nodes were launched as they are: runs are made for the second launch, since whoever launches once, or
/// changes nodes before each launch, is not to pay for them.
#[derive(Clone, Copy, Debug, Default)]
enum Age {
    #[default]
    New,
    Launched,
    InRuns,
}

impl Units {
    /// All that is to be launched now.
    ///
    /// # Errors
    /// The session's end.
    pub(super) fn next_launches(
        &mut self,
        register: &'static RunRegister,
        nodes: &[ScheduledNode],
        order: &[usize],
    ) -> Result<&[Unit], CUresult> {
        match self.age {
            Age::New if let Some(number) = self.published => {
                self.publish(register, nodes, order, number)?;
            }
            Age::New => {
                self.list = order.iter().map(|&at| Unit::Node(at)).collect();
                self.age = Age::Launched;
            }
            Age::Launched => {
                let mut runs = HashMap::new();
                let mut inside: HashSet<usize> = HashSet::new();
                for of_run in together(nodes, order) {
                    if let Some(run) = make(register, nodes, of_run)? {
                        inside.extend(run.nodes.iter().skip(1));
                        runs.insert(run.nodes[0], run);
                    }
                }
                self.list
                    .retain(|unit| !matches!(unit, Unit::Node(at) if inside.contains(at)));
                for unit in &mut self.list {
                    if let Unit::Node(at) = unit
                        && let Some(run) = runs.remove(at)
                    {
                        *unit = Unit::Run(run);
                    }
                }
                self.age = Age::InRuns;
            }
            Age::InRuns => {}
        }
        Ok(&self.list)
    }

    /// From now on kernels may launch them by this number.
    pub(super) fn publish_as(&mut self, number: u64) {
        self.published = Some(number);
    }

    /// Whether kernels may launch them.
    pub(super) fn are_published(&self) -> bool {
        self.published.is_some()
    }

    /// Makes one run of them, and has the server let kernels launch it.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if something is no launch, if they are too many, or if the device's kernels launch no graphs;
    /// CUDA_ERROR_INVALID_VALUE if there are none; CUDA_ERROR_OUT_OF_MEMORY without room for the run.
    fn publish(
        &mut self,
        register: &'static RunRegister,
        nodes: &[ScheduledNode],
        order: &[usize],
        number: u64,
    ) -> Result<(), CUresult> {
        let mut launches = Vec::new();
        for &at in order {
            let node = &nodes[at];
            if launch_of(node).is_some() {
                launches.push(at);
            } else if node.enabled && !node.steps.is_empty() {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
        }
        if launches.is_empty() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if launches.len() > RUN_LENGTH {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let run = make(register, nodes, launches)?.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let request = RunPublish {
            run: run.number(),
            graph: number,
        };
        self.list = vec![Unit::Run(run)];
        self.age = Age::InRuns;
        let published = register.connection.call(&request);
        if published.is_err() {
            self.forget(register, None);
        }
        published.map(drop)
    }

    /// Forgets them: nodes have changed, or the schedule ends. `end` is where the last launch ends.
    pub(super) fn forget(&mut self, register: &RunRegister, end: Option<(u32, u64)>) {
        let published = self.published;
        let Self { list, .. } = std::mem::take(self);
        self.published = published;
        let runs = list.into_iter().filter_map(|unit| match unit {
            Unit::Run(run) => Some(run.kept),
            Unit::Node(_) => None,
        });
        let end = end.unwrap_or((0, 0));
        register.retire(runs, end);
    }
}

/// What a node launches, and with what data, if a launch is all that it puts into its graph stream.
pub(super) fn launch_of(node: &ScheduledNode) -> Option<(Launch, &[u8])> {
    match &node.steps[..] {
        [Step::Post(written)] if node.enabled => Some((written.request()?, written.data())),
        _ => None,
    }
}

/// The nodes that can be launched together: two or more that follow each other in a graph stream. Only the first may wait
/// for nodes of other graph streams, and only for the last may others wait.
fn together(nodes: &[ScheduledNode], order: &[usize]) -> Vec<Vec<usize>> {
    let awaited: HashSet<usize> = nodes.iter().flat_map(|node| &node.waits).copied().collect();
    let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut closed = Vec::new();
    for &at in order {
        let node = &nodes[at];
        let run = open.entry(node.graph_stream).or_default();
        let is_launch = launch_of(node).is_some();
        if !is_launch || !node.waits.is_empty() || run.len() == RUN_LENGTH {
            closed.push(std::mem::take(run));
        }
        if is_launch {
            run.push(at);
        }
        if awaited.contains(&at) {
            closed.push(std::mem::take(run));
        }
    }
    closed.extend(open.into_values());
    closed.retain(|run| run.len() > 1);
    closed
}

/// Gives the server a run; `None` if there is no room for it.
fn make(
    register: &'static RunRegister,
    nodes: &[ScheduledNode],
    of_run: Vec<usize>,
) -> Result<Option<Run>, CUresult> {
    let launches = || of_run.iter().filter_map(|&at| launch_of(&nodes[at]));
    let bytes = launches().map(|(_, data)| RunAdd::bytes(data.len()));
    let Some(kept) = register.allocate(bytes.sum()) else {
        return Ok(None);
    };
    for (launch, data) in launches() {
        register
            .connection
            .post_with(&RunAdd::new(kept.number, &launch), data)?;
    }
    Ok(Some(Run {
        kept,
        nodes: of_run,
    }))
}
