use super::*;

mod held_records;
mod random_programs;

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
