use crate::gpu::{Args, Gpu};
use engine_soft::exec::{Isa, Options};
#[test]
fn int128() {
    let text = std::fs::read_to_string("/tmp/softptx/int128.ptx").unwrap();
    for isa in [Isa::Sse2, Isa::Avx2, Isa::Avx512] {
        for jit in [false, true] {
            for gang in [32, 64] {
                let options = Options {
                    isa: Some(isa),
                    jit: Some(jit),
                    gang: Some(gang),
                    ..Options::default()
                };
                let mut gpu = Gpu::with(&text, &options, 64);
                let n = 64usize;
                let a: Vec<u128> = (0..n)
                    .map(|i| if i == 0 { u128::MAX } else { u128::MAX >> i })
                    .collect();
                let b: Vec<u128> = (0..n)
                    .map(|i| {
                        if i == 0 {
                            u128::MAX
                        } else {
                            u128::MAX >> (2 * i)
                        }
                    })
                    .collect();
                let da = gpu.upload(&a);
                let db = gpu.upload(&b);
                let d = gpu.alloc_bytes(n as u64 * 9 * 16);
                gpu.run(
                    "_Z6kernelPKoS0_Poi",
                    1,
                    64,
                    &Args::new().ptr(da).ptr(db).ptr(d).u32(n as u32),
                );
                let got: Vec<u128> = gpu.read(d, n * 9);
                for i in 0..n {
                    for k in [6, 7] {
                        let e = if k == 6 { a[i] / b[i] } else { a[i] % b[i] };
                        if got[i * 9 + k] != e {
                            println!(
                                "{isa:?} {jit} {gang} {i} op {k}: {:#x} expected {e:#x}",
                                got[i * 9 + k]
                            );
                        }
                    }
                }
            }
        }
    }
}
#[test]
fn local_arrays() {
    let text = ".version 9.0\n.target sm_75\n.address_size 64\n
.func (.param .b32 rv) fib(.param .b32 a) { .reg .pred %p<2>; .reg .b32 %r<9>;
 ld.param.u32 %r8, [a]; setp.lt.s32 %p1, %r8, 2; @%p1 bra DONE;
 add.s32 %r4, %r8, -1; { .param .b32 p0; st.param.b32 [p0+0], %r4; .param .b32 r0; call.uni (r0), fib, (p0); ld.param.b32 %r5, [r0+0]; }
 add.s32 %r6, %r8, -2; { .param .b32 p0; st.param.b32 [p0+0], %r6; .param .b32 r0; call.uni (r0), fib, (p0); ld.param.b32 %r7, [r0+0]; }
 add.s32 %r8, %r7, %r5;
DONE: st.param.b32 [rv+0], %r8; ret; }
.visible .entry k(.param .u64 out) { .reg .b32 %r<5>; .reg .b64 %d<4>; mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out];
 { .param .b32 p0; st.param.b32 [p0+0], %r1; .param .b32 r0; call.uni (r0), fib, (p0); ld.param.b32 %r2, [r0+0]; }
 mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2; st.global.u32 [%d3], %r2; ret; }";
    for n in [5] {
        let mut gpu = Gpu::with(
            text,
            &Options {
                jit: Some(false),
                ..Options::default()
            },
            64,
        );
        let out = gpu.alloc_bytes(8192);
        let r = gpu.try_run("k", 1, n, 0, &Args::new().ptr(out));
        println!("{n} {r:?} {:?}", gpu.read::<u32>(out, 12));
    }
}
