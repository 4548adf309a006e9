//! A grid whose kernel launches others, with what it has launched: a grid is over when its blocks have ended and all
//! that they launched is over.
//!
//! What a grid launches goes into its own streams (each block has one without a name), each of which runs one thing
//! at a time, or begins by itself ("fire and forget"), or when all the rest is over ("tail"). Made with the grid;
//! called by its blocks and by whoever ends its work. Must not know the client's streams.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use engine::CUresult;
use protocol::operations::{self, HoldReason};

use self::calls::Prepared;
use self::streams::{Begins, Streams, What};
use crate::client_state::ClientState;
use crate::copy::Transfer;
use crate::grid::{Grid, Place};
use crate::launch_pool::{Begin, Slot};
use crate::work::{Job, JobSource, Part, Piece, Spent, Task};

mod calls;
mod errors;
pub(crate) mod graph;
mod queries;
mod streams;

/// How deep grids are nested: one that the client launched is at 0, and one at this depth launches none.
const DEEPEST: u32 = 24;

/// Who is told when a grid is over.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The client's stream.
    Host(Arc<dyn JobSource>, Part),
    /// The grid that launched it.
    Parent(Parent),
}

/// Where in its parent something was launched.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    family: Arc<Family>,
    /// The parent's stream that goes on afterwards.
    stream: Option<u64>,
    block: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Family {
    me: Weak<Self>,
    place: Place,
    depth: u32,
    state: Mutex<State>,
    /// Once it has begun.
    root: OnceLock<Root>,
}

/// A launch of the client's, with what its kernel launches if it does.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) grid: Grid,
    pub(crate) family: Option<Arc<Family>>,
}

/// For whom a grid's work and all that it launches is accounted, and how urgent it is.
#[derive(Clone, Debug)]
struct Root {
    source: Arc<dyn JobSource>,
    part: Part,
    priority: i32,
}

#[derive(Debug, Default)]
struct State {
    /// `None` before it begins, and once a tail has taken its place.
    origin: Option<Origin>,
    /// Parameter buffers of launches that are to come.
    prepared: HashMap<u64, Prepared>,
    streams: Streams,
    tails: VecDeque<Queued>,
    /// What was launched by itself and is not over, a tail among it.
    alone: u64,
    /// Blocks that wait for room for their launches.
    blocked: HashSet<u64>,
    /// It counts among the grids that are under way.
    resident: bool,
    blocks_ended: bool,
    error: Option<CUresult>,
}

/// A grid that was launched and has not begun.
#[derive(Debug)]
struct Queued {
    grid: Grid,
    family: Arc<Family>,
    waiting: Waiting,
}

/// What something takes that has not begun.
#[derive(Debug)]
struct Waiting {
    _slot: Slot,
    client: Arc<ClientState>,
    bytes: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.client.waited(self.bytes);
    }
}

/// Something that is to begin now.
#[derive(Debug)]
enum Start {
    Grid(Box<StartGrid>),
    Transfer(Box<Transfer>, Parent),
}

#[derive(Debug)]
struct StartGrid {
    queued: Queued,
    origin: Origin,
    root: Root,
}

impl Launched {
    /// Checks a client's launch.
    ///
    /// # Errors
    /// As [`Grid::new`].
    pub(crate) fn new(
        place: Place,
        priority: i32,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<Self, CUresult> {
        let launches = place.module.kernel(request.kernel)?.asks_runtime;
        let family = launches.then(|| Family::new(place.clone(), 0));
        let runtime = family.as_ref().map(|family| Arc::clone(family) as _);
        let grid = Grid::new(&place, priority, request, data, runtime)?;
        Ok(Self { grid, family })
    }
}

impl Family {
    fn new(place: Place, depth: u32) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            place,
            depth,
            state: Mutex::default(),
            root: OnceLock::new(),
        })
    }

    /// The grid's blocks are about to begin.
    pub(crate) fn begin(&self, origin: Origin, priority: i32) {
        if let Origin::Host(source, part) = &origin {
            self.root.get_or_init(|| Root {
                source: Arc::clone(source),
                part: *part,
                priority,
            });
        }
        self.state.lock().origin = Some(origin);
    }

    /// The grid's blocks have ended. What comes is the result of the whole and who is to be told, if that is over;
    /// else they are told once it is.
    pub(crate) fn end(
        &self,
        result: Result<(), CUresult>,
    ) -> Option<(Origin, Result<(), CUresult>)> {
        let mut state = self.state.lock();
        state.blocks_ended = true;
        if let Err(code) = result {
            state.fail(code);
        }
        for address in std::mem::take(&mut state.prepared).into_keys() {
            self.free(address);
        }
        let blocked = !std::mem::take(&mut state.blocked).is_empty();
        if state.resident && blocked {
            self.place.client.launches.set_blocked(false);
        }
        let over = self.settle(&mut state);
        drop(state);
        over.and_then(|over| self.carry_on(over))
    }

    /// It is no longer under way. After all that waited for its end has begun: who finds no room meanwhile would else be
    /// told that nobody will make some.
    fn leave(&self) {
        if std::mem::take(&mut self.state.lock().resident) {
            self.place.client.launches.ended();
        }
    }

    /// Something that the grid launched is over.
    fn child_ended(&self, stream: Option<u64>, block: u64, result: Result<(), CUresult>) {
        let mut begins = Vec::new();
        let mut state = self.state.lock();
        if let Err(code) = result {
            state.fail(code);
        }
        match stream {
            Some(stream) => begins = state.streams.ended(stream, block),
            None => state.alone -= 1,
        }
        let over = self.settle(&mut state);
        drop(state);
        self.begin_all(begins);
        if let Some((origin, result)) = over.and_then(|over| self.carry_on(over)) {
            tell(origin, result);
        }
    }

    /// Whether all is over, or only tails are to come, of which the next one then begins.
    fn settle(&self, state: &mut State) -> Option<Over> {
        if !state.blocks_ended || state.alone > 0 || !state.streams.is_idle() {
            return None;
        }
        // Before anybody is told: no thread is left that could name them.
        state.streams = Streams::default();
        let Some(tail) = state.tails.pop_front() else {
            let result = state.error.map_or(Ok(()), Err);
            return state.origin.take().map(|origin| Over::All(origin, result));
        };
        // The last one takes this grid's place, so that a chain of tails is no longer than one of them.
        let origin = if state.tails.is_empty() {
            state.origin.take()?
        } else {
            state.alone += 1;
            Origin::Parent(self.parent(None, 0)?)
        };
        Some(Over::Tail(tail, origin))
    }

    /// Begins the tail, or gives who is to be told, and what.
    fn carry_on(&self, over: Over) -> Option<(Origin, Result<(), CUresult>)> {
        match over {
            Over::All(origin, result) => Some((origin, result)),
            Over::Tail(queued, origin) => {
                if let Some(root) = self.root.get().cloned() {
                    self.start(Start::Grid(Box::new(StartGrid {
                        queued,
                        origin,
                        root,
                    })));
                }
                None
            }
        }
    }

    fn parent(&self, stream: Option<u64>, block: u64) -> Option<Parent> {
        Some(Parent {
            family: self.me.upgrade()?,
            stream,
            block,
        })
    }

    /// Begins what streams give out. No lock is held.
    fn begin_all(&self, begins: Begins) {
        for (stream, item) in begins {
            let Some(parent) = self.parent(Some(stream), item.block) else {
                return;
            };
            match item.what {
                What::Grid(queued) => self.start(self.grid_start(*queued, parent)),
                What::Transfer(transfer, waiting) => {
                    drop(waiting);
                    self.start(Start::Transfer(transfer, parent));
                }
                // These do not come out of streams.
                What::Record(..) | What::Wait(..) => {}
            }
        }
    }

    fn grid_start(&self, queued: Queued, parent: Parent) -> Start {
        let root = self.root.get().cloned();
        Start::Grid(Box::new(StartGrid {
            queued,
            origin: Origin::Parent(parent),
            root: root.expect("invariant: a grid that launches has begun"),
        }))
    }

    /// Begins something. No lock is held.
    fn start(&self, start: Start) {
        let client = &self.place.client;
        match start {
            Start::Grid(grid) => client.launches.submit(grid),
            Start::Transfer(transfer, parent) => {
                let units = transfer.units();
                let Some(root) = self.root.get() else {
                    return;
                };
                let context = Arc::clone(&self.place.context);
                let left = Piece::whole(units);
                let source = Arc::new(parent);
                let job = Job::new(source, root.part, context, root.priority, transfer, left);
                client
                    .scheduler
                    .submit(&client.account, Arc::new(job), units as usize);
            }
        }
    }
}

/// What comes next of a grid whose blocks and ordinary launches are over.
enum Over {
    Tail(Queued, Origin),
    All(Origin, Result<(), CUresult>),
}

impl State {
    /// Notes the first error. What has not begun never will.
    fn fail(&mut self, code: CUresult) {
        self.error.get_or_insert(code);
        self.tails.clear();
        self.streams.clear();
    }
}

fn tell(origin: Origin, result: Result<(), CUresult>) {
    match origin {
        Origin::Host(source, part) => source.job_ended(part, result),
        Origin::Parent(parent) => {
            let Parent {
                family,
                stream,
                block,
            } = parent;
            family.child_ended(stream, block, result);
        }
    }
}

impl Begin for StartGrid {
    fn begin(self: Box<Self>) {
        let Self {
            queued,
            origin,
            root,
        } = *self;
        let Queued {
            grid,
            family,
            waiting,
        } = queued;
        drop(waiting);
        let part = root.part;
        family.root.get_or_init(|| root);
        family.state.lock().resident = true;
        family.begin(origin, grid.priority());
        let place = &family.place;
        let units = grid.units();
        let threads = usize::try_from(units).unwrap_or(usize::MAX);
        let job = Job::new(
            Arc::clone(&family) as _,
            part,
            Arc::clone(&place.context),
            grid.priority(),
            Box::new(grid),
            Piece::whole(units),
        );
        let client = &place.client;
        client
            .scheduler
            .submit(&client.account, Arc::new(job), threads);
    }
}

impl JobSource for Family {
    fn spent(&self, part: Part, spent: Spent<'_>) {
        if let Some(root) = self.root.get() {
            root.source.spent(part, spent);
        }
    }

    fn waited(&self, part: Part, device: u32, waited: Duration, why: HoldReason) {
        if let Some(root) = self.root.get() {
            root.source.waited(part, device, waited, why);
        }
    }

    fn job_ended(self: Arc<Self>, _: Part, result: Result<(), CUresult>) {
        if let Some((origin, result)) = self.end(result) {
            tell(origin, result);
        }
        self.leave();
    }
}

impl JobSource for Parent {
    fn spent(&self, part: Part, spent: Spent<'_>) {
        self.family.spent(part, spent);
    }

    fn waited(&self, part: Part, device: u32, waited: Duration, why: HoldReason) {
        self.family.waited(part, device, waited, why);
    }

    fn job_ended(self: Arc<Self>, _: Part, result: Result<(), CUresult>) {
        self.family.child_ended(self.stream, self.block, result);
    }
}
