//! A client and a server in two processes: the test starts itself a second time as the client.

#![allow(clippy::disallowed_methods, reason = "loom runs none of these tests")]

use cuda_abi::CUresult;
use protocol::control_messages::{Hello, Packet, Purpose, VERSION, Welcome, fingerprint};
use protocol::operations::{Detach, Fill, MemAlloc, MemAllocReply, Opcode, Write};
use protocol::wire::Fields;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use transport::memory::Mapping;
use transport::ring::Record;
use transport::session::{ClientEnd, ServerEnd, SessionMemory};
use transport::socket::{Connection, Listener, poll};

const PATH: &str = "OPENMPS_TEST_SOCKET";
const FATE: &str = "OPENMPS_TEST_FATE";
const HOST_BASE: u64 = 0x1008_0000_0000;
const HOST_BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 2000;

/// The client's process: not a test of its own.
#[test]
#[ignore = "is the other process of the tests below"]
fn client_process() {
    let path = std::env::var_os(PATH).expect("started by another test");
    let connection = Connection::connect(path).unwrap();
    let hello = Packet::Hello(Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features: 0,
        purpose: Purpose::Client(Default::default()),
    });
    connection.send(&hello.encode(), &[]).unwrap();
    let (bytes, fds) = connection.receive().unwrap();
    let Packet::Welcome(welcome) = Packet::decode(&bytes).unwrap() else {
        panic!("not welcome");
    };
    let memory = SessionMemory::from_fds(fds, welcome.host_bytes).unwrap();
    let host = Mapping::map_at(&memory.host, welcome.host_base).unwrap();
    let client = ClientEnd::new(&memory, connection).unwrap();
    if std::env::var_os(FATE).is_some() {
        // Posts until it is killed.
        for n in 1.. {
            client.post(1, n, &Fill::default(), &[&[1; 200]]).unwrap();
        }
    }
    for n in 1..=ROUNDS {
        client
            .post(3, n, &Write { to: n }, &[&n.to_le_bytes()])
            .unwrap();
        if n % 3 == 0 {
            client.wait(3, n).unwrap();
            let mut bytes = [0; 8];
            host.copy_out(0, &mut bytes);
            assert!(u64::from_le_bytes(bytes) >= n);
        }
        if n % 100 == 0 {
            let reply = client
                .call(
                    &MemAlloc {
                        context: 0,
                        bytes: n,
                    },
                    &[],
                )
                .unwrap();
            assert_eq!(reply.fields.address, n * 2);
        }
        if n % 500 == 0 {
            // Long enough for both ends to fall asleep.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    client.post(0, 0, &Detach { status: 0 }, &[]).unwrap();
    // The server ends the session; whoever waits is told.
    assert!(client.wait(3, ROUNDS + 1).is_err());
}

/// Starts the client, and serves it up to its first record.
fn start(name: &str, fate: Option<&str>) -> (Child, Connection, SessionMemory) {
    let folder = std::env::temp_dir().join(format!("openmps-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let path = folder.join("socket");
    let listener = Listener::bind(&path).expect("a listener");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["client_process", "--exact", "--ignored", "--nocapture"])
        .env(PATH, &path);
    if let Some(fate) = fate {
        command.env(FATE, fate);
    }
    let child = command.spawn().expect("the client starts");
    let connection = listener.accept().expect("the client connects");
    let _ = std::fs::remove_dir_all(&folder);
    let (bytes, _) = connection.receive().expect("its first packet");
    assert!(matches!(Packet::decode(&bytes), Ok(Packet::Hello(_))));
    let memory = SessionMemory::create(HOST_BYTES).expect("room for a session");
    (child, connection, memory)
}

fn welcome(connection: &Connection, memory: &SessionMemory) {
    let welcome = Packet::Welcome(Welcome {
        version: VERSION,
        session: 1,
        server_pid: 0,
        facts: Vec::new(),
        host_base: HOST_BASE,
        host_bytes: HOST_BYTES,
    });
    connection
        .send(&welcome.encode(), &memory.fds())
        .expect("the client takes it");
}

#[test]
fn two_processes_share_a_session() {
    let (mut child, connection, memory) = start("processes", None);
    let host = Mapping::map(&memory.host).unwrap();
    let (mut consumer, publisher) = ServerEnd::new(&memory).unwrap().split();
    welcome(&connection, &memory);
    let mut record = Record::default();
    let mut last = 0;
    loop {
        let Some(position) = consumer.next_record(&mut record).unwrap() else {
            consumer.spin();
            consumer.wait();
            continue;
        };
        let header = record.header;
        match Opcode::from_number(header.opcode).unwrap() {
            Opcode::Write => {
                assert_eq!(header.sequence, last + 1);
                last = header.sequence;
                assert_eq!(Write::read(record.slots()), Ok(Write { to: last }));
                host.copy_in(0, record.data());
                publisher.complete(header.channel, header.sequence);
            }
            Opcode::MemAlloc => {
                let bytes = MemAlloc::read(record.slots()).unwrap().bytes;
                let mut slots = [0];
                MemAllocReply { address: bytes * 2 }.write(&mut slots);
                publisher
                    .reply(
                        header.channel,
                        header.sequence,
                        CUresult::SUCCESS,
                        &slots,
                        &[],
                    )
                    .unwrap();
            }
            Opcode::Detach => break,
            other => panic!("{other:?}"),
        }
        consumer.retire(position);
    }
    assert_eq!(last, ROUNDS);
    drop(connection);
    assert!(child.wait().unwrap().success());
}

/// The end of a client that is killed is seen at once, and what it left in the ring is sound.
#[test]
fn a_killed_client_is_noticed() {
    for pause in [0, 3, 10] {
        let (mut child, connection, memory) = start("killed", Some("kill"));
        let (mut consumer, _publisher) = ServerEnd::new(&memory).unwrap().split();
        let peer = connection.peer().unwrap();
        assert_eq!(peer.pid.cast_unsigned(), child.id());
        welcome(&connection, &memory);
        let mut record = Record::default();
        let mut last = 0;
        let mut drain = |until: Instant| {
            loop {
                match consumer.next_record(&mut record).unwrap() {
                    Some(position) => {
                        assert_eq!(record.header.sequence, last + 1);
                        assert_eq!(record.data(), [1; 200]);
                        last += 1;
                        consumer.retire(position);
                    }
                    None if Instant::now() > until => break,
                    None => std::thread::yield_now(),
                }
                if Instant::now() > until {
                    break;
                }
            }
        };
        drain(Instant::now() + Duration::from_millis(50 + pause));
        assert_eq!(
            poll(&[peer.pidfd.as_fd()], Some(Duration::ZERO)).unwrap(),
            [false]
        );
        child.kill().unwrap();
        let ended = poll(&[peer.pidfd.as_fd()], Some(Duration::from_secs(5))).unwrap();
        assert_eq!(ended, [true]);
        assert!(connection.is_closed());
        drain(Instant::now() + Duration::from_millis(20));
        child.wait().unwrap();
        assert!(last > 0);
    }
}
