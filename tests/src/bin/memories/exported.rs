//! Physical memory in a descriptor that the test holds.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tests::cuda::{Code, Driver};
use tests::program::{hear, say};
use transport::socket::Connection;

use crate::{ACCESS, Functions, MIB, PROPERTIES, ok};

const BYTES: usize = 64 * MIB;

/// Maps memory, and gives its address.
fn map(more: &Functions, memory: u64) -> Result<u64, Code> {
    let mut base = 0;
    // SAFETY: the pointers are to a local and a constant of CUDA's layout.
    unsafe {
        ok((more.reserve)(&raw mut base, BYTES, 0, 0, 0))?;
        ok((more.map)(base, BYTES, 0, memory, 0))?;
        ok((more.access)(base, BYTES, ACCESS.as_ptr(), 1))?;
    }
    Ok(base)
}

/// Gives the test a descriptor of memory, and lets go of the memory when it says so.
pub fn export(path: &str) -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let mut memory = 0;
    let mut number = -1;
    // SAFETY: the pointers are to locals and a constant of CUDA's layout.
    unsafe {
        ok((more.create)(
            &raw mut memory,
            BYTES,
            PROPERTIES.as_ptr(),
            0,
        ))?;
        ok((more.export)(&raw mut number, memory, 1, 0))?;
    }
    let base = map(&more, memory)?;
    driver.upload(base + 4096, &[4711_u64, 42])?;
    // SAFETY: the call gave this program a descriptor of its own.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    let test = Connection::connect(path).expect("the test listens");
    test.send(b"here", &[std::os::fd::AsFd::as_fd(&descriptor)])
        .expect("it takes a descriptor");
    drop(descriptor);
    say("exported");
    while hear() == "release" {
        // SAFETY: the addresses and the handle are this program's own.
        unsafe {
            ok((more.unmap)(base, BYTES))?;
            ok((more.release)(memory))?;
        }
        driver.synchronize()?;
        say("released");
    }
    Ok(())
}

/// Takes a descriptor from the test, and says what is in it.
pub fn import(path: &str) -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let test = Connection::connect(path).expect("the test listens");
    let (_, descriptors) = test.receive().expect("a descriptor");
    let mut memory = 0;
    let number = std::ptr::without_provenance_mut(descriptors[0].as_raw_fd() as usize);
    // SAFETY: the descriptor is open and the pointer is to a local.
    let code = unsafe { (more.import)(&raw mut memory, number, 1) };
    drop(descriptors);
    if code != 0 {
        say(&format!("error {code}"));
        return Ok(());
    }
    let base = map(&more, memory)?;
    let mut seen = [0_u64; 2];
    driver.download(&mut seen, base + 4096)?;
    assert_eq!(seen, [4711, 42]);
    say("right");
    Ok(())
}
