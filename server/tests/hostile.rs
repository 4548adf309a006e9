//! Clients that break rules, die, or hit a defect: each is its own problem and nobody else's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::{ClientFields, Ending};
use protocol::operations::*;
use rig::engine::{FakeEngine, INSTANT, PANICKING};
use rig::{Rig, TestClient, until};
use transport::memory::Mapping;

/// That a client works as if nothing had happened.
fn works(client: &TestClient) {
    let place = client.launch(0, INSTANT, 0);
    client.end.wait(0, place).unwrap();
    let address = client.alloc(1 << 20).unwrap();
    client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
    client.round_trip();
}

/// Numbers that look random and are the same in every run.
fn dice(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn file_map(bytes: u64) -> FileMap {
    FileMap {
        bytes,
        ..FileMap::default()
    }
}

fn memfd(bytes: u64) -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::memfd_create("file", flags).unwrap());
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn files_are_mapped_if_they_are_good_and_given_back() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let ask = |file: &std::fs::File, request: FileMap| {
        let connection = client.end.connection();
        connection.send(FILE_PACKET, &[file.as_fd()]).unwrap();
        let reply = client.end.call(&request, &[]).unwrap();
        reply.status.ok().map(|()| reply.fields.address)
    };
    let file = memfd(1 << 20);
    // What the server sees at the window's addresses, in this very process.
    let byte = |address: u64| {
        let pointer = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the server has a file mapped there, which has this page.
        unsafe { pointer.read_volatile() }
    };
    let mut addresses = Vec::new();
    for round in 1..=3_u8 {
        file.write_all_at(&[round; 4096], 8192).unwrap();
        let request = FileMap {
            offset: 8192,
            ..file_map(64 << 10)
        };
        let address = ask(&file, request).unwrap();
        assert_eq!(byte(address), round);
        addresses.push(address);
    }
    assert_eq!(byte(addresses[0]), 3, "all are the file");
    for (file, request, expected) in [
        (memfd(4096), file_map(0), CUresult::ERROR_INVALID_VALUE),
        (
            memfd(4096),
            file_map(u64::MAX),
            CUresult::ERROR_INVALID_VALUE,
        ),
        (memfd(4096), file_map(8192), CUresult::ERROR_NOT_SUPPORTED),
        (memfd(4096), file_map(100), CUresult::ERROR_NOT_SUPPORTED),
        (
            memfd(4096),
            FileMap {
                flags: 2,
                ..file_map(4096)
            },
            CUresult::ERROR_INVALID_VALUE,
        ),
        (
            memfd(4096),
            FileMap {
                offset: 512,
                ..file_map(4096)
            },
            CUresult::ERROR_NOT_SUPPORTED,
        ),
        (
            memfd(4096),
            FileMap {
                context: 9,
                ..file_map(4096)
            },
            CUresult::ERROR_INVALID_CONTEXT,
        ),
        (
            std::fs::File::open("/proc/self/maps").unwrap(),
            file_map(4096),
            CUresult::ERROR_NOT_SUPPORTED,
        ),
        (
            std::fs::File::open("/dev/zero").unwrap(),
            file_map(4096),
            CUresult::ERROR_NOT_SUPPORTED,
        ),
        (
            std::fs::File::open("/").unwrap(),
            file_map(4096),
            CUresult::ERROR_NOT_SUPPORTED,
        ),
    ] {
        assert_eq!(ask(&file, request), Err(expected), "{request:?}");
    }
    works(&client);
    for &address in &addresses {
        client.end.post(0, 0, &HostFree { address }, &[]).unwrap();
    }
    client.round_trip();
    // The addresses are to be had again, and the file keeps what is in it.
    let again = ask(&file, file_map(4096)).unwrap();
    assert!(addresses.contains(&again), "{again:#x} of {addresses:x?}");
    let mut there = [0];
    file.read_exact_at(&mut there, 8192).unwrap();
    assert_eq!(there, [3]);
    let mapped = ask(&file, file_map(1 << 20)).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&format!("{mapped:x}-")), "{maps}");
    drop(client);
    // Its end gives all of them back.
    until("the file is mapped no more", || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        !maps.contains(&format!("{mapped:x}-"))
    });
}

#[test]
fn whoever_breaks_a_rule_is_disconnected_and_named() {
    type Breach = fn(&TestClient);
    let breaches: [(&str, Breach); 12] = [
        ("position 0 to 2", |client| {
            let _ = client.end.post(0, 2, &EventRecord::default(), &[]);
        }),
        ("stream 77, which does not exist", |client| {
            let _ = client.end.post(77, 1, &EventRecord::default(), &[]);
        }),
        ("stream 4294967295", |client| {
            let _ = client.end.post(u32::MAX, 1, &EventRecord::default(), &[]);
        }),
        ("made in a slot that is not free", |client| {
            client.context(0);
        }),
        ("made in a slot that is not free", |client| {
            client.context(1 << 20);
        }),
        ("made in a slot that is not free", |client| {
            client.stream(3, 0);
        }),
        ("operations unfinished", |client| {
            client.stream(40, 0);
            for sequence in 1..=STREAM_DEPTH + 1 {
                let launch = Launch {
                    kernel: rig::engine::GATED,
                    grid: [1, 1, 1],
                    ..Launch::default()
                };
                let _ = client.end.post(40, sequence, &launch, &[]);
            }
        }),
        ("outside of staging", |client| {
            let put = ImagePut {
                image: 1,
                total: 1 << 20,
                offset: 0,
                staging: u64::MAX - 4,
                bytes: 1 << 20,
            };
            let _ = client.end.post(0, 0, &put, &[]);
        }),
        ("reply slot that there is not", |client| {
            // A call's record, posted by hand with a reply slot beyond the last.
            let _ = client.end.post(9999, 1, &MemInfo::default(), &[]);
        }),
        ("none was sent", |client| {
            let _ = client.end.call(&file_map(4096), &[]);
        }),
        ("none was sent", |client| {
            let connection = client.end.connection();
            connection.send(FILE_PACKET, &[]).unwrap();
            let _ = client.end.call(&file_map(4096), &[]);
        }),
        ("none was sent", |client| {
            let file = std::fs::File::open("/dev/null").unwrap();
            let connection = client.end.connection();
            connection.send(b"something else", &[file.as_fd()]).unwrap();
            let _ = client.end.call(&file_map(4096), &[]);
        }),
    ];
    let rig = Rig::new(FakeEngine::new());
    let neighbour = rig.attach_with_context();
    for (reason, breach) in breaches {
        let client = rig.attach_with_context();
        breach(&client);
        until(reason, || !client.end.is_alive());
        assert_eq!(rig.ending_of(client.session), Ending::Malformed, "{reason}");
        assert!(rig.log.contain(reason), "{reason}: {:?}", rig.log);
        works(&neighbour);
    }
}

#[test]
fn what_is_merely_wrong_is_an_error_and_no_more() {
    let rig = Rig::new(FakeEngine::new());
    let (client, neighbour) = (rig.attach_with_context(), rig.attach_with_context());
    let foreign = neighbour.alloc(1 << 20).unwrap();
    for address in [0, 1, foreign, u64::MAX] {
        client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
        client.end.post(0, 0, &HostFree { address }, &[]).unwrap();
    }
    let posts = [
        ModuleUnload { module: 1 },
        ModuleUnload { module: u64::MAX },
    ];
    for post in posts {
        client.end.post(0, 0, &post, &[]).unwrap();
    }
    let put = ImagePut {
        image: 1,
        total: u64::MAX,
        ..ImagePut::default()
    };
    client.end.post(0, 0, &put, &[]).unwrap();
    for number in [0, 5, u32::MAX] {
        let missing = NotSupported { function: number };
        client.end.post(0, 0, &missing, &[]).unwrap();
    }
    let status = |reply: CUresult| assert_ne!(reply, CUresult::SUCCESS);
    let bytes = 1 << 20;
    let context = 31;
    status(
        client
            .end
            .call(&MemAlloc { context, bytes }, &[])
            .unwrap()
            .status,
    );
    status(client.end.call(&MemInfo { device: 9 }, &[]).unwrap().status);
    status(client.end.call(&ImageLoad::default(), &[]).unwrap().status);
    status(client.end.call(&ModuleLoad::default(), &[]).unwrap().status);
    status(
        client
            .end
            .call(&ImageDescribe::default(), &[])
            .unwrap()
            .status,
    );
    for bytes in [0, u64::MAX, 1 << 40] {
        assert!(client.alloc(bytes).is_err());
    }
    works(&client);
    works(&neighbour);
}

#[test]
fn garbage_in_the_shared_memory_ends_only_its_client() {
    let rig = Rig::new(FakeEngine::new());
    let neighbour = rig.attach_with_context();
    let (mut malformed, mut posters) = (0, Vec::new());
    for seed in 1..200 {
        let (client, mut child) = rig.attach_process();
        client.round_trip();
        let ring = Mapping::map(&client.memory.ring).unwrap();
        let mut dice = dice(seed);
        let words = ring.len() / 8;
        let records = words - (1 << 20) / 8;
        for _ in 0..4000 {
            let at = records + dice() as usize % (4096.min(words - records));
            // Headers that are nearly right go deepest.
            let value = match dice() % 4 {
                0 => dice(),
                1 => ((dice() % 50) << 32) | ((dice() % 30) << 56) | (dice() % 300),
                2 => dice() % 4200,
                _ => 1,
            };
            ring.word(at * 8)
                .store(value, std::sync::atomic::Ordering::Relaxed);
        }
        // The cursor of what was produced lies first.
        let produced = match seed % 3 {
            0 => dice(),
            1 => dice() % 4096,
            _ => ring.word(0).load(std::sync::atomic::Ordering::Relaxed) + dice() % 2048,
        };
        ring.word(0)
            .store(produced, std::sync::atomic::Ordering::Release);
        // Rings the server. It may take its time, since its own cursor is wrong too.
        let (session, client) = (client.session, Arc::new(client));
        let poster = client.clone();
        posters.push(std::thread::spawn(move || {
            let _ = poster.end.post(0, 0, &MemFree::default(), &[]);
        }));
        std::thread::sleep(Duration::from_millis(3));
        // Whether it was found out or the garbage made sense, it ends.
        child.kill().unwrap();
        child.wait().unwrap();
        let how = rig.ending_of(session);
        assert!(
            matches!(how, Ending::Malformed | Ending::ProcessEnded),
            "{how:?}"
        );
        malformed += usize::from(how == Ending::Malformed);
        works(&neighbour);
    }
    assert!(malformed > 100, "most garbage is found out: {malformed}");
    for poster in posters {
        poster.join().unwrap();
    }
    assert_eq!(rig.engine.clients(), 1);
}

#[test]
fn a_defect_met_by_one_client_is_not_met_by_others() {
    let rig = Rig::new(FakeEngine::new());
    let (client, neighbour) = (rig.attach_with_context(), rig.attach_with_context());
    client.alloc(1 << 20).unwrap();
    client.launch(0, PANICKING, 0);
    until("it is over", || !client.end.is_alive());
    assert_eq!(client.end.closed(), Some(CUresult::ERROR_MPS_RPC_FAILURE));
    assert_eq!(rig.ending_of(client.session), Ending::Failed);
    assert!(rig.log.contain("the engine has a defect"));
    works(&neighbour);
    assert_eq!(rig.engine.clients(), 1);
}

#[test]
fn limits_that_cannot_hold_refuse_the_client_with_the_reason() {
    let rig = Rig::new(FakeEngine::new());
    for (percentage, memory) in [("junk", "0=1G"), ("0", ""), ("50", "junk"), ("50", "5=1G")] {
        let fields = ClientFields {
            percentage: Some(percentage.into()),
            memory_limit: Some(memory.into()),
            ..ClientFields::default()
        };
        let refused = rig.try_attach(fields, 5, rustix::process::getpid()).err();
        let (code, text) = refused.unwrap();
        assert_eq!(code, 805);
        assert!(rig.log.contain(&text), "{text}");
    }
    works(&rig.attach_with_context());
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn clients_killed_at_any_moment_leave_nothing_behind() {
    // Other tests of this binary run beside this one, unless each is a process of its own.
    let alone = std::env::args().any(|argument| argument == "--exact")
        || std::env::var_os("NEXTEST").is_some();
    let rig = Rig::new(FakeEngine::new());
    let neighbour = rig.attach_with_context();
    works(&neighbour);
    let before = (threads(), descriptors());
    let mut dice = dice(1);
    for round in 0..200 {
        let (client, mut child) = rig.attach_process();
        client.stream(40, 0);
        let steps = dice() % 20;
        for step in 0..steps {
            match dice() % 4 {
                0 => drop(client.alloc(dice() % (64 << 20) + 1)),
                1 => drop(client.launch(40, INSTANT, 0)),
                2 => drop(client.launch_gated(0, 1000 + round * 100 + step as u32)),
                _ => drop(client.enqueue(40, &StreamWait { on: 0, until: 1 })),
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The client's socket and mappings stay open here, as if a worker of it held them.
        assert_eq!(rig.ending_of(client.session), Ending::ProcessEnded);
        assert_eq!(rig.engine.clients(), 1);
        assert!(!client.end.is_alive());
    }
    works(&neighbour);
    until("memory is back", || rig.engine.committed() == 0);
    if alone {
        assert_eq!((threads(), descriptors()), before);
    }
}

/// Addresses that a client reserves.
fn reserve(client: &TestClient, bytes: u64, align: u64) -> Result<u64, CUresult> {
    let request = AddressReserve {
        device: 0,
        bytes,
        align,
    };
    let reply = client.end.call(&request, &[]).unwrap();
    reply.status.ok().map(|()| reply.fields.address)
}

fn window_of(client: &TestClient, address: u64) -> Result<(u64, u64), CUresult> {
    let reply = client.end.call(&WindowOf { address }, &[]).unwrap();
    let WindowOfReply { base, bytes } = reply.fields;
    reply.status.ok().map(|()| (base, bytes))
}

#[test]
fn addresses_are_one_clients_and_enough_is_left_for_others() {
    const TIB: u64 = 1 << 40;
    const UNIT: u64 = 2 << 20;
    let rig = Rig::new(FakeEngine::new());
    // Many at once, each with more than the device has.
    let many: Vec<TestClient> = (0..60).map(|_| rig.attach_with_context()).collect();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for client in &many {
        let base = reserve(client, 159 << 30, UNIT).unwrap();
        let (window, bytes) = window_of(client, base).unwrap();
        assert!(window <= base && base + (159 << 30) <= window + bytes);
        ranges.push((window, bytes));
        ranges.push((client.facts[0].window, client.facts[0].window_bytes));
        ranges.push((client.welcome.host_base, client.welcome.host_bytes));
    }
    ranges.sort_unstable();
    assert!(
        ranges
            .windows(2)
            .all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
    );
    let sessions: Vec<u64> = many.iter().map(|client| client.session).collect();
    drop(many);
    let mut ended = 0;
    while ended < sessions.len() {
        ended += usize::from(matches!(
            rig.hear(),
            protocol::control_messages::Packet::Gone { .. }
        ));
    }

    let (greedy, other) = (rig.attach_with_context(), rig.attach_with_context());
    let mut all = Vec::new();
    while let Ok(base) = reserve(&greedy, TIB, UNIT) {
        all.push(base);
    }
    assert!((8..=16).contains(&all.len()), "{}", all.len());
    for _ in 0..4 {
        reserve(&other, TIB, UNIT).expect("some for the next");
    }
    for (bytes, align) in [
        (u64::MAX / UNIT * UNIT, UNIT),
        (1 << 47, UNIT),
        (UNIT, 1 << 63),
        (UNIT, 3),
        (0, UNIT),
        (UNIT + 1, UNIT),
        (TIB, 1 << 46),
    ] {
        assert!(reserve(&other, bytes, align).is_err(), "{bytes} at {align}");
    }
    // Nobody learns of another's windows.
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    for address in [
        all[0],
        greedy.facts[0].window,
        0,
        u64::MAX,
        other.welcome.host_base,
    ] {
        assert_eq!(window_of(&other, address), wrong, "{address:#x}");
    }
    // What the first gives back the second can have.
    for &address in &all {
        let free = AddressFree { address };
        greedy.end.post(0, 0, &free, &[]).unwrap();
        greedy.end.post(0, 0, &free, &[]).unwrap();
    }
    until("the addresses are free", || {
        greedy.round_trip();
        reserve(&other, 2 * TIB, UNIT).is_ok()
    });
    works(&greedy);
    works(&other);
    // Small ones share windows, of which a client has only so many.
    for _ in 0..1000 {
        reserve(&greedy, UNIT, UNIT).expect("a small one");
    }
}
