//! Rows of a sparse matrix as a compiler has them: a loop of what remains of a row by four, and one of four elements a turn. Lanes go
//! through both alone, one lane after the other, and look once for the elements that are next to each other.

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// How the rows of a test are.
struct Rows<'a> {
    /// Makes `%r13`, the number of a row's elements, from the thread `%r2`, and `%r12`, the first one.
    shape: &'a str,
    /// Makes `%q5`, an element's column, from the word `%q4` in its place.
    column: &'a str,
    /// Makes addresses of indices, and adds a product to the sum.
    widen: &'a str,
    sum: &'a str,
    /// Registers and loads of an element.
    kind: &'a str,
}

const PLAIN: Rows<'_> = Rows {
    shape: "mul.lo.u32 %r13, %r2, 7; and.b32 %r13, %r13, 31; mul.lo.u32 %r12, %r5, 37; and.b32 %r12, %r12, 8191;",
    column: "and.b32 %q5, %q4, 4095;",
    widen: "mul.wide.u32",
    sum: "fma.rn.f32 %f3, %f4, %f5, %f3;",
    kind: "f32",
};

impl Rows<'_> {
    /// One element, so far from the index. Each has registers of its own, as a compiler gives them.
    fn element(&self, number: usize, further: usize) -> String {
        let (of, index) = match further {
            0 => ("%r12", String::new()),
            _ => ("%i0", format!("add.s32 %i0, %r12, {further};")),
        };
        let Self {
            column,
            widen,
            sum,
            kind,
            ..
        } = self;
        let log = if *kind == "f64" { 8 } else { 4 };
        let text = format!(
            "{index} {widen} %x0, {of}, 4; add.s64 %s0, %a0, %x0; ld.global.u32 %q4, [%s0]; {column}\n\
             {widen} %z0, %q5, {log}; add.s64 %t0, %a0, %z0; ld.global.{kind} %f5, [%t0];\n\
             {widen} %y0, {of}, {log}; add.s64 %u0, %a5, %y0; ld.global.{kind} %f4, [%u0]; {sum}\n"
        );
        let own = [
            ("%i0", "%i"),
            ("%q4", "%w"),
            ("%q5", "%k"),
            ("%f4", "%g"),
            ("%f5", "%h"),
            ("%f2", "%o"),
            ("%x0", "%x"),
            ("%y0", "%y"),
            ("%z0", "%z"),
            ("%s0", "%s"),
            ("%t0", "%t"),
            ("%u0", "%u"),
        ];
        own.into_iter().fold(text, |text, (name, register)| {
            text.replace(name, &format!("{register}{number}"))
        })
    }

    /// The kernel's body. Of sums that are no numbers no one says which one comes out.
    fn body(&self) -> String {
        let four: String = (0..4)
            .map(|further| self.element(1 + further, further))
            .collect();
        let (kind, zero, none) = match self.kind {
            "f64" => ("f64", "0d0000000000000000", "0d7ff8000000000000"),
            _ => ("f32", "0f00000000", "0f7fc00000"),
        };
        let text = format!(
            ".reg .b32 %q<8>, %i<5>, %w<5>, %k<5>; .reg .{kind} %g<5>, %h<5>, %o<5>; .reg .f64 %e<8>;\n\
             .reg .b64 %x<5>, %y<5>, %z<5>, %s<5>, %t<5>, %u<5>;\nmov.u64 %a5, %a0; mov.u32 %r14, 1; {}\nmov.{kind} %f3, {zero}; setp.eq.u32 %p0, %r13, 0;\n@%p0 bra OUT;\n\
             add.u32 %r9, %r12, %r13; add.u32 %r10, %r12, 1; max.u32 %r9, %r9, %r10; sub.u32 %r11, %r9, %r12;\n\
             and.b32 %q1, %r11, 3; setp.eq.u32 %p1, %q1, 0; mov.{kind} %f3, {zero};\n@%p1 bra FOURS;\nmov.{kind} %f3, {zero};\n\
             REST:\n{}add.s32 %r12, %r12, 1; add.s32 %q1, %q1, -1; setp.ne.u32 %p2, %q1, 0;\n@%p2 bra REST;\n\
             FOURS:\nsetp.lt.u32 %p3, %r11, 4;\n@%p3 bra OUT;\n\
             AGAIN:\n{four}add.s32 %r12, %r12, 4; setp.lt.u32 %p2, %r12, %r9;\n@%p2 bra AGAIN;\n\
             OUT:\nsetp.num.{kind} %p0, %f3, %f3; selp.{kind} %f3, %f3, {none}, %p0;\n\
             st.global.{kind} [%a1], %f3; st.global.u32 [%a1+8], %r12; st.global.u32 [%a1+12], %r14;",
            self.shape,
            self.element(0, 0)
        );
        if kind == "f64" {
            text.replace("%f", "%e")
        } else {
            text
        }
    }

    /// By all ways; some results are not zero.
    fn same(&self) {
        for threads in [50, 256] {
            let memory = same_by_all_ways(&self.body(), threads, 1, 0).expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{}", self.body());
        }
    }
}

#[test]
fn rows_of_lanes_alone_are_the_same() {
    PLAIN.same();
    for sum in [
        // Whichever factor is loaded last, both the same, the addend loaded, and more than a sum.
        "fma.rn.f32 %f3, %f5, %f4, %f3;",
        "fma.rn.f32 %f3, %f4, %f4, %f3; add.f32 %f3, %f3, %f5;",
        "fma.rn.f32 %f3, %f3, %f5, %f4;",
        "fma.rn.f32 %f3, %f3, %f4, %f5;",
        "fma.rn.f32 %f2, %f4, %f5, %f3; add.f32 %f3, %f2, %f4;",
        "fma.rn.f32 %f2, %f5, %f4, %f5; fma.rn.f32 %f3, %f2, 0f3f000000, %f3;",
        "fma.rn.f32 %f3, %f4, 0f3f000000, %f3; sub.f32 %f3, %f3, %f5;",
        "mul.f32 %f2, %f4, %f5; sub.f32 %f3, %f3, %f2;",
    ] {
        Rows { sum, ..PLAIN }.same();
    }
    Rows {
        widen: "mul.wide.s32",
        ..PLAIN
    }
    .same();
    Rows {
        kind: "f64",
        column: "and.b32 %q5, %q4, 2047;",
        shape: "mul.lo.u32 %r13, %r2, 7; and.b32 %r13, %r13, 31; mul.lo.u32 %r12, %r5, 37; and.b32 %r12, %r12, 4095;",
        sum: "fma.rn.f64 %f3, %f4, %f5, %f3;",
        ..PLAIN
    }
    .same();
    // No row has what remains by four, none has four, and all have the same number.
    for count in [
        "and.b32 %r13, %r2, 12;",
        "and.b32 %r13, %r2, 3;",
        "mov.u32 %r13, 9;",
    ] {
        let shape = format!("{count} mul.lo.u32 %r12, %r5, 37; and.b32 %r12, %r12, 8191;");
        Rows {
            shape: &shape,
            ..PLAIN
        }
        .same();
    }
}

/// What lies beside a branch to the kernel's end, with a loop that stores to the lane's own words what it has found there to be zero.
#[test]
fn what_some_lanes_do_beside_a_branch_is_the_same() {
    let body = |parts: &str, turns: &str| {
        format!(
            ".reg .b32 %q<8>;\n{parts}\n@%p0 bra OUT;\nmul.lo.u32 %r12, %r5, 37; and.b32 %r12, %r12, 4095; mul.wide.u32 %v1, %r12, 4; add.s64 %a2, %a0, %v1;\n\
             ld.global.u32 %r13, [%a2]; {turns} setp.eq.u32 %p1, %r13, 0;\n@%p1 bra OUT;\nmul.wide.u32 %v2, %r12, 4; add.s64 %a4, %a0, %v2;\n\
             IN:\nld.global.u32 %q4, [%a4]; and.b32 %q5, %q4, 15; mul.wide.u32 %v1, %q5, 4; add.s64 %a3, %a1, %v1; ld.global.u32 %q6, [%a3];\n\
             setp.ne.u32 %p2, %q6, 0;\n@%p2 bra PAST;\nadd.u32 %q7, %r5, 1; st.global.u32 [%a3], %q7; ld.global.u32 %r14, [%a2]; {}\n\
             PAST:\nadd.s64 %a4, %a4, 4; sub.u32 %r13, %r13, 1; setp.ne.u32 %p3, %r13, 0;\n@%p3 bra IN;\nOUT:\n",
            "and.b32 %r14, %r14, 0; add.u32 %r13, %r13, %r14;"
        )
    };
    let few = "and.b32 %r13, %r13, 15;";
    for parts in [
        "and.b32 %q1, %r2, 3; setp.ne.u32 %p0, %q1, 1;",
        "setp.ne.u32 %p0, %r2, 37;",
        "setp.lt.u32 %p0, %r2, 16;",
        // No lane, and all of them.
        "setp.lt.u32 %p0, %r2, 999;",
        "setp.gt.u32 %p0, %r2, 999;",
    ] {
        for threads in [50, 256] {
            let memory = same_by_all_ways(&body(parts, few), threads, 1, 0).expect("no fault");
            assert_eq!(
                memory.iter().any(|&word| word != 0),
                !parts.contains("lt.u32 %p0, %r2, 999")
            );
        }
    }
    let long = "and.b32 %r13, %r13, 4095;";
    let parts = "and.b32 %q1, %r2, 3; setp.ne.u32 %p0, %q1, 1;";
    same_by_all_ways(&body(parts, long), 256, 1, 0).expect("no fault");
    let far = "setp.eq.u32 %p1, %r2, 41; selp.b64 %v3, 0xc00000000, 0, %p1; add.s64 %a2, %a2, %v3; and.b32 %r13, %r13, 15;";
    let fault = same_by_all_ways(&body(parts, far), 256, 1, 0).expect_err("lane 41 faults");
    assert_eq!(fault.thread, [41, 0, 0]);
}

/// More turns than a budget has, in both loops: lanes go on where they were.
#[test]
fn rows_go_on_after_their_budget() {
    // The sum of so many is no number; which columns there were, in order, is one.
    let sum = "fma.rn.f32 %f3, %f4, %f5, %f3; mul.lo.u32 %r14, %r14, 31; add.u32 %r14, %r14, %q5;";
    let long = "and.b32 %r13, %r2, 31; mul.lo.u32 %r13, %r13, 250; add.u32 %r13, %r13, 3; and.b32 %r12, %r5, 255;";
    Rows {
        shape: long,
        sum,
        ..PLAIN
    }
    .same();
    // What remains is most of a row.
    let body = Rows {
        shape: long,
        sum,
        ..PLAIN
    }
    .body()
    .replace("and.b32 %q1, %r11, 3;", "and.b32 %q1, %r11, 0xffffffc3;");
    let body = body.replace(
        "setp.lt.u32 %p3, %r11, 4;",
        "sub.u32 %q3, %r9, %r12; setp.lt.u32 %p3, %q3, 4;",
    );
    same_by_all_ways(&body, 256, 1, 0).expect("no fault");
}

/// Rows that a lane makes by single turns, if they are what the two loops do: long ones, and others than a compiler has.
#[test]
fn rows_of_single_turns_are_the_same() {
    let sum = "fma.rn.f32 %f3, %f4, %f5, %f3; mul.lo.u32 %r14, %r14, 31; add.u32 %r14, %r14, %q5;";
    let rest = "and.b32 %q1, %r11, 3;";
    let groups = "setp.lt.u32 %p3, %r11, 4;";
    let further = "setp.lt.u32 %p2, %r12, %r9;";
    for shape in [
        "mul.lo.u32 %r13, %r2, 11; and.b32 %r13, %r13, 255; mul.lo.u32 %r12, %r5, 37; and.b32 %r12, %r12, 4095;",
        "and.b32 %r13, %r2, 3; shl.b32 %r13, %r13, 6; and.b32 %r12, %r5, 63;",
        "mov.u32 %r13, 64; mov.u32 %r12, %r5;",
        PLAIN.shape,
    ] {
        let body = Rows {
            shape,
            sum,
            ..PLAIN
        }
        .body();
        assert!(
            [rest, groups, further]
                .iter()
                .all(|line| body.contains(line))
        );
        for (line, other) in [
            (further, further),
            (further, "setp.lt.s32 %p2, %r12, %r9;"),
            (further, "setp.ge.u32 %p2, %r12, %r9; not.pred %p2, %p2;"),
            (further, "setp.lt.u32 %p2, %r12, %r11;"),
            // Groups that go over the end, or are too few.
            (rest, "and.b32 %q1, %r11, 1;"),
            (rest, "and.b32 %q1, %r11, 7;"),
            (rest, "and.b32 %q1, %r11, 63;"),
            (rest, "mov.u32 %q1, 5;"),
            (rest, "max.u32 %q1, %r11, 5; sub.u32 %q1, %q1, 4;"),
            (rest, "add.u32 %q1, %r11, 4; min.u32 %q1, %q1, 40;"),
            (groups, "setp.lt.u32 %p3, %r11, 1;"),
            (groups, "setp.lt.u32 %p3, %r11, 40;"),
            (groups, "and.b32 %q3, %r12, 8; setp.eq.u32 %p3, %q3, 0;"),
            // A sum that is not what it was long before.
            (
                "mov.f32 %f3, 0f00000000; setp.eq.u32 %p0,",
                "mov.f32 %f3, 0f40A00000; setp.eq.u32 %p0,",
            ),
            (groups, "setp.eq.u32 %p3, %r2, %r2;"),
            (groups, "setp.ne.u32 %p3, %r2, %r2;"),
        ] {
            assert!(body.contains(line), "{line}");
            same_by_all_ways(&body.replace(line, other), 256, 1, 0).expect("no fault");
        }
        // As nvcc asks whether there are groups, and otherwise.
        for asked in [
            "not.b32 %q3, %q2; add.s32 %q3, %r9, %q3; setp.lt.u32 %p3, %q3, 3;",
            "not.b32 %q3, %q2; add.s32 %q3, %q3, %r9; setp.ge.u32 %p3, %q3, 3; not.pred %p3, %p3;",
            "not.b32 %q3, %q2; add.s32 %q3, %r9, %q3; setp.lt.u32 %p3, %q3, 4;",
            "not.b32 %q3, %q2; add.s32 %q3, %r9, %q3; setp.lt.s32 %p3, %q3, 3;",
            "sub.u32 %q3, %r9, %q2; setp.lt.u32 %p3, %q3, 3;",
        ] {
            let body = body.replace(rest, &format!("{rest} mov.u32 %q2, %r12;"));
            same_by_all_ways(&body.replace(groups, asked), 256, 1, 0).expect("no fault");
        }
        // Single turns that are not what groups do.
        for (line, other) in [
            ("add.s32 %r12, %r12, 1;", "add.s32 %r12, %r12, 2;"),
            ("add.s32 %r12, %r12, 4; setp", "add.s32 %r12, %r12, 8; setp"),
            (
                "add.s32 %q1, %q1, -1;",
                "add.s32 %q1, %q1, -1; add.u32 %r14, %r14, 1;",
            ),
            (
                "add.s32 %q1, %q1, -1;",
                "add.s32 %q1, %q1, -1; add.u32 %r14, %r14, %q1;",
            ),
            ("add.s32 %i0, %r12, 2;", "add.s32 %i0, %r12, 3;"),
            ("add.s32 %i3, %r12, 2;", "add.s32 %i3, %r12, 3;"),
            (
                "fma.rn.f32 %f3, %g2, %h2, %f3;",
                "fma.rn.f32 %f3, %h2, %h2, %f3;",
            ),
            ("fma.rn.f32 %f3, %g4, %h4, %f3;", "sub.f32 %f3, %f3, %h4;"),
        ] {
            same_by_all_ways(&body.replace(line, other), 256, 1, 0).expect("no fault");
        }
    }
}

/// A row of which one lane finds an element that is not there.
#[test]
fn a_row_faults_where_the_loops_do() {
    for (lane, wider) in [
        (38, "0x3ffffff"),
        (38, "0x7fffffff"),
        (37, "0xffffffff"),
        (8, "0x1fffff"),
        (0, "4095"),
    ] {
        let shape = format!(
            "{} setp.eq.u32 %p0, %r2, {lane}; selp.b32 %q6, {wider}, 4095, %p0;",
            PLAIN.shape
        );
        let rows = Rows {
            shape: &shape,
            column: "and.b32 %q5, %q4, %q6;",
            ..PLAIN
        };
        match same_by_all_ways(&rows.body(), 256, 1, 0) {
            Ok(_) => assert_eq!(wider, "4095", "a column is outside"),
            Err(fault) => assert_eq!(fault.kind, FaultKind::IllegalAddress),
        }
    }
}

/// An array of four elements at the end of memory, of which one lane of the last strip wants another one. How many elements there are is
/// in one register or another, by how many the loop has for other things.
#[test]
fn short_arrays_are_as_short_for_each_strip() {
    for (further, others) in [4, 9, 14, 15]
        .into_iter()
        .flat_map(|further| (0..4).map(move |others| (further, others)))
    {
        let sums: String = (0..=others)
            .map(|at| format!("add.u32 %o{at}, %o{at}, %q{}; ", 3 + at % 2 * 2))
            .collect();
        let stores: String = (0..=others)
            .map(|at| format!("st.global.u32 [%a1+{}], %o{at}; ", 4 * at))
            .collect();
        let body = format!(
            ".reg .b32 %q<8>, %o<5>; .reg .b64 %x<4>;\nmov.u32 %o4, 4; mov.u32 %o0, 0; mov.u32 %o1, 1; mov.u32 %o2, 2; mov.u32 %o3, 3;\n\
             ld.param.u64 %a4, [to]; add.s64 %a6, %a4, 65520; and.b32 %q1, %r2, 7; mov.u32 %r12, %r5;\n\
             setp.eq.u32 %p0, %r2, 250; selp.b32 %q6, {further}, 2, %p0; setp.eq.u32 %p1, %q1, 0;\n@%p1 bra OUT;\n\
             IN:\nmul.wide.u32 %x0, %r12, 4; add.s64 %x1, %a0, %x0; ld.global.u32 %q4, [%x1];\n\
             min.u32 %q2, %q4, %q6; mul.wide.u32 %x2, %q2, 4; add.s64 %x3, %a6, %x2; ld.global.u32 %q3, [%x3]; ld.global.u32 %q5, [%x3+4];\n\
             {sums}add.s32 %r12, %r12, 1; add.s32 %q1, %q1, -1; setp.ne.u32 %p2, %q1, 0;\n@%p2 bra IN;\nOUT:\n{stores}"
        );
        let fault = same_by_all_ways(&body, 256, 1, 0);
        assert_eq!(
            fault.expect_err("a lane faults").kind,
            FaultKind::IllegalAddress
        );
    }
}

/// An index that goes over the end of its bits, below 0 or out of memory in the midst of four: that element is where it ever was, or
/// faults.
#[test]
fn elements_at_the_edge_are_the_same() {
    // From below the base on, around 0.
    for (widen, faults) in [("mul.wide.s32", false), ("mul.wide.u32", false)] {
        let shape = "and.b32 %r13, %r2, 31; sub.u32 %r12, 0, %r13; add.u32 %r12, %r12, 9;";
        let rows = Rows {
            shape,
            widen,
            ..PLAIN
        };
        // Words and elements from the middle of memory on; of indices without a sign all but those below 0.
        let body = rows.body().replace(
            "mov.u64 %a5, %a0;",
            "add.s64 %a0, %a0, 16384; mov.u64 %a5, %a0;",
        );
        let body = if widen == "mul.wide.u32" {
            body.replace("add.u32 %r12, %r12, 9;", "add.u32 %r12, %r12, 40;")
        } else {
            body
        };
        let result = same_by_all_ways(&body, 256, 1, 0);
        assert_eq!(result.is_err(), faults);
    }
    // The last ones of all memory that there is, and what follows.
    for start in ["0x7ffffffe", "0xfffffffe", "0x3fffffff", "32757"] {
        let shape = format!(
            "and.b32 %r13, %r2, 31; mov.u32 %r12, 5; setp.eq.u32 %p3, %r2, 21; selp.b32 %r12, {start}, %r12, %p3;"
        );
        for widen in ["mul.wide.s32", "mul.wide.u32"] {
            let rows = Rows {
                shape: &shape,
                widen,
                ..PLAIN
            };
            let fault = same_by_all_ways(&rows.body(), 256, 1, 0);
            if start == "0xfffffffe" && widen == "mul.wide.s32" {
                continue;
            }
            assert_eq!(
                fault.expect_err("lane 21 faults").kind,
                FaultKind::IllegalAddress
            );
        }
    }
}
