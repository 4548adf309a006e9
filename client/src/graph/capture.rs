//! Captures: streams whose work becomes a graph instead of being done.
//!
//! A capture begins in one stream, and others join it by waiting for its events. Each stream in it has
//! a *front*: the nodes that its next node comes behind. Whoever puts something into a stream asks
//! [`standing`] first, which costs one load while the stream is not concerned.
//!
//! What is refused, and with which error, is as NVIDIA's driver 580 was seen to do it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::operations::Opcode;
use cuda_abi::types::{
    CU_STREAM_NON_BLOCKING, CUevent, CUgraphEdgeData, CUgraphNode, CUgraphNodeType,
    CUstreamCaptureMode,
};

use super::From;
use super::node::Payload;
use crate::event::{Event, Recorded};
use crate::handle::Key;
use crate::session::Session;
use crate::stream::{Stream, Target};

/// Bit of [`Stream::special`]: the stream is captured.
pub(crate) const CAPTURED: u32 = 1;
/// Bit of [`Stream::special`]: it is a legacy stream, and a stream that it waits for is captured.
pub(crate) const BESIDE: u32 = 2;
/// Bit of [`Stream::special`]: launches wait for their kernels (CUDA_LAUNCH_BLOCKING).
pub(crate) const PATIENT: u32 = 4;

/// The captures of the process that are under way.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// How many there are, for those who need to know no more.
    count: AtomicU32,
    last_id: AtomicU64,
    list: Mutex<Vec<Arc<Capture>>>,
}

/// One capture.
#[derive(Debug)]
pub(crate) struct Capture {
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
    given: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
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
    front: Vec<From>,
    /// What the program was last shown of the front; it may look at it until the next call.
    shown: (Vec<u64>, Vec<CUgraphEdgeData>),
}

/// What the program may know of a stream's capture.
#[derive(Debug)]
pub(crate) struct Info {
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

pub(crate) use mark::Mark;

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

/// Refuses a call that may be unsafe while captures are under way whose modes forbid it to this
/// thread, and breaks them.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
#[inline]
pub(crate) fn may_be_unsafe() -> Result<(), CUresult> {
    match crate::session::session() {
        Ok(session) if session.graphs.captures.count.load(Ordering::Relaxed) != 0 => {
            session.graphs.captures.forbid_unsafe()
        }
        _ => Ok(()),
    }
}

impl Captures {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
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

    /// Refuses to wait for all of a context while something of it is captured.
    pub(crate) fn forbid_in(&self, context: u64) -> Result<(), CUresult> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let error = CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
        self.break_those(|capture| capture.context == context, error)
    }

    /// Ends all captures of a context that ends.
    pub(super) fn forget(&self, context: u64) {
        let of_context: Vec<_> = self
            .list()
            .iter()
            .filter(|capture| capture.context == context)
            .cloned()
            .collect();
        for capture in of_context {
            if let Ok(session) = crate::session::session() {
                capture.finish(session, &mut capture.state());
            }
        }
    }

    /// Begins to capture a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a legacy stream, CUDA_ERROR_ILLEGAL_STATE for one
    /// that is captured, CUDA_ERROR_INVALID_VALUE for a mode that there is not.
    pub(crate) fn begin(
        &self,
        target: &Target,
        mode: CUstreamCaptureMode,
        into: Option<(u64, Vec<From>)>,
    ) -> Result<(), CUresult> {
        let session = target.current.session;
        if mode > CUstreamCaptureMode::RELAXED {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if target.slot == target.current.slot() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let given = into.is_some();
        let (graph, front) = into.unwrap_or_default();
        let mut own = target.stream.capture();
        if own.is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            thread: this_thread(),
            context: target.stream.context(),
            slot: target.current.slot(),
            origin: target.key().ok_or(CUresult::ERROR_INVALID_HANDLE)?,
            graph: match given {
                true => graph,
                false => session.graphs.create(false)?,
            },
            given,
            state: Mutex::default(),
        });
        capture.join(target, &mut capture.state(), front);
        *own = Some(Arc::clone(&capture));
        self.list().push(capture);
        self.count.fetch_add(1, Ordering::Relaxed);
        target.stream.set_special(CAPTURED, true);
        Ok(())
    }

    /// Ends the capture of a stream. Gives its graph.
    ///
    /// # Errors
    /// CUDA_ERROR_ILLEGAL_STATE if there is none, and what was wrong with the capture.
    pub(crate) fn end(&self, target: &Target) -> Result<u64, CUresult> {
        let session = target.current.session;
        let capture = target.stream.capture().clone();
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
            } else if !capture.is_joined(session, &state) {
                Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED)
            } else {
                Ok(capture.graph)
            };
        capture.finish(session, &mut state);
        drop(state);
        if result.is_err() && !capture.given {
            // Nobody else knows of it.
            let _ = session.graphs.destroy(capture.graph);
        }
        result
    }

    /// The stream ends. If it is captured, so does the capture that began in it; one that it only
    /// joined goes on, and what the stream did there still has to be joined.
    pub(crate) fn stream_ends(&self, session: &Session, key: Key, stream: &Stream) {
        let Some(capture) = stream.capture().take() else {
            return;
        };
        let mut state = capture.state();
        stream.set_special(CAPTURED, false);
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut state.members)
            .into_iter()
            .partition(|member| member.slot == key.index());
        state.members = stay;
        state.left.extend(gone.into_iter().flat_map(|it| it.front));
        if capture.origin == key {
            state.broken = true;
            capture.finish(session, &mut state);
            drop(state);
            if !capture.given {
                let _ = session.graphs.destroy(capture.graph);
            }
        }
    }
}

/// The capture that a stream is in.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for a legacy stream beside a captured one, whose capture
/// breaks.
#[cold]
#[inline(never)]
pub(crate) fn standing(target: &Target) -> Result<Option<Arc<Capture>>, CUresult> {
    let special = target.stream.special();
    if special & BESIDE != 0 {
        let slot = target.current.slot();
        target.current.session.graphs.captures.break_those(
            |capture| capture.slot == slot && capture.state().has_blocking(),
            CUresult::ERROR_STREAM_CAPTURE_IMPLICIT,
        )?;
    }
    match special & CAPTURED {
        0 => Ok(None),
        _ => Ok(target.stream.capture().clone()),
    }
}

/// The kind of node that an operation becomes which no function of the graph interfaces describes.
pub(crate) fn kind_of(opcode: Opcode) -> CUgraphNodeType {
    match opcode {
        Opcode::Launch => CUgraphNodeType::KERNEL,
        Opcode::Fill => CUgraphNodeType::MEMSET,
        Opcode::EventRecord | Opcode::StreamWait => CUgraphNodeType::EMPTY,
        _ => CUgraphNodeType::MEMCPY,
    }
}

/// Refuses to ask or to wait for a stream that is captured, or while captures forbid it.
///
/// # Errors
/// As [`standing`] and [`may_be_unsafe`], and CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a captured
/// stream, whose capture breaks.
#[inline]
pub(crate) fn may_ask(target: &Target) -> Result<(), CUresult> {
    if target.stream.special() & (CAPTURED | BESIDE) != 0 {
        refuse_captured(target)?;
    }
    may_be_unsafe()
}

/// Refuses something that cannot be captured.
///
/// # Errors
/// As [`standing`], and CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a captured stream, whose capture
/// breaks.
pub(crate) fn refuse_captured(target: &Target) -> Result<(), CUresult> {
    if target.stream.special() & (CAPTURED | BESIDE) == 0 {
        return Ok(());
    }
    match standing(target)? {
        Some(capture) => {
            capture.state().broken = true;
            Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

impl State {
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream in.
    fn join(&self, target: &Target, state: &mut State, front: Vec<From>) {
        let blocking = target.stream.flags() & CU_STREAM_NON_BLOCKING == 0;
        state.members.push(Member {
            slot: target.slot,
            blocking,
            front,
            shown: Default::default(),
        });
        let streams = &target.current.session.streams;
        if blocking && let Some(legacy) = streams.at(self.slot) {
            legacy.set_special(BESIDE, true);
        }
    }

    /// Whether all that its streams did comes before what the first one ends with.
    fn is_joined(&self, session: &Session, state: &State) -> bool {
        let Ok(graph) = session.graphs.get(self.graph) else {
            return false;
        };
        let serials = |front: &[From]| -> Vec<u64> {
            front
                .iter()
                .filter_map(|(node, _)| Some(session.graphs.place(*node).ok()?.1))
                .collect()
        };
        let origin = |member: &&Member| member.slot == self.origin.index();
        let end = state.members.iter().find(origin);
        let end = end.map_or_else(Vec::new, |member| serials(&member.front));
        let others = state.members.iter().filter(|member| !origin(member));
        let mut others: Vec<u64> = others.flat_map(|member| serials(&member.front)).collect();
        others.extend(serials(&state.left));
        graph.body().all_before(&others, &end)
    }

    /// Lets all streams go.
    fn finish(self: &Arc<Self>, session: &Session, state: &mut State) {
        if std::mem::replace(&mut state.over, true) {
            return;
        }
        for member in std::mem::take(&mut state.members) {
            if let Some(stream) = session.streams.at(member.slot) {
                stream.set_special(CAPTURED, false);
                *stream.capture() = None;
            }
        }
        let captures = &session.graphs.captures;
        let mut list = captures.list();
        list.retain(|capture| !Arc::ptr_eq(capture, self));
        captures.count.fetch_sub(1, Ordering::Relaxed);
        // Whether others keep the legacy stream from being used is found out when it is.
        let beside = list.iter().any(|capture| capture.slot == self.slot);
        if !beside && let Some(legacy) = session.streams.at(self.slot) {
            legacy.set_special(BESIDE, false);
        }
    }

    /// Adds a node behind all that a stream did.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture is broken.
    pub(crate) fn add(&self, target: &Target, payload: Payload) -> Result<(), CUresult> {
        let mut state = self.state();
        state.check()?;
        let graphs = &target.current.session.graphs;
        let member = state
            .member(target.slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        // A node of the front may have been taken out of the graph by the program.
        let node = match graphs.add(self.graph, &member.front, payload) {
            Ok(node) => node,
            Err(error) => {
                state.broken = true;
                return Err(error);
            }
        };
        member.front = vec![(node, CUgraphEdgeData::default())];
        Ok(())
    }

    /// What an event stands for that is recorded in a stream now.
    pub(crate) fn mark(self: &Arc<Self>, target: &Target) -> Result<Mark, CUresult> {
        let mut state = self.state();
        state.check()?;
        let member = state
            .member(target.slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        Ok(Mark::new(self, member.front.clone()))
    }

    /// Has a captured stream wait for an event.
    pub(crate) fn wait(
        self: &Arc<Self>,
        target: &Target,
        event: &Event,
        name: CUevent,
        external: bool,
    ) -> Result<(), CUresult> {
        self.state().check()?;
        if external {
            return self.add(target, Payload::Wait(name.bits()));
        }
        match event.recorded() {
            Recorded::Never => Ok(()),
            Recorded::At(_) => {
                self.state().broken = true;
                Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION)
            }
            Recorded::Captured(mark) if mark.is_of(self) => {
                let mut state = self.state();
                let member = state
                    .member(target.slot)
                    .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
                for from in mark.into_front() {
                    if !member.front.iter().any(|(node, _)| *node == from.0) {
                        member.front.push(from);
                    }
                }
                Ok(())
            }
            Recorded::Captured(mark) => {
                mark.check()?;
                self.state().broken = true;
                mark.break_it();
                Err(CUresult::ERROR_STREAM_CAPTURE_MERGE)
            }
        }
    }

    /// What the program may know of a stream's place in it.
    pub(crate) fn info(&self, target: &Target) -> Option<Info> {
        let mut state = self.state();
        let broken = state.broken;
        let member = state.member(target.slot)?;
        member.shown = member.front.iter().copied().unzip();
        let plain = CUgraphEdgeData::default();
        Some(Info {
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
        target: &Target,
        front: Vec<From>,
        set: bool,
    ) -> Result<(), CUresult> {
        let mut state = self.state();
        state.check()?;
        let graphs = &target.current.session.graphs;
        for (node, _) in &front {
            if graphs.place(*node)?.0 != self.graph {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        let member = state
            .member(target.slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        if set {
            member.front.clear();
        }
        for from in front {
            if !member.front.iter().any(|(node, _)| *node == from.0) {
                member.front.push(from);
            }
        }
        Ok(())
    }
}
