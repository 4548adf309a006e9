//! How kernels end badly, and that they can be ended.

use std::sync::Arc;

use ptx_vm::{Cluster, FaultKind, Outcome};

use crate::gpu::{Args, Gpu};

fn gpu() -> Gpu {
    Gpu::new(include_str!("../kernels/kernels.ptx"))
}

#[test]
fn a_wild_address_is_a_fault_that_names_it() {
    let mut gpu = gpu();
    let data = gpu.upload(&[0u32; 64]);
    let run = |offset: u64| gpu.try_run("wild", 1, 64, 0, &Args::new().ptr(data).u64(offset));
    assert!(run(0).is_ok());
    // Beyond the allocation, before the window, behind it, nowhere, and around the end of addresses.
    for offset in [
        1u64 << 14,
        0u64.wrapping_sub(1 << 30),
        1 << 30,
        1 << 60,
        0u64.wrapping_sub(data / 4),
        (u64::MAX - data) / 4,
    ] {
        let fault = run(offset).expect_err("a fault");
        assert_eq!(fault.kind, FaultKind::IllegalAddress);
        assert_eq!(fault.kind.code(), 700);
        assert_eq!(fault.address, data.wrapping_add(offset.wrapping_mul(4)));
        assert_eq!(fault.thread, [0, 0, 0]);
        assert!(fault.line > 0);
    }
    // The lowest lane that is wrong is named, not the first of all.
    let last = (1u64 << 14) - 10;
    let fault = run(last).expect_err("a fault");
    assert_eq!(
        (fault.thread, fault.address),
        ([10, 0, 0], data + (1 << 16))
    );
    // What was valid is not any more.
    gpu.window.set_valid(data, 4, false);
    assert!(run(0).is_err());
}

#[test]
fn a_misaligned_address_is_a_fault() {
    let mut gpu = gpu();
    let data = gpu.upload(&[0u32; 64]);
    let fault = gpu
        .try_run("wild", 1, 64, 0, &Args::new().ptr(data + 2).u64(0))
        .expect_err("a fault");
    assert_eq!(
        (fault.kind, fault.kind.code()),
        (FaultKind::MisalignedAddress, 716)
    );
    assert_eq!(fault.address, data + 2);
}

#[test]
fn a_trap_names_its_thread() {
    let mut gpu = gpu();
    let data = gpu.upload(&[0u32; 64]);
    let fault = gpu
        .try_run("half_trap", 1, 64, 0, &Args::new().ptr(data))
        .expect_err("a fault");
    assert_eq!((fault.kind, fault.thread), (FaultKind::Trap, [40, 0, 0]));
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let source = ".version 9.0\n.target sm_75\n.address_size 64\n\
        .func f(.param .b32 a) { .local .b8 frame[64]; .reg .b32 %r<2>;\n\
        ld.param.u32 %r1, [a]; { .param .b32 p; st.param.b32 [p], %r1; call f, (p); } ret; }\n\
        .visible .entry k() { .reg .b32 %r<2>; mov.u32 %r1, %tid.x;\n\
        { .param .b32 p; st.param.b32 [p], %r1; call f, (p); } ret; }";
    let fault = Gpu::new(source)
        .try_run("k", 1, 64, 0, &Args::new())
        .expect_err("a fault");
    assert_eq!(
        (fault.kind, fault.kind.code()),
        (FaultKind::StackOverflow, 714)
    );
}

#[test]
fn a_kernel_that_never_ends_yields_and_can_be_cancelled() {
    let mut gpu = gpu();
    let data = gpu.upload(&[0u32]);
    let launch = gpu.launch("forever", 1, 64, 0, &Args::new().ptr(data));
    let mut block = Cluster::new(Arc::clone(&launch), 0, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(block.run(10_000), Outcome::Yielded);
    }
    gpu.write(data, &[1u32]);
    assert_eq!(block.run(u64::MAX), Outcome::Finished);

    gpu.write(data, &[0u32]);
    let mut block = Cluster::new(launch, 0, 0).unwrap();
    assert_eq!(block.run(10_000), Outcome::Yielded);
    gpu.cancel();
    assert_eq!(block.run(u64::MAX), Outcome::Cancelled);
}

#[test]
fn an_instruction_that_is_not_built_is_named_with_its_line() {
    let source = ".version 9.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<9>;\n\
        mov.u32 %r1, 3;\nmultimem.red.relaxed.gpu.global.add.u32 [%r2], %r1;\nret;\n}";
    let tree = ptx::parse(source).unwrap();
    let error = ptx_vm::Module::load(&tree, &Default::default()).unwrap_err();
    assert_eq!(error.line, 8);
    assert!(
        error
            .message
            .contains("multimem.red.relaxed.gpu.global.add.u32")
            && error.message.contains("docs/instructions.md"),
        "{error}"
    );
    assert_eq!(error.function, "k");
}
