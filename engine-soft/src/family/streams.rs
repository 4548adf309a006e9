//! The streams and events of one grid: what is in them, in which order it begins, and how much of it is not over.
//!
//! Owns the queues. Called by the grid's [`Family`](super::Family), which begins what comes out and says when that is
//! over. Must not know how anything is begun.

use std::collections::{HashMap, VecDeque};

use super::{Queued, Waiting};
use crate::copy::Transfer;
use crate::launch_pool::Object;

/// The first handle: lower numbers are CUDA's names of special streams.
const FIRST: u64 = 0x100;
/// Added to a block's number: its stream without a name.
const UNNAMED: u64 = 1 << 63;

/// Something in a stream.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) what: What,
    /// The block that asked for it.
    pub(super) block: u64,
}

#[derive(Debug)]
pub(super) enum What {
    Grid(Box<Queued>),
    Transfer(Box<Transfer>, Waiting),
    /// Of this event.
    Record(u64, Object),
    /// For so many records of this event.
    Wait(u64, u64, Object),
}

/// Items that are to begin now, each with its stream, which is then told of its end.
pub(super) type Begins = Vec<(u64, Item)>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: HashMap<u64, Stream>,
    events: HashMap<u64, Event>,
    handles: u64,
    /// Items that are not over.
    outstanding: u64,
    /// Of them by the block that asked for them.
    by_block: HashMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<Item>,
    busy: bool,
    destroyed: bool,
    /// `None` for a stream without a name, which is there only while something is in it.
    _object: Option<Object>,
}

#[derive(Debug)]
struct Event {
    _object: Object,
    /// Records that were asked for, and those that were made.
    asked: u64,
    made: u64,
    /// Streams that wait for it.
    waiting: Vec<u64>,
    destroyed: bool,
}

impl Streams {
    /// The stream that a handle means for a block: its own one without a name for CUDA's default streams.
    pub(super) fn find(&self, handle: u64, block: u64) -> Option<u64> {
        match handle {
            0..=2 => Some(UNNAMED | block),
            _ => {
                let stream = self.streams.get(&handle);
                stream
                    .is_some_and(|stream| !stream.destroyed)
                    .then_some(handle)
            }
        }
    }

    pub(super) fn create_stream(&mut self, object: Object) -> u64 {
        let handle = self.handle();
        let stream = Stream {
            _object: Some(object),
            ..Stream::default()
        };
        self.streams.insert(handle, stream);
        handle
    }

    /// False for a stream that is none, or has no name.
    pub(super) fn destroy_stream(&mut self, handle: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&handle) else {
            return false;
        };
        if stream.destroyed || handle & UNNAMED != 0 {
            return false;
        }
        stream.destroyed = true;
        self.forget(handle);
        true
    }

    pub(super) fn create_event(&mut self, object: Object) -> u64 {
        let handle = self.handle();
        let event = Event {
            _object: object,
            asked: 0,
            made: 0,
            waiting: Vec::new(),
            destroyed: false,
        };
        self.events.insert(handle, event);
        handle
    }

    /// False for an event that is none.
    pub(super) fn destroy_event(&mut self, handle: u64) -> bool {
        match self.events.get_mut(&handle) {
            Some(event) if !event.destroyed => {
                event.destroyed = true;
                self.forget_event(handle);
                true
            }
            _ => false,
        }
    }

    fn handle(&mut self) -> u64 {
        self.handles += 1;
        FIRST + self.handles
    }

    /// Adds something to a stream that [`Streams::find`] gave.
    pub(super) fn push(&mut self, stream: u64, item: Item) -> Begins {
        self.outstanding += 1;
        *self.by_block.entry(item.block).or_default() += 1;
        self.streams
            .entry(stream)
            .or_default()
            .queue
            .push_back(item);
        self.advance(stream)
    }

    /// Has an event recorded in a stream. `None` if the event is none.
    pub(super) fn record(
        &mut self,
        stream: u64,
        event: u64,
        (block, object): (u64, Object),
    ) -> Option<Begins> {
        let there = self.events.get_mut(&event);
        there.filter(|there| !there.destroyed)?.asked += 1;
        let what = What::Record(event, object);
        Some(self.push(stream, Item { what, block }))
    }

    /// Lets a stream wait for the records of an event that were asked for until now; as [`Streams::record`].
    pub(super) fn wait(
        &mut self,
        stream: u64,
        event: u64,
        (block, object): (u64, Object),
    ) -> Option<Begins> {
        let there = self.events.get(&event);
        let records = there.filter(|there| !there.destroyed)?.asked;
        let what = What::Wait(event, records, object);
        Some(self.push(stream, Item { what, block }))
    }

    /// What a stream had begun is over.
    pub(super) fn ended(&mut self, stream: u64, block: u64) -> Begins {
        self.over(block);
        if let Some(there) = self.streams.get_mut(&stream) {
            there.busy = false;
        }
        self.advance(stream)
    }

    /// Whether all is over.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether all that a block asked for is over.
    pub(super) fn is_block_idle(&self, block: u64) -> bool {
        !self.by_block.contains_key(&block)
    }

    /// Drops what has not begun.
    pub(super) fn clear(&mut self) {
        for stream in self.streams.values_mut() {
            self.outstanding -= stream.queue.len() as u64;
            stream.queue.clear();
        }
    }

    fn over(&mut self, block: u64) {
        self.outstanding -= 1;
        if let Some(count) = self.by_block.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.by_block.remove(&block);
            }
        }
    }

    /// Takes out of a stream, and of those that wait for its events, what can begin.
    fn advance(&mut self, stream: u64) -> Begins {
        let mut begins = Vec::new();
        let mut moving = vec![stream];
        while let Some(handle) = moving.pop() {
            while let Some(item) = self.next(handle) {
                match item.what {
                    What::Record(event, object) => {
                        drop(object);
                        self.over(item.block);
                        if let Some(there) = self.events.get_mut(&event) {
                            there.made += 1;
                            moving.append(&mut there.waiting);
                        }
                        self.forget_event(event);
                    }
                    What::Wait(_, _, object) => {
                        drop(object);
                        self.over(item.block);
                    }
                    What::Grid(_) | What::Transfer(..) => {
                        if let Some(stream) = self.streams.get_mut(&handle) {
                            stream.busy = true;
                        }
                        begins.push((handle, item));
                    }
                }
            }
            self.forget(handle);
        }
        begins
    }

    /// What a stream can go on with. If it waits for an event, that knows of it.
    fn next(&mut self, handle: u64) -> Option<Item> {
        let stream = self.streams.get_mut(&handle)?;
        if stream.busy {
            return None;
        }
        if let What::Wait(event, records, _) = &stream.queue.front()?.what
            && let Some(event) = self.events.get_mut(event)
            && event.made < *records
        {
            event.waiting.push(handle);
            return None;
        }
        stream.queue.pop_front()
    }

    /// Forgets a stream that nothing is in and nobody can name.
    fn forget(&mut self, handle: u64) {
        if let Some(stream) = self.streams.get(&handle)
            && stream.queue.is_empty()
            && !stream.busy
            && (stream.destroyed || handle & UNNAMED != 0)
        {
            self.streams.remove(&handle);
        }
    }

    /// Forgets an event that nobody can name and nobody waits for.
    fn forget_event(&mut self, handle: u64) {
        if let Some(event) = self.events.get(&handle)
            && event.destroyed
            && event.made == event.asked
        {
            self.events.remove(&handle);
        }
    }
}
