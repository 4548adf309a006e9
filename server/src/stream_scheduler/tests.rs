use super::*;

type Plain = StreamScheduler<At, u32>;

fn at(stream: u32, sequence: u64) -> At {
    At { stream, sequence }
}

fn admit(
    scheduler: &mut Plain,
    progress: &CompletionTracker,
    place: At,
    step: OrderingConstraint,
) -> Disposition {
    scheduler
        .admit(place, step, progress, || (place, 64))
        .unwrap()
}

/// Everything that may go to the engine now.
fn release(scheduler: &mut Plain, progress: &CompletionTracker) -> Vec<At> {
    let mut released = Vec::new();
    let mut index = 0;
    while let Some(slot) = scheduler.blocked_stream(index) {
        while scheduler.blocked_stream(index) == Some(slot) {
            match scheduler.pop_ready(index, progress) {
                Some((QueueEntry::Record(at), _)) => released.push(at),
                Some((QueueEntry::Mark(at, _), _)) => {
                    let _ = progress.complete(at.stream, at.sequence);
                    released.push(at);
                }
                None => break,
            }
        }
        if scheduler.blocked_stream(index) == Some(slot) {
            index += 1;
        }
    }
    released
}

fn with_streams(streams: &[(u32, u32)]) -> (Plain, CompletionTracker) {
    let progress = CompletionTracker::default();
    let mut scheduler = Plain::default();
    scheduler.context_created(0, &progress).unwrap();
    for &(slot, flags) in streams {
        assert_eq!(scheduler.may_create(slot, &progress), Ok(true));
        scheduler.stream_created(slot, 0, flags, &progress).unwrap();
    }
    (scheduler, progress)
}

#[test]
fn a_stream_alone_never_waits() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    for sequence in 1..=STREAM_DEPTH {
        assert_eq!(
            admit(
                &mut scheduler,
                &progress,
                at(40, sequence),
                OrderingConstraint::Work
            ),
            Disposition::Submit
        );
    }
}

#[test]
fn numbers_have_no_gaps_and_go_forward() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    for wrong in [0, 2, u64::MAX] {
        assert_eq!(
            scheduler.admit(at(40, wrong), OrderingConstraint::Work, &progress, || (
                at(40, 1),
                0
            )),
            Err(Violation::Sequence {
                stream: 40,
                from: 0,
                to: wrong
            })
        );
    }
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    assert!(
        scheduler
            .admit(at(40, 1), OrderingConstraint::Work, &progress, || (
                at(40, 1),
                0
            ))
            .is_err()
    );
}

#[test]
fn depth_is_bounded_by_what_is_unfinished() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    for sequence in 1..=STREAM_DEPTH {
        admit(
            &mut scheduler,
            &progress,
            at(40, sequence),
            OrderingConstraint::Work,
        );
    }
    let next = at(40, STREAM_DEPTH + 1);
    assert_eq!(
        scheduler.admit(next, OrderingConstraint::Work, &progress, || (next, 0)),
        Err(Violation::Depth(40))
    );
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    for sequence in 1..=STREAM_DEPTH {
        admit(
            &mut scheduler,
            &progress,
            at(40, sequence),
            OrderingConstraint::Work,
        );
    }
    let _ = progress.complete(40, 1);
    assert_eq!(
        admit(&mut scheduler, &progress, next, OrderingConstraint::Work),
        Disposition::Submit
    );
}

#[test]
fn streams_that_do_not_exist_are_refused() {
    let (mut scheduler, progress) = with_streams(&[]);
    for slot in [1, 31, 32, 4095, 4096, u32::MAX] {
        assert_eq!(
            scheduler.admit(at(slot, 1), OrderingConstraint::Work, &progress, || (
                at(slot, 1),
                0
            )),
            Err(Violation::NoStream(slot))
        );
    }
    for slot in [0, 31, STREAM_SLOTS, u32::MAX] {
        assert_eq!(
            scheduler.may_create(slot, &progress),
            Err(Violation::Slot(slot))
        );
    }
    assert_eq!(
        scheduler.stream_created(40, 7, 0, &progress),
        Err(Violation::Context(7))
    );
    assert_eq!(
        scheduler.context_created(0, &progress),
        Err(Violation::Context(0))
    );
    assert_eq!(
        scheduler.context_created(CONTEXT_SLOTS, &progress),
        Err(Violation::Context(CONTEXT_SLOTS))
    );
}

#[test]
fn a_wait_holds_its_stream_and_no_other() {
    let (mut scheduler, progress) = with_streams(&[
        (40, STREAM_NON_BLOCKING),
        (41, STREAM_NON_BLOCKING),
        (42, STREAM_NON_BLOCKING),
    ]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    let wait = OrderingConstraint::Wait { on: 40, until: 1 };
    assert_eq!(
        admit(&mut scheduler, &progress, at(41, 1), wait),
        Disposition::Blocked
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(41, 2),
            OrderingConstraint::Work
        ),
        Disposition::Blocked,
        "behind a held record"
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(42, 1),
            OrderingConstraint::Work
        ),
        Disposition::Submit
    );
    assert_eq!(release(&mut scheduler, &progress), []);
    assert!(progress.complete(40, 1), "the session is to be woken");
    assert_eq!(
        release(&mut scheduler, &progress),
        [at(41, 1), at(41, 2)],
        "in order"
    );
    assert_eq!(scheduler.blocked_bytes(), 0);
}

#[test]
fn a_wait_for_what_is_done_or_for_oneself_is_none() {
    let (mut scheduler, progress) = with_streams(&[(40, 0), (41, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    let _ = progress.complete(40, 1);
    let wait = OrderingConstraint::Wait { on: 40, until: 1 };
    assert_eq!(
        admit(&mut scheduler, &progress, at(41, 1), wait),
        Disposition::Submit
    );
    admit(
        &mut scheduler,
        &progress,
        at(40, 2),
        OrderingConstraint::Work,
    );
    let wait = OrderingConstraint::Wait { on: 40, until: 2 };
    assert_eq!(
        admit(&mut scheduler, &progress, at(40, 3), wait),
        Disposition::Submit
    );
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let (mut scheduler, progress) = with_streams(&[(40, 0), (41, STREAM_NON_BLOCKING)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    admit(
        &mut scheduler,
        &progress,
        at(41, 1),
        OrderingConstraint::Work,
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(0, 1),
            OrderingConstraint::Work
        ),
        Disposition::Blocked
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 2),
            OrderingConstraint::Work
        ),
        Disposition::Blocked,
        "later work waits for the legacy stream"
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(41, 2),
            OrderingConstraint::Work
        ),
        Disposition::Submit,
        "a non-blocking stream does not"
    );
    assert_eq!(release(&mut scheduler, &progress), []);
    assert!(progress.complete(40, 1));
    assert_eq!(release(&mut scheduler, &progress), [at(0, 1)]);
    assert!(progress.complete(0, 1));
    assert_eq!(release(&mut scheduler, &progress), [at(40, 2)]);
    // What was waited for once is not waited for again.
    let _ = progress.complete(40, 2);
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 3),
            OrderingConstraint::Work
        ),
        Disposition::Submit
    );
}

#[test]
fn legacy_streams_of_two_contexts_are_strangers() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    scheduler.context_created(1, &progress).unwrap();
    scheduler.stream_created(41, 1, 0, &progress).unwrap();
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(1, 1),
            OrderingConstraint::Work
        ),
        Disposition::Submit
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(41, 1),
            OrderingConstraint::Work
        ),
        Disposition::Blocked
    );
}

#[test]
fn a_stream_can_be_made_again_once_its_slot_has_finished() {
    let (mut scheduler, progress) = with_streams(&[(40, 0), (41, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    admit(
        &mut scheduler,
        &progress,
        at(40, 2),
        OrderingConstraint::Last,
    );
    assert_eq!(scheduler.may_create(40, &progress), Ok(false));
    scheduler
        .hold_creation(40, 0, 0, &progress, (at(40, 0), 8))
        .unwrap();
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 3),
            OrderingConstraint::Work
        ),
        Disposition::Blocked
    );
    assert_eq!(release(&mut scheduler, &progress), []);
    assert!(progress.complete(40, 2));
    assert_eq!(release(&mut scheduler, &progress), [at(40, 0), at(40, 3)]);
    assert_eq!(
        scheduler.may_create(40, &progress),
        Err(Violation::Slot(40)),
        "it lives"
    );
}

#[test]
fn work_for_a_destroyed_stream_is_completed_with_an_error_in_its_turn() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Last,
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 2),
            OrderingConstraint::Work
        ),
        Disposition::Blocked
    );
    assert!(scheduler.pop_ready(0, &progress).is_none());
    assert!(progress.complete(40, 1));
    assert!(matches!(
        scheduler.pop_ready(0, &progress),
        Some((QueueEntry::Mark(place, Err(CUresult::ERROR_INVALID_HANDLE)), None)) if place == at(40, 2)
    ));
    let _ = progress.complete(40, 2);
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 3),
            OrderingConstraint::Work
        ),
        Disposition::Closed
    );
}

#[test]
fn a_record_that_the_engine_did_not_take_is_complete_after_those_before_it() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    admit(
        &mut scheduler,
        &progress,
        at(40, 2),
        OrderingConstraint::Work,
    );
    assert!(!scheduler.not_taken(at(40, 2), CUresult::ERROR_INVALID_HANDLE, &progress));
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 3),
            OrderingConstraint::Work
        ),
        Disposition::Blocked,
        "or its completion would overtake the mark"
    );
    assert_eq!(release(&mut scheduler, &progress), []);
    assert!(progress.complete(40, 1));
    assert_eq!(release(&mut scheduler, &progress), [at(40, 2), at(40, 3)]);
    let _ = progress.complete(40, 3);
    admit(
        &mut scheduler,
        &progress,
        at(40, 4),
        OrderingConstraint::Work,
    );
    assert!(scheduler.not_taken(at(40, 4), CUresult::ERROR_INVALID_HANDLE, &progress));
}

#[test]
fn deferred_actions_wait_for_everything_taken_before_and_keep_their_order() {
    let (mut scheduler, progress) = with_streams(&[(40, 0), (41, 0)]);
    assert_eq!(
        scheduler.defer(1, &progress),
        Some(1),
        "nothing to wait for"
    );
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    admit(
        &mut scheduler,
        &progress,
        at(41, 1),
        OrderingConstraint::Work,
    );
    assert_eq!(scheduler.defer(2, &progress), None);
    assert_eq!(scheduler.defer(3, &progress), None);
    admit(
        &mut scheduler,
        &progress,
        at(40, 2),
        OrderingConstraint::Work,
    );
    assert_eq!(scheduler.defer(4, &progress), None);
    assert_eq!(scheduler.pop_ready_action(&progress), None);
    let _ = progress.complete(40, 1);
    assert_eq!(scheduler.pop_ready_action(&progress), None);
    assert!(progress.complete(41, 1), "the session is woken");
    assert_eq!(scheduler.pop_ready_action(&progress), Some(2));
    assert_eq!(scheduler.pop_ready_action(&progress), Some(3));
    assert_eq!(
        scheduler.pop_ready_action(&progress),
        None,
        "40's second is unfinished"
    );
    assert!(progress.complete(40, 2));
    assert_eq!(scheduler.pop_ready_action(&progress), Some(4));
    assert_eq!(scheduler.pop_ready_action(&progress), None);
    assert!(!scheduler.has_deferred());
    assert_eq!(scheduler.blocked_bytes(), 0);
}

#[test]
fn every_deferred_action_counts_among_what_is_held() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(40, 1),
        OrderingConstraint::Work,
    );
    assert_eq!(scheduler.defer(0, &progress), None);
    for action in 1..1000 {
        let before = scheduler.blocked_bytes();
        assert_eq!(scheduler.defer(action, &progress), None);
        assert!(scheduler.blocked_bytes() >= before + size_of::<u32>());
    }
    let before = scheduler.blocked_bytes();
    scheduler.defer_behind_last(1000, 4096);
    assert!(
        scheduler.blocked_bytes() >= before + 4096,
        "and what it holds"
    );
    let _ = progress.complete(40, 1);
    for action in 0..=1000 {
        assert_eq!(scheduler.pop_ready_action(&progress), Some(action));
    }
    assert_eq!(scheduler.pop_ready_action(&progress), None);
    assert_eq!(scheduler.blocked_bytes(), 0);
}

#[test]
fn a_context_that_ended_can_be_made_again_with_its_legacy_stream() {
    let (mut scheduler, progress) = with_streams(&[(40, 0)]);
    admit(
        &mut scheduler,
        &progress,
        at(0, 1),
        OrderingConstraint::Work,
    );
    let _ = progress.complete(0, 1);
    scheduler.context_destroyed(0);
    assert!(!scheduler.has_context(0));
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(0, 2),
            OrderingConstraint::Work
        ),
        Disposition::Closed
    );
    let _ = progress.complete(0, 2);
    scheduler.context_created(0, &progress).unwrap();
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(0, 3),
            OrderingConstraint::Work
        ),
        Disposition::Submit
    );
    assert_eq!(scheduler.may_create(40, &progress), Ok(true));
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Everything that was posted, with what CUDA says it waits for, worked out the slow way.
#[derive(Default)]
struct Model {
    needs: std::collections::HashMap<(u32, u64), Vec<(u32, u64)>>,
    posted: Vec<At>,
    submitted: std::collections::HashMap<u32, u64>,
}

impl Model {
    fn ready(&self, place: At, progress: &CompletionTracker) -> bool {
        self.submitted.get(&place.stream).copied().unwrap_or(0) + 1 == place.sequence
            && self.needs[&(place.stream, place.sequence)]
                .iter()
                .all(|&(stream, until)| progress.completed(stream) >= until)
    }

    fn submit(&mut self, place: At, progress: &CompletionTracker) {
        assert!(self.ready(place, progress), "{place:?} went too early");
        self.submitted.insert(place.stream, place.sequence);
    }
}

#[test]
fn random_programs_keep_every_rule_and_nothing_is_forgotten() {
    const BLOCKING: [u32; 3] = [40, 41, 42];
    const FREE: [u32; 2] = [50, 51];
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let (mut scheduler, progress) = with_streams(&[
            (40, 0),
            (41, 0),
            (42, 0),
            (50, STREAM_NON_BLOCKING),
            (51, STREAM_NON_BLOCKING),
        ]);
        let all: Vec<u32> = [0].into_iter().chain(BLOCKING).chain(FREE).collect();
        let mut model = Model::default();
        let mut taken: std::collections::HashMap<u32, u64> =
            all.iter().map(|&slot| (slot, 0)).collect();
        let mut frees: Vec<Vec<(u32, u64)>> = Vec::new();
        let mut freed = 0;
        for round in 0..300 {
            let posting = round < 200;
            match dice.roll(if posting { 10 } else { 3 }) {
                3..=8 => {
                    let slot = all[dice.roll(all.len() as u64) as usize];
                    let place = at(slot, taken[&slot] + 1);
                    let mut needs = Vec::new();
                    let step = if dice.roll(3) == 0 {
                        let on = all[dice.roll(all.len() as u64) as usize];
                        let until = dice.roll(taken[&on] + 1);
                        if on != slot {
                            needs.push((on, until));
                        }
                        OrderingConstraint::Wait { on, until }
                    } else {
                        OrderingConstraint::Work
                    };
                    if slot == 0 {
                        needs.extend(BLOCKING.map(|other| (other, taken[&other])));
                    } else if BLOCKING.contains(&slot) {
                        needs.push((0, taken[&0]));
                    }
                    taken.insert(slot, place.sequence);
                    model.needs.insert((slot, place.sequence), needs);
                    model.posted.push(place);
                    match admit(&mut scheduler, &progress, place, step) {
                        Disposition::Submit => model.submit(place, &progress),
                        Disposition::Blocked => assert!(
                            !model.ready(place, &progress),
                            "{place:?} was held for nothing"
                        ),
                        Disposition::Closed => panic!("nothing is closed here"),
                    }
                }
                9 => {
                    let snapshot: Vec<_> = all.iter().map(|slot| (*slot, taken[slot])).collect();
                    frees.push(snapshot);
                    if scheduler.defer(frees.len() as u32 - 1, &progress).is_some() {
                        assert_eq!(freed, frees.len() - 1, "frees keep their order");
                        freed += 1;
                    }
                }
                _ => {
                    // The engine completes something that it has.
                    let slot = all[dice.roll(all.len() as u64) as usize];
                    let done = progress.completed(slot);
                    let mut woken = false;
                    if model.submitted.get(&slot).copied().unwrap_or(0) > done {
                        woken = progress.complete(slot, done + 1);
                    }
                    if !woken {
                        continue;
                    }
                    for place in release(&mut scheduler, &progress) {
                        model.submit(place, &progress);
                    }
                    while let Some(action) = scheduler.pop_ready_action(&progress) {
                        assert_eq!(action as usize, freed, "frees keep their order");
                        assert!(
                            frees[freed]
                                .iter()
                                .all(|&(stream, until)| progress.completed(stream) >= until),
                            "a free came too early"
                        );
                        freed += 1;
                    }
                }
            }
            // Whatever can go has gone, though the session only looks when it is woken.
            for place in &model.posted {
                assert!(
                    model.submitted.get(&place.stream).copied().unwrap_or(0) >= place.sequence
                        || !model.ready(*place, &progress),
                    "{place:?} of seed {seed} was forgotten"
                );
            }
        }
        // Let everything finish.
        for _ in 0..2000 {
            for &slot in &all {
                let done = progress.completed(slot);
                if model.submitted.get(&slot).copied().unwrap_or(0) > done
                    && progress.complete(slot, done + 1)
                {
                    for place in release(&mut scheduler, &progress) {
                        model.submit(place, &progress);
                    }
                    while scheduler.pop_ready_action(&progress).is_some() {
                        freed += 1;
                    }
                }
            }
        }
        for &slot in &all {
            assert_eq!(progress.completed(slot), taken[&slot], "seed {seed}");
        }
        assert_eq!(freed, frees.len(), "seed {seed}");
        assert_eq!(scheduler.blocked_bytes(), 0, "seed {seed}");
    }
}

#[test]
fn a_gate_holds_its_stream_and_no_other_until_it_is_released_that_far() {
    let (mut scheduler, progress) = with_streams(&[(40, STREAM_NON_BLOCKING), (41, 1)]);
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 1),
            OrderingConstraint::HostBarrier
        ),
        Disposition::Blocked
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 2),
            OrderingConstraint::Work
        ),
        Disposition::Blocked
    );
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(41, 1),
            OrderingConstraint::Work
        ),
        Disposition::Submit
    );
    assert!(release(&mut scheduler, &progress).is_empty());
    assert!(
        !progress.complete(host_barrier(41), 5),
        "another stream's release"
    );
    assert!(release(&mut scheduler, &progress).is_empty());
    assert!(
        progress.complete(host_barrier(40), 1),
        "the session is woken"
    );
    assert!(progress.take_ready());
    assert_eq!(release(&mut scheduler, &progress), [at(40, 1), at(40, 2)]);
    // A later barrier waits for its own release, an early release does no harm.
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 3),
            OrderingConstraint::HostBarrier
        ),
        Disposition::Blocked
    );
    let _ = progress.complete(host_barrier(40), u64::MAX);
    assert_eq!(release(&mut scheduler, &progress), [at(40, 3)]);
    assert_eq!(
        admit(
            &mut scheduler,
            &progress,
            at(40, 4),
            OrderingConstraint::HostBarrier
        ),
        Disposition::Submit
    );
}

#[test]
fn kernels_of_one_connection_start_in_the_order_of_their_launches() {
    let (mut scheduler, progress) = with_streams(&[(40, 1), (41, 1), (42, 1), (43, 1)]);
    for stream in [40, 41, 42] {
        scheduler.connect(stream, 5);
    }
    scheduler.connect(43, 6);
    let admit = |scheduler: &mut Plain, place| {
        admit(scheduler, &progress, place, OrderingConstraint::Kernel)
    };
    assert_eq!(admit(&mut scheduler, at(40, 1)), Disposition::Submit);
    assert_eq!(
        admit(&mut scheduler, at(41, 1)),
        Disposition::Submit,
        "both may run"
    );
    assert_eq!(
        admit(&mut scheduler, at(40, 2)),
        Disposition::Submit,
        "engines order streams"
    );
    // Behind a kernel that waits for the one before it in its stream.
    assert_eq!(admit(&mut scheduler, at(42, 1)), Disposition::Blocked);
    assert_eq!(admit(&mut scheduler, at(41, 2)), Disposition::Blocked);
    assert_eq!(
        admit(&mut scheduler, at(43, 1)),
        Disposition::Submit,
        "another connection"
    );
    assert!(release(&mut scheduler, &progress).is_empty());
    assert!(progress.complete(40, 1));
    let mut released = release(&mut scheduler, &progress);
    released.sort_by_key(|at| at.stream);
    assert_eq!(released, [at(41, 2), at(42, 1)]);
    // A stream without a connection, and one that there is not, wait for nobody.
    scheduler.connect(42, CONNECTIONS);
    assert_eq!(admit(&mut scheduler, at(42, 2)), Disposition::Submit);
}

#[test]
fn it_is_said_why_records_were_held_back() {
    // 40 and 41 do not wait for the legacy stream, 42 does.
    let (mut scheduler, progress) = with_streams(&[(40, 1), (41, 1), (42, 0)]);
    scheduler.connect(40, 5);
    scheduler.connect(41, 5);
    let mut why = |first: At, then: At, step, blocks: u32| {
        let work = OrderingConstraint::Kernel;
        assert_eq!(
            admit(&mut scheduler, &progress, first, work),
            Disposition::Submit
        );
        assert_eq!(
            admit(&mut scheduler, &progress, then, step),
            Disposition::Blocked
        );
        assert!(scheduler.pop_ready(0, &progress).is_none());
        let _ = progress.complete(blocks, first.sequence.max(then.sequence));
        let released = scheduler.pop_ready(0, &progress);
        let Some((QueueEntry::Record(at), why)) = released else {
            panic!("{released:?}");
        };
        assert_eq!(at, then);
        let _ = progress.complete(first.stream, first.sequence);
        let _ = progress.complete(then.stream, then.sequence);
        why
    };
    let wait = OrderingConstraint::Wait { on: 40, until: 1 };
    assert_eq!(why(at(40, 1), at(41, 1), wait, 40), Some(HoldReason::Event));
    let barrier = OrderingConstraint::HostBarrier;
    assert_eq!(
        why(at(41, 2), at(40, 2), barrier, host_barrier(40)),
        Some(HoldReason::HostFunction)
    );
    let work = OrderingConstraint::Work;
    assert_eq!(
        why(at(42, 1), at(0, 1), work, 42),
        Some(HoldReason::LegacyStream)
    );
    // Two kernels of 40, of which the second waits for the first, and so does what is behind it in the connection.
    let kernel = OrderingConstraint::Kernel;
    assert_eq!(
        admit(&mut scheduler, &progress, at(40, 3), kernel),
        Disposition::Submit
    );
    assert_eq!(
        admit(&mut scheduler, &progress, at(40, 4), kernel),
        Disposition::Submit
    );
    assert_eq!(
        admit(&mut scheduler, &progress, at(41, 3), kernel),
        Disposition::Blocked
    );
    // It waits for its stream alone.
    assert_eq!(
        admit(&mut scheduler, &progress, at(41, 4), work),
        Disposition::Blocked
    );
    let _ = progress.complete(40, 4);
    let mut why = || scheduler.pop_ready(0, &progress).map(|(_, why)| why);
    assert_eq!(why(), Some(Some(HoldReason::Connection)));
    assert_eq!(why(), Some(None));
    assert_eq!(why(), None);
}
