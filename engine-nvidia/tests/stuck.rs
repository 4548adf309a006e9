//! Kernels that do not end, and calls of the driver that would wait for them; and what else one client
//! could do that all would wait for.

mod common;

use std::thread::JoinHandle;
use std::time::Duration;

use common::machine_code::{Section, elf};
use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, bounded, noise, simple_launch};
use engine::{Engine, Share};
use protocol::operations::{Copy, ModuleLoad};

/// A client that goes while a kernel of it spins.
fn leave_spinning(engine: &dyn Engine, controls: &Controls) -> JoinHandle<()> {
    let mut guest = Guest::new(engine);
    let module = guest.module(PTX);
    controls.spin(true);
    guest.launch(0, module, 1, 1, &poke(0, 1));
    // While batches are made it waits.
    until("it spins", || controls.queued() > 0);
    std::thread::spawn(move || drop(guest))
}

#[test]
fn a_kernel_of_a_client_that_has_gone_is_waited_for_for_a_while() {
    let fake = Fake::new(&["VERSION=12040", "GREEN"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut other = Guest::with_share(&engine, Share::of(50.0));
    other.context(0, 0);
    let device = other.commit(0, GRANULE);
    let module = other.module(PTX);
    let going = leave_spinning(&engine, &controls);
    assert_eq!(engine.hung_work(), None, "it may end yet");
    let unavailable = CUresult::ERROR_DEVICE_UNAVAILABLE;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut loader = Guest::new(&engine);
            // One that nobody has.
            loader.image(1, format!("{PTX}\n//").as_bytes())
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!load.is_finished(), "loaded beside a kernel");
        engine.set_grace(Duration::ZERO);
        let (status, _, log) = load.join().expect("an answer");
        assert_eq!(status, unavailable);
        assert!(log.contains("a client that has gone"), "{log}");
    });
    until("it is said what does not end", || {
        let stuck = engine.hung_work().expect("it does not end");
        stuck.contains("poke on device 0 (Fake GPU)")
    });
    assert_eq!(engine.lost(), None, "the device works");
    // What need not wait goes on.
    other.launch(0, module, 1, 1, &poke(device, 5));
    assert_eq!(other.wait(0), Ok(()));
    assert_eq!(other.word(device), 5);
    other.commit(GRANULE, GRANULE);
    other.stream(40);
    let mut late = Guest::with_share(&engine, Share::of(50.0));
    late.context(0, 0);
    // What must fails at once.
    assert_eq!(other.client.set_share(Share::of(10.0)), Err(unavailable));
    let again = ModuleLoad {
        module: 7,
        image: module,
        ..ModuleLoad::default()
    };
    let loaded = other.client.module_load(&again, &[], &mut Vec::new());
    assert_eq!(loaded, Err(unavailable));
    // Should it end after all, everything is as before.
    controls.spin(false);
    going.join().expect("it has gone");
    assert_eq!(engine.hung_work(), None);
    assert!(
        other
            .client
            .module_load(&again, &[], &mut Vec::new())
            .is_ok()
    );
    other
        .client
        .set_share(Share::of(10.0))
        .expect("a smaller part");
    drop((other, late, engine));
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

/// The driver cannot end a kernel: who has one that runs for longer than it may is to be ended, and nobody else.
#[test]
fn a_kernel_that_runs_for_longer_than_it_may_is_told_of() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let (mut guest, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let (module, others) = (guest.module(PTX), other.module(PTX));
    controls.spin(true);
    guest.launch(0, module, 1, 1, &poke(0, 1));
    other.launch(0, others, 1, 1, &poke(0, 1));
    std::thread::sleep(Duration::from_millis(60));
    assert!(guest.observer.overruns().is_empty(), "nothing is limited");
    other
        .observer
        .limit_kernel_time(Some(Duration::from_secs(1000)));
    // From now on, of a kernel that runs already.
    guest
        .observer
        .limit_kernel_time(Some(Duration::from_millis(50)));
    until("it is told", || !guest.observer.overruns().is_empty());
    let told = guest.observer.overruns();
    assert!(told[0].starts_with("kernel poke on device 0 (Fake GPU) has run for 0."));
    assert!(told[0].contains("may run for 50ms"), "{told:?}");
    assert!(guest.observer.faults().is_empty(), "no context is dead");
    controls.spin(false);
    assert_eq!(other.wait(0), Ok(()));
    assert!(other.observer.overruns().is_empty());
}

/// Making a part waits for kernels; those who need none that there is not yet do not.
#[test]
fn who_waits_for_a_part_holds_up_nobody_else() {
    let fake = Fake::new(&["VERSION=12040", "GREEN"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut busy = Guest::with_share(&engine, Share::of(50.0));
    busy.context(0, 0);
    let module = busy.module(PTX);
    controls.spin(true);
    busy.launch(0, module, 1, 1, &poke(0, 1));
    until("it runs", || controls.queued() > 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut guest = Guest::with_share(&engine, Share::of(10.0));
            guest.context(0, 0);
        });
        std::thread::sleep(Duration::from_millis(30));
        let others = scope.spawn(|| {
            for share in [100.0, 50.0] {
                let mut guest = Guest::with_share(&engine, Share::of(share));
                guest.context(0, 0);
            }
        });
        until("others come", || others.is_finished());
        assert!(!waits.is_finished(), "a part was made beside a kernel");
        controls.spin(false);
    });
    assert_eq!(controls.stalls(), 0);
}

const DEEP: &str = ".version 7.8\n.visible .entry deep() {}";

/// Local memory is there for all threads of the device, and stays.
#[test]
fn kernels_that_want_very_much_local_memory_are_refused() {
    for (local, result) in [(400, Ok(())), (4096, Err(CUresult::ERROR_OUT_OF_MEMORY))] {
        let fake = Fake::new(&["VERSION=12040", &format!("LOCAL={local}")]);
        let engine = fake.open().expect("a driver that works");
        let mut guest = Guest::new(&engine);
        let device = guest.commit(0, GRANULE);
        let module = guest.module(DEEP);
        let launch = simple_launch(module, 1, 1);
        let told = guest.launch_result(0, &launch, &poke(device, 1));
        assert_eq!(
            told, result,
            "{local} bytes for each of a million threads, of 4 GiB"
        );
    }
}

/// A launch that needs more local memory than any before waits for kernels, with the context's lock held.
#[test]
fn more_local_memory_is_taken_while_nothing_runs() {
    let fake = Fake::new(&["VERSION=12040", "LOCAL=2000", "TOTAL=(1ull<<40)"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let (mut busy, mut other) = (Guest::new(&engine), Guest::new(&engine));
    let mut third = Guest::new(&engine);
    let (spins, module) = (busy.module(PTX), other.module(DEEP));
    let (device, place) = (other.commit(0, GRANULE), third.commit(0, GRANULE));
    controls.spin(true);
    busy.launch(0, spins, 1, 1, &poke(0, 1));
    std::thread::scope(|scope| {
        let launch = scope.spawn(|| {
            let launch = simple_launch(module, 1, 1);
            other.launch_result(0, &launch, &poke(device, 1))
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!launch.is_finished(), "launched beside a kernel");
        third.write(0, place, &[1]);
        assert_eq!(third.wait(0), Ok(()), "a third goes on");
        controls.spin(false);
        assert_eq!(launch.join().expect("it is told"), Ok(()));
    });
    assert_eq!(busy.wait(0), Ok(()));
    // From then on it is there.
    controls.spin(true);
    busy.launch(0, spins, 1, 1, &poke(0, 1));
    other.launch(0, module, 1, 1, &poke(device, 7));
    assert_eq!(other.wait(0), Ok(()));
    assert_eq!(other.word(device), 7);
    controls.spin(false);
    assert_eq!(busy.wait(0), Ok(()));
    drop((busy, other, third, engine));
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

/// The driver calls the functions that move host memory one after another, whosever they are.
#[test]
fn large_host_copies_are_done_in_pieces() {
    const BYTES: u64 = 4 << 20;
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let host = guest.commit_host();
    let bytes = noise(BYTES, 3);
    guest.set_host(host, &bytes);
    controls.hold(true);
    // In rows that are wider than a piece, and in many short ones.
    for (width, height, depth) in [(BYTES, 1, 1), (BYTES / 2 + 3, 1, 1), (1 << 10, 64, 64)] {
        let pitch = match height {
            1 => 0,
            _ => width,
        };
        let copy = Copy {
            to: host + BYTES,
            to_pitch: pitch,
            to_slice: pitch * height,
            from: host,
            from_pitch: pitch,
            from_slice: pitch * height,
            width,
            height,
            depth,
            ..Copy::default()
        };
        let before = controls.queued();
        guest.copy(0, &copy);
        assert_eq!(
            controls.queued() - before,
            3,
            "two pieces, and what signs them"
        );
    }
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert!(guest.host_bytes(host + BYTES, BYTES) == bytes);
}

/// Of an image with variables there is a module before anybody loads one, for which one of its clients
/// counts until somebody does: then it is the next one's, if it is not large.
#[test]
fn a_module_that_nobody_took_stays_if_it_is_not_large() {
    const LARGE: u64 = (4 << 30) / 128;
    let section = Section {
        name: ".nv.global",
        flags: 3,
        bytes: Err(LARGE),
    };
    let text = ".version 7.8\n.visible .entry poke() {}";
    let large = elf(text, &[section], &[("room", 1, 0, LARGE)]);
    for (code, at_once) in [(PTX.as_bytes(), 2), (&large[..], 1)] {
        let fake = Fake::new(&["VERSION=12040", "DEVICES=2"]);
        let engine = fake.open().expect("a driver that works");
        let controls = Controls::of(&fake);
        let mut guest = Guest::new(&engine);
        guest.context(1, 1);
        assert_eq!(guest.image(1, code).0, CUresult::SUCCESS);
        for (context, modules) in [(1, at_once), (0, 2)] {
            let request = ModuleLoad {
                module: 1 + u64::from(context),
                image: 1,
                context,
                ..ModuleLoad::default()
            };
            let loaded = guest.client.module_load(&request, &[], &mut Vec::new());
            assert!(loaded.is_ok());
            controls.settle(1, modules);
        }
    }
}

/// Ranks of collective operations do: one waits on its device for the other, which loads code on another device
/// before it goes on.
#[test]
fn code_is_loaded_on_one_device_beside_an_endless_kernel_of_another() {
    let fake = Fake::new(&["VERSION=12040", "DEVICES=2"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let (mut waits, mut loads) = (
        Guest::new(&engine),
        Guest::with_share(&engine, Share::default()),
    );
    loads.context(1, 1);
    let module = waits.module(PTX);
    controls.spin(true);
    waits.launch(0, module, 1, 1, &poke(0, 1));
    until("its kernel spins", || controls.queued() > 0);
    // Code that nobody has, and then the code that the other has on its own device.
    bounded("loading on the other device", || {
        loads.module_in(1, DEEP);
        loads.module_in(1, PTX);
    });
    assert!(!waits.is_done(0), "it spins still");
    controls.spin(false);
    assert_eq!(waits.wait(0), Ok(()));
}

/// Nothing is begun any more, and what the driver has had a part of goes on to its end; what a gone client has left does not count.
#[test]
fn devices_come_to_rest_once_what_was_begun_in_part_is_over() {
    let fake = Fake::new(&["VERSION=13000"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guest = Guest::new(&engine);
    let module = guest.module(PTX);
    let word = guest.commit(0, GRANULE);
    let going = leave_spinning(&engine, &controls);
    // So many that no stream may give the driver a whole run at once.
    for stream in 40..280 {
        guest.stream(stream);
    }
    let last = 100;
    for value in 1..=last {
        guest.run_add(7, &simple_launch(module, 1, 1), &poke(word, value));
    }
    controls.hold(true);
    guest.run_launch(40, 7);
    let begun = controls.queued();
    assert!(!engine.rest(), "a run has been begun");
    guest.launch(41, module, 1, 1, &poke(word + 4, 5));
    assert_eq!(controls.queued(), begun, "something was begun");
    controls.hold(false);
    until("nothing of the run is left", || engine.rest());
    assert_eq!(guest.wait(40), Ok(()));
    let launched = controls.launches();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(controls.launches(), launched, "something was begun");
    let left = engine.left_work(Duration::ZERO).expect("it spins");
    assert!(left.contains("poke on device 0 (Fake GPU)"), "{left}");
    engine.end_rest();
    assert_eq!(guest.wait(41), Ok(()));
    assert_ne!(controls.launches(), launched);
    assert_eq!((guest.word(word), guest.word(word + 4)), (last, 5));
    controls.spin(false);
    going.join().expect("it has gone");
}

/// Programs that hang are killed: with what hangs, and with what waits for that. Its thread comes to the client's end all the same, and
/// others hear that they wait in vain.
#[test]
fn who_is_killed_while_it_waits_for_its_own_endless_kernel_is_gone() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let unavailable = CUresult::ERROR_DEVICE_UNAVAILABLE;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let killed = scope.spawn(|| {
            let mut guest = Guest::new(&engine);
            let module = guest.module(PTX);
            controls.spin(true);
            guest.launch(0, module, 1, 1, &poke(0, 1));
            until("it spins", || controls.queued() > 0);
            tell.send(std::sync::Arc::clone(&guest.observer))
                .expect("somebody listens");
            // One that nobody has.
            guest.image(99, format!("{PTX}\n//").as_bytes()).0
        });
        let observer = told.recv().expect("it is there");
        std::thread::sleep(Duration::from_millis(30));
        assert!(!killed.is_finished(), "loaded beside a kernel");
        observer.end();
        until("somebody has left a kernel", || {
            engine.left_work(Duration::ZERO).is_some()
        });
        engine.set_grace(Duration::ZERO);
        let loads = scope.spawn(|| {
            let mut loader = Guest::new(&engine);
            loader.image(1, format!("{PTX}\n// another").as_bytes()).0
        });
        assert_eq!(loads.join().expect("an answer"), unavailable);
        until("it is said what does not end", || {
            let stuck = engine.hung_work().expect("it does not end");
            stuck.contains("poke on device 0 (Fake GPU)")
        });
        controls.spin(false);
        assert_eq!(killed.join().expect("it has gone"), unavailable);
    });
    assert_eq!(engine.hung_work(), None);
}

/// Somebody else loads the same, and waits for a kernel that runs for long.
#[test]
fn who_is_killed_while_another_loads_the_same_code_waits_no_longer() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut busy = Guest::new(&engine);
    let module = busy.module(PTX);
    controls.spin(true);
    busy.launch(0, module, 1, 1, &poke(0, 1));
    until("it spins", || controls.queued() > 0);
    let (tell, told) = std::sync::mpsc::channel();
    let load = |tell: std::sync::mpsc::Sender<_>| {
        let mut guest = Guest::new(&engine);
        tell.send(std::sync::Arc::clone(&guest.observer))
            .expect("somebody listens");
        // One that nobody has.
        guest.image(1, format!("{PTX}\n//").as_bytes()).0
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| load(tell.clone()));
        drop(told.recv().expect("it is there"));
        std::thread::sleep(Duration::from_millis(50));
        let killed = scope.spawn(|| load(tell.clone()));
        let observer = told.recv().expect("it is there");
        std::thread::sleep(Duration::from_millis(50));
        assert!(!killed.is_finished(), "loaded beside a kernel");
        observer.end();
        let (result, unavailable) = (killed.join(), CUresult::ERROR_DEVICE_UNAVAILABLE);
        assert_eq!(result.expect("it has gone"), unavailable);
        assert!(!first.is_finished(), "loaded beside a kernel");
        controls.spin(false);
        assert_eq!(first.join().expect("an answer"), CUresult::SUCCESS);
    });
    assert_eq!(busy.wait(0), Ok(()));
}
