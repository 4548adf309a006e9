//! One launch of an executable graph: its nodes go into their lanes.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::operations::{EventRecord, RunLaunch, StreamWait};
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUevent};

use super::conditional::Handle;
use super::lower::Step;
use super::run::Run;
use super::schedule::Node;
use crate::event::Place;
use crate::host;
use crate::stream::{Appender, Target};

/// A launch under way: all of its streams are in hand.
pub(super) struct Launch<'a> {
    lanes: Vec<Appender<'a>>,
    /// Which lanes have come behind the launch's start.
    begun: Vec<bool>,
    start: u64,
    /// The place at which each node is done, by its index.
    places: HashMap<usize, (u32, u64)>,
    /// Events that this launch records, by handle.
    recorded: Vec<(u64, Place)>,
}

impl<'a> Launch<'a> {
    /// Takes the streams in hand. `end` is where the last launch ends.
    pub(super) fn begin(
        target: &'a Target,
        own: &'a [Target],
        end: Option<(u32, u64)>,
    ) -> Result<Self, CUresult> {
        let session = target.current.session;
        let mut first = target.appender();
        if let Some((on, until)) = end
            && on != target.slot
            && !session.reached(on, until)
        {
            first.post(&StreamWait { on, until }, &[])?;
        } else if !own.is_empty() && target.stream.flags() & CU_STREAM_NON_BLOCKING == 0 {
            // What the legacy stream and others owe each other holds for the other lanes too: they
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
        let mut lanes = vec![first];
        lanes.extend(own.iter().map(Target::appender));
        Ok(Self {
            begun: std::iter::once(true)
                .chain(own.iter().map(|_| false))
                .collect(),
            lanes,
            start,
            places: HashMap::new(),
            recorded: Vec::new(),
        })
    }

    /// Gives a conditional handle the value that launches begin with.
    pub(super) fn begin_with(&mut self, handle: &Handle) -> Result<(), CUresult> {
        match handle.assignment() {
            Some(fill) => self.lanes[0].post(&fill, &[]).map(drop),
            None => Ok(()),
        }
    }

    /// Everything that comes now comes behind what was put into lane 0 before.
    pub(super) fn started(&mut self) {
        self.start = self.lanes[0].stream().posted();
    }

    fn wait(&mut self, lane: usize, on: u32, until: u64) -> Result<(), CUresult> {
        let appender = &mut self.lanes[lane];
        if on == appender.slot() || appender.session().reached(on, until) {
            return Ok(());
        }
        appender.post(&StreamWait { on, until }, &[]).map(drop)
    }

    /// Puts what a node does into its lane. `again` is whether memory that is not freed yet counts as
    /// freed.
    pub(super) fn node(&mut self, nodes: &[Node], at: usize, again: bool) -> Result<(), CUresult> {
        let node = &nodes[at];
        let lane = self.ready(node)?;
        if node.enabled {
            for step in &node.steps {
                self.step(lane, step, again)?;
            }
        }
        self.done(lane, &[at]);
        Ok(())
    }

    /// Has the server launch a run.
    pub(super) fn run(&mut self, nodes: &[Node], run: &Run) -> Result<(), CUresult> {
        let Some(&first) = run.nodes().first() else {
            return Ok(());
        };
        let lane = self.ready(&nodes[first])?;
        let request = RunLaunch { run: run.number() };
        self.lanes[lane].post(&request, &[])?;
        self.done(lane, run.nodes());
        Ok(())
    }

    /// Has a node's lane wait for what the node comes behind. Gives the lane.
    fn ready(&mut self, node: &Node) -> Result<usize, CUresult> {
        let lane = node.lane as usize;
        if !std::mem::replace(&mut self.begun[lane], true) {
            self.wait(lane, self.lanes[0].slot(), self.start)?;
        }
        for before in &node.waits {
            if let Some(&(on, until)) = self.places.get(before) {
                self.wait(lane, on, until)?;
            }
        }
        Ok(lane)
    }

    /// Notes where nodes are done: here in their lane.
    fn done(&mut self, lane: usize, nodes: &[usize]) {
        // Nobody else waits for them where there is no other lane.
        if self.lanes.len() > 1 {
            let appender = &self.lanes[lane];
            let place = (appender.slot(), appender.stream().posted());
            self.places.extend(nodes.iter().map(|&at| (at, place)));
        }
    }

    fn step(&mut self, lane: usize, step: &Step, again: bool) -> Result<(), CUresult> {
        let appender = &mut self.lanes[lane];
        let session = appender.session();
        match step {
            Step::Post(written) => appender.post_written(written).map(drop),
            Step::Call(call) => host::append(appender, call.clone()).map(drop),
            Step::Branch(branch) => {
                let branch = Arc::clone(branch);
                host::append(appender, host::Call::Ours(branch)).map(drop)
            }
            Step::Record(event) => {
                let request = session
                    .events
                    .get(CUevent::from_bits(*event))?
                    .record_request();
                let place = Place {
                    sequence: appender.post(&request, &[])?,
                    slot: appender.slot(),
                    context: appender.context(),
                };
                self.recorded.push((*event, place));
                Ok(())
            }
            Step::Wait(event) => {
                let own = self.recorded.iter().rev().find(|(it, _)| it == event);
                let place = match own {
                    Some((_, place)) => Some(*place),
                    None => session.events.get(CUevent::from_bits(*event))?.place(),
                };
                match place {
                    Some(place) => self.wait(lane, place.slot, place.sequence),
                    None => Ok(()),
                }
            }
            Step::Allocate(allocation) => session
                .graphs
                .memories
                .make_live(allocation.address(), again),
            Step::Free(address) => session
                .graphs
                .memories
                .free(session, *address)
                .unwrap_or(Err(CUresult::ERROR_INVALID_VALUE)),
        }
    }

    /// Has lane 0 wait for the others. Gives where the launch ends.
    pub(super) fn finish(mut self) -> Result<(u32, u64), CUresult> {
        for lane in 1..self.lanes.len() {
            if self.begun[lane] {
                let (on, until) = (self.lanes[lane].slot(), self.lanes[lane].stream().posted());
                self.wait(0, on, until)?;
            }
        }
        let first = &self.lanes[0];
        let (session, end) = (first.session(), (first.slot(), first.stream().posted()));
        drop(self.lanes);
        for (event, place) in self.recorded {
            if let Ok(event) = session.events.get(CUevent::from_bits(event)) {
                session.events.recorded_at(event, place);
            }
        }
        Ok(end)
    }
}
