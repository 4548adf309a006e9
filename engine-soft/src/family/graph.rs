//! Graphs that kernels of graphs launch: a graph is its kernels, one after another, and a run of it is over when they and all graphs
//! that they launched are.
//!
//! What a kernel launches begins by itself under its own run ("fire and forget") or under what that is under ("sibling"), or takes
//! the place of its run once all of that is over ("tail"). Begun by streams and by kernels' calls. Must not know the client's
//! handles but by number.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::CUresult;
use protocol::operations::HoldReason;

use super::errors::{Called, INVALID_VALUE};
use super::{Launched, Origin, Root};
use crate::device_graph::{CurrentGraph, DeviceGraph};
use crate::grid::Place;
use crate::work::{Job, JobSource, Part, Piece, Spent, Task};

/// cudaStreamGraphTailLaunch
const TAIL: u64 = 0x0100_0000_0000_0000;
/// cudaStreamGraphFireAndForget
const ALONE: u64 = 0x0200_0000_0000_0000;
/// cudaStreamGraphFireAndForgetAsSibling
const SIBLING: u64 = 0x0300_0000_0000_0000;

/// One launch of a graph.
#[derive(Debug)]
pub(crate) struct GraphRun {
    me: Weak<Self>,
    graph: Arc<DeviceGraph>,
    /// Where its kernels run, but for their modules.
    place: Place,
    root: Root,
    above: Above,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Kernels that have begun.
    begun: usize,
    kernels_ended: bool,
    /// The graph may be launched again.
    released: bool,
    /// What is under this run and is not over.
    under: u64,
    tails: VecDeque<Arc<DeviceGraph>>,
    error: Option<CUresult>,
}

/// What a run is under: that is over no sooner.
#[derive(Clone, Debug)]
enum Above {
    Launch(Arc<StreamLaunch>),
    Run(Arc<GraphRun>),
}

/// A launch of a graph in a stream of the client's.
#[derive(Debug)]
struct StreamLaunch {
    root: Root,
    /// Runs that are not over, and the first error.
    state: Mutex<(u64, Option<CUresult>)>,
}

impl GraphRun {
    /// Launches a graph in a stream, whose source is told once all is over.
    ///
    /// # Errors
    /// What is wrong with its first kernel; nothing was begun then.
    pub(crate) fn launch_in_stream(
        graph: &Arc<DeviceGraph>,
        place: Place,
        priority: i32,
        source: Arc<dyn JobSource>,
        part: Part,
    ) -> Result<(), CUresult> {
        let root = Root {
            source,
            part,
            priority,
        };
        let above = Above::Launch(Arc::new(StreamLaunch {
            root: root.clone(),
            state: Mutex::new((1, None)),
        }));
        graph.take_for_stream();
        Self::new(graph, place, root, above).begin()
    }

    fn new(graph: &Arc<DeviceGraph>, place: Place, root: Root, above: Above) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            graph: Arc::clone(graph),
            place: Place {
                graph: None,
                ..place
            },
            root,
            above,
            state: Mutex::default(),
        })
    }

    /// Begins its first kernel, or gives its graph back.
    fn begin(&self) -> Result<(), CUresult> {
        let begun = self.begin_next().and_then(|begun| match begun {
            true => Ok(()),
            // No run is without launches.
            false => Err(CUresult::ERROR_INVALID_VALUE),
        });
        if begun.is_err() {
            self.graph.release();
        }
        begun
    }

    /// Begins the next of its kernels; false if there is none left.
    fn begin_next(&self) -> Result<bool, CUresult> {
        let mut state = self.state.lock();
        let at = state.begun;
        state.begun += 1;
        drop(state);
        let Some((module, launch, data)) = self.graph.kernel(at) else {
            return Ok(false);
        };
        let Some(me) = self.me.upgrade() else {
            return Ok(false);
        };
        let place = Place {
            module: Arc::clone(module),
            graph: Some(Arc::clone(&me) as _),
            ..self.place.clone()
        };
        place.context.check()?;
        let (client, context) = (Arc::clone(&place.client), Arc::clone(&place.context));
        let Launched { grid, family } = Launched::new(place, self.root.priority, launch, data)?;
        let part = self.root.part;
        let source: Arc<dyn JobSource> = match family {
            Some(family) => {
                family.begin(Origin::Host(me, part), grid.priority());
                family
            }
            None => me,
        };
        let units = grid.units();
        let (priority, left) = (grid.priority(), Piece::whole(units));
        let job = Job::new(source, part, context, priority, Box::new(grid), left);
        let threads = usize::try_from(units).unwrap_or(usize::MAX);
        client
            .scheduler
            .submit(&client.account, Arc::new(job), threads);
        Ok(true)
    }

    fn launch_under(&self, graph: &Arc<DeviceGraph>, above: Above) -> Called<()> {
        if !graph.take() {
            return Err(INVALID_VALUE);
        }
        above.begun();
        let run = Self::new(graph, self.place.clone(), self.root.clone(), above);
        run.begin().map_err(|code| {
            run.above.over(Ok(()));
            code.0
        })
    }

    /// Its kernels are over.
    fn kernels_ended(&self, result: Result<(), CUresult>) {
        let mut state = self.state.lock();
        state.kernels_ended = true;
        self.settle(state, result);
    }

    /// Something under it is over.
    fn under_ended(&self, result: Result<(), CUresult>) {
        let mut state = self.state.lock();
        state.under -= 1;
        self.settle(state, result);
    }

    /// Goes on with the next tail if all but tails is over, and tells what it is under if that is all.
    fn settle(&self, mut state: parking_lot::MutexGuard<'_, State>, result: Result<(), CUresult>) {
        if let Err(code) = result {
            state.error.get_or_insert(code);
        }
        if !state.kernels_ended || state.under > 0 {
            return;
        }
        if !std::mem::replace(&mut state.released, true) {
            self.graph.release();
        }
        if let Some(code) = state.error {
            for tail in state.tails.drain(..) {
                tail.drop_as_tail();
            }
            drop(state);
            return self.above.over(Err(code));
        }
        let Some(tail) = state.tails.pop_front() else {
            drop(state);
            return self.above.over(Ok(()));
        };
        // The last one takes this run's place, so that a chain of tails is no longer than one of them.
        let above = match self.me.upgrade() {
            Some(me) if !state.tails.is_empty() => {
                state.under += 1;
                Above::Run(me)
            }
            _ => self.above.clone(),
        };
        drop(state);
        tail.begin_as_tail();
        let run = Self::new(&tail, self.place.clone(), self.root.clone(), above);
        if let Err(code) = run.begin() {
            run.above.over(Err(code));
        }
    }
}

impl CurrentGraph for GraphRun {
    fn number(&self) -> u64 {
        self.graph.number()
    }

    fn launch(&self, number: u64, stream: u64) -> Called<()> {
        let graph = self.place.client.graphs.lock().get(&number).cloned();
        let graph = graph.ok_or(INVALID_VALUE)?;
        match stream {
            TAIL => {
                if !graph.take_as_tail(Arc::ptr_eq(&graph, &self.graph)) {
                    return Err(INVALID_VALUE);
                }
                self.state.lock().tails.push_back(graph);
                Ok(())
            }
            ALONE => {
                let me = self.me.upgrade().ok_or(INVALID_VALUE)?;
                self.launch_under(&graph, Above::Run(me))
            }
            SIBLING => self.launch_under(&graph, self.above.clone()),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Above {
    /// Something more is under it, which keeps it from being over.
    fn begun(&self) {
        match self {
            Self::Launch(launch) => launch.state.lock().0 += 1,
            Self::Run(run) => run.state.lock().under += 1,
        }
    }

    /// Something under it is over. No lock is held.
    fn over(&self, result: Result<(), CUresult>) {
        match self {
            Self::Launch(launch) => launch.run_ended(result),
            Self::Run(run) => run.under_ended(result),
        }
    }
}

impl StreamLaunch {
    fn run_ended(&self, result: Result<(), CUresult>) {
        let mut state = self.state.lock();
        let (under, error) = &mut *state;
        if let Err(code) = result {
            error.get_or_insert(code);
        }
        *under -= 1;
        if *under > 0 {
            return;
        }
        let result = error.map_or(Ok(()), Err);
        drop(state);
        let Root { source, part, .. } = &self.root;
        Arc::clone(source).job_ended(*part, result);
    }
}

impl JobSource for GraphRun {
    fn spent(&self, part: Part, spent: Spent<'_>) {
        self.root.source.spent(part, spent);
    }

    fn waited(&self, part: Part, device: u32, waited: Duration, why: HoldReason) {
        self.root.source.waited(part, device, waited, why);
    }

    fn job_ended(self: Arc<Self>, _: Part, result: Result<(), CUresult>) {
        match result.and_then(|()| self.begin_next()) {
            Ok(true) => {}
            Ok(false) => self.kernels_ended(Ok(())),
            Err(code) => self.kernels_ended(Err(code)),
        }
    }
}
