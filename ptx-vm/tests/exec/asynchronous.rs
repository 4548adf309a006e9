//! Barriers in shared memory (`mbarrier`), and the copies that tell them of their bytes.

use half::f16;

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 8.6\n.target sm_100\n.address_size 64\n";

/// A kernel of that body, with an input and an output in `%in` and `%out` and the thread's number in `%t`.
fn kernel(shared: &str, body: &str) -> Gpu {
    Gpu::new(&format!(
        "{HEAD}{shared}\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n\
         .reg .b64 %in, %out, %x<9>; .reg .b32 %t, %r<9>; .reg .f32 %f<9>; .reg .pred %p<3>;\n\
         ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x;\n{body}\nret; }}\n"
    ))
}

fn run(gpu: &mut Gpu, threads: u32, input: &[u32], results: usize) -> Vec<u32> {
    let (input, output) = (gpu.upload(input), gpu.upload(&vec![0u32; results]));
    gpu.run("k", 1, threads, &Args::new().ptr(input).ptr(output));
    gpu.read(output, results)
}

#[test]
fn warps_that_make_and_warps_that_use_wait_for_each_other() {
    // Warp 0 puts 40 numbers into two places in turn, warp 1 takes them: phases of both parities.
    let mut gpu = kernel(
        ".shared .align 8 .b64 full[2]; .shared .align 8 .b64 empty[2]; .shared .b32 tile[64];",
        "setp.ne.s32 %p0, %t, 0; @%p0 bra START;\n\
         mov.u32 %r0, full; mov.u32 %r1, empty;\n\
         mbarrier.init.shared::cta.b64 [%r0], 32; mbarrier.init.shared::cta.b64 [%r0+8], 32;\n\
         mov.u32 %r2, 32; mbarrier.init.shared.b64 [%r1], %r2; mbarrier.init.shared.b64 [%r1+8], %r2;\n\
         START: bar.sync 0;\n\
         mov.u32 %r0, 0; setp.ge.u32 %p0, %t, 32; and.b32 %r8, %t, 31;\n\
         LOOP: and.b32 %r1, %r0, 1; shr.u32 %r2, %r0, 1; and.b32 %r2, %r2, 1;\n\
         shl.b32 %r3, %r1, 3; mov.u32 %r4, full; add.u32 %r4, %r4, %r3; mov.u32 %r5, empty; add.u32 %r5, %r5, %r3;\n\
         shl.b32 %r6, %r1, 5; add.u32 %r6, %r6, %r8; shl.b32 %r6, %r6, 2; mov.u32 %r7, tile; add.u32 %r6, %r6, %r7;\n\
         @%p0 bra USE;\n\
         xor.b32 %r2, %r2, 1;\n\
         FREE: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], %r2; @!%p1 bra FREE;\n\
         mad.lo.u32 %r7, %r0, 100, %r8; st.shared.u32 [%r6], %r7;\n\
         mbarrier.arrive.shared::cta.b64 _, [%r4];\n\
         bra NEXT;\n\
         USE: mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r4], %r2; @!%p1 bra USE;\n\
         ld.shared.u32 %r7, [%r6];\n\
         mad.lo.u32 %r6, %r0, 32, %r8; mul.wide.u32 %x0, %r6, 4; add.s64 %x0, %x0, %out; st.global.u32 [%x0], %r7;\n\
         mbarrier.arrive.release.cta.shared::cta.b64 %x1, [%r5];\n\
         NEXT: add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 40; @%p1 bra LOOP;",
    );
    let got = run(&mut gpu, 64, &[0], 40 * 32);
    let wanted: Vec<u32> = (0..40 * 32).map(|i| i / 32 * 100 + i % 32).collect();
    assert_eq!(got, wanted);
}

#[test]
fn states_say_which_phase_and_what_was_pending() {
    let mut gpu = kernel(
        ".shared .align 8 .b64 bar;",
        "mbarrier.init.b64 [bar], 3;\n\
         mbarrier.arrive.noComplete.b64 %x0, [bar], 1; mbarrier.pending_count.b64 %r0, %x0; st.global.u32 [%out], %r0;\n\
         mbarrier.arrive_drop.b64 %x1, [bar]; mbarrier.pending_count.b64 %r0, %x1; st.global.u32 [%out+4], %r0;\n\
         mbarrier.test_wait.b64 %p0, [bar], %x0; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+8], %r0;\n\
         mbarrier.arrive.b64 %x2, [bar];\n\
         mbarrier.test_wait.b64 %p0, [bar], %x0; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+12], %r0;\n\
         mbarrier.test_wait.parity.b64 %p0, [bar], 0; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+16], %r0;\n\
         mbarrier.test_wait.parity.b64 %p0, [bar], 1; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+20], %r0;\n\
         mbarrier.arrive.b64 %x3, [bar]; mbarrier.pending_count.b64 %r0, %x3; st.global.u32 [%out+24], %r0;\n\
         mbarrier.arrive.expect_tx.b64 %x3, [bar], 8; mbarrier.try_wait.b64 %p0, [bar], %x3, 100; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+28], %r0;\n\
         mbarrier.complete_tx.relaxed.cta.b64 [bar], 8; mbarrier.try_wait.b64 %p0, [bar], %x3; selp.u32 %r0, 1, 0, %p0; st.global.u32 [%out+32], %r0;\n\
         mbarrier.inval.b64 [bar];",
    );
    // The second phase expects two, after one thread has dropped out.
    assert_eq!(run(&mut gpu, 1, &[0], 9), [3, 2, 0, 1, 1, 0, 2, 0, 1]);
}

#[test]
fn copies_of_many_bytes_come_go_and_add_up() {
    let mut gpu = kernel(
        ".shared .align 16 .b8 tile[256]; .shared .align 8 .b64 bar;",
        "setp.eq.s32 %p0, %t, 0;\n\
         @%p0 mbarrier.init.shared::cta.b64 [bar], 1;\n\
         bar.sync 0;\n\
         @!%p0 bra WAIT;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%in], 128, [bar];\n\
         add.s64 %x0, %in, 128; createpolicy.fractional.L2::evict_last.b64 %x1, 1.0;\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile+128], [%x0], 128, [bar], %x1;\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT;\n\
         mul.wide.u32 %x2, %t, 4; mov.u64 %x3, tile; add.s64 %x2, %x2, %x3; ld.shared.u32 %r0, [%x2]; add.u32 %r0, %r0, 1; st.shared.u32 [%x2], %r0;\n\
         fence.proxy.async.shared::cta; bar.sync 0;\n\
         @!%p0 bra END;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%out], [tile], 256;\n\
         cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [tile], 256;\n\
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n\
         END:",
    );
    let input: Vec<u32> = (0..64).map(|i| i * i).collect();
    let wanted: Vec<u32> = input.iter().map(|value| 2 * (value + 1)).collect();
    assert_eq!(run(&mut gpu, 64, &input, 64), wanted);
}

#[test]
fn masks_say_which_bytes_of_sixteen_are_copied() {
    let masks = [0xffff_u16, 0, 1, 0x8000, 0x5a5a, 0x1234];
    for (hint, policy) in [("", ""), (".L2::cache_hint", "%x1, ")] {
        for mask in masks {
            let mut gpu = kernel(
                ".shared .align 16 .b8 tile[64];",
                &format!(
                    "ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%in]; st.shared.v4.b32 [tile], {{%r0, %r1, %r2, %r3}};\n\
                     ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%in+16]; st.shared.v4.b32 [tile+16], {{%r0, %r1, %r2, %r3}};\n\
                     createpolicy.fractional.L2::evict_last.b64 %x1, 1.0; .reg .b16 %h0; mov.u16 %h0, {mask};\n\
                     cp.async.bulk.global.shared::cta.bulk_group{hint}.cp_mask [%out], [tile], 32, {policy}%h0;\n\
                     cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
                ),
            );
            let values: Vec<u8> = (1..=32).collect();
            let (input, output) = (gpu.upload(&values), gpu.upload(&[99_u8; 32]));
            gpu.run("k", 1, 1, &Args::new().ptr(input).ptr(output));
            let got: Vec<u8> = gpu.read(output, 32);
            for (at, got) in got.into_iter().enumerate() {
                let copied = mask >> (at % 16) & 1 != 0;
                let wanted = if copied { values[at] } else { 99 };
                assert_eq!(got, wanted, "{mask:x}: byte {at}");
            }
        }
    }
}

#[test]
fn halves_are_reduced_in_bulk() {
    let mut gpu = kernel(
        ".shared .align 16 .b8 tile[16];",
        "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%in]; st.shared.v4.b32 [tile], {%r0, %r1, %r2, %r3};\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f16 [%out], [tile], 16;\n\
         add.s64 %x0, %out, 16; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%x0], [tile], 16;",
    );
    let values: Vec<f16> = [-3.0, 2.0, 0.5, 7.0, -0.25, 1.0, 9.0, f32::NAN]
        .map(f16::from_f32)
        .to_vec();
    let start: Vec<f16> = [1.0f32; 16].map(f16::from_f32).to_vec();
    let (input, output) = (gpu.upload(&values), gpu.upload(&start));
    gpu.run("k", 1, 1, &Args::new().ptr(input).ptr(output));
    let got: Vec<f32> = gpu
        .read::<u16>(output, 16)
        .into_iter()
        .map(|bits| f16::from_bits(bits).to_f32())
        .collect();
    assert_eq!(got[..8], [-3.0, 1.0, 0.5, 1.0, -0.25, 1.0, 1.0, 1.0]);
    assert_eq!(got[8..15], [-2.0, 3.0, 1.5, 8.0, 0.75, 2.0, 10.0]);
    assert!(got[15].is_nan());
}

#[test]
fn what_is_not_aligned_or_out_of_reach_is_a_fault() {
    for (copy, expected) in [
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile+8], [%in], 16, [bar];",
            "MisalignedAddress",
        ),
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%in], 1048576, [bar];",
            "IllegalAddress",
        ),
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%in], 24, [bar];",
            "IllegalInstruction",
        ),
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%in], 16, [bar+4];",
            "MisalignedAddress",
        ),
        (
            "mov.u64 %x0, 64; cp.async.bulk.global.shared::cta.bulk_group [%x0], [tile], 16;",
            "IllegalAddress",
        ),
        (
            "mbarrier.arrive.shared::cta.b64 _, [bar+4];",
            "MisalignedAddress",
        ),
        (
            "mbarrier.arrive.shared::cta.b64 _, [bar+65536];",
            "IllegalAddress",
        ),
        (
            "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%in, {%t}], [bar];",
            "IllegalInstruction",
        ),
    ] {
        let mut gpu = kernel(
            ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar[2];",
            &format!("mbarrier.init.shared::cta.b64 [bar], 1;\n{copy}"),
        );
        let input = gpu.upload(&[0u32; 64]);
        let fault = gpu
            .try_run("k", 1, 1, 0, &Args::new().ptr(input).ptr(input))
            .unwrap_err();
        assert_eq!(format!("{:?}", fault.kind), expected, "{copy}");
    }
}

/// The descriptor of 64 × 4 floats and a box of 4 × 2 of them, as `ptx_vm::tensor_map` has it.
fn descriptor(tensor: u64) -> [u8; 128] {
    let mut map = [0; 128];
    map[..8].copy_from_slice(&tensor.to_le_bytes());
    map[8..12].copy_from_slice(b"oTM1");
    map[13] = cuda_abi::types::CUtensorMapDataType::FLOAT32.0 as u8;
    map[14] = 2;
    (map[20], map[24]) = (63, 3);
    // Rows are 16 times 16 bytes long.
    map[40] = 16;
    map[60..65].fill(1);
    (map[65], map[66]) = (3, 1);
    map
}

#[test]
fn boxes_begin_where_a_gpu_can_reach_them() {
    const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%in, {%r0, %r1}], [bar];";
    const STORE: &str =
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%in, {%r0, %r1}], [tile];";
    for (copy, x, y, runs) in [
        (LOAD, 4, 1, true),
        (LOAD, -4, -1, true),
        (LOAD, 64, 4, true),
        (LOAD, 2, 0, false),
        (LOAD, -3, 0, false),
        (STORE, 4, 1, true),
        (STORE, 64, 3, true),
        (STORE, 63, 0, false),
        (STORE, -4, 0, false),
        (STORE, 0, -1, false),
    ] {
        let mut gpu = kernel(
            ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar;",
            &format!(
                "mbarrier.init.shared::cta.b64 [bar], 1;\nmov.s32 %r0, {x}; mov.s32 %r1, {y};\n{copy}"
            ),
        );
        let tensor = gpu.upload(&[1.0_f32; 64 * 4]);
        let map = gpu.upload(&descriptor(tensor));
        let ran = gpu.try_run("k", 1, 1, 0, &Args::new().ptr(map).ptr(tensor));
        let expected = (!runs).then_some("IllegalInstruction".to_owned());
        let fault = ran.err().map(|fault| format!("{:?}", fault.kind));
        assert_eq!(fault, expected, "{copy} at {x}, {y}");
    }
}

#[test]
fn stores_and_sums_tell_their_barrier() {
    let mut gpu = kernel(
        ".shared .align 8 .b64 bar; .shared .align 16 .b32 tile[8];",
        "setp.eq.s32 %p0, %t, 0;\n\
         @%p0 mbarrier.init.shared::cta.b64 [bar], 1;\n\
         @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 32;\n\
         @%p0 st.shared.u32 [tile+16], 5;\n\
         bar.sync 0;\n\
         mapa.shared::cluster.u32 %r0, tile, 0; mapa.shared::cluster.u32 %r1, bar, 0; getctarank.shared::cluster.u32 %r2, %r0;\n\
         @%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r0], {11, 12, 13, 14}, [%r1];\n\
         setp.lt.u32 %p1, %t, 4;\n\
         @%p1 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r0+16], 2, [%r1];\n\
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT;\n\
         @!%p0 bra END;\n\
         ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [tile]; st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6};\n\
         ld.shared.u32 %r3, [tile+16]; add.u32 %r3, %r3, %r2; st.global.u32 [%out+16], %r3;\n\
         END:",
    );
    assert_eq!(run(&mut gpu, 64, &[0], 5), [11, 12, 13, 14, 13]);
}

#[test]
fn copies_tell_the_barrier_that_counts_them() {
    let mut gpu = kernel(
        ".shared .align 8 .b64 bar; .shared .align 16 .b32 tile[32];",
        "setp.eq.s32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [bar], 32; bar.sync 0;\n\
         mul.wide.u32 %x0, %t, 4; add.s64 %x1, %in, %x0; mov.u64 %x2, tile; add.s64 %x2, %x2, %x0;\n\
         cp.async.ca.shared.global [%x2], [%x1], 4;\n\
         cp.async.mbarrier.arrive.shared::cta.b64 [bar];\n\
         cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra WAIT;\n\
         xor.b32 %r0, %t, 31; mul.wide.u32 %x3, %r0, 4; mov.u64 %x4, tile; add.s64 %x3, %x3, %x4; ld.shared.u32 %r1, [%x3];\n\
         add.s64 %x5, %out, %x0; st.global.u32 [%x5], %r1;",
    );
    let input: Vec<u32> = (100..132).collect();
    let wanted: Vec<u32> = input.iter().rev().copied().collect();
    assert_eq!(run(&mut gpu, 32, &input, 32), wanted);
}
