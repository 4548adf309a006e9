//! The engine over the fake driver: the cases of the conformance suite that need no kernels, and what
//! only a driver that can be held and killed shows.

mod common;

use std::time::Duration;

use common::{Controls, Fake, PTX, poke};
use cuda_abi::CUresult;
use cuda_abi::types::{
    CUfunction_attribute, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode,
    CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, PATIENCE, noise, simple_launch};
use engine::conformance::{copies, memory, streams};
use engine::{Engine, Window};
use protocol::device_facts::DeviceFacts;
use protocol::operations::{
    CONTEXT_GREEN, ClusterOccupancy, ContextCreate, Copy, FunctionSet, Launch, ModuleUnload,
    OUTPUT_NONE, OUTPUT_STDOUT, OutputTake, TensorMapEncode, TensorMapReplace,
};
use protocol::tensor_maps::{Shape, Spec};

fn fake() -> Fake {
    Fake::new(&["VERSION=12040"])
}

macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {$($(
        #[test]
        fn $case() {
            let fake = fake();
            $module::$case(&fake.open().unwrap());
            assert_eq!(Controls::of(&fake).counts(), [0; 5], "something is left");
        }
    )*)*};
}

cases! {
    memory: committed_memory_is_zeroed_again lent_memory_keeps_what_is_in_it windows_come_and_go a_shared_block_outlives_its_owner
        exported_memory_is_reached_in_part
        physical_memory_is_seen_wherever_it_is_mapped clients_cannot_reach_each_other
        looks_into_memory_are_checked what_is_not_committed_is_refused ranges_that_make_no_sense_are_refused;
    copies: rows_of_every_size_in_every_direction planes_with_pitches large_copies_and_fills
        fills_of_every_element writes_from_the_record extents_that_overflow_are_refused
        misplaced_sides_are_refused nothing_to_copy_is_no_error;
    streams: operations_keep_their_order events_keep_time destroyed_streams_take_nothing
        slots_can_be_used_again unknown_handles_are_refused
        a_destroyed_context_reports_all_that_it_had;
}

#[test]
fn posting_never_waits_for_the_gpu() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    guest.write(0, device, &[0; 4]);
    assert_eq!(guest.wait(0), Ok(()));
    controls.hold(true);
    guest.stream(40);
    let writes = 1024_u32;
    for value in 1..=writes {
        guest.write(40, device, &value.to_le_bytes());
    }
    // Memory can be had and given back, streams made and ended.
    guest.commit(64 * GRANULE, GRANULE);
    guest.client.decommit(Window {
        base: device + 64 * GRANULE,
        bytes: GRANULE,
    });
    guest.stream(41);
    guest.destroy(41);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!guest.is_done(40) && guest.observer.completed(40).is_empty());
    controls.hold(false);
    assert_eq!(guest.wait(40), Ok(()));
    assert_eq!(guest.wait(41), Ok(()));
    let expected: Vec<_> = (1..=u64::from(writes)).map(|at| (at, Ok(()))).collect();
    assert_eq!(guest.observer.completed(40), expected);
    assert_eq!(guest.word(device), writes);
}

#[test]
fn a_stream_takes_only_so_much() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    controls.hold(true);
    let request = protocol::operations::Write { to: device };
    let mut taken = 0;
    let refused = loop {
        let at = guest.at(0);
        let result = guest.client.write(at, &request, &[1]);
        match guest.taken(at, result) {
            Ok(()) => taken += 1,
            Err(code) => break code,
        }
    };
    assert_eq!(refused, CUresult::ERROR_INVALID_VALUE);
    assert!((1024..=2048).contains(&taken), "{taken}");
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
}

#[test]
fn memory_is_not_given_back_while_it_is_cleared() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    controls.hold(true);
    let base = guest.commit(0, GRANULE);
    let taken = controls.counts()[4];
    assert!(taken > 0);
    guest.client.decommit(Window {
        base,
        bytes: GRANULE,
    });
    guest.client.assist();
    assert_eq!(controls.counts()[4], taken);
    controls.hold(false);
    guest.client.assist();
    assert_eq!(controls.counts()[4], 0);
}

#[test]
fn what_was_cleared_when_it_was_shared_is_exported_while_more_is_cleared() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut owner = Guest::new(&engine);
    let base = owner.commit(0, GRANULE);
    owner.upload(base, &noise(GRANULE, 1));
    let bytes = GRANULE;
    let before = owner.client.share(Window { base, bytes }).unwrap();
    controls.hold(true);
    let base = owner.commit(8 * GRANULE, GRANULE);
    let late = owner.client.share(Window { base, bytes }).unwrap();
    let now = Duration::ZERO;
    assert!(engine.export_memory(&before, now).is_ok());
    let not_ready = engine.export_memory(&late, now).unwrap_err();
    assert_eq!(not_ready, CUresult::ERROR_NOT_READY);
    controls.hold(false);
    assert!(engine.export_memory(&late, PATIENCE).is_ok());
}

#[test]
fn memory_is_not_given_back_while_it_is_looked_at() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let base = guest.commit(0, GRANULE);
    guest.upload(base, &7_u32.to_le_bytes());
    let (module, variables) = guest.module_in(0, PTX);
    controls.hold(true);
    let not_ready = Err(CUresult::ERROR_NOT_READY);
    assert_eq!(guest.client.peek(base, 4), not_ready);
    assert_eq!(guest.client.peek(variables[0], 4), not_ready);
    guest.client.decommit(Window {
        base,
        bytes: GRANULE,
    });
    let unload = ModuleUnload { module };
    assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    guest.client.assist();
    let counts = controls.counts();
    assert!(counts[4] > 0 && counts[1] == 1, "{counts:?}");
    assert_eq!(
        guest.client.peek(base, 4),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    controls.hold(false);
    guest.client.assist();
    controls.settle(4, 0);
    controls.settle(1, 0);
}

#[test]
fn devices_reach_each_other_when_they_must() {
    let fake = Fake::new(&["VERSION=12040", "DEVICES=2"]);
    let engine = fake.open().unwrap();
    assert!(engine.devices().iter().all(DeviceFacts::reaches_peers));
    let mut guest = Guest::new(&engine);
    guest.context(1, 1);
    let mine = guest.commit(0, GRANULE);
    let theirs = guest.windows[1];
    let range = |at, bytes| Window {
        base: theirs.base + at,
        bytes,
    };
    guest.client.commit(range(0, GRANULE)).unwrap();
    guest.upload(mine, b"over there");
    // A copy lets its stream's device reach the other's memory, as it is and as it comes to be.
    let to = |to| Copy {
        to,
        from: mine,
        width: 10,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.copy(0, &to(theirs.base));
    assert_eq!(guest.wait(0), Ok(()));
    guest.client.commit(range(4 << 20, GRANULE)).unwrap();
    guest.copy(0, &to(theirs.base + (4 << 20)));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.download(theirs.base, 10), b"over there");
    // What the program mapped is reached by whom the program says.
    let unit = 2 << 20;
    let memory = guest.client.physical_create(1, unit).unwrap();
    let at = range(1 << 30, unit);
    guest.client.physical_map(at, &memory, 0).unwrap();
    guest.client.physical_access(at, 1, true).unwrap();
    guest.copy(0, &to(at.base));
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
    guest.client.physical_access(at, 0, true).unwrap();
    guest.copy(0, &to(at.base));
    assert_eq!(guest.wait(0), Ok(()));
    // What another process made is reached as the client's own, by who reaches that already and by who comes to.
    let mut other = Guest::new(&engine);
    other.context(1, 1);
    let shared = Window {
        base: other.windows[1].base,
        bytes: GRANULE,
    };
    other.client.commit(shared).unwrap();
    let handle = other.client.share(shared).unwrap();
    let exported = engine.export_memory(&handle, PATIENCE).unwrap();
    let mut late = Guest::new(&engine);
    late.context(1, 1);
    for guest in [&mut guest, &mut late] {
        let piece = &exported.pieces[0];
        let memory = guest.client.foreign_import(1, piece).unwrap();
        let at = Window {
            base: guest.windows[1].base + (2 << 30),
            bytes: piece.bytes,
        };
        let part = Window {
            bytes: GRANULE,
            ..at
        };
        guest.client.foreign_map(at, &memory, part).unwrap();
        let from = guest.windows[0].base + GRANULE;
        let range = Window {
            base: from,
            bytes: GRANULE,
        };
        guest.client.commit(range).unwrap();
        guest.upload(from, b"from there");
        let copy = Copy {
            from,
            ..to(at.base)
        };
        guest.copy(0, &copy);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.download(at.base, 10), b"from there");
    }
    assert_eq!(guest.client.peer_access(0, 1, true), Ok(()));
    assert_eq!(guest.client.peer_access(0, 1, false), Ok(()));
    for wrong in [0, 2] {
        let refused = guest.client.peer_access(0, wrong, true);
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_DEVICE));
    }
}

#[test]
fn chunks_follow_what_is_committed() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let range = |guest: &Guest, at: u64, bytes: u64| Window {
        base: guest.windows[0].base + at,
        bytes,
    };
    // Granules of one piece of physical memory share it.
    for index in 0..32 {
        guest.commit(index * GRANULE, GRANULE);
    }
    assert_eq!(controls.counts()[4], 2 << 20);
    // A range over memory that is there, and some that is not.
    let data = noise(GRANULE, 1);
    guest.upload(guest.windows[0].base, &data);
    guest
        .client
        .commit(range(&guest, GRANULE, 5 << 20))
        .unwrap();
    assert_eq!(guest.download(guest.windows[0].base, GRANULE), data);
    for (at, bytes) in [(GRANULE, 5 << 20), (0, GRANULE)] {
        assert!(controls.counts()[4] > 0);
        guest.client.decommit(range(&guest, at, bytes));
    }
    assert_eq!(controls.counts()[4], 0);
    // More than there is changes nothing.
    let all = range(&guest, 0, 8 << 30);
    assert_eq!(guest.client.commit(all), Err(CUresult::ERROR_OUT_OF_MEMORY));
    assert_eq!(controls.counts()[4], 0);
    assert_eq!(guest.client.free_memory(0), 1 << 32);
}

#[test]
fn modules_launches_and_variables() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    let (status, descriptor, _) = guest.image(100, PTX.as_bytes());
    assert_eq!(status, CUresult::SUCCESS);
    assert_eq!(descriptor.kernels[0].name, "poke");
    assert_eq!(descriptor.kernels[0].params, [(0, 8), (8, 4)]);
    assert_eq!(
        (
            &descriptor.variables[0].name[..],
            descriptor.variables[0].bytes
        ),
        ("room", 64)
    );
    let (module, addresses) = guest.module_in(0, PTX);
    assert_eq!(
        controls.counts()[1],
        1,
        "the module that described the image is used"
    );
    let (second, others) = guest.module_in(0, PTX);
    assert_ne!(addresses, others);
    guest.launch(0, module, 1, 1, &poke(device + 4, 77));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device + 4), 77);
    // Variables are the client's memory, to their last byte.
    let data = noise(64, 2);
    guest.upload(addresses[0], &data);
    assert_eq!(guest.download(addresses[0], 64), data);
    guest.write(0, addresses[0] + 60, &[0; 8]);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
    // The wrong size of the block, unknown handles, and what this driver has not.
    let good = simple_launch(module, 1, 1);
    for wrong in [0, 11, 13] {
        let result = guest.launch_result(0, &good, &vec![0; wrong]);
        assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE));
    }
    let kernel = Launch { kernel: 1, ..good };
    let handle = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(guest.launch_result(0, &kernel, &poke(device, 1)), handle);
    // How clusters fit is the driver's answer.
    let mut cluster = [0; 72];
    (cluster[0], cluster[8]) = (4, 2);
    let shape = ClusterOccupancy {
        module,
        grid: [64, 1, 1],
        block: [32, 1, 1],
        attributes: 1,
        ..ClusterOccupancy::default()
    };
    let largest = ClusterOccupancy {
        largest: 1,
        ..shape
    };
    let none = ClusterOccupancy { kernel: 1, ..shape };
    let mut ask = |request: &ClusterOccupancy, data: &[u8]| {
        let reply = guest
            .client
            .cluster_occupancy(request, data, &mut Vec::new());
        reply.map(|reply| reply.count)
    };
    assert_eq!(ask(&shape, &cluster), Ok(62));
    assert_eq!(ask(&largest, &cluster), Ok(16));
    assert_eq!(ask(&none, &cluster), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(
        ask(&shape, &cluster[1..]),
        Err(CUresult::ERROR_INVALID_VALUE)
    );
    let cooperative = Launch { flags: 1, ..good };
    let missing = guest.launch_result(0, &cooperative, &poke(device, 1));
    assert_eq!(missing, Err(CUresult::ERROR_NOT_SUPPORTED));
    let set = FunctionSet {
        module,
        ..FunctionSet::default()
    };
    assert_eq!(
        guest.client.function_set(&set, &[]),
        Err(CUresult::ERROR_NOT_SUPPORTED)
    );
    // A module that is unloaded under its kernels goes when they are done.
    controls.hold(true);
    guest.launch(0, second, 1, 1, &poke(device, 5));
    let unload = ModuleUnload { module: second };
    assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    assert_eq!(controls.counts()[1], 2);
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device), 5);
    controls.settle(1, 1);
    let wrong = guest.image(101, b".version 7.8\nnothing");
    assert_eq!(
        (wrong.0, &wrong.2[..]),
        (CUresult::ERROR_INVALID_PTX, "no kernel in line 1")
    );
}

#[test]
fn managed_variables_are_in_memory_that_the_client_has() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let mut guest = Guest::new(&engine);
    let ptx = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .b8 room[64];\n\
        .global .attribute(.managed) .align 1024 .b8 counter[600] = {7, 8};\n\
        .visible .entry poke() { .reg .b64 %rd1; mov.b64 %rd1, counter; ret; }";
    let (_, descriptor, _) = guest.image(100, ptx.as_bytes());
    let managed = &descriptor.variables[1];
    assert_eq!(
        (&managed.name[..], managed.bytes, managed.align),
        ("counter", 600, 1024)
    );
    assert!(managed.managed && !descriptor.variables[0].managed);
    let host = guest.commit_host();
    guest.set_host(host, &[0xff; 8192]);
    let (_, first) = guest.module_in(0, ptx);
    let (_, second) = guest.module_in(0, ptx);
    let mut value = vec![0; 600];
    value[..2].copy_from_slice(&[7, 8]);
    for addresses in [&first, &second] {
        let at = addresses[1];
        assert!(at.is_multiple_of(1024) && guest.host.contains(at, 600));
        assert_eq!(guest.host_bytes(at, 600), value);
        assert_eq!(guest.download(at, 600), value);
        // The driver's text has its address in a variable, which this driver has there.
        let pointer = guest.download(addresses[0] + 48, 8);
        assert_eq!(pointer, at.to_le_bytes());
    }
    assert!(first[1].abs_diff(second[1]) >= 600);
}

#[test]
fn references_are_variables_that_the_client_finds() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let mut guest = Guest::new(&engine);
    let ptx = ".version 7.8\n.target sm_75\n.address_size 64\n.global .texref picture;\n\
        .visible .global .surfref target;\n.visible .global .b8 room[64];\n\
        .visible .entry poke() { .reg .b32 %r1; txq.width.b32 %r1, [picture]; suq.width.b32 %r1, [target]; ret; }";
    let (status, descriptor, log) = guest.image(100, ptx.as_bytes());
    assert_eq!(status, CUresult::SUCCESS, "{log}");
    let variables = descriptor.variables.iter();
    let found: Vec<_> = variables.map(|it| (&it.name[..], it.bytes)).collect();
    assert_eq!(
        found,
        [("picture$texture", 8), ("target$surface", 8), ("room", 64)]
    );
    // Each module has its own.
    let (_, first) = guest.module_in(0, ptx);
    let (_, second) = guest.module_in(0, ptx);
    guest.upload(first[0], &7_u64.to_le_bytes());
    assert_eq!(guest.download(first[0], 8), 7_u64.to_le_bytes());
    assert_eq!(guest.download(second[0], 8), [0; 8]);
}

#[test]
fn a_client_that_goes_waits_for_its_own_work() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, 4 << 20);
    let host = guest.commit_host();
    let module = guest.module(PTX);
    controls.hold(true);
    for _ in 0..100 {
        guest.launch(0, module, 1, 1, &poke(device, 1));
        guest.write(0, host, &[1, 2, 3]);
    }
    let told = std::thread::scope(|scope| {
        let end = scope.spawn(|| guest.end());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!end.is_finished());
        controls.hold(false);
        end.join().unwrap()
    });
    assert!(told.completed(0).is_empty(), "nobody is there to be told");
    drop(engine);
    assert_eq!(controls.counts(), [0; 5]);
}

#[test]
fn what_waits_for_kernels_is_done_when_there_are_none() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let (mut busy, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let device = busy.commit(0, GRANULE);
    let module = busy.module(PTX);
    let (host, second) = (other.commit_host(), other.module(PTX));
    other.write(0, host, &[1]);
    assert_eq!(other.wait(0), Ok(()));
    controls.hold(true);
    busy.launch(0, module, 1, 1, &poke(device, 1));
    let unload = ModuleUnload { module: second };
    assert_eq!(other.client.module_unload(&unload, &[]), Ok(()));
    let pinned = other.host;
    other.client.decommit(pinned);
    // Memory that is used again before it could be unpinned stays pinned.
    other.client.commit(pinned).unwrap();
    other.client.decommit(pinned);
    assert_eq!(controls.counts()[2], 1);
    let told = std::thread::scope(|scope| {
        let load = scope.spawn(|| other.module(PTX));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!load.is_finished(), "a module was loaded beside a kernel");
        // Who loads keeps nobody from launching for long.
        busy.stream(40);
        busy.write(40, device, &[0]);
        controls.hold(false);
        load.join().unwrap();
        busy.wait(40)
    });
    assert_eq!(told, Ok(()));
    controls.settle(2, 0);
    drop((busy, other));
    drop(engine);
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

/// Code without variables is one module for all, which a newcomer gets beside running kernels.
#[test]
fn clients_share_modules_that_hold_nothing() {
    const PLAIN: &str = ".version 7.8\n.visible .entry poke() {}";
    let fake = Fake::new(&["VERSION=12040", "FUNC_SET_ATTRIBUTE"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let (mut busy, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let device = other.commit(0, GRANULE);
    let own = busy.commit(0, GRANULE);
    let module = busy.module(PLAIN);
    controls.hold(true);
    busy.launch(0, module, 1, 1, &poke(own, 1));
    let second = other.module(PLAIN);
    assert_eq!((controls.counts()[1], controls.stalls()), (1, 0));
    controls.hold(false);
    assert_eq!(busy.wait(0), Ok(()));
    // What one client sets is no other's.
    let most_shared = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES.0;
    let carveout = CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT.0;
    let set = |guest: &mut Guest, module, attribute, value| {
        let request = FunctionSet {
            module,
            kernel: 0,
            attribute,
            value,
        };
        assert_eq!(guest.client.function_set(&request, &[]), Ok(()));
        let last = controls.attribute(attribute);
        (controls.counts()[1], last)
    };
    assert_eq!(set(&mut busy, module, most_shared, 70_000), (1, 70_000));
    assert_eq!(set(&mut other, second, most_shared, 1000), (1, 70_000));
    assert_eq!(set(&mut other, second, carveout, 50), (2, 50));
    assert_eq!(controls.attribute(most_shared), 1000);
    other.launch(0, second, 1, 1, &poke(device, 5));
    assert_eq!(other.wait(0), Ok(()));
    assert_eq!(other.word(device), 5);
}

#[test]
fn what_kernels_print_goes_to_their_client() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    let ptx = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .b8 room[64];\n\
        .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
        .visible .entry poke() { ret; }";
    let (module, addresses) = guest.module_in(0, ptx);
    let before = controls.counts()[2];
    let (other, others) = guest.module_in(0, ptx);
    assert_eq!(
        controls.counts()[2],
        before + 1,
        "each module has its own ring"
    );
    let ring_of = |guest: &mut Guest, room: u64| {
        // Where this driver has the variable with the ring's address.
        let bytes = guest.download(room + 48, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    let ring = ring_of(&mut guest, addresses[0]);
    assert_ne!(ring, ring_of(&mut guest, others[0]));
    let take = |guest: &mut Guest| {
        let mut text = Vec::new();
        let request = OutputTake { reserved: 0 };
        let reply = guest.client.output_take(&request, &[], &mut text).unwrap();
        (reply.sink, String::from_utf8(text).unwrap())
    };
    // As a kernel of the module does it while it runs.
    controls.hold(true);
    guest.launch(0, module, 1, 1, &poke(device, 1));
    // SAFETY: the ring is memory of this process; its first record is ours to write.
    unsafe {
        let record = (ring as *mut u64).add(8);
        record.add(1).write_volatile(5);
        record
            .add(2)
            .write_volatile(u64::from_le_bytes(*b"text\n\0\0\0"));
        record.add(3).write_volatile(0);
        record.write_volatile(2 << 56 | 32);
    }
    while take(&mut guest) != (OUTPUT_STDOUT, "text\n".into()) {
        guest.client.assist();
    }
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(take(&mut guest), (OUTPUT_NONE, String::new()));
    for module in [module, other] {
        let unload = ModuleUnload { module };
        assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    }
}

/// A tensor of two dimensions and more.
fn tensor(shape: Shape) -> Spec {
    Spec {
        data_type: CUtensorMapDataType::FLOAT16,
        rank: 4,
        address: 0x7000_0000,
        dims: [8, 9, 10, 11, 0],
        strides: [16, 160, 1600, 0],
        shape,
        element_strides: [1, 1, 1, 2, 0],
        interleave: CUtensorMapInterleave::NONE,
        swizzle: CUtensorMapSwizzle::B32,
        l2_promotion: CUtensorMapL2promotion::L2_256B,
        oob_fill: CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA,
    }
}

#[test]
fn the_driver_makes_tensor_maps() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let mut guest = Guest::new(&engine);
    let mut encode = |device: u32, spec: &Spec| {
        let mut reply = Vec::new();
        let request = TensorMapEncode { device };
        let made = guest
            .client
            .tensor_map_encode(&request, &spec.encode(), &mut reply);
        made.map(|_| reply)
    };
    let words = |map: &[u8]| -> Vec<u64> {
        map.chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    let rest = 1 << 8 | 3 << 4 | 1;
    let columns = 8 << 32 | 64 << 16 | rest;
    let corners = |lower: i64, upper: i64| u64::from((lower * 1000 + upper) as u32);
    let mut map = Vec::new();
    for (shape, kind, side, rest) in [
        (Shape::Tiled([8, 2, 3, 4, 0]), 0, 4, rest),
        (
            Shape::Im2col {
                lower: [0, -2, 0],
                upper: [0, 5, 0],
                channels: 8,
                pixels: 64,
            },
            1,
            corners(-2, 5),
            columns,
        ),
        (
            Shape::Im2colWide {
                lower: -7,
                upper: 9,
                channels: 8,
                pixels: 64,
                mode: CUtensorMapIm2ColWideMode::W128,
            },
            3,
            corners(-7, 9),
            columns,
        ),
    ] {
        map = encode(0, &tensor(shape)).unwrap();
        let mut found = words(&map);
        found[6] &= u64::from(u32::MAX);
        let expected = [kind, 0x7000_0000, 6, 4, 11, 1600, side, 2, rest];
        assert_eq!(found[..9], expected, "{shape:?}");
        assert_eq!(found[9..], [0; 7]);
    }
    let spec = tensor(Shape::Tiled([1, 2, 3, 4, 0]));
    let doubles = Spec {
        data_type: CUtensorMapDataType::FLOAT64,
        shape: Shape::Tiled([2, 2, 3, 4, 0]),
        ..spec
    };
    assert_eq!(doubles.check(), Ok(()));
    let refused = encode(0, &doubles);
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE), "by the driver");
    let refused = encode(9, &tensor(Shape::Tiled([8, 2, 3, 4, 0])));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_DEVICE));
    let mut replace = |map: &[u8]| {
        let mut reply = Vec::new();
        let request = TensorMapReplace {
            device: 0,
            address: 0x40,
        };
        let made = guest.client.tensor_map_replace(&request, map, &mut reply);
        made.map(|_| reply)
    };
    let moved = words(&replace(&map).unwrap());
    assert_eq!((moved[1], &moved[2..]), (0x40, &words(&map)[2..]));
    for wrong in [&map[1..], &[&map[..], &[0]].concat(), &[0xff; 128]] {
        assert_eq!(replace(wrong), Err(CUresult::ERROR_INVALID_VALUE));
    }
}

#[test]
fn a_green_context_runs_its_homes_kernels() {
    let fake = Fake::new(&["VERSION=12040", "GREEN"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let module = guest.module(PTX);
    let word = guest.commit(0, GRANULE);
    for (context, stream, flags) in [(8, 40, CONTEXT_GREEN), (9, 41, 0)] {
        let request = ContextCreate {
            context,
            device: 0,
            flags,
            share: 250_000,
        };
        guest.client.context_create(&request, &[]).unwrap();
        guest.stream_in(stream, context).unwrap();
    }
    guest.launch(40, module, 1, 1, &poke(word, 7));
    assert_eq!(guest.wait(40), Ok(()));
    assert_eq!(guest.word(word), 7);
    assert_ne!(controls.part(), 0, "in all of the device");
    let one = simple_launch(module, 1, 1);
    let refused = guest.launch_result(41, &one, &poke(word, 8));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    guest.launch(0, module, 1, 1, &poke(word, 9));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!((guest.word(word), controls.part()), (9, 0));
}
