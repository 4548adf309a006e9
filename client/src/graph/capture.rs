//! Captures: streams whose work becomes a graph instead of being done.
//!
//! A capture begins in one stream, and others join it by waiting for its events. Each stream in it has
//! a *frontier*: the nodes that its next node comes behind. Whoever puts something into a stream asks
//! [`current_capture`] first, which costs one load while the stream is not concerned.
//!
//! What is refused, and with which error, is as NVIDIA's driver 580 was seen to do it.
//!
//! Called by `api::capture`, by streams through the traits of `stream::capture`, and when a context ends. Owns the
//! frontiers. Must not know which function of CUDA's put something into a stream.

use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUgraphEdgeData, CUgraphNode, CUstreamCaptureMode};

use super::node::Payload;
use super::table::{From, Graphs};
use crate::handle::Key;
use crate::stream::capture::{self, BESIDE, CAPTURED, Operation, WaitFor};
use crate::stream::{Stream, StreamTarget};

/// The captures of the process that are under way.
#[derive(Debug)]
pub(crate) struct Captures {
    graphs: &'static Graphs,
    last_id: AtomicU64,
    list: Mutex<Vec<Arc<Capture>>>,
}

/// One capture.
#[derive(Debug)]
pub(crate) struct Capture {
    captures: &'static Captures,
    id: u64,
    mode: CUstreamCaptureMode,
    /// The thread that began it.
    thread: u64,
    /// The handle of its context, and the context's slot.
    context: u64,
    slot: u32,
    /// The stream that it began in.
    origin: Key,
    /// The graph that it fills.
    graph: u64,
    /// Whether the graph was there before.
    into_programs_graph: bool,
    state: Mutex<CaptureState>,
}

#[derive(Debug, Default)]
struct CaptureState {
    /// Something was done that it does not bear. It goes on, and gives no graph.
    broken: bool,
    /// It has ended.
    over: bool,
    members: Vec<Member>,
    /// Where destroyed streams ended: this has to be joined as well.
    left: Vec<From>,
}

/// A stream in a capture.
#[derive(Debug)]
struct Member {
    slot: u32,
    blocking: bool,
    frontier: Vec<From>,
    /// What the program was last shown of the frontier; it may look at it until the next call.
    shown: (Vec<u64>, Vec<CUgraphEdgeData>),
}

/// What the program may know of a stream's capture.
#[derive(Debug)]
pub(crate) struct CaptureInfo {
    pub broken: bool,
    pub id: u64,
    pub graph: u64,
    pub nodes: *const CUgraphNode,
    pub edges: *const CUgraphEdgeData,
    pub count: usize,
    /// Whether an edge means something that older interfaces cannot tell.
    pub annotated: bool,
}

mod mark;
mod stream_hooks;

use stream_hooks::{known, of_stream};

pub(crate) use mark::CapturePoint;

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Which calls captures forbid to this thread.
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
    /// This thread's number.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

fn this_thread() -> u64 {
    match THREAD.get() {
        0 => {
            let number = THREADS.fetch_add(1, Ordering::Relaxed);
            THREAD.set(number);
            number
        }
        number => number,
    }
}

/// Sets which calls captures forbid to this thread. Gives what was set.
pub(crate) fn exchange_mode(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    MODE.replace(mode)
}

impl Captures {
    /// None yet; they fill these graphs.
    pub(crate) fn new(graphs: &'static Graphs) -> Self {
        Self {
            graphs,
            last_id: AtomicU64::new(0),
            list: Mutex::default(),
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forbid_unsafe(&self) -> Result<(), CUresult> {
        let (mode, me) = (MODE.get(), this_thread());
        if mode == CUstreamCaptureMode::RELAXED {
            return Ok(());
        }
        let forbids = |capture: &Capture| {
            (capture.thread == me && capture.mode != CUstreamCaptureMode::RELAXED)
                || (mode == CUstreamCaptureMode::GLOBAL
                    && capture.mode == CUstreamCaptureMode::GLOBAL)
        };
        self.break_those(forbids, CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    fn break_those(
        &self,
        which: impl Fn(&Capture) -> bool,
        error: CUresult,
    ) -> Result<(), CUresult> {
        let mut result = Ok(());
        // The list is let go first: who ends a capture takes it after the capture's state.
        let all = self.list().clone();
        for capture in all.iter().filter(|capture| which(capture)) {
            capture.state().broken = true;
            result = Err(error);
        }
        result
    }

    /// Ends all captures of a context that ends.
    pub(crate) fn forget(&self, context: u64) {
        let of_context: Vec<_> = self
            .list()
            .iter()
            .filter(|capture| capture.context == context)
            .cloned()
            .collect();
        for capture in of_context {
            capture.finish(&mut capture.state());
        }
    }
}

impl Captures {
    /// Begins to capture a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a legacy stream, CUDA_ERROR_ILLEGAL_STATE for one
    /// that is captured, CUDA_ERROR_INVALID_VALUE for a mode that there is not.
    pub(crate) fn begin(
        &'static self,
        target: &StreamTarget,
        mode: CUstreamCaptureMode,
        into: Option<(u64, Vec<From>)>,
    ) -> Result<(), CUresult> {
        if mode > CUstreamCaptureMode::RELAXED {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if target.slot == target.current.slot() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let into_programs_graph = into.is_some();
        let (graph, frontier) = into.unwrap_or_default();
        let mut own = target.stream.capture();
        if own.is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture {
            captures: self,
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            thread: this_thread(),
            context: target.stream.context(),
            slot: target.current.slot(),
            origin: target.key().ok_or(CUresult::ERROR_INVALID_HANDLE)?,
            graph: match into_programs_graph {
                true => graph,
                false => self.graphs.create(false)?,
            },
            into_programs_graph,
            state: Mutex::default(),
        });
        capture.join(target.slot, target.stream, &mut capture.state(), frontier);
        *own = Some(Arc::<Capture>::clone(&capture));
        self.list().push(capture);
        self.graphs.streams.count_capture(true);
        target.stream.set_mode_bit(CAPTURED, true);
        Ok(())
    }

    /// Ends the capture of a stream. Gives its graph.
    ///
    /// # Errors
    /// CUDA_ERROR_ILLEGAL_STATE if there is none, and what was wrong with the capture.
    pub(crate) fn end(&self, target: &StreamTarget) -> Result<u64, CUresult> {
        let capture = of_stream(target.stream);
        let capture = capture.ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        let mut state = capture.state();
        if state.over {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        if Some(capture.origin) != target.key() {
            state.broken = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let result =
            if capture.mode != CUstreamCaptureMode::RELAXED && capture.thread != this_thread() {
                Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD)
            } else if state.broken {
                Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)
            } else if !capture.is_joined(&state) {
                Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED)
            } else {
                Ok(capture.graph)
            };
        capture.finish(&mut state);
        drop(state);
        if result.is_err() && !capture.into_programs_graph {
            // Nobody else knows of it.
            let _ = self.graphs.destroy(capture.graph);
        }
        result
    }

    /// Refuses to wait for all of a context while something of it is captured.
    pub(crate) fn refuse_in_captured(&self, context: u64) -> Result<(), CUresult> {
        if !self.graphs.streams.any_capture() {
            return Ok(());
        }
        let error = CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
        self.break_those(|capture| capture.context == context, error)
    }
}

/// The capture that a stream is in.
///
/// # Errors
/// As [`StreamTarget::current_capture`]'s.
pub(crate) fn current_capture(target: &StreamTarget) -> Result<Option<Arc<Capture>>, CUresult> {
    Ok(target.current_capture()?.and_then(known))
}

impl CaptureState {
    fn has_blocking(&self) -> bool {
        self.members.iter().any(|member| member.blocking)
    }

    fn member(&mut self, slot: u32) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.slot == slot)
    }

    /// Refuses what comes after the capture broke.
    fn check(&self) -> Result<(), CUresult> {
        if self.broken || self.over {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Ok(())
    }
}

impl Capture {
    fn state(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream in.
    fn join(&self, slot: u32, stream: &Stream, state: &mut CaptureState, frontier: Vec<From>) {
        let blocking = stream.flags() & CU_STREAM_NON_BLOCKING == 0;
        state.members.push(Member {
            slot,
            blocking,
            frontier,
            shown: Default::default(),
        });
        let streams = self.captures.graphs.streams;
        if blocking && let Some(legacy) = streams.at(self.slot) {
            legacy.set_mode_bit(BESIDE, true);
        }
    }

    /// Whether all that its streams did comes before what the first one ends with.
    fn is_joined(&self, state: &CaptureState) -> bool {
        let Ok(graph) = self.captures.graphs.get(self.graph) else {
            return false;
        };
        let serials = |frontier: &[From]| -> Vec<u64> {
            frontier
                .iter()
                .filter_map(|(node, _)| Some(self.captures.graphs.place(*node).ok()?.1))
                .collect()
        };
        let origin = |member: &&Member| member.slot == self.origin.index();
        let end = state.members.iter().find(origin);
        let end = end.map_or_else(Vec::new, |member| serials(&member.frontier));
        let others = state.members.iter().filter(|member| !origin(member));
        let mut others: Vec<u64> = others
            .flat_map(|member| serials(&member.frontier))
            .collect();
        others.extend(serials(&state.left));
        graph.body().all_before(&others, &end)
    }

    /// Lets all streams go.
    fn finish(self: &Arc<Self>, state: &mut CaptureState) {
        let graphs = self.captures.graphs;
        if std::mem::replace(&mut state.over, true) {
            return;
        }
        for member in std::mem::take(&mut state.members) {
            if let Some(stream) = graphs.streams.at(member.slot) {
                stream.set_mode_bit(CAPTURED, false);
                *stream.capture() = None;
            }
        }
        let captures = self.captures;
        let mut list = captures.list();
        list.retain(|capture| !Arc::ptr_eq(capture, self));
        graphs.streams.count_capture(false);
        // Whether others keep the legacy stream from being used is found out when it is.
        let beside = list.iter().any(|capture| capture.slot == self.slot);
        if !beside && let Some(legacy) = graphs.streams.at(self.slot) {
            legacy.set_mode_bit(BESIDE, false);
        }
    }

    /// Adds a node behind all that a stream did.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture is broken.
    fn add_node(&self, slot: u32, payload: Payload) -> Result<(), CUresult> {
        let mut state = self.state();
        state.check()?;
        let member = state
            .member(slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        // A node of the frontier may have been taken out of the graph by the program.
        let node = match self
            .captures
            .graphs
            .add(self.graph, &member.frontier, payload)
        {
            Ok(node) => node,
            Err(error) => {
                state.broken = true;
                return Err(error);
            }
        };
        member.frontier = vec![(node, CUgraphEdgeData::default())];
        Ok(())
    }

    /// What the program may know of a stream's place in it.
    pub(crate) fn info(&self, target: &StreamTarget) -> Option<CaptureInfo> {
        let mut state = self.state();
        let broken = state.broken;
        let member = state.member(target.slot)?;
        member.shown = member.frontier.iter().copied().unzip();
        let plain = CUgraphEdgeData::default();
        Some(CaptureInfo {
            broken,
            id: self.id,
            graph: self.graph,
            // A handle is as long as a pointer, and aligned as one.
            nodes: member.shown.0.as_ptr().cast(),
            edges: member.shown.1.as_ptr(),
            count: member.shown.0.len(),
            annotated: member.shown.1.iter().any(|data| *data != plain),
        })
    }

    /// Adds to what a stream's next node comes behind, or sets it.
    pub(crate) fn update(
        &self,
        target: &StreamTarget,
        frontier: Vec<From>,
        set: bool,
    ) -> Result<(), CUresult> {
        let mut state = self.state();
        state.check()?;
        for (node, _) in &frontier {
            if self.captures.graphs.place(*node)?.0 != self.graph {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        let member = state
            .member(target.slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        if set {
            member.frontier.clear();
        }
        for from in frontier {
            if !member.frontier.iter().any(|(node, _)| *node == from.0) {
                member.frontier.push(from);
            }
        }
        Ok(())
    }
}
