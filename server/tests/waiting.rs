//! What waits, and for what: nobody waits for what does not concern him, and nobody for ever.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use daemon_interface::group_usage::GroupUsage;
use protocol::control_messages::{self, ClientFields, Membership, Packet};
use protocol::operations::*;
use rig::engine::{FakeEngine, INSTANT};
use rig::{Rig, TestClient, until};
use rustix::process::getpid;
use transport::socket::poll;

fn post<R: Request>(client: &TestClient, request: &R) {
    client.end.post(0, 0, request, &[]).unwrap();
}

fn tell_group(rig: &Rig, usage: &GroupUsage, group: u32, percentage: &str) {
    let packet = Packet::Group(control_messages::Group {
        group,
        request: group.into(),
        name: format!("group {group}"),
        percentage: Some(percentage.into()),
        ..control_messages::Group::default()
    });
    let fds = [usage.as_fd()];
    rig.daemon().send(&packet.encode(), &fds).unwrap();
}

/// The number of the next change of which the server tells.
fn hear_changed(rig: &Rig) -> u64 {
    loop {
        if let Packet::Changed { request, code, .. } = rig.hear() {
            assert_eq!(code, 0);
            return request;
        }
    }
}

/// Setting a group may wait for kernels, which may never end.
#[test]
fn a_group_that_waits_holds_up_its_own_clients_alone() {
    let rig = Rig::new(FakeEngine::new());
    let usage = GroupUsage::create("test").unwrap();
    let slow = rig.engine.be_slow();
    tell_group(&rig, &usage, 1, "25");
    let client = rig.attach_with_context();
    client.round_trip();
    // One of the group comes when it is set, and not before.
    *rig.member.lock().unwrap() = Membership {
        group: Some(1),
        partition: None,
    };
    let (_, connection) = rig.hand_over(ClientFields::default(), 7, getpid());
    let ready = poll(&[connection.as_fd()], Some(Duration::from_millis(100))).unwrap();
    assert!(!ready[0], "it came though its group was not there");
    // And one that is to end does, though its group never comes.
    let (session, other) = rig.hand_over(ClientFields::default(), 8, getpid());
    drop(other);
    assert_eq!(rig.ending_of(session), control_messages::Ending::Failed);
    drop(slow);
    assert_eq!(hear_changed(&rig), 1);
    let (bytes, _) = connection.receive().unwrap();
    assert!(matches!(
        Packet::decode(&bytes).unwrap(),
        Packet::Welcome(_)
    ));
    tell_group(&rig, &usage, 2, "50");
    tell_group(&rig, &usage, 1, "75");
    let mut changed = [hear_changed(&rig), hear_changed(&rig)];
    changed.sort_unstable();
    assert_eq!(changed, [1, 2]);
}

/// Whoever is shown a device does not wait for those who use it.
#[test]
fn what_a_busy_session_has_is_told_at_once() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let before = rig.engine.committed();
    client.alloc(1 << 20).unwrap();
    assert!(rig.engine.committed() > before);
    let (is_busy, busy) = std::sync::mpsc::channel();
    let (go_on, hold) = std::sync::mpsc::channel::<()>();
    rig.engine.on_assist(Some(Box::new(move || {
        let _ = is_busy.send(());
        let _ = hold.recv();
        false
    })));
    client.stream(40, STREAM_NON_BLOCKING);
    busy.recv().unwrap();
    let question = Packet::Change(control_messages::Change {
        request: 9,
        session: client.session,
        ..control_messages::Change::default()
    });
    rig.daemon().send(&question.encode(), &[]).unwrap();
    let told = loop {
        if let Packet::Changed {
            request: 9,
            accounts,
            ..
        } = rig.hear()
        {
            break accounts;
        }
    };
    drop(go_on);
    rig.engine.on_assist(None);
    let memory: Vec<u64> = told.iter().map(|account| account.memory).collect();
    assert_eq!(memory, [1 << 20]);
}

/// A wait whose value is there, as everything of the fake engine's memory is 0.
fn wait_for_zero() -> ValueWait {
    ValueWait {
        bytes: 4,
        flags: 1,
        ..ValueWait::default()
    }
}

#[test]
fn values_are_looked_at_though_there_is_no_end_of_the_rest() {
    let rig = Rig::new(FakeEngine::new());
    let client = Arc::new(rig.attach_with_context());
    client.stream(40, STREAM_NON_BLOCKING);
    // There is memory to give back, and always another record just when that is to be done.
    let block = client.alloc(1 << 20).unwrap();
    let other = client.clone();
    rig.engine.on_assist(Some(Box::new(move || {
        let connect = StreamConnect {
            stream: 40,
            connection: 0,
        };
        post(&other, &connect);
        false
    })));
    post(&client, &MemFree { address: block });
    let place = client.enqueue(40, &wait_for_zero());
    client.end.wait(40, place).unwrap();
    // And where the engine always finds something to do.
    rig.engine.on_assist(Some(Box::new(|| true)));
    let place = client.enqueue(40, &wait_for_zero());
    client.end.wait(40, place).unwrap();
    rig.engine.on_assist(None);
}

/// Whoever signals a semaphore is nobody that the server knows.
#[test]
fn a_wait_for_a_semaphore_holds_up_its_own_stream_alone() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let other = rig.attach_with_context();
    for stream in [40, 41] {
        client.stream(stream, STREAM_NON_BLOCKING);
    }
    let wait = SemaphoreWait {
        semaphore: 1,
        value: 3,
    };
    client.enqueue(40, &wait);
    let behind = client.enqueue(40, &Write::default());
    rig.engine.signal(2);
    let beside = client.enqueue(41, &Write::default());
    client.end.wait(41, beside).unwrap();
    other.round_trip();
    assert!(client.end.completed(40) < behind);
    rig.engine.signal(3);
    client.end.wait(40, behind).unwrap();
    // And a client goes whose wait is never over.
    client.enqueue(40, &SemaphoreWait { value: 4, ..wait });
    client.round_trip();
    drop(client);
    until("it has gone", || rig.engine.clients() == 1);
    other.round_trip();
}

#[test]
fn a_semaphore_is_refused_where_the_server_has_other_clients() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    let file = std::fs::File::open("/dev/null").unwrap();
    let sent = client
        .end
        .connection()
        .send(FOREIGN_PACKET, &[file.as_fd()]);
    sent.unwrap();
    let import = SemaphoreImport {
        semaphore: 1,
        context: 0,
        kind: 1,
    };
    let refused = client.end.call(&import, &[]).unwrap();
    assert_eq!(refused.status, CUresult::ERROR_NOT_SUPPORTED);
    assert!(rig.log.contain("--isolation=client"));
    client.round_trip();
}

/// More than a session holds is posted behind waits for a value that comes later still.
#[test]
fn a_value_that_can_never_come_ends_the_context() {
    const STREAMS: std::ops::Range<u32> = 40..46;
    let rig = Rig::new(FakeEngine::new());
    let client = Arc::new(rig.attach_with_context());
    let wait = ValueWait {
        value: 1,
        ..wait_for_zero()
    };
    for stream in STREAMS {
        client.stream(stream, STREAM_NON_BLOCKING);
        client.enqueue(stream, &wait);
    }
    let poster = {
        let client = client.clone();
        std::thread::spawn(move || {
            let bytes = [0; 16 << 10];
            for stream in STREAMS {
                for place in 2..=STREAM_DEPTH {
                    let sent = client.end.post(stream, place, &Write::default(), &[&bytes]);
                    sent.unwrap();
                }
            }
        })
    };
    // What would write the value stands behind all that.
    poster.join().unwrap();
    for stream in STREAMS {
        client.end.wait(stream, STREAM_DEPTH).unwrap();
    }
    assert!(
        rig.log
            .contain("error 702 in context 1, which is dead (guilty): a stream waited")
    );
    assert!(
        rig.engine.gates().len() <= 2 * STREAMS.len(),
        "writes went on all the same"
    );
    // Others know nothing of it, and the client may begin anew.
    post(&client, &ContextDestroy { context: 0 });
    client.context(1);
    let launch = client.launch(1, INSTANT, 0);
    client.end.wait(1, launch).unwrap();
}

fn host_alloc(client: &TestClient, bytes: u64) -> Result<u64, CUresult> {
    let alloc = HostAlloc {
        context: 0,
        bytes,
        ..HostAlloc::default()
    };
    let reply = client.end.call(&alloc, &[]).unwrap();
    match reply.status {
        CUresult::SUCCESS => Ok(reply.fields.address),
        code => Err(code),
    }
}

#[test]
fn all_clients_together_have_no_more_host_memory_than_the_machine() {
    const BYTES: u64 = 4 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let total = total << 10;
    let rig = Rig::new(FakeEngine::with_room(u64::MAX >> 1));
    // What the window of one can hold.
    let each = (32 << 30) / BYTES;
    let mut clients = Vec::new();
    let mut taken = 0;
    'all: loop {
        let client = rig.attach_with_context();
        for _ in 0..each {
            match host_alloc(&client, BYTES) {
                Ok(_) => taken += BYTES,
                Err(code) => {
                    assert_eq!(code, CUresult::ERROR_OUT_OF_MEMORY);
                    clients.push(client);
                    break 'all;
                }
            }
        }
        clients.push(client);
        assert!(taken <= total, "{taken} bytes, and there are {total}");
    }
    assert!(taken <= total && clients.len() < 1000);
    let last = clients.pop().unwrap();
    if clients.is_empty() {
        return;
    }
    // What one leaves others may have.
    drop(clients);
    until("it is free", || host_alloc(&last, BYTES).is_ok());
}

#[test]
fn what_a_client_leaves_that_does_not_end_is_said_and_ends_with_the_server() {
    let mut rig = Rig::new(FakeEngine::new());
    let (client, mut process) = rig.attach_process();
    let other = rig.attach_with_context();
    let pid = process.id();
    let engine = rig.engine.clone();
    let slow = engine.be_slow();
    process.kill().unwrap();
    process.wait().unwrap();
    // It may end yet.
    other.round_trip();
    engine.be_stuck(true);
    loop {
        match rig.hear() {
            Packet::Lost { code } => {
                assert_eq!(CUresult(code), CUresult::ERROR_DEVICE_UNAVAILABLE);
                break;
            }
            Packet::Gone { .. } => panic!("it is not gone"),
            _ => {}
        }
    }
    let says = format!("Client {pid} (sleeper) has gone and left work that does not end: spin");
    assert!(rig.log.contain(&says));
    let advice = format!("shutdown_server {} -f", std::process::id());
    assert_eq!(rig.log.count(&advice), 1);
    // Others go on.
    let launch = other.launch(0, INSTANT, 0);
    other.end.wait(0, launch).unwrap();
    // When they have left, the server ends without it.
    post(&other, &Detach::default());
    drop(other);
    rig.server.take().unwrap().join().unwrap();
    assert!(rig.log.contain("Exiting"));
    drop(slow);
    until("it ends after all", || engine.clients() == 0);
    drop(client);
}

fn load_image(client: &TestClient, image: u64, variables: u8) -> u32 {
    load_image_with(client, image, variables, 0)
}

fn load_image_with(client: &TestClient, image: u64, variables: u8, options: u32) -> u32 {
    let chunk = client.end.staging().allocate(1 << 16).unwrap();
    // As the fake engine has it: so many variables of 1,000 bytes.
    chunk.copy_in(0, &[variables, 1]);
    let put = ImagePut {
        image,
        total: 2,
        offset: 0,
        staging: chunk.offset(),
        bytes: 2,
    };
    post(client, &put);
    let load = ImageLoad {
        image,
        staging: chunk.offset(),
        capacity: 1 << 16,
        options,
        device: 0,
    };
    client.end.call(&load, &[]).unwrap().fields.status
}

fn load_module(client: &TestClient, module: u64, image: u64) -> CUresult {
    let load = ModuleLoad {
        module,
        image,
        ..ModuleLoad::default()
    };
    client.end.call(&load, &[]).unwrap().status
}

/// Variables that the engine keeps count once for an image, for its first module, and then for each.
#[test]
fn variables_count_whoever_keeps_them() {
    const EACH: u64 = (64 << 10) + 100 * 1536;
    let rig = Rig::new(FakeEngine::keeping_variables());
    let client = rig.attach_with_context();
    let all = client.free_memory();
    let taken = |count: u64| {
        until("it is counted", || {
            client.free_memory() == all - count * EACH
        });
        assert_eq!(rig.engine.committed(), 0, "the engine was given memory too");
    };
    assert_eq!(load_image(&client, 1, 100), 0);
    taken(1);
    assert_eq!(load_module(&client, 1, 1), CUresult::SUCCESS);
    taken(1);
    assert_eq!(load_module(&client, 2, 1), CUresult::SUCCESS);
    taken(2);
    post(&client, &ModuleUnload { module: 1 });
    taken(1);
    assert_eq!(load_image(&client, 2, 100), 0);
    taken(2);
    post(&client, &ImageUnload { image: 2 });
    post(&client, &ImageUnload { image: 1 });
    taken(1);
    post(&client, &ContextDestroy { context: 0 });
    taken(0);
    // A part of what will be linked is looked at only.
    assert_eq!(load_image_with(&client, 100, 100, IMAGE_PART), 0);
    taken(0);
    // With no room for them there is no image, and no further module of one.
    client.context(1);
    let most = all - EACH - EACH / 2;
    let block = client.end.call(
        &MemAlloc {
            context: 1,
            bytes: most >> 20 << 20,
        },
        &[],
    );
    assert_eq!(block.unwrap().status, CUresult::SUCCESS);
    assert_eq!(load_image(&client, 3, 100), 0);
    assert_eq!(load_image(&client, 4, 100), 0);
    let full = all - (most >> 20 << 20) - 2 * EACH;
    for image in 5.. {
        let status = CUresult(load_image(&client, image, 100));
        if status != CUresult::SUCCESS {
            assert_eq!(status, CUresult::ERROR_OUT_OF_MEMORY);
            break;
        }
        assert!(image < 5 + full / EACH + 1, "more than there is room for");
    }
    assert!(rig.log.contain("its variables are more than is left"));
    let load = |module, image| {
        let load = ModuleLoad {
            module,
            image,
            context: 1,
            ..ModuleLoad::default()
        };
        client.end.call(&load, &[]).unwrap().status
    };
    assert_eq!(load(10, 3), CUresult::SUCCESS, "that is counted already");
    assert_eq!(load(11, 3), CUresult::ERROR_OUT_OF_MEMORY);
}
