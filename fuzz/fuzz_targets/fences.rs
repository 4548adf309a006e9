//! Any PTX, fenced, and launched with any addresses in memory that the executor lets it reach: no panic, and nothing
//! changes but the windows that the fences were told of. What comes out of the rewriter is PTX with every fence whole.
//!
//! The first [`HEAD`] bytes say where the kernel's parameters point; the rest is the PTX, or, after a zero, which of the
//! table's instructions a kernel is made of, two bytes each, with registers that hold whatever its memory does.
#![no_main]

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use ptx::Budget;
use ptx::fence::{VARIABLE, VARIABLES, Windows, fence};
use ptx_vm::{
    AddressSpace, Cluster, GRANULE, Launch, LaunchSpec, Module, Options, Outcome, Window,
    instructions,
};

/// A place and an offset for each of four words of parameters.
const HEAD: usize = 12;
/// Granules of the window: its own two, and what lies before, between and behind them.
const GRANULES: u64 = 8;
const OWN: [u64; 2] = [2, 5];
/// The granule with the table and the record.
const DESCRIPTION: u64 = 0;
/// The granule with the variable that says where they are: the executor has all variables at one place.
const GLOBALS: u64 = 7;
const CANARY: u8 = 0xc5;
/// Turns that a block may have.
const TURNS: usize = 40;

/// Memory that is never freed, filled with canaries.
fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let layout = Layout::from_size_align((GRANULES * GRANULE) as usize, GRANULE as usize);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout.expect("a layout")) };
        assert!(!start.is_null());
        start as u64
    })
}

fn fill(base: u64, granule: u64, byte: u8) {
    let (start, len) = ((base + granule * GRANULE) as *mut u8, GRANULE as usize);
    // SAFETY: inside of the memory above, which only this thread uses between launches.
    unsafe { std::ptr::write_bytes(start, byte, len) };
}

fn whole(base: u64, granule: u64) -> bool {
    let (start, len) = ((base + granule * GRANULE) as *const u8, GRANULE as usize);
    // SAFETY: inside of the memory above, which only this thread uses between launches.
    unsafe { std::slice::from_raw_parts(start, len) }
        .iter()
        .all(|byte| *byte == CANARY)
}

/// The forms of the table of instructions that are built.
fn forms() -> &'static [String] {
    static FORMS: OnceLock<Vec<String>> = OnceLock::new();
    let is_built = |form: &String| {
        let text = instructions::head("120a") + &instructions::entry("k", form);
        let tree = ptx::parse(&text);
        tree.is_ok_and(|tree| Module::load(&tree, &Options::default()).is_ok())
    };
    FORMS.get_or_init(|| {
        let rows = instructions::rows();
        rows.iter()
            .flat_map(instructions::Row::forms)
            .filter(is_built)
            .collect()
    })
}

/// A kernel of the forms that bytes choose.
fn generated(choices: &[u8]) -> String {
    let forms = forms();
    let chosen: Vec<&str> = choices
        .chunks_exact(2)
        .take(16)
        .map(|pair| {
            forms[usize::from(u16::from_le_bytes([pair[0], pair[1]])) % forms.len()].as_str()
        })
        .collect();
    instructions::head("120a") + &instructions::entry("k", &chosen.join("\n"))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((head, text)) = bytes.split_at_checked(HEAD) else {
        return;
    };
    let made;
    let text = match text {
        [0, choices @ ..] => {
            made = generated(choices);
            made.as_bytes()
        }
        text => text,
    };
    let base = memory();
    let record = base + DESCRIPTION * GRANULE;
    let table = record + 64;
    let windows = Windows {
        base: base + OWN[0] * GRANULE,
        size: GRANULE,
        table,
        count: 1,
        record,
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
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
    for granule in 0..GRANULES {
        let own = OWN.contains(&granule);
        fill(base, granule, if own { 0 } else { CANARY });
    }
    // SAFETY: the memory is never freed, and there are no references into it while a kernel runs.
    let window = unsafe { Window::new(base, GRANULES * GRANULE, Arc::new(())) };
    window.set_valid(base, GRANULES * GRANULE, true);
    let second = base + OWN[1] * GRANULE;
    for (place, word) in [
        (record, 0),
        (record + 8, 0),
        (
            table,
            Windows::word(second, GRANULE).expect("pages of memory"),
        ),
    ] {
        // SAFETY: inside of the memory above, aligned, and no kernel runs now.
        unsafe { (place as *mut u64).write(word) };
    }
    let space = Arc::new(AddressSpace::new(vec![Arc::new(window)]));
    let canary = [CANARY; 64];
    let places = [
        base + OWN[0] * GRANULE,
        base + OWN[1] * GRANULE,
        base + (OWN[1] + 1) * GRANULE - 64,
        base,
        base + GRANULES * GRANULE,
        canary.as_ptr() as u64,
        0,
        u64::MAX - 4096,
    ];
    let params: Vec<u8> = head
        .chunks_exact(3)
        .flat_map(|part| {
            let offset = i16::from_le_bytes([part[1], part[2]]);
            let place = places[usize::from(part[0]) % places.len()];
            place.wrapping_add_signed(i64::from(offset)).to_le_bytes()
        })
        .collect();
    // A place inside of a variable needs no check, and this memory is no larger.
    if module.globals().iter().any(|global| global.size > GRANULE) {
        return;
    }
    // All variables stand at the start of its own memory, but for the description of the windows.
    let description = base + GLOBALS * GRANULE;
    let words = windows.words();
    // Nor has the list of its variables them anywhere: all of them are in its window.
    let list = description + 64;
    let of_list = module.globals().iter().find(|it| it.name == VARIABLES);
    let bytes = of_list.map_or(0, |it| it.size);
    if 64 + bytes > GRANULE {
        return;
    }
    for at in (list..list + bytes).step_by(8) {
        // SAFETY: inside of the memory above, aligned, and no kernel runs now.
        unsafe { (at as *mut u64).write(0) };
    }
    for (at, word) in (0..).zip(words) {
        // SAFETY: inside of the memory above, aligned, and no kernel runs now.
        unsafe { ((description + 8 * at) as *mut u64).write(word) };
    }
    let place = |name: &str| {
        match name {
            VARIABLE => description,
            VARIABLES => list,
            _ => places[0],
        }
    };
    let globals: Arc<[u64]> = module
        .globals()
        .iter()
        .map(|global| place(&global.name))
        .collect();
    let cancel = Arc::new(AtomicBool::new(false));
    for kernel in module.kernels().iter().take(2) {
        let mut block_params = params.clone();
        block_params.resize(kernel.param_bytes as usize, 0);
        let launch = Launch::new(LaunchSpec {
            runtime: None,
            kernel: Arc::clone(kernel),
            grid: [2, 1, 1],
            block: kernel.required_threads.unwrap_or([40, 1, 1]),
            cluster: (head[3] & 0x80 != 0).then_some([2, 1, 1]),
            dynamic_shared: 256,
            params: block_params.into(),
            globals: Arc::clone(&globals),
            memory: Arc::clone(&space),
            textures: Arc::default(),
            cancel: Arc::clone(&cancel),
            grid_id: 1,
            graph: 0,
            sm_count: 2,
            services: Arc::new(()),
            cooperative: head[0] & 0x80 != 0,
        });
        let Ok(launch) = launch.map(Arc::new) else {
            continue;
        };
        let mut clusters: Vec<Cluster> = (0..launch.clusters())
            .filter_map(|index| Cluster::new(Arc::clone(&launch), index, 0).ok())
            .collect();
        for _ in 0..TURNS {
            let mut faulted = false;
            clusters.retain_mut(|cluster| match cluster.run(4096) {
                Outcome::Yielded | Outcome::Waits => true,
                Outcome::Fault(_) => {
                    faulted = true;
                    false
                }
                Outcome::Finished | Outcome::Cancelled => false,
            });
            if faulted || clusters.is_empty() {
                break;
            }
        }
        // What goes on for ever ends when it is asked to.
        cancel.store(true, Ordering::Relaxed);
        for mut cluster in clusters {
            while matches!(cluster.run(1 << 20), Outcome::Yielded | Outcome::Waits) {}
        }
        cancel.store(false, Ordering::Relaxed);
    }
    let neighbours = (0..GRANULES).filter(|granule| !OWN.contains(granule));
    for granule in neighbours.filter(|&granule| granule != DESCRIPTION && granule != GLOBALS) {
        assert!(whole(base, granule), "granule {granule} was touched");
    }
    for (at, word) in (0..).zip(words) {
        // SAFETY: inside of the memory of this target, aligned, and the kernel has ended.
        let now = unsafe { ((description + 8 * at) as *const u64).read() };
        assert_eq!(now, word, "the windows were moved");
    }
});
