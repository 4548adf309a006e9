//! Shares, classes and priorities, with tasks that only take time. What is compared is time that the
//! tasks were given, so that a busy machine changes little.

use parking_lot::{Mutex, RwLock};
use std::sync::atomic::AtomicBool;

use engine::conformance::rig::bounded;
use engine::{Activity, Bound, CUresult, Charge, Guilt, Observer, Window};
use protocol::operations::At;

use super::*;
use crate::client_state::ClientState;
use crate::context::Context;
use crate::launch_pool::LaunchPool;
use crate::memory::CopySpace;
use crate::stream::Stream;
use crate::work::{Part, Progress, SliceClock, Task};

#[derive(Debug, Default)]
struct Told(Mutex<Vec<u32>>, Mutex<Vec<HoldReason>>);

impl Observer for Told {
    fn completed(&self, at: At, _result: Result<(), CUresult>) {
        self.0.lock().push(at.stream);
    }
    fn held_back(&self, _at: At, _device: u32, why: HoldReason, _nanoseconds: u64) {
        self.1.lock().push(why);
    }
    fn event_time(&self, _event: u32, _nanoseconds: u64) {}
    fn output_ready(&self) {}
    fn fault(&self, _context: u32, _code: CUresult, _guilt: Guilt, _text: &str) {}
    fn allocate(&self, _context: u32, _bytes: u64, _managed: bool) -> Result<Window, CUresult> {
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }
}

/// Takes time in `units` units of a tenth of a millisecond, and notes how much it was given.
#[derive(Debug)]
struct Work {
    units: u64,
    given: Arc<AtomicU64>,
}

impl Task for Work {
    fn name(&self) -> &str {
        "work"
    }
    fn activity(&self) -> Activity {
        Activity::Kernel
    }
    fn units(&self) -> u64 {
        self.units
    }
    fn unit_cost(&self) -> Option<u64> {
        Some(100_000)
    }
    fn most_resident(&self) -> u64 {
        16
    }
    fn quantum(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn run(&self, piece: &mut Piece, clock: &mut SliceClock, _sm: u32) -> Progress {
        let started = processor_time();
        for _ in piece.fresh.by_ref() {
            let end = processor_time() + 100_000;
            while processor_time() < end {
                std::hint::spin_loop();
            }
            if clock.is_up() {
                break;
            }
        }
        let took = processor_time() - started;
        self.given.fetch_add(took, Ordering::Relaxed);
        if piece.is_empty() {
            Progress::Finished
        } else {
            Progress::Yielded
        }
    }
}

struct Member {
    client: Arc<ClientState>,
    context: Arc<Context>,
    told: Arc<Told>,
}

impl Member {
    fn new(pool: &WorkerPool, percentage: f32, priority: u32) -> Self {
        let share = Share {
            percentage,
            priority,
            reserved: false,
        };
        Self::with(pool, share, None)
    }

    fn with(pool: &WorkerPool, share: Share, group: Option<u32>) -> Self {
        let told = Arc::new(Told::default());
        let observer = Arc::clone(&told) as Arc<dyn Observer>;
        let scheduler = Arc::clone(pool.scheduler());
        let account = scheduler.join(share, group).unwrap();
        Self {
            context: Arc::new(Context::new(0, 0, 100.0, Arc::clone(&observer))),
            client: Arc::new(ClientState {
                observer,
                scheduler,
                rest: Arc::default(),
                account,
                spaces: Arc::new(RwLock::new(Arc::new(CopySpace::empty()))),
                facts: Arc::default(),
                launches: Arc::new(LaunchPool::new()),
                jobs: Arc::default(),
                graphs: Mutex::default(),
                closed: AtomicBool::new(false),
                waiting: AtomicU64::new(0),
                waiting_held: Mutex::new(Charge::new(Arc::new(Bound::new(u64::MAX)))),
            }),
            told,
        }
    }

    /// Starts work of so many units, and gives the count of what it was given.
    fn start(&self, slot: u32, priority: i32, units: u64) -> Arc<AtomicU64> {
        let given = Arc::new(AtomicU64::new(0));
        let (context, client) = (Arc::clone(&self.context), Arc::clone(&self.client));
        let stream = Stream::new(slot, priority, Arc::clone(&context), client);
        let task = Box::new(Work {
            units,
            given: Arc::clone(&given),
        });
        let job = Job::new(
            Arc::clone(&stream) as _,
            Part {
                sequence: 1,
                is_last: true,
            },
            context,
            priority,
            task,
            Piece::whole(units),
        );
        let ClientState {
            scheduler, account, ..
        } = &*self.client;
        scheduler.submit(account, Arc::new(job), usize::MAX);
        given
    }

    fn leave(&self) {
        self.context.destroy();
        self.client.scheduler.leave(&self.client.account);
    }
}

const ENDLESS: u64 = 1 << 40;

/// Waits until the fractions that each has of the time of all from now on are as they should be. One
/// time slice may well be seen to take a tenth of a second, on a machine that has better things to do.
fn wait_for_shares(given: &[&Arc<AtomicU64>], time: Duration, are_right: impl Fn(&[f64]) -> bool) {
    let read = || {
        given
            .iter()
            .map(|given| given.load(Ordering::Relaxed) as f64)
    };
    let before: Vec<f64> = read().collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let got = read().zip(&before).map(|(now, before)| now - before);
        let got: Vec<f64> = got.collect();
        let all: f64 = got.iter().sum();
        let shares: Vec<f64> = got.iter().map(|got| got / all).collect();
        if all >= time.as_nanos() as f64 && are_right(&shares) {
            return;
        }
        assert!(Instant::now() < deadline, "{shares:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether shares are about these.
fn are(wanted: &[f64]) -> impl Fn(&[f64]) -> bool {
    move |shares| {
        let mut pairs = shares.iter().zip(wanted);
        pairs.all(|(share, wanted)| (share - wanted).abs() < 0.06)
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn time_is_given_by_percentage() {
    for workers in [1, 2] {
        let pool = WorkerPool::new(workers).unwrap();
        let members = [60.0, 30.0, 10.0].map(|share| Member::new(&pool, share, 0));
        let given = members.each_ref().map(|member| member.start(1, 0, ENDLESS));
        std::thread::sleep(Duration::from_millis(100));
        let time = Duration::from_millis(1200);
        wait_for_shares(&given.each_ref(), time, are(&[0.6, 0.3, 0.1]));
        members.iter().for_each(Member::leave);
    }
}

#[test]
fn who_is_alone_has_everything_and_newcomers_owe_nothing() {
    let pool = WorkerPool::new(2).unwrap();
    let small = Member::new(&pool, 10.0, 0);
    let given = small.start(1, 0, ENDLESS);
    wait_until(|| given.load(Ordering::Relaxed) > 400_000_000);
    // What it had alone is not held against it.
    let large = Member::new(&pool, 10.0, 0);
    let more = large.start(1, 0, ENDLESS);
    std::thread::sleep(Duration::from_millis(50));
    let time = Duration::from_millis(600);
    wait_for_shares(&[&given, &more], time, are(&[0.5, 0.5]));
    small.leave();
    large.leave();
}

#[test]
fn below_normal_work_waits_but_not_for_ever() {
    let pool = WorkerPool::new(1).unwrap();
    let normal = Member::new(&pool, 1.0, 0);
    let below = Member::new(&pool, 100.0, 1);
    let waiting = below.start(1, 0, ENDLESS);
    let first = normal.start(1, 0, ENDLESS);
    std::thread::sleep(Duration::from_millis(50));
    let few = |shares: &[f64]| shares[1] < 0.05 && shares[1] > 0.0;
    wait_for_shares(&[&first, &waiting], Duration::from_millis(1000), few);
    normal.leave();
    let before = waiting.load(Ordering::Relaxed);
    wait_until(|| waiting.load(Ordering::Relaxed) - before > 100_000_000);
    below.leave();
}

#[test]
fn urgent_streams_go_first_within_a_client() {
    let pool = WorkerPool::new(1).unwrap();
    let member = Member::new(&pool, 100.0, 0);
    let low = member.start(1, 0, ENDLESS);
    let high = member.start(2, -5, ENDLESS);
    let most = |shares: &[f64]| shares[1] > 0.7 && shares[0] > 0.02;
    wait_for_shares(&[&low, &high], Duration::from_millis(600), most);
    member.leave();
}

#[test]
fn work_that_ends_is_reported_once() {
    let pool = WorkerPool::new(3).unwrap();
    let members = [50.0, 100.0].map(|share| Member::new(&pool, share, 0));
    for slot in 0..40 {
        members.iter().for_each(|member| {
            member.start(slot, 0, u64::from(slot % 7) + 1);
        });
    }
    wait_until(|| {
        members
            .iter()
            .all(|member| member.told.0.lock().len() == 40)
    });
    for member in &members {
        let mut told = member.told.0.lock().clone();
        told.sort_unstable();
        assert_eq!(told, (0..40).collect::<Vec<u32>>());
        member.leave();
    }
}

#[test]
fn who_is_woken_wakes_those_whom_somebody_has_still_to_wake() {
    let pool = WorkerPool::new(4).unwrap();
    let scheduler = pool.scheduler();
    wait_until(|| scheduler.state.lock().asleep == 4);
    // As if whoever wakes them lost its processor to the first of them.
    scheduler.state.lock().wake(4);
    scheduler.unwoken.store(3, Ordering::Relaxed);
    scheduler.work.notify_one();
    wait_until(|| scheduler.state.lock().asleep == 4);
    assert_eq!(scheduler.state.lock().waking, 0);
}

#[test]
fn only_work_for_a_thread_on_each_processor_wants_them_all() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let pool = WorkerPool::new(processors + 1).unwrap();
    let scheduler = pool.scheduler();
    wait_until(|| scheduler.state.lock().asleep == processors + 1);
    assert!(scheduler.takes_every_processor(processors + 1));
    assert!(!scheduler.takes_every_processor(processors));
    // Beside another client's.
    let member = Member::new(&pool, 100.0, 0);
    member.start(1, 0, ENDLESS);
    wait_until(|| scheduler.spare.load(Ordering::Relaxed) == 0);
    assert!(scheduler.takes_every_processor(1));
    member.leave();
    let fewer = WorkerPool::new(processors - 1).unwrap();
    assert!(!fewer.scheduler().takes_every_processor(usize::MAX));
}

#[test]
fn idle_threads_use_no_processor() {
    let pool = WorkerPool::new(4).unwrap();
    let member = Member::new(&pool, 100.0, 0);
    member.start(1, 0, 10);
    std::thread::sleep(Duration::from_millis(100));
    let state = pool.scheduler().state.lock();
    assert_eq!((state.asleep, state.waking, state.helping), (4, 0, 0));
    assert_eq!(state.shares.ready(), 0);
    drop(state);
    member.leave();
}

#[test]
fn leaving_ends_work_that_runs_and_work_that_waits() {
    let pool = WorkerPool::new(2).unwrap();
    let member = Member::new(&pool, 100.0, 0);
    let given: Vec<_> = (0..10).map(|slot| member.start(slot, 0, ENDLESS)).collect();
    std::thread::sleep(Duration::from_millis(20));
    bounded("endless work ends with its client", || member.leave());
    let sum = || {
        given
            .iter()
            .map(|given| given.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    let after = sum();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(sum(), after);
}

#[test]
fn a_reserved_share_is_held_and_kept_free() {
    for workers in [1, 2] {
        let pool = WorkerPool::new(workers).unwrap();
        let share = |percentage, reserved| Share {
            percentage,
            priority: 0,
            reserved,
        };
        let owner = Member::with(&pool, share(20.0, true), None);
        let other = Member::with(&pool, share(100.0, false), None);
        for (member, part) in [(&owner, 0.2), (&other, 0.8)] {
            let started = Instant::now();
            let given = member.start(1, 0, ENDLESS);
            // More by 20 ms, and by one time slice of each thread.
            let held = || {
                let given = given.load(Ordering::Relaxed) as f64 / 1e6;
                let time = started.elapsed().as_secs_f64() * 1e3 + 20.0;
                assert!(given <= (part * time + 4.0) * workers as f64, "{given} ms");
                given > 100.0
            };
            wait_until(held);
            if part == 0.8 {
                // Both work now; what is small ends, whoever's it is.
                for slot in 2..12 {
                    owner.start(slot, 0, 5);
                    other.start(slot, 0, 5);
                }
                let all = |member: &Member| member.told.0.lock().len() == 10;
                wait_until(|| held() && all(&owner) && all(&other));
                other.leave();
            }
        }
        owner.leave();
        assert!(pool.scheduler().plain.load(Ordering::Relaxed));
    }
}

#[test]
fn a_group_has_its_part_from_the_next_turn_on() {
    let pool = WorkerPool::new(2).unwrap();
    let members = [Some(3), Some(3), None].map(|group| {
        let share = Share::default();
        Member::with(&pool, share, group)
    });
    let given = members.each_ref().map(|member| member.start(1, 0, ENDLESS));
    let time = Duration::from_millis(600);
    let group = GroupShare {
        device: None,
        percentage: 100.0,
        reserved: false,
    };
    for (group, wanted) in [
        (None, [0.33, 0.33, 0.33]),
        (Some(group), [0.25, 0.25, 0.5]),
        (None, [0.33, 0.33, 0.33]),
    ] {
        pool.scheduler().set_group(3, group).unwrap();
        wait_for_shares(&given.each_ref(), time, are(&wanted));
    }
    members.iter().for_each(Member::leave);
}

#[test]
fn threads_that_wait_for_a_part_use_no_processor() {
    let pool = WorkerPool::new(4).unwrap();
    let share = Share {
        percentage: 1.0,
        priority: 0,
        reserved: true,
    };
    let member = Member::with(&pool, share, None);
    member.start(1, 0, ENDLESS);
    std::thread::sleep(Duration::from_millis(100));
    // At most one is in a time slice, and one is the timer thread.
    wait_until(|| {
        let state = pool.scheduler().state.lock();
        state.asleep + state.waking >= 2
    });
    member.leave();
    wait_until(|| pool.scheduler().state.lock().asleep == 4);
}

#[test]
fn it_is_said_why_a_client_was_given_nothing() {
    let pool = WorkerPool::new(1).unwrap();
    let normal = Member::new(&pool, 1.0, 0);
    let below = Member::new(&pool, 100.0, 1);
    let heard = |member: &Member, why| {
        // While a pool starts, no thread of it is to spare yet.
        wait_until(|| member.told.1.lock().ends_with(&[why; 3]));
    };
    normal.start(1, 0, ENDLESS);
    below.start(1, 0, ENDLESS);
    heard(&below, HoldReason::Priority);
    heard(&normal, HoldReason::Others);
    normal.leave();
    below.leave();
    // Nobody else is there, and most of the device is nobody's.
    let share = Share {
        percentage: 5.0,
        priority: 0,
        reserved: true,
    };
    let limited = Member::with(&pool, share, None);
    limited.start(1, 0, ENDLESS);
    heard(&limited, HoldReason::Limit);
    limited.leave();
}
