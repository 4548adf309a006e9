//! What the engine's threads tell of a client's work, passed on to the client and to its session.
//!
//! No locks on the way of a completion: two atomics of this client's own, and its shared memory. Called by engines'
//! threads. Must not know what an operation does, and waits for nobody.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{
    CodeSource, Engine, Guilt, InFlight, MemoryChunk, Observer, Span, Window, WorkInFlight, clock,
};
use parking_lot::{Condvar, Mutex};
use protocol::control_messages::{Change, DeviceAccount, Ending};
use protocol::operations::{At, CONTEXT_SLOTS, HoldReason};
use transport::session::Publisher;

use crate::accounts::ClientAccounts;
use crate::admission::compute_mode::{ComputeModePolicy, ContextRefused};
use crate::event_queue::{EventQueue, ServerEvent};
use crate::log::ClientLog;
use crate::memory::heap::ALIGNMENT;
use crate::memory::mapped_file::WatchedFiles;
use crate::session::kernel_time::ClientKernelTime;
use crate::session::recording::Recording;
use crate::stream_scheduler::completion::CompletionTracker;
use crate::time_lines::TimeLine;

/// Faults of a session that are logged and told to the daemon. A client that goes on after so many
/// makes contexts that fail for no other purpose.
const MAX_FAULTS: u32 = 32;

/// Says to a session that it is over, or what is to change, from any thread.
#[derive(Debug, Default)]
pub struct Cancellation {
    how: OnceLock<Ending>,
    changes: Mutex<Vec<Change>>,
    /// Whether there are any.
    changed: AtomicBool,
    bell: OnceLock<Arc<Publisher>>,
    /// What the client has had.
    accounts: OnceLock<Arc<ClientAccounts>>,
    /// What it takes to record the client.
    recorded: Mutex<ToBeRecorded>,
    /// What a session that another server had waits for.
    before_it_goes_on: Mutex<BeforeItGoesOn>,
    heard: Condvar,
}

/// What has to be before a session goes on that another server had.
#[derive(Debug, Default)]
struct BeforeItGoesOn {
    /// The number of its former server, while the process of that may not have ended.
    former: Option<u64>,
    /// The daemon was told that it is here: until then it would hand another server what the former one left.
    is_told: bool,
}

/// Who is to record a client, and what there is to record: either may come first.
#[derive(Debug, Default)]
struct ToBeRecorded {
    time_line: Option<Arc<TimeLine>>,
    observer: Option<Arc<ClientObserver>>,
}

impl Cancellation {
    /// Says where it is counted what the client has had.
    pub fn set_accounts(&self, accounts: Arc<ClientAccounts>) {
        let _ = self.accounts.set(accounts);
    }

    /// What the client has had of each device, once the session is there. It may be busy for long; this is not.
    #[must_use]
    pub fn accounts(&self) -> Option<Vec<DeviceAccount>> {
        let mut accounts = self.accounts.get()?.read();
        if let Some(observer) = &self.recorded.lock().observer {
            observer.add_queued(&mut accounts);
        }
        Some(accounts)
    }

    /// Has the client recorded, from its first call on if it is not there yet.
    pub fn set_time_line(&self, time_line: Arc<TimeLine>) {
        let mut recorded = self.recorded.lock();
        match &recorded.observer {
            Some(observer) => time_line.add(observer),
            None => recorded.time_line = Some(time_line),
        }
    }

    /// Says what there is to record of the client, which has not been welcomed yet.
    pub fn set_observer(&self, observer: Arc<ClientObserver>) {
        let mut recorded = self.recorded.lock();
        if let Some(time_line) = recorded.time_line.take() {
            time_line.add(&observer);
        }
        // Under the lock, as `end` looks for the observer once the ending is set.
        if self.ending().is_some() {
            observer.has_ended.store(true, Ordering::Relaxed);
        }
        recorded.observer = Some(observer);
    }

    /// What there is to observe of the client, while its session is there.
    #[must_use]
    pub fn observer(&self) -> Option<Arc<ClientObserver>> {
        self.recorded.lock().observer.clone()
    }

    /// The session is over, or never began.
    pub fn nothing_to_observe(&self) {
        if let Some(observer) = self.recorded.lock().observer.take() {
            observer.recording.client_ended();
        }
    }

    /// For a session that another server had, whose process may not have ended yet.
    #[must_use]
    pub fn of_former(former: Option<u64>) -> Self {
        Self {
            before_it_goes_on: Mutex::new(BeforeItGoesOn {
                former,
                is_told: false,
            }),
            ..Self::default()
        }
    }

    /// Whether nothing may be done to the session's memory yet, as its former server's process has not ended.
    #[must_use]
    pub fn awaits_former(&self) -> bool {
        self.before_it_goes_on.lock().former.is_some()
    }

    /// The process of a server of this number has ended.
    pub fn former_ended(&self, number: u64) {
        let mut before = self.before_it_goes_on.lock();
        if before.former == Some(number) {
            before.former = None;
            self.heard.notify_all();
        }
    }

    /// The daemon was told that the session is here.
    pub fn told(&self) {
        self.before_it_goes_on.lock().is_told = true;
        self.heard.notify_all();
    }

    /// Waits until the daemon was told that the session is here.
    ///
    /// # Errors
    /// How the session is to end, if it is before that.
    pub fn wait_until_told(&self) -> Result<(), Ending> {
        self.wait_while(|before| !before.is_told)
    }

    /// Waits until the process of its former server has ended.
    ///
    /// # Errors
    /// How the session is to end, if it is before that.
    pub fn wait_for_former(&self) -> Result<(), Ending> {
        self.wait_while(|before| before.former.is_some())
    }

    fn wait_while(&self, waits: impl Fn(&BeforeItGoesOn) -> bool) -> Result<(), Ending> {
        let mut before = self.before_it_goes_on.lock();
        while waits(&before) {
            if let Some(how) = self.ending() {
                return Err(how);
            }
            self.heard.wait(&mut before);
        }
        Ok(())
    }

    /// Ends the session, unless it ends already.
    pub fn end(&self, how: Ending) {
        let _ = self.how.set(how);
        // The session may wait in a call of the engine's, which then hears of it.
        if let Some(observer) = self.observer() {
            observer.has_ended.store(true, Ordering::Relaxed);
        }
        // Under the lock: whoever waits has looked before, or looks again.
        let before = self.before_it_goes_on.lock();
        self.heard.notify_all();
        drop(before);
        self.wake();
    }

    /// Has the session make a change.
    pub fn request_change(&self, change: Change) {
        let mut changes = self.changes.lock();
        changes.push(change);
        drop(changes);
        self.changed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The changes that are to be made.
    #[must_use]
    pub fn take_limit_changes(&self) -> Vec<Change> {
        if !self.changed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.changed.store(false, Ordering::SeqCst);
        let mut changes = self.changes.lock();
        std::mem::take(&mut *changes)
    }

    fn wake(&self) {
        // Paired with `wake_with`: one of the two sees what the other wrote.
        fence(Ordering::SeqCst);
        if let Some(bell) = self.bell.get() {
            bell.ring_self();
        }
    }

    /// How the session is to end, if it is.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.how.get().copied()
    }

    /// From now on [`Cancellation::end`] and [`Cancellation::request_change`] wake the session; the caller then looks at
    /// [`Cancellation::ending`] and [`Cancellation::take_limit_changes`].
    pub fn wake_with(&self, bell: Arc<Publisher>) {
        let _ = self.bell.set(bell);
        // Paired with `wake`.
        fence(Ordering::SeqCst);
    }
}

/// Whom a session and the engine's threads ask and tell of the rest of the server.
#[derive(Clone, Debug)]
pub struct ServerChannels {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// To the main thread.
    pub events: Arc<EventQueue>,
    /// Who may have contexts now.
    pub compute_modes: Arc<dyn ComputeModePolicy>,
}

/// What a session and the engine's threads share.
#[derive(Debug)]
pub struct ClientObserver {
    /// To the client.
    pub publisher: Arc<Publisher>,
    /// How far its streams are.
    pub progress: CompletionTracker,
    /// The client's files that are mapped here.
    pub files: WatchedFiles,
    session: u64,
    name: ClientLog,
    channels: ServerChannels,
    /// Where it is counted what the client has had, once the client is let in.
    accounts: OnceLock<Arc<ClientAccounts>>,
    /// What is recorded of the client, if somebody asks for it.
    pub recording: Recording,
    /// The device of each context.
    devices: [AtomicU32; CONTEXT_SLOTS as usize],
    /// Contexts that are dead, as bits.
    dead: AtomicU32,
    /// Faults that there were.
    faults: AtomicU32,
    /// What the module that is being loaded may take for its variables.
    variables: Mutex<VariableMemory>,
    /// How long its kernels may run.
    pub kernel_time: ClientKernelTime,
    /// It was told that one has run for too long.
    overran: AtomicBool,
    /// The session is to end.
    has_ended: AtomicBool,
    /// Who says what devices have of its work.
    work: OnceLock<Arc<dyn WorkInFlight>>,
    /// Another server can take the session over.
    is_kept: bool,
    /// Unless the client has had something that no other server can make again.
    is_irreplaceable: AtomicBool,
    /// What is under way was begun here, if at all: none of it is a former server's.
    is_settled: AtomicBool,
}

/// Memory for the variables of a module.
#[derive(Clone, Copy, Debug)]
pub struct VariableMemory {
    /// On the device.
    pub device: Window,
    /// Managed.
    pub managed: Window,
    /// It holds the variables already.
    pub is_written: bool,
}

impl VariableMemory {
    /// None at all.
    pub const NOTHING: Self = {
        let nothing = Window { base: 0, bytes: 0 };
        Self {
            device: nothing,
            managed: nothing,
            is_written: false,
        }
    };
}

impl ClientObserver {
    /// What a new session shares.
    pub fn new(
        publisher: Arc<Publisher>,
        session: u64,
        name: ClientLog,
        channels: ServerChannels,
        kernel_time: ClientKernelTime,
        (is_kept, is_taken_over): (bool, bool),
    ) -> Self {
        Self {
            publisher,
            progress: CompletionTracker::default(),
            files: WatchedFiles::default(),
            session,
            name,
            channels,
            accounts: OnceLock::new(),
            recording: Recording::default(),
            devices: [const { AtomicU32::new(0) }; CONTEXT_SLOTS as usize],
            dead: AtomicU32::new(0),
            faults: AtomicU32::new(0),
            variables: Mutex::new(VariableMemory::NOTHING),
            kernel_time,
            overran: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            work: OnceLock::new(),
            is_kept,
            is_irreplaceable: AtomicBool::new(false),
            is_settled: AtomicBool::new(!is_taken_over),
        }
    }

    /// The number of the session.
    #[must_use]
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// Whether the session goes over to another server, as a device is lost: the client is told of no failure from then on,
    /// since what failed is done again. To be asked where something has failed.
    pub fn goes_over(&self) -> bool {
        self.is_kept && self.channels.engine.lost().is_some()
    }

    /// Whether a context may be made on a device. The log says why not, unless that is as somebody has set it.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE when its compute mode forbids it, or cannot be found out.
    pub fn may_have_context(&self, device: u32) -> Result<(), CUresult> {
        self.channels.compute_modes.open(device).map_err(|closed| {
            if let ContextRefused::Unknown(why) = closed {
                self.name
                    .line(format_args!("gets no context on device {device}: {why}"));
            }
            CUresult::ERROR_DEVICE_UNAVAILABLE
        })
    }

    /// See [`engine::Engine::begins_one_at_a_time`].
    #[must_use]
    pub fn begins_one_at_a_time(&self) -> bool {
        self.channels.engine.begins_one_at_a_time()
    }

    /// Tells the main thread something.
    pub fn push_event(&self, event: ServerEvent) {
        self.channels.events.push(event);
    }

    /// Has the session look at what it holds back.
    pub fn wake(&self) {
        self.progress.set_ready();
        self.publisher.ring_self();
    }

    /// Says where it is counted what the client has had.
    pub fn set_accounts(&self, accounts: Arc<ClientAccounts>) {
        let _ = self.accounts.set(accounts);
    }

    /// A context's slot has a new one, on this device, which is not dead.
    pub fn context_created(&self, context: u32, device: u32) {
        if let Some(place) = self.devices.get(context as usize) {
            place.store(device, Ordering::Relaxed);
            self.dead.fetch_and(!(1 << context), Ordering::Relaxed);
            self.publisher.set_fault(context, CUresult::SUCCESS);
        }
    }

    /// Says who knows what devices have of the client's work.
    pub fn set_work(&self, work: Arc<dyn WorkInFlight>) {
        let _ = self.work.set(work);
    }

    /// What devices have of the client's work.
    #[must_use]
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.work
            .get()
            .map(|work| work.in_flight())
            .unwrap_or_default()
    }

    /// From here on what is under way is begun here: what the former server has said of it holds no more.
    pub fn settle(&self) {
        self.publisher.set_spilled(false);
        self.is_settled.store(true, Ordering::Release);
    }

    /// Whether the client was told of the loss of a device that it may be guilty of, if it is to be.
    pub fn was_told(&self) -> bool {
        !self.is_kept || self.work.get().is_none_or(|work| work.was_told())
    }

    /// Leaves the session to the next server, and says to it if of what is under way no kernel was begun, or nothing, which is so where
    /// devices are `at_rest`. Whether the session stays as it is from here on.
    pub fn leave(&self, at_rest: bool) -> bool {
        if !self.is_kept {
            return true;
        }
        let begins_no_kernel = self.work.get().is_some_and(|work| !work.may_have_begun());
        if self.is_settled.load(Ordering::Acquire) {
            match at_rest {
                true => self.publisher.set_nothing_begun(),
                false if begins_no_kernel => self.publisher.set_no_kernel_begun(),
                false => {}
            }
        }
        self.publisher.leave().is_ok()
    }

    /// Whether another server can take the session over, as far as is known: it is kept, what is under way stands in the
    /// ring, and its client has had nothing that this server alone has. Whose client has not followed from a former server yet has nothing here.
    #[must_use]
    pub fn can_go_over(&self) -> bool {
        self.is_kept
            && !self.is_irreplaceable.load(Ordering::Relaxed)
            && !self.publisher.is_spilled()
    }

    /// The client asks for something that no other server could make again.
    pub fn note_irreplaceable(&self) {
        self.is_irreplaceable.store(true, Ordering::Relaxed);
    }

    /// By device, how many operations of the client's streams are complete.
    #[must_use]
    pub fn completed_operations(&self) -> Vec<u64> {
        let mut sums = vec![0; self.channels.engine.devices().len()];
        for (context, completed, _) in self.progress.of_each() {
            let device = self.devices.get(context as usize);
            let device = device.map_or(0, |device| device.load(Ordering::Relaxed));
            if let Some(sum) = sums.get_mut(device as usize) {
                *sum += completed;
            }
        }
        sums
    }

    /// Adds what the client has in its streams to what it has had of their devices.
    fn add_queued(&self, accounts: &mut [DeviceAccount]) {
        for (context, _, queued) in self.progress.of_each() {
            let device = self.devices.get(context as usize);
            let device = device.map_or(0, |device| device.load(Ordering::Relaxed));
            if let Some(account) = accounts.get_mut(device as usize) {
                account.queued += queued;
            }
        }
    }

    /// Sets what [`Observer::allocate`] may give.
    pub fn set_variable_memory(&self, lent: VariableMemory) {
        *self.variables.lock() = lent;
    }

    /// Whether any context is dead.
    pub fn has_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) != 0
    }

    /// Whether a context is dead, or there is none such.
    pub fn is_dead(&self, context: u32) -> bool {
        context >= CONTEXT_SLOTS || self.dead.load(Ordering::Relaxed) & (1 << context) != 0
    }

    /// Whether this is the first fault of a context.
    fn first_fault(&self, context: u32) -> bool {
        context < CONTEXT_SLOTS
            && self.dead.fetch_or(1 << context, Ordering::Relaxed) & (1 << context) == 0
    }
}

impl Observer for ClientObserver {
    fn completed(&self, at: At, result: Result<(), CUresult>) {
        // Before the completion, so that whoever sees that sees the fault.
        if self.files.may_be_torn() {
            let text = "a registered file was cut short, or its file system is full";
            for context in self.files.torn() {
                self.fault(
                    context,
                    CUresult::ERROR_ILLEGAL_ADDRESS,
                    Guilt::Guilty,
                    text,
                );
            }
        }
        if result.is_err() && !self.is_dead(self.progress.context(at.stream)) && self.goes_over() {
            return;
        }
        if let Err(code) = result {
            // Refused, and told once; or the work of a dead context, of which more was told.
            let context = self.progress.context(at.stream);
            if !self.is_dead(context) {
                self.publisher.set_refused(context, code);
            }
        }
        // The session's word first: when the client sees its own it may post more, which the
        // session counts against the stream's depth.
        let due = self.progress.complete(at.stream, at.sequence);
        self.publisher.complete(at.stream, at.sequence);
        if due {
            self.publisher.ring_self();
        }
    }

    fn pre_wake(&self, stream: u32) {
        self.publisher.pre_wake(stream);
    }

    fn wants_every_processor(&self, whether: bool) {
        self.publisher.set_everywhere(whether);
    }

    fn ran(&self, span: &Span) {
        if let Some(accounts) = self.accounts.get() {
            accounts.add_busy_time(span);
        }
        self.recording.add_spans(std::slice::from_ref(span));
    }

    fn ran_each(&self, spans: &[Span]) {
        if let Some(accounts) = self.accounts.get() {
            // What follows without a pause is as one to them.
            let follows = |one: &Span, next: &Span| {
                let kind = |span: &Span| (span.device, span.activity, span.multiprocessors);
                kind(one) == kind(next) && one.ended == next.began
            };
            for together in spans.chunk_by(follows) {
                if let (Some(first), Some(last)) = (together.first(), together.last()) {
                    accounts.add_busy_time(&Span {
                        began: first.began,
                        ..*last
                    });
                }
            }
        }
        self.recording.add_spans(spans);
    }

    fn code_came(&self, device: u32, from: CodeSource) {
        if let Some(accounts) = self.accounts.get() {
            accounts.add_code(device, from);
        }
    }

    fn wants_each_span(&self) -> bool {
        self.recording.is_on()
    }

    fn held_back(&self, at: At, device: u32, why: HoldReason, nanoseconds: u64) {
        let now = clock::now();
        let since = now.saturating_sub(nanoseconds);
        if let Some(accounts) = self.accounts.get() {
            if why.is_others() {
                accounts.add_wait(device, since, now);
            }
            if why.is_own_limit() {
                accounts.add_throttling(device, since, now);
            }
        }
        self.recording.add_hold(at, device, why, (since, now));
    }

    fn slowed(&self, device: u32, nanoseconds: u64) {
        if let Some(accounts) = self.accounts.get() {
            let now = clock::now();
            accounts.add_wait(device, now.saturating_sub(nanoseconds), now);
        }
    }

    fn event_time(&self, event: u32, nanoseconds: u64) {
        self.publisher.event_time(event, nanoseconds);
    }

    fn output_ready(&self) {
        self.publisher.announce_output();
    }

    fn fault(&self, context: u32, code: CUresult, guilt: Guilt, text: &str) {
        if guilt == Guilt::Innocent && self.goes_over() {
            self.channels.events.note_dead_context();
            return;
        }
        if !self.first_fault(context) {
            return;
        }
        self.publisher.set_fault(context, code);
        if let Some(accounts) = self.accounts.get() {
            let device = self.devices.get(context as usize);
            accounts.add_fault(device.map_or(0, |device| device.load(Ordering::Relaxed)));
        }
        let earlier = self.faults.fetch_add(1, Ordering::Relaxed).min(MAX_FAULTS);
        if earlier == MAX_FAULTS {
            // So that the count never comes round.
            self.faults.store(MAX_FAULTS, Ordering::Relaxed);
            self.channels.events.note_dead_context();
            return;
        }
        self.name.faulted(context + 1, code.0, guilt, text);
        self.channels.events.push(ServerEvent::Fault {
            session: self.session,
            code,
            guilt,
            text: text.to_owned(),
        });
        if earlier + 1 == MAX_FAULTS {
            self.name
                .fault_line("further faults of this client are not reported");
        }
    }

    fn kernel_time_limit(&self) -> Option<Duration> {
        self.kernel_time.limit()
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn overran(&self, text: &str) {
        if !self.overran.swap(true, Ordering::Relaxed) {
            self.name.fault_line(text);
            self.channels.events.push(ServerEvent::Overran {
                session: self.session,
                text: text.to_owned(),
            });
        }
    }

    fn chunk_made(&self, chunk: MemoryChunk) {
        self.push_event(ServerEvent::ChunkMade(self.session, chunk));
    }

    fn chunk_gone(&self, device: u32, base: u64) {
        self.push_event(ServerEvent::ChunkGone(self.session, device, base));
    }

    fn has_variables(&self) -> bool {
        self.variables.lock().is_written
    }

    fn allocate(&self, _context: u32, bytes: u64, managed: bool) -> Result<Window, CUresult> {
        let mut lent = self.variables.lock();
        let left = match managed {
            true => &mut lent.managed,
            false => &mut lent.device,
        };
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|&bytes| bytes <= left.bytes)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let given = Window {
            base: left.base,
            bytes,
        };
        left.base += bytes;
        left.bytes -= bytes;
        Ok(given)
    }
}
