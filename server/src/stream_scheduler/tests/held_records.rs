//! What holds a record back besides its stream: host barriers, connections; and the reason that is given for it.

use super::*;

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
