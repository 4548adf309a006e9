//! The order of one client's work: what must be complete before a record may go to the engine.
//!
//! A stream's records are numbered by the client from 1, without gaps. A record depends
//! * on its stream's earlier records, which need only have been handed to the engine, since the
//!   engine's streams are first in, first out;
//! * if it is a wait, on the completion of another stream's work up to a position;
//! * if it is a gate, on the client's word that what the client runs there itself is done;
//! * if it is a kernel in a stream that shares a connection, on what the kernels that went through the
//!   connection before wait for: connections are first in, first out, as a GPU's hardware queues are;
//! * if it is in the legacy stream of a context (its slot is the context's id), on the completion of
//!   everything posted earlier in the context's blocking streams, and if it is in a blocking stream,
//!   on the completion of the legacy stream's earlier work. Non-blocking streams are free of that.
//!
//! A record whose dependencies are complete is handed over at once; any other is held in its stream's
//! list, and the session takes the next record: no stream ever blocks another.
//!
//! Actions that concern all streams (frees, unloads, a context's end) are deferred until everything
//! taken before them is complete.
//!
//! Owns the rules and the lists. Knows neither rings nor engines nor what records hold (`T`) and
//! actions do (`A`); it learns of completions from `progress` alone.

use std::collections::VecDeque;

use cuda_abi::CUresult;
use cuda_abi::operations::{
    At, CONNECTIONS, CONTEXT_SLOTS, STREAM_DEPTH, STREAM_NON_BLOCKING, STREAM_SLOTS,
};

use crate::progress::{Progress, gate};

mod words;

use words::Dependency;
pub use words::{Held, Step, Verdict, Violation};

#[derive(Debug)]
struct Entry<T> {
    /// What must be complete; those met are taken from the end.
    needs: Vec<Dependency>,
    /// What the entry costs in memory.
    bytes: usize,
    item: Held<T>,
}

#[derive(Debug)]
struct Stream<T> {
    context: u32,
    blocking: bool,
    /// Nothing more may come: the stream was destroyed, or its context was.
    closed: bool,
    /// The last position taken.
    taken: u64,
    /// The legacy stream's last position that an earlier record of this stream waited for.
    legacy_seen: u64,
    /// Whether the stream is in `Order::active`.
    active: bool,
    /// Whether the stream is in its context's `fresh`.
    fresh: bool,
    /// The connection of its context that its kernels go through, if any.
    connection: Option<usize>,
    held: VecDeque<Entry<T>>,
}

#[derive(Debug, Default)]
struct Context {
    alive: bool,
    /// Blocking streams that took work since the legacy stream last waited for them.
    fresh: Vec<u32>,
    /// By connection, what must be complete for the kernels that went through it to start.
    connections: Vec<Vec<Dependency>>,
}

#[derive(Debug)]
struct Deferred<A> {
    needs: Vec<Dependency>,
    /// And what each costs in memory.
    actions: VecDeque<(A, usize)>,
}

/// The streams, contexts and waiting lists of one client.
#[derive(Debug)]
pub struct Order<T, A> {
    streams: Vec<Option<Box<Stream<T>>>>,
    contexts: Vec<Context>,
    /// Streams that hold something, in no order.
    holding: Vec<u32>,
    /// Streams that may have unfinished work.
    active: Vec<u32>,
    deferred: VecDeque<Deferred<A>>,
    /// Whether a record was taken since the last action was deferred.
    moved: bool,
    held_bytes: usize,
}

impl<T, A> Default for Order<T, A> {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            contexts: (0..CONTEXT_SLOTS).map(|_| Context::default()).collect(),
            holding: Vec::new(),
            active: Vec::new(),
            deferred: VecDeque::new(),
            moved: true,
            held_bytes: 0,
        }
    }
}

impl<T, A> Order<T, A> {
    fn stream(&self, slot: u32) -> Option<&Stream<T>> {
        self.streams.get(slot as usize)?.as_deref()
    }

    fn stream_mut(&mut self, slot: u32) -> Option<&mut Stream<T>> {
        self.streams.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Bytes that held records and deferred actions take; the session stops reading beyond a bound.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether a context is alive.
    #[must_use]
    pub fn has_context(&self, context: u32) -> bool {
        self.contexts
            .get(context as usize)
            .is_some_and(|context| context.alive)
    }

    /// Notes a new context, and with it its legacy stream.
    ///
    /// # Errors
    /// When the slot does not exist or is in use.
    pub fn context_created(&mut self, id: u32, progress: &Progress) -> Result<(), Violation> {
        let context = self
            .contexts
            .get_mut(id as usize)
            .filter(|context| !context.alive)
            .ok_or(Violation::Context(id))?;
        *context = Context {
            alive: true,
            ..Context::default()
        };
        self.place(id, id, false, progress);
        Ok(())
    }

    /// Notes that a context has ended: its streams take nothing more. Their held records were
    /// released before, since a context's end is deferred behind all earlier work.
    pub fn context_destroyed(&mut self, id: u32) {
        if let Some(context) = self.contexts.get_mut(id as usize) {
            *context = Context::default();
        }
        for stream in self.streams.iter_mut().flatten() {
            if stream.context == id {
                stream.closed = true;
            }
        }
    }

    /// Whether a stream can be made in a slot now: `Ok(false)` says that the slot's former stream
    /// has work unfinished, and that the record is to be handed to [`Order::hold_creation`].
    ///
    /// # Errors
    /// When the slot is a legacy stream's, does not exist, or holds a living stream.
    pub fn may_create(&self, slot: u32, progress: &Progress) -> Result<bool, Violation> {
        if !(CONTEXT_SLOTS..STREAM_SLOTS).contains(&slot) {
            return Err(Violation::Slot(slot));
        }
        match self.stream(slot) {
            None => Ok(true),
            Some(stream) if stream.closed => Ok(progress.completed(slot) >= stream.taken),
            Some(_) => Err(Violation::Slot(slot)),
        }
    }

    /// Notes a new stream. Its numbers go on where those of the slot's former stream ended, so that
    /// the slot's completion word never goes back.
    ///
    /// # Errors
    /// When the context does not live.
    pub fn stream_created(
        &mut self,
        slot: u32,
        context: u32,
        flags: u32,
        progress: &Progress,
    ) -> Result<(), Violation> {
        if !self.has_context(context) {
            return Err(Violation::Context(context));
        }
        self.place(slot, context, flags & STREAM_NON_BLOCKING == 0, progress);
        Ok(())
    }

    fn place(&mut self, slot: u32, context: u32, blocking: bool, progress: &Progress) {
        let at = slot as usize;
        if self.streams.len() <= at {
            self.streams.resize_with(at + 1, || None);
        }
        progress.set_context(slot, context);
        match &mut self.streams[at] {
            Some(stream) => {
                // The former stream has finished by the time that this one takes work.
                if std::mem::take(&mut stream.fresh)
                    && let Some(former) = self.contexts.get_mut(stream.context as usize)
                {
                    former.fresh.retain(|&other| other != slot);
                }
                stream.context = context;
                stream.blocking = blocking;
                stream.closed = false;
                stream.connection = None;
                stream.legacy_seen = 0;
            }
            place @ None => {
                *place = Some(Box::new(Stream {
                    context,
                    blocking,
                    closed: false,
                    taken: progress.completed(slot),
                    legacy_seen: 0,
                    active: false,
                    fresh: false,
                    connection: None,
                    held: VecDeque::new(),
                }));
            }
        }
    }

    /// Has a stream's kernels go through a connection of its context. One that there is not is as good
    /// as none.
    pub fn connect(&mut self, slot: u32, connection: u32) {
        if let Some(stream) = self.stream_mut(slot) {
            stream.connection = (connection < CONNECTIONS).then_some(connection as usize);
        }
    }

    /// Takes the next record of a stream. If something must be complete before, `item` is called for
    /// the session's own copy of it and what that costs in bytes, and it is held.
    ///
    /// # Errors
    /// When the client broke a rule.
    pub fn admit(
        &mut self,
        at: At,
        step: Step,
        progress: &Progress,
        item: impl FnOnce() -> (T, usize),
    ) -> Result<Verdict, Violation> {
        let Some(stream) = self
            .streams
            .get_mut(at.stream as usize)
            .and_then(Option::as_deref_mut)
        else {
            return Err(Violation::NoStream(at.stream));
        };
        if at.sequence != stream.taken.wrapping_add(1) {
            return Err(Violation::Sequence {
                stream: at.stream,
                from: stream.taken,
                to: at.sequence,
            });
        }
        if at.sequence - progress.completed(at.stream).min(stream.taken) > STREAM_DEPTH {
            return Err(Violation::Depth(at.stream));
        }
        stream.taken = at.sequence;
        self.moved = true;
        if !stream.active {
            stream.active = true;
            self.active.push(at.stream);
        }
        if stream.closed {
            let before = at.sequence - 1;
            if progress.completed(at.stream) >= before {
                return Ok(Verdict::Closed);
            }
            let needs = vec![Dependency {
                stream: at.stream,
                until: before,
            }];
            self.hold(
                at.stream,
                needs,
                0,
                Held::Mark(at, Err(CUresult::ERROR_INVALID_HANDLE)),
                progress,
            );
            return Ok(Verdict::Held);
        }
        stream.closed = matches!(step, Step::Last) && at.stream >= CONTEXT_SLOTS;

        let mut needs = Vec::new();
        let mut need = |dependency: Dependency| {
            if !dependency.met(progress) {
                needs.push(dependency);
            }
        };
        // A wait for the stream itself is met by its order.
        if let Step::Wait { on, until } = step
            && on != at.stream
        {
            need(Dependency { stream: on, until });
        }
        if matches!(step, Step::Gate) {
            need(Dependency {
                stream: gate(at.stream),
                until: at.sequence,
            });
        }
        let context = stream.context;
        if let (Step::Kernel, Some(connection)) = (step, stream.connection)
            && let Some(home) = self.contexts.get_mut(context as usize)
        {
            if home.connections.len() <= connection {
                home.connections.resize_with(connection + 1, Vec::new);
            }
            let ahead = &mut home.connections[connection];
            ahead.retain(|dependency| !dependency.met(progress));
            for dependency in ahead.iter().filter(|ahead| ahead.stream != at.stream) {
                need(*dependency);
            }
            // Those behind it come when it could start: when its stream has nothing before it.
            ahead.retain(|dependency| dependency.stream != at.stream);
            if at.sequence > 1 {
                ahead.push(Dependency {
                    stream: at.stream,
                    until: at.sequence - 1,
                });
            }
        }
        if at.stream == context {
            // The legacy stream: an earlier record of it waited for everything that is not fresh.
            if let Some(home) = self.contexts.get_mut(context as usize) {
                for slot in std::mem::take(&mut home.fresh) {
                    let Some(other) = self
                        .streams
                        .get_mut(slot as usize)
                        .and_then(Option::as_deref_mut)
                    else {
                        continue;
                    };
                    other.fresh = false;
                    need(Dependency {
                        stream: slot,
                        until: other.taken,
                    });
                }
            }
        } else if stream.blocking {
            if !stream.fresh
                && let Some(home) = self.contexts.get_mut(context as usize)
            {
                stream.fresh = true;
                home.fresh.push(at.stream);
            }
            let seen = stream.legacy_seen;
            let legacy = self.stream(context).map_or(0, |legacy| legacy.taken);
            if legacy > seen {
                need(Dependency {
                    stream: context,
                    until: legacy,
                });
                if let Some(stream) = self.stream_mut(at.stream) {
                    stream.legacy_seen = legacy;
                }
            }
        }

        let behind = self
            .stream(at.stream)
            .is_some_and(|stream| !stream.held.is_empty());
        if needs.is_empty() && !behind {
            return Ok(Verdict::Submit);
        }
        let (item, bytes) = item();
        self.hold(at.stream, needs, bytes, Held::Record(item), progress);
        Ok(Verdict::Held)
    }

    fn hold(
        &mut self,
        slot: u32,
        needs: Vec<Dependency>,
        bytes: usize,
        item: Held<T>,
        progress: &Progress,
    ) {
        let bytes = bytes + size_of::<Entry<T>>() + needs.len() * size_of::<Dependency>();
        let Some(stream) = self.stream_mut(slot) else {
            return;
        };
        let first = stream.held.is_empty();
        if first {
            ask(&needs, progress);
        }
        stream.held.push_back(Entry { needs, bytes, item });
        self.held_bytes += bytes;
        if first {
            self.holding.push(slot);
        }
    }

    /// Holds the record that makes a stream until the slot's former stream has finished. The stream
    /// takes work meanwhile, which is held behind it.
    ///
    /// # Errors
    /// When the context does not live.
    pub fn hold_creation(
        &mut self,
        slot: u32,
        context: u32,
        flags: u32,
        progress: &Progress,
        item: (T, usize),
    ) -> Result<(), Violation> {
        let until = self.stream(slot).map_or(0, |stream| stream.taken);
        self.stream_created(slot, context, flags, progress)?;
        let needs = vec![Dependency {
            stream: slot,
            until,
        }];
        self.hold(slot, needs, item.1, Held::Record(item.0), progress);
        Ok(())
    }

    /// Notes that the engine did not take a record which it was just handed. Returns true if nothing
    /// is before it, so that it is complete now; else its position is held as a mark, ahead of the
    /// stream's other held records, and is complete once the work before it is.
    #[must_use]
    pub fn not_taken(&mut self, at: At, error: CUresult, progress: &Progress) -> bool {
        if progress.completed(at.stream) + 1 >= at.sequence {
            return true;
        }
        let Some(stream) = self.stream_mut(at.stream) else {
            return true;
        };
        let first = stream.held.is_empty();
        let needs = vec![Dependency {
            stream: at.stream,
            until: at.sequence - 1,
        }];
        ask(&needs, progress);
        let bytes = size_of::<Entry<T>>() + size_of::<Dependency>();
        stream.held.push_front(Entry {
            needs,
            bytes,
            item: Held::Mark(at, Err(error)),
        });
        self.held_bytes += bytes;
        if first {
            self.holding.push(at.stream);
        }
        false
    }

    /// The stream that stands at `index` among those that hold something.
    #[must_use]
    pub fn holding(&self, index: usize) -> Option<u32> {
        self.holding.get(index).copied()
    }

    /// Takes the first held item of the stream at `index` of [`Order::holding`], if everything that
    /// it needs is complete. If not, `progress` is asked to say when. Removes the stream from those
    /// that hold something when its list is empty, so that another stands at `index`.
    pub fn pop_ready(&mut self, index: usize, progress: &Progress) -> Option<Held<T>> {
        let slot = *self.holding.get(index)?;
        let stream = self.streams.get_mut(slot as usize)?.as_deref_mut()?;
        if let Some(front) = stream.held.front_mut()
            && !all_met(&mut front.needs, progress)
        {
            return None;
        }
        let entry = stream.held.pop_front();
        if stream.held.is_empty() {
            self.holding.swap_remove(index);
        }
        let entry = entry?;
        self.held_bytes = self.held_bytes.saturating_sub(entry.bytes);
        Some(entry.item)
    }

    /// Defers an action until everything taken so far is complete. Gives it back if that holds now.
    pub fn defer(&mut self, action: A, progress: &Progress) -> Option<A> {
        if !self.moved && !self.deferred.is_empty() {
            self.defer_behind_last(action, 0);
            return None;
        }
        let mut needs = Vec::new();
        let streams = &mut self.streams;
        self.active.retain(|&slot| {
            let Some(stream) = streams
                .get_mut(slot as usize)
                .and_then(Option::as_deref_mut)
            else {
                return false;
            };
            let dependency = Dependency {
                stream: slot,
                until: stream.taken,
            };
            stream.active = !dependency.met(progress);
            if stream.active {
                needs.push(dependency);
            }
            stream.active
        });
        if needs.is_empty() && self.deferred.is_empty() {
            return Some(action);
        }
        self.moved = false;
        ask(&needs, progress);
        self.held_bytes += deferred_bytes::<A>(&needs);
        self.deferred.push_back(Deferred {
            needs,
            actions: VecDeque::new(),
        });
        self.defer_behind_last(action, 0);
        None
    }

    /// Defers an action until those deferred before it are done. There must be some. `bytes` are what
    /// it takes beside itself.
    pub fn defer_behind_last(&mut self, action: A, bytes: usize) {
        if let Some(last) = self.deferred.back_mut() {
            let bytes = bytes + size_of::<(A, usize)>();
            self.held_bytes += bytes;
            last.actions.push_back((action, bytes));
        }
    }

    /// Takes the next deferred action whose time has come. If none has, `progress` is asked to say
    /// when.
    pub fn pop_due(&mut self, progress: &Progress) -> Option<A> {
        // Later actions need at least what earlier ones need, so looking at the first is enough.
        loop {
            let first = self.deferred.front_mut()?;
            let before = deferred_bytes::<A>(&first.needs);
            let due = all_met(&mut first.needs, progress);
            self.held_bytes -= before - deferred_bytes::<A>(&first.needs);
            if !due {
                return None;
            }
            if let Some((action, bytes)) = first.actions.pop_front() {
                self.held_bytes -= bytes;
                return Some(action);
            }
            self.held_bytes -= deferred_bytes::<A>(&first.needs);
            self.deferred.pop_front();
        }
    }

    /// Whether actions are deferred.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }
}

/// Drops the needs that are met, from the end, and asks to be told of the first that is not.
fn all_met(needs: &mut Vec<Dependency>, progress: &Progress) -> bool {
    while let Some(&last) = needs.last() {
        if !last.met(progress) && !progress.want(last.stream, last.until) {
            return false;
        }
        needs.pop();
    }
    true
}

/// Asks to be told when the need that is looked at first is met. If it is by now, that is said too.
fn ask(needs: &[Dependency], progress: &Progress) {
    if needs
        .last()
        .is_none_or(|need| progress.want(need.stream, need.until))
    {
        progress.set_due();
    }
}

const fn deferred_bytes<A>(needs: &[Dependency]) -> usize {
    size_of::<Deferred<A>>() + size_of_val(needs)
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
