//! Who sees that work is done: the client's own thread while it polls, and the poller otherwise.

mod common;

use std::time::{Duration, Instant};

use common::{Controls, Fake, PTX, poke, until};
use engine::PollResult;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use protocol::operations::HoldReason;

/// Time for the poller: to fall asleep, and then to see what it must not see.
const MEANWHILE: Duration = Duration::from_millis(50);

#[test]
fn who_looks_is_told_and_the_poller_stays_out_of_it() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    // For which the poller is awake, and work waits.
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    guest.write(0, device, &[1]);
    assert_eq!(guest.wait(0), Ok(()));
    // Who is told may be so before the poller has done with it.
    until("nothing is left", || {
        guest.client.poll() == PollResult::Idle
    });
    std::thread::sleep(MEANWHILE);
    controls.hold(true);
    guest.write(0, device, &[2]);
    assert_eq!(guest.client.poll(), PollResult::Pending);
    controls.hold(false);
    std::thread::sleep(MEANWHILE);
    assert!(!guest.is_done(0), "the poller was awake");
    assert_eq!(guest.client.poll(), PollResult::Progress);
    assert!(guest.is_done(0));
    assert_eq!(guest.client.poll(), PollResult::Idle);
}

#[test]
fn what_is_left_is_seen_by_the_poller() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    controls.hold(true);
    guest.client.poll();
    guest.write(0, device, &[1]);
    guest.client.stop_polling();
    controls.hold(false);
    until("somebody sees it", || guest.is_done(0));
}

#[test]
fn who_looks_and_is_held_up_holds_up_nobody_who_loads() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let (mut held_up, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let device = held_up.commit(0, GRANULE);
    controls.hold(true);
    held_up.client.poll();
    held_up.write(0, device, &[1]);
    controls.hold(false);
    // It has not looked again: the load waits until all that was issued is known to be done.
    other.module_in(0, PTX);
    until("somebody sees it", || held_up.is_done(0));
}

#[test]
fn who_sleeps_is_told_when_regular_work_is_about_to_be_over() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    let mut rounds = 0_u8;
    let mut round = |bytes: &[u8]| {
        controls.hold(true);
        guest.write(0, device, bytes);
        std::thread::sleep(Duration::from_millis(20));
        let told = guest.observer.pre_wakes(0);
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        told
    };
    // Work of two kinds in turn; how regular it is depends on what else the machine does.
    until("it is told before the end", || {
        rounds += 1;
        round(&[1; 4]);
        round(&[2; 400]) > 1
    });
    assert!(rounds > 2, "two of a kind say something, one says nothing");
}

/// What a look finds to have ended at once, somebody who wants a span for each operation hears of one by one.
#[test]
fn operations_that_ended_together_are_told_of_one_by_one() {
    const WRITES: u64 = 5;
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    guest.observer.want_each_span();
    let device = guest.commit(0, GRANULE);
    let burst = |guest: &mut Guest| {
        controls.hold(true);
        guest.client.poll();
        for _ in 0..WRITES {
            guest.write(0, device, &[1]);
        }
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        controls.counts()[3]
    };
    let events = burst(&mut guest);
    assert_eq!(burst(&mut guest), events, "they are used again");
    let spans = guest.end().spans();
    let told: Vec<u64> = spans.iter().map(|span| span.at.sequence).collect();
    assert_eq!(told, (1..=2 * WRITES).collect::<Vec<u64>>());
    assert!(
        spans.windows(2).all(|pair| pair[0].ended <= pair[1].began),
        "{spans:?}"
    );
}

/// While somebody wants to know when each ran, kernels that may not be short go to the driver one by one.
#[test]
fn kernels_have_events_of_their_own_while_somebody_wants_to_know() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let (module, _) = guest.module_in(0, PTX);
    let device = guest.commit(0, GRANULE);
    guest.observer.want_each_span();
    let (launches, events) = (controls.launches(), controls.counts()[3]);
    controls.hold(true);
    for value in [1, 2] {
        guest.launch(0, module, 1, 1, &poke(device, value));
    }
    guest.client.stop_polling();
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    // Nothing is known of how long they take.
    let (graphs, alone) = controls.launches();
    assert_eq!((graphs - launches.0, alone - launches.1), (0, 2));
    let events = controls.counts()[3] - events;
    assert_eq!(events, 3, "one before the first, and one behind each");
    let spans = guest.end().spans();
    let told: Vec<u64> = spans.iter().map(|span| span.at.sequence).collect();
    assert_eq!(told, [1, 2], "{spans:?}");
}

/// What takes longer while another client has work in the device than it takes alone has waited for it, as far as can be told.
#[test]
fn work_that_takes_longer_beside_others_was_slowed_down_by_them() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let (mut guest, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let device = guest.commit(0, GRANULE);
    let (module, _) = other.module_in(0, PTX);
    let mut round = |milliseconds| {
        controls.hold(true);
        guest.write(0, device, &[1]);
        std::thread::sleep(Duration::from_millis(milliseconds));
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        guest.observer.slowed()
    };
    // However long it takes: nobody else is there.
    for milliseconds in [20, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2] {
        assert_eq!(round(milliseconds), 0);
    }
    controls.spin(true);
    other.launch(0, module, 1, 1, &poke(0, 1));
    other.client.stop_polling();
    std::thread::sleep(Duration::from_millis(10));
    let (mut slowed, rounds) = (0, 6);
    for _ in 0..rounds {
        slowed = round(40);
    }
    // It is seen with the first of them that somebody is there.
    assert!(slowed >= (rounds - 1) * 20_000_000, "{slowed}");
    controls.spin(false);
    assert_eq!(other.wait(0), Ok(()));
    assert_eq!(other.observer.slowed(), 0, "nothing is known of its kernel");
}

/// Who is recorded hears why its work did not go to the driver, and nobody else does.
#[test]
fn it_is_said_why_work_was_held_back() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    // While they are made work waits.
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    let burst = |guest: &mut Guest| {
        controls.hold(true);
        for _ in 0..800 {
            guest.write(0, device, &[1]);
        }
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        guest.observer.holds()
    };
    assert_eq!(burst(&mut guest), [], "nobody asks");
    guest.observer.want_each_span();
    let holds = burst(&mut guest);
    assert!(!holds.is_empty());
    assert!(
        holds.iter().all(|(_, why, _)| *why == HoldReason::Depth),
        "{holds:?}"
    );
    // The driver loads while nothing runs.
    let mut other = Guest::new(&engine);
    controls.spin(true);
    let (module, _) = other.module_in(0, PTX);
    other.launch(0, module, 1, 1, &poke(0, 1));
    other.client.stop_polling();
    let mut loader = Guest::new(&engine);
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| loader.module_in(0, PTX));
        let limit = Instant::now() + Duration::from_secs(20);
        let mut is_held = false;
        while !is_held && Instant::now() < limit {
            guest.write(0, device, &[1]);
            guest.client.poll();
            let mut holds = guest.observer.holds().into_iter();
            is_held = holds.any(|(_, why, _)| why == HoldReason::Loads);
            std::thread::sleep(Duration::from_millis(1));
        }
        controls.spin(false);
        assert!(is_held, "{:?}", guest.observer.holds().last());
        loads.join().unwrap();
    });
    assert_eq!(guest.wait(0), Ok(()));
}
