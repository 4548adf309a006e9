//! One operation of a stream, checked and ready to be given to the driver.
//!
//! Made by the client when it has checked an operation; kept by a stream until it is issued, and then until it is
//! done. Must not know how it is issued.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUevent, CUstream};
use engine::{Activity, Counted};

use crate::device::Device;
use crate::device::work_signature::WorkSignature;
use crate::driver::Driver;
use crate::submit::copy::step::Step;
use crate::submit::graph_run::GraphRun;
use crate::submit::launch::{Launch, RunningKernel};
use crate::submit::readback::{BounceBuffer, PendingReadback, Readback};
use crate::submit::semaphore::{Semaphore, Signal};
use crate::sync::Handle;

/// How long work may take of which nothing is known, in microseconds.
const UNKNOWN_KERNEL: u32 = 8_000;
const UNKNOWN_COPY: u32 = 500;

/// What a stream is to do.
#[derive(Debug)]
pub(crate) enum CommandKind {
    Launch(Launch),
    /// These launches of a run.
    Run(Arc<Counted<GraphRun>>, Range<usize>),
    /// A copy, a fill or a write.
    Steps(VecDeque<Step>),
    Readback(Readback),
    Event {
        event: u32,
        timing: bool,
    },
    /// Signals a semaphore of another interface.
    Signal(Signal),
    /// The stream's last.
    Destroy,
    /// It was found wrong when it came, which is said in its turn.
    Refused(CUresult),
}

/// What is to be done, or kept until, when the GPU is past an operation.
#[derive(Debug)]
pub(crate) enum CompletionAction {
    Nothing,
    Keep(RunningKernel),
    /// Kernels of a run do.
    KeepRun(Arc<Counted<GraphRun>>),
    /// A timed event was passed.
    Time {
        event: u32,
        raw: Handle<CUevent>,
    },
    /// What was fetched is to be delivered.
    Deliver(PendingReadback),
    /// A semaphore was signalled.
    KeepSemaphore(#[expect(dead_code, reason = "kept until it is")] Arc<Semaphore>),
    /// The stream is over.
    Destroy,
}

impl CompletionAction {
    /// Takes what its kernels have printed, if it is about kernels.
    pub(crate) fn drain_output(&self) {
        match self {
            Self::Keep(running) => running.module.drain_output(),
            Self::KeepRun(run) => run
                .modules()
                .iter()
                .for_each(|module| module.drain_output()),
            _ => {}
        }
    }

    /// Whether it is about kernels.
    pub(crate) fn is_of_kernels(&self) -> bool {
        matches!(self, Self::Keep(_) | Self::KeepRun(_))
    }

    /// Whether it is a kernel that may print while it runs.
    pub(crate) fn prints(&self) -> bool {
        match self {
            Self::Keep(running) => running.module.prints(),
            Self::KeepRun(run) => run.prints(),
            _ => false,
        }
    }
}

impl CommandKind {
    /// What was planned as these steps.
    pub(crate) fn steps(steps: Vec<Step>) -> Self {
        Self::Steps(steps.into())
    }

    /// About how many bytes it takes while it waits.
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Launch(launch) => launch.held_bytes(),
                Self::Steps(steps) => steps
                    .iter()
                    .map(|step| size_of::<Step>() + step.held_bytes())
                    .sum(),
                _ => 0,
            }
    }

    /// Commands that it is for the driver.
    pub(crate) fn commands(&self) -> usize {
        match self {
            Self::Steps(steps) => steps.len(),
            Self::Run(_, part) => part.len(),
            _ => 1,
        }
    }

    /// What the device does for it, if anything.
    pub(crate) fn activity(&self) -> Option<Activity> {
        match self {
            Self::Launch(_) | Self::Run(..) => Some(Activity::Kernel),
            Self::Steps(_) | Self::Readback(_) => Some(Activity::Copy),
            Self::Event { .. } | Self::Signal(_) | Self::Destroy | Self::Refused(_) => None,
        }
    }

    /// What its length depends on, as far as that can be seen.
    pub(crate) fn signature(&self) -> WorkSignature {
        match self {
            Self::Launch(launch) => launch.signature(),
            Self::Run(run, part) => run
                .signature()
                .and((part.start as u64) << 32 | part.len() as u64),
            Self::Steps(steps) => steps
                .iter()
                .fold(WorkSignature::default(), |kind, step| step.signature(kind)),
            Self::Readback(readback) => readback.step().signature(WorkSignature::default()),
            _ => WorkSignature::default(),
        }
    }

    /// What sort of work it is, of which the last lengths tell the next; and how long it may take, in microseconds,
    /// while nothing is known of it: of kernels so long that two or three go to the driver at first.
    pub(crate) fn sort(&self) -> (WorkSignature, u32) {
        match self {
            Self::Launch(launch) => (launch.sort(), UNKNOWN_KERNEL),
            Self::Run(..) => (self.signature(), UNKNOWN_KERNEL),
            Self::Steps(_) | Self::Readback(_) => (self.signature(), UNKNOWN_COPY),
            Self::Event { .. } | Self::Signal(_) | Self::Destroy | Self::Refused(_) => {
                (WorkSignature::default(), 0)
            }
        }
    }

    /// Keeps so many commands at most, and gives the rest, to be issued after them.
    pub(crate) fn split(&mut self, most: usize) -> Option<Self> {
        match self {
            Self::Steps(steps) if steps.len() > most => {
                let first = steps.drain(..most).collect();
                Some(Self::Steps(std::mem::replace(steps, first)))
            }
            Self::Run(run, part) if part.len() > most => {
                let rest = part.start + most..part.end;
                part.end = rest.start;
                Some(Self::Run(Arc::clone(run), rest))
            }
            _ => None,
        }
    }

    /// Of a copy or a fill, keeps one step of so many bytes at most, and gives the rest, to be issued after it.
    pub(crate) fn split_copy(&mut self, most: u64) -> Option<Self> {
        let Self::Steps(steps) = self else {
            return None;
        };
        let mut first = steps.pop_front()?;
        if let Step::Linear(copy) = &mut first
            && let Some(rest) = copy.split(most)
        {
            steps.push_front(Step::Linear(rest));
        }
        let rest = std::mem::replace(steps, VecDeque::from([first]));
        (!rest.is_empty()).then_some(Self::Steps(rest))
    }

    /// Gives it to the driver, as the stream's operation of this fence value. `landing` is where the stream's
    /// readbacks come to, if it has had any. The device's context is current.
    ///
    /// # Errors
    /// The driver's status; part of it may have been taken.
    pub(crate) fn issue(
        self,
        device: &Arc<Device>,
        driver: &Driver,
        stream: CUstream,
        fence_value: u32,
        bounce: &mut Option<BounceBuffer>,
    ) -> Result<CompletionAction, CUresult> {
        match self {
            Self::Launch(launch) => launch.issue(driver, stream).map(CompletionAction::Keep),
            Self::Run(run, part) => {
                for launch in run.launches().get(part).unwrap_or_default() {
                    launch.clone().issue(driver, stream)?;
                }
                Ok(CompletionAction::KeepRun(run))
            }
            Self::Steps(steps) => {
                for step in steps {
                    step.issue(driver, stream)?;
                }
                Ok(CompletionAction::Nothing)
            }
            Self::Readback(readback) => {
                let bounce = bounce
                    .take()
                    .map_or_else(|| BounceBuffer::new(device), Ok)?;
                PendingReadback::issue(readback, bounce, fence_value, driver, stream)
                    .map(CompletionAction::Deliver)
            }
            Self::Event { timing: false, .. } => Ok(CompletionAction::Nothing),
            Self::Event { event, .. } => {
                let raw = device.clock().event(driver)?;
                // SAFETY: event and stream are ours and of this context.
                if let Err(code) = unsafe { driver.cuEventRecord(raw.0, stream) } {
                    device.clock().release_event(driver, raw);
                    return Err(code);
                }
                Ok(CompletionAction::Time { event, raw })
            }
            Self::Signal(signal) => {
                signal.issue(driver, stream)?;
                Ok(CompletionAction::KeepSemaphore(signal.semaphore))
            }
            Self::Destroy => Ok(CompletionAction::Destroy),
            Self::Refused(code) => Err(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::copy::step::LinearCopy;

    fn linear(work: &CommandKind) -> Vec<(u64, u64, u64)> {
        let CommandKind::Steps(steps) = work else {
            panic!("steps, not {work:?}");
        };
        let each = steps.iter().map(|step| match step {
            Step::Linear(copy) => (copy.to, copy.from, copy.bytes),
            other => panic!("a copy, not {other:?}"),
        });
        each.collect()
    }

    #[test]
    fn a_copy_is_given_away_piece_by_piece() {
        let copy = |to, from, bytes| Step::Linear(LinearCopy { to, from, bytes });
        let mut work = CommandKind::steps(vec![copy(100, 200, 10), copy(500, 600, 4)]);
        let mut pieces = Vec::new();
        loop {
            let rest = work.split_copy(4);
            pieces.extend(linear(&work));
            match rest {
                Some(rest) => work = rest,
                None => break,
            }
        }
        assert_eq!(
            pieces,
            [(100, 200, 4), (104, 204, 4), (108, 208, 2), (500, 600, 4)]
        );
        assert!(CommandKind::steps(Vec::new()).split_copy(4).is_none());
    }
}
