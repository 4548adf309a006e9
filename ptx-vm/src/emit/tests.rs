//! Which machine code comes of which kernels.

use crate::isa::Isa;
use crate::module::{Module, Options};
use crate::ops::{control, rows, search};
use crate::program::Program;

/// A kernel's program for blocks of 256 threads, for a vector unit; `None` if this machine has it not.
fn program(isa: Isa, body: &str) -> Option<std::sync::Arc<Program>> {
    let text = format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u32 side)\n{{\n\
         .reg .b64 %a<32>; .reg .b32 %r<32>; .reg .pred %p<3>; .reg .f32 %f<9>;\n\
         ld.param.u64 %a0, [from]; ld.param.u32 %r0, [side]; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x;\n\
         {body}\nret;\n}}\n"
    );
    let tree = ptx::parse(&text).expect("PTX");
    let options = Options {
        isa: Some(isa),
        jit: Some(true),
        ..Options::default()
    };
    let module = Module::load(&tree, &options).expect("a module");
    let (program, ..) = module.kernels[0].program(256)?;
    isa.available().then_some(program)
}

/// How many operations a function runs.
fn count(program: &Program, run: crate::machine::OpFn) -> usize {
    let same = |op: &&crate::machine::Op| std::ptr::fn_addr_eq(op.run, run);
    program.ops.iter().filter(same).count()
}

/// The index of an element: of the thread, of the block, and both.
const INDEX: &str = "shl.b32 %r4, %r3, 5; add.s32 %r5, %r4, %r1; mad.lo.s32 %r6, %r2, %r0, %r5;";

#[test]
fn what_threads_have_of_an_index_is_looked_at_once() {
    let neighbours = |made: [&str; 3]| {
        let mut body = INDEX.to_owned();
        for (at, made) in made.iter().enumerate() {
            // Each register is written once, as compilers do.
            let (index, product, place) = (20 + at, 10 + at, 20 + at);
            body += &made.replace("%r7", &format!("%r{index}"));
            body += &format!(
                "mul.wide.u32 %a{product}, %r{index}, 4; add.s64 %a{place}, %a0, %a{product}; ld.global.f32 %f{at}, [%a{place}];\n"
            );
        }
        body + "add.f32 %f4, %f0, %f1; add.f32 %f4, %f4, %f2; st.global.f32 [%a0], %f4;"
    };
    let sums = [
        "add.s32 %r7, %r6, 1;",
        "sub.s32 %r7, %r6, %r0;",
        "mov.u32 %r7, %r6;",
    ];
    let facts = |made| {
        Some(count(
            &*program(Isa::Avx512, &neighbours(made))?,
            rows::rows,
        ))
    };
    // One number of the thread for all three.
    assert!(facts(sums).is_none_or(|facts| facts == 1));
    // No sums: of the thread's number something is taken, or it is shifted by what was loaded.
    let others = [
        "sub.s32 %r7, %r0, %r6;",
        "xor.b32 %r7, %r6, 1;",
        "mul.lo.s32 %r7, %r6, %r6;",
    ];
    assert!(facts(others).is_none_or(|facts| facts == 0));
    // A factor that differs from block to block is none of a thread's number.
    let of_block = ["mul.lo.s32 %r7, %r1, %r3;"; 3];
    assert!(facts(of_block).is_none_or(|facts| facts == 0));
}

#[test]
fn loops_that_follow_what_they_load_are_of_lanes_alone() {
    let repeated = |turn: &str| {
        format!(
            "{INDEX} and.b32 %r8, %r1, 7;\nIN:\nmul.wide.u32 %a1, %r6, 4; add.s64 %a2, %a0, %a1; ld.global.u32 %r9, [%a2];\n\
             {turn}\nadd.s32 %r6, %r6, 1; add.s32 %r8, %r8, -1; setp.gt.s32 %p0, %r8, 0;\n@%p0 bra IN;\nst.global.u32 [%a0], %r9;"
        )
    };
    let follows = "mul.wide.u32 %a3, %r9, 4; add.s64 %a4, %a0, %a3; ld.global.u32 %r9, [%a4];";
    let alone = |isa: Isa, turn: &str| {
        let program = program(isa, &repeated(turn))?;
        let loops = program.ops.iter();
        let loops = loops
            .filter(|op| std::ptr::fn_addr_eq(op.run, control::repeat as crate::machine::OpFn));
        Some(loops.map(|op| op.width[0]).collect::<Vec<_>>())
    };
    for isa in [Isa::Avx2, Isa::Avx512] {
        assert!(alone(isa, follows).is_none_or(|loops| loops == [2]));
    }
    // One that goes on by itself, and one with much else to do, are for strips.
    assert!(alone(Isa::Avx512, "").is_none_or(|loops| loops == [0]));
    let more = follows.to_owned() + &"xor.b32 %r9, %r9, %r8; add.u32 %r9, %r9, %r0;".repeat(9);
    assert!(alone(Isa::Avx512, &more).is_none_or(|loops| loops == [0]));
    assert!(alone(Isa::Avx2, &more).is_none_or(|loops| loops.is_empty()));
    // What no single number has, here a function of three words, is for strips as well.
    let table = follows.to_owned() + "lop3.b32 %r9, %r9, %r8, %r0, 0x2d;";
    assert!(alone(Isa::Avx512, &table).is_none_or(|loops| loops == [0]));
}

#[test]
fn loops_of_one_row_are_one_operation() {
    let rows = |more: &str| {
        let element = format!(
            "mul.wide.u32 %a3, %r4, 4; add.s64 %a4, %a0, %a3; ld.global.u32 %r8, [%a4]; mul.wide.u32 %a5, %r8, 4; add.s64 %a6, %a0, %a5;\n\
             ld.global.f32 %f1, [%a6]; {more} add.f32 %f0, %f0, %f1;"
        );
        format!(
            "mul.wide.u32 %a1, %r1, 4; add.s64 %a2, %a0, %a1; ld.global.u32 %r4, [%a2]; ld.global.u32 %r5, [%a2+4]; mov.f32 %f0, 0f00000000;\n\
             setp.ge.u32 %p0, %r4, %r5;\n@%p0 bra OUT;\nsub.u32 %r6, %r5, %r4; and.b32 %r7, %r6, 3; setp.eq.u32 %p1, %r7, 0;\n@%p1 bra FOURS;\n\
             REST:\n{element} add.s32 %r4, %r4, 1; add.s32 %r7, %r7, -1; setp.ne.u32 %p1, %r7, 0;\n@%p1 bra REST;\n\
             FOURS:\nsetp.lt.u32 %p1, %r6, 4;\n@%p1 bra OUT;\nAGAIN:\n{element} {element} add.s32 %r4, %r4, 4; setp.lt.u32 %p1, %r4, %r5;\n\
             @%p1 bra AGAIN;\nOUT:\nst.global.f32 [%a2], %f0;"
        )
    };
    // Loops by themselves, both before the block where lanes part, and beside the branch to where they all go.
    let counts = |isa: Isa, more: &str| {
        let program = program(isa, &rows(more))?;
        let runs: [crate::machine::OpFn; 3] = [
            control::repeat,
            control::repeat_several,
            control::repeat_beside,
        ];
        Some(runs.map(|run| count(&program, run)))
    };
    for isa in [Isa::Avx2, Isa::Avx512] {
        assert!(counts(isa, "").is_none_or(|counts| counts == [2, 2, 1]));
        // Where all lanes come to what stores they may be in step with each other.
        let stores = "st.global.f32 [%a6], %f0;";
        assert!(counts(isa, stores).is_none_or(|counts| counts == [2, 0, 1]));
    }
}

#[test]
fn a_search_is_one_operation() {
    let loops = |index: &str, turn: &str| {
        format!(
            "{INDEX} mov.u32 %r8, 0;\nIN:\n{index} mul.wide.u32 %a1, %r7, 4; add.s64 %a2, %a0, %a1; ld.global.u32 %r9, [%a2];\n\
             {turn} setp.ne.u32 %p0, %r9, %r8;\n@%p0 bra OUT;\nadd.s32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, %r0;\n@%p1 bra IN;\n\
             OUT:\nst.global.u32 [%a0], %r8;"
        )
    };
    let searches = |isa: Isa, index: &str, turn: &str| {
        Some(count(&*program(isa, &loops(index, turn))?, search::search))
    };
    let index = "add.s32 %r7, %r6, %r8;";
    assert!(searches(Isa::Avx512, index, "").is_none_or(|count| count == 1));
    assert!(searches(Isa::Avx2, index, "").is_none_or(|count| count == 0));
    // What is stored others may see; what each lane has counted is none's but its own; what was loaded is no place in a row.
    let others = [
        "st.global.u32 [%a0+8], %r8;",
        "add.s32 %r6, %r6, %r9;",
        "mul.wide.u32 %a3, %r9, 4; add.s64 %a4, %a0, %a3; ld.global.u32 %r9, [%a4];",
    ];
    for turn in others {
        assert!(searches(Isa::Avx512, index, turn).is_none_or(|count| count == 0));
    }
    // All lanes leave together, whatever they have loaded.
    let counted = loops(index, "").replace("%p0, %r9", "%p0, %r0");
    let counted = program(Isa::Avx512, &counted).map(|program| count(&program, search::search));
    assert!(counted.is_none_or(|count| count == 0));
}
