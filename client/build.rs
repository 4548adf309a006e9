//! Gives the library the name under which CUDA programs look for it, and keeps it from needing
//! anything that is not libc's.

mod unwinder;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=unwinder.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // dlclose leaves it where it is: the session is the process's, and its threads run code of it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    unwinder::link("libcuda.so.1");
}
