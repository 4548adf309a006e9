//! Gives the library the name under which programs look for NVIDIA's, and keeps it from needing
//! anything that is not libc's.

#[path = "../client/unwinder.rs"]
mod unwinder;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../client/unwinder.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // dlclose leaves it where it is: what was read of the devices is kept for the process's life.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    unwinder::link("libnvidia-ml.so.1");
}
