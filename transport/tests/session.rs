//! Both ends of a session in one process.

#![allow(clippy::disallowed_types, reason = "loom runs none of these tests")]

use cuda_abi::CUresult;
use protocol::control_messages::{Packet, VERSION, Welcome};
use protocol::operations::{
    Fill, Launch, MemAlloc, MemAllocReply, Opcode, STREAM_DEPTH, STREAM_SLOTS, Write,
};
use protocol::wire::Fields;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use transport::memory::Sealed;
use transport::ring::Record;
use transport::session::{
    ClientEnd, Closed, Consumer, NotSent, Publisher, RECORD_DATA, REPLY_DATA, ServerEnd,
    SessionMemory,
};
use transport::socket::Connection;

fn session() -> (ClientEnd, Consumer, Arc<Publisher>, Connection) {
    let memory = SessionMemory::create(1 << 20).expect("room for a session");
    let (ours, theirs) = Connection::pair().expect("a pair of sockets");
    let server = ServerEnd::new(&memory).expect("a server's end");
    let client = ClientEnd::new(&memory, ours).expect("a client's end");
    let (consumer, publisher) = server.split();
    (client, consumer, publisher, theirs)
}

/// Takes one record, waiting for it.
fn take(consumer: &mut Consumer, record: &mut Record) -> transport::ring::Position {
    loop {
        if let Some(position) = consumer.next_record(record).expect("a sound ring") {
            return position;
        }
        consumer.spin();
        consumer.wait();
    }
}

fn launch(n: u32) -> Launch {
    Launch {
        module: 7,
        kernel: n,
        grid: [n, 2, 3],
        block: [4, 5, 6],
        shared: 8,
        flags: 0,
        attributes: 0,
    }
}

#[test]
fn a_record_comes_out_as_it_went_in() {
    let (client, mut consumer, _publisher, _socket) = session();
    let data: Vec<u8> = (0..=255).collect();
    // Parts that end in the middle of words, empty parts, no parts.
    let shapes: [&[&[u8]]; 6] = [
        &[],
        &[&data[..64]],
        &[&data[..3], &data[3..4], &data[4..21], &data[21..90]],
        &[&[], &data[..5], &[]],
        &[&data[..8], &data[8..9]],
        &[&data[..]],
    ];
    let mut record = Record::default();
    for (n, parts) in shapes.iter().enumerate() {
        let n = n as u32;
        client
            .post(n + 3, u64::from(n) + 1, &launch(n), parts)
            .unwrap();
        let position = take(&mut consumer, &mut record);
        assert_eq!(record.header.opcode, Opcode::Launch as u16);
        assert_eq!(record.header.channel, n + 3);
        assert_eq!(record.header.sequence, u64::from(n) + 1);
        assert_eq!(Launch::read(record.slots()), Ok(launch(n)));
        assert_eq!(record.data(), parts.concat());
        consumer.retire(position);
    }
    assert_eq!(consumer.next_record(&mut record), Ok(None));
}

#[test]
fn records_of_every_length_pass_the_ring_s_end() {
    let (client, mut consumer, _publisher, _socket) = session();
    let data: Vec<u8> = (0..RECORD_DATA).map(|n| (n * 31) as u8).collect();
    let mut record = Record::default();
    for n in 0..300 {
        let bytes = (n * 7919) % RECORD_DATA;
        let bytes = if n % 50 == 0 { RECORD_DATA } else { bytes };
        client
            .post(1, n as u64, &Write { to: n as u64 }, &[&data[..bytes]])
            .unwrap();
        let position = take(&mut consumer, &mut record);
        assert_eq!(record.header.sequence, n as u64);
        assert!(record.data() == &data[..bytes], "record {n}");
        consumer.retire(position);
    }
}

/// Threads post as fast as they can through a ring that is full most of the time; the server retires
/// late and out of order. Each thread's records come in its order, whole, and all of them.
#[test]
fn many_threads_post_through_a_full_ring() {
    const THREADS: u32 = 4;
    let each: u64 = 30_000;
    let (client, mut consumer, _publisher, _socket) = session();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                let mut data = [0u8; 512];
                for n in 1..=each {
                    let length = (n * 37 + u64::from(thread)) as usize % data.len();
                    data[..length].fill(n as u8);
                    client
                        .post(thread, n, &launch(n as u32), &[&data[..length]])
                        .unwrap();
                }
            });
        }
        let mut next = [1u64; THREADS as usize];
        let mut record = Record::default();
        let mut held = Vec::new();
        for _ in 0..u64::from(THREADS) * each {
            let position = take(&mut consumer, &mut record);
            let (thread, n) = (record.header.channel, record.header.sequence);
            assert_eq!(n, next[thread as usize]);
            next[thread as usize] += 1;
            assert_eq!(Launch::read(record.slots()), Ok(launch(n as u32)));
            assert_eq!(
                record.data().len() as u64,
                (n * 37 + u64::from(thread)) % 512
            );
            assert!(record.data().iter().all(|byte| *byte == n as u8));
            held.push(position);
            if held.len() == 700 {
                held.rotate_left(333);
                held.drain(..)
                    .for_each(|position| consumer.retire(position));
            }
        }
        assert_eq!(next, [each + 1; THREADS as usize]);
    });
}

/// Two threads hand a stream to and fro: the ring has their records in that order.
#[test]
fn a_stream_that_is_handed_over_keeps_its_order() {
    let (client, mut consumer, _publisher, _socket) = session();
    let turn = std::sync::Mutex::new(1u64);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let mut next = turn.lock().unwrap();
                    if *next > 20_000 {
                        break;
                    }
                    client.post(5, *next, &Fill::default(), &[]).unwrap();
                    *next += 1;
                }
            });
        }
        let mut record = Record::default();
        for n in 1..=20_000 {
            let position = take(&mut consumer, &mut record);
            assert_eq!(record.header.sequence, n);
            consumer.retire(position);
        }
    });
}

#[test]
fn spilling_makes_room_though_nothing_was_retired() {
    let (client, mut consumer, _publisher, _socket) = session();
    let data = vec![1u8; 100_000];
    let mut record = Record::default();
    let mut first = None;
    let mut spilled = 0;
    for n in 0..40 {
        client.post(1, n, &Write { to: 0 }, &[&data]).unwrap();
        let position = take(&mut consumer, &mut record);
        first.get_or_insert(position);
        spilled += u32::from(consumer.spill());
    }
    assert!((4..40).contains(&spilled), "{spilled}");
    // What was spilled may be retired again; it changes nothing.
    consumer.retire(first.unwrap());
    client.post(1, 40, &Write { to: 0 }, &[&data]).unwrap();
    take(&mut consumer, &mut record);
    assert_eq!(record.header.sequence, 40);
}

#[test]
fn calls_of_many_threads_get_their_own_replies() {
    let (client, mut consumer, publisher, _socket) = session();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut record = Record::default();
            while !over.load(Ordering::Relaxed) {
                let Some(position) = consumer.next_record(&mut record).unwrap() else {
                    consumer.spin();
                    consumer.wait();
                    continue;
                };
                let request = MemAlloc::read(record.slots()).unwrap();
                let data = vec![request.bytes as u8; request.bytes as usize % REPLY_DATA];
                let mut slots = [0; 1];
                MemAllocReply {
                    address: request.bytes + 1,
                }
                .write(&mut slots);
                let status = CUresult(u32::from(request.bytes % 7 == 0));
                let header = record.header;
                publisher
                    .reply(header.channel, header.sequence, status, &slots, &data)
                    .unwrap();
                consumer.retire(position);
            }
        });
        // More threads than slots, so that some wait for one.
        std::thread::scope(|scope| {
            for thread in 0..80u64 {
                let client = &client;
                scope.spawn(move || {
                    for n in 0..50 {
                        let bytes = thread * 1000 + n;
                        let reply = client.call(&MemAlloc { context: 0, bytes }, &[]).unwrap();
                        assert_eq!(reply.fields.address, bytes + 1);
                        assert_eq!(reply.status, CUresult(u32::from(bytes % 7 == 0)));
                        assert_eq!(reply.data, vec![bytes as u8; bytes as usize % REPLY_DATA]);
                    }
                });
            }
        });
        over.store(true, Ordering::Relaxed);
        publisher.ring_self();
    });
    assert_eq!(
        publisher.reply(64, 1, CUresult::SUCCESS, &[], &[]),
        Err(NotSent::Channel)
    );
    let long = vec![0; REPLY_DATA + 1];
    assert_eq!(
        publisher.reply(0, 1, CUresult::SUCCESS, &[], &long),
        Err(NotSent::TooLong)
    );
}

#[test]
fn completions_wake_those_who_wait_and_faults_are_seen_with_them() {
    let (client, _consumer, publisher, _socket) = session();
    std::thread::scope(|scope| {
        // Several threads wait for places of one stream, near and far ones.
        for place in [1u64, 5, 5, 900, 1000] {
            let client = &client;
            scope.spawn(move || {
                client.wait(9, place).unwrap();
                assert!(client.completed(9) >= place);
                if place == 1000 {
                    assert_eq!(client.fault(3), CUresult(700));
                    assert_eq!(client.event_time(11), 123_456_789);
                }
            });
        }
        for n in 1..1000 {
            publisher.complete(9, n);
            if n % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        publisher.set_fault(3, CUresult(700));
        publisher.event_time(11, 123_456_789);
        publisher.complete(9, 1000);
    });
    assert_eq!(client.fault(2), CUresult::SUCCESS);
    assert_eq!(client.completed(8), 0);
    // Nobody can wait for slots that there are not.
    publisher.complete(STREAM_SLOTS, 1);
    publisher.complete(u32::MAX, 1);
    publisher.event_time(u32::MAX, 1);
    publisher.set_fault(u32::MAX, CUresult(1));
}

#[test]
fn depth_is_bounded() {
    let (client, _consumer, publisher, _socket) = session();
    client.wait_for_depth(1, STREAM_DEPTH).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait_for_depth(1, STREAM_DEPTH + 2));
        std::thread::sleep(Duration::from_millis(20));
        publisher.complete(1, 1);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        publisher.complete(1, 2);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_device_s_own_word_ends_a_wait_and_makes_no_room() {
    let (client, _consumer, publisher, _socket) = session();
    let (memory, bytes) = publisher.device_completions();
    // As the device does, of which the server knows nothing.
    let tell = |stream: u32, sequence: u64| {
        let at = bytes.start + stream as usize * 8;
        assert!(bytes.contains(&at));
        memory.word(at).store(sequence, Ordering::Release);
    };
    std::thread::scope(|scope| {
        // So soon that the waiter has not slept yet, or when it looks again.
        let waiter = scope.spawn(|| client.wait(1, STREAM_DEPTH + 2));
        tell(1, STREAM_DEPTH + 1);
        assert!(!client.has_reached(1, STREAM_DEPTH + 2));
        tell(1, STREAM_DEPTH + 2);
        waiter.join().unwrap().unwrap();
    });
    assert!(client.has_reached(1, STREAM_DEPTH + 2));
    assert!(!client.has_reached(0, 1) && !client.has_reached(2, 1));
    assert_eq!(client.completed(1), 0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait_for_depth(1, STREAM_DEPTH + 2));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished(), "the server has not seen it");
        publisher.complete(1, 2);
        waiter.join().unwrap().unwrap();
    });
    // Streams without a word of that kind have the server's.
    let last = STREAM_SLOTS - 1;
    assert!(!client.has_reached(last, 1));
    publisher.complete(last, 1);
    assert!(client.has_reached(last, 1));
}

#[test]
fn the_server_s_end_is_noticed_by_all_who_wait() {
    let (client, consumer, publisher, socket) = session();
    std::thread::scope(|scope| {
        let places = [
            scope.spawn(|| client.wait(4, 1)),
            scope.spawn(|| client.call(&MemAlloc::default(), &[]).map(drop)),
            scope.spawn(|| {
                let data = vec![0; RECORD_DATA];
                (0..10).try_for_each(|_| client.post(0, 0, &Write { to: 0 }, &[&data]))
            }),
        ];
        std::thread::sleep(Duration::from_millis(50));
        drop((consumer, publisher, socket));
        for place in places {
            assert_eq!(place.join().unwrap(), Err(Closed));
        }
    });
    assert!(!client.is_alive());
    assert_eq!(client.closed(), None);
    assert_eq!(client.post(0, 0, &Write { to: 0 }, &[]), Err(Closed));
}

#[test]
fn the_server_can_say_why_it_ends_a_session() {
    let (client, _consumer, publisher, _socket) = session();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait(4, 1));
        std::thread::sleep(Duration::from_millis(20));
        publisher.close(CUresult(719));
        assert_eq!(waiter.join().unwrap(), Err(Closed));
    });
    assert_eq!(client.closed(), Some(CUresult(719)));
}

/// A consumer that is not rung by its client is rung by its own process, asleep or not yet.
#[test]
fn the_session_rings_its_own_bell() {
    let (_client, mut consumer, publisher, _socket) = session();
    for pause in [0, 0, 1, 5, 20] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(pause));
                publisher.ring_self();
            });
            consumer.wait();
        });
    }
}

/// Both ends asleep use no processor time, and a record still gets through at once.
#[test]
fn idle_ends_use_no_processor() {
    fn thread_time() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    let (client, mut consumer, publisher, _socket) = session();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let before = thread_time();
            let mut record = Record::default();
            take(&mut consumer, &mut record);
            publisher.complete(record.header.channel, record.header.sequence);
            thread_time() - before
        });
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(600));
        client.post(2, 1, &Fill::default(), &[]).unwrap();
        client.wait(2, 1).unwrap();
        assert!(thread_time() - before < Duration::from_millis(20));
        assert!(server.join().unwrap() < Duration::from_millis(20));
    });
}

#[test]
#[should_panic(expected = "too long for the ring")]
fn a_record_that_is_too_long_is_the_caller_s_mistake() {
    let (client, _consumer, _publisher, _socket) = session();
    let data = vec![0; RECORD_DATA * 2];
    let _ = client.post(0, 0, &Write { to: 0 }, &[&data]);
}

#[test]
fn a_place_that_is_told_late_takes_nothing_back() {
    let (client, _consumer, publisher, _socket) = session();
    // One thread completes a place, and before it has told the client another tells of the next.
    publisher.complete(3, 2);
    publisher.complete(3, 1);
    assert_eq!(client.completed(3), 2);
    client.wait(3, 2).expect("it is complete");
}

#[test]
fn two_ends_on_one_processor_hand_it_to_each_other() {
    let (client, mut consumer, publisher, _socket) = session();
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&at| allowed.is_set(at));
    let first = first.expect("a processor");
    let move_here = move || {
        let mut only = rustix::thread::CpuSet::new();
        only.set(first);
        rustix::thread::sched_setaffinity(None, &only).expect("it may run there");
    };
    const ROUNDS: u64 = 2000;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            move_here();
            for sequence in 1..=ROUNDS {
                client.post(0, sequence, &launch(1), &[]).expect("posted");
                client.wait(0, sequence).expect("done");
            }
            client
        });
        move_here();
        consumer.set_beside_client(true);
        let mut record = Record::default();
        for sequence in 1..=ROUNDS {
            let position = take(&mut consumer, &mut record);
            assert_eq!(record.header.sequence, sequence);
            publisher.complete(0, sequence);
            consumer.retire(position);
        }
        assert_eq!(consumer.client_processor(), Some(first));
    });
}

#[test]
fn who_leaves_a_session_takes_and_says_nothing_more_that_others_find() {
    let memory = SessionMemory::create(1 << 20).expect("room for a session");
    let (ours, _theirs) = Connection::pair().expect("a pair of sockets");
    let server = ServerEnd::new(&memory).expect("a server's end");
    server.set_kept(&memory).expect("a descriptor");
    let client = ClientEnd::new(&memory, ours).expect("a client's end");
    let (mut consumer, publisher) = server.split();
    for place in 1..=2 {
        client.post(3, place, &launch(1), &[]).unwrap();
    }
    let taken = take(&mut consumer, &mut Record::default()).end();
    publisher.complete(3, 1);
    publisher.leave().expect("room for the same memory");
    publisher.complete(3, 2);
    publisher.set_fault(0, CUresult::ERROR_UNKNOWN);
    assert_eq!((publisher.completed(3), client.completed(3)), (2, 1));
    assert_eq!(client.fault(0), CUresult::SUCCESS);
    let (goes_on, went_on) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let taken = consumer.next_record(&mut Record::default());
        let _ = goes_on.send(taken.is_ok());
    });
    let moment = Duration::from_millis(50);
    assert!(went_on.recv_timeout(moment).is_err(), "it takes another");
    let next = SessionMemory {
        status: SessionMemory::create_status().expect("room"),
        ..memory
    };
    let server = ServerEnd::new(&next).expect("a server's end");
    let (mut consumer, _, former) = server.take_over(&memory.status, 1).expect("its status");
    assert_eq!((former.taken, former.retired), (taken, 0));
    assert_eq!(former.completed[3], 1);
    let mut record = Record::default();
    let places = [(); 2].map(|()| {
        take(&mut consumer, &mut record);
        record.header.sequence
    });
    assert_eq!(places, [1, 2]);
}

/// A server has welcomed a client and called it, and ends: the next one begins where that was to begin.
#[test]
fn a_client_follows_on_from_who_did_nothing_before_it_ended() {
    let memory = SessionMemory::create(1 << 20).expect("room for a session");
    let (ours, theirs) = Connection::pair().expect("a pair of sockets");
    let soon = Some(Duration::from_secs(60));
    theirs.set_receive_timeout(soon).expect("a limit");
    let server = ServerEnd::new(&memory).expect("a server's end");
    server.set_kept(&memory).expect("a descriptor");
    let client = ClientEnd::new(&memory, ours).expect("a client's end");
    let welcome = Welcome {
        version: VERSION,
        session: 1,
        server_pid: 2,
        facts: Vec::new(),
        host_base: 1 << 40,
        host_bytes: 1 << 20,
    };
    client.welcomed(welcome.clone());
    let (mut consumer, publisher) = server.split();
    for place in 1..=2 {
        client.post(3, place, &launch(1), &[]).unwrap();
    }
    take(&mut consumer, &mut Record::default());
    publisher.complete(3, 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.wait(3, 2));
        let next = |takeover| {
            let copy = |sealed: &Sealed| sealed.try_clone().expect("a descriptor");
            let next = SessionMemory {
                ring: copy(&memory.ring),
                status: SessionMemory::create_status().expect("room"),
                staging: copy(&memory.staging),
                host: copy(&memory.host),
            };
            let server = ServerEnd::new(&next).expect("a server's end");
            server.set_kept(&next).expect("a descriptor");
            let (_, publisher, former) = server.take_over(&memory.status, takeover).unwrap();
            let welcome = Packet::Welcome(welcome.clone()).encode();
            theirs.send(&welcome, &next.fds()).expect("it is there");
            (publisher, former)
        };
        let comes = |journal: &[u8]| {
            let (packet, files) = theirs.receive().expect("its journal");
            assert_eq!((&packet[..], files.len()), (journal, 1));
        };
        let (second, of_second) = next(1);
        second.call_over();
        comes(&of_second.journal);
        // The third one ends before it has called the client.
        let (_third, of_third) = next(2);
        let (fourth, of_fourth) = next(3);
        fourth.call_over();
        comes(&of_fourth.journal);
        assert_ne!(of_third.journal, of_fourth.journal);
        assert_eq!(of_fourth.completed[3], 1);
        second.complete(3, 2);
        assert_eq!(client.completed(3), 1, "it looks at the last one");
        fourth.complete(3, 2);
        waits.join().expect("no panic").expect("it is complete");
    });
}

#[test]
fn a_session_that_no_other_server_can_take_over_is_not_left() {
    let (_client, _consumer, publisher, _socket) = session();
    assert!(publisher.leave().is_err());
}
