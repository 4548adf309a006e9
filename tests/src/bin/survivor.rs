//! A program that uses CUDA for some rounds, each when it is told so, and checks everything that it left on the device in
//! the rounds before. Tests end its server in between.
//!
//! It knows nothing of OpenMPS. A round that goes wrong says `error` and its number; `reset` makes all anew.

use std::ffi::c_void;
use std::time::Duration;

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{answer, hear, say};

const KERNELS: &str = include_str!("../../kernels/kernels.ptx");

/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

/// What `bump` counts from.
const COUNTER: u64 = 7;

/// Elements of what rounds compute.
const COUNT: usize = 64 * 256;

/// Bytes of a block that is larger than the addresses with which a client begins, and where something lies in it.
const LARGE: u64 = 5 << 30;
const PLACES: [u64; 4] = [0, (2 << 30) - 4096, 4 << 30, LARGE - (1 << 20)];

/// What it has on the device.
struct Objects {
    module: Handle,
    bump: Handle,
    streams: [Handle; 2],
    event: Handle,
    /// Of some sizes, each with its number in it.
    blocks: Vec<(Address, usize, u64)>,
    /// What is larger than the addresses that it begins with, each with the numbers that lie in it here and there.
    large: Vec<(Address, u64)>,
    /// Where rounds compute, and where they do without anything large.
    data: Address,
    small: Address,
    sums: Address,
    old: Address,
    pinned: *mut u64,
    graph: Handle,
    /// Launches of `bump` that were asked for.
    bumps: u64,
}

fn main() {
    let driver = Driver::ready();
    let mut objects = Objects::new(&driver).expect("a server");
    say("ready");
    let mut round = 0;
    loop {
        let told = hear();
        let result = match told.as_str() {
            "round" => {
                round += 1;
                objects.round(&driver, round)
            }
            // Work that nobody waits for yet.
            "post" => objects.post(&driver, 200),
            // Asks for it now and then, and does not wait.
            "poll" => objects.poll(&driver),
            "forever" => objects.begin_forever(&driver),
            "wait" => driver.synchronize(),
            "array" => array(&driver),
            "grow" => objects.grow(&driver),
            "shrink" => objects.shrink(&driver),
            "loop" => objects.until_it_fails(&driver),
            "reset" => driver.reset().and_then(|()| {
                objects = Objects::new(&driver)?;
                Ok(())
            }),
            _ => return,
        };
        answer(result);
    }
}

/// Makes an array, which lives in its server alone.
fn array(driver: &Driver) -> Result<(), Code> {
    #[repr(C)]
    struct Descriptor {
        width: usize,
        height: usize,
        format: u32,
        channels: u32,
    }
    // CU_AD_FORMAT_UNSIGNED_INT32
    let descriptor = Descriptor {
        width: 16,
        height: 16,
        format: 3,
        channels: 1,
    };
    let mut made = 0;
    let from = (&raw const descriptor).cast::<c_void>();
    // SAFETY: the descriptor has the shape of CUDA_ARRAY_DESCRIPTOR, and the out pointer is a local's.
    unsafe { driver.array_create(&raw mut made, from) }
}

impl Objects {
    /// Asks some times, not often, whether all work is done.
    fn poll(&self, driver: &Driver) -> Result<(), Code> {
        const TIMES: usize = 200;
        /// CUDA_ERROR_NOT_READY
        const NOT_READY: Code = 600;
        let mut asked = Ok(());
        for _ in 0..TIMES {
            let mut each = self.streams.iter();
            // SAFETY: the streams are this program's own.
            asked = each.try_for_each(|&stream| unsafe { driver.stream_query(stream) });
            match asked {
                Err(NOT_READY) => std::thread::sleep(Duration::from_millis(50)),
                _ => break,
            }
        }
        asked
    }

    fn new(driver: &Driver) -> Result<Self, Code> {
        // What is made and ended leaves nothing to be made again.
        for _ in 0..10 {
            let passing = driver.stream(NON_BLOCKING)?;
            let block = driver.alloc(5 << 20)?;
            // SAFETY: both are this program's own and used by nobody.
            unsafe {
                driver.stream_destroy(passing)?;
                driver.mem_free(block)?;
            }
        }
        let module = driver.module(KERNELS)?;
        let mut blocks = Vec::new();
        for (number, bytes) in (0..).zip([512, 24 << 10, 512, 63 << 10, 1024, 1 << 20, 33 << 20]) {
            blocks.push((driver.alloc(bytes)?, bytes, 1000 + number));
        }
        // A hole between small ones.
        // SAFETY: it is this program's own and used by nobody.
        unsafe { driver.mem_free(blocks.remove(2).0)? };
        for &(block, bytes, number) in &blocks {
            driver.upload(block, &vec![number; bytes / 8])?;
        }
        let (mut event, mut pinned) = (0, std::ptr::null_mut());
        // SAFETY: the out pointers are locals'.
        unsafe {
            driver.event_create(&raw mut event, 0)?;
            driver.mem_host_alloc(&raw mut pinned, COUNT * 8, 0)?;
        }
        let small = driver.alloc(COUNT * 8)?;
        let mut objects = Self {
            module,
            bump: driver.function(module, "bump")?,
            streams: [driver.stream(0)?, driver.stream(NON_BLOCKING)?],
            event,
            blocks,
            large: Vec::new(),
            data: small,
            small,
            sums: driver.alloc(64 * 8)?,
            old: driver.alloc(8)?,
            pinned: pinned.cast(),
            graph: 0,
            bumps: 0,
        };
        objects.graph = objects.capture(driver)?;
        Ok(objects)
    }

    /// A graph of three launches of `bump`.
    fn capture(&self, driver: &Driver) -> Result<Handle, Code> {
        let [_, stream] = self.streams;
        let (mut graph, mut exec) = (0, 0);
        // SAFETY: the out pointers are locals'.
        unsafe {
            driver.stream_begin_capture(stream, 0)?;
            for _ in 0..3 {
                driver.launch(self.bump, 1, 1, stream, &[self.old])?;
            }
            driver.stream_end_capture(stream, &raw mut graph)?;
            driver.graph_instantiate(&raw mut exec, graph, 0)?;
        }
        Ok(exec)
    }

    /// Computes something, and checks it and all that rounds before have left.
    fn round(&mut self, driver: &Driver, round: u64) -> Result<(), Code> {
        let [blocking, other] = self.streams;
        let sequence = driver.function(self.module, "sequence")?;
        let sum = driver.function(self.module, "block_sum")?;
        let factor = u64::from(std::process::id());
        let parameters = [self.data, COUNT as u64, factor, round];
        driver.launch(sequence, 16, 128, blocking, &parameters)?;
        // SAFETY: handles and memory are this program's own; what is copied to lives until the round's end.
        unsafe {
            driver.event_record(self.event, blocking)?;
            driver.stream_wait_event(other, self.event, 0)?;
            driver.launch(sum, 64, 256, other, &[self.data, self.sums])?;
            driver.copy_to_host_async(self.pinned.cast(), self.data, COUNT * 8, other)?;
            driver.graph_launch(self.graph, other)?;
            driver.stream_synchronize(other)?;
        }
        self.bumps += 3;
        let passing = driver.alloc(100 << 10)?;
        // SAFETY: it is this program's own and used by nobody.
        unsafe { driver.mem_free(passing)? };
        let mut totals = vec![0u64; 64];
        driver.download(&mut totals, self.sums)?;
        // SAFETY: as many elements were allocated, and nothing writes them now.
        let values = unsafe { std::slice::from_raw_parts(self.pinned, COUNT) };
        for (at, value) in (0..).zip(values) {
            assert_eq!(*value, at * factor + round, "element {at} of round {round}");
        }
        for (block, total) in totals.iter().enumerate() {
            let expected: u64 = values[block * 256..][..256].iter().sum();
            assert_eq!(*total, expected, "block {block} of round {round}");
        }
        self.check(driver)
    }

    /// Every launch of `bump` was carried out once, and every block holds what was written to it.
    fn check(&self, driver: &Driver) -> Result<(), Code> {
        let mut old = [0u64];
        driver.download(&mut old, self.old)?;
        assert_eq!(old[0], COUNTER + self.bumps - 1, "launches are counted");
        for &(block, bytes, number) in &self.blocks {
            let mut held = vec![0u64; bytes / 8];
            driver.download(&mut held, block)?;
            assert!(held.iter().all(|&it| it == number), "block {number}");
        }
        for &(block, number) in &self.large {
            for place in PLACES {
                let mut held = vec![0u64; 513];
                driver.download(&mut held, block + place)?;
                let (written, behind) = held.split_at(512);
                let is_there = written.iter().all(|&it| it == number + place);
                assert!(
                    is_there && behind == [0],
                    "large block {number} at {place:#x}"
                );
            }
        }
        Ok(())
    }

    /// Allocates more than the addresses that it begins with, writes to it here and there, and computes there from now on.
    fn grow(&mut self, driver: &Driver) -> Result<(), Code> {
        let before = self.large.len() as u64;
        for number in 2000 + before..2002 + before {
            let block = driver.alloc(LARGE as usize)?;
            for place in PLACES {
                driver.upload(block + place, &[number + place; 512])?;
            }
            self.large.push((block, number));
            self.data = block + LARGE - (COUNT as u64) * 8;
        }
        Ok(())
    }

    /// Gives that back, and waits for no answer.
    fn shrink(&mut self, driver: &Driver) -> Result<(), Code> {
        self.data = self.small;
        let mut blocks = self.large.drain(..);
        // SAFETY: the blocks are this program's own, and nothing uses them.
        blocks.try_for_each(|(block, _)| unsafe { driver.mem_free(block) })
    }

    /// Posts work and waits for none of it.
    fn post(&mut self, driver: &Driver, count: u64) -> Result<(), Code> {
        let [_, stream] = self.streams;
        for _ in 0..count {
            driver.launch(self.bump, 1, 1, stream, &[self.old])?;
        }
        self.bumps += count;
        // Made where no server can answer.
        self.streams[0] = driver.stream(0)?;
        Ok(())
    }

    /// Launches a kernel that does not end, and waits until it runs.
    fn begin_forever(&self, driver: &Driver) -> Result<(), Code> {
        let counts = self.pinned.cast_const();
        let forever = driver.function(self.module, "forever")?;
        let [_, stream] = self.streams;
        // SAFETY: page-locked memory of this program's, which only the kernel writes.
        let look = || unsafe { counts.read_volatile() };
        let before = look();
        driver.launch(forever, 1, 1, stream, &[counts.addr() as u64])?;
        while look() == before {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Goes on with rounds. That ends well where nothing was cut off: it is told to, or its server went.
    fn until_it_fails(&mut self, driver: &Driver) -> Result<(), Code> {
        let began = std::time::Instant::now();
        let mut round = 0;
        while began.elapsed() < Duration::from_secs(2) {
            round += 1;
            self.round(driver, round)?;
        }
        Ok(())
    }
}
