//! A cluster that has finished goes on as those that follow it, as if each had been made anew.

use std::sync::Arc;

use ptx_vm::{Cluster, FaultKind, Launch, Options, Outcome};

use crate::gpu::{Args, Gpu};

const TEXT: &str = ".version 7.5\n.target sm_75\n.address_size 64\n\
    .visible .entry k(.param .u64 to, .param .u32 last)\n{\n\
    .reg .b64 %a<4>; .reg .b32 %r<12>; .reg .pred %p<3>; .shared .align 4 .b8 tile[64];\n\
    ld.param.u64 %a0, [to]; ld.param.u32 %r9, [last]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y;\n\
    mov.u32 %r3, %nctaid.x; mad.lo.s32 %r4, %r2, %r3, %r1; mov.u32 %r5, %ntid.x; mad.lo.s32 %r6, %r4, %r5, %r0;\n\
    mul.wide.u32 %a1, %r6, 8; add.s64 %a1, %a0, %a1;\n\
    mov.u32 %r7, tile; ld.shared.u32 %r8, [%r7]; bar.sync 0;\n\
    // Some blocks' lanes part, and some of them leave early.\n\
    and.b32 %r10, %r4, 3; setp.eq.u32 %p0, %r10, 2; setp.gt.and.u32 %p0, %r0, 20, %p0;\n@%p0 bra EARLY;\n\
    add.u32 %r8, %r8, %r4; st.shared.u32 [%r7+4], %r4; setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [%r7], 99;\n\
    setp.eq.u32 %p2, %r4, %r9;\n@%p2 bra WILD;\n\
    st.global.u32 [%a1], %r8; st.global.u32 [%a1+4], %r6; ret;\n\
    EARLY:\nst.global.u32 [%a1], 5; ret;\nWILD:\nmov.u64 %a2, 64; st.global.u32 [%a2], %r8; ret;\n}\n";

/// Runs a grid in one cluster that goes on and on, at most so many at once; returns its memory, or the fault's block.
fn run(
    options: &Options,
    threads: u32,
    budget: u64,
    most: u64,
    last: u32,
) -> Result<Vec<u32>, [u32; 3]> {
    let mut gpu = Gpu::with(TEXT, options, 16);
    let to = gpu.upload(&vec![0_u32; 32_768]);
    let args = Args::new().ptr(to).u32(last);
    let launch: Arc<Launch> = gpu.launch("k", [5, 4, 1], threads, 0, &args);
    let mut fresh = 0..launch.clusters();
    let mut spare: Option<Cluster> = None;
    while let Some(index) = fresh.next() {
        let mut cluster = match spare.take() {
            Some(mut cluster) => {
                cluster.restart(index, 0);
                cluster
            }
            None => Cluster::new(Arc::clone(&launch), index, 0).expect("a cluster"),
        };
        loop {
            match cluster.run_on(budget, &mut fresh, most) {
                Outcome::Finished => break,
                Outcome::Yielded => {}
                Outcome::Fault(fault) => {
                    assert_eq!(fault.kind, FaultKind::IllegalAddress);
                    return Err(fault.block);
                }
                other => panic!("{other:?}"),
            }
        }
        spare = Some(cluster);
    }
    Ok(gpu.read(to, 32_768))
}

#[test]
fn clusters_go_on_as_those_that_follow() {
    for jit in [false, true] {
        let options = Options {
            jit: Some(jit),
            ..Options::default()
        };
        // One lane group, one that ends within a strip, and several.
        for threads in [256, 50, 512] {
            let expected = run(&options, threads, 1 << 14, 0, u32::MAX).expect("no fault");
            assert!(expected.iter().any(|&word| word != 0));
            for (budget, most) in [(1 << 14, 1), (1 << 14, 100), (1, 100), (40, 7)] {
                let memory = run(&options, threads, budget, most, u32::MAX);
                assert_eq!(memory.as_deref(), Ok(expected.as_slice()));
            }
            // The block that does something wrong is told.
            for most in [0, 3, 100] {
                assert_eq!(run(&options, threads, 1 << 14, most, 13), Err([3, 2, 0]));
            }
        }
    }
}
