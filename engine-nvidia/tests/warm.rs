//! Code that was seen before: who comes with it beside a kernel that does not end has it without a load, and as new.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::machine_code::{Section, elf, word_of};
use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use cuda_abi::types::CUfunction_attribute;
use engine::Engine;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, bounded};
use engine_nvidia::NvidiaEngine;
use protocol::operations::{FunctionSet, ImageUnload, ModuleLoad, ModuleUnload};

const TEXT: &str = ".version 7.8\n.visible .entry poke() {}";
const WRITTEN: u64 = 3;

/// Machine code with a variable of each kind, and a gap between two that aligns the second.
fn machine_code(number: u32) -> Vec<u8> {
    let global = |name, bytes| Section {
        name,
        flags: WRITTEN,
        bytes,
    };
    elf(
        &format!("{TEXT}\n// {number}"),
        &[
            global(
                ".nv.global.init",
                Ok(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
            ),
            global(".nv.global", Err(4)),
            Section {
                name: ".nv.constant3",
                flags: 2,
                bytes: Ok(&[3, 0, 0, 0]),
            },
        ],
        &[
            ("first", 1, 0, 4),
            ("second", 1, 8, 8),
            ("zeroes", 2, 0, 4),
            ("constant", 3, 0, 4),
        ],
    )
}

/// Loads a module of an image; the addresses of its variables.
fn load(guest: &mut Guest, number: u64, bytes: &[u8]) -> Vec<u64> {
    let (status, _, log) = guest.image(number, bytes);
    assert_eq!(status, CUresult::SUCCESS, "{log}");
    let request = ModuleLoad {
        module: number,
        image: number,
        ..ModuleLoad::default()
    };
    let mut reply = Vec::new();
    let loaded = guest.client.module_load(&request, &[], &mut reply);
    loaded.expect("a module");
    let addresses = reply.as_chunks().0.iter();
    addresses
        .map(|&address| u64::from_le_bytes(address))
        .collect()
}

fn unload(guest: &mut Guest, number: u64) {
    let (module, image) = (
        ModuleUnload { module: number },
        ImageUnload { image: number },
    );
    let unloaded = guest.client.module_unload(&module, &[]);
    unloaded.expect("it is there");
    let unloaded = guest.client.image_unload(&image, &[]);
    unloaded.expect("it is there");
}

/// A client whose kernel does not end until the fake is told so.
fn busy(engine: &dyn Engine, controls: &Controls) -> Guest {
    let mut busy = Guest::new(engine);
    let module = busy.module(PTX);
    controls.spin(true);
    busy.launch(0, module, 1, 1, &poke(0, 1));
    until("it spins", || controls.queued() > 0);
    busy
}

/// Writes to a word of a module, and waits for it.
fn set(guest: &mut Guest, module: u64, address: u64) {
    guest.launch(0, module, 1, 1, &poke(address, 0xdead_beef));
    assert_eq!(guest.wait(0), Ok(()));
}

#[test]
fn the_next_client_has_a_module_as_new_beside_a_kernel_that_does_not_end() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut first = Guest::new(&engine);
    let places = load(&mut first, 1, &machine_code(0));
    let [one, two, zeroes, constant] = places[..] else {
        panic!("four that are found, not {places:x?}");
    };
    let all = [one, two, two + 4, zeroes, constant];
    for address in all {
        set(&mut first, 1, address);
    }
    assert_eq!(all.map(word_of), [0xdead_beef; 5]);
    let neighbour = busy(&engine, &controls);
    let before = (controls.loads(), controls.counts()[1]);
    for _ in 0..3 {
        drop(first);
        first = bounded("a client comes beside a kernel", || {
            let mut next = Guest::new(&engine);
            let again = load(&mut next, 1, &machine_code(0));
            assert_eq!(again, places, "the same module");
            let words = [one, two, zeroes, constant].map(|address| next.word(address));
            assert_eq!(words, [1, 2, 0, 3]);
            assert_eq!(all.map(word_of), [1, 2, 0, 0, 3]);
            for address in all {
                set(&mut next, 1, address);
            }
            next
        });
        assert_eq!((controls.loads(), controls.counts()[1]), before);
    }
    assert_eq!(controls.stalls(), 0);
    controls.spin(false);
    drop((first, neighbour, engine));
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

#[test]
fn variables_that_the_driver_has_apart_are_as_new_too() {
    let fake = Fake::new(&["VERSION=12040", "APART"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut first = Guest::new(&engine);
    let places = load(&mut first, 1, &machine_code(0));
    assert!(places[1] - places[0] > 4096);
    for &place in &places {
        set(&mut first, 1, place);
    }
    drop(first);
    let loads = controls.loads();
    let mut next = Guest::new(&engine);
    assert_eq!(load(&mut next, 1, &machine_code(0)), places);
    let words: Vec<_> = places.iter().map(|&place| next.word(place)).collect();
    assert_eq!((&words[..], controls.loads()), (&[1, 2, 0, 3][..], loads));
}

#[test]
fn code_without_variables_stays_when_its_last_client_goes() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut first = Guest::new(&engine);
    load(&mut first, 1, TEXT.as_bytes());
    let neighbour = busy(&engine, &controls);
    drop(first);
    let loads = controls.loads();
    bounded("a client comes beside a kernel", || {
        let mut next = Guest::new(&engine);
        load(&mut next, 1, TEXT.as_bytes());
        let place = next.commit(0, GRANULE);
        set(&mut next, 1, place);
        assert_eq!(next.word(place), 0xdead_beef);
    });
    assert_eq!((controls.loads(), controls.stalls()), (loads, 0));
    controls.spin(false);
    drop(neighbour);
}

#[test]
fn what_may_have_more_variables_than_are_told_is_nobody_elses() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let section = |name| Section {
        name,
        flags: WRITTEN,
        bytes: Err(8),
    };
    // A section of another name, a variable that the driver does not find, one that has no symbol, one that is too large, and
    // two of one name, of which the driver finds one.
    let codes = [
        elf(
            TEXT,
            &[section(".nv.global"), section(".nv.more")],
            &[("told", 1, 0, 8)],
        ),
        elf(
            TEXT,
            &[section(".nv.global"), section(".nv.constant3")],
            &[("told", 1, 0, 8), ("hidden", 2, 0, 8)],
        ),
        elf(TEXT, &[section(".nv.global")], &[("told", 1, 0, 4)]),
        elf(
            TEXT,
            &[Section {
                name: ".nv.global",
                flags: WRITTEN,
                bytes: Err(2 << 20),
            }],
            &[("told", 1, 0, 8)],
        ),
        elf(
            TEXT,
            &[section(".nv.global"), section(".nv.constant3")],
            &[("told", 1, 0, 8), ("told", 2, 0, 8)],
        ),
    ];
    for code in codes {
        let mut guest = Guest::new(&engine);
        let first = load(&mut guest, 1, &code)[0];
        set(&mut guest, 1, first);
        drop(guest);
        let loads = controls.loads();
        let mut next = Guest::new(&engine);
        let again = load(&mut next, 1, &code)[0];
        assert_eq!((next.word(again), controls.loads()), (0, loads + 1));
    }
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn attributes_are_as_the_next_client_expects_them() {
    let fake = Fake::new(&["VERSION=12040", "FUNC_SET_ATTRIBUTE"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let attribute = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES.0;
    let mut guest = Guest::new(&engine);
    load(&mut guest, 1, &machine_code(0));
    for value in [4096, 9999] {
        let request = FunctionSet {
            module: 1,
            kernel: 0,
            attribute,
            value,
        };
        guest.client.function_set(&request, &[]).unwrap();
    }
    assert_eq!(controls.attribute(attribute), 9999);
    drop(guest);
    let loads = controls.loads();
    let mut next = Guest::new(&engine);
    load(&mut next, 1, &machine_code(0));
    assert_eq!(controls.loads(), loads, "it is the same module");
    assert_eq!(controls.attribute(attribute), 10 + attribute.cast_signed());
}

/// What one client may leave: of a device of 4 GiB a quarter of a 128th.
const LEFT: i64 = (4 << 30) / 128 / 4 / (64 << 10);

#[test]
fn one_client_leaves_a_part_of_what_is_kept() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let other = machine_code(u32::MAX);
    load(&mut Guest::new(&engine), 1, &other);
    let mut guest = Guest::new(&engine);
    for number in 0..2 * LEFT as u32 {
        load(&mut guest, 1, &machine_code(number));
        unload(&mut guest, 1);
    }
    controls.settle(1, 1 + LEFT);
    let loads = controls.loads();
    load(&mut guest, 1, &other);
    assert_eq!(controls.loads(), loads, "another's has not gone for it");
}

#[test]
fn modules_that_nobody_has_make_room_for_memory() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    for number in 0..4 {
        load(&mut Guest::new(&engine), 1, &machine_code(number));
    }
    assert_eq!(controls.counts()[1], 4);
    let mut guest = Guest::new(&engine);
    // All that there is, which is not there.
    let window = engine::Window {
        base: guest.windows[0].base,
        bytes: 8 << 30,
    };
    let refused = guest.client.commit(window);
    assert_eq!(refused, Err(CUresult::ERROR_OUT_OF_MEMORY));
    controls.settle(1, 0);
    load(&mut guest, 1, &machine_code(0));
    assert_eq!(controls.counts()[1], 1);
}

/// An engine that loads ahead, and what it says.
fn ahead(fake: &Fake, folder: Option<&Path>) -> (NvidiaEngine, Receiver<String>) {
    let engine = fake.open().expect("a driver that works");
    let (tell, told) = channel();
    let say = move |text: &str| {
        // A test that has ended listens no more.
        let _ = tell.send(text.to_owned());
    };
    engine.load_ahead(folder, say).expect("a thread");
    (engine, told)
}

/// A folder in which a server has kept the code that clients brought, each with one, and what it goes with.
fn folder_of_an_earlier_server(fake: &Fake, codes: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("code");
    let (engine, _) = ahead(fake, Some(&folder));
    for code in codes {
        load(&mut Guest::new(&engine), 1, code);
    }
    drop(engine);
    (place, folder)
}

#[test]
fn the_next_client_has_a_module_beside_the_one_that_has_one() {
    let fake = Fake::new(&["VERSION=12040"]);
    let (engine, _) = ahead(&fake, None);
    let controls = Controls::of(&fake);
    let mut first = Guest::new(&engine);
    let places = load(&mut first, 1, &machine_code(0));
    controls.settle(1, 2);
    let neighbour = busy(&engine, &controls);
    let loads = controls.loads();
    bounded("a client comes beside a kernel", || {
        let mut next = Guest::new(&engine);
        let others = load(&mut next, 1, &machine_code(0));
        assert!(places.iter().all(|place| !others.contains(place)));
        let words: Vec<_> = others.iter().map(|&place| next.word(place)).collect();
        assert_eq!(words, [1, 2, 0, 3]);
    });
    assert_eq!((controls.loads(), controls.stalls()), (loads, 0));
    controls.spin(false);
    drop((first, neighbour, engine));
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

#[test]
fn code_that_an_earlier_server_had_is_loaded_before_a_client_comes() {
    let fake = Fake::new(&["VERSION=12040"]);
    let controls = Controls::of(&fake);
    let codes = [machine_code(0), machine_code(1), TEXT.into()];
    let (_place, folder) = folder_of_an_earlier_server(&fake, &codes);
    assert_eq!(controls.counts(), [0; 5]);
    // One file is damaged meanwhile.
    let files = std::fs::read_dir(&folder).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), codes.len());
    let length = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    let text = files.iter().min_by_key(|path| length(path)).unwrap();
    std::fs::write(text, "something else").unwrap();

    let (engine, told) = ahead(&fake, Some(&folder));
    controls.settle(1, 2);
    let line = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(line.contains("is damaged or gone"), "{line}");
    assert!(!text.exists());
    let neighbour = busy(&engine, &controls);
    let loads = controls.loads();
    bounded("clients come beside a kernel", || {
        for code in &codes[..2] {
            let mut guest = Guest::new(&engine);
            let places = load(&mut guest, 1, code);
            let words: Vec<_> = places.iter().map(|&place| guest.word(place)).collect();
            assert_eq!(words, [1, 2, 0, 3]);
        }
    });
    assert_eq!((controls.loads(), controls.stalls()), (loads, 0));
    controls.spin(false);
    drop((neighbour, engine));
    assert_eq!((controls.stalls(), controls.counts()), (0, [0; 5]));
}

/// Has a client come with an image while a module of it is being loaded ahead, of which loads that one is the last to end.
fn comes_while_it_is_loaded(engine: &NvidiaEngine, controls: &Controls) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bounded("a client comes with code that is being loaded", || {
                load(&mut Guest::new(engine), 1, &machine_code(0));
            });
        });
        // So that most of the time it has come.
        std::thread::sleep(Duration::from_millis(100));
        controls.hold_loads(Some(1));
    });
    controls.hold_loads(None);
}

#[test]
fn who_comes_while_a_module_is_loaded_for_the_next_client_has_that_one() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    controls.has_batches();
    load(&mut Guest::new(&engine), 1, &machine_code(0));
    engine.load_ahead(None, |_| ()).expect("a thread");
    let loads = controls.loads();
    controls.hold_loads(Some(0));
    // It has the first one's, and there is none for the next.
    let mut second = Guest::new(&engine);
    load(&mut second, 1, &machine_code(0));
    until("one is being loaded", || controls.loads() == loads + 1);
    comes_while_it_is_loaded(&engine, &controls);
}

#[test]
fn who_comes_while_code_of_an_earlier_server_is_loaded_has_that() {
    let fake = Fake::new(&["VERSION=12040"]);
    let controls = Controls::of(&fake);
    let (_place, folder) = folder_of_an_earlier_server(&fake, &[machine_code(0)]);
    let engine = fake.open().expect("a driver that works");
    controls.has_batches();
    let loads = controls.loads();
    controls.hold_loads(Some(0));
    engine.load_ahead(Some(&folder), |_| ()).expect("a thread");
    until("it is being loaded", || controls.loads() == loads + 1);
    comes_while_it_is_loaded(&engine, &controls);
}

#[test]
fn every_device_has_the_code_of_an_earlier_server() {
    let fake = Fake::new(&["VERSION=12040", "DEVICES=2"]);
    let controls = Controls::of(&fake);
    let codes = [machine_code(0), TEXT.into()];
    let (_place, folder) = folder_of_an_earlier_server(&fake, &codes);
    let (engine, _) = ahead(&fake, Some(&folder));
    controls.settle(1, 4);
    // On both devices, so that nothing more is loaded ahead.
    let mut neighbour = busy(&engine, &controls);
    controls.spin(false);
    assert_eq!(neighbour.wait(0), Ok(()));
    neighbour.context(1, 1);
    let module = neighbour.module_in(1, PTX).0;
    controls.spin(true);
    neighbour.launch(0, 1, 1, 1, &poke(0, 1));
    neighbour.launch(1, module, 1, 1, &poke(0, 1));
    until("both have work", || controls.queued() >= 2);
    let loads = controls.loads();
    let mut guest = Guest::new(&engine);
    guest.context(1, 1);
    for (number, code) in codes.iter().enumerate() {
        for context in [0, 1] {
            let number = 1 + 2 * number as u64 + u64::from(context);
            assert_eq!(guest.image(number, code).0, CUresult::SUCCESS);
            let request = ModuleLoad {
                module: number,
                image: number,
                context,
                ..ModuleLoad::default()
            };
            let loaded = guest.client.module_load(&request, &[], &mut Vec::new());
            assert!(loaded.is_ok());
        }
    }
    assert_eq!((controls.loads(), controls.stalls()), (loads, 0));
    controls.spin(false);
    drop((guest, neighbour));
}

#[test]
fn local_memory_that_a_kernel_needs_is_there_before_its_client_comes() {
    const DEEP: &[u8] = b".version 7.8\n.visible .entry deep() {}";
    let fake = Fake::new(&[
        "VERSION=12040",
        "LOCAL=2000",
        "TOTAL=(1ull<<40)",
        "THREADS=64",
    ]);
    let controls = Controls::of(&fake);
    let (_place, folder) = folder_of_an_earlier_server(&fake, &[DEEP.into()]);
    let loads = controls.loads();
    let (engine, _) = ahead(&fake, Some(&folder));
    // The kernel that ends batches, the image, and a kernel that takes the memory.
    until("it is there", || controls.loads() == loads + 3);
    let neighbour = busy(&engine, &controls);
    bounded("a client comes beside a kernel", || {
        let mut guest = Guest::new(&engine);
        load(&mut guest, 1, DEEP);
        let place = guest.commit(0, GRANULE);
        set(&mut guest, 1, place);
    });
    controls.spin(false);
    drop((neighbour, engine));
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn what_the_driver_refuses_and_a_folder_of_others_are_not_used() {
    let fake = Fake::new(&["VERSION=12040"]);
    let controls = Controls::of(&fake);
    let (_place, folder) = folder_of_an_earlier_server(&fake, &[machine_code(0)]);
    let files = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files(), 1);
    // It is not its fault that there is no memory.
    let engine = fake.open().expect("a driver that works");
    let loads = controls.loads();
    controls.has_batches();
    controls.fail(1);
    engine.load_ahead(Some(&folder), |_| ()).expect("a thread");
    until("it is tried", || controls.left_to_fail() == 0);
    drop(engine);
    assert_eq!((files(), controls.loads()), (1, loads));
    let (engine, _) = ahead(
        &Fake::new(&["VERSION=12040", "REFUSED=\"poke\""]),
        Some(&folder),
    );
    until("it goes", || files() == 0);
    drop(engine);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&folder, open).unwrap();
    let (engine, told) = ahead(&fake, Some(&folder));
    let line = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(line.contains("chmod 700"), "{line}");
    load(&mut Guest::new(&engine), 1, &machine_code(0));
    drop(engine);
    assert_eq!(files(), 0);
}

#[test]
fn who_waits_for_its_first_client_loads_what_others_bring_meanwhile() {
    let fake = Fake::new(&["VERSION=12040"]);
    let controls = Controls::of(&fake);
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("code");
    let (standby, _) = ahead(&fake, Some(&folder));
    let (engine, _) = ahead(&fake, Some(&folder));
    let code = machine_code(0);
    let guest_of_other = {
        let mut guest = Guest::new(&engine);
        load(&mut guest, 1, &code);
        guest
    };
    // The other's, one for its next client, and the standby's.
    controls.settle(1, 3);
    let neighbour = busy(&standby, &controls);
    let loads = controls.loads();
    bounded("a client comes beside a kernel", || {
        let mut guest = Guest::new(&standby);
        let places = load(&mut guest, 1, &code);
        let words: Vec<_> = places.iter().map(|&place| guest.word(place)).collect();
        assert_eq!(words, [1, 2, 0, 3]);
    });
    assert_eq!((controls.loads(), controls.stalls()), (loads, 0));
    controls.spin(false);
    drop((neighbour, guest_of_other, engine, standby));
    assert_eq!(controls.counts(), [0; 5]);
}
