//! What is told of work before it begins: whether it has something to do for every processor of the machine.

use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, bounded, params};
use engine_soft::{Config, SoftEngine};

/// Each block counts for a while.
const TEXT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 at) { .reg .pred %p; .reg .b64 %d<3>; .reg .b32 %r<3>; ld.param.u64 %d0, [at]; mov.u32 %r0, 0;
again: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 2000; @%p bra again; st.global.u32 [%d0], %r0; ret; }
";

#[test]
fn who_waits_for_a_grid_that_fills_the_machine_is_told_so() {
    let engine = SoftEngine::new(&Config::with_devices(1)).expect("a software GPU");
    let mut guest = Guest::new(&engine);
    let memory = guest.commit(0, GRANULE);
    let module = guest.module(TEXT);
    let mut launch = |blocks: u32| {
        guest.launch(0, module, blocks, 256, &params(&[memory]));
        assert_eq!(guest.word(memory), 2000);
        guest.observer.wants_every_processor().last().copied()
    };
    assert_eq!(launch(4096), Some(true));
    // With a single processor one block fills it too; and threads that worked until now may not sleep yet.
    let several = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
    if several {
        bounded("a block by itself does not", || {
            while launch(1) != Some(false) {
                std::thread::yield_now();
            }
        });
    }
}
