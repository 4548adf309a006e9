use std::sync::mpsc;

use engine::{Guilt, Window};
use protocol::operations::At;

use super::*;

const NEVER: fn() -> bool = || false;

/// A client that may have ended, of which nobody wants to know anything else.
#[derive(Debug, Default)]
struct Client {
    has_ended: AtomicBool,
}

impl Observer for Client {
    fn completed(&self, _: At, _: Result<(), CUresult>) {}
    fn event_time(&self, _: u32, _: u64) {}
    fn output_ready(&self) {}
    fn fault(&self, _: u32, _: CUresult, _: Guilt, _: &str) {}

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    fn allocate(&self, _: u32, _: u64, _: bool) -> Result<Window, CUresult> {
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }
}

/// A context of a client of its own, which is this thread's.
fn add_context(gate: &QuiesceGate) -> Arc<Running> {
    let client: Arc<dyn Observer> = Arc::new(Client::default());
    gate.add_context(&client)
}

#[test]
fn who_is_alone_waits_for_what_runs_and_lets_nothing_through() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    let (tell, told) = mpsc::channel();
    let run_exclusive = std::thread::spawn({
        let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
        move || {
            let call = || {
                assert!(!gate.try_pass(&running, false), "let through a closed gate");
                tell.send(()).unwrap();
            };
            gate.run_exclusive(NEVER, call).unwrap();
        }
    });
    // Others are let through again and again while it waits for an operation that runs long.
    while !gate.closed.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let other = add_context(&gate);
    while !gate.try_pass(&other, false) {
        std::thread::yield_now();
    }
    other.operation_done();
    assert!(told.try_recv().is_err(), "alone beside what runs");
    running.operation_done();
    run_exclusive.join().unwrap();
    told.try_recv().unwrap();
    assert!(gate.try_pass(&running, false), "the gate stayed closed");
}

/// Starts something that is to be done alone and waits for `go`.
fn start(
    gate: &Arc<QuiesceGate>,
    tell: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
) -> std::thread::JoinHandle<()> {
    let gate = Arc::clone(gate);
    std::thread::spawn(move || {
        gate.run_exclusive(NEVER, || {
            tell.send(()).unwrap();
            go.recv().unwrap();
        })
        .unwrap();
    })
}

#[test]
fn what_runs_long_holds_up_its_own_context_and_no_other() {
    let gate = Arc::new(QuiesceGate::default());
    let (long, other) = (add_context(&gate), add_context(&gate));
    assert!(gate.try_pass(&long, false));
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let run_exclusive = start(&gate, tell, gone);
    while !long.held.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    // For as long as it takes the other begins and ends what it likes.
    for _ in 0..100 {
        while !gate.try_pass(&other, false) {
            std::thread::yield_now();
        }
        assert!(
            !gate.try_pass(&long, false),
            "a held context began something"
        );
        other.operation_done();
    }
    assert!(told.try_recv().is_err(), "alone beside what runs");
    long.operation_done();
    told.recv().unwrap();
    assert!(!gate.try_pass(&other, false) && !gate.try_pass(&long, false));
    go.send(()).unwrap();
    run_exclusive.join().unwrap();
    assert!(
        gate.try_pass(&long, false) && gate.try_pass(&other, false),
        "still held"
    );
}

#[test]
fn what_waits_for_its_own_context_is_let_go_after_a_while() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    let (tell, _told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    go.send(()).unwrap();
    let run_exclusive = start(&gate, tell, gone);
    while !running.held.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    // What runs ends when this has begun.
    while !gate.try_pass(&running, false) {
        std::thread::yield_now();
    }
    running.operation_done();
    running.operation_done();
    run_exclusive.join().unwrap();
}

/// Beside one that does not end, and beside who loads.
#[test]
fn who_is_held_beside_what_does_not_end_is_held_once() {
    for own in [false, true] {
        let gate = Arc::new(QuiesceGate::default());
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let loading = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                tell.send(add_context(&gate)).unwrap();
                gone.recv().unwrap();
                gate.run_exclusive(NEVER, || ()).unwrap();
            }
        });
        let loader = told.recv().unwrap();
        let (endless, long) = match own {
            true => (loader, add_context(&gate)),
            false => (add_context(&gate), add_context(&gate)),
        };
        let pass = |running: &Running| {
            while !gate.try_pass(running, false) {
                std::thread::yield_now();
            }
        };
        pass(&endless);
        pass(&long);
        go.send(()).unwrap();
        until(|| long.held.load(Ordering::SeqCst));
        long.operation_done();
        until(|| !long.held.load(Ordering::SeqCst));
        // Kernels one after another, each longer than what is held for.
        let began = Instant::now();
        while began.elapsed() < FIRST_HOLD * 3 / 2 {
            pass(&long);
            std::thread::sleep(2 * PATIENCE);
            assert!(!long.held.load(Ordering::SeqCst), "held again");
            assert!(!gate.closed.load(Ordering::SeqCst), "closed again");
            long.operation_done();
        }
        assert_eq!(endless.held.load(Ordering::SeqCst), !own);
        endless.operation_done();
        loading.join().unwrap();
    }
}

/// Waits until something is so.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

#[test]
fn what_waits_for_another_process_is_not_kept_from_it_by_its_own_load() {
    let gate = Arc::new(QuiesceGate::default());
    let (tell, told) = mpsc::channel();
    let loading = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            let own = add_context(&gate);
            assert!(gate.try_pass(&own, false));
            tell.send(Arc::clone(&own)).unwrap();
            gate.run_exclusive(NEVER, || {
                assert!(!gate.try_pass(&own, false), "let through a closed gate");
            })
            .unwrap();
        }
    });
    let own = told.recv().unwrap();
    let other = add_context(&gate);
    // Long after others would be held for what runs, what was given to its streams before goes on.
    while !own.exempt.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let until = Instant::now() + 3 * PATIENCE;
    let mut others = 0;
    while Instant::now() < until || others == 0 {
        assert!(gate.try_pass(&own, false), "kept from its own work");
        own.operation_done();
        assert!(!own.held.load(Ordering::SeqCst));
        // And so do others while it takes long.
        if gate.try_pass(&other, false) {
            other.operation_done();
            others += 1;
        }
    }
    own.operation_done();
    loading.join().unwrap();
    assert!(gate.try_pass(&other, false) && !own.exempt.load(Ordering::SeqCst));
}

#[test]
fn who_waits_for_the_gate_has_the_same_turn() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let first = start(&gate, tell.clone(), gone);
    told.recv().unwrap();
    let (go_on, gone_on) = mpsc::channel();
    let second = start(&gate, tell, gone_on);
    while gate.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // Somebody would begin something as soon as that can be.
    let stop = Arc::new(AtomicBool::new(false));
    let beginning = std::thread::spawn({
        let (gate, stop) = (Arc::clone(&gate), Arc::clone(&stop));
        move || {
            while !gate.try_pass(&running, false) {
                std::thread::yield_now();
            }
            assert!(stop.load(Ordering::SeqCst), "the gate was opened between");
            running.operation_done();
        }
    });
    go.send(()).unwrap();
    told.recv().unwrap();
    stop.store(true, Ordering::SeqCst);
    go_on.send(()).unwrap();
    for thread in [first, second, beginning] {
        thread.join().unwrap();
    }
}

#[test]
fn who_is_alone_beside_work_all_the_time_waits_for_it() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    let spent = load_budget::MOST_TOGETHER * 2;
    let this = std::thread::current().id();
    gate.turn.lock().budget.spend(this, spent, Instant::now());
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    go.send(()).unwrap();
    // While nothing runs nobody is disturbed.
    gate.run_exclusive(NEVER, || ()).unwrap();
    assert!(gate.try_pass(&running, false));
    let run_exclusive = start(&gate, tell, gone);
    // As much has been spent that it is not held for what runs.
    for _ in 0..3 {
        while !gate.try_pass(&running, false) {
            std::thread::yield_now();
        }
        running.operation_done();
        assert!(!running.held.load(Ordering::SeqCst));
    }
    running.operation_done();
    run_exclusive.join().unwrap();
    told.recv().unwrap();
}

#[test]
fn who_loads_without_pause_is_waited_for_by_nobody_who_loads() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    let (tell, told) = mpsc::channel();
    let greedy = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            let this = std::thread::current().id();
            let spent = load_budget::MOST_TOGETHER * 9 / 10;
            gate.turn.lock().budget.spend(this, spent, Instant::now());
            tell.send("it begins").unwrap();
            gate.run_exclusive(NEVER, || tell.send("greedy")).unwrap()
        }
    });
    told.recv().unwrap();
    // It has its turn again and again while it waits, and leaves it to others.
    let other = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            gate.run_exclusive(NEVER, || {
                assert!(told.try_recv().is_err(), "who waits came first");
            })
            .unwrap();
            told
        }
    });
    while !running.held.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    running.operation_done();
    let told = other.join().unwrap();
    greedy.join().unwrap().unwrap();
    told.try_recv().unwrap();
}

/// One kernel of its own each time keeps all others waiting, however quickly it loads. Who has nothing to begin
/// does not wait.
#[test]
fn who_keeps_others_waiting_for_what_runs_has_to_wait_too() {
    const RUNS: Duration = Duration::from_millis(18);
    for (others_wait, is_over) in [(true, true), (false, false)] {
        let gate = Arc::new(QuiesceGate::default());
        let other = add_context(&gate);
        let loading = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                let (own, this) = (add_context(&gate), std::thread::current().id());
                let spent = load_budget::MOST_SPENT - RUNS / 16;
                gate.turn.lock().budget.spend(this, spent, Instant::now());
                assert!(gate.try_pass(&own, false));
                let running = std::thread::spawn(move || {
                    std::thread::sleep(RUNS);
                    own.operation_done();
                });
                gate.run_exclusive(NEVER, || ()).unwrap();
                running.join().unwrap();
                gate.turn.lock().budget.is_over(this, Instant::now())
            }
        });
        while others_wait && !loading.is_finished() {
            if gate.try_pass(&other, false) {
                other.operation_done();
            }
        }
        assert_eq!(loading.join().unwrap(), is_over);
    }
}

/// There are moments in which nothing of its runs.
#[test]
fn who_waits_for_each_of_its_kernels_is_not_taken_for_idle() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    let spent = load_budget::MOST_TOGETHER * 8;
    let this = std::thread::current().id();
    gate.turn.lock().budget.spend(this, spent, Instant::now());
    let is_kept_waiting = || {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        go.send(()).unwrap();
        let run_exclusive = start(&gate, tell, gone);
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        let mut idle_since = began;
        while began.elapsed() < 5 * PATIENCE {
            if !gate.try_pass(&running, false) {
                break;
            }
            longest = longest.max(idle_since.elapsed());
            std::thread::sleep(LOOK);
            running.operation_done();
            idle_since = Instant::now();
            std::thread::sleep(LOOK);
        }
        let is_kept = began.elapsed() >= 5 * PATIENCE && told.try_recv().is_err();
        // It is soon when nothing has run for a while.
        told.recv().unwrap();
        run_exclusive.join().unwrap();
        // Where this thread got no processor for as long, there was such a while.
        (longest < PATIENCE / 2).then_some(is_kept)
    };
    let mut tries = std::iter::repeat_with(is_kept_waiting);
    assert!(tries.find_map(|tried| tried).unwrap(), "loaded in between");
    let budget = &mut gate.turn.lock().budget;
    assert!(budget.is_over(this, Instant::now()), "it was no moment");
}

#[test]
fn what_is_known_to_run_long_is_held_at_once_and_until_it_is_over() {
    let gate = Arc::new(QuiesceGate::default());
    let (long, other) = (add_context(&gate), add_context(&gate));
    assert!(gate.try_pass(&long, false));
    // Longer than who is not known to run so long would be held.
    long.expect_duration(FIRST_HOLD * 2);
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    go.send(()).unwrap();
    let run_exclusive = start(&gate, tell, gone);
    while !long.held.load(Ordering::SeqCst) {
        assert!(long.expected_remaining() > FIRST_HOLD);
        std::thread::yield_now();
    }
    while long.expected_remaining() > FIRST_HOLD / 4 {
        assert!(!gate.try_pass(&long, false), "let go before it is over");
        while !gate.try_pass(&other, false) {
            std::thread::yield_now();
        }
        other.operation_done();
        std::thread::sleep(LOOK);
    }
    long.operation_done();
    told.recv().unwrap();
    run_exclusive.join().unwrap();
    assert!(gate.try_pass(&long, false));
}

#[test]
fn a_dead_device_is_not_waited_for() {
    let gate = QuiesceGate::default();
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    assert_eq!(gate.run_exclusive(|| true, || 7), Ok(7));
}

#[test]
fn what_is_retired_waits_for_an_idle_device() {
    let gate = QuiesceGate::default();
    let running = add_context(&gate);
    let (tell, told) = mpsc::channel();
    assert!(gate.try_pass(&running, false));
    gate.when_idle(1, move || tell.send(()).unwrap());
    gate.run_pending();
    assert!(told.try_recv().is_err(), "given back beside what runs");
    running.operation_done();
    gate.run_pending();
    told.try_recv().unwrap();
    assert_eq!(gate.retired.count(), 0);
}

#[test]
fn who_waits_for_what_is_retired_waits_for_all_of_it() {
    let gate = QuiesceGate::default();
    let given_back = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let given_back = Arc::clone(&given_back);
        gate.when_idle(0, move || {
            std::thread::sleep(MOST_CLOSED * 2 / 3);
            given_back.fetch_add(1, Ordering::SeqCst);
        });
    }
    gate.give_back(NEVER).unwrap();
    assert_eq!(given_back.load(Ordering::SeqCst), 4);
    gate.give_back(NEVER).unwrap();
}

/// The poller, which tries again and again, would hear of the gate and not sleep, and who begins something would come to a closed one.
#[test]
fn what_is_retired_closes_no_gate_beside_what_runs() {
    let gate = QuiesceGate::default();
    let waker = Arc::default();
    gate.set_waker(&waker);
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    gate.when_idle(1, || ());
    let posts = waker.posts();
    assert!(!gate.run_pending());
    assert_eq!(waker.posts(), posts, "it was closed and opened");
    running.operation_done();
    assert!(gate.run_pending());
    assert_ne!(waker.posts(), posts);
}

/// What one client leaves at its end is not given back in one turn if that takes long.
#[test]
fn very_much_that_is_retired_is_given_back_by_and_by() {
    let gate = QuiesceGate::default();
    let running = add_context(&gate);
    let given_back = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let given_back = Arc::clone(&given_back);
        gate.when_idle(1, move || {
            std::thread::sleep(MOST_SWEPT / 3);
            given_back.fetch_add(1, Ordering::SeqCst);
        });
    }
    let mut turns = 1;
    while !gate.run_pending() {
        assert!(gate.try_pass(&running, false), "the gate stayed closed");
        running.operation_done();
        turns += 1;
    }
    assert_eq!(given_back.load(Ordering::SeqCst), 20);
    assert!(turns >= 6, "{turns}");
}

#[test]
fn what_was_retired_is_given_back_before_more_is_taken() {
    let gate = QuiesceGate::default();
    let (tell, told) = mpsc::channel();
    gate.when_idle(1, move || tell.send(()).unwrap());
    assert_eq!(gate.run_exclusive(NEVER, || told.try_recv()), Ok(Ok(())));
}

#[test]
fn who_makes_more_waits_while_much_is_retired_and_who_retires_never() {
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    let given_back = Arc::new(AtomicUsize::new(0));
    assert!(gate.try_pass(&running, false));
    for count in 0..=retired::MOST_THINGS {
        assert_eq!(given_back.load(Ordering::SeqCst), 0, "after {count}");
        gate.make_room(NEVER).unwrap();
        let given_back = Arc::clone(&given_back);
        gate.when_idle(0, move || {
            given_back.fetch_add(1, Ordering::SeqCst);
        });
    }
    let (tell, told) = mpsc::channel();
    let making = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            gate.make_room(NEVER).unwrap();
            tell.send(()).unwrap();
        }
    });
    while !gate.closed.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(told.try_recv().is_err(), "more was made");
    running.operation_done();
    making.join().unwrap();
    assert_eq!(given_back.load(Ordering::SeqCst), retired::MOST_THINGS + 1);
}

#[test]
fn a_client_that_has_gone_runs_nothing() {
    let gate = QuiesceGate::default();
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    drop(running);
    gate.run_exclusive(NEVER, || ()).unwrap();
}

#[test]
fn what_a_client_left_that_does_not_end_is_given_up_after_a_while() {
    let gate = Arc::new(QuiesceGate::default());
    let (live, gone) = (add_context(&gate), add_context(&gate));
    assert!(gate.try_pass(&live, false) && gate.try_pass(&gone, false));
    gate.set_grace(Duration::ZERO);
    assert!(!gate.is_stuck(), "both are there");
    gate.set_grace(GRACE);
    gone.client_gone();
    let waiting = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || gate.run_exclusive(NEVER, || ())
    });
    while !gate.closed.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    gate.set_grace(Duration::ZERO);
    let unavailable = Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(waiting.join().unwrap(), unavailable);
    assert_eq!(gate.run_exclusive(NEVER, || ()), unavailable);
    assert_eq!(gate.make_room(NEVER), Ok(()), "there is room");
    assert_eq!(
        gate.run_exclusive(|| true, || ()),
        Ok(()),
        "a dead device runs nothing"
    );
    gone.operation_done();
    live.operation_done();
    assert_eq!(gate.run_exclusive(NEVER, || ()), Ok(()));
}

/// Its thread cannot say so, as it waits for the kernel that the client has left.
#[test]
fn a_client_that_ends_while_it_waits_for_its_own_kernel_is_gone_for_all() {
    let gate = Arc::new(QuiesceGate::default());
    let client = Arc::new(Client::default());
    let (tell, told) = mpsc::channel();
    let loading = std::thread::spawn({
        let (gate, client) = (Arc::clone(&gate), Arc::clone(&client) as Arc<dyn Observer>);
        move || {
            let own = gate.add_context(&client);
            assert!(gate.try_pass(&own, false));
            tell.send(Arc::clone(&own)).unwrap();
            gate.run_exclusive(NEVER, || ())
        }
    });
    let own = told.recv().unwrap();
    let other = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || gate.run_exclusive(NEVER, || ())
    });
    while gate.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(!gate.is_left_with_work(Duration::ZERO), "it is there");
    client.has_ended.store(true, Ordering::SeqCst);
    let unavailable = Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(loading.join().unwrap(), unavailable, "for nobody");
    assert!(gate.is_left_with_work(Duration::ZERO) && !gate.is_stuck());
    assert!(!gate.try_pass(&own, true), "it goes on when it is gone");
    gate.set_grace(Duration::ZERO);
    assert_eq!(other.join().unwrap(), unavailable);
    own.operation_done();
    assert_eq!(gate.run_exclusive(NEVER, || ()), Ok(()));
}

/// A thread that waits for its turn, for a client that has ended.
fn wait_for_nobody(gate: &Arc<QuiesceGate>) -> std::thread::JoinHandle<Result<(), CUresult>> {
    let client = Arc::new(Client::default());
    let waiting = std::thread::spawn({
        let (gate, client) = (Arc::clone(gate), Arc::clone(&client) as Arc<dyn Observer>);
        move || {
            let _own = gate.add_context(&client);
            gate.run_exclusive(NEVER, || ())
        }
    });
    until(|| gate.waiting.load(Ordering::SeqCst) > 0);
    client.has_ended.store(true, Ordering::SeqCst);
    waiting
}

/// Behind who waits for what may never end.
#[test]
fn a_client_that_ends_while_it_waits_for_its_turn_waits_no_longer() {
    let unavailable = Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
    let gate = Arc::new(QuiesceGate::default());
    let running = add_context(&gate);
    assert!(gate.try_pass(&running, false));
    let loading = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || gate.run_exclusive(NEVER, || ())
    });
    until(|| running.held.load(Ordering::SeqCst));
    assert_eq!(wait_for_nobody(&gate).join().unwrap(), unavailable);
    assert!(!loading.is_finished());
    running.operation_done();
    assert_eq!(loading.join().unwrap(), Ok(()));
    // One who has seen that it waits leaves the gate closed to it.
    let mut turn = gate.turn.lock();
    gate.close();
    turn.closed = Some(Pause {
        since: Instant::now(),
        disturbs: false,
    });
    let waiting = wait_for_nobody(&gate);
    until(|| gate.waiting.load(Ordering::SeqCst) == 0);
    drop(turn);
    assert_eq!(waiting.join().unwrap(), unavailable);
    assert!(gate.try_pass(&running, false), "the gate stayed closed");
}

/// What has been begun in part is over before there is rest, though somebody waits to load, and nothing else is begun.
#[test]
fn what_was_begun_in_part_comes_to_rest_beside_who_waits_for_what_was_left() {
    let gate = Arc::new(QuiesceGate::default());
    let (left, other) = (add_context(&gate), add_context(&gate));
    assert!(gate.try_pass(&left, false) && gate.try_pass(&other, false));
    left.client_gone();
    let loader = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || gate.run_exclusive(NEVER, || ())
    });
    while !gate.closed.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(!gate.rest(), "the other has something");
    assert!(gate.try_pass(&other, true), "it cannot come to its end");
    assert!(!gate.try_pass(&other, false), "it begins something");
    for _ in 0..2 {
        other.operation_done();
    }
    assert!(gate.rest());
    gate.end_rest();
    left.operation_done();
    loader.join().unwrap().unwrap();
}

#[test]
fn others_hear_of_a_load_before_it_comes_and_its_own_client_does_not() {
    let gate = QuiesceGate::default();
    let here = add_context(&gate);
    // Of another client, which is another thread's.
    let other = std::thread::scope(|scope| scope.spawn(|| add_context(&gate)).join().unwrap());
    let forget = || {
        for word in [
            &gate.load_expected_until,
            &here.load_expected_until,
            &other.load_expected_until,
        ] {
            word.store(1, Ordering::Relaxed);
        }
    };
    forget();
    assert!(!gate.is_load_of_others_expected(&here), "it is over");
    assert_eq!(gate.load_expected_until.load(Ordering::Relaxed), 0);
    gate.expect_load();
    // Far enough away for however slow a machine.
    let later = clock::now() + u64::MAX / 4;
    gate.load_expected_until.store(later, Ordering::Relaxed);
    here.load_expected_until.store(later, Ordering::Relaxed);
    assert!(gate.is_load_of_others_expected(&other));
    assert!(!gate.is_load_of_others_expected(&here), "it loads itself");
    forget();
    drop(add_context(&gate));
    assert!(
        gate.load_expected_until.load(Ordering::Relaxed) > 1,
        "who comes is about to load"
    );
    // What made others wait is likely to be followed by more.
    forget();
    assert!(gate.try_pass(&other, false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !gate.closed.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            other.operation_done();
        });
        gate.run_exclusive(NEVER, || ()).unwrap();
    });
    assert!(gate.load_expected_until.load(Ordering::Relaxed) > 1);
}
