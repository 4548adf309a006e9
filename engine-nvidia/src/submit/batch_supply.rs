//! Where batches come from: graphs of the driver's are made only while nothing runs on the device. Making one may wait for every
//! kernel of the context, with the context's lock held, so that nobody could launch anything (docs/notes/launch-batches.md).
//!
//! Owns the batches of each length that no stream has yet, and what runs have asked for. One a device. Called by streams and
//! runs, whose launches go without until there is a batch. Must not know clients.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Formatter};
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use cuda_abi::types::CUcontext;
use parking_lot::Mutex;

use crate::device::Device;
use crate::driver::Driver;
use crate::submit::launch_batch::{LENGTHS, LaunchBatch};
use crate::sync::Handle;

/// Batches of each length that there are at least and at most, those that streams have among them. All lengths together take about
/// 400 KiB of the device's memory.
const LEAST: usize = 8;
const MOST: usize = 128;

/// So many more than there are streams.
const AHEAD: usize = 4;

/// Graphs that are made in one turn of the gate, each in some 50 to 200 µs.
const AT_A_TIME: usize = 4;

/// Runs that wait for theirs at most.
const MOST_WANTS: usize = 4096;

/// What makes a graph of a run's.
type Want = Box<dyn FnOnce(&Driver) + Send>;

/// The batches of one device.
#[derive(Debug)]
pub(crate) struct BatchSupply {
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By context in which kernels run.
    shelves: BTreeMap<usize, Shelf>,
    wants: VecDeque<Want>,
    /// There will be a turn.
    is_asked: bool,
}

impl Debug for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("wants", &self.wants.len())
            .finish_non_exhaustive()
    }
}

/// The batches of one context.
#[derive(Debug)]
struct Shelf {
    home: Handle<CUcontext>,
    /// Streams that may come for some.
    streams: usize,
    /// As [`LENGTHS`]: how many there are, and those that nobody has.
    made: [usize; LENGTHS.len()],
    spare: [Vec<LaunchBatch>; LENGTHS.len()],
}

impl Shelf {
    /// The place of a length of which there are too few.
    fn lacks(&self) -> Option<usize> {
        let wanted = (self.streams + AHEAD).clamp(LEAST, MOST);
        self.made.iter().position(|&made| made < wanted)
    }
}

impl BatchSupply {
    /// One for a device, whose whole context has batches from the beginning.
    pub(crate) fn new(device: &Arc<Device>) -> Arc<Self> {
        let supply = Arc::new(Self {
            device: Arc::clone(device),
            state: Mutex::default(),
        });
        if device.signal_kernel().is_some()
            && let Some(home) = device.parts().whole().home()
        {
            let mut state = supply.state.lock();
            state.shelf(home);
            supply.ask(&mut state);
        }
        supply
    }

    /// There is one stream more whose kernels run in this context.
    pub(crate) fn add_stream(self: &Arc<Self>, home: Handle<CUcontext>) {
        let mut state = self.state.lock();
        let shelf = state.shelf(home);
        shelf.streams += 1;
        if shelf.lacks().is_some() {
            self.ask(&mut state);
        }
    }

    /// There is one less.
    pub(crate) fn remove_stream(&self, home: Handle<CUcontext>) {
        self.state.lock().shelf(home).streams -= 1;
    }

    /// A batch of the length in this place of [`LENGTHS`], if there is one. It goes back by [`BatchSupply::end`].
    pub(crate) fn take(
        self: &Arc<Self>,
        home: Handle<CUcontext>,
        place: usize,
    ) -> Option<LaunchBatch> {
        let mut state = self.state.lock();
        let shelf = state.shelf(home);
        let batch = shelf.spare[place].pop();
        if batch.is_none() && shelf.lacks().is_some() {
            self.ask(&mut state);
        }
        batch
    }

    /// Ends a batch that was taken.
    pub(crate) fn end(
        self: &Arc<Self>,
        home: Handle<CUcontext>,
        place: usize,
        batch: &LaunchBatch,
    ) {
        batch.end(&self.device);
        let mut state = self.state.lock();
        let shelf = state.shelf(home);
        shelf.made[place] -= 1;
        if shelf.lacks().is_some() {
            self.ask(&mut state);
        }
    }

    /// Calls while nothing runs on the device, with its context current. Whether it will; too much may wait already.
    pub(crate) fn when_idle(self: &Arc<Self>, want: impl FnOnce(&Driver) + Send + 'static) -> bool {
        let mut state = self.state.lock();
        let is_room = state.wants.len() < MOST_WANTS;
        if is_room {
            state.wants.push_back(Box::new(want));
            self.ask(&mut state);
        }
        is_room
    }

    fn ask(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.is_asked, true) {
            let supply: Weak<Self> = Arc::downgrade(self);
            self.device.when_idle(0, move |driver| {
                if let Some(supply) = supply.upgrade() {
                    supply.make(driver);
                }
            });
        }
    }

    /// Makes some of what is wanted. Nothing runs on the device.
    fn make(self: &Arc<Self>, driver: &Driver) {
        let mut failed = false;
        for _ in 0..AT_A_TIME {
            let mut state = self.state.lock();
            if let Some(want) = state.wants.pop_front() {
                drop(state);
                want(driver);
                continue;
            }
            let mut shelves = state.shelves.values();
            let lacks = shelves.find_map(|shelf| Some((shelf.home, shelf.lacks()?)));
            drop(state);
            let Some((home, place)) = lacks else { break };
            failed = self.make_one(home, place).is_err();
            if failed {
                break;
            }
        }
        let mut state = self.state.lock();
        state.is_asked = false;
        // Who finds none asks again.
        if !state.wants.is_empty() || (!failed && state.lacks_any()) {
            self.ask(&mut state);
        }
    }

    fn make_one(&self, home: Handle<CUcontext>, place: usize) -> Result<(), CUresult> {
        let signal_kernel = self.device.signal_kernel();
        let signal_kernel = signal_kernel.ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
        let batch = self.device.within(home, |driver| {
            LaunchBatch::blank(driver, signal_kernel, LENGTHS[place])
        })?;
        let mut state = self.state.lock();
        let shelf = state.shelf(home);
        shelf.made[place] += 1;
        shelf.spare[place].push(batch);
        Ok(())
    }
}

impl State {
    fn shelf(&mut self, home: Handle<CUcontext>) -> &mut Shelf {
        self.shelves
            .entry(home.0.0.addr())
            .or_insert_with(|| Shelf {
                home,
                streams: 0,
                made: [0; LENGTHS.len()],
                spare: Default::default(),
            })
    }

    fn lacks_any(&self) -> bool {
        self.shelves.values().any(|shelf| shelf.lacks().is_some())
    }
}

impl Drop for BatchSupply {
    fn drop(&mut self) {
        let shelves = self.state.get_mut().shelves.values();
        for batch in shelves.flat_map(|shelf| shelf.spare.iter().flatten()) {
            batch.end(&self.device);
        }
    }
}
