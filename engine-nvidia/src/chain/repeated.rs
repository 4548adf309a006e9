//! Runs of launches that come again just as they were, as those of a graph that is launched again and again:
//! each has a chain of its own, of which nothing is changed but the ticket.
//!
//! Owns the runs that a stream remembers and their chains. Called by the stream's chains, with its lock held.
//! Must not know where a run comes from.

use cuda_abi::CUresult;
use cuda_abi::types::CUstream;

use super::{Chain, Mark, Signal};
use crate::common::Common;
use crate::device::Device;
use crate::driver::Driver;
use crate::launch::{Call, Launch};

/// Runs that a stream remembers.
const MOST_RUNS: usize = 64;

/// Nodes of all chains of a client's repeated runs. What one takes, see [`MOST_NODES`](super::MOST_NODES).
pub(crate) const MOST_REPEATED_NODES: usize = 512;

/// Runs after which a chain that was not used makes room for others. Whoever goes through more runs than
/// there is room for keeps the first ones, and does not make all of them anew each time.
const IDLE: u64 = 1024;

#[derive(Debug, Default)]
pub(super) struct Repeated {
    runs: Vec<Run>,
    /// Behind the last one that was found: the parts of a graph follow each other.
    next: usize,
    /// Runs so far.
    count: u64,
}

#[derive(Debug)]
struct Run {
    calls: Vec<Call>,
    /// From the second time on.
    chain: Option<Chain>,
    /// When it last came, in runs.
    last: u64,
}

impl Run {
    fn is(&self, launches: &[Launch]) -> bool {
        let calls = launches.iter().map(Launch::call);
        self.calls.len() == launches.len() && self.calls.iter().eq(calls)
    }
}

impl Repeated {
    /// Gives the driver a run and has the GPU give the signal, if it has come before and there is room for its
    /// chain. Says whether it did. `driver` is of the context in which the stream's kernels run.
    ///
    /// # Errors
    /// The driver's status; it has taken nothing then.
    pub(super) fn issue(
        &mut self,
        (device, common): (&Device, &Common),
        (driver, mark): (&Driver, &Mark),
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<bool, CUresult> {
        self.count += 1;
        let here = self.runs.get(self.next).filter(|run| run.is(launches));
        let found = match here {
            Some(_) => Some(self.next),
            None => self.runs.iter().position(|run| run.is(launches)),
        };
        let Some(at) = found else {
            self.remember(launches);
            return Ok(false);
        };
        self.next = (at + 1) % self.runs.len();
        self.runs[at].last = self.count;
        if let Some(stale) = self.runs[at].chain.take_if(|chain| chain.is_stale()) {
            stale.end(device, &common.repeated_nodes);
        }
        if let Some(chain) = &self.runs[at].chain {
            chain.set_signal(driver, mark, signal)?;
            chain.launch(driver, stream)?;
            return Ok(true);
        }
        if !self.make_room(device, common, launches.len() + 1) {
            return Ok(false);
        }
        let chain = Chain::new(driver, mark, launches, signal).and_then(|chain| {
            let launched = chain.launch(driver, stream);
            launched.inspect_err(|_| chain.destroy(driver))?;
            Ok(chain)
        });
        if chain.is_err() {
            common.repeated_nodes.give(launches.len() + 1);
        }
        self.runs[at].chain = Some(chain?);
        Ok(true)
    }

    /// Takes room for so many nodes, from chains that are not used any more if need be.
    fn make_room(&mut self, device: &Device, common: &Common, nodes: usize) -> bool {
        while !common.repeated_nodes.take(nodes) {
            let idle = |run: &&mut Run| run.chain.is_some() && run.last + IDLE < self.count;
            let Some(chain) = self
                .runs
                .iter_mut()
                .find(idle)
                .and_then(|run| run.chain.take())
            else {
                return false;
            };
            chain.end(device, &common.repeated_nodes);
        }
        true
    }

    /// Remembers a run, in place of the one without a chain that has not come for longest.
    fn remember(&mut self, launches: &[Launch]) {
        let run = Run {
            calls: launches
                .iter()
                .map(|launch| launch.call().clone())
                .collect(),
            chain: None,
            last: self.count,
        };
        if self.runs.len() < MOST_RUNS {
            self.runs.push(run);
            return;
        }
        let without = self.runs.iter_mut().filter(|run| run.chain.is_none());
        if let Some(oldest) = without.min_by_key(|run| run.last) {
            *oldest = run;
        }
    }

    /// Lets go of all chains.
    pub(super) fn end(&self, device: &Device, common: &Common) {
        for chain in self.runs.iter().filter_map(|run| run.chain.as_ref()) {
            chain.end(device, &common.repeated_nodes);
        }
    }
}
