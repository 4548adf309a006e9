//! Clients in good standing: what they post is done in CUDA's order, and what they had is freed.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::PollResult;
use protocol::control_messages::{ClientFields, Ending, Guilt, Packet};
use protocol::operations::*;
use rig::engine::{FAULTING, FakeEngine, INSTANT, KILLING};
use rig::{Rig, until};
use transport::memory::Mapping;

/// Where in a ring's memory it stands how much was posted.
const POSTED: usize = 0;

#[test]
fn a_client_comes_works_and_leaves() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    assert!(matches!(rig.hear(), Packet::Attached { .. }));
    let address = client.alloc(1 << 20).unwrap();
    let window = client.facts[0].window;
    assert!((window..window + client.facts[0].window_bytes).contains(&address));
    let place = client.launch(0, INSTANT, 0);
    client.end.wait(0, place).unwrap();
    let record = EventRecord {
        event: 7,
        timing: 1,
    };
    let place = client.enqueue(0, &record);
    client.end.wait(0, place).unwrap();
    assert_eq!(client.end.event_time(7), 42);
    client.end.post(0, 0, &Detach::default(), &[]).unwrap();
    assert_eq!(rig.ending_of(client.session), Ending::Detached);
    assert_eq!(rig.engine.clients(), 0);
    assert_eq!(rig.engine.committed(), 0);
    for line in [
        "Creating worker thread for client {PID: 1000000, Context ID: 0}",
        "Status of client {PID: 1000000, Context ID: 1} is ACTIVE",
        "Number of active client contexts is 0.",
        "left in good order",
        "Client process 1000000 disconnected",
    ] {
        assert!(rig.log.contain(line), "{line}");
    }
}

#[test]
fn a_client_believes_what_the_device_says_before_the_server_has_seen_it() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let first = client.launch_gated(0, 1);
    client.round_trip();
    assert!(!client.end.has_reached(0, first));
    rig.engine.tell(0, first);
    client.end.wait(0, first).unwrap();
    assert!(client.end.completed(0) < first, "the server has not");
    // What follows is taken, and is behind it.
    let second = client.launch(0, INSTANT, 0);
    client.round_trip();
    assert!(!client.end.has_reached(0, second));
    rig.engine.open(1);
    client.end.wait(0, second).unwrap();
    assert!(client.end.completed(0) >= second);
}

#[test]
fn what_a_client_frees_when_the_device_has_told_it_is_free_for_its_next_call() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let free = client.free_memory();
    let address = client.alloc(64 << 20).unwrap();
    let kernel = client.launch_gated(0, 1);
    client.round_trip();
    // The session is held where it has looked how far the kernel is, and seen nothing: as one is that has no processor for a while.
    let (is_over, seen) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let ((looks, looked), (go_on, may_go_on)) = (channel(), channel());
    let (engine, over) = (rig.engine.clone(), is_over.clone());
    rig.engine.on_poll(Some(Box::new(move || {
        if over.load(Ordering::SeqCst) {
            engine.open(1);
            return match seen.swap(true, Ordering::SeqCst) {
                true => PollResult::Idle,
                false => PollResult::Progress,
            };
        }
        looks.send(()).unwrap();
        may_go_on.recv().unwrap();
        PollResult::Pending
    })));
    client.stream(40, STREAM_NON_BLOCKING);
    looked.recv().unwrap();
    is_over.store(true, Ordering::SeqCst);
    rig.engine.tell(0, kernel);
    client.end.wait(0, kernel).unwrap();
    let free_it = MemFree { address };
    client.end.post(0, 0, &free_it, &[]).unwrap();
    let ring = Mapping::map(&client.memory.ring).unwrap();
    let posted = || ring.word(POSTED).load(Ordering::SeqCst);
    let before = posted();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.free_memory());
        until("it asks how much is free", || posted() > before);
        go_on.send(()).unwrap();
        assert_eq!(asked.join().unwrap(), free);
    });
    rig.engine.on_poll(None);
}

#[test]
fn streams_wait_for_events_and_no_stream_for_another() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    for stream in [40, 41, 42] {
        client.stream(stream, STREAM_NON_BLOCKING);
    }
    let first = client.launch_gated(40, 1);
    client.enqueue(
        41,
        &StreamWait {
            on: 40,
            until: first,
        },
    );
    let second = client.launch_gated(41, 2);
    let free = client.launch_gated(42, 3);
    rig.engine.open(3);
    client.end.wait(42, free).unwrap();
    assert!(!rig.engine.was_handed(2), "it waits for the event");
    rig.engine.open(1);
    until("the wait is over", || rig.engine.was_handed(2));
    rig.engine.open(2);
    client.end.wait(41, second).unwrap();
    // A wait alone completes too.
    let gated = client.launch_gated(40, 4);
    let wait = client.enqueue(
        41,
        &StreamWait {
            on: 40,
            until: gated,
        },
    );
    client.round_trip();
    assert!(client.end.completed(41) < wait);
    rig.engine.open(4);
    client.end.wait(41, wait).unwrap();
}

#[test]
fn the_legacy_stream_is_in_order_with_blocking_streams() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.stream(40, 0);
    client.stream(41, STREAM_NON_BLOCKING);
    client.launch_gated(40, 1);
    let legacy = client.launch_gated(0, 2);
    client.launch_gated(40, 3);
    client.launch_gated(41, 4);
    client.round_trip();
    assert_eq!(rig.engine.gates(), [1, 4]);
    rig.engine.open(1);
    until("the legacy kernel goes", || rig.engine.was_handed(2));
    assert!(!rig.engine.was_handed(3));
    rig.engine.open(2);
    client.end.wait(0, legacy).unwrap();
    until("and then the later one", || rig.engine.was_handed(3));
}

#[test]
fn a_full_stream_holds_nobody_else_up() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.stream(40, STREAM_NON_BLOCKING);
    client.stream(41, STREAM_NON_BLOCKING);
    client.launch_gated(40, 1);
    for _ in 1..STREAM_DEPTH {
        client.launch(40, INSTANT, 0);
    }
    // Far more than the ring holds, while stream 40 is full to the brim.
    for _ in 0..30_000 {
        client.launch(41, INSTANT, 0);
    }
    client.end.wait(41, 30_000).unwrap();
    assert_eq!(client.end.completed(40), 0);
    rig.engine.open(1);
    client.end.wait(40, STREAM_DEPTH).unwrap();
}

#[test]
fn a_posted_free_keeps_its_block_until_the_work_before_it_is_done() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let before = client.free_memory();
    let address = client.alloc(64 << 20).unwrap();
    client.launch_gated(0, 1);
    client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
    assert_eq!(before - client.free_memory(), 64 << 20, "still counted");
    assert!(rig.engine.committed() >= 64 << 20, "and still there");
    rig.engine.open(1);
    until("the memory is free", || rig.engine.committed() == 0);
    assert_eq!(client.free_memory(), before);
}

#[test]
fn memory_that_was_freed_goes_back_to_the_device_soon() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    for _ in 0..10 {
        let address = client.alloc(4 << 20).unwrap();
        client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
    }
    until("it is given back", || rig.engine.committed() == 0);
}

#[test]
fn an_allocation_waits_for_frees_that_are_under_way() {
    let rig = Rig::new(FakeEngine::with_room(64 << 20));
    let client = rig.attach_with_context();
    let address = client.alloc(48 << 20).unwrap();
    assert_eq!(client.alloc(48 << 20), Err(CUresult::ERROR_OUT_OF_MEMORY));
    client.launch_gated(0, 1);
    client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
    std::thread::scope(|scope| {
        let later = scope.spawn(|| client.alloc(48 << 20));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!later.is_finished(), "a native free would have waited too");
        rig.engine.open(1);
        later.join().unwrap().unwrap();
    });
    assert_eq!(
        client.alloc(48 << 20),
        Err(CUresult::ERROR_OUT_OF_MEMORY),
        "nothing is under way now"
    );
}

#[test]
fn quotas_hold_and_are_seen() {
    let rig = Rig::new(FakeEngine::new());
    let fields = ClientFields {
        memory_limit: Some("0=1G".into()),
        percentage: Some("25".into()),
        ..ClientFields::default()
    };
    let client = rig
        .try_attach(fields, 7, rustix::process::getpid())
        .unwrap();
    client.context(0);
    assert_eq!(client.facts[0].total_memory, 1 << 30);
    assert_eq!(client.facts[0].attribute(16), Some(25));
    client.alloc(1 << 29).unwrap();
    assert_eq!(client.free_memory(), 1 << 29);
    assert_eq!(
        client.alloc((1 << 29) + 1),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
}

#[test]
fn a_context_ends_with_all_that_was_in_it_and_its_slot_can_be_used_again() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.stream(40, 0);
    client.alloc(100 << 20).unwrap();
    client.launch_gated(40, 1);
    let destroy = ContextDestroy { context: 0 };
    client.end.post(0, 0, &destroy, &[]).unwrap();
    // Made again while the former one still ends.
    client.context(0);
    client.stream(40, 0);
    let place = client.launch(40, INSTANT, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(client.end.completed(40) == 0, "the first kernel still runs");
    rig.engine.open(1);
    client.end.wait(40, place).unwrap();
    assert_eq!(rig.engine.committed(), 0, "its memory went with it");
    assert_eq!(client.end.fault(0), CUresult::SUCCESS);
    client.alloc(1).unwrap();
}

#[test]
fn a_slot_is_used_again_while_the_former_streams_context_waits_for_another_to_end() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.context(1);
    let stream = |context| StreamCreate {
        stream: 40,
        context,
        flags: STREAM_NON_BLOCKING,
        priority: 0,
    };
    client.end.post(0, 0, &stream(1), &[]).unwrap();
    client.launch_gated(0, 1);
    // As the client library ends a context: its streams first.
    client.enqueue(40, &StreamDestroy { reserved: 0 });
    let destroy = ContextDestroy { context: 1 };
    client.end.post(0, 0, &destroy, &[]).unwrap();
    client.end.post(0, 0, &stream(0), &[]).unwrap();
    let place = client.launch(40, INSTANT, 0);
    client.end.wait(40, place).unwrap();
    assert_eq!(client.end.completed(0), 0, "the kernel still runs");
    rig.engine.open(1);
    client.end.wait(0, 1).unwrap();
    client.round_trip();
    let place = client.launch(40, INSTANT, 0);
    client.end.wait(40, place).unwrap();
}

#[test]
fn images_and_modules_come_through_staging_and_go_with_their_memory() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let load = |image: u64, bytes: &[u8], capacity: u64| {
        let chunk = client.end.staging().allocate(1 << 20).unwrap();
        chunk.copy_in(0, bytes);
        let put = ImagePut {
            image,
            total: bytes.len() as u64,
            offset: 0,
            staging: chunk.offset(),
            bytes: bytes.len() as u64,
        };
        client.end.post(0, 0, &put, &[]).unwrap();
        let load = ImageLoad {
            image,
            staging: chunk.offset(),
            capacity,
            options: 0,
            device: 0,
        };
        let reply = client.end.call(&load, &[]).unwrap();
        (reply, chunk)
    };
    let (short, _chunk) = load(1, &[3, 1], 1 << 20);
    assert_eq!(short.status, CUresult::SUCCESS);
    assert_eq!(short.data.len() as u64, short.fields.descriptor);
    let (long, chunk) = load(2, &[200, 100], 1 << 20);
    assert!(long.data.is_empty(), "it is in staging");
    let mut staged = vec![0; long.fields.descriptor as usize];
    chunk.copy_out(0, &mut staged);
    let (again, chunk) = load(3, &[200, 100], 8);
    assert!(again.data.is_empty());
    let describe = ImageDescribe {
        image: 3,
        staging: chunk.offset(),
        capacity: 1 << 20,
    };
    let described = client.end.call(&describe, &[]).unwrap();
    assert_eq!(described.fields.bytes, again.fields.descriptor);
    let mut told = vec![0; staged.len()];
    chunk.copy_out(0, &mut told);
    assert_eq!(told, staged, "the same image, told in another way");

    let module = ModuleLoad {
        module: 9,
        image: 1,
        context: 0,
        ..ModuleLoad::default()
    };
    let reply = client.end.call(&module, &[]).unwrap();
    assert_eq!(reply.status, CUresult::SUCCESS);
    assert_eq!(reply.data.len(), 24);
    assert!(rig.engine.committed() > 0, "its variables");
    client.launch_gated(0, 1);
    let unload = ModuleUnload { module: 9 };
    client.end.post(0, 0, &unload, &[]).unwrap();
    client.round_trip();
    assert!(rig.engine.committed() > 0, "a kernel may still use them");
    rig.engine.open(1);
    until("they are free", || rig.engine.committed() == 0);
}

#[test]
fn a_fault_is_its_own_clients_and_is_told() {
    let rig = Rig::new(FakeEngine::new());
    let (guilty, other) = (rig.attach_with_context(), rig.attach_with_context());
    let place = guilty.launch(0, FAULTING, 0);
    guilty.end.wait(0, place).unwrap();
    assert_eq!(guilty.end.fault(0), CUresult::ERROR_ILLEGAL_ADDRESS);
    let place = other.launch(0, INSTANT, 0);
    other.end.wait(0, place).unwrap();
    assert_eq!(other.end.fault(0), CUresult::SUCCESS);
    loop {
        if let Packet::Fault {
            session,
            code,
            text,
            guilt,
        } = rig.hear()
        {
            assert_eq!((session, code), (guilty.session, 700));
            assert_eq!(text, "wrote to 0x10");
            assert_eq!(guilt, Guilt::Guilty);
            break;
        }
    }
    assert!(
        rig.log
            .contain("Client {PID: 1000000, Context: 1} encountered a fatal GPU error.")
    );
}

#[test]
fn a_server_that_lost_its_device_takes_no_more_clients_and_ends_when_it_has_none() {
    let mut rig = Rig::new(FakeEngine::new());
    let (guilty, other) = (rig.attach_with_context(), rig.attach_with_context());
    let place = guilty.launch(0, KILLING, 0);
    guilty.end.wait(0, place).unwrap();
    while rig.hear() != (Packet::Lost { code: 700 }) {}
    drop((guilty, other));
    rig.server.take().unwrap().join().unwrap();
}

#[test]
fn what_the_engine_does_not_take_is_an_error_in_its_turn() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.launch_gated(0, 1);
    let refused = client.launch(0, 99, 0);
    let after = client.launch(0, INSTANT, 0);
    client.round_trip();
    assert_eq!(client.end.completed(0), 0);
    assert_eq!(client.end.fault(0), CUresult::SUCCESS);
    rig.engine.open(1);
    client.end.wait(0, after).unwrap();
    assert!(refused < after);
    // Told, and no harm to the context.
    let code = CUresult(client.end.refused(0) & 0xffff);
    assert_eq!(code, CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(client.end.fault(0), CUresult::SUCCESS);
}

#[test]
fn the_same_process_attaching_again_ends_its_former_session() {
    let rig = Rig::new(FakeEngine::new());
    let attach = || {
        rig.try_attach(ClientFields::default(), 4711, rustix::process::getpid())
            .unwrap()
    };
    let first = attach();
    first.context(0);
    first.launch_gated(0, 1);
    let second = attach();
    assert!(!first.end.is_alive());
    assert_eq!(rig.ending_of(first.session), Ending::Replaced);
    assert!(second.end.is_alive());
    assert_eq!(rig.engine.clients(), 1);
}

#[test]
fn two_threads_hand_a_stream_over_and_many_streams_run_at_once() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let client = &client;
            scope.spawn(move || {
                let stream = 100 + thread;
                client.stream(stream, STREAM_NON_BLOCKING);
                for _ in 0..5000 {
                    client.launch(stream, INSTANT, 0);
                }
                client.end.wait(stream, 5000).unwrap();
            });
        }
    });
}

#[test]
fn a_server_without_its_daemon_serves_its_clients_to_the_end() {
    let mut rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let daemon = rig.daemon.take();
    drop(daemon);
    until("it is noticed", || rig.log.contain("The daemon is gone"));
    let place = client.launch(0, INSTANT, 0);
    client.end.wait(0, place).unwrap();
    drop(client);
    rig.server.take().unwrap().join().unwrap();
    assert_eq!(rig.engine.clients(), 0);
}

#[test]
fn a_shutdown_waits_for_clients_as_long_as_it_was_told_to() {
    let mut rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    client.round_trip();
    let began = Instant::now();
    let end = Packet::Shutdown {
        force: false,
        grace: 200,
    };
    rig.daemon().send(&end.encode(), &[]).unwrap();
    until("the session is over", || !client.end.is_alive());
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!(rig.ending_of(client.session), Ending::Shutdown);
    rig.server.take().unwrap().join().unwrap();
    rig.daemon.take();
}

#[test]
fn arrays_count_against_the_quota_until_their_work_is_done() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let before = client.free_memory();
    let create = |array: u64, side: u64| {
        let request = ArrayCreate {
            array,
            width: side,
            height: side,
            format: 1,
            channels: 4,
            levels: 1,
            ..ArrayCreate::default()
        };
        client.end.call(&request, &[]).unwrap().status
    };
    assert_eq!(create(1, 16384), CUresult::SUCCESS);
    assert_eq!(client.free_memory(), before - (1 << 30));
    assert_eq!(create(1, 16), CUresult::ERROR_INVALID_VALUE, "it is there");
    assert_eq!(create(2, 1 << 40), CUresult::ERROR_INVALID_VALUE);
    // Each takes 4 GiB: the device's 16 GiB are soon gone.
    let made = (10..20)
        .take_while(|array| create(*array, 32768) == CUresult::SUCCESS)
        .count();
    assert_eq!(made, 3);
    assert_eq!(rig.engine.arrays(), 4);
    assert!(client.alloc(8 << 30).is_err(), "memory is counted together");
    // One is ended while a kernel may still read it.
    client.stream(40, STREAM_NON_BLOCKING);
    let place = client.launch_gated(40, 1);
    client
        .end
        .post(0, 0, &ArrayDestroy { array: 1 }, &[])
        .unwrap();
    client.round_trip();
    assert_eq!(rig.engine.arrays(), 4);
    rig.engine.open(1);
    client.end.wait(40, place).unwrap();
    until("the array is gone", || rig.engine.arrays() == 3);
    client.round_trip();
    // The others go with the context.
    client
        .end
        .post(0, 0, &ContextDestroy { context: 0 }, &[])
        .unwrap();
    until("their bytes are free", || client.free_memory() == before);
}
