//! The bytes of every control message, as they were released: old clients live in containers and wheels. A change
//! here is a change of the protocol. After one that is meant, write the files again and look at the difference:
//!
//! ```text
//! UPDATE=1 cargo test -p protocol --test golden
//! ```

use std::fmt::Write as _;
use std::path::Path;

use protocol::control_messages::{
    Admit, Change, ClientFields, DeviceAccount, Ending, FaultCount, Group, Guilt, Hello,
    ListedDevice, Membership, PACKET_MAX, Packet, Purpose, RecordedClient, RecordedPart,
    SharedDevice, SharedObject, Takeovers, TimeLineRequest, VERSION, Version, View, ViewRequest,
    ViewedDevice, ViewedProcess, Welcome, fingerprint, view_packets,
};
use protocol::device_facts::DeviceFacts;

fn compare(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, now).expect("the golden file can be written");
    }
    let released = std::fs::read_to_string(&path).unwrap_or_default();
    for (released, now) in released.lines().zip(now.lines()) {
        assert_eq!(
            released, now,
            "bytes of {name} changed; see the beginning of tests/golden.rs"
        );
    }
    assert_eq!(
        released, now,
        "lines of {name} changed; see the beginning of tests/golden.rs"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn shared_device() -> SharedDevice {
    SharedDevice {
        number: 1,
        uuid: *b"0123456789abcdef",
    }
}

fn client() -> ClientFields {
    ClientFields {
        program: "nbody".into(),
        percentage: Some("33".into()),
        memory_limit: None,
        priority: Some("1".into()),
        context: 5,
        partition: None,
        label: None,
        job: None,
        kernel_time: Some("30s".into()),
        isolation: None,
    }
}

fn admit() -> Admit {
    Admit {
        session: 0x1122,
        pid: 77,
        uid: 1000,
        gid: 1001,
        namespace: 4_026_531_836,
        version: VERSION,
        fingerprint: 2,
        features: 3,
        client: client(),
        member: Membership::default(),
        time_line: None,
        files: 0,
        bases: Vec::new(),
        takeover: 0,
        former: Some(0x0708),
    }
}

fn packets() -> Vec<(&'static str, Packet)> {
    vec![
        (
            "hello-client",
            Packet::Hello(Hello {
                version: VERSION,
                fingerprint: 0x0102_0304_0506_0708,
                features: 9,
                purpose: Purpose::Client(client()),
            }),
        ),
        (
            "hello-command",
            Packet::Hello(Hello {
                version: Version {
                    minor: 7,
                    ..VERSION
                },
                fingerprint: 1,
                features: 0,
                purpose: Purpose::Command {
                    line: "get_server_list".into(),
                },
            }),
        ),
        (
            "command-output",
            Packet::CommandOutput {
                exit: 1,
                last: true,
                text: "1234\n".into(),
            },
        ),
        (
            "welcome",
            Packet::Welcome(Welcome {
                version: VERSION,
                session: 0x1122,
                server_pid: 4321,
                facts: vec![DeviceFacts {
                    name: "OpenMPS software GPU".into(),
                    uuid: *b"0123456789abcdef",
                    total_memory: 1 << 34,
                    attributes: vec![0, 1024, -1],
                    window: 1 << 45,
                    window_bytes: 1 << 35,
                }],
                host_base: 0x1100_0000_0000,
                host_bytes: 32 << 30,
            }),
        ),
        (
            "refused",
            Packet::Refused {
                code: 805,
                text: "no server".into(),
            },
        ),
        ("admit", Packet::Admit(admit())),
        (
            "shutdown",
            Packet::Shutdown {
                force: true,
                grace: 2500,
            },
        ),
        (
            "ready",
            Packet::Ready {
                pid: -1,
                devices: vec![
                    ListedDevice {
                        uuid: "GPU-1".into(),
                        name: "one".into(),
                        pci: [0, 6, 7],
                        total_memory: 1 << 34,
                        multiprocessors: 132,
                        ..ListedDevice::default()
                    },
                    ListedDevice::default(),
                ],
                free: vec![1 << 33, 0],
            },
        ),
        (
            "attached",
            Packet::Attached {
                session: 6,
                bases: vec![0x1100_0000_0000, 0x1200_0000_0000],
            },
        ),
        (
            "gone",
            Packet::Gone {
                session: 6,
                how: Ending::Malformed,
                accounts: vec![account(), DeviceAccount::default()],
            },
        ),
        (
            "fault",
            Packet::Fault {
                session: 6,
                code: 700,
                text: "wild store".into(),
                guilt: Guilt::Suspect,
            },
        ),
        ("lost", Packet::Lost { code: 700 }),
        (
            "still",
            Packet::Still {
                device: 1,
                since: Some(0x0304),
                text: "kernel k".into(),
            },
        ),
        (
            "chunk-made",
            Packet::ChunkMade {
                session: 6,
                device: 1,
                base: 0x0304_0000_0000,
                bytes: 2 << 20,
            },
        ),
        (
            "chunk-gone",
            Packet::ChunkGone {
                session: 6,
                device: 1,
                base: 0x0304_0000_0000,
            },
        ),
        (
            "window-made",
            Packet::WindowMade {
                session: 6,
                device: 1,
                base: 0x0304_0000_0000,
                bytes: 4 << 30,
            },
        ),
        (
            "window-gone",
            Packet::WindowGone {
                session: 6,
                base: 0x0304_0000_0000,
            },
        ),
        (
            "taken-over",
            Packet::TakenOver {
                session: 6,
                takeovers: takeovers(),
            },
        ),
        ("hands-over", Packet::HandsOver),
        ("hand-over", Packet::HandOver),
        (
            "stays",
            Packet::Stays {
                text: "a kernel runs".into(),
            },
        ),
        (
            "seek-export",
            Packet::SeekExport {
                question: 0x0506,
                uid: 1000,
                token: [1, 2, 3, u64::MAX],
            },
        ),
        (
            "export-found",
            Packet::ExportFound {
                question: 0x0506,
                object: SharedObject::Block {
                    device: shared_device(),
                    bytes: 3 << 20,
                    offset: 512,
                    pieces: vec![2 << 20, 64 << 20],
                },
            },
        ),
        (
            "export-found-physical",
            Packet::ExportFound {
                question: 0x0506,
                object: SharedObject::Physical {
                    device: shared_device(),
                    bytes: 4 << 20,
                },
            },
        ),
        (
            "export-found-event",
            Packet::ExportFound {
                question: 0x0506,
                object: SharedObject::Event {
                    side: 3,
                    records: 1 << 14,
                },
            },
        ),
        (
            "export-not-found",
            Packet::ExportNotFound { question: 0x0506 },
        ),
        ("former-ended", Packet::FormerEnded { former: 0x0708 }),
        ("terminate", Packet::Terminate { session: 6 }),
        (
            "queued",
            Packet::Queued {
                text: "another user".into(),
            },
        ),
        (
            "remark",
            Packet::Remark {
                text: "no percentage".into(),
            },
        ),
        (
            "group",
            Packet::Group(Group {
                group: 3,
                slot: 4,
                request: 0x0506,
                name: "tenant".into(),
                memory: "0=2G".into(),
                percentage: Some("25".into()),
                reserved: true,
                device: Some(1),
                kernel_time: Some("500ms".into()),
            }),
        ),
        ("group-gone", Packet::GroupGone { group: 3 }),
        (
            "change",
            Packet::Change(Change {
                request: 7,
                session: 8,
                memory: vec![(0, 1 << 30), (1, u64::MAX)],
                percentage: Some("33.3".into()),
                reserved: Some(false),
                priority: Some(1),
                kernel_time: Some(30_000),
            }),
        ),
        (
            "changed",
            Packet::Changed {
                request: 7,
                code: 801,
                text: "not on this device".into(),
                accounts: vec![account()],
            },
        ),
        (
            "hello-view",
            Packet::Hello(Hello {
                version: VERSION,
                fingerprint: 1,
                features: 0,
                purpose: Purpose::View(ViewRequest {
                    all: true,
                    memory_limit: Some("0=1G".into()),
                }),
            }),
        ),
        (
            "view",
            Packet::View {
                last: true,
                view: view(),
            },
        ),
        (
            "underlay",
            Packet::Underlay {
                text: "it does not run".into(),
            },
        ),
        (
            "hello-time-lines",
            Packet::Hello(Hello {
                version: VERSION,
                fingerprint: 1,
                features: 0,
                purpose: Purpose::TimeLines(TimeLineRequest { pid: Some(77) }),
            }),
        ),
        (
            "record",
            Packet::Record {
                time_line: 5,
                session: 6,
            },
        ),
        (
            "recorded-client",
            Packet::RecordedClient(RecordedClient {
                session: 6,
                pid: 77,
                uid: 1000,
                program: "nbody".into(),
            }),
        ),
        (
            "recorded-spans",
            Packet::Recorded {
                session: 6,
                part: RecordedPart::Spans(Box::new([1, 2, 3])),
            },
        ),
        (
            "recorded-told",
            Packet::Recorded {
                session: 6,
                part: RecordedPart::Told(Box::new([4, 5])),
            },
        ),
        (
            "recorded-dropped",
            Packet::Recorded {
                session: 6,
                part: RecordedPart::Dropped { count: 9 },
            },
        ),
        (
            "recorded-over",
            Packet::Recorded {
                session: 6,
                part: RecordedPart::Over {
                    text: "it records itself".into(),
                },
            },
        ),
        (
            "hello-partition",
            Packet::Hello(Hello {
                version: VERSION,
                fingerprint: 1,
                features: 0,
                purpose: Purpose::Client(ClientFields {
                    partition: Some("GPU-1/2".into()),
                    label: Some("night run".into()),
                    job: Some("name solver".into()),
                    isolation: Some("fenced".into()),
                    ..client()
                }),
            }),
        ),
        (
            "admit-member",
            Packet::Admit(Admit {
                member: Membership {
                    group: Some(3),
                    partition: Some(9),
                },
                ..admit()
            }),
        ),
        (
            "ready-chunks",
            Packet::Ready {
                pid: 1,
                devices: vec![ListedDevice {
                    chunk: 8,
                    chunks: 15,
                    capability: [9, 0],
                    ..ListedDevice::default()
                }],
                free: Vec::new(),
            },
        ),
    ]
}

fn view() -> View {
    View {
        driver: "580.1".into(),
        devices: vec![ViewedDevice {
            device: ListedDevice {
                uuid: "GPU-1".into(),
                name: "one".into(),
                pci: [0, 6, 7],
                total_memory: 1 << 34,
                multiprocessors: 132,
                capability: [9, 0],
                ..ListedDevice::default()
            },
            software: true,
            mode: Some(3),
            total: 1 << 30,
            used: 1 << 20,
            free: 1 << 29,
            account: account(),
            still_since: Some(0x0102),
        }],
        processes: vec![ViewedProcess {
            device: 1,
            pid: 77,
            is_asker: true,
            is_server: false,
            used: Some(4096),
            name: "nbody".into(),
            uid: 1000,
            group: Some("tenant".into()),
            limit: 1 << 30,
            account: account(),
            session: 5,
            server: 76,
            label: Some("night run".into()),
            container: Some("c0ffee".into()),
            pod: Some("7f1f".into()),
            takeovers: takeovers(),
        }],
        time: 0x0102_0304_0506,
        faults: vec![FaultCount {
            code: 700,
            guilt: Guilt::Suspect,
            count: 3,
        }],
        takeovers: takeovers(),
    }
}

fn takeovers() -> Takeovers {
    Takeovers {
        count: 1,
        untouched: 2,
        repeated: 3,
        failed: 4,
    }
}

fn account() -> DeviceAccount {
    DeviceAccount {
        memory: 4096,
        kernels: 2,
        kernel_time: 3,
        multiprocessor_time: 4,
        copies: 5,
        copy_time: 6,
        bytes_to_device: 7,
        bytes_from_device: 8,
        bytes_within_device: 9,
        loads: 10,
        load_time: 11,
        waited: 12,
        faults: 13,
        queued: 14,
        throttled: 15,
        code_from_disk: 16,
        code_compiled: 17,
    }
}

#[test]
fn a_view_of_many_processes_goes_in_packets_that_fit() {
    let process = ViewedProcess {
        name: "\u{1f980}".repeat(256),
        group: Some("g".repeat(64)),
        label: Some("l".repeat(128)),
        container: Some("c".repeat(64)),
        pod: Some("p".repeat(36)),
        ..ViewedProcess::default()
    };
    let many = View {
        processes: vec![process; 1000],
        faults: vec![view().faults[0]; 64],
        ..view()
    };
    let packets = view_packets(many.clone());
    let mut joined = View::default();
    for (at, packet) in packets.iter().enumerate() {
        assert!(packet.encode().len() <= PACKET_MAX);
        let Packet::View { last, view } = packet else {
            panic!("{packet:?}");
        };
        assert_eq!(*last, at == packets.len() - 1);
        assert_eq!(view.devices.is_empty(), at > 0, "all devices come first");
        joined.processes.extend(view.processes.iter().cloned());
    }
    assert_eq!(joined.processes, many.processes);
}

#[test]
fn packets_are_the_released_bytes() {
    let mut text = String::new();
    for (name, packet) in packets() {
        let bytes = packet.encode();
        let _ = writeln!(text, "{name} {}", hex(&bytes));
        assert_eq!(Packet::decode(&bytes).as_ref(), Ok(&packet));
        // What a newer minor adds behind is passed over; what ends early is refused.
        let longer = [&bytes[..], &[1, 2, 3]].concat();
        assert_eq!(Packet::decode(&longer).as_ref(), Ok(&packet));
        for end in 0..bytes.len() {
            assert!(
                Packet::decode(&bytes[..end]).is_err(),
                "{name} of {end} bytes"
            );
        }
    }
    compare("packets.txt", &text);
}

/// The table's number moves with the table, and with nothing else.
#[test]
fn the_fingerprint_is_the_released_one() {
    compare("fingerprint.txt", &format!("{:016x}\n", fingerprint()));
}
