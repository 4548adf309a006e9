//! Clients that post without end: what they post costs them, and neither the server nor others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::Packet;
use protocol::operations::*;
use rig::engine::{FAULTING, FakeEngine, INSTANT, KILLING};
use rig::{Rig, TestClient, own_memory, until};
use transport::session::{Chunk, Reply};

/// Records of a flood.
const MANY: u64 = 400_000;

/// Bytes that the server may take for one.
const LITTLE: u64 = 16 << 20;

/// One test at a time: they look at the memory of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client one of whose streams waits for ever.
fn attach_behind_a_gate(rig: &Rig) -> TestClient {
    let client = rig.attach_with_context();
    client.stream(40, STREAM_NON_BLOCKING);
    client.enqueue(40, &HostBarrier { reserved: 0 });
    client
}

fn post<R: Request>(client: &TestClient, request: &R) {
    client.end.post(0, 0, request, &[]).unwrap();
}

/// Has the first bytes of a chunk of staging memory loaded as an image.
fn load_image(client: &TestClient, chunk: &Chunk, image: u64, bytes: u64) -> Reply<ImageLoadReply> {
    let put = ImagePut {
        image,
        total: bytes,
        offset: 0,
        staging: chunk.offset(),
        bytes,
    };
    post(client, &put);
    let load = ImageLoad {
        image,
        staging: chunk.offset(),
        capacity: 1 << 16,
        options: 0,
        device: 0,
    };
    client.end.call(&load, &[]).unwrap()
}

#[test]
fn what_ends_later_ends_once() {
    let _alone = alone();
    let rig = Rig::new(FakeEngine::new());
    let (client, owner) = (attach_behind_a_gate(&rig), rig.attach_with_context());
    let before = own_memory();
    for _ in 0..MANY {
        post(&client, &MemClose { address: 1 << 40 });
        post(&client, &TextureDestroy::default());
    }
    client.round_trip();
    let grown = own_memory().saturating_sub(before);
    assert!(
        grown < LITTLE,
        "{grown} bytes for things that there are not"
    );
    for name in ["mem_close", "texture_destroy"] {
        assert!(rig.log.contain(&format!("{name} failed")), "{name}");
    }

    // What there is can be named once, though it stays for what was posted before.
    let client = attach_behind_a_gate(&rig);
    let texture = TextureCreate::default();
    assert_eq!(client.end.call(&texture, &[]).unwrap().status.0, 0);
    let object = TextureDestroy {
        object: 1,
        ..TextureDestroy::default()
    };
    let block = owner.alloc(1 << 20).unwrap();
    let expose = Expose {
        kind: Exposed::Block as u32,
        object: block,
        bytes: 1 << 20,
    };
    let token = owner.end.call(&expose, &[]).unwrap().fields.token;
    for _ in 0..2 {
        let opened = client.end.call(&MemImport { token }, &[]).unwrap();
        assert_eq!(opened.status, CUresult::SUCCESS);
    }
    let lines = |name: &str| rig.log.count(&format!("{name} failed"));
    let (closes, ends) = (lines("mem_close"), lines("texture_destroy"));
    for _ in 0..3 {
        post(&client, &object);
        post(&client, &MemClose { address: block });
    }
    client.round_trip();
    assert_eq!(lines("texture_destroy"), ends + 2);
    assert_eq!(lines("mem_close"), closes + 1, "opened twice, closed twice");
}

#[test]
fn a_module_is_unloaded_once() {
    let _alone = alone();
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let chunk = client.end.staging().allocate(1 << 16).unwrap();
    chunk.copy_in(0, &[3, 1]);
    assert_eq!(load_image(&client, &chunk, 1, 2).status.0, 0);
    let module = ModuleLoad {
        module: 9,
        image: 1,
        ..ModuleLoad::default()
    };
    let load = || client.end.call(&module, &[]).unwrap().status;
    assert_eq!(load(), CUresult::SUCCESS);
    client.launch_gated(0, 1);
    for _ in 0..3 {
        post(&client, &ModuleUnload { module: 9 });
    }
    client.round_trip();
    assert_eq!(rig.log.count("module_unload failed"), 2);
    assert_ne!(load(), CUresult::SUCCESS, "its number is not free yet");
    rig.engine.open(1);
    until("it is gone", || load() == CUresult::SUCCESS);
}

#[test]
fn images_that_are_refused_fill_no_log() {
    let _alone = alone();
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let chunk = client.end.staging().allocate(1 << 16).unwrap();
    for image in 1..=200 {
        assert_ne!(load_image(&client, &chunk, image, 1).fields.status, 0);
    }
    let lines = rig.log.count("an image was refused");
    assert!((1..=20).contains(&lines), "{lines}");
}

#[test]
fn waits_for_values_go_with_their_records() {
    let _alone = alone();
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    // A stream that is gone.
    client.stream(40, STREAM_NON_BLOCKING);
    let last = client.enqueue(40, &StreamDestroy { reserved: 0 });
    client.end.wait(40, last).unwrap();
    let wait = ValueWait {
        bytes: 4,
        value: 1,
        flags: 1,
        ..ValueWait::default()
    };
    // And one whose gates the client opens itself.
    client.stream(41, STREAM_NON_BLOCKING);
    let release = HostRelease {
        stream: 41,
        until: u64::MAX,
    };
    post(&client, &release);
    let before = own_memory();
    let mut place = 0;
    for _ in 0..MANY {
        client.enqueue(40, &wait);
        place = client.enqueue(41, &wait);
    }
    client.end.wait(41, place).unwrap();
    client.round_trip();
    let grown = own_memory().saturating_sub(before);
    assert!(grown < LITTLE, "{grown} bytes for waits that are over");
    let peeks = rig.engine.peeks();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.engine.peeks(), peeks, "nobody waits for a value");
}

/// Has a context of the client fail, and makes it anew.
fn fail(client: &TestClient, kernel: u32) {
    let place = client.launch(0, kernel, 0);
    client.end.wait(0, place).unwrap();
    post(client, &ContextDestroy { context: 0 });
    client.context(0);
}

#[test]
fn contexts_that_fail_on_and_on_are_told_of_a_few_times() {
    let _alone = alone();
    let mut rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    for _ in 0..MANY / 10 {
        let create = ContextCreate {
            context: 1,
            device: 9999,
            ..ContextCreate::default()
        };
        post(&client, &create);
        post(&client, &ContextDestroy { context: 1 });
    }
    client.round_trip();
    assert_eq!(rig.log.count("fatal GPU error"), 0, "no device was touched");
    for _ in 0..200 {
        fail(&client, FAULTING);
    }
    client.round_trip();
    assert_eq!(rig.log.count("fatal GPU error"), 32);
    assert_eq!(rig.log.count("further faults"), 1);
    let other = rig.attach_with_context();
    let place = other.launch(0, INSTANT, 0);
    other.end.wait(0, place).unwrap();
    // What ends the server is told whoever did it.
    fail(&client, KILLING);
    let mut faults = 0;
    loop {
        match rig.hear() {
            Packet::Fault { .. } => faults += 1,
            Packet::Lost { code } => {
                assert_eq!(code, 700);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(faults, 32);
    drop((client, other));
    rig.server.take().unwrap().join().unwrap();
}

#[test]
fn releases_are_heard_when_no_more_can_be_held() {
    let _alone = alone();
    releases_are_heard(&Rig::new(FakeEngine::new()));
}

#[test]
fn held_records_count_for_what_is_held_for_a_client() {
    let _alone = alone();
    let rig = Rig::holding(FakeEngine::new(), Some(8 << 20));
    let grown = releases_are_heard(&rig);
    assert!(grown < LITTLE, "{grown} bytes, though 4 MiB may be held");
}

/// Posts behind gates until the server reads no further, and says how much it has taken until then. Then
/// opens them.
fn releases_are_heard(rig: &Rig) -> u64 {
    const STREAMS: std::ops::Range<u32> = 40..46;
    const TOTAL: u64 = 6 * (STREAM_DEPTH - 1);
    let client = Arc::new(rig.attach_with_context());
    let memory = own_memory();
    for stream in STREAMS {
        client.stream(stream, STREAM_NON_BLOCKING);
        client.enqueue(stream, &HostBarrier { reserved: 0 });
    }
    let posted = Arc::new(AtomicU64::new(0));
    let poster = {
        let (client, posted) = (client.clone(), posted.clone());
        std::thread::spawn(move || {
            let bytes = [0; 16 << 10];
            for stream in STREAMS {
                for place in 2..=STREAM_DEPTH {
                    let write = Write::default();
                    let sent = client.end.post(stream, place, &write, &[&bytes]);
                    sent.unwrap();
                    posted.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    };
    let mut before = u64::MAX;
    until("the client is held up", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = posted.load(Ordering::SeqCst);
        std::mem::replace(&mut before, now) == now
    });
    assert!(before < TOTAL, "{before} were taken");
    let grown = own_memory().saturating_sub(memory);
    // Nobody waits for the ring: threads of the client's that call do so when the word is written.
    for stream in STREAMS {
        let client = client.clone();
        std::thread::spawn(move || {
            client.end.release_host_barrier(stream, 1);
            post(&client, &HostRelease { stream, until: 1 });
        });
    }
    until("all is posted", || poster.is_finished());
    for stream in STREAMS {
        client.end.wait(stream, STREAM_DEPTH).unwrap();
    }
    grown
}

#[test]
fn images_take_what_may_be_held_for_their_client_and_no_more() {
    let _alone = alone();
    const HELD: u64 = 32 << 20;
    let rig = Rig::holding(FakeEngine::new(), Some(HELD));
    let clients = [rig.attach_with_context(), rig.attach_with_context()];
    let [client, other] = &clients;
    let chunk = client.end.staging().allocate(1 << 20).unwrap();
    let piece = 1 << 20;
    let before = own_memory();
    // Images that are never loaded, of many pieces.
    for image in 1..=12 {
        for part in 0..4 {
            let put = ImagePut {
                image,
                total: 4 * piece,
                offset: part * piece,
                staging: chunk.offset(),
                bytes: piece,
            };
            post(client, &put);
        }
    }
    client.round_trip();
    let grown = own_memory().saturating_sub(before);
    assert!(
        grown < HELD,
        "{grown} bytes of images, of which half may be"
    );
    let load = |client: &TestClient, image| {
        let load = ImageLoad {
            image,
            staging: 0,
            capacity: 0,
            options: 0,
            device: 0,
        };
        client.end.call(&load, &[]).unwrap()
    };
    let refused = load(client, 12);
    assert_eq!(refused.fields.status, CUresult::ERROR_OUT_OF_MEMORY.0);
    assert!(rig.log.contain("OPENMPS_SERVER_MEMORY"), "it says why");
    // Whoever comes beside it has its own part, and so has this one again when it gives up.
    let own = other.end.staging().allocate(1 << 16).unwrap();
    assert_eq!(load_image(other, &own, 1, 2).fields.status, 0);
    for image in 1..=12 {
        post(client, &ImageUnload { image });
    }
    assert_eq!(load_image(client, &chunk, 100, 2).fields.status, 0);
}
