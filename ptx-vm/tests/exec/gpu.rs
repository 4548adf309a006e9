//! A small driver for tests: memory in one window, kernels by name, launches run to their end.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ptx_vm::{
    AddressSpace, Cluster, CodeBytes, Fault, GRANULE, KeptCode, Launch, LaunchError, LaunchSpec,
    Module, Options, Outcome, Services, Textures, Window,
};

/// Memory that starts and ends at granules.
struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: it owns its bytes, which are the allocator's and so of no thread.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives only the address; who goes through it keeps the executor's contract.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Programs of a module, by kernel and lanes.
#[derive(Debug, Default)]
struct Programs(Mutex<HashMap<(u32, u32), Vec<u8>>>);

impl KeptCode for Programs {
    fn find(&self, kernel: u32, lanes: u32) -> Option<CodeBytes> {
        let programs = self.0.lock().unwrap();
        CodeBytes::copy_of(programs.get(&(kernel, lanes))?)
    }

    fn compiled(&self, kernel: u32, lanes: u32, bytes: Option<&[u8]>) {
        let bytes = bytes.expect("this build has a name").to_vec();
        let before = self.0.lock().unwrap().insert((kernel, lanes), bytes);
        assert!(before.is_none(), "it was kept");
    }

    fn compile(&self) -> Option<Module> {
        panic!("all is kept")
    }
}

/// A device with a window of memory and one module. What runs is what was kept of the module and its programs, as a process
/// has it that has not compiled them.
pub struct Gpu {
    pub window: Arc<Window>,
    pub space: Arc<AddressSpace>,
    next: u64,
    /// As it was compiled.
    compiled: Module,
    /// As it was kept.
    pub module: Module,
    globals: Arc<[u64]>,
    pub cancel: Arc<AtomicBool>,
    pub textures: Arc<Textures>,
    pub services: Arc<dyn Services>,
    pub cooperative: bool,
    pub cluster: Option<[u32; 3]>,
}

impl Gpu {
    /// Loads PTX text.
    pub fn new(ptx: &str) -> Self {
        Self::with(ptx, &Options::default(), 256)
    }

    /// Loads PTX text; the window has so many granules.
    pub fn with(ptx: &str, options: &Options, granules: u64) -> Self {
        let tree = ptx::parse(ptx).unwrap_or_else(|error| panic!("{error}"));
        let options = Options {
            kept: Some(Arc::new(Programs::default())),
            ..options.clone()
        };
        let compiled = Module::load(&tree, &options).unwrap_or_else(|error| panic!("{error}"));
        let module = Module::from_kept(&compiled.to_kept(), &options).expect("it was kept");
        let len = granules * GRANULE;
        let layout = Layout::from_size_align(len as usize, GRANULE as usize).unwrap();
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        let memory = Arc::new(Memory { start, layout });
        // SAFETY: the memory lives as long as its owner, and nobody makes references into it.
        let window = Arc::new(unsafe { Window::new(start as u64, len, memory) });
        let space = Arc::new(AddressSpace::new(vec![Arc::clone(&window)]));
        let next = window.base() + GRANULE;
        let cancel = Arc::new(AtomicBool::new(false));
        let mut gpu = Self {
            window,
            space,
            next,
            compiled,
            module,
            globals: Arc::new([]),
            cancel,
            textures: Arc::default(),
            services: Arc::new(()),
            cooperative: false,
            cluster: None,
        };
        gpu.place_globals();
        gpu
    }

    fn place_globals(&mut self) {
        let globals = self.module.globals().to_vec();
        let addresses: Vec<u64> = globals
            .iter()
            .map(|global| self.alloc_bytes(global.size))
            .collect();
        for (global, &address) in globals.iter().zip(&addresses) {
            self.write(address, &global.init);
            for relocation in &global.relocations {
                let base = relocation.target.map_or(0, |target| addresses[target]);
                self.write(
                    address + relocation.offset,
                    &[base.wrapping_add(relocation.addend)],
                );
            }
        }
        self.globals = addresses.into();
    }

    /// The address of a module's variable.
    pub fn global(&self, name: &str) -> u64 {
        let index = self
            .module
            .globals()
            .iter()
            .position(|global| global.name == name)
            .unwrap();
        self.globals[index]
    }

    /// Memory of so many bytes, zeroed.
    pub fn alloc_bytes(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next += bytes.max(1).next_multiple_of(GRANULE);
        assert!(
            self.next < self.window.base() + self.window.len(),
            "the window is full"
        );
        self.window.set_valid(address, bytes.max(1), true);
        address
    }

    /// Memory with these values.
    pub fn upload<T: Copy>(&mut self, values: &[T]) -> u64 {
        let address = self.alloc_bytes(size_of_val(values) as u64);
        self.write(address, values);
        address
    }

    /// Writes values to memory.
    pub fn write<T: Copy>(&self, address: u64, values: &[T]) {
        let end = address + size_of_val(values) as u64;
        assert!(address >= self.window.base() && end <= self.window.base() + self.window.len());
        // SAFETY: inside the window; no kernel runs now.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr().cast::<u8>(),
                address as *mut u8,
                size_of_val(values),
            );
        }
    }

    /// Reads values from memory.
    pub fn read<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = size_of::<T>() * count;
        assert!(address >= self.window.base());
        assert!(address + bytes as u64 <= self.window.base() + self.window.len());
        // SAFETY: inside the window; no kernel runs now.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, values.as_mut_ptr().cast(), bytes);
        };
        values
    }

    /// A launch.
    pub fn launch(
        &self,
        name: &str,
        grid: impl Dim,
        block: impl Dim,
        shared: u32,
        args: &Args,
    ) -> Arc<Launch> {
        self.try_launch(name, grid, block, shared, args)
            .expect("launch")
    }

    /// A launch, or why it is refused.
    pub fn try_launch(
        &self,
        name: &str,
        grid: impl Dim,
        block: impl Dim,
        shared: u32,
        args: &Args,
    ) -> Result<Arc<Launch>, LaunchError> {
        let (grid, block) = (grid.dim(), block.dim());
        self.launch_of(&self.compiled, name, grid, block, shared, args)?;
        self.launch_of(&self.module, name, grid, block, shared, args)
    }

    fn launch_of(
        &self,
        module: &Module,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &Args,
    ) -> Result<Arc<Launch>, LaunchError> {
        let kernel = module.kernel(name);
        let kernel = Arc::clone(kernel.unwrap_or_else(|| panic!("no kernel {name}")));
        let mut params = args.0.clone();
        params.resize(kernel.param_bytes as usize, 0);
        Launch::new(LaunchSpec {
            kernel,
            grid,
            block,
            cluster: self.cluster,
            dynamic_shared: shared,
            params: params.into(),
            globals: Arc::clone(&self.globals),
            memory: Arc::clone(&self.space),
            textures: Arc::clone(&self.textures),
            cancel: Arc::clone(&self.cancel),
            grid_id: 1,
            graph: 0,
            sm_count: 4,
            services: Arc::clone(&self.services),
            runtime: None,
            cooperative: self.cooperative,
        })
        .map(Arc::new)
    }

    /// Runs a grid to its end, all blocks at once, taking turns.
    pub fn try_run(
        &self,
        name: &str,
        grid: impl Dim,
        block: impl Dim,
        shared: u32,
        args: &Args,
    ) -> Result<(), Fault> {
        let launch = self.launch(name, grid, block, shared, args);
        run_all(&[launch], 1 << 14)
    }

    /// Runs a grid to its end; panics at a fault.
    pub fn run(&self, name: &str, grid: impl Dim, block: impl Dim, args: &Args) {
        self.try_run(name, grid, block, 0, args)
            .unwrap_or_else(|fault| panic!("{fault}"));
    }

    /// Asks running kernels to end.
    #[allow(dead_code, reason = "not every test file does")]
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// Runs all clusters of all launches in turns of `budget`.
pub fn run_all(launches: &[Arc<Launch>], budget: u64) -> Result<(), Fault> {
    let mut clusters: Vec<Cluster> = launches
        .iter()
        .flat_map(|launch| {
            (0..launch.clusters())
                .map(|index| Cluster::new(Arc::clone(launch), index, 0).expect("a cluster"))
        })
        .collect();
    let mut rounds = 0;
    while !clusters.is_empty() {
        let mut left = Vec::new();
        for mut cluster in clusters {
            match cluster.run(budget) {
                Outcome::Finished => {}
                Outcome::Yielded | Outcome::Waits => left.push(cluster),
                Outcome::Fault(fault) => return Err(*fault),
                Outcome::Cancelled => panic!("cancelled"),
            }
        }
        clusters = left;
        rounds += 1;
        assert!(rounds < 1_000_000, "the kernel does not end");
    }
    Ok(())
}

/// One to three dimensions.
pub trait Dim {
    fn dim(self) -> [u32; 3];
}

impl Dim for u32 {
    fn dim(self) -> [u32; 3] {
        [self, 1, 1]
    }
}

impl Dim for [u32; 3] {
    fn dim(self) -> [u32; 3] {
        self
    }
}

/// Kernel arguments, each aligned to its size.
#[derive(Clone, Default)]
pub struct Args(Vec<u8>);

impl Args {
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        let len = self.0.len().next_multiple_of(bytes.len());
        self.0.resize(len, 0);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn ptr(self, address: u64) -> Self {
        self.push(&address.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_le_bytes())
    }

    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn u64(self, value: u64) -> Self {
        self.push(&value.to_le_bytes())
    }

    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn f64(self, value: f64) -> Self {
        self.push(&value.to_le_bytes())
    }
}
