//! One launch of an executable graph: its nodes go into their graph streams.
//!
//! Owns the guards of all streams that the launch uses, from its first request to its last, so that nothing
//! comes between. `exec` calls it. What the requests mean it does not know.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUevent};
use protocol::operations::{EventRecord, RunLaunch, StreamWait};

use super::conditional::Handle;
use super::run::{Run, launch_of};
use super::step::{ScheduledNode, Step};
use super::table::Graphs;
use crate::recorder;
use crate::stream::event::StreamPlace;
use crate::stream::host_function;
use crate::stream::{StreamGuard, StreamTarget};

/// A launch under way: it holds the guards of all of its streams.
pub(super) struct Launch<'a> {
    graphs: &'static Graphs,
    graph_streams: Vec<StreamGuard<'a>>,
    /// Which graph streams have come behind the launch's start.
    begun: Vec<bool>,
    start: u64,
    /// The place at which each node is done, by its index.
    places: HashMap<usize, (u32, u64)>,
    /// Events that this launch records, by handle.
    recorded: Vec<(u64, StreamPlace)>,
}

impl<'a> Launch<'a> {
    /// Takes the guards of the streams. `end` is where the last launch ends.
    pub(super) fn begin(
        graphs: &'static Graphs,
        target: &'a StreamTarget,
        own: &'a [StreamTarget],
        end: Option<(u32, u64)>,
    ) -> Result<Self, CUresult> {
        let mut first = target.guard();
        if let Some((on, until)) = end
            && on != target.slot
            && !graphs.connection.reached(on, until)
        {
            first.post(&StreamWait { on, until }, &[])?;
        } else if !own.is_empty() && target.stream.flags() & CU_STREAM_NON_BLOCKING == 0 {
            // What the legacy stream and others owe each other holds for the other graph streams too: they
            // wait for a record to which it applies.
            first.post(
                &EventRecord {
                    event: 0,
                    timing: 0,
                },
                &[],
            )?;
        }
        let start = first.stream().posted();
        let mut graph_streams = vec![first];
        graph_streams.extend(own.iter().map(StreamTarget::guard));
        Ok(Self {
            graphs,
            begun: std::iter::once(true)
                .chain(own.iter().map(|_| false))
                .collect(),
            graph_streams,
            start,
            places: HashMap::new(),
            recorded: Vec::new(),
        })
    }

    /// Gives a conditional handle the value that launches begin with.
    pub(super) fn begin_with(&mut self, handle: &Handle) -> Result<(), CUresult> {
        match handle.assignment() {
            Some(fill) => self.graph_streams[0].post(&fill, &[]).map(drop),
            None => Ok(()),
        }
    }

    /// Everything that comes now comes behind what was put into graph stream 0 before.
    pub(super) fn started(&mut self) {
        self.start = self.graph_streams[0].stream().posted();
    }

    fn wait(&mut self, graph_stream: usize, on: u32, until: u64) -> Result<(), CUresult> {
        let guard = &mut self.graph_streams[graph_stream];
        if on == guard.slot() || guard.connection().reached(on, until) {
            return Ok(());
        }
        guard.post(&StreamWait { on, until }, &[]).map(drop)
    }

    /// Puts what a node does into its graph stream. `again` is whether memory that is not freed yet counts as
    /// freed.
    pub(super) fn node(
        &mut self,
        nodes: &[ScheduledNode],
        at: usize,
        again: bool,
    ) -> Result<(), CUresult> {
        let node = &nodes[at];
        let graph_stream = self.ready(node)?;
        if node.enabled {
            for step in &node.steps {
                self.step(graph_stream, step, again)?;
            }
        }
        self.done(graph_stream, &[at]);
        Ok(())
    }

    /// Has the server launch a run.
    pub(super) fn run(&mut self, nodes: &[ScheduledNode], run: &Run) -> Result<(), CUresult> {
        let Some(&first) = run.nodes().first() else {
            return Ok(());
        };
        let graph_stream = self.ready(&nodes[first])?;
        let request = RunLaunch { run: run.number() };
        let guard = &mut self.graph_streams[graph_stream];
        let sequence = guard.post(&request, &[])?;
        if recorder::is_on()
            && let Some((launch, _)) = launch_of(&nodes[first])
        {
            let (slot, context) = (guard.slot(), guard.stream().context());
            recorder::posted_run(slot, sequence, context, &launch, run.nodes().len());
        }
        self.done(graph_stream, run.nodes());
        Ok(())
    }

    /// Has a node's graph stream wait for what the node comes behind. Gives the graph stream.
    fn ready(&mut self, node: &ScheduledNode) -> Result<usize, CUresult> {
        let graph_stream = node.graph_stream as usize;
        if !std::mem::replace(&mut self.begun[graph_stream], true) {
            self.wait(graph_stream, self.graph_streams[0].slot(), self.start)?;
        }
        for before in &node.waits {
            if let Some(&(on, until)) = self.places.get(before) {
                self.wait(graph_stream, on, until)?;
            }
        }
        Ok(graph_stream)
    }

    /// Notes where nodes are done: here in their graph stream.
    fn done(&mut self, graph_stream: usize, nodes: &[usize]) {
        // Nobody else waits for them where there is no other graph stream.
        if self.graph_streams.len() > 1 {
            let guard = &self.graph_streams[graph_stream];
            let place = (guard.slot(), guard.stream().posted());
            self.places.extend(nodes.iter().map(|&at| (at, place)));
        }
    }

    fn step(&mut self, graph_stream: usize, step: &Step, again: bool) -> Result<(), CUresult> {
        let guard = &mut self.graph_streams[graph_stream];
        let graphs = self.graphs;
        match step {
            Step::Post(written) => guard.post_encoded(written).map(drop),
            Step::Call(call) => host_function::append(guard, call.clone()).map(drop),
            Step::Branch(branch) => {
                let branch: Arc<dyn host_function::InternalWork> = branch.clone();
                host_function::append(guard, host_function::HostCall::Internal(branch)).map(drop)
            }
            Step::Record(event) => {
                let request = graphs
                    .events
                    .get(CUevent::from_bits(*event))?
                    .record_request();
                let place = StreamPlace {
                    sequence: guard.post(&request, &[])?,
                    slot: guard.slot(),
                    context: guard.context(),
                };
                self.recorded.push((*event, place));
                Ok(())
            }
            Step::Wait(event) => {
                let own = self.recorded.iter().rev().find(|(it, _)| it == event);
                let place = match own {
                    Some((_, place)) => Some(*place),
                    None => graphs.events.get(CUevent::from_bits(*event))?.place(),
                };
                match place {
                    Some(place) => self.wait(graph_stream, place.slot, place.sequence),
                    None => Ok(()),
                }
            }
            Step::Allocate(allocation) => graphs.memories.make_live(allocation.address(), again),
            Step::Free(address) => graphs
                .memories
                .free(*address)
                .unwrap_or(Err(CUresult::ERROR_INVALID_VALUE)),
        }
    }

    /// Has graph stream 0 wait for the others. Gives where the launch ends.
    pub(super) fn finish(mut self) -> Result<(u32, u64), CUresult> {
        for graph_stream in 1..self.graph_streams.len() {
            if self.begun[graph_stream] {
                let (on, until) = (
                    self.graph_streams[graph_stream].slot(),
                    self.graph_streams[graph_stream].stream().posted(),
                );
                self.wait(0, on, until)?;
            }
        }
        let first = &self.graph_streams[0];
        let (graphs, end) = (self.graphs, (first.slot(), first.stream().posted()));
        drop(self.graph_streams);
        for (event, place) in self.recorded {
            if let Ok(event) = graphs.events.get(CUevent::from_bits(event)) {
                graphs.events.recorded_at(event, place);
            }
        }
        Ok(end)
    }
}
