//! Clusters of thread blocks: their registers, their barrier, and each other's shared memory.

use ptx_vm::LaunchError;

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 8.6\n.target sm_100\n.address_size 64\n";

/// A kernel of that body, with an input and an output in `%in` and `%out` and the thread's number in `%t`.
fn kernel(shared: &str, directives: &str, body: &str) -> Gpu {
    Gpu::new(&format!(
        "{HEAD}{shared}\n.visible .entry k(.param .u64 in, .param .u64 out) {directives} {{\n\
         .reg .b64 %in, %out, %x<9>; .reg .b32 %t, %rank, %r<20>; .reg .b16 %h<3>; .reg .pred %p<4>;\n\
         ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mov.u32 %rank, %cluster_ctarank;\n\
         {body}\nret; }}\n"
    ))
}

/// Stores `%r0` to `%r<count>` of each block in a row of the output that its place in the grid numbers.
fn rows(count: usize) -> String {
    let mut text = format!(
        "mov.u32 %r18, %ctaid.y; mov.u32 %r19, %nctaid.x; mul.lo.u32 %r18, %r18, %r19; mov.u32 %r19, %ctaid.x; add.u32 %r18, %r18, %r19;\n\
         mul.wide.u32 %x8, %r18, {}; add.s64 %x8, %x8, %out;\n",
        4 * count
    );
    for at in 0..count {
        text += &format!("st.global.u32 [%x8+{}], %r{at};\n", 4 * at);
    }
    text
}

#[test]
fn registers_say_where_a_block_is() {
    let body = "mov.u32 %r0, %clusterid.x; mov.u32 %r1, %clusterid.y; mov.u32 %r2, %nclusterid.x; mov.u32 %r3, %nclusterid.y;\n\
         mov.u32 %r4, %cluster_ctaid.x; mov.u32 %r5, %cluster_ctaid.y; mov.u32 %r6, %cluster_nctaid.x; mov.u32 %r7, %cluster_nctaid.y;\n\
         mov.u32 %r8, %cluster_ctarank; mov.u32 %r9, %cluster_nctarank; mov.pred %p0, %is_explicit_cluster; selp.u32 %r10, 1, 0, %p0;\n";
    let mut gpu = kernel("", "", &format!("{body}{}", rows(11)));
    gpu.cluster = Some([2, 3, 1]);
    let out = gpu.upload(&[0u32; 11 * 24]);
    gpu.run("k", [4, 6, 1], 1, &Args::new().ptr(out).ptr(out));
    let got: Vec<u32> = gpu.read(out, 11 * 24);
    for (place, row) in got.chunks(11).enumerate() {
        let (x, y) = (place as u32 % 4, place as u32 / 4);
        let wanted = [
            x / 2,
            y / 3,
            2,
            2,
            x % 2,
            y % 3,
            2,
            3,
            x % 2 + y % 3 * 2,
            6,
            1,
        ];
        assert_eq!(row, wanted, "block {x}, {y}");
    }
    gpu.cluster = None;
    gpu.run("k", [4, 6, 1], 1, &Args::new().ptr(out).ptr(out));
    let got: Vec<u32> = gpu.read(out, 11 * 24);
    assert_eq!(got[11 * 23..], [3, 5, 4, 6, 0, 0, 1, 1, 0, 1, 0]);
}

#[test]
fn blocks_reach_each_others_shared_memory() {
    // Each block stores to the next one's, adds to that of all, and reads that of the one before, by 32-bit, 64-bit and
    // generic addresses.
    let body = "mov.u32 %r12, %cluster_nctarank; add.u32 %r13, %rank, 1; rem.u32 %r13, %r13, %r12;\n\
         mov.u32 %r14, cell; st.shared.u32 [%r14+4], 0;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n\
         mapa.shared::cluster.u32 %r15, %r14, %r13; mad.lo.u32 %r16, %rank, 10, 7; st.shared::cluster.u32 [%r15], %r16;\n\
         getctarank.shared::cluster.u32 %r1, %r15; getctarank.shared::cluster.u32 %r2, %r14;\n\
         mov.u32 %r17, 0;\n\
         ALL: mapa.shared::cluster.u64 %x0, cell, %r17; atom.shared::cluster.add.u32 %r3, [%x0+4], %r16;\n\
         red.relaxed.cluster.shared::cluster.add.u32 [%x0+4], 1; add.u32 %r17, %r17, 1; setp.lt.u32 %p0, %r17, %r12; @%p0 bra ALL;\n\
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n\
         ld.shared.u32 %r0, [%r14]; ld.shared.u32 %r3, [%r14+4];\n\
         cvta.shared.u64 %x1, %x0; mov.u64 %x1, cell; cvta.shared.u64 %x1, %x1; mapa.u64 %x2, %x1, %r13; ld.u32 %r4, [%x2]; getctarank.u64 %r5, %x2;\n\
         isspacep.shared::cta %p0, %x1; selp.u32 %r6, 1, 0, %p0; isspacep.shared::cta %p0, %x2; selp.u32 %r7, 1, 0, %p0;\n\
         isspacep.shared::cluster %p0, %x2; selp.u32 %r8, 1, 0, %p0;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n";
    for blocks in [1, 2, 4, 16] {
        let mut gpu = kernel(
            ".shared .align 8 .b32 cell[2];",
            "",
            &format!("{body}{}", rows(9)),
        );
        gpu.cluster = Some([blocks, 1, 1]);
        let grid = 2 * blocks;
        let out = gpu.upload(&vec![0u32; 9 * grid as usize]);
        gpu.run("k", grid, 1, &Args::new().ptr(out).ptr(out));
        let got: Vec<u32> = gpu.read(out, 9 * grid as usize);
        let all: u32 = (0..blocks).map(|rank| rank * 10 + 7 + 1).sum();
        for (block, row) in got.chunks(9).enumerate() {
            let rank = block as u32 % blocks;
            let (next, before) = ((rank + 1) % blocks, (rank + blocks - 1) % blocks);
            let wanted = [
                before * 10 + 7,
                next,
                rank,
                all,
                rank * 10 + 7,
                next,
                1,
                0,
                1,
            ];
            assert_eq!(row, wanted, "block {block} of {blocks}");
        }
    }
}

#[test]
fn threads_arrive_early_and_wait_late() {
    // Each round, a thread reads what a thread of the next block has just written; blocks are slow in turn, and some
    // threads have gone before the rounds end.
    let body = "mov.u32 %r12, %cluster_nctarank; add.u32 %r13, %rank, 1; rem.u32 %r13, %r13, %r12;\n\
         shl.b32 %r14, %t, 2; mov.u32 %r15, cell; add.u32 %r14, %r14, %r15; mapa.shared::cluster.u32 %r15, %r14, %r13;\n\
         mov.u32 %r16, 0; mov.u32 %r0, 0; setp.ge.u32 %p3, %t, 50;\n\
         ROUND: rem.u32 %r17, %r16, %r12; setp.ne.u32 %p0, %r17, %rank; @%p0 bra WRITE;\n\
         mov.u32 %r17, 300; SLOW: sub.u32 %r17, %r17, 1; setp.ne.u32 %p0, %r17, 0; @%p0 bra SLOW;\n\
         WRITE: mad.lo.u32 %r17, %r16, 1000, %t; st.shared.u32 [%r14], %r17;\n\
         barrier.cluster.arrive.release; mov.u32 %r18, %r17; barrier.cluster.wait.acquire;\n\
         ld.shared::cluster.u32 %r18, [%r15]; setp.ne.u32 %p0, %r18, %r17; @%p0 add.u32 %r0, %r0, 1;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n\
         add.u32 %r16, %r16, 1; setp.eq.u32 %p0, %r16, 5; and.pred %p0, %p0, %p3; @%p0 bra END;\n\
         setp.lt.u32 %p0, %r16, 12; @%p0 bra ROUND;\n\
         END: mov.u32 %r17, %ctaid.x; mad.lo.u32 %r17, %r17, 70, %t; mul.wide.u32 %x0, %r17, 4; add.s64 %x0, %x0, %out; add.u32 %r0, %r0, 1; st.global.u32 [%x0], %r0;";
    let mut gpu = kernel(".shared .b32 cell[70];", "", body);
    gpu.cluster = Some([1, 4, 1]);
    let body = 70 * 4;
    let out = gpu.upload(&vec![0u32; body]);
    gpu.cluster = Some([4, 1, 1]);
    gpu.run("k", 4, 70, &Args::new().ptr(out).ptr(out));
    assert_eq!(gpu.read::<u32>(out, body), vec![1; body]);
}

#[test]
fn copies_come_to_several_blocks_and_tell_each_ones_barrier() {
    let body = "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [bar], 1; @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 32;\n\
         st.shared.u32 [tile], 1; st.shared.u32 [tile+16], 2;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n\
         setp.eq.u32 %p1, %rank, 1; and.pred %p1, %p1, %p0; @!%p1 bra OTHER;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%in], 16, [bar], 0b1101;\n\
         mapa.shared::cluster.u32 %r4, tile, 3; mapa.shared::cluster.u32 %r5, bar, 3;\n\
         cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4+16], [tile], 16, [%r5];\n\
         mapa.shared::cluster.u32 %r5, bar, 0; mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r5], 16;\n\
         mapa.shared::cluster.u32 %r5, bar, 2; mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r5], 16;\n\
         OTHER: setp.eq.u32 %p1, %rank, 1; @%p1 bra STORE;\n\
         WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0; @!%p2 bra WAIT;\n\
         STORE: ld.shared.u32 %r0, [tile]; ld.shared.u32 %r1, [tile+16];\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n";
    let mut gpu = kernel(
        ".shared .align 16 .b8 tile[32]; .shared .align 8 .b64 bar;",
        ".reqnctapercluster 4, 1, 1",
        &format!("{body}{}", rows(2)),
    );
    let (input, out) = (gpu.upload(&[77u32, 0, 0, 0]), gpu.upload(&[0u32; 8]));
    gpu.run("k", 4, 64, &Args::new().ptr(input).ptr(out));
    assert_eq!(gpu.read::<u32>(out, 8), [77, 2, 1, 2, 77, 2, 77, 1]);
}

#[test]
fn what_is_in_no_block_of_the_cluster_is_a_fault() {
    for code in [
        "mov.u32 %r0, 2;",
        "mov.u32 %r0, 16;",
        "mov.u32 %r0, 1000000;",
        "mov.u32 %r0, -1;",
    ] {
        for access in [
            "mapa.shared::cluster.u32 %r1, cell, %r0; ld.shared::cluster.u32 %r2, [%r1];",
            "mapa.shared::cluster.u64 %x0, cell, %r0; st.shared::cluster.u32 [%x0], 1;",
            "mov.u64 %x0, cell; cvta.shared.u64 %x0, %x0; mapa.u64 %x0, %x0, %r0; atom.add.u32 %r2, [%x0], 1;",
            "mapa.shared::cluster.u32 %r1, cell, 1; ld.shared::cluster.u32 %r2, [%r1+8];",
        ] {
            let mut gpu = kernel(
                ".shared .align 8 .b32 cell[2];",
                "",
                &format!("{code}{access}"),
            );
            gpu.cluster = Some([2, 1, 1]);
            let out = gpu.upload(&[0u32]);
            let args = Args::new().ptr(out).ptr(out);
            let fault = gpu.try_run("k", 2, 1, 0, &args).unwrap_err();
            assert_eq!(fault.kind.code(), 700, "{code} {access}");
        }
    }
}

#[test]
fn grids_are_made_of_whole_clusters_of_the_blocks_that_are_allowed() {
    let wrong = Err(LaunchError::InvalidClusterSize);
    let launch = |directives: &str, grid: [u32; 3], cluster: Option<[u32; 3]>| {
        let mut gpu = kernel("", directives, "");
        gpu.cluster = cluster;
        gpu.try_launch("k", grid, 1, 0, &Args::new())
            .map(|launch| launch.clusters())
    };
    assert_eq!(launch("", [4, 2, 1], Some([2, 2, 1])), Ok(2));
    assert_eq!(launch("", [16, 1, 1], Some([16, 1, 1])), Ok(1));
    assert_eq!(launch(".reqnctapercluster 2", [4, 1, 1], None), Ok(2));
    assert_eq!(
        launch(".reqnctapercluster 2", [4, 1, 1], Some([2, 1, 1])),
        Ok(2)
    );
    assert_eq!(launch("", [5, 1, 1], Some([2, 1, 1])), wrong);
    assert_eq!(launch("", [4, 1, 1], Some([2, 0, 1])), wrong);
    assert_eq!(launch("", [32, 1, 1], Some([32, 1, 1])), wrong);
    assert_eq!(
        launch("", [1 << 20, 1 << 15, 1], Some([1 << 20, 1 << 15, 1])),
        wrong
    );
    assert_eq!(
        launch(".reqnctapercluster 2", [4, 1, 1], Some([4, 1, 1])),
        wrong
    );
    assert_eq!(launch(".reqnctapercluster 2", [3, 1, 1], None), wrong);
    assert_eq!(
        launch(".maxclusterrank 2", [4, 1, 1], Some([4, 1, 1])),
        wrong
    );
    assert_eq!(launch(".explicitcluster", [4, 1, 1], None), wrong);
    assert_eq!(
        launch(".explicitcluster", [4, 1, 1], Some([1, 1, 1])),
        Ok(4)
    );
    assert_eq!(
        launch(".explicitcluster .reqnctapercluster 2", [4, 1, 1], None),
        Ok(2)
    );
}

#[test]
fn grids_that_are_counted_in_clusters_are_refused_by_name() {
    let text = format!(
        "{HEAD}.visible .entry k() .blocksareclusters .reqntid 32 .reqnctapercluster 2 {{ ret; }}"
    );
    let tree = ptx::parse(&text).unwrap();
    let refused = ptx_vm::Module::load(&tree, &ptx_vm::Options::default()).unwrap_err();
    assert!(
        refused.to_string().contains(".blocksareclusters"),
        "{refused}"
    );
}

#[test]
fn every_block_does_its_own_work_where_none_is_given_away() {
    // A block does its own piece, and then those of the clusters that it was given in place of others.
    for (multicast, cluster) in [("", None), (".multicast::cluster::all", Some([2, 1, 1]))] {
        let mut gpu = kernel(
            ".shared .align 16 .b8 answer[16]; .shared .align 8 .b64 bar;",
            "",
            &format!(
                "mbarrier.init.shared::cta.b64 [bar], 1; mov.u32 %r0, %ctaid.x; mov.u32 %r1, 0;\n\
                 mov.u64 %x1, answer; mov.u64 %x2, -1; st.shared.u64 [%x1], %x2; st.shared.u64 [%x1+8], %x2;\n\
                 barrier.cluster.arrive; barrier.cluster.wait;\n\
                 .reg .b128 %q0;\n\
                 WORK: mul.wide.u32 %x0, %r0, 4; add.s64 %x0, %x0, %out; atom.global.add.u32 %r2, [%x0], 1;\n\
                 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;\n\
                 {}\n\
                 setp.eq.u32 %p2, %rank, 0;\n\
                 @%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [answer], [bar];\n\
                 WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], %r1; @!%p1 bra WAIT;\n\
                 xor.b32 %r1, %r1, 1; ld.shared.b128 %q0, [answer];\n\
                 clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;\n\
                 @%p0 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r0, _, _, _}}, %q0;\n\
                 @%p0 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, %q0;\n\
                 @%p0 add.u32 %r0, %r0, %rank; @%p0 bra WORK;\n\
                 ld.shared.u64 %x2, [%x1+8]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %x0, %r0, 8; add.s64 %x0, %x0, %in; st.global.u64 [%x0], %x2;\n\
                 barrier.cluster.arrive; barrier.cluster.wait;",
                if multicast.is_empty() {
                    "mov.u32 %rank, 0;"
                } else {
                    ""
                }
            ),
        );
        gpu.cluster = cluster;
        let (answers, done) = (gpu.upload(&[7_u64; 40]), gpu.upload(&[0_u32; 40]));
        gpu.run("k", 40, 1, &Args::new().ptr(answers).ptr(done));
        assert_eq!(gpu.read::<u32>(done, 40), [1; 40]);
        // The answer came to each.
        assert_eq!(gpu.read::<u64>(answers, 40), [0; 40]);
    }
}
