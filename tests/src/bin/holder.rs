//! A program with memory of some sizes on the device and in the host, whose contents it checks each time when it is told so.
//! Tests end its server in between.
//!
//! It knows nothing of OpenMPS. Its kernel writes a value of 32 bits to an address, or spins, so that a driver that has no
//! compiler can run it: see `engine-nvidia/tests/fake/driver.c`. What goes wrong is said as `error` and its number.

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{answer, hear, say};

/// The fake driver looks at the name and the parameters alone.
const KERNELS: &str = ".version 7.8\n.target sm_80\n.address_size 64\n\
    .visible .entry set(.param .u64 to, .param .u32 value)\n{\n\
    .reg .b64 %d<2>; .reg .b32 %r<2>; .reg .pred %p<2>;\n\
    ld.param.u64 %d1, [to]; ld.param.u32 %r1, [value]; setp.eq.u64 %p1, %d1, 0;\n\
    SPIN: @%p1 bra SPIN;\n\
    st.global.u32 [%d1], %r1; ret;\n}\n";

/// CU_STREAM_NON_BLOCKING
const NON_BLOCKING: u32 = 1;

/// Blocks as PyTorch allocates them, and how many of them are more than the addresses with which a client begins.
const LARGE: u64 = 20 << 20;
const MANY: u64 = 900;

/// What it has.
struct Objects {
    set: Handle,
    stream: Handle,
    event: Handle,
    /// Of some sizes, each with its number in it.
    blocks: Vec<(Address, usize, u64)>,
    /// Many of [`LARGE`] bytes each, with its number in its first word and its last one.
    large: Vec<(Address, u64)>,
    /// A number, and room for what is in the first block.
    pinned: *mut u64,
    /// The last value that a kernel wrote to the first block.
    value: u32,
}

fn main() {
    let driver = Driver::ready();
    let mut objects = Objects::new(&driver).expect("a server");
    say("ready");
    loop {
        let result = match hear().as_str() {
            "round" => objects.round(&driver),
            "spin" => objects.spin(&driver),
            // The server has taken what was posted when it answers what comes behind.
            "post" => objects
                .post(&driver)
                .and_then(|()| driver.memory().map(drop)),
            "copy" => objects
                .copy(&driver)
                .and_then(|()| driver.memory().map(drop)),
            "where" => {
                say(&objects.blocks[0].0.to_string());
                continue;
            }
            "grow" => objects.grow(&driver),
            "shrink" => objects.shrink(&driver),
            "wait" => driver.synchronize(),
            "reset" => driver.reset().and_then(|()| {
                objects = Objects::new(&driver)?;
                Ok(())
            }),
            _ => return,
        };
        answer(result);
    }
}

impl Objects {
    fn new(driver: &Driver) -> Result<Self, Code> {
        let module = driver.module(KERNELS)?;
        let mut blocks = Vec::new();
        for (number, bytes) in (0..).zip([512, 24 << 10, 63 << 10, 1 << 20, 33 << 20]) {
            blocks.push((driver.alloc(bytes)?, bytes, 1000 + number));
        }
        // What is given back in between leaves a hole.
        // SAFETY: it is this program's own and used by nobody.
        unsafe { driver.mem_free(blocks.remove(2).0)? };
        for &(block, bytes, number) in &blocks {
            driver.upload(block, &vec![number; bytes / 8])?;
        }
        let (mut event, mut pinned) = (0, std::ptr::null_mut());
        // SAFETY: the out pointers are locals'.
        unsafe {
            driver.event_create(&raw mut event, 0)?;
            driver.mem_host_alloc(&raw mut pinned, 8 + blocks[0].1, 0)?;
        }
        let pinned = pinned.cast();
        // SAFETY: 8 bytes and more were allocated, and nothing else uses them.
        unsafe { *pinned = 77 };
        Ok(Self {
            set: driver.function(module, "set")?,
            stream: driver.stream(NON_BLOCKING)?,
            event,
            blocks,
            large: Vec::new(),
            pinned,
            value: 1000,
        })
    }

    /// Allocates many large blocks, and gives some in between back.
    fn grow(&mut self, driver: &Driver) -> Result<(), Code> {
        let mut passing = Vec::new();
        for number in 5000..5000 + MANY {
            let block = driver.alloc(LARGE as usize)?;
            // What is free again soon may be had again with what this program has left in it.
            let stays = number % 50 != 0;
            let held = if stays { number } else { 0 };
            driver.upload(block, &[held])?;
            driver.upload(block + LARGE - 8, &[held])?;
            match stays {
                true => self.large.push((block, number)),
                false => passing.push(block),
            }
        }
        let mut passing = passing.into_iter();
        // SAFETY: they are this program's own and used by nobody.
        passing.try_for_each(|block| unsafe { driver.mem_free(block) })
    }

    /// Gives them back, and waits for no answer.
    fn shrink(&mut self, driver: &Driver) -> Result<(), Code> {
        let mut blocks = self.large.drain(..);
        // SAFETY: the blocks are this program's own and used by nobody.
        blocks.try_for_each(|(block, _)| unsafe { driver.mem_free(block) })
    }

    /// Has a kernel write something, and does not wait.
    fn post(&mut self, driver: &Driver) -> Result<(), Code> {
        self.value += 1;
        let (first, _, _) = self.blocks[0];
        driver.launch(self.set, 1, 1, self.stream, &[first, self.value.into()])
    }

    /// Writes another number to the first block, and does not wait.
    fn copy(&mut self, driver: &Driver) -> Result<(), Code> {
        let (first, bytes, number) = &mut self.blocks[0];
        *number += 100;
        // SAFETY: the block's bytes were allocated behind the first word, and no copy of them is under way.
        let words = unsafe { std::slice::from_raw_parts_mut(self.pinned.add(1), *bytes / 8) };
        words.fill(*number);
        // SAFETY: handles are this program's own; the memory stays.
        unsafe { driver.copy_to_device_async(*first, words.as_ptr().cast(), *bytes, self.stream) }
    }

    /// Has a kernel write something, and checks that and all else.
    fn round(&mut self, driver: &Driver) -> Result<(), Code> {
        self.post(driver)?;
        let (first, _, _) = self.blocks[0];
        // SAFETY: handles are this program's own.
        unsafe {
            driver.event_record(self.event, self.stream)?;
            driver.stream_synchronize(self.stream)?;
        }
        let passing = driver.alloc(3 << 20)?;
        let mut zeroes = vec![1u64; (3 << 20) / 8];
        driver.download(&mut zeroes, passing)?;
        assert!(zeroes.iter().all(|&word| word == 0), "new memory is clear");
        // SAFETY: it is this program's own and used by nobody.
        unsafe { driver.mem_free(passing)? };
        for &(block, bytes, number) in &self.blocks {
            let mut words = vec![0u64; bytes / 8];
            driver.download(&mut words, block)?;
            let written = if block == first {
                self.value.into()
            } else {
                number
            };
            assert_eq!(words[0], written, "the first word of {number}");
            let others = words[1..].iter().all(|&word| word == number);
            assert!(others, "all of {number}");
        }
        for &(block, number) in &self.large {
            for at in [block, block + LARGE - 8] {
                let mut word = [0u64];
                driver.download(&mut word, at)?;
                assert_eq!(word, [number], "a large block's word at {at:#x}");
            }
        }
        // SAFETY: 8 bytes were allocated, and nothing writes them.
        assert_eq!(unsafe { *self.pinned }, 77, "host memory");
        Ok(())
    }

    /// Launches a kernel that ends when it is let, and does not wait.
    fn spin(&self, driver: &Driver) -> Result<(), Code> {
        driver.launch(self.set, 1, 1, self.stream, &[0, 1])
    }
}
