//! What a client can write into its ring and ask of its server: it is disconnected with a line in the log, or
//! refused.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::{ClientFields, Hello, Packet, Purpose, VERSION, Version};
use protocol::operations::{
    ContextCreate, Copy, HostFree, ImagePut, Launch, MemAlloc, MemFree, MemInfo, ModuleLoad,
    ModuleUnload, StreamCreate, StreamDestroy, StreamWait, Write,
};
use tests::daemon::{Daemon, eventually, settled_threads_and_files, succeed, threads_and_files};
use tests::hostile::client::BareClient;
use transport::session::{ClientEnd, RING_BYTES};
use transport::socket::Connection;

use crate::scene::Scene;

/// A client by the book, up to the point where it begins to lie.
fn attach(daemon: &Daemon) -> BareClient {
    BareClient::attach(&daemon.pipe()).unwrap()
}

fn is_disconnected(liar: &BareClient) {
    eventually("the liar is disconnected", || !liar.end.is_alive());
}

/// Offsets of the ring memory's first words; part of the protocol.
const PRODUCED: usize = 0;
const RECORDS: usize = 36_864;

#[test]
fn garbage_in_the_ring() {
    let scene = Scene::start();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    const ROUNDS: usize = 12;
    for round in 0..ROUNDS {
        let liar = attach(&scene.daemon);
        for word in liar.ring.words(RECORDS, (RING_BYTES - RECORDS) / 8) {
            // Some rounds look nearly right: small lengths and opcodes that exist.
            let value = if round % 2 == 0 {
                random()
            } else {
                ((random() % 64) << 32) | (random() % 200)
            };
            word.store(value, Ordering::Relaxed);
        }
        let produced = if round % 3 == 0 { random() } else { 4096 };
        liar.ring.word(PRODUCED).store(produced, Ordering::SeqCst);
        liar.end.post(0, 0, &MemFree { address: 1 }, &[]).ok();
        is_disconnected(&liar);
    }
    scene.told_of(ROUNDS);
    scene.nobody_noticed();
}

#[test]
fn records_that_change_after_they_were_posted() {
    let scene = Scene::start();
    let liar = attach(&scene.daemon);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1u64;
            while !stop.load(Ordering::Relaxed) {
                for word in liar.ring.words(RECORDS, 4096) {
                    value = value
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    word.store(value >> (value % 60), Ordering::Relaxed);
                }
            }
        });
        for sequence in 1..2000 {
            let posted = liar.end.post(
                0,
                sequence,
                &Write {
                    to: liar.welcome.host_base,
                },
                &[&[7; 64]],
            );
            if posted.is_err() || !liar.end.is_alive() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
    });
    drop(liar);
    scene.nobody_noticed();
}

#[test]
fn handles_and_addresses_of_others() {
    let scene = Scene::start();
    let liar = attach(&scene.daemon);
    let end = &liar.end;
    end.post(
        0,
        0,
        &ContextCreate {
            context: 0,
            device: 0,
            flags: 0,
            share: 0,
        },
        &[],
    )
    .unwrap();
    let info = end.call(&MemInfo { device: 0 }, &[]).unwrap();
    assert_eq!(info.status, CUresult::SUCCESS);
    let own = end
        .call(
            &MemAlloc {
                context: 0,
                bytes: 1 << 20,
            },
            &[],
        )
        .unwrap();
    assert_eq!(own.status, CUresult::SUCCESS);
    let own = own.fields.address;

    // What is asked for is refused.
    let device = end.call(&MemInfo { device: 99 }, &[]).unwrap().status;
    assert_eq!(device, CUresult::ERROR_INVALID_DEVICE);
    let huge = end
        .call(
            &MemAlloc {
                context: 0,
                bytes: u64::MAX - 7,
            },
            &[],
        )
        .unwrap()
        .status;
    assert_eq!(huge, CUresult::ERROR_OUT_OF_MEMORY);
    let context = end
        .call(
            &MemAlloc {
                context: 31,
                bytes: 64,
            },
            &[],
        )
        .unwrap()
        .status;
    assert_ne!(context, CUresult::SUCCESS);
    let module = end.call(
        &ModuleLoad {
            module: 1,
            image: 77,
            context: 0,
            staging: 0,
            capacity: 0,
        },
        &[],
    );
    assert_ne!(module.unwrap().status, CUresult::SUCCESS);

    // What is posted harms nobody: neighbours' extents, the server's own memory, wraps, foreign
    // handles, staging beyond its end.
    let mut sequence = 0;
    let addresses = [
        own + (32 << 30),
        own - (1 << 30),
        8,
        u64::MAX - 3,
        0x5555_5555_0000,
    ];
    for address in addresses {
        for (to, from) in [(address, own), (own, address)] {
            sequence += 1;
            let copy = Copy {
                to,
                from,
                to_pitch: 4096,
                from_pitch: 4096,
                width: 4096,
                height: 1,
                depth: 1,
                ..Default::default()
            };
            end.post(0, sequence, &copy, &[]).unwrap();
        }
        sequence += 1;
        end.post(0, sequence, &Write { to: address }, &[&[1; 32]])
            .unwrap();
    }
    sequence += 1;
    let staging = Copy {
        to: own,
        from_space: 1,
        from: u64::MAX - 64,
        width: 4096,
        height: u64::MAX,
        depth: u64::MAX,
        ..Default::default()
    };
    end.post(0, sequence, &staging, &[]).unwrap();
    sequence += 1;
    let launch = Launch {
        module: 5,
        kernel: 9,
        grid: [1; 3],
        block: [1; 3],
        ..Default::default()
    };
    end.post(0, sequence, &launch, &[]).unwrap();
    end.wait(0, sequence).unwrap();

    end.post(0, 0, &MemFree { address: 0x1234 }, &[]).unwrap();
    end.post(0, 0, &HostFree { address: own }, &[]).unwrap();
    end.post(0, 0, &ModuleUnload { module: 1 << 60 }, &[])
        .unwrap();
    drop(liar);
    scene.nobody_noticed();
}

#[test]
fn streams_that_break_the_rules() {
    let scene = Scene::start();
    type Lie = fn(&ClientEnd);
    let lies: [Lie; 5] = [
        // A stream that was never made.
        |end| end.post(4000, 1, &Write { to: 0 }, &[]).unwrap(),
        // A slot beyond the last.
        |end| end.post(u32::MAX, 1, &Write { to: 0 }, &[]).unwrap(),
        // A gap in the order.
        |end| end.post(0, 7, &Write { to: 0 }, &[]).unwrap(),
        // More unfinished work than a stream may have: all of it waits for what never comes.
        |end| {
            let stream = StreamCreate {
                stream: 40,
                context: 0,
                flags: 1,
                priority: 0,
            };
            end.post(0, 0, &stream, &[]).unwrap();
            end.post(40, 1, &StreamWait { on: 0, until: 1000 }, &[])
                .unwrap();
            for sequence in 2..5000 {
                if end.post(40, sequence, &Write { to: 0 }, &[]).is_err() {
                    break;
                }
            }
        },
        // Twice the end of a stream.
        |end| {
            end.post(0, 1, &StreamDestroy { reserved: 0 }, &[]).unwrap();
            end.post(0, 2, &StreamDestroy { reserved: 0 }, &[]).unwrap();
        },
    ];
    for (index, lie) in lies.iter().enumerate() {
        let liar = attach(&scene.daemon);
        liar.end
            .post(
                0,
                0,
                &ContextCreate {
                    context: 0,
                    device: 0,
                    flags: 0,
                    share: 0,
                },
                &[],
            )
            .unwrap();
        lie(&liar.end);
        if index < 4 {
            is_disconnected(&liar);
        }
    }
    scene.told_of(4);
    scene.nobody_noticed();
}

#[test]
fn images_larger_than_memory() {
    let scene = Scene::start();
    let liar = attach(&scene.daemon);
    for (image, total, offset, staging, bytes) in [
        (1, u64::MAX, 0, 0, 64),
        (2, 1 << 40, 0, 0, 64),
        (3, 64, u64::MAX - 3, 0, 64),
        (4, 64, 0, u64::MAX - 3, 64),
        (5, 64, 32, 0, 64),
    ] {
        if liar
            .end
            .post(
                0,
                0,
                &ImagePut {
                    image,
                    total,
                    offset,
                    staging,
                    bytes,
                },
                &[],
            )
            .is_err()
        {
            break;
        }
    }
    drop(liar);
    scene.nobody_noticed();
}

/// PTX that would hold a worker for ever, overflow a stack, or take memory without end.
#[test]
fn kernels_that_ask_for_too_much() {
    const HEAD: &str = ".version 9.0\n.target sm_75\n.address_size 64\n";
    let scene = Scene::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let probe = |text: String| {
        std::fs::write(file.path(), HEAD.to_owned() + &text).unwrap();
        let path = file.path().to_str().unwrap();
        let mut probe = scene.daemon.probe(&["kernel", path]);
        probe.stdout(Stdio::piped()).spawn().unwrap()
    };
    let chain = |functions: u32, body: &str| {
        let first = format!(".func f0() {{ {body} ret; }}\n");
        let rest = (1..functions).map(|n| {
            let below = n - 1;
            format!(".func f{n}() {{ {body} call f{below}; ret; }}\n")
        });
        let last = functions - 1;
        let entry = format!(".visible .entry k() {{ call f{last}; ret; }}");
        first + &rest.collect::<String>() + &entry
    };
    // Killed in the middle, it is gone: no thread of the server's is in its work any more.
    let mut tree = String::from(".func f0() { ret; }\n");
    for n in 1..60 {
        let below = n - 1;
        tree += &format!(".func f{n}() {{ call f{below}; call f{below}; ret; }}\n");
    }
    tree += ".visible .entry k() { call f59; ret; }";
    for endless in [
        tree,
        ".visible .entry k() { .reg .b32 %r; mov.u32 %r, 0; T: .branchtargets A; A: brx.idx %r, T; }".into(),
        ".visible .entry k() { A: bar.arrive 1, 96; bra A; }".into(),
    ] {
        let mut child = probe(endless);
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "running\n");
        assert_eq!(succeed(&mut scene.daemon.probe(&["work", "1"])), "ok\n");
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("the killed client is gone", || {
            scene.daemon.clients().len() <= 1
        });
    }
    let registers = ".visible .entry k() { .reg .b32 %r<1000000>; .reg .pred %p;
        setp.ne.u32 %p, %r999999, 0; A: "
        .to_owned()
        + &"@%p bra A;\n".repeat(20_000)
        + "ret; }";
    for (greedy, end) in [
        (chain(30_000, ""), "error 714\n"),
        (
            chain(3000, ".local .b8 l[524288]; st.local.u32 [l], 1;"),
            "error 2\n",
        ),
        (chain(70_000, ""), "error 2\n"),
        (registers, "ok\n"),
    ] {
        let output = probe(greedy).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with(end), "{text}");
    }
    scene.nobody_noticed();
}

#[test]
fn half_open_connections_and_strange_packets() {
    let scene = Scene::start();
    let path = scene.daemon.pipe().join("control");
    let silent: Vec<Connection> = (0..200)
        .map(|_| Connection::connect(&path).unwrap())
        .collect();
    for bytes in [&b"x"[..], &[0; 64], &[0xFF; 4096], b"get_server_list\n"] {
        let connection = Connection::connect(&path).unwrap();
        connection.send(bytes, &[]).ok();
        assert!(connection.receive().is_err() || connection.is_closed());
    }
    let other = Packet::Hello(Hello {
        version: Version {
            major: VERSION.major + 1,
            minor: 0,
        },
        fingerprint: 0,
        features: 0,
        purpose: Purpose::Client(ClientFields::default()),
    });
    let connection = Connection::connect(&path).unwrap();
    connection.send(&other.encode(), &[]).unwrap();
    let answer = Packet::decode(&connection.receive().unwrap().0).unwrap();
    assert!(
        matches!(&answer, Packet::Refused { text, .. } if text.contains("version")),
        "{answer:?}"
    );
    assert_eq!(succeed(&mut scene.daemon.probe(&["work", "1"])), "ok\n");
    drop(silent);
    scene.nobody_noticed();
}

#[test]
fn liars_leave_nothing_behind() {
    let daemon = Daemon::start();
    succeed(&mut daemon.probe(&["work", "1"]));
    let server = daemon.server();
    eventually("the first client is gone", || daemon.clients().is_empty());
    let before = settled_threads_and_files(server);
    for _ in 0..20 {
        let liar = attach(&daemon);
        liar.end
            .post(
                0,
                0,
                &ContextCreate {
                    context: 0,
                    device: 0,
                    flags: 0,
                    share: 0,
                },
                &[],
            )
            .unwrap();
        liar.end
            .call(
                &MemAlloc {
                    context: 0,
                    bytes: 1 << 24,
                },
                &[],
            )
            .unwrap();
        liar.end.post(9999, 3, &Write { to: 3 }, &[]).ok();
    }
    eventually("no thread and no file is left", || {
        threads_and_files(server) == before
    });
}
