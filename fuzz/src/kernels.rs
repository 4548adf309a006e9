//! Kernels from a fuzzer's bytes, launched with any addresses in the executor, in memory with canaries around what is their
//! own. Shared by `soft_exec`, where the executor keeps kernels within their memory, and `fences`, where the code of the
//! fences does.
//!
//! The first [`HEAD`] bytes say where the kernel's parameters point; the rest is the PTX, or, after a zero, which of the
//! table's instructions a kernel is made of, two bytes each, with registers that hold whatever its memory does.

use std::alloc::{Layout, alloc_zeroed};
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ptx_vm::{
    AddressSpace, Cluster, GRANULE, Launch, LaunchSpec, Module, Options, Outcome, Window,
    instructions,
};

/// A place and an offset for each of four words of parameters.
pub const HEAD: usize = 12;
/// Granules of the memory: a kernel's own two, and what lies before, between and behind them.
pub const GRANULES: u64 = 8;
/// Which granules are the kernel's own.
pub const OWN: [u64; 2] = [2, 5];
const CANARY: u8 = 0xc5;
/// Turns that a block may have.
const TURNS: usize = 40;

/// A fuzzer's bytes: what places the parameters, and the PTX.
pub fn split(bytes: &[u8]) -> Option<(&[u8], Cow<'_, [u8]>)> {
    let (head, text) = bytes.split_at_checked(HEAD)?;
    let text = match text {
        [0, choices @ ..] => generated(choices).into_bytes().into(),
        text => text.into(),
    };
    Some((head, text))
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

/// The memory of all launches, which is never freed.
pub struct Memory {
    base: u64,
    /// On the stack of who launches.
    canary: [u8; 64],
}

impl Memory {
    /// The memory, filled: zeroes in what is the kernel's own, canaries in the rest. One thread has it.
    #[must_use]
    pub fn filled() -> Self {
        static MEMORY: OnceLock<u64> = OnceLock::new();
        let base = *MEMORY.get_or_init(|| {
            let layout = Layout::from_size_align((GRANULES * GRANULE) as usize, GRANULE as usize);
            // SAFETY: the layout is not empty.
            let start = unsafe { alloc_zeroed(layout.expect("a layout")) };
            assert!(!start.is_null());
            start as u64
        });
        for granule in 0..GRANULES {
            let own = OWN.contains(&granule);
            let start = (base + granule * GRANULE) as *mut u8;
            let byte = if own { 0 } else { CANARY };
            // SAFETY: inside of the memory above, which only this thread uses, between launches.
            unsafe { std::ptr::write_bytes(start, byte, GRANULE as usize) };
        }
        Self {
            base,
            canary: [CANARY; 64],
        }
    }

    /// Where a granule begins.
    #[must_use]
    pub fn granule(&self, number: u64) -> u64 {
        self.base + number * GRANULE
    }

    /// Writes a word, at an address inside of it that is aligned.
    pub fn write(&self, address: u64, word: u64) {
        self.assert_inside(address);
        // SAFETY: tested to be inside of the memory and aligned; no kernel runs now.
        unsafe { (address as *mut u64).write(word) };
    }

    /// The word at an address inside of it that is aligned.
    #[must_use]
    pub fn read(&self, address: u64) -> u64 {
        self.assert_inside(address);
        // SAFETY: tested to be inside of the memory and aligned; no kernel runs now.
        unsafe { (address as *const u64).read() }
    }

    fn assert_inside(&self, address: u64) {
        let inside = self.base..=self.granule(GRANULES) - 8;
        assert!(inside.contains(&address) && address.is_multiple_of(8));
    }

    /// What a kernel reaches of it: these granules.
    #[must_use]
    pub fn space(&self, valid: &[RangeInclusive<u64>]) -> Arc<AddressSpace> {
        // SAFETY: the memory is never freed, and there are no references into it while a kernel runs.
        let window = unsafe { Window::new(self.base, GRANULES * GRANULE, Arc::new(())) };
        for granules in valid {
            let count = granules.end() - granules.start() + 1;
            window.set_valid(self.granule(*granules.start()), count * GRANULE, true);
        }
        Arc::new(AddressSpace::new(vec![Arc::new(window)]))
    }

    /// The parameters: places that are its own, its neighbours', the stack's and nobody's, with offsets.
    fn params(&self, head: &[u8]) -> Vec<u8> {
        let places = [
            self.granule(OWN[0]),
            self.granule(OWN[1]),
            self.granule(OWN[1] + 1) - 64,
            self.base,
            self.granule(GRANULES),
            self.canary.as_ptr() as u64,
            0,
            u64::MAX - 4096,
        ];
        head.chunks_exact(3)
            .flat_map(|part| {
                let offset = i16::from_le_bytes([part[1], part[2]]);
                let place = places[usize::from(part[0]) % places.len()];
                place.wrapping_add_signed(i64::from(offset)).to_le_bytes()
            })
            .collect()
    }

    /// Launches the first two kernels of a module, one after the other, with its variables at these addresses. What goes on
    /// for ever ends when it is asked to.
    pub fn launch(
        &self,
        head: &[u8],
        module: &Module,
        globals: &Arc<[u64]>,
        space: &Arc<AddressSpace>,
    ) {
        let params = self.params(head);
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
                globals: Arc::clone(globals),
                memory: Arc::clone(space),
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
            cancel.store(true, Ordering::Relaxed);
            for mut cluster in clusters {
                while matches!(cluster.run(1 << 20), Outcome::Yielded | Outcome::Waits) {}
            }
            cancel.store(false, Ordering::Relaxed);
        }
    }

    /// Panics if anything but the kernel's own granules, and these, has changed.
    pub fn assert_whole(&self, but: &[u64]) {
        let others =
            (0..GRANULES).filter(|granule| !OWN.contains(granule) && !but.contains(granule));
        for granule in others {
            let start = self.granule(granule) as *const u8;
            // SAFETY: inside of the memory, which only this thread uses, between launches.
            let bytes = unsafe { std::slice::from_raw_parts(start, GRANULE as usize) };
            let whole = bytes.iter().all(|byte| *byte == CANARY);
            assert!(whole, "granule {granule} was touched");
        }
        assert_eq!(self.canary, [CANARY; 64], "the stack was touched");
    }
}
