//! Variables of a client that is kept: in its memory, where the next server finds them.

mod common;

use common::machine_code::{Section, elf_with, set_word, word_of};
use common::{Controls, Fake, poke};
use cuda_abi::CUresult;
use cuda_abi::types::CUfunction_attribute;
use engine::Engine;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, simple_launch};
use protocol::operations::{Copy, Fill, FunctionSet, ModuleLoad, ModuleUnload};

const TEXT: &str = ".version 7.8\n.visible .entry poke() {}";
const WRITTEN: u64 = 3;

/// Machine code with variables that have first values, zeroes and a constant, and with words that have the addresses of two.
fn machine_code() -> Vec<u8> {
    let section = |name, flags, bytes| Section { name, flags, bytes };
    elf_with(
        TEXT,
        &[
            section(
                ".nv.global.init",
                WRITTEN,
                Ok(&[1, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]),
            ),
            section(".nv.global", WRITTEN, Err(4)),
            section(".nv.constant3", 2, Ok(&[3, 0, 0, 0])),
            section(".nv.constant4", 2, Ok(&[0; 8])),
        ],
        &[
            ("value", 1, 0, 8),
            ("pointer", 1, 8, 8),
            ("zeroes", 2, 0, 4),
            ("constant", 3, 0, 4),
        ],
        &[(4, 0, 3), (1, 8, 4)],
    )
}

/// Such code of which nothing is a constant.
fn without_constants() -> Vec<u8> {
    let section = |name, flags, bytes| Section { name, flags, bytes };
    let sections = [
        section(".nv.global", WRITTEN, Err(4)),
        section(".nv.constant4", 2, Ok(&[0; 8][..])),
    ];
    elf_with(TEXT, &sections, &[("zeroes", 1, 0, 4)], &[(2, 0, 1)])
}

/// A client that is kept, with memory for variables.
fn kept(engine: &dyn Engine) -> Guest {
    let mut guest = Guest::kept(engine);
    let half = guest.windows[0].bytes / 2 / GRANULE * GRANULE;
    guest.commit(half, GRANULE);
    guest
}

/// Loads a module of it; where its variables are.
fn load(guest: &mut Guest, number: u64) -> [u64; 4] {
    let (status, descriptor, log) = guest.image(number, &machine_code());
    assert_eq!(status, CUresult::SUCCESS, "{log}");
    let names: Vec<_> = descriptor.variables.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["value", "pointer", "zeroes", "constant"]);
    let request = ModuleLoad {
        module: number,
        image: number,
        ..ModuleLoad::default()
    };
    let mut reply = Vec::new();
    let loaded = guest.client.module_load(&request, &[], &mut reply);
    loaded.expect("a module");
    let (addresses, _) = reply.as_chunks();
    let addresses: Vec<_> = addresses
        .iter()
        .map(|&bytes| u64::from_le_bytes(bytes))
        .collect();
    addresses.try_into().expect("four")
}

#[test]
fn they_lie_in_its_memory_and_code_says_so() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut guest = kept(&engine);
    let places = load(&mut guest, 1);
    let [value, pointer, zeroes, constant] = places;
    let window = guest.windows[0];
    assert!(
        places.iter().all(|&place| window.contains(place, 4)),
        "{places:x?}"
    );
    assert_eq!(
        [value, zeroes, constant].map(|at| guest.word(at)),
        [1, 0, 3]
    );
    assert_eq!(
        guest.word(pointer),
        constant as u32,
        "a variable's first value is an address"
    );
    let code = controls.code(machine_code().len());
    let says = |address: u64| code.windows(8).any(|bytes| bytes == address.to_le_bytes());
    assert!(says(zeroes) && says(constant));
    // Of who is not kept the driver has them.
    let mut other = Guest::new(&engine);
    let places = load(&mut other, 1);
    assert!(
        !places
            .iter()
            .any(|&place| other.windows[0].contains(place, 4))
    );
    assert_eq!(places.map(|at| other.word(at))[0], 1);
}

#[test]
fn what_is_written_to_a_constant_is_what_code_reads() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut guest = kept(&engine);
    let [value, _, _, constant] = load(&mut guest, 1);
    let drivers = controls.variable(c"constant");
    assert!(drivers != 0 && drivers != constant);
    assert_eq!(word_of(drivers), 3);
    guest.write(0, constant, &7_u32.to_le_bytes());
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!([guest.word(constant), word_of(drivers)], [7, 7]);
    let fill = Fill {
        to: constant + 1,
        value: 1,
        element: 1,
        width: 2,
        height: 1,
        ..Fill::default()
    };
    guest.fill(0, &fill);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!([guest.word(constant), word_of(drivers)], [0x0001_0107; 2]);
    let copy = Copy {
        to: constant,
        from: value,
        width: 4,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.copy(0, &copy);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!([guest.word(constant), word_of(drivers)], [1, 1]);
    // Another module has its own, and one that is gone has none.
    let [_, _, _, other] = load(&mut guest, 2);
    let unloaded = guest.client.module_unload(&ModuleUnload { module: 1 }, &[]);
    unloaded.expect("it is there");
    let others = controls.variable(c"constant");
    guest.write(0, constant, &9_u32.to_le_bytes());
    guest.write(0, other, &8_u32.to_le_bytes());
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!([word_of(drivers), word_of(others)], [1, 8]);
}

#[test]
fn what_they_held_in_another_server_they_hold_again() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut guest = kept(&engine);
    let [value, _, zeroes, constant] = load(&mut guest, 1);
    guest.write(0, value, &5_u32.to_le_bytes());
    guest.write(0, zeroes, &6_u32.to_le_bytes());
    guest.write(0, constant, &7_u32.to_le_bytes());
    assert_eq!(guest.wait(0), Ok(()));
    let unloaded = guest.client.module_unload(&ModuleUnload { module: 1 }, &[]);
    unloaded.expect("it is there");
    guest.observer.place_variables_again();
    let again = load(&mut guest, 2);
    assert_eq!([again[0], again[2], again[3]], [value, zeroes, constant]);
    assert_eq!(
        [value, zeroes, constant].map(|at| guest.word(at)),
        [5, 6, 7]
    );
    let drivers = controls.variable(c"constant");
    assert_eq!(word_of(drivers), 3, "the former process may still write");
    set_word(constant, 8);
    let read = guest.client.former_ended();
    read.expect("a device that works");
    assert_eq!([guest.word(constant), word_of(drivers)], [8, 8]);
    // What the ring makes later is made after that.
    let unloaded = guest.client.module_unload(&ModuleUnload { module: 2 }, &[]);
    unloaded.expect("it is there");
    guest.observer.place_variables_again();
    let [.., constant] = load(&mut guest, 3);
    assert_eq!(guest.word(constant), 8);
    assert_eq!(word_of(controls.variable(c"constant")), 8);
}

#[test]
fn code_that_another_server_had_is_loaded_when_it_is_first_needed() {
    let fake = Fake::new(&["VERSION=12040", "FUNC_SET_ATTRIBUTE"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut guest = kept(&engine);
    let (status, _, log) = guest.image(1, &without_constants());
    assert_eq!(status, CUresult::SUCCESS, "{log}");
    let load = |guest: &mut Guest, module| {
        let request = ModuleLoad {
            module,
            image: 1,
            ..ModuleLoad::default()
        };
        let mut reply = Vec::new();
        let loaded = guest.client.module_load(&request, &[], &mut reply);
        loaded.expect("a module");
        u64::from_le_bytes(reply.try_into().expect("one"))
    };
    let variable = load(&mut guest, 1);
    guest.write(0, variable, &5_u32.to_le_bytes());
    assert_eq!(guest.wait(0), Ok(()));
    let unloaded = guest.client.module_unload(&ModuleUnload { module: 1 }, &[]);
    unloaded.expect("it is there");
    guest.observer.place_variables_again();
    let loads = controls.loads();
    assert_eq!(load(&mut guest, 2), variable);
    let set = |guest: &mut Guest, kernel, value| {
        let attribute = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES.0;
        let request = FunctionSet {
            module: 2,
            kernel,
            attribute,
            value,
        };
        let set = guest.client.function_set(&request, &[]);
        (set, controls.attribute(attribute))
    };
    assert_eq!(set(&mut guest, 0, 70_000), (Ok(()), 0), "not yet");
    let invalid = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(set(&mut guest, 1, 70_000), (invalid, 0), "no such kernel");
    assert_eq!(guest.word(variable), 5);
    assert_eq!(controls.loads(), loads);
    // What cannot be loaded then is the error of what needed it, and of nothing else.
    controls.has_batches();
    controls.fail(1);
    let launched = guest.launch_result(0, &simple_launch(2, 1, 1), &poke(variable, 6));
    assert_eq!(launched, Err(CUresult::ERROR_OUT_OF_MEMORY));
    assert_eq!(guest.word(variable), 5);
    for value in [7, 8] {
        guest.launch(0, 2, 1, 1, &poke(variable, value));
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.word(variable), value);
        assert_eq!(controls.loads(), loads + 1);
    }
    assert_eq!(set(&mut guest, 0, 70_001), (Ok(()), 70_001));
    // Or before, by who has nothing else to do.
    for module in [3, 4] {
        guest.observer.place_variables_again();
        load(&mut guest, module);
    }
    controls.fail(1);
    assert!(!guest.client.make_ready());
    let made: Vec<bool> = (0..3).map(|_| guest.client.make_ready()).collect();
    assert_eq!(made, [true, true, false]);
    assert_eq!(controls.loads(), loads + 3);
}

#[test]
fn managed_variables_hold_what_they_held_in_another_server() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let mut guest = kept(&engine);
    let text = ".version 7.8\n.target sm_75\n.address_size 64\n\
        .global .attribute(.managed) .align 8 .b8 counter[16] = {7, 8};\n\
        .visible .entry poke() { .reg .b64 %rd1; mov.b64 %rd1, counter; ret; }";
    let (_, first) = guest.module_in(0, text);
    assert_eq!(guest.host_bytes(first[0], 3), [7, 8, 0]);
    guest.set_host(first[0], &[9, 8, 7]);
    guest.observer.place_variables_again();
    let (_, again) = guest.module_in(0, text);
    assert_eq!(again, first);
    assert_eq!(guest.host_bytes(first[0], 3), [9, 8, 7]);
}
