//! One operation of a stream, checked and ready to be given to the driver.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUevent, CUstream};
use engine::Counted;

use crate::copy::Step;
use crate::device::Device;
use crate::driver::Driver;
use crate::fetch::{Fetch, Landing, UnderWay};
use crate::launch::Launch;
use crate::module::Module;
use crate::rhythm::Kind;
use crate::run::Run;
use crate::sync::Handle;

/// How long work may take of which nothing is known, in microseconds.
const UNKNOWN_KERNEL: u32 = 8_000;
const UNKNOWN_COPY: u32 = 500;

/// What a stream is to do.
#[derive(Debug)]
pub(crate) enum Work {
    Launch(Launch),
    /// These launches of a run.
    Run(Arc<Counted<Run>>, Range<usize>),
    /// A copy, a fill or a write.
    Steps(VecDeque<Step>),
    Fetch(Fetch),
    Event {
        event: u32,
        timing: bool,
    },
    /// The stream's last.
    Destroy,
    /// It was found wrong when it came, which is said in its turn.
    Refused(CUresult),
}

/// What is to be done, or kept until, when the GPU has come past an operation.
#[derive(Debug)]
pub(crate) enum After {
    Nothing,
    /// A kernel runs: its module must stay.
    Keep {
        module: Arc<Module>,
        kernel: u32,
    },
    /// Kernels of a run do.
    KeepRun(Arc<Counted<Run>>),
    /// A timed event was passed.
    Time {
        event: u32,
        raw: Handle<CUevent>,
    },
    /// What was fetched is to be delivered.
    Deliver(UnderWay),
    /// The stream is over.
    Destroy,
}

impl After {
    /// Whether it is a kernel that may print while it runs.
    pub(crate) fn prints(&self) -> bool {
        match self {
            Self::Keep { module, .. } => module.ring().is_some(),
            Self::KeepRun(run) => run.prints(),
            _ => false,
        }
    }
}

impl Work {
    /// What was planned as these steps.
    pub(crate) fn steps(steps: Vec<Step>) -> Self {
        Self::Steps(steps.into())
    }

    /// About how many bytes it takes while it waits.
    pub(crate) fn kept(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Launch(launch) => launch.kept(),
                Self::Steps(steps) => steps
                    .iter()
                    .map(|step| size_of::<Step>() + step.kept())
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

    /// What its length depends on, as far as that can be seen.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Launch(launch) => launch.kind(),
            Self::Run(run, part) => run
                .kind()
                .and((part.start as u64) << 32 | part.len() as u64),
            Self::Steps(steps) => steps
                .iter()
                .fold(Kind::default(), |kind, step| step.kind(kind)),
            Self::Fetch(fetch) => fetch.step().kind(Kind::default()),
            _ => Kind::default(),
        }
    }

    /// What sort of work it is, of which the last lengths tell the next; and how long it may take, in microseconds,
    /// while nothing is known of it: of kernels so long that two or three go to the driver at first.
    pub(crate) fn sort(&self) -> (Kind, u32) {
        match self {
            Self::Launch(launch) => (launch.sort(), UNKNOWN_KERNEL),
            Self::Run(..) => (self.kind(), UNKNOWN_KERNEL),
            Self::Steps(_) | Self::Fetch(_) => (self.kind(), UNKNOWN_COPY),
            Self::Event { .. } | Self::Destroy | Self::Refused(_) => (Kind::default(), 0),
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

    /// Gives it to the driver, as the stream's operation of this ticket. `landing` is where the stream's
    /// fetches come to, if it has had any. The device's context is current.
    ///
    /// # Errors
    /// The driver's status; part of it may have been taken.
    pub(crate) fn issue(
        self,
        device: &Arc<Device>,
        driver: &Driver,
        stream: CUstream,
        ticket: u32,
        landing: &mut Option<Landing>,
    ) -> Result<After, CUresult> {
        match self {
            Self::Launch(launch) => launch.issue(driver, stream),
            Self::Run(run, part) => {
                for launch in run.launches().get(part).unwrap_or_default() {
                    launch.clone().issue(driver, stream)?;
                }
                Ok(After::KeepRun(run))
            }
            Self::Steps(steps) => {
                for step in steps {
                    step.issue(driver, stream)?;
                }
                Ok(After::Nothing)
            }
            Self::Fetch(fetch) => {
                let landing = landing.take().map_or_else(|| Landing::new(device), Ok)?;
                UnderWay::issue(fetch, landing, ticket, driver, stream).map(After::Deliver)
            }
            Self::Event { timing: false, .. } => Ok(After::Nothing),
            Self::Event { event, .. } => {
                let raw = device.clock().event(driver)?;
                // SAFETY: event and stream are ours and of this context.
                if let Err(code) = unsafe { driver.cuEventRecord(raw.0, stream) } {
                    device.clock().give_back(driver, raw);
                    return Err(code);
                }
                Ok(After::Time { event, raw })
            }
            Self::Destroy => Ok(After::Destroy),
            Self::Refused(code) => Err(code),
        }
    }
}
