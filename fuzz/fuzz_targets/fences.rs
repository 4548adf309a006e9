//! Any PTX, fenced, and launched with any addresses in memory that the executor lets it reach: no panic, and nothing
//! changes but the windows that the fences were told of. What comes out of the rewriter is PTX with every fence whole.
//! What the bytes are: [`openmps_fuzz::kernels`].
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use openmps_fuzz::kernels::{GRANULES, Memory, OWN, split};
use ptx::Budget;
use ptx::fence::{VARIABLE, VARIABLES, Windows, fence};
use ptx_vm::{GRANULE, Module, Options};

/// The granule with the table and the record.
const DESCRIPTION: u64 = 0;
/// The granule with the variable that says where they are: the executor has all variables at one place.
const GLOBALS: u64 = 7;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, text)) = split(bytes) else {
        return;
    };
    let Ok(text) = std::str::from_utf8(&text) else {
        return;
    };
    let memory = Memory::filled();
    let record = memory.granule(DESCRIPTION);
    let table = record + 64;
    let windows = Windows {
        base: memory.granule(OWN[0]),
        size: GRANULE,
        table,
        count: 1,
        record,
    };
    let fenced = match fence(text, &windows, &|_| false, Budget::default()) {
        Ok(fenced) => fenced.text,
        Err(error) => {
            // What the parser takes is refused for what it is, and never because it was written wrong.
            let text = error.to_string();
            assert!(
                !text.contains("not found again") && !text.contains("not whole"),
                "{text}"
            );
            return;
        }
    };
    let Ok(tree) = ptx::parse(&fenced) else {
        panic!("what was fenced is no PTX");
    };
    let Ok(module) = Module::load(&tree, &Options::default()) else {
        return;
    };
    let second = Windows::word(memory.granule(OWN[1]), GRANULE).expect("pages of memory");
    for (place, word) in [(record, 0), (record + 8, 0), (table, second)] {
        memory.write(place, word);
    }
    // A place inside of a variable needs no check, and this memory is no larger.
    if module.globals().iter().any(|global| global.size > GRANULE) {
        return;
    }
    // All variables stand at the start of its own memory, but for the description of the windows.
    let description = memory.granule(GLOBALS);
    let words = windows.words();
    // Nor has the list of its variables them anywhere: all of them are in its window.
    let list = description + 64;
    let of_list = module.globals().iter().find(|it| it.name == VARIABLES);
    let bytes = of_list.map_or(0, |it| it.size);
    if 64 + bytes > GRANULE {
        return;
    }
    for at in (list..list + bytes).step_by(8) {
        memory.write(at, 0);
    }
    for (at, word) in (0..).zip(words) {
        memory.write(description + 8 * at, word);
    }
    let place = |name: &str| match name {
        VARIABLE => description,
        VARIABLES => list,
        _ => memory.granule(OWN[0]),
    };
    let globals: Arc<[u64]> = module
        .globals()
        .iter()
        .map(|global| place(&global.name))
        .collect();
    let space = memory.space(&[0..=GRANULES - 1]);
    memory.launch(head, &module, &globals, &space);
    memory.assert_whole(&[DESCRIPTION, GLOBALS]);
    for (at, word) in (0..).zip(words) {
        let now = memory.read(description + 8 * at);
        assert_eq!(now, word, "the windows were moved");
    }
});
