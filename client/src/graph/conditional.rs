//! Conditional nodes: graphs inside of a graph that run if a kernel says so.
//!
//! A handle is the address of a word of page-locked memory, which `cudaGraphSetConditional` in device code
//! writes: the software GPU has that function built in, and on NVIDIA GPUs PTX that calls it is given ours.
//!
//! Owns handles and what a node says of its bodies; how these are launched is in `branch`.
//!
//! Called by `api::graph::conditional`, by launches, which set a handle's default, and by `branch`. Must not know
//! the schedules of the bodies.

use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::operations::Fill;

use super::pinned::Pinned;
use crate::context::Current;

/// CUgraphConditionalNodeType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionalKind {
    /// The first body if the value is not 0, else the second if there is one.
    If,
    /// The body as long as the value is not 0.
    While,
    /// The body of the value's number, if there is one.
    Switch,
}

impl ConditionalKind {
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
    pub(super) fn choose(self, value: u32, bodies: usize) -> Option<usize> {
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

    pub(super) fn value(&self) -> u32 {
        // SAFETY: four bytes of page-locked memory of ours, page-aligned; kernels may write them at any time,
        // and no reference to them is made here.
        unsafe { self.word.pointer().cast::<u32>().read_volatile() }
    }
}

/// A conditional node.
#[derive(Debug)]
pub(crate) struct Conditional {
    pub handle: Arc<Handle>,
    pub kind: ConditionalKind,
    /// The handle of its context.
    pub context: u64,
    /// The handles of its graphs, where the program finds them as long as the node is there.
    pub bodies: Box<[u64]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_choose_bodies() {
        let chosen =
            |kind: ConditionalKind, bodies| [0, 1, 2, u32::MAX].map(|it| kind.choose(it, bodies));
        assert_eq!(
            chosen(ConditionalKind::If, 1),
            [None, Some(0), Some(0), Some(0)]
        );
        assert_eq!(
            chosen(ConditionalKind::If, 2),
            [Some(1), Some(0), Some(0), Some(0)]
        );
        assert_eq!(
            chosen(ConditionalKind::While, 1),
            [None, Some(0), Some(0), Some(0)]
        );
        assert_eq!(
            chosen(ConditionalKind::Switch, 2),
            [Some(0), Some(1), None, None]
        );
    }

    #[test]
    fn forms_have_as_many_bodies_as_they_can() {
        assert_eq!(ConditionalKind::new(0, 2), Ok(ConditionalKind::If));
        assert_eq!(ConditionalKind::new(2, 9), Ok(ConditionalKind::Switch));
        for (number, bodies) in [(0, 0), (0, 3), (1, 2), (2, 0), (3, 1)] {
            assert!(
                ConditionalKind::new(number, bodies).is_err(),
                "{number}, {bodies}"
            );
        }
    }
}
