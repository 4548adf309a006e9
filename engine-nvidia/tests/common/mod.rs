//! The fake driver: compiled for each test, so that each has one of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "not every test file loads machine code")]
pub mod machine_code;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use engine_nvidia::{NvidiaEngine, OpenError, prepare_environment};
use libloading::os::unix::Library;

/// A module with one variable, and a kernel that writes its second parameter to the address in its first.
#[allow(dead_code, reason = "not every test file loads one")]
pub const PTX: &str = ".version 7.8\n.visible .global .b8 room[64];\n.visible .entry poke() {}";

/// Parameters of that kernel.
#[allow(dead_code, reason = "not every test file launches one")]
pub fn poke(to: u64, value: u32) -> Vec<u8> {
    [&to.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

/// Waits until something holds, for a minute at most.
#[allow(dead_code, reason = "not every test file waits")]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A fake driver's file.
pub struct Fake {
    directory: tempfile::TempDir,
}

impl Fake {
    /// Compiles one, with the definitions that `driver.c` tells of.
    pub fn new(definitions: &[&str]) -> Self {
        let fake = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-pthread"])
            .args(
                definitions
                    .iter()
                    .map(|definition| format!("-D{definition}")),
            )
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/driver.c"))
            .arg("-o")
            .arg(fake.path())
            .status()
            .unwrap();
        assert!(compiled.success());
        fake
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("libcuda.so.1")
    }

    /// The engine over it.
    pub fn open(&self) -> Result<NvidiaEngine, OpenError> {
        open(&self.path())
    }
}

/// The engine over a driver.
pub fn open(path: &Path) -> Result<NvidiaEngine, OpenError> {
    static PREPARED: Once = Once::new();
    // SAFETY: all tests come through here before they read the environment, but for what the standard
    // library reads under its own lock.
    PREPARED.call_once(|| unsafe { prepare_environment() });
    NvidiaEngine::open_at(path)
}

/// What a test turns in a fake driver that is loaded.
pub struct Controls {
    library: Arc<Library>,
}

thread_local! {
    /// The fake drivers that this thread's test turns something in.
    static TURNED: RefCell<Vec<Weak<Library>>> = const { RefCell::new(Vec::new()) };
}

/// Has what spins or is held go on when this thread's test fails: else what the test drops would wait for it, and nobody would hear of
/// the failure.
fn let_go_if_it_fails(library: &Arc<Library>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            tell(info);
            let turned = TURNED.with_borrow(|turned| turned.clone());
            for library in turned.iter().filter_map(Weak::upgrade) {
                let controls = Controls { library };
                controls.spin(false);
                controls.hold(false);
            }
        }));
    });
    TURNED.with_borrow_mut(|turned| turned.push(Arc::downgrade(library)));
}

#[allow(dead_code, reason = "not every test file turns something")]
impl Controls {
    /// The controls of a fake.
    pub fn of(fake: &Fake) -> Self {
        // SAFETY: our own file; it has no constructors here.
        let library = Arc::new(unsafe { Library::new(fake.path()) }.unwrap());
        let_go_if_it_fails(&library);
        Self { library }
    }

    /// Holds all streams, or lets them go.
    pub fn hold(&self, on: bool) {
        self.turn(b"fake_hold\0", on);
    }

    /// Lets so many modules be loaded, and holds who loads more in that call; with `None` nobody.
    pub fn hold_loads(&self, left: Option<i32>) {
        self.set(b"fake_hold_loads\0", left.unwrap_or(-1));
    }

    /// Has kernels whose first parameter is 0 spin, or end.
    pub fn spin(&self, on: bool) {
        self.turn(b"fake_spin\0", on);
    }

    /// Ends the first kernel that spins; the others go on.
    pub fn end_one(&self) {
        self.turn(b"fake_end\0", true);
    }

    /// Signals the semaphore that was imported last, as the other interface, with a value.
    pub fn signal(&self, value: i32) {
        self.set(b"fake_signal\0", value);
    }

    fn turn(&self, what: &[u8], on: bool) {
        self.set(what, i32::from(on));
    }

    fn set(&self, what: &[u8], value: i32) {
        // SAFETY: the functions that are named here have this type in `driver.c`.
        unsafe {
            let set = self.library.get::<unsafe extern "C" fn(i32)>(what).unwrap();
            set(value);
        }
    }

    /// Of which device alone contexts die.
    pub fn dies_alone(&self, device: i32) {
        self.set(b"fake_die_of\0", device);
    }

    /// Kills the contexts.
    pub fn die(&self, code: u32) {
        // SAFETY: the function has this type in `driver.c`.
        unsafe {
            let die = self
                .library
                .get::<unsafe extern "C" fn(i32)>(b"fake_die\0")
                .unwrap();
            die(code.cast_signed());
        }
    }

    /// How many streams, modules, registrations, events and bytes of physical memory there are.
    pub fn counts(&self) -> [i64; 5] {
        std::array::from_fn(|what| self.count(what as i32))
    }

    /// How many calls were made that wait, in the real driver, for kernels that were running.
    pub fn stalls(&self) -> i64 {
        self.count(5)
    }

    /// The multiprocessors that the last launch was held to; 0 for all.
    pub fn part(&self) -> i64 {
        self.count(6)
    }

    /// The groups of multiprocessors that the last launch was held to, as bits; 0 for all.
    pub fn groups(&self) -> i64 {
        self.count(12)
    }

    /// Has the call find no memory that is so many calls away; 0 for none. Gives how far it was still.
    pub fn fail(&self, calls: i32) -> i32 {
        // SAFETY: the function has this type in `driver.c`.
        unsafe {
            let fail = self
                .library
                .get::<unsafe extern "C" fn(i32) -> i32>(b"fake_fail\0")
                .unwrap();
            fail(calls)
        }
    }

    /// How far the call that finds no memory is.
    pub fn left_to_fail(&self) -> i64 {
        self.count(16)
    }

    /// Commands that streams have not done.
    pub fn queued(&self) -> i64 {
        self.count(7)
    }

    /// Graphs that there are, as graphs and as executables.
    pub fn graphs(&self) -> i64 {
        self.count(8)
    }

    /// Waits until the engine has made its batches of the whole device, which it does beside the rest: eight of six lengths, as graphs and
    /// executables. Meanwhile work may wait for a moment.
    pub fn has_batches(&self) {
        until("there are batches", || self.graphs() == 2 * 6 * 8);
    }

    /// How often nodes of graphs were changed.
    pub fn changed_nodes(&self) -> i64 {
        self.count(14)
    }

    /// Nodes of graphs that were changed when a function that they had was gone.
    pub fn stale_nodes(&self) -> i64 {
        self.count(11)
    }

    /// Launches of graphs, and of kernels by themselves.
    pub fn launches(&self) -> (i64, i64) {
        (self.count(9), self.count(10))
    }

    /// Words that streams were asked to write.
    pub fn signatures(&self) -> i64 {
        self.count(13)
    }

    /// The sum of the values of attributes that nodes of graphs were given.
    pub fn node_attributes(&self) -> i64 {
        self.count(18)
    }

    /// Semaphores that are imported.
    pub fn semaphores(&self) -> i64 {
        self.count(17)
    }

    /// Modules that were loaded, of ours too.
    pub fn loads(&self) -> i64 {
        self.count(15)
    }

    /// To what an attribute of a function was last set.
    pub fn attribute(&self, attribute: u32) -> i32 {
        // SAFETY: the function has this type in `driver.c`.
        unsafe {
            let asked = self
                .library
                .get::<unsafe extern "C" fn(u32) -> i32>(b"fake_attribute\0")
                .unwrap();
            asked(attribute)
        }
    }

    /// The text of the module that was loaded last, as it was loaded.
    pub fn text(&self) -> String {
        // SAFETY: the function has this type in `driver.c`, and gives a string that is never freed.
        unsafe {
            let text = self
                .library
                .get::<unsafe extern "C" fn() -> *const std::ffi::c_char>(b"fake_text\0")
                .unwrap();
            std::ffi::CStr::from_ptr(text())
                .to_str()
                .unwrap()
                .to_owned()
        }
    }

    /// Where the driver has a variable of that module.
    pub fn variable(&self, name: &std::ffi::CStr) -> u64 {
        // SAFETY: the function has this type in `driver.c`, and reads a string that is there.
        unsafe {
            let variable = self
                .library
                .get::<unsafe extern "C" fn(*const std::ffi::c_char) -> u64>(b"fake_variable\0")
                .unwrap();
            variable(name.as_ptr())
        }
    }

    /// The first bytes of the file that module is of, which has so many.
    pub fn code(&self, bytes: usize) -> Vec<u8> {
        // SAFETY: the function has this type in `driver.c`, and gives what is never freed; the caller says how long it is.
        unsafe {
            let code = self
                .library
                .get::<unsafe extern "C" fn() -> *const u8>(b"fake_code\0")
                .unwrap();
            std::slice::from_raw_parts(code(), bytes).to_vec()
        }
    }

    /// The words that say what the kernels of that module may reach.
    pub fn fence(&self) -> [u64; 5] {
        self.words(b"fake_fence\0")
    }

    /// The first words of what only that module's kernels may reach.
    pub fn list(&self) -> [u64; 2] {
        self.words(b"fake_list\0")
    }

    fn words<const COUNT: usize>(&self, what: &[u8]) -> [u64; COUNT] {
        // SAFETY: the functions that are named here have this type in `driver.c`, and give as many words of a module that
        // is there.
        unsafe {
            let place = self
                .library
                .get::<unsafe extern "C" fn() -> u64>(what)
                .unwrap();
            *(place() as *const [u64; COUNT])
        }
    }

    fn count(&self, what: i32) -> i64 {
        // SAFETY: the function has this type in `driver.c`.
        unsafe {
            let count = self
                .library
                .get::<unsafe extern "C" fn(i32) -> i64>(b"fake_count\0")
                .unwrap();
            count(what)
        }
    }

    /// Waits, for ten seconds at most, until one of the counts is this: what an idle device gives back
    /// goes a little later.
    pub fn settle(&self, what: usize, count: i64) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.counts()[what] != count {
            assert!(Instant::now() < until, "{:?}", self.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
