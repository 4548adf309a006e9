//! Any PTX, launched with any addresses: no panic, and nothing changes but the memory that the launch was
//! given.
//!
//! The first [`HEAD`] bytes say where the kernel's parameters point; the rest is the PTX.
#![no_main]

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ptx_vm::{
    AddressSpace, Block, GRANULE, Launch, LaunchSpec, Module, Options, Outcome, Window,
};
use libfuzzer_sys::fuzz_target;

/// A place and an offset for each of four words of parameters.
const HEAD: usize = 12;
/// Granules of the window: its own two, and what lies before, between and behind them.
const GRANULES: u64 = 8;
const OWN: [u64; 2] = [2, 5];
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

fuzz_target!(|bytes: &[u8]| {
    let Some((head, text)) = bytes.split_at_checked(HEAD) else {
        return;
    };
    let Ok(tree) = ptx::parse_bytes(text) else {
        return;
    };
    let Ok(module) = Module::load(&tree, &Options::default()) else {
        return;
    };
    let base = memory();
    for granule in 0..GRANULES {
        let own = OWN.contains(&granule);
        fill(base, granule, if own { 0 } else { CANARY });
    }
    // SAFETY: the memory is never freed, and there are no references into it while a kernel runs.
    let window = unsafe { Window::new(base, GRANULES * GRANULE, Arc::new(())) };
    for granule in OWN {
        window.set_valid(base + granule * GRANULE, GRANULE, true);
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
    // All variables stand at the start of its own memory.
    let globals: Arc<[u64]> = vec![places[0]; module.globals().len()].into();
    let cancel = Arc::new(AtomicBool::new(false));
    for kernel in module.kernels().iter().take(2) {
        let mut block_params = params.clone();
        block_params.resize(kernel.param_bytes as usize, 0);
        let launch = Launch::new(LaunchSpec {
            runtime: None,
            kernel: Arc::clone(kernel),
            grid: [2, 1, 1],
            block: kernel.required_threads.unwrap_or([40, 1, 1]),
            dynamic_shared: 256,
            params: block_params.into(),
            globals: Arc::clone(&globals),
            memory: Arc::clone(&space),
            textures: Arc::default(),
            cancel: Arc::clone(&cancel),
            grid_id: 1,
            sm_count: 2,
            services: Arc::new(()),
            cooperative: head[0] & 0x80 != 0,
        });
        let Ok(launch) = launch.map(Arc::new) else {
            continue;
        };
        let mut blocks: Vec<Block> = (0..2)
            .filter_map(|index| Block::new(Arc::clone(&launch), index, 0).ok())
            .collect();
        for _ in 0..TURNS {
            let mut faulted = false;
            blocks.retain_mut(|block| match block.run(4096) {
                Outcome::Yielded | Outcome::Waits => true,
                Outcome::Fault(_) => {
                    faulted = true;
                    false
                }
                Outcome::Finished | Outcome::Cancelled => false,
            });
            if faulted || blocks.is_empty() {
                break;
            }
        }
        // What goes on for ever ends when it is asked to.
        cancel.store(true, Ordering::Relaxed);
        for mut block in blocks {
            while matches!(block.run(1 << 20), Outcome::Yielded | Outcome::Waits) {}
        }
        cancel.store(false, Ordering::Relaxed);
    }
    for granule in (0..GRANULES).filter(|granule| !OWN.contains(granule)) {
        assert!(whole(base, granule), "granule {granule} was touched");
    }
    assert_eq!(canary, [CANARY; 64], "the stack was touched");
});
