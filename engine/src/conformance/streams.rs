//! Streams, events and contexts: order within one, independence of several.

use protocol::operations::{At, ContextDestroy, Fill};

use super::kernels;
use super::rig::{Guest, params};
use crate::arena::GRANULE;
use crate::{CUresult, Engine};

/// Operations of one stream happen, and are reported, in order.
pub fn operations_keep_their_order(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let large = 4 << 20;
    let device = guest.commit(0, large);
    guest.stream(50);
    for round in 0..30 {
        // A large fill, which an engine may spread over threads, then a small one over its end.
        guest.fill(50, &words(device, round, large / 4));
        guest.fill(50, &words(device + large - 8, round + 100, 1));
        guest.write(50, device, &(round + 200).to_le_bytes());
    }
    assert_eq!(guest.wait(50), Ok(()));
    assert_eq!(guest.word(device), 229);
    assert_eq!(guest.word(device + 4), 29);
    assert_eq!(guest.word(device + large - 8), 129);
    let expected: Vec<_> = (1..=90).map(|at| (at, Ok(()))).collect();
    assert_eq!(guest.observer.completed(50), expected);
}

/// A stream with a kernel that never ends keeps no other stream waiting.
pub fn streams_do_not_wait_for_each_other(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 1 << 20);
    guest.stream(60);
    guest.stream(61);
    guest.launch_endless(60);
    guest.write(60, device, &[1]);
    for round in 0..20 {
        guest.fill(61, &words(device, round, 1 << 18));
        assert_eq!(guest.wait(61), Ok(()));
        assert_eq!(guest.word(device + 64), round);
    }
    assert!(!guest.is_done(60));
    let told = guest.end();
    assert!(told.faults().is_empty());
}

/// Events have times that grow along a stream, and are told before they are complete.
pub fn events_keep_time(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 8 << 20);
    guest.stream(33);
    for event in 0..10 {
        guest.event(33, event);
        guest.fill(33, &words(device, event, 2 << 20));
    }
    guest.event(33, 10);
    assert_eq!(guest.wait(33), Ok(()));
    let times: Vec<u64> = (0..=10)
        .map(|event| guest.observer.time(event).expect("a time"))
        .collect();
    assert!(times.is_sorted());
    assert!(times[0] < times[10]);
}

/// After its destruction a stream takes nothing; what it had is done first.
pub fn destroyed_streams_take_nothing(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 8 << 20);
    guest.stream(70);
    guest.fill(70, &words(device, 5, 2 << 20));
    guest.destroy(70);
    let at = guest.at(70);
    let refused = guest.client.fill(at, &words(device, 6, 1), &[]);
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(guest.wait(70), Ok(()));
    assert_eq!(guest.observer.completed(70), [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(guest.word(device + (8 << 20) - 4), 5);
}

/// A new stream may use the slot of a destroyed one at once, and continues its positions.
pub fn slots_can_be_used_again(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 4 << 20);
    for round in 0..10 {
        assert_eq!(guest.stream_in(80, 0), Ok(()));
        assert_eq!(
            guest.stream_in(80, 0),
            Err(CUresult::ERROR_INVALID_VALUE),
            "a slot that is in use"
        );
        guest.fill(80, &words(device, round, 1 << 20));
        guest.destroy(80);
    }
    assert_eq!(guest.wait(80), Ok(()));
    let expected: Vec<_> = (1..=20).map(|at| (at, Ok(()))).collect();
    assert_eq!(guest.observer.completed(80), expected);
    assert_eq!(guest.word(device), 9);
}

/// Forty streams with work of all kinds, interleaved.
pub fn forty_streams_at_once(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 40 * GRANULE);
    let module = guest.module(kernels::COUNT);
    for stream in 0..40 {
        guest.stream(100 + stream);
    }
    for round in 0..25 {
        for stream in 0..40 {
            let own = device + u64::from(stream) * GRANULE;
            guest.launch(100 + stream, module, 4, 64, &params(&[own]));
            guest.fill(100 + stream, &words(own + 4096, round, 8));
            guest.event(100 + stream, stream);
        }
    }
    for stream in 0..40 {
        assert_eq!(guest.wait(100 + stream), Ok(()));
        let own = device + u64::from(stream) * GRANULE;
        let counted = 25_u32.to_le_bytes().repeat(4 * 64);
        assert_eq!(guest.download(own, 4 * 4 * 64), counted);
        assert_eq!(guest.word(own + 4096), 24);
        assert_eq!(guest.observer.completed(100 + stream).len(), 75);
    }
}

/// What was never made cannot be used, and what is there cannot be made again.
pub fn unknown_handles_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let at = At {
        stream: 999,
        sequence: 1,
    };
    let refused = guest.client.fill(at, &words(device, 0, 1), &[]);
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    let no_context = guest.stream_in(90, 5);
    assert_eq!(no_context, Err(CUresult::ERROR_INVALID_CONTEXT));
    assert!(guest.stream_in(4096, 0).is_err(), "beyond the slots");
    assert!(
        guest.stream_in(7, 0).is_err(),
        "another context's legacy stream"
    );
    let again = protocol::operations::ContextCreate::default();
    assert!(guest.client.context_create(&again, &[]).is_err());
    let nowhere = protocol::operations::ContextCreate {
        context: 9,
        device: 99,
        flags: 0,
        share: 0,
    };
    let refused = guest.client.context_create(&nowhere, &[]);
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_DEVICE));
    let gone = guest
        .client
        .context_destroy(&ContextDestroy { context: 9 }, &[]);
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_CONTEXT));
}

/// Everything a context still had is reported, and the context can be made again.
pub fn a_destroyed_context_reports_all_that_it_had(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    guest.context(3, 0);
    let device = guest.commit(0, 64 << 20);
    for _ in 0..20 {
        guest.fill(3, &words(device, 1, 16 << 20));
    }
    let destroyed = guest
        .client
        .context_destroy(&ContextDestroy { context: 3 }, &[]);
    assert_eq!(destroyed, Ok(()));
    let at = guest.at(3);
    let refused = guest.client.fill(at, &words(device, 0, 1), &[]);
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    guest.context(3, 0);
    guest.fill(3, &words(device, 7, 16 << 20));
    assert_eq!(guest.wait(3), Ok(()));
    assert_eq!(guest.word(device + (64 << 20) - 4), 7);
    let positions: Vec<u64> = guest
        .observer
        .completed(3)
        .iter()
        .map(|done| done.0)
        .collect();
    assert_eq!(positions, (1..=21).collect::<Vec<u64>>());
    assert!(guest.observer.faults().is_empty());
}

fn words(to: u64, value: u32, width: u64) -> Fill {
    Fill {
        to,
        pitch: 0,
        value,
        element: 4,
        width,
        height: 1,
    }
}
