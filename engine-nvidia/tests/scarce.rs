//! A driver that runs out of memory in the middle of things: whatever call it is that finds none, the client
//! is told so, nothing is left behind, and others go on.

mod common;

use std::panic::AssertUnwindSafe;

use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use cuda_abi::types::CUarray_format;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use engine::{Share, Window};
use engine_nvidia::NvidiaEngine;
use protocol::operations::{ArrayCreate, ArrayDestroy, ModuleUnload};

/// A bit of everything; what finds no memory gives its error, which ends the client.
fn work(engine: &NvidiaEngine) -> Result<(), CUresult> {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 40 * GRANULE);
    guest.commit_host();
    guest.stream(40);
    guest.upload(device, &[7; 100]);
    let (module, _) = guest.module_in(0, PTX);
    let value = poke(device, 5);
    // So many that the last of them go in a graph.
    for _ in 0..70 {
        guest.launch(40, module, 1, 1, &value);
    }
    guest.wait(40)?;
    guest.event(40, 3);
    guest.destroy(40);
    guest.wait(40)?;
    let memory = guest.client.physical_create(0, 2 << 20)?;
    let at = Window {
        base: guest.windows[0].base + (1 << 30),
        bytes: 2 << 20,
    };
    guest.client.physical_map(at, &memory, 0)?;
    guest.client.physical_access(at, 0, true)?;
    let unload = ModuleUnload { module };
    guest.client.module_unload(&unload, &[])?;
    guest.wait(0)?;
    guest.client.set_share(Share::of(45.0))?;
    let array = ArrayCreate {
        array: 9,
        context: 0,
        width: 16,
        height: 16,
        depth: 0,
        format: CUarray_format::UNSIGNED_INT32.0,
        channels: 1,
        flags: 0,
        levels: 1,
    };
    guest.client.array_create(&array, &[], &mut Vec::new())?;
    guest
        .client
        .array_destroy(&ArrayDestroy { array: 9 }, &[])?;
    let looked = loop {
        match guest.client.peek(device, 4) {
            Err(CUresult::ERROR_NOT_READY) => {}
            looked => break looked?,
        }
    };
    assert_eq!(looked, 5);
    let block = guest.client.share(Window {
        base: device,
        bytes: GRANULE,
    })?;
    let mut importer = Guest::new(engine);
    importer.client.import(&block)?;
    importer.client.close(&block);
    drop(block);
    assert_eq!(guest.word(device), 5);
    Ok(())
}

#[test]
fn a_driver_without_memory_is_an_error_at_any_call() {
    let fake = Fake::new(&["VERSION=12040", "GREEN"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    work(&engine).unwrap();
    let mut other = Guest::new(&engine);
    let device = other.commit(0, GRANULE);
    // What the first left to be given back later is: its module, and the page-locked memory.
    controls.settle(1, 0);
    controls.settle(2, 0);
    // Batches of the whole and of the part, of six lengths, eight each, as graphs and executables.
    let supply = 2 * 2 * 6 * 8;
    until("there are batches", || controls.graphs() == supply);
    let before = controls.counts();
    let mut failed = 0;
    for call in 1.. {
        controls.fail(call);
        // What the rig does not pass on it panics with, naming the code.
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| work(&engine)));
        let over = controls.fail(0) > 0;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(code)) => assert_eq!(code, CUresult::ERROR_OUT_OF_MEMORY, "call {call}"),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                let told = text.contains("OUT_OF_MEMORY") || text.contains("CUresult(2)");
                assert!(told, "call {call}: {text}");
            }
        }
        for (what, &count) in before.iter().enumerate() {
            controls.settle(what, count);
        }
        // Some may not have been made again.
        assert!(controls.graphs() <= supply, "after call {call}");
        other.write(0, device, &call.to_le_bytes());
        assert_eq!(other.wait(0), Ok(()), "another client, after call {call}");
        if over {
            break;
        }
        failed += 1;
    }
    assert!(failed > 20, "only {failed} calls");
    other.end();
    drop(engine);
    until("no graph is left", || controls.graphs() == 0);
}
