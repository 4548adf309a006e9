//! The engine is at rest when all that streams have begun is over; they begin nothing more until that ends.

use engine::Engine;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine_soft::{Config, SoftEngine};
use protocol::operations::CONTEXT_SLOTS;

/// `wait` runs until there is a word, and adds one to the next word; `add` only adds.
const TEXT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry wait(.param .u64 at) { .reg .pred %p; .reg .b64 %d; .reg .b32 %r<2>; ld.param.u64 %d, [at];
again: ld.volatile.global.u32 %r0, [%d]; setp.eq.u32 %p, %r0, 0; @%p bra again;
    ld.global.u32 %r1, [%d+4]; add.u32 %r1, %r1, 1; st.global.u32 [%d+4], %r1; ret; }
";

/// A stream beside a context's own.
const OTHER: u32 = CONTEXT_SLOTS;

/// The word that kernels add to.
fn sum(guest: &Guest, at: u64) -> u8 {
    guest.host_bytes(at + 4, 4)[0]
}

#[test]
fn what_has_begun_ends_and_nothing_else_begins() {
    let engine = SoftEngine::new(&Config::with_devices(1)).expect("a software GPU");
    let mut guest = Guest::new(&engine);
    guest.stream(OTHER);
    let at = guest.commit_host();
    let module = guest.module(TEXT);
    assert!(engine.rest(), "nothing was begun");
    engine.end_rest();

    // A run of three has begun, and a kernel waits behind it.
    let launch = simple_launch(module, 1, 1);
    for _ in 0..3 {
        guest.run_add(1, &launch, &params(&[at]));
    }
    guest.run_launch(0, 1);
    guest.launch(0, module, 1, 1, &params(&[at]));
    assert!(!engine.rest(), "a kernel runs");
    // Neither does a stream begin that has nothing to do.
    guest.write(OTHER, at + 8, &[7]);
    assert!(!engine.rest());
    guest.set_host(at, &[1]);
    while !engine.rest() {
        guest.observer.wait_a_moment();
    }
    assert_eq!(sum(&guest, at), 3, "the run as a whole");
    assert_eq!(guest.observer.completed(0).len(), 1);
    assert!(!guest.is_done(OTHER));
    assert_eq!(guest.host_bytes(at + 8, 1), [0]);

    engine.end_rest();
    guest.wait(0).expect("it goes on");
    guest.wait(OTHER).expect("it goes on");
    assert_eq!(sum(&guest, at), 4);
    assert_eq!(guest.host_bytes(at + 8, 1), [7]);
    // Later work as ever.
    guest.write(OTHER, at + 8, &[8]);
    guest.wait(OTHER).expect("it is done");
    assert_eq!(guest.host_bytes(at + 8, 1), [8]);
}

#[test]
fn a_client_can_go_while_its_work_is_held_back() {
    let engine = SoftEngine::new(&Config::with_devices(1)).expect("a software GPU");
    let mut guest = Guest::new(&engine);
    let at = guest.commit_host();
    assert!(engine.rest());
    guest.write(0, at, &[1]);
    drop(guest);
    engine.end_rest();
    let mut next = Guest::new(&engine);
    let at = next.commit_host();
    next.write(0, at, &[1]);
    next.wait(0).expect("it is done");
}
