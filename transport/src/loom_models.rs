//! The ring and the doorbell under loom: every order of steps, within a bound of preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p transport --release --lib loom
//! ```
//!
//! Sleeping has no time limit here, so a wake that is lost is a deadlock, which loom reports; and
//! memory is as weak as Rust's memory model allows, not as strong as the machine at hand. Run by nobody but loom.
//! Must not know records' contents.

use crate::doorbell::{self, AdaptiveSpinner, Peer};
use crate::ring::{Consumer, Doorbell, Producer, Record, RingMemory};
use crate::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;
use protocol::wire::Header;
use std::time::Duration;

/// Words of the models' rings: the shortest in which a record with one field can be.
const WORDS: usize = 16;

#[derive(Clone)]
struct Local(Arc<Words>);

struct Words {
    data: Vec<AtomicU64>,
    produced: AtomicU64,
    consumer_waiter: AtomicU64,
    taken: AtomicU64,
    retired: AtomicU64,
    space_waiter: AtomicU64,
}

impl Local {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self(Arc::new(Words {
            // Not zero, so that a word that is read before it is written does not pass for padding.
            data: (0..WORDS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            produced: zero(),
            consumer_waiter: zero(),
            taken: zero(),
            retired: zero(),
            space_waiter: zero(),
        }))
    }
}

impl RingMemory for Local {
    fn data(&self) -> &[AtomicU64] {
        &self.0.data
    }
    fn produced(&self) -> &AtomicU64 {
        &self.0.produced
    }
    fn consumer_waiter(&self) -> &AtomicU64 {
        &self.0.consumer_waiter
    }
    fn taken(&self) -> &AtomicU64 {
        &self.0.taken
    }
    fn retired(&self) -> &AtomicU64 {
        &self.0.retired
    }
    fn space_waiter(&self) -> &AtomicU64 {
        &self.0.space_waiter
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

fn post(producer: &Producer<Local>, channel: u32, sequence: u64) {
    let header = Header {
        opcode: 9,
        version: 1,
        slots: 1,
        data: 0,
        sequence,
        channel,
    };
    let [first, second, third] = header.encode();
    let value = sequence << 8 | u64::from(channel);
    assert!(producer.post(&[first, second, third, value], &[], || true));
}

/// Takes `count` records, and checks each and its producer's order.
fn take_all(memory: &Local, doorbell: &Doorbell, count: usize) {
    let mut consumer = Consumer::new(memory.clone());
    let mut record = Record::default();
    let mut last = [0u64; 3];
    for _ in 0..count {
        let position = loop {
            if let Some(position) = consumer.next_record(&mut record).expect("a sound ring") {
                break position;
            }
            consumer.wait(doorbell);
        };
        let (channel, sequence) = (record.header.channel, record.header.sequence);
        assert_eq!(record.slots(), [sequence << 8 | u64::from(channel)]);
        let last = &mut last[channel as usize];
        assert_eq!(sequence, *last + 1);
        *last = sequence;
        consumer.retire(position);
    }
}

#[test]
fn loom_two_producers_and_a_consumer() {
    check(3, || {
        let memory = Local::new();
        let producer = Arc::new(Producer::new(memory.clone()));
        let other = producer.clone();
        let thread = thread::spawn(move || post(&other, 1, 1));
        let taker = thread::spawn(move || take_all(&memory, &Doorbell::default(), 2));
        post(&producer, 0, 1);
        thread.join().expect("the producer is through");
        taker.join().expect("the consumer is through");
    });
}

#[test]
fn loom_a_full_ring_makes_its_producer_wait() {
    check(2, || {
        let memory = Local::new();
        let producer = Producer::new(memory.clone());
        let taker = thread::spawn(move || take_all(&memory, &Doorbell::default(), 6));
        for sequence in 1..=6 {
            post(&producer, 0, sequence);
        }
        taker.join().expect("the consumer is through");
    });
}

#[test]
fn loom_two_producers_wait_for_space() {
    check(1, || {
        let memory = Local::new();
        let producer = Arc::new(Producer::new(memory.clone()));
        // The ring is full before the others begin, so that both have to wait.
        for sequence in 1..=4 {
            post(&producer, 0, sequence);
        }
        let taker = thread::spawn(move || take_all(&memory, &Doorbell::default(), 6));
        let other = producer.clone();
        let thread = thread::spawn(move || post(&other, 1, 1));
        post(&producer, 2, 1);
        thread.join().expect("the producer is through");
        taker.join().expect("the consumer is through");
    });
}

/// Two threads sleep for different places of one word.
#[test]
fn loom_sleepers_are_woken_when_their_place_is_reached() {
    check(3, || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let sleepers: Vec<_> = [1, 2]
            .map(|target| {
                let words = words.clone();
                thread::spawn(move || {
                    let (word, waiter) = &*words;
                    let done = || word.load(Ordering::Acquire) >= target;
                    let spinner = AdaptiveSpinner::new();
                    let slice = Duration::from_secs(1);
                    assert!(doorbell::wait(
                        (&spinner, || Peer::Apart),
                        (waiter, target),
                        slice,
                        done,
                        || false,
                        || true
                    ));
                })
            })
            .into();
        let (word, waiter) = &*words;
        for reached in 1..=2 {
            doorbell::pre_wake(waiter);
            word.store(reached, Ordering::Release);
            doorbell::ring(waiter, reached);
        }
        for sleeper in sleepers {
            sleeper.join().expect("the sleeper is through");
        }
    });
}

/// A thread that waits for what does not come is called, before it falls asleep or after.
#[test]
fn loom_a_call_is_not_slept_through() {
    check(3, || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let others = words.clone();
        let sleeper = thread::spawn(move || {
            let (called, waiter) = &*others;
            let is_called = || called.load(Ordering::Acquire) != 0;
            let (spinner, slice) = (AdaptiveSpinner::new(), Duration::from_secs(1));
            let done = || false;
            assert!(!doorbell::wait(
                (&spinner, || Peer::Apart),
                (waiter, 1),
                slice,
                done,
                is_called,
                || !is_called()
            ));
        });
        let (called, waiter) = &*words;
        called.store(1, Ordering::Release);
        doorbell::ring(waiter, u64::MAX >> 1);
        sleeper.join().expect("the sleeper is through");
    });
}

/// A consumer is rung by its own process; what was done before is seen after.
#[test]
fn loom_the_own_bell_is_never_lost() {
    check(3, || {
        let memory = Local::new();
        let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
        let (others, others_memory) = (shared.clone(), memory.clone());
        let ringer = thread::spawn(move || {
            for done in 1..=2 {
                others.1.store(done, Ordering::Relaxed);
                others.0.ring(&others_memory);
            }
        });
        let mut consumer = Consumer::new(memory);
        while shared.1.load(Ordering::Relaxed) != 2 {
            consumer.wait(&shared.0);
        }
        ringer.join().expect("the ringer is through");
    });
}
