//! How a stream's operations go to the driver: one by one, gathered in launch batches, or as runs; and how they are signalled.
//!
//! Called by whoever posts, and where completions make room. Must not know how an end is seen.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cuda_abi::CUresult;
use engine::{Activity, Counted, clock};

use crate::device::context::DriverStream;
use crate::device::fence::has_reached;
use crate::device::foreground::Foreground;
use crate::driver::Driver;
use crate::submit::batch::{LaunchBatches, MAX_BATCH};
use crate::submit::client_words::ClientSignal;
use crate::submit::command::{CommandKind, CompletionAction};
use crate::submit::graph_run::GraphRun;
use crate::submit::launch::Launch;
use crate::submit::launch_batch::Signal;
use crate::submit::stream::Stream;
use crate::submit::stream::state::{
    AHEAD_OF_LOADS, Issued, Length, MOST_AHEAD, StreamState, TimingEvents,
};
use crate::submit::stream::timing::SHORT;

/// Places in a hardware queue of about a thousand that the commands of the streams may take which share it;
/// and the bounds of one stream's part.
const PLACES: usize = 640;
const LEAST_DEPTH: usize = 4;
const MOST_DEPTH: usize = 256;

/// Hardware queues of a context, to which the driver deals out streams in turn.
const QUEUES: usize = 32;

/// Launches that are signalled together at most.
pub(super) const BATCH: u32 = 32;

/// Bytes that a client below normal copies at a time beside others' work: some 80 µs over PCIe of the fifth generation, and
/// no more than a few per cent slower than all at once.
const BACKGROUND_COPY: u64 = 4 << 20;

/// Launches that are not worth a batch where they need not be signalled.
const FEW: usize = 8;

impl Stream {
    /// Commands that may be with the driver.
    pub(super) fn depth(&self) -> usize {
        let sharing = self.device().streams().div_ceil(QUEUES).max(1);
        (PLACES / sharing).clamp(LEAST_DEPTH, MOST_DEPTH)
    }

    /// Whether more may go to the driver now. If so, it has passed the gate.
    pub(super) fn may_issue(&self, state: &mut StreamState) -> bool {
        self.has_room(state)
            && state.before.is_none()
            // What comes after a readback may read what it has not delivered yet.
            && !state.is_fetching()
            && self.is_current(state)
            && self.context.pass_gate(state.is_amid)
    }

    /// Whether what is with the driver leaves room for more.
    pub(super) fn has_room(&self, state: &mut StreamState) -> bool {
        if state.commands >= self.depth() {
            return false;
        }
        if !self.is_far_ahead(state) && !self.gives_way(state) {
            return true;
        }
        // What is not signalled makes no room.
        if state.is_open() && !state.is_fetching() {
            self.sign_rest(state);
        }
        false
    }

    /// Whether what the driver has takes so long that nothing more is to go there.
    pub(super) fn is_far_ahead(&self, state: &StreamState) -> bool {
        state.expected > AHEAD_OF_LOADS
            && (state.expected > MOST_AHEAD || self.context.is_load_of_others_expected())
    }

    /// Whether its client has to wait for others' work.
    pub(super) fn gives_way(&self, state: &mut StreamState) -> bool {
        self.report_expected_work(state);
        self.common.is_below_normal() && !self.device().foreground().admits()
    }

    /// Whether others' work is to find little of its in the way.
    fn is_background(&self) -> bool {
        self.common.is_below_normal() && self.device().foreground().is_there()
    }

    /// Tells the device what the driver has of a client below normal.
    pub(super) fn report_expected_work(&self, state: &mut StreamState) {
        let expected = match self.common.is_below_normal() {
            true => state.expected,
            false => 0,
        };
        if expected != state.expected_told {
            self.device()
                .foreground()
                .expect(state.expected_told, expected);
            state.expected_told = expected;
        }
    }

    /// Nothing more comes for now, or `for_long`: signals what is to be signalled then, and says whether that is all.
    /// As long as the GPU has not come as far as what is signalled, and somebody looks, the rest need not be: the GPU is
    /// done with all that is before a signature before it begins with what is behind it, which costs each kernel
    /// about 2 µs that would follow at once.
    pub(crate) fn pause(&self, for_long: bool) -> bool {
        let mut state = self.state.lock();
        if !state.is_fetching() {
            if for_long || has_reached(self.word.load(), state.fence_value) {
                self.sign_rest(&mut state);
            } else {
                self.issue_pending_batch(&mut state, true);
            }
        }
        self.note(&mut state);
        for_long || state.is_fetching() || state.unsignalled == 0
    }

    pub(super) fn sign_rest(&self, state: &mut StreamState) {
        self.issue_pending_batch(state, false);
        if state.unsignalled > 0 {
            let signalled = self
                .device()
                .enter()
                .and_then(|driver| self.signal_fence(driver, state));
            // A device that has died tells by itself; anything else is tried again by the poller.
            let _ = self.device().confirm(signalled);
        }
    }

    /// Whether the driver's stream is in the part that the context has now. If it is not and has nothing
    /// to do, it is made again; if it has, what comes waits until then.
    pub(super) fn is_current(&self, state: &mut StreamState) -> bool {
        if state.epoch == self.context.epoch() {
            return true;
        }
        if state.is_under_way() {
            return false;
        }
        let made = self.device().enter().and_then(|driver| {
            let priority = self.common.driver_priority(self.device(), self.priority);
            Ok((driver, self.context.make_stream(driver, priority)?))
        });
        match self.device().confirm(made) {
            Ok((driver, DriverStream { raw, epoch, home })) => {
                let old = std::mem::replace(&mut state.raw, raw);
                state.epoch = epoch;
                let supply = self.common.supply(self.device());
                state.batches =
                    LaunchBatches::new((self.device(), supply), &self.common.nodes, home);
                state.cleared.fill(0);
                // SAFETY: made here or in `new`, and nothing is issued in it.
                let _ = unsafe { driver.cuStreamDestroy_v2(old.0) };
                true
            }
            // What is issued on a device that has died fails. Otherwise it is tried again: nothing is
            // issued in a part that the client does not have any more.
            Err(_) => self.device().check().is_err(),
        }
    }

    /// Takes an operation that passed the gate: gathers it, or gives it to the driver.
    pub(super) fn accept(&self, state: &mut StreamState, sequence: u64, work: CommandKind) {
        let had_nothing = !state.is_under_way();
        if had_nothing {
            state.looked_at = Instant::now();
            state.completion_predictor.begin(state.looked_at);
            if state.told_until > 0 {
                state.told_until = clock::at(state.looked_at);
            }
            state.is_marked = false;
        }
        if state.foreground.is_none() && !self.common.is_below_normal() {
            state.foreground = Foreground::begin(self.device());
        }
        if let Some(mark) = &self.begin_mark
            && !state.is_marked
            && matches!(work, CommandKind::Launch(_) | CommandKind::Run(..))
            && let Ok(driver) = self.device().enter()
        {
            // The first kernel: nothing is gathered yet that would go before the mark. Where nobody else has anything with the driver
            // no fault of others' has stopped the device, and a kernel with nothing before it begins at once: it needs no mark.
            state.is_marked = true;
            match had_nothing && !self.context.others_may_run() {
                true => mark.pass_over(),
                false => mark.set(self.device(), driver, state.raw.0),
            }
        }
        state.completion_predictor.add(work.signature());
        state.wait_predictor.learn(false);
        let work = match work {
            CommandKind::Readback(readback)
                if !readback.is_awaited() && !state.wait_predictor.predict() =>
            {
                CommandKind::steps(vec![readback.step()])
            }
            work => work,
        };
        let length = self.length(&work);
        if u64::from(length.1) > MOST_AHEAD {
            let ahead = state.issued.iter().map(|issued| issued.length.0);
            self.context.expect_durations(ahead.chain([length.0]));
        }
        match work {
            CommandKind::Launch(launch)
                if (length.1 < SHORT || !self.is_recorded())
                    && state.batches.should_batch(&launch) =>
            {
                if !state.is_open() {
                    state.open_since = Instant::now();
                }
                let (sequences, launches) = &mut state.gathered;
                sequences.push((sequence, length));
                launches.push(launch);
                state.commands += 1;
                state.expected += u64::from(length.1);
                // What is not issued makes no room.
                if launches.len() >= MAX_BATCH || state.commands >= self.depth() {
                    self.issue_pending_batch(state, false);
                }
            }
            CommandKind::Run(run, part) => {
                self.issue_pending_batch(state, false);
                self.issue_run(state, sequence, (run, part), length);
            }
            work => {
                let tells = !matches!(work, CommandKind::Event { timing: false, .. });
                self.issue_pending_batch(state, tells);
                self.issue(state, sequence, work, length);
            }
        }
    }

    /// Of what sort an operation is, and how long it is expected to take.
    pub(super) fn length(&self, work: &CommandKind) -> Length {
        let (sort, unknown) = work.sort();
        (sort, self.context.durations().expected(sort, unknown))
    }

    /// Gives what was batched to the driver. If something follows that tells of what was before it, few
    /// launches need not.
    pub(super) fn issue_pending_batch(&self, state: &mut StreamState, followed: bool) {
        if state.gathered.0.is_empty() {
            return;
        }
        let (mut sequences, mut launches) = std::mem::take(&mut state.gathered);
        state.commands -= launches.len();
        state.expected -= sequences
            .iter()
            .map(|&(_, (_, each))| u64::from(each))
            .sum::<u64>();
        while !launches.is_empty() {
            let fence_value = state.fence_value.wrapping_add(1);
            let print = |launches: &[Launch]| launches.iter().any(|it| it.module().prints());
            let client = sequences
                .first()
                .and_then(|&(first, _)| self.signal_for_client(state, first))
                .filter(|_| are_consecutive(&sequences) && !print(&launches));
            let signal = Signal {
                word: self.word.address(),
                fence_value,
                client,
            };
            let issued = if followed && launches.len() < FEW {
                None
            } else {
                self.context
                    .check()
                    .and_then(|()| self.device().enter())
                    .and_then(|driver| {
                        self.wait_until_cleared(driver, state)?;
                        state.batches.issue(state.raw.0, &mut launches, signal)
                    })
                    .ok()
            };
            let Some(count) = issued else {
                for ((sequence, length), launch) in sequences.drain(..).zip(launches.drain(..)) {
                    self.issue(state, sequence, CommandKind::Launch(launch), length);
                }
                break;
            };
            state.fence_value = fence_value;
            state.unsignalled = 0;
            for ((sequence, length), launch) in
                sequences.drain(..count).zip(launches.drain(..count))
            {
                state.push(Issued {
                    sequence,
                    is_last_part: true,
                    activity: Some(Activity::Kernel),
                    commands: 1,
                    length,
                    fence_value,
                    result: Ok(()),
                    timing: None,
                    after: CompletionAction::Keep(launch.into_running()),
                });
            }
        }
        // Empty, with room for the next.
        state.gathered = (sequences, launches);
    }

    /// Where the GPU is to tell the client of what the driver is given now, from the operation with this number on, and of what comes
    /// before that. Only if all that comes before is done and reported, so that nothing of it is left for this process to do, and if the
    /// operation needs nothing of this process either.
    fn signal_for_client(&self, state: &StreamState, first: u64) -> Option<ClientSignal> {
        let before = first.checked_sub(1)?;
        let all_before = state.issued.is_empty() && state.unsignalled == 0;
        let words = self.common.client_words()?;
        if !all_before || state.reported != before || self.context.is_fenced() {
            return None;
        }
        let word = words.word(self.slot, self.device())?;
        Some(ClientSignal {
            word,
            sequence: before,
        })
    }

    /// Gives a part of a run that passed the gate to the driver: as the batch that the run has of its own, or
    /// as much of it as goes into one of the stream's. The rest follows when that may.
    pub(super) fn issue_run(
        &self,
        state: &mut StreamState,
        sequence: u64,
        (run, part): (Arc<Counted<GraphRun>>, Range<usize>),
        mut length: Length,
    ) {
        let fence_value = state.fence_value.wrapping_add(1);
        let client = self
            .signal_for_client(state, sequence)
            .filter(|_| !run.prints());
        let signal = Signal {
            word: self.word.address(),
            fence_value,
            client,
        };
        let Some(count) = self.issue_batch_of(state, &run, &part, signal) else {
            return self.issue(state, sequence, CommandKind::Run(run, part), length);
        };
        let rest = part.start + count..part.end;
        state.fence_value = fence_value;
        state.unsignalled = 0;
        if !rest.is_empty() {
            let done = CommandKind::Run(Arc::clone(&run), part.start..rest.start);
            length = self.length(&done);
        }
        state.push(Issued {
            sequence,
            is_last_part: rest.is_empty(),
            activity: Some(Activity::Kernel),
            commands: count,
            length,
            fence_value,
            result: Ok(()),
            timing: None,
            after: CompletionAction::KeepRun(Arc::clone(&run)),
        });
        let rest = (!rest.is_empty()).then(|| CommandKind::Run(run, rest));
        self.keep_rest(state, sequence, rest);
    }

    /// Has what is left of an operation follow when that may.
    fn keep_rest(&self, state: &mut StreamState, sequence: u64, rest: Option<CommandKind>) {
        self.set_amid(state, rest.is_some());
        if let Some(rest) = rest {
            self.common.waiting.add(rest.held_bytes());
            state.pending.push_front((sequence, rest));
        }
    }

    /// Says whether the driver has had a part of what waits first.
    pub(super) fn set_amid(&self, state: &mut StreamState, is_amid: bool) {
        if std::mem::replace(&mut state.is_amid, is_amid) != is_amid {
            self.common.count_amid(is_amid);
        }
    }

    /// Gives the first launches of a part of a run to the driver as a batch, and says how many; `None` if they
    /// are to be issued one by one.
    pub(super) fn issue_batch_of(
        &self,
        state: &mut StreamState,
        run: &Arc<Counted<GraphRun>>,
        part: &Range<usize>,
        signal: Signal,
    ) -> Option<usize> {
        self.context.check().ok()?;
        let driver = self.device().enter().ok()?;
        self.wait_until_cleared(driver, state).ok()?;
        let (all, depth) = (run.launches().len(), self.depth());
        if let Some(home) = state.batches.home()
            && *part == (0..all)
            && all <= depth
            && GraphRun::issue(
                run,
                (self.device(), self.common.supply(self.device())),
                &self.common.run_nodes,
                (home, state.raw.0),
                signal.after(1),
            )
            .is_some()
        {
            return Some(all);
        }
        let room = depth.saturating_sub(state.commands).max(1);
        let count = part.len().min(room).min(MAX_BATCH);
        let launches = run.launches().get(part.start..part.start + count)?;
        if !launches.iter().all(Launch::is_known_and_plain) {
            return None;
        }
        // It is not known yet how much of the operation this is.
        let signal = Signal {
            client: None,
            ..signal
        };
        let (stream, launches) = (state.raw.0, &mut launches.to_vec());
        state.batches.issue(stream, launches, signal).ok()
    }

    /// Gives an operation that passed the gate to the driver, or as much of it as there is room for; what
    /// comes of it is told in its turn.
    pub(super) fn issue(
        &self,
        state: &mut StreamState,
        sequence: u64,
        mut work: CommandKind,
        mut length: Length,
    ) {
        let last = matches!(work, CommandKind::Destroy);
        let activity = work.activity();
        let mut timing = None;
        // The driver has nothing to do for it, and all before it is signalled.
        let signalled =
            state.unsignalled == 0 && matches!(work, CommandKind::Event { timing: false, .. });
        let room = self.depth().saturating_sub(state.commands).max(1);
        let of_copy = match self.is_background() {
            true => work.split_copy(BACKGROUND_COPY),
            false => None,
        };
        let rest = of_copy.or_else(|| work.split(room));
        let commands = work.commands();
        if rest.is_some() {
            length = self.length(&work);
        }
        let issued = self
            .context
            .check()
            .and_then(|()| self.device().enter())
            .and_then(|driver| {
                let (launch, readback) = (
                    matches!(work, CommandKind::Launch(_)),
                    matches!(work, CommandKind::Readback(_)),
                );
                if signalled {
                    return Ok(CompletionAction::Nothing);
                }
                // The data of a readback tells that it has come before an event could be passed.
                let timed = activity.is_some() && !readback && self.is_recorded();
                let began = if timed {
                    self.time_begin(driver, state)
                } else {
                    None
                };
                let result = self.issue_work(driver, state, work);
                if timed {
                    timing = self.time_end(driver, state, began);
                }
                if state.unsignalled == 0 {
                    state.open_since = Instant::now();
                }
                state.unsignalled += 1;
                // What is not signalled makes no room.
                if !readback && (!launch || state.unsignalled >= BATCH || commands >= room) {
                    self.sign_rest(state);
                }
                result
            });
        let (result, after) = match self.device().confirm(issued) {
            Ok(after) => (Ok(()), after),
            // A stream whose context is gone still ends.
            Err(_) if last => (Ok(()), CompletionAction::Destroy),
            Err(code) => (Err(code), CompletionAction::Nothing),
        };
        // What failed in part is over.
        let rest = rest.filter(|_| result.is_ok());
        let events = timing.as_ref().map_or(0, TimingEvents::commands);
        state.push(Issued {
            sequence,
            is_last_part: rest.is_none(),
            activity,
            commands: commands + events,
            timing,
            length,
            fence_value: state
                .fence_value
                .wrapping_add(u32::from(state.unsignalled > 0)),
            result,
            after,
        });
        self.keep_rest(state, sequence, rest);
    }

    pub(super) fn issue_work(
        &self,
        driver: &Driver,
        state: &mut StreamState,
        work: CommandKind,
    ) -> Result<CompletionAction, CUresult> {
        self.wait_until_cleared(driver, state)?;
        let fence_value = state.fence_value.wrapping_add(1);
        work.issue(
            self.device(),
            driver,
            state.raw.0,
            fence_value,
            &mut state.bounce,
        )
    }

    /// Has the stream wait for the clearing of memory that was asked for since it last did.
    pub(super) fn wait_until_cleared(
        &self,
        driver: &Driver,
        state: &mut StreamState,
    ) -> Result<(), CUresult> {
        for (cleared, seen) in self.common.cleared.iter().zip(&mut state.cleared) {
            cleared.wait(driver, state.raw.0, seen)?;
        }
        Ok(())
    }

    /// Has the GPU write the next fence value once it has come this far, even where an operation was taken
    /// only in part.
    pub(super) fn signal_fence(
        &self,
        driver: &Driver,
        state: &mut StreamState,
    ) -> Result<(), CUresult> {
        let fence_value = state.fence_value.wrapping_add(1);
        // SAFETY: the word outlives the stream's work: it is kept by `self`, which is kept as long as
        // anything is issued.
        unsafe {
            driver.cuStreamWriteValue32_v2(state.raw.0, self.word.address(), fence_value, 0)?;
        };
        state.fence_value = fence_value;
        state.unsignalled = 0;
        Ok(())
    }
}

/// Whether each operation follows the one before it.
fn are_consecutive(operations: &[(u64, Length)]) -> bool {
    operations.is_sorted_by(|one, next| one.0 + 1 == next.0)
}
