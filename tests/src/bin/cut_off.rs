//! A program whose kernel runs for long: its server ends in the midst of it.
//!
//! It knows nothing of OpenMPS. The kernel makes each element of one array of one of another one, with some work for each.
//! `apart` has two blocks for them, `in_place` one for both, `halves` the halves of one, and `variable` reads a variable. What goes wrong is said as `error` and
//! its number; a wrong element ends the program.

use tests::cuda::{Code, Driver, Handle};
use tests::program::{answer, hear, say};

const KERNELS: &str = ".version 7.8\n.target sm_75\n.address_size 64\n\
    .visible .global .align 8 .u64 table[256];\n\
    .visible .entry powers(.param .u64 to, .param .u64 from, .param .u32 count, .param .u32 rounds)\n{\n\
    .reg .b64 %to, %from, %offset, %there, %here, %x; .reg .b32 %i, %count, %rounds, %round; .reg .pred %p;\n\
    ld.param.u64 %to, [to]; ld.param.u64 %from, [from]; ld.param.u32 %count, [count]; ld.param.u32 %rounds, [rounds];\n\
    cvta.to.global.u64 %to, %to; cvta.to.global.u64 %from, %from; mov.u32 %i, %tid.x;\n\
    EACH: mul.wide.u32 %offset, %i, 8; add.u64 %there, %from, %offset; ld.global.u64 %x, [%there]; mov.u32 %round, 0;\n\
    MORE: mul.lo.u64 %x, %x, 6364136223846793005; add.u32 %round, %round, 1; setp.lt.u32 %p, %round, %rounds; @%p bra MORE;\n\
    add.u64 %here, %to, %offset; st.global.u64 [%here], %x; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %count; @%p bra EACH;\n\
    ret;\n}\n";

const COUNT: usize = 256;
const ROUNDS: u32 = 200_000;
/// Elements of each block.
const ELEMENTS: usize = 64 << 10;

/// What the kernel reads and writes: page-locked memory, of which it can be seen how far it is.
struct Work {
    powers: Handle,
    to: *mut u64,
    from: *mut u64,
    /// Where the variable is, which only a kernel reaches.
    table: *mut u64,
}

fn main() {
    let driver = Driver::ready();
    let mut work = Work::new(&driver).expect("a server");
    say("ready");
    loop {
        let result = match hear().as_str() {
            "apart" => work.begin(&driver, work.to, work.from),
            "in_place" => work.begin(&driver, work.to, work.to),
            "halves" => work.begin(&driver, work.to, work.to.wrapping_add(ELEMENTS / 2)),
            "variable" => work.begin(&driver, work.to, work.table),
            "finish" => work.finish(&driver),
            "reset" => driver.reset().and_then(|()| {
                work = Work::new(&driver)?;
                Ok(())
            }),
            _ => return,
        };
        answer(result);
    }
}

/// What element `at` of an array is first.
fn first(at: usize) -> u64 {
    at as u64 * 2 + 1
}

impl Work {
    fn new(driver: &Driver) -> Result<Self, Code> {
        let module = driver.module(KERNELS)?;
        let mut blocks = [std::ptr::null_mut::<u64>(); 2];
        for block in &mut blocks {
            let mut pinned = std::ptr::null_mut();
            // SAFETY: the out pointer is a local's.
            unsafe { driver.mem_host_alloc(&raw mut pinned, ELEMENTS * 8, 0)? };
            *block = pinned.cast();
            for at in 0..ELEMENTS {
                // SAFETY: as many were allocated, and nothing else uses them.
                unsafe { block.add(at).write(first(at)) };
            }
        }
        let [to, from] = blocks;
        let (mut table, mut bytes) = (0, 0);
        // SAFETY: the out pointers are locals', and the name is a string of C's.
        unsafe {
            driver.module_get_global(&raw mut table, &raw mut bytes, module, c"table".as_ptr())?;
        }
        driver.upload(table, &(0..COUNT).map(first).collect::<Vec<_>>())?;
        Ok(Self {
            table: std::ptr::without_provenance_mut(table as usize),
            powers: driver.function(module, "powers")?,
            to,
            from,
        })
    }

    /// Launches the kernel, and waits until it has written something.
    fn begin(&self, driver: &Driver, to: *mut u64, from: *mut u64) -> Result<(), Code> {
        // SAFETY: page-locked memory of this program's, which only the kernel writes.
        let look = || unsafe { to.read_volatile() };
        let before = look();
        let [to, from] = [to, from].map(|array| array.addr() as u64);
        driver.launch(
            self.powers,
            1,
            1,
            0,
            &[to, from, COUNT as u64, ROUNDS.into()],
        )?;
        while look() == before {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits for what was begun apart, and looks at all of it.
    fn finish(&self, driver: &Driver) -> Result<(), Code> {
        driver.synchronize()?;
        let power = 6_364_136_223_846_793_005_u64.wrapping_pow(ROUNDS);
        for at in 0..ELEMENTS {
            // SAFETY: as many were allocated, and nothing writes them now.
            let [found, from] = [self.to, self.from].map(|array| unsafe { array.add(at).read() });
            let expected = match at < COUNT {
                true => first(at).wrapping_mul(power),
                false => first(at),
            };
            assert_eq!((found, from), (expected, first(at)), "element {at}");
        }
        Ok(())
    }
}
