//! What is understood, and what tries to get past.

use std::collections::BTreeSet;

use super::{Place, pointers};

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n\
    .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
    .func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, %x; st.param.b32 [r], %x; ret; }\n\
    .func (.param .b64 r) same(.param .b64 a) { .reg .b64 %x; ld.param.u64 %x, [a]; st.param.b64 [r], %x; ret; }\n\
    .func into(.param .b64 a) { .reg .b64 %x; ld.param.u64 %x, [a]; st.global.u32 [%x], 1; ret; }\n\
    .func rise(.param .b32 a) { .reg .b32 %x; ld.param.u32 %x, [a]; { .param .b32 p; st.param.b32 [p], %x; call rise, (p); } ret; }\n\
    .global .align 8 .u64 variable;\n.const .align 8 .u64 constant = 5;\n";

/// What a kernel with the pointers `a` at 0, `b` at 8 and `c` at 16, a count at 24, two words at 28 and 32, and an array of
/// 32 bytes at 40 comes to.
fn of(body: &str) -> Result<[BTreeSet<Place>; 2], String> {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n, .param .u32 low, .param .u32 high, \
         .param .align 8 .b8 s[32]) {{\n\
         .reg .b64 %a, %b, %c, %d, %e, %f; .reg .b32 %r<9>; .reg .pred %p; .reg .f32 %g<4>; .reg .f64 %w;\n\
         .shared .align 8 .b8 tile[256]; .local .align 8 .b8 depot[64];\n\
         ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; ld.param.u32 %r1, [n];\n\
         {body}\nret; }}"
    );
    let module = crate::parse(&text).map_err(|error| error.to_string())?;
    let found = pointers(&module, "k").map_err(|unknown| unknown.to_string())?;
    Ok([found.reads, found.writes])
}

/// Expects these offsets, of reads and of writes.
fn is(body: &str, reads: &[&[u32]], writes: &[&[u32]]) {
    let found =
        of(body).map(|found| found.map(|places| places.into_iter().map(|it| it.offsets).collect()));
    let set = |offsets: &[&[u32]]| {
        offsets
            .iter()
            .map(|it| it.to_vec())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(found, Ok([set(reads), set(writes)]), "{body}");
}

#[track_caller]
fn is_unknown(body: &str, why: &str) {
    match of(body) {
        Err(unknown) => assert!(unknown.contains(why), "{unknown}: {body}"),
        Ok(found) => panic!("{found:?}: {body}"),
    }
}

#[test]
fn pointers_of_plain_kernels_are_found() {
    is("", &[], &[]);
    is("st.global.u32 [%a], %r1;", &[], &[&[0]]);
    is(
        "cvta.to.global.u64 %d, %a; mov.u32 %r2, %tid.x; mul.wide.u32 %e, %r2, 4; add.s64 %d, %d, %e; \
         ld.global.nc.f32 %g1, [%d+4]; mad.lo.s64 %f, %e, 2, %b; st.f32 [%f], %g1;",
        &[&[0]],
        &[&[8]],
    );
    // Both ways of a choice, also where the one is known.
    is(
        "selp.b64 %d, %a, %b, %p; st.global.u32 [%d], 1;",
        &[],
        &[&[0, 1, 2, 3, 4, 5, 6, 7, 8]],
    );
    is(
        "@%p mov.u64 %a, %c; ld.global.u32 %r2, [%a]; st.global.u32 [%b], %r2;",
        &[&ends(0, 16)],
        &[&[8]],
    );
    // Numbers of 32 bits are no pointers alone.
    is(
        "cvt.u64.u32 %d, %r1; add.u64 %d, %d, %b; st.global.u32 [%d], 1;",
        &[],
        &[&[8]],
    );
}

/// Two pointers that do not stand side by side.
fn ends(first: u32, second: u32) -> [u32; 2] {
    [first, second]
}

#[test]
fn pointers_are_followed_through_loops_structures_and_halves() {
    is(
        "mov.u64 %d, %a; mov.u64 %e, %c; L: st.global.u32 [%d], 1; mov.u64 %f, %d; mov.u64 %d, %e; mov.u64 %e, %f; @%p bra L;",
        &[],
        &[&[0, 16]],
    );
    // A value comes round only after some times.
    is(
        "L: st.global.u32 [%f], 1; mov.u64 %f, %e; mov.u64 %e, %d; mov.u64 %d, %a; bra L;",
        &[],
        &[&[0]],
    );
    is(
        "ld.param.u64 %d, [s+8]; st.global.u32 [%d], 1;",
        &[],
        &[&[48]],
    );
    is(
        "ld.param.v2.u64 {%d, %e}, [s+16]; st.global.u32 [%e], 1;",
        &[],
        &[&[64]],
    );
    is(
        "mov.b64 {%r2, %r3}, %a; add.u32 %r2, %r2, 4; mov.b64 %d, {%r2, %r3}; st.global.u32 [%d], 1;",
        &[],
        &[&[0]],
    );
    // One half of one, chosen, and the other of the other.
    is(
        "mov.b64 {%r2, %r3}, %a; mov.b64 {%r4, %r5}, %c; selp.b32 %r2, %r2, %r4, %p; mov.b64 %d, {%r2, %r5}; st.global.u32 [%d], 1;",
        &[],
        &[&[0, 16]],
    );
    // A pointer that came in two words, of which no other is made.
    is(
        "ld.param.u32 %r2, [low]; ld.param.u32 %r3, [high]; mov.b64 %d, {%r2, %r3}; st.global.u32 [%d], 1;",
        &[],
        &[&[28]],
    );
    is(
        "ld.param.u32 %r2, [low]; ld.param.u32 %r3, [high]; mov.b64 %d, {%r2, %r3}; selp.b64 %d, %d, %a, %p; ld.global.u32 %r4, [%d]; \
         st.global.u32 [%c], %r4;",
        &[&[0, 28]],
        &[&[16]],
    );
    is(
        "shfl.sync.idx.b32 %r2|%p, %r1, 0, 31, -1; mov.b64 {%r3, %r4}, %b; shfl.sync.bfly.b32 %r3, %r3, 1, 31, -1; \
         mov.b64 %d, {%r3, %r4}; st.global.u32 [%d], %r2;",
        &[],
        &[&[8]],
    );
    // What is taken apart and put together by arithmetic.
    is(
        "shr.u64 %d, %b, 32; shl.b64 %d, %d, 32; and.b64 %e, %b, 0xffffffff; or.b64 %d, %d, %e; st.global.u32 [%d], 1;",
        &[],
        &[&[8]],
    );
    // A word of all: an array of pointers by an index.
    let Ok([reads, writes]) = of(
        "mov.b64 %d, s; cvt.u64.u32 %e, %r1; add.u64 %d, %d, %e; ld.param.u64 %f, [%d]; st.global.u32 [%f], 1;",
    ) else {
        panic!("an array of pointers is not understood");
    };
    assert!(reads.is_empty());
    let [all] = &writes.iter().collect::<Vec<_>>()[..] else {
        panic!("{writes:?}");
    };
    assert!(
        [0, 8, 16, 40, 48, 56, 64]
            .iter()
            .all(|offset| all.offsets.contains(offset))
    );
}

#[test]
fn what_may_lie_below_a_pointer_is_told_apart() {
    for (body, is_lowered) in [
        ("st.global.u32 [%a+4], 1;", false),
        ("add.u64 %d, %a, 4; st.global.u32 [%d], 1;", false),
        ("st.global.u32 [%a+-4], 1;", true),
        ("add.s64 %d, %a, -4; st.global.u32 [%d], 1;", true),
        (
            "add.u64 %d, %a, 0xfffffffffffffffc; st.global.u32 [%d], 1;",
            true,
        ),
        (
            "not.b32 %r2, %r1; mul.wide.s32 %d, %r2, 4; add.s64 %d, %d, %a; st.global.u32 [%d], 1;",
            true,
        ),
        (
            "mul.wide.s32 %d, %r1, 4; sub.s64 %d, %a, %d; st.global.u32 [%d], 1;",
            true,
        ),
        ("mad.wide.s32 %d, %r1, -4, %a; st.global.u32 [%d], 1;", true),
    ] {
        let [_, writes] = of(body).unwrap_or_else(|why| panic!("{why}"));
        let found: Vec<_> = writes.iter().map(|place| place.is_lowered).collect();
        assert_eq!(found, [is_lowered], "{body}");
    }
}

#[test]
fn what_is_the_threads_own_is_nothing_that_others_see() {
    is(
        "st.shared.u32 [tile], %r1; bar.sync 0; ld.shared.u32 %r2, [tile+4]; st.global.u32 [%a], %r2;",
        &[],
        &[&[0]],
    );
    is(
        "mov.u64 %d, depot; cvta.local.u64 %d, %d; st.u32 [%d], %r1; ld.u32 %r2, [%d+4]; ld.local.u32 %r3, [depot]; st.global.u32 [%a], %r3;",
        &[],
        &[&[0]],
    );
    is(
        "ld.global.u64 %d, [variable]; ld.const.u64 %e, [constant]; st.global.u64 [%a], %d;",
        &[],
        &[&[0]],
    );
    is(
        "cp.async.ca.shared.global [tile], [%b], 16; cp.async.commit_group; cp.async.wait_all;",
        &[&[8]],
        &[],
    );
    // A pointer that is stored is of no use to who loads it.
    is("st.global.u64 [%a], %b;", &[], &[&[0]]);
    is(
        "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), twice, (p); ld.param.b32 %r2, [q]; } st.global.u32 [%a], %r2;",
        &[],
        &[&[0]],
    );
}

#[test]
fn a_pointer_that_cannot_be_followed_is_not_believed() {
    let loaded = "something that was loaded";
    for body in [
        "ld.global.u64 %d, [%a]; st.global.u32 [%d], 1;",
        "ld.global.u64 %d, [%a]; add.u64 %d, %d, %b; st.global.u32 [%d], 1;",
        "st.shared.u64 [tile], %a; ld.shared.u64 %d, [tile]; st.global.u32 [%d], 1;",
        "st.local.u64 [depot], %a; ld.local.u64 %d, [depot]; st.global.u32 [%d], 1;",
        "ld.const.u64 %d, [constant]; st.global.u32 [%d], 1;",
        "ld.global.u64 %d, [variable]; ld.global.u32 %r2, [%d];",
        "ld.global.v2.u32 {%r2, %r3}, [%a]; mov.b64 %d, {%r2, %r3}; st.global.u32 [%d], 1;",
        "ld.global.u32 %r2, [%a]; mov.b64 {%r3, %r4}, %b; prmt.b32 %r3, %r3, %r2, 0x7654; mov.b64 %d, {%r3, %r4}; st.global.u32 [%d], 1;",
        "ld.global.u64 %d, [%a]; selp.b64 %d, %b, %d, %p; st.global.u32 [%d], 1;",
        "ld.global.f64 %w, [%a]; mov.b64 %d, %w; st.global.u32 [%d], 1;",
        "ld.global.u64 %d, [%a]; mul.lo.u64 %d, %d, 1; and.b64 %e, %b, 0; add.u64 %e, %e, %d; st.global.u32 [%e], 1;",
        "ld.global.u64 %d, [%a]; max.u64 %d, %d, %b; st.global.u32 [%d], 1;",
        "mov.u64 %d, depot; cvta.local.u64 %d, %d; st.u64 [%d], %a; ld.u64 %e, [%d]; st.global.u32 [%e], 1;",
        "{ .param .b64 p; .param .b64 q; st.param.b64 [p], %a; call (q), same, (p); ld.param.b64 %d, [q]; } st.global.u32 [%d], 1;",
        "{ .param .b64 p; st.param.b64 [p], %a; call into, (p); }",
        "mov.u64 %d, same; st.global.u32 [%d], 1;",
    ] {
        is_unknown(body, loaded);
    }
    let none = "no parameter says";
    for body in [
        "st.global.u32 [4096], 1;",
        "mov.u64 %d, 4096; st.u32 [%d], 1;",
        "st.global.u32 [%d], 1;",
        "cvt.u64.u32 %d, %r1; ld.global.u32 %r2, [%d];",
        "mov.u32 %r2, %tid.x; cvt.u64.u32 %d, %r2; ld.u32 %r3, [%d];",
    ] {
        is_unknown(body, none);
    }
}

#[test]
fn what_others_could_tell_from_doing_it_once_is_refused() {
    for (body, why) in [
        ("atom.global.add.u32 %r2, [%a], 1;", "atomic"),
        ("red.global.add.u32 [%a], 1;", "atomic"),
        ("atom.shared.add.u32 %r2, [tile], 1;", "atomic"),
        ("ld.volatile.global.u32 %r2, [%a];", "others could watch"),
        ("ld.acquire.gpu.global.u32 %r2, [%a];", "others could watch"),
        ("st.relaxed.sys.global.u32 [%a], 1;", "others could watch"),
        ("membar.sys;", "fence"),
        ("fence.acq_rel.gpu;", "fence"),
        ("st.global.u64 [variable], %a;", "variable that is written"),
        (
            "mov.u64 %d, variable; selp.b64 %d, %d, %a, %p; st.global.u32 [%d], 1;",
            "variable that is written",
        ),
        ("mov.u32 %r2, %clock;", "special register"),
        ("mov.u64 %d, %globaltimer;", "special register"),
        ("mov.u32 %r2, %smid;", "special register"),
        ("activemask.b32 %r2;", "not known what it does"),
        ("griddepcontrol.wait;", "not known what it does"),
        (
            "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], 16;",
            "not known what it does",
        ),
        (
            "mbarrier.init.shared.b64 [tile], 1;",
            "not known what it does",
        ),
        ("discard.global.L2 [%a], 128;", "not known what it does"),
        (
            "{ .param .b32 p; P: .callprototype _ (.param .b32 a); call %d, (p), P; }",
            "call by a pointer",
        ),
        (
            "{ .param .b64 p; .param .b64 q; .param .b32 r; st.param.b64 [p], %a; st.param.b64 [q], %a; call (r), vprintf, (p, q); }",
            "not in the text",
        ),
        (
            "{ .param .b32 p; st.param.b32 [p], %r1; call rise, (p); }",
            "calls itself",
        ),
        ("trap; pmevent 1;", "not known what it does"),
    ] {
        is_unknown(body, why);
    }
}

#[test]
fn what_is_absurd_is_given_up() {
    let text = |parameters: u32| {
        format!(".version 8.0\n.target sm_90\n.entry k(.param .b8 p[{parameters}]) {{ ret; }}")
    };
    let known = |text: &str| {
        let module = crate::parse(text).expect("PTX");
        pointers(&module, "k").is_ok()
    };
    assert!(known(&text(4096)));
    assert!(!known(&text(4097)));
    let small = text(8);
    let module = crate::parse(&small).expect("PTX");
    assert!(pointers(&module, "j").is_err(), "there is none");
    // Functions that call each other, deeper and deeper.
    let mut deep = String::from(".version 8.0\n.target sm_90\n.func f0() { ret; }\n");
    for level in 1..100 {
        let below = level - 1;
        deep += &format!(".func f{level}() {{ call f{below}; call f{below}; ret; }}\n");
    }
    deep += ".entry k() { call f99; ret; }";
    assert!(!known(&deep));
}
