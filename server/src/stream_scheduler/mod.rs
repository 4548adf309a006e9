//! The order of one client's work: what must be complete before a record may go to the engine.
//!
//! A stream's records are numbered by the client from 1, without gaps. A record depends
//! * on its stream's earlier records, which need only have been handed to the engine, since the
//!   engine's streams are first in, first out;
//! * if it is a wait, on the completion of another stream's work up to a position;
//! * if it is a host-function barrier, on the client's word that what the client runs there itself is done;
//! * if it is a kernel in a stream that shares a connection, on what the kernels that went through the
//!   connection before wait for: connections are first in, first out, as a GPU's hardware queues are;
//! * if it is in the legacy stream of a context (its slot is the context's id), on the completion of
//!   everything posted earlier in the context's blocking streams, and if it is in a blocking stream,
//!   on the completion of the legacy stream's earlier work. Non-blocking streams are free of that.
//!
//! A record whose dependencies are complete is handed over at once; any other is blocked in its stream's
//! list, and the session takes the next record: no stream ever blocks another.
//!
//! Actions that concern all streams (frees, unloads, a context's end) are deferred until everything
//! taken before them is complete.
//!
//! Owns the rules and the lists. Knows neither rings nor engines nor what records hold (`T`) and
//! actions do (`A`); it learns of completions from `progress` alone.

use std::collections::VecDeque;

use cuda_abi::CUresult;
use protocol::operations::{
    At, CONNECTIONS, CONTEXT_SLOTS, HoldReason, STREAM_DEPTH, STREAM_NON_BLOCKING, STREAM_SLOTS,
};

use crate::stream_scheduler::completion::{CompletionTracker, host_barrier};

pub mod completion;
mod constraint;
mod deferred_actions;

use constraint::{Dependency, all_met, wake_when_met};
pub use constraint::{Disposition, OrderingConstraint, QueueEntry, Violation};
use deferred_actions::DeferredActions;

#[derive(Debug)]
struct BlockedEntry<T> {
    /// What must be complete; those met are taken from the end.
    dependencies: Vec<Dependency>,
    /// Why it has any of its own.
    why: Option<HoldReason>,
    /// What the entry costs in memory.
    bytes: usize,
    item: QueueEntry<T>,
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
    /// Whether the stream is in `StreamScheduler::active`.
    active: bool,
    /// Whether the stream is in the list `unwaited` of its context.
    unwaited: bool,
    /// The connection of its context that its kernels go through, if any.
    connection: Option<usize>,
    blocked: VecDeque<BlockedEntry<T>>,
}

#[derive(Debug, Default)]
struct Context {
    alive: bool,
    /// Blocking streams that took work since the legacy stream last waited for them.
    unwaited: Vec<u32>,
    /// By connection, what must be complete for the kernels that went through it to start.
    connections: Vec<Vec<Dependency>>,
}

/// The streams, contexts and waiting lists of one client.
#[derive(Debug)]
pub struct StreamScheduler<T, A> {
    streams: Vec<Option<Box<Stream<T>>>>,
    contexts: Vec<Context>,
    /// Streams that hold something, in no order.
    blocked_streams: Vec<u32>,
    /// Streams that may have unfinished work.
    active: Vec<u32>,
    deferred: DeferredActions<A>,
    /// What the streams' blocked items take.
    blocked_bytes: usize,
}

impl<T, A> Default for StreamScheduler<T, A> {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            contexts: (0..CONTEXT_SLOTS).map(|_| Context::default()).collect(),
            blocked_streams: Vec::new(),
            active: Vec::new(),
            deferred: DeferredActions::default(),
            blocked_bytes: 0,
        }
    }
}

impl<T, A> StreamScheduler<T, A> {
    fn stream(&self, slot: u32) -> Option<&Stream<T>> {
        self.streams.get(slot as usize)?.as_deref()
    }

    fn stream_mut(&mut self, slot: u32) -> Option<&mut Stream<T>> {
        self.streams.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Bytes that blocked records and deferred actions take; the session stops reading beyond a bound.
    #[must_use]
    pub const fn blocked_bytes(&self) -> usize {
        self.blocked_bytes + self.deferred.bytes()
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
    pub fn context_created(
        &mut self,
        id: u32,
        progress: &CompletionTracker,
    ) -> Result<(), Violation> {
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

    /// Notes that a context has ended: its streams take nothing more. Their blocked records were
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

    /// Notes that a stream's end is complete of which no record comes.
    pub fn end_stream(&mut self, slot: u32) {
        if let Some(stream) = self.stream_mut(slot).filter(|_| slot >= CONTEXT_SLOTS) {
            stream.closed = true;
        }
    }

    /// Whether a stream can be made in a slot now: `Ok(false)` says that the slot's former stream
    /// has work unfinished, and that the record is to be handed to [`Self::hold_creation`].
    ///
    /// # Errors
    /// When the slot is a legacy stream's, does not exist, or holds a living stream.
    pub fn may_create(&self, slot: u32, progress: &CompletionTracker) -> Result<bool, Violation> {
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
        progress: &CompletionTracker,
    ) -> Result<(), Violation> {
        if !self.has_context(context) {
            return Err(Violation::Context(context));
        }
        self.place(slot, context, flags & STREAM_NON_BLOCKING == 0, progress);
        Ok(())
    }

    fn place(&mut self, slot: u32, context: u32, blocking: bool, progress: &CompletionTracker) {
        let at = slot as usize;
        if self.streams.len() <= at {
            self.streams.resize_with(at + 1, || None);
        }
        progress.set_context(slot, context);
        match &mut self.streams[at] {
            Some(stream) => {
                // The former stream has finished by the time that this one takes work.
                if std::mem::take(&mut stream.unwaited)
                    && let Some(former) = self.contexts.get_mut(stream.context as usize)
                {
                    former.unwaited.retain(|&other| other != slot);
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
                    unwaited: false,
                    connection: None,
                    blocked: VecDeque::new(),
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
    /// the session's own copy of it and what that costs in bytes, and it is blocked.
    ///
    /// # Errors
    /// When the client broke a rule.
    pub fn admit(
        &mut self,
        at: At,
        step: OrderingConstraint,
        progress: &CompletionTracker,
        item: impl FnOnce() -> (T, usize),
    ) -> Result<Disposition, Violation> {
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
        progress.note_received(at.stream, at.sequence);
        self.deferred.record_admitted();
        if !stream.active {
            stream.active = true;
            self.active.push(at.stream);
        }
        if stream.closed {
            let before = at.sequence - 1;
            if progress.completed(at.stream) >= before {
                return Ok(Disposition::Closed);
            }
            let dependencies = vec![Dependency {
                stream: at.stream,
                until: before,
            }];
            self.block(
                at.stream,
                (dependencies, None),
                0,
                QueueEntry::Mark(at, Err(CUresult::ERROR_INVALID_HANDLE)),
                progress,
            );
            return Ok(Disposition::Blocked);
        }
        stream.closed = matches!(step, OrderingConstraint::Last) && at.stream >= CONTEXT_SLOTS;

        let mut dependencies = Vec::new();
        let mut why = None;
        let mut need = |dependency: Dependency, reason: HoldReason| {
            if !dependency.met(progress) {
                dependencies.push(dependency);
                why.get_or_insert(reason);
            }
        };
        // A wait for the stream itself is met by its order.
        if let OrderingConstraint::Wait { on, until } = step
            && on != at.stream
        {
            need(Dependency { stream: on, until }, HoldReason::Event);
        }
        if matches!(step, OrderingConstraint::HostBarrier) {
            let barrier = Dependency {
                stream: host_barrier(at.stream),
                until: at.sequence,
            };
            need(barrier, HoldReason::HostFunction);
        }
        let context = stream.context;
        if let (OrderingConstraint::Kernel, Some(connection)) = (step, stream.connection)
            && let Some(home) = self.contexts.get_mut(context as usize)
        {
            if home.connections.len() <= connection {
                home.connections.resize_with(connection + 1, Vec::new);
            }
            let ahead = &mut home.connections[connection];
            ahead.retain(|dependency| !dependency.met(progress));
            for dependency in ahead.iter().filter(|ahead| ahead.stream != at.stream) {
                need(*dependency, HoldReason::Connection);
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
            // An earlier record of the legacy stream waited for all but what stands in `unwaited`.
            if let Some(home) = self.contexts.get_mut(context as usize) {
                for slot in std::mem::take(&mut home.unwaited) {
                    let Some(other) = self
                        .streams
                        .get_mut(slot as usize)
                        .and_then(Option::as_deref_mut)
                    else {
                        continue;
                    };
                    other.unwaited = false;
                    let earlier = Dependency {
                        stream: slot,
                        until: other.taken,
                    };
                    need(earlier, HoldReason::LegacyStream);
                }
            }
        } else if stream.blocking {
            if !stream.unwaited
                && let Some(home) = self.contexts.get_mut(context as usize)
            {
                stream.unwaited = true;
                home.unwaited.push(at.stream);
            }
            let seen = stream.legacy_seen;
            let legacy = self.stream(context).map_or(0, |legacy| legacy.taken);
            if legacy > seen {
                let earlier = Dependency {
                    stream: context,
                    until: legacy,
                };
                need(earlier, HoldReason::LegacyStream);
                if let Some(stream) = self.stream_mut(at.stream) {
                    stream.legacy_seen = legacy;
                }
            }
        }

        let behind = self
            .stream(at.stream)
            .is_some_and(|stream| !stream.blocked.is_empty());
        if dependencies.is_empty() && !behind {
            return Ok(Disposition::Submit);
        }
        let (item, bytes) = item();
        self.block(
            at.stream,
            (dependencies, why),
            bytes,
            QueueEntry::Record(item),
            progress,
        );
        Ok(Disposition::Blocked)
    }

    fn block(
        &mut self,
        slot: u32,
        (dependencies, why): (Vec<Dependency>, Option<HoldReason>),
        bytes: usize,
        item: QueueEntry<T>,
        progress: &CompletionTracker,
    ) {
        let bytes =
            bytes + size_of::<BlockedEntry<T>>() + dependencies.len() * size_of::<Dependency>();
        let Some(stream) = self.stream_mut(slot) else {
            return;
        };
        let first = stream.blocked.is_empty();
        if first {
            wake_when_met(&dependencies, progress);
        }
        stream.blocked.push_back(BlockedEntry {
            dependencies,
            why,
            bytes,
            item,
        });
        self.blocked_bytes += bytes;
        if first {
            self.blocked_streams.push(slot);
        }
    }

    /// Holds the record that makes a stream until the slot's former stream has finished. The stream
    /// takes work meanwhile, which is blocked behind it.
    ///
    /// # Errors
    /// When the context does not live.
    pub fn hold_creation(
        &mut self,
        slot: u32,
        context: u32,
        flags: u32,
        progress: &CompletionTracker,
        item: (T, usize),
    ) -> Result<(), Violation> {
        let until = self.stream(slot).map_or(0, |stream| stream.taken);
        self.stream_created(slot, context, flags, progress)?;
        let dependencies = vec![Dependency {
            stream: slot,
            until,
        }];
        self.block(
            slot,
            (dependencies, None),
            item.1,
            QueueEntry::Record(item.0),
            progress,
        );
        Ok(())
    }

    /// Notes that the engine did not take a record which it was just handed. Returns true if nothing
    /// is before it, so that it is complete now; else its position is blocked as a mark, ahead of the
    /// stream's other blocked records, and is complete once the work before it is.
    #[must_use]
    pub fn not_taken(&mut self, at: At, error: CUresult, progress: &CompletionTracker) -> bool {
        if progress.completed(at.stream) + 1 >= at.sequence {
            return true;
        }
        let Some(stream) = self.stream_mut(at.stream) else {
            return true;
        };
        let first = stream.blocked.is_empty();
        let dependencies = vec![Dependency {
            stream: at.stream,
            until: at.sequence - 1,
        }];
        wake_when_met(&dependencies, progress);
        let bytes = size_of::<BlockedEntry<T>>() + size_of::<Dependency>();
        stream.blocked.push_front(BlockedEntry {
            dependencies,
            why: None,
            bytes,
            item: QueueEntry::Mark(at, Err(error)),
        });
        self.blocked_bytes += bytes;
        if first {
            self.blocked_streams.push(at.stream);
        }
        false
    }

    /// The stream that stands at `index` among those that hold something.
    #[must_use]
    pub fn blocked_stream(&self, index: usize) -> Option<u32> {
        self.blocked_streams.get(index).copied()
    }

    /// Defers an action until everything taken so far is complete. Gives it back if that holds now.
    pub fn defer(&mut self, action: A, progress: &CompletionTracker) -> Option<A> {
        let action = self.deferred.join_last(action)?;
        let dependencies = self.unfinished(progress);
        self.deferred.push(action, dependencies, progress)
    }

    /// What is to come for everything taken so far to be complete.
    fn unfinished(&mut self, progress: &CompletionTracker) -> Vec<Dependency> {
        let mut dependencies = Vec::new();
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
                dependencies.push(dependency);
            }
            stream.active
        });
        dependencies
    }

    /// Defers an action until those deferred before it are done. There must be some. `bytes` are what
    /// it takes beside itself.
    pub fn defer_behind_last(&mut self, action: A, bytes: usize) {
        self.deferred.push_behind_last(action, bytes);
    }

    /// Takes the next deferred action that is due. If none has, `progress` is asked to say
    /// when.
    pub fn pop_ready_action(&mut self, progress: &CompletionTracker) -> Option<A> {
        self.deferred.pop_ready(progress)
    }

    /// Whether actions are deferred.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Takes the first blocked item of the stream at `index` of [`StreamScheduler::blocked_stream`], if everything that
    /// it needs is complete, with why it was held back beside the stream's own order. If not, `progress` is asked to say when. Removes the stream from those
    /// that hold something when its list is empty, so that another stands at `index`.
    pub fn pop_ready(
        &mut self,
        index: usize,
        progress: &CompletionTracker,
    ) -> Option<(QueueEntry<T>, Option<HoldReason>)> {
        let slot = *self.blocked_streams.get(index)?;
        let stream = self.streams.get_mut(slot as usize)?.as_deref_mut()?;
        if let Some(front) = stream.blocked.front_mut()
            && !all_met(&mut front.dependencies, progress)
        {
            return None;
        }
        let entry = stream.blocked.pop_front();
        if stream.blocked.is_empty() {
            self.blocked_streams.swap_remove(index);
        }
        let entry = entry?;
        self.blocked_bytes = self.blocked_bytes.saturating_sub(entry.bytes);
        Some((entry.item, entry.why))
    }
}

#[cfg(test)]
mod tests;
