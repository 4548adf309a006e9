//! Conditional nodes: graphs inside of a graph that run if a kernel says so.
//!
//! A handle is the address of a word of page-locked memory, which `cudaGraphSetConditional` in device code
//! writes: the software GPU has that function built in, and on NVIDIA GPUs PTX that calls it is given ours.
//! The node stands in its lane as a host function does. When all before it is done, a thread of ours reads
//! the word, launches the body that it chooses in a stream of the node's own, waits for it, and does so
//! again for a loop; then its lane goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::operations::Fill;
use cuda_abi::types::CU_STREAM_NON_BLOCKING;

use super::MOST_DEPTH;
use super::lower::Pinned;
use super::node::Payload;
use super::schedule::{Listed, Refusal, Schedule};
use crate::context::{self, Current};
use crate::handle::Key;
use crate::host;
use crate::session::Session;
use crate::stream::{LEAST_PRIORITY, Target};

/// CUgraphConditionalNodeType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The first body if the value is not 0, else the second if there is one.
    If,
    /// The body as long as the value is not 0.
    While,
    /// The body of the value's number, if there is one.
    Switch,
}

impl Form {
    /// The form of a number, if a node of it may have so many bodies.
    pub(crate) fn new(number: u32, bodies: u32) -> Result<Self, CUresult> {
        match (number, bodies) {
            (0, 1 | 2) => Ok(Self::If),
            (1, 1) => Ok(Self::While),
            (2, 1..) => Ok(Self::Switch),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Which of so many bodies a value chooses.
    fn choose(self, value: u32, bodies: usize) -> Option<usize> {
        let wanted = match self {
            Self::If => usize::from(value == 0),
            Self::While if value == 0 => return None,
            Self::While => 0,
            Self::Switch => value as usize,
        };
        (wanted < bodies).then_some(wanted)
    }
}

/// What a conditional handle names.
#[derive(Debug)]
pub(crate) struct Handle {
    word: Pinned,
    /// The handle of its context.
    context: u64,
    /// What every launch begins with.
    default: Option<u32>,
}

impl Handle {
    /// Makes one.
    pub(crate) fn new(
        current: &Current,
        value: u32,
        assigned: bool,
    ) -> Result<Arc<Self>, CUresult> {
        let handle = Self {
            word: Pinned::new(current, 4)?,
            context: current.handle(),
            default: assigned.then_some(value),
        };
        // SAFETY: page-locked memory of ours of four bytes, page-aligned, that no work uses yet.
        unsafe { handle.word.pointer().cast::<u32>().write_volatile(0) };
        Ok(Arc::new(handle))
    }

    /// What the program calls it.
    pub(crate) fn name(&self) -> u64 {
        self.word.address()
    }

    /// The handle of its context.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// What sets it at the beginning of a launch.
    pub(super) fn assignment(&self) -> Option<Fill> {
        self.default.map(|value| Fill {
            to: self.word.address(),
            pitch: 0,
            value,
            element: 4,
            width: 1,
            height: 1,
        })
    }

    fn value(&self) -> u32 {
        // SAFETY: as in `new`; kernels may write it at any time, to whom no reference is made here.
        unsafe { self.word.pointer().cast::<u32>().read_volatile() }
    }
}

/// A conditional node.
#[derive(Debug)]
pub(crate) struct Conditional {
    pub handle: Arc<Handle>,
    pub kind: Form,
    /// The handle of its context.
    pub context: u64,
    /// The handles of its graphs, where the program finds them as long as the node is there.
    pub bodies: Box<[u64]>,
}

/// A conditional node that is ready to be launched.
#[derive(Debug)]
pub(crate) struct Branch {
    handle: Arc<Handle>,
    kind: Form,
    pub(super) bodies: Vec<Body>,
}

/// A graph of a conditional node, and the stream in which it is launched.
#[derive(Debug)]
pub(super) struct Body {
    schedule: Mutex<Schedule>,
    session: &'static Session,
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
        session: &'static Session,
        node: &Conditional,
        depth: usize,
    ) -> Result<Arc<Self>, CUresult> {
        if depth >= MOST_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let bodies = node
            .bodies
            .iter()
            .map(|graph| Body::new(session, *graph, node.context, depth + 1));
        Ok(Arc::new(Self {
            handle: Arc::clone(&node.handle),
            kind: node.kind,
            bodies: bodies.collect::<Result<_, _>>()?,
        }))
    }
}

impl host::Ours for Branch {
    fn run(&self) {
        while let Some(body) = self.kind.choose(self.handle.value(), self.bodies.len()) {
            // After an error the context is dead, which the program is told where it asks next.
            if self.bodies[body].run().is_err() || self.kind != Form::While {
                return;
            }
        }
    }
}

impl Body {
    fn new(
        session: &'static Session,
        graph: u64,
        context: u64,
        depth: usize,
    ) -> Result<Self, CUresult> {
        let schedule = Schedule::new(session, graph, depth)?;
        if !schedule
            .nodes
            .iter()
            .all(|node| node.listed.payload.may_be_conditional())
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let current = context::usable(session, context)?;
        // What is behind the node waits for it, also in streams that share its stream's connection.
        let stream =
            session
                .streams
                .create_unconnected(&current, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY)?;
        Ok(Self {
            schedule: Mutex::new(schedule),
            session,
            stream,
            context,
        })
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Schedule::set`].
    pub(super) fn set(&self, node: u64, payload: &Payload) -> Option<Result<(), CUresult>> {
        self.schedule().set(node, payload)
    }

    /// As [`Schedule::payload`].
    pub(super) fn payload(&self, node: u64) -> Option<Payload> {
        self.schedule().payload(node)
    }

    /// As [`Schedule::compare`].
    pub(super) fn compare(&self, list: &[Listed]) -> Result<(), Refusal> {
        self.schedule().compare(list)
    }

    /// Launches it and waits for it.
    fn run(&self) -> Result<(), CUresult> {
        let session = self.session;
        let current = context::usable(session, self.context)?;
        let stream = session.streams.get(self.stream);
        let target = Target {
            current,
            slot: self.stream.index(),
            stream: stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?,
        };
        let (slot, until) = self.schedule().launch(&target, false)?;
        session.wait(slot, until)?;
        session.check_fault(current.slot())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // Its context may have ended before.
        let _ = self.session.streams.destroy(self.session, self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_choose_bodies() {
        let chosen = |kind: Form, bodies| [0, 1, 2, u32::MAX].map(|it| kind.choose(it, bodies));
        assert_eq!(chosen(Form::If, 1), [None, Some(0), Some(0), Some(0)]);
        assert_eq!(chosen(Form::If, 2), [Some(1), Some(0), Some(0), Some(0)]);
        assert_eq!(chosen(Form::While, 1), [None, Some(0), Some(0), Some(0)]);
        assert_eq!(chosen(Form::Switch, 2), [Some(0), Some(1), None, None]);
    }

    #[test]
    fn forms_have_as_many_bodies_as_they_can() {
        assert_eq!(Form::new(0, 2), Ok(Form::If));
        assert_eq!(Form::new(2, 9), Ok(Form::Switch));
        for (number, bodies) in [(0, 0), (0, 3), (1, 2), (2, 0), (3, 1)] {
            assert!(Form::new(number, bodies).is_err(), "{number}, {bodies}");
        }
    }
}
