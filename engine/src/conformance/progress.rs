//! Forward progress: kernels that wait for something, and kernels that never end.

use std::time::{Duration, Instant};

use protocol::operations::ContextDestroy;

use super::kernels;
use super::rig::{Guest, PATIENCE, bounded, params};
use crate::arena::GRANULE;
use crate::{CUresult, Engine, Share};

/// A kernel waits for a flag that a copy of another stream brings, and for one in host memory that
/// the program itself writes.
pub fn a_kernel_waits_for_a_copy(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let host = guest.commit_host();
    let relay = guest.module(kernels::RELAY);
    guest.stream(41);
    guest.launch(41, relay, 1, 32, &params(&[device, 1, host + 8, 5]));
    guest.launch(41, relay, 1, 32, &params(&[host, 1, host + 12, 6]));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!guest.is_done(41));
    guest.write(0, device, &1_u32.to_le_bytes());
    let deadline = Instant::now() + PATIENCE;
    while guest.host_bytes(host + 8, 4) != 5_u32.to_le_bytes() {
        assert!(Instant::now() < deadline, "the first kernel is stuck");
        std::thread::yield_now();
    }
    assert!(!guest.is_done(41));
    guest.set_host(host, &1_u32.to_le_bytes());
    assert_eq!(guest.wait(41), Ok(()));
    assert_eq!(guest.host_bytes(host + 12, 4), 6_u32.to_le_bytes());
}

/// Two streams whose kernels wait for each other in turns.
pub fn a_kernel_waits_for_another_stream(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let relay = guest.module(kernels::RELAY);
    guest.stream(42);
    guest.stream(43);
    for round in 0..5 {
        let (ping, pong) = (device, device + 4);
        guest.launch(42, relay, 1, 32, &params(&[pong, round, ping, round + 1]));
        guest.launch(
            43,
            relay,
            1,
            32,
            &params(&[ping, round + 1, pong, round + 1]),
        );
    }
    assert_eq!(guest.wait(42), Ok(()));
    assert_eq!(guest.wait(43), Ok(()));
    assert_eq!(guest.word(device + 4), 5);
}

/// Within one grid too, as long as the device could hold its blocks at once.
pub fn a_block_waits_for_a_later_block(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let module = guest.module(kernels::COUNT_DOWN);
    guest.launch(0, module, 8, 1, &params(&[device]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device), 8);
}

/// Forty streams, each waiting for the one before; the first waits for the program.
pub fn forty_kernels_wait_in_a_ring(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let relay = guest.module(kernels::RELAY);
    for index in (0..40).rev() {
        let stream = 100 + index;
        guest.stream(stream);
        let flag = device + 4 * u64::from(index);
        guest.launch(stream, relay, 1, 32, &params(&[flag, 1, flag + 4, 1]));
    }
    guest.write(0, device, &1_u32.to_le_bytes());
    for stream in 100..140 {
        assert_eq!(guest.wait(stream), Ok(()));
    }
    assert_eq!(guest.word(device + 160), 1);
}

/// Endless kernels of some clients, below normal or not, do not keep another client from finishing.
pub fn clients_share_what_endless_kernels_leave(engine: &dyn Engine) {
    let shares = [(100.0, 0), (10.0, 0), (100.0, 1)];
    let mut hogs = Vec::new();
    for (percentage, priority) in shares {
        let share = Share {
            percentage,
            priority,
            reserved: false,
        };
        let mut hog = Guest::with_share(engine, share);
        hog.context(0, 0);
        for stream in [50, 51, 52] {
            hog.stream(stream);
            hog.launch_endless(stream);
        }
        hogs.push(hog);
    }
    for (percentage, priority) in shares {
        let share = Share {
            percentage,
            priority,
            reserved: false,
        };
        let mut guest = Guest::with_share(engine, share);
        guest.context(0, 0);
        let device = guest.commit(0, GRANULE);
        let module = guest.module(kernels::COUNT);
        for _ in 0..3 {
            guest.launch(0, module, 16, 64, &params(&[device]));
        }
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.word(device + 4 * 1023), 3);
    }
    for hog in &hogs {
        assert!(!hog.is_done(50) && !hog.is_done(51) && !hog.is_done(52));
    }
}

/// A client that goes takes its endless kernels with it, and frees its memory.
pub fn dropping_a_client_ends_its_kernels(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    for _ in 0..10 {
        let mut guest = Guest::new(engine);
        let device = guest.commit(0, GRANULE);
        for stream in 50..58 {
            guest.stream(stream);
            guest.launch_endless(stream);
            guest.write(stream, device, &[1]);
        }
        let told = bounded("endless kernels end with their client", || guest.end());
        assert!(told.faults().is_empty());
        assert_eq!(Guest::new(engine).client.free_memory(0), free);
    }
}

/// A destroyed context's kernels end too, and what waits behind them is reported.
pub fn destroying_a_context_ends_its_kernels(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    guest.context(1, 0);
    assert_eq!(guest.stream_in(60, 1), Ok(()));
    let (module, _) = guest.module_in(1, kernels::ENDLESS);
    for _ in 0..3 {
        guest.launch(60, module, 4, 64, &[]);
    }
    let destroyed = guest
        .client
        .context_destroy(&ContextDestroy { context: 1 }, &[]);
    assert_eq!(destroyed, Ok(()));
    assert_eq!(guest.wait(60), Err(CUresult::ERROR_CONTEXT_IS_DESTROYED));
    let results = guest.observer.completed(60);
    assert_eq!(
        results.iter().map(|done| done.0).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(guest.observer.faults().is_empty());
    let device = guest.commit(0, GRANULE);
    guest.write(0, device, &[1]);
    assert_eq!(guest.wait(0), Ok(()));
}

/// Clients that come, do anything, and go at any moment, many at once: positions are complete in
/// order, nobody's memory holds another's bytes, and in the end nothing is left.
pub fn a_storm_of_clients_leaves_nothing(engine: &dyn Engine) {
    let free = Guest::new(engine).client.free_memory(0);
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                while Instant::now() < end {
                    let share = Share {
                        percentage: 1.0 + random.below(100) as f32,
                        priority: u32::from(random.below(4) == 0),
                        reserved: false,
                    };
                    one_life(Guest::with_share(engine, share), &mut random);
                }
            });
        }
    });
    assert_eq!(Guest::new(engine).client.free_memory(0), free);
}

/// A client that does up to fifty things.
fn one_life(mut guest: Guest, random: &mut Random) {
    guest.context(0, 0);
    let bytes = 32 * GRANULE;
    let device = guest.commit(0, bytes);
    assert!(
        guest.download(device, bytes) == vec![0; bytes as usize],
        "not zeroed"
    );
    let [count, relay, endless] =
        [kernels::COUNT, kernels::RELAY, kernels::ENDLESS].map(|ptx| guest.module(ptx));
    let streams: Vec<u32> = (40..48).collect();
    for &stream in &streams {
        guest.stream(stream);
    }
    for _ in 0..random.below(50) {
        let stream = streams[random.below(8) as usize];
        let at = device + random.below(31) * GRANULE;
        let fill = protocol::operations::Fill {
            to: at,
            element: 4,
            value: 7,
            width: random.below(GRANULE / 2),
            height: 1,
            ..Default::default()
        };
        match random.below(16) {
            0 => guest.launch(stream, endless, 3, 64, &[]),
            1 => guest.launch(stream, relay, 1, 32, &params(&[device, 1, at, 1])),
            2 => guest.launch(stream, count, 1, 32, &params(&[random.below(1 << 48)])),
            3 => guest.write(0, device, &1_u32.to_le_bytes()),
            4 | 5 => guest.fill(stream, &fill),
            6 => guest.event(stream, stream),
            7 => {
                guest.client.assist();
            }
            8 => {
                let _ = guest.stream_in(stream, 0);
            }
            _ => guest.launch(
                stream,
                count,
                1 + random.below(20) as u32,
                64,
                &params(&[at]),
            ),
        }
    }
    let told = guest.end();
    for stream in streams {
        let positions = told.completed(stream).into_iter().map(|done| done.0);
        assert!(positions.eq(1..=told.completed(stream).len() as u64));
    }
}

/// Numbers that differ from thread to thread and not from run to run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((u128::from(self.0 >> 33) * u128::from(end)) >> 31) as u64
    }
}
