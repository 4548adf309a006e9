//! What the transport costs by itself: posting a launch, from one and from several threads, and a
//! round trip, both ends awake and both asleep.
//!
//! `cargo run --release -p benches --bin ring`
//!
//! It also measures the other way to keep CUDA's order between threads of a client: one ring for each
//! thread, and a sequence number that they share ([`apart`]). That one is quicker when threads post
//! at the very same time, since they wait for each other at one word instead of two; but the server
//! would merge rings, and a client have a ring's memory for each thread, to post faster than any
//! engine launches.

mod apart;

use apart::Apart;
use protocol::operations::{Fill, Launch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use transport::ring::Record;
use transport::session::{ClientEnd, Consumer, Publisher, ServerEnd, SessionMemory};
use transport::socket::Connection;

/// Posts of all threads in a burst; there is room for them in the ring.
const BURST: u32 = 4096;

const ROUNDS: usize = 300;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} processors; a launch with 64 bytes of parameters, ns a post of each thread");
    println!(
        "(median of {ROUNDS} bursts of {BURST} posts by all threads together; lower quartile)\n"
    );
    println!("threads  one ring, tickets      a ring a thread        the same, being taken from");
    for threads in [1, 2, 4] {
        let (alone, busy) = (tickets(threads, false), tickets(threads, true));
        let (apart, apart_busy) = (sequence(threads, false), sequence(threads, true));
        println!("{threads:7}  {alone}  {apart}  {busy} and {apart_busy}");
    }
    println!("\nround trip of one stream operation (post, take, complete, see):");
    println!("  both awake    {}", round_trips(20_000, Duration::ZERO));
    println!(
        "  both asleep   {}",
        round_trips(500, Duration::from_millis(2))
    );
}

/// Quartiles of some times.
struct Spread {
    low: f64,
    median: f64,
}

impl Spread {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            low: times[times.len() / 4],
            median: times[times.len() / 2],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.1} ns ({:7.1})", self.median, self.low)
    }
}

/// A client and a server in this process, over real shared memory.
fn session() -> (ClientEnd, Consumer, Arc<Publisher>, Connection) {
    let memory = SessionMemory::create(4096).expect("room for a session");
    let (ours, theirs) = Connection::pair().expect("a pair of sockets");
    let (consumer, publisher) = ServerEnd::new(&memory).expect("a server's end").split();
    (
        ClientEnd::new(&memory, ours).expect("a client's end"),
        consumer,
        publisher,
        theirs,
    )
}

fn launch() -> Launch {
    Launch {
        module: 7,
        kernel: 1,
        grid: [128, 1, 1],
        block: [256, 1, 1],
        ..Launch::default()
    }
}

/// Runs `each` on that many threads, which begin together, and gives the mean time of a post.
fn burst(threads: u32, each: impl Fn(u32, u32) + Sync) -> f64 {
    let waiting = AtomicU32::new(threads);
    let posts = BURST / threads;
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let (each, waiting) = (&each, &waiting);
                scope.spawn(move || {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    while waiting.load(Ordering::Relaxed) > 0 {
                        std::thread::yield_now();
                    }
                    let begin = Instant::now();
                    for n in 0..posts {
                        each(thread, n);
                    }
                    begin.elapsed().as_nanos() as f64 / f64::from(posts)
                })
            })
            .collect();
        let times = started
            .into_iter()
            .map(|thread| thread.join().expect("it posted"));
        times.sum::<f64>() / f64::from(threads)
    })
}

/// Repeats bursts; what was posted is taken while they run, or else between them.
fn bursts<T: Send>(
    threads: u32,
    busy: bool,
    mut taker: T,
    take: impl Fn(&mut T) -> bool + Sync,
    post: impl Fn(u32, u32) + Sync,
) -> Spread {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if busy {
                let (taker, take, over) = (&mut taker, &take, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        if !take(taker) {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
            times.push(burst(threads, &post));
            over.store(true, Ordering::Relaxed);
        });
        while take(&mut taker) {}
    }
    Spread::of(times)
}

/// The transport as it is.
fn tickets(threads: u32, busy: bool) -> Spread {
    let (client, consumer, _publisher, _socket) = session();
    let (request, parameters) = (launch(), [1u8; 64]);
    let take = |(consumer, record): &mut (Consumer, Record)| {
        let Some(position) = consumer.next_record(record).expect("a sound ring") else {
            return false;
        };
        consumer.retire(position);
        true
    };
    bursts(
        threads,
        busy,
        (consumer, Record::default()),
        take,
        |thread, n| {
            client
                .post(thread, n.into(), &request, &[&parameters])
                .expect("there is a server");
        },
    )
}

/// A ring for each thread.
fn sequence(threads: u32, busy: bool) -> Spread {
    let rings = Apart::new(threads as usize);
    let (request, parameters) = (launch(), [1u8; 64]);
    bursts(
        threads,
        busy,
        rings.taker(),
        |taker| taker.pop(&rings),
        |thread, _| {
            rings.post(thread as usize, &request, &parameters);
        },
    )
}

/// Posts and waits, `count` times, with a pause before each.
fn round_trips(count: u64, pause: Duration) -> Spread {
    let (client, mut consumer, publisher, _socket) = session();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut record = Record::default();
            let mut left = count;
            while left > 0 {
                let Some(position) = consumer.next_record(&mut record).expect("a sound ring")
                else {
                    consumer.spin();
                    consumer.wait();
                    continue;
                };
                publisher.complete(record.header.channel, record.header.sequence);
                consumer.retire(position);
                left -= 1;
            }
        });
        let times = (1..=count).map(|n| {
            std::thread::sleep(pause);
            let begin = Instant::now();
            client
                .post(1, n, &Fill::default(), &[])
                .expect("there is a server");
            client.wait(1, n).expect("there is a server");
            begin.elapsed().as_nanos() as f64
        });
        Spread::of(times.collect())
    })
}
