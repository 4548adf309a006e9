//! Memory and addresses far beyond what a client begins with. Nearly none of it is touched.

use tests::cuda::{Code, Driver};

use crate::{ACCESS, Functions, MIB, NULL, OUT_OF_MEMORY, PROPERTIES, ok};

const GIB: usize = 1 << 30;
const UNIT: usize = 2 * MIB;

/// Everything that a large device has, in several pieces and in one, and addresses beyond it.
pub fn large(total: usize) -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let mut told = 0;
    // SAFETY: the pointer is to a local.
    ok(unsafe { (more.total)(&raw mut told, 0) })?;
    assert_eq!(told, total, "what the device has");
    let module = driver.module(crate::KERNELS)?;
    let write = driver.function(module, "write_to")?;
    let (free, all) = driver.memory()?;
    assert_eq!(all, total);
    let mut left = free;
    let mut blocks = Vec::new();
    for bytes in [20 * GIB, 20 * GIB, 40 * GIB, GIB, 5 * GIB + 12345] {
        let block = driver.alloc(bytes)?;
        let end = block + (bytes - 8) as u64 / 8 * 8;
        driver.upload(block, &[1_u64, block])?;
        driver.upload(end, &[!block])?;
        blocks.push((block, end));
        let now = driver.memory()?.0;
        assert!(now <= left - bytes && now + UNIT >= left - bytes, "{now}");
        left = now;
    }
    for &(block, end) in &blocks {
        let (mut first, mut last) = ([0_u64; 2], [0_u64]);
        driver.download(&mut first, block)?;
        driver.download(&mut last, end)?;
        assert_eq!((first, last), ([1, block], [!block]));
    }
    assert_eq!(driver.alloc(left + GIB), Err(OUT_OF_MEMORY));
    // A kernel reaches it all.
    for &(block, end) in &blocks {
        driver.launch(write, 1, 1, NULL, &[end, block])?;
        let mut last = [0_u64];
        driver.download(&mut last, end)?;
        assert_eq!(last, [block]);
    }
    for (block, _) in blocks {
        // SAFETY: the block is this program's own.
        unsafe { driver.mem_free(block)? };
    }
    driver.synchronize()?;
    let whole = driver.alloc(driver.memory()?.0 / UNIT * UNIT)?;
    let end = whole + (free / UNIT * UNIT - 8) as u64;
    driver.upload(end, &[42_u64])?;
    let mut last = [0_u64];
    driver.download(&mut last, end)?;
    assert_eq!(last, [42]);
    // SAFETY: the memory is this program's own.
    unsafe { driver.mem_free(whole)? };
    addresses(&driver, &more, total)?;
    driver.synchronize()?;
    assert_eq!(driver.memory()?.0, free, "all of it came back");
    Ok(())
}

/// Reservations as frameworks make them: one and an eighth of the device, several times, and a tebibyte.
fn addresses(driver: &Driver, more: &Functions, total: usize) -> Result<(), Code> {
    let segment = (total / 8 * 9).next_multiple_of(UNIT);
    let mut ranges: Vec<(u64, usize)> = Vec::new();
    for bytes in [segment; 8].into_iter().chain([1 << 40]) {
        let mut base = 0;
        // SAFETY: the pointer is to a local.
        ok(unsafe { (more.reserve)(&raw mut base, bytes, 0, 0, 0) })?;
        let apart = |&(other, size): &(u64, usize)| {
            base >= other + size as u64 || other >= base + bytes as u64
        };
        assert!(ranges.iter().all(apart), "{base:#x} and {ranges:x?}");
        ranges.push((base, bytes));
    }
    let mut memory = 0;
    // SAFETY: the pointers are to locals and constants of CUDA's layout; addresses are this program's own.
    unsafe {
        ok((more.create)(&raw mut memory, UNIT, PROPERTIES.as_ptr(), 0))?;
        for &(base, bytes) in &ranges {
            let end = base + (bytes - UNIT) as u64;
            for at in [base, end] {
                ok((more.map)(at, UNIT, 0, memory, 0))?;
                ok((more.access)(at, UNIT, ACCESS.as_ptr(), 1))?;
            }
            driver.upload(base + 8, &[base])?;
            let mut seen = [0_u64];
            driver.download(&mut seen, end + 8)?;
            assert_eq!(seen, [base], "the same memory at both ends");
            assert!(
                driver.download(&mut seen, base + UNIT as u64).is_err(),
                "nothing is mapped there"
            );
            for at in [base, end] {
                ok((more.unmap)(at, UNIT))?;
            }
        }
        ok((more.release)(memory))?;
        for &(base, bytes) in &ranges {
            ok((more.address_free)(base, bytes))?;
        }
        // What was given back can be had again, however often.
        for _ in 0..100 {
            let mut base = 0;
            ok((more.reserve)(&raw mut base, 1 << 40, 0, 0, 0))?;
            ok((more.address_free)(base, 1 << 40))?;
        }
        let mut none = 0;
        assert_ne!((more.reserve)(&raw mut none, 1 << 47, 0, 0, 0), 0);
    }
    Ok(())
}

/// A quota is what the client sees as the device, beyond any window.
pub fn large_quota() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let mut told = 0;
    // SAFETY: the pointer is to a local.
    ok(unsafe { (more.total)(&raw mut told, 0) })?;
    assert_eq!((told, driver.memory()?.1), (50 * GIB, 50 * GIB));
    assert_eq!(driver.alloc(51 * GIB), Err(OUT_OF_MEMORY));
    let block = driver.alloc(45 * GIB)?;
    assert_eq!(driver.alloc(6 * GIB), Err(OUT_OF_MEMORY));
    driver.alloc(5 * GIB)?;
    // SAFETY: the block is this program's own.
    unsafe { driver.mem_free(block) }
}

/// A device that says that it has more than the machine: what the machine does not have is refused when it
/// is asked for, and addresses cost nothing.
pub fn beyond() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let (free, total) = driver.memory()?;
    assert_eq!(total, 10 << 40);
    assert!(free < 9 << 40, "this machine has {free}");
    assert_eq!(driver.alloc(free + GIB), Err(OUT_OF_MEMORY));
    let mut memory = 0;
    let bytes = (free + GIB).next_multiple_of(UNIT);
    // SAFETY: the pointers are to a local and a constant of CUDA's layout.
    let code = unsafe { (more.create)(&raw mut memory, bytes, PROPERTIES.as_ptr(), 0) };
    assert_eq!(code, OUT_OF_MEMORY);
    addresses(&driver, &more, 1 << 40)?;
    let block = driver.alloc(64 * MIB)?;
    driver.upload(block, &[7_u64])
}

/// A program that may have no more addresses gets no more memory, until it may.
pub fn confined() -> Result<(), Code> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let driver = Driver::ready();
    let first = driver.alloc(MIB)?;
    let before = getrlimit(Resource::As);
    let own = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = own
        .split_whitespace()
        .next()
        .and_then(|pages| pages.parse().ok())
        .expect("what the process has");
    let limited = Rlimit {
        current: Some(pages * 4096 + (1 << 30)),
        maximum: before.maximum,
    };
    setrlimit(Resource::As, limited).expect("a lower limit");
    let refused = driver.alloc(20 * GIB);
    let inside = driver.alloc(MIB);
    setrlimit(Resource::As, before).expect("what it was");
    assert_eq!(refused, Err(OUT_OF_MEMORY));
    let large = driver.alloc(20 * GIB)?;
    for block in [first, inside?, large] {
        driver.upload(block, &[block])?;
    }
    Ok(())
}
