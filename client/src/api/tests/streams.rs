//! Streams, events and threads.
//!
//! They show that a stream keeps its order and that a full one holds up nobody else.

use std::sync::PoisonError;

use cuda_abi::types::*;

use crate::api::*;
use crate::testing::*;

fn gate() -> std::sync::MutexGuard<'static, ()> {
    let held = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    start().open_gate(false);
    held
}

#[test]
fn streams_and_events_keep_their_order() {
    let _gate = gate();
    let shared = start();
    let mine = context(0);
    let module = load("kernel gate\nkernel store 8 8\n\0");
    let (held, store) = (function(module, "gate\0"), function(module, "store\0"));
    let mut streams = [CUstream::NULL; 2];
    let mut events = [CUevent::NULL; 3];
    streams
        .iter_mut()
        .for_each(|stream| cuStreamCreate(out(stream), CU_STREAM_NON_BLOCKING).unwrap());
    events
        .iter_mut()
        .for_each(|event| cuEventCreate(out(event), 0).unwrap());
    let mut time = 0.0;
    let unrecorded = cuEventElapsedTime(out(&mut time), events[0], events[1]);
    assert_eq!(unrecorded, Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(cuEventQuery(events[0]), Ok(()));
    cuEventRecord(events[0], streams[0]).unwrap();
    launch(held, streams[0], &mut []).unwrap();
    cuEventRecord(events[1], streams[0]).unwrap();
    cuStreamWaitEvent(streams[1], events[1], 0).unwrap();
    let (mut to, mut value) = (allocate(8), 77_u64);
    launch(
        store,
        streams[1],
        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
    )
    .unwrap();
    cuEventRecord(events[2], streams[1]).unwrap();
    cuEventSynchronize(events[0]).unwrap();
    for event in &events[1..] {
        assert_eq!(cuEventQuery(*event), Err(CUresult::ERROR_NOT_READY));
    }
    assert_eq!(cuStreamQuery(streams[1]), Err(CUresult::ERROR_NOT_READY));
    assert_eq!(
        cuEventElapsedTime(out(&mut time), events[0], events[1]),
        Err(CUresult::ERROR_NOT_READY)
    );
    assert_eq!(
        read(to, 8),
        [0; 8],
        "another stream is not held up, and sees nothing yet"
    );
    shared.open_gate(true);
    cuEventSynchronize(events[2]).unwrap();
    assert_eq!(cuStreamQuery(streams[0]), Ok(()));
    assert_eq!(read(to, 8), 77_u64.to_le_bytes());
    cuEventElapsedTime(out(&mut time), events[0], events[1]).unwrap();
    assert!(time >= 1.0, "{time}");
    cuStreamDestroy(streams[0]).unwrap();
    assert_eq!(
        cuStreamDestroy(streams[0]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        cuStreamQuery(streams[0]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    assert_eq!(
        cuEventQuery(events[1]),
        Ok(()),
        "an event outlives its stream"
    );
    cuEventDestroy(events[0]).unwrap();
    assert_eq!(cuEventQuery(events[0]), Err(CUresult::ERROR_INVALID_HANDLE));
    cuCtxDestroy(mine).unwrap();
    assert_eq!(cuEventQuery(events[1]), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(
        cuStreamQuery(streams[1]),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
}

#[test]
fn a_full_stream_makes_its_poster_wait_and_no_other() {
    let _gate = gate();
    let shared = start();
    let mine = context(0);
    let module = load("kernel gate\nkernel nothing\n\0");
    let (held, nothing) = (function(module, "gate\0"), function(module, "nothing\0"));
    let mut streams = [CUstream::NULL; 2];
    streams
        .iter_mut()
        .for_each(|stream| cuStreamCreate(out(stream), CU_STREAM_NON_BLOCKING).unwrap());
    launch(held, streams[0], &mut []).unwrap();
    let bits = (nothing.bits(), streams[0].bits());
    let poster = std::thread::spawn(move || {
        let (nothing, stream) = (CUfunction::from_bits(bits.0), CUstream::from_bits(bits.1));
        for _ in 0..3000 {
            launch(nothing, stream, &mut []).unwrap();
        }
    });
    for _ in 0..3000 {
        launch(nothing, streams[1], &mut []).unwrap();
    }
    cuStreamSynchronize(streams[1]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!poster.is_finished(), "only so many may be on their way");
    shared.open_gate(true);
    poster.join().unwrap();
    cuCtxSynchronize().unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn the_threads_own_stream_is_another_in_each_thread() {
    let mine = context(0);
    let id = |stream| {
        let mut id = 0;
        cuStreamGetId(stream, out(&mut id)).unwrap();
        id
    };
    let (legacy, own) = (id(CUstream::NULL), id(CUstream::PER_THREAD));
    assert_eq!(legacy, id(CUstream::LEGACY));
    assert_ne!(legacy, own);
    assert_eq!(own, id(CUstream::PER_THREAD));
    assert_eq!(crate::stream::per_thread(|| id(CUstream::NULL)), own);
    assert_eq!(crate::stream::per_thread(|| id(CUstream::LEGACY)), legacy);
    assert_eq!(
        id(CUstream::NULL),
        legacy,
        "the twin's meaning ends with it"
    );
    let bits = mine.bits();
    let other = std::thread::spawn(move || {
        cuCtxSetCurrent(CUcontext::from_bits(bits)).unwrap();
        id(CUstream::PER_THREAD)
    });
    assert_ne!(other.join().unwrap(), own);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn many_threads_use_their_streams_at_once() {
    let mine = context(0);
    let module = load("kernel store 8 8\n\0");
    let store = function(module, "store\0");
    let bits = (mine.bits(), store.bits());
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            std::thread::spawn(move || {
                cuCtxSetCurrent(CUcontext::from_bits(bits.0)).unwrap();
                let store = CUfunction::from_bits(bits.1);
                let mut stream = CUstream::NULL;
                cuStreamCreate(out(&mut stream), 0).unwrap();
                let mut to = allocate(8);
                for round in 0..500 {
                    let mut value = number * 1000 + round;
                    launch(
                        store,
                        stream,
                        &mut [(&raw mut to).cast(), (&raw mut value).cast()],
                    )
                    .unwrap();
                }
                cuStreamSynchronize(stream).unwrap();
                let last = u64::from_le_bytes(read(to, 8).try_into().unwrap());
                cuStreamDestroy(stream).unwrap();
                cuMemFree_v2(to).unwrap();
                assert_eq!(last, number * 1000 + 499);
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn what_others_may_record_is_not_waited_for_in_a_capture() {
    let mine = context(0);
    let mut event = CUevent::NULL;
    let flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    cuEventCreate(out(&mut event), flags).unwrap();
    let mut stream = CUstream::NULL;
    cuStreamCreate(out(&mut stream), CU_STREAM_NON_BLOCKING).unwrap();
    let mode = CUstreamCaptureMode::THREAD_LOCAL;
    let captured = || {
        let mut graph = CUgraph::NULL;
        cuStreamBeginCapture_v2(stream, mode).unwrap();
        let waited = cuStreamWaitEvent(stream, event, 0);
        (waited, cuStreamEndCapture(stream, out(&mut graph)))
    };
    assert_eq!(captured(), (Ok(()), Ok(())), "it was never recorded");
    cuEventRecord(event, stream).unwrap();
    cuStreamWaitEvent(stream, event, 0).unwrap();
    let outside = Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
    let broken = Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(captured(), (outside, broken));
    cuCtxDestroy_v2(mine).unwrap();
}
