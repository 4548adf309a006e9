//! Texts and what they become.

use crate::Budget;

use super::*;

const HEAD: &str = ".version 7.8\n.target sm_75\n.address_size 64\n";

fn written(source: &str) -> Rewritten {
    let rewritten = rewrite(&format!("{HEAD}{source}"), "", &[], Budget::default()).unwrap();
    crate::parse(&rewritten.text).unwrap_or_else(|error| {
        panic!("{error} in {}", rewritten.text);
    });
    rewritten
}

fn body(statement: &str) -> String {
    let source = format!(
        ".visible .global .attribute(.managed) .align 4 .u32 counter = 3;\n\
         .visible .global .attribute(.managed) .align 8 .b8 table[128];\n\
         .visible .entry k(.param .u64 p) {{\n.reg .b32 %r<4>;\n.reg .b64 %rd<4>;\n.reg .pred %p1;\n{statement}\nret;\n}}\n"
    );
    let text = written(&source).text;
    let start = text.find(".reg .pred %p1;\n").unwrap() + 16;
    let end = text.rfind("\nret;").unwrap();
    text[start..end].to_owned()
}

#[test]
fn a_managed_variable_leaves_a_pointer() {
    let rewritten = written(
        ".visible .global .attribute(.managed) .align 4 .u32 counter = 3;\n\
         .global .attribute(.managed) .align 16 .b8 table[6] = {1, 2};\n.global .u32 plain = 5;\n",
    );
    assert_eq!(
        rewritten.text,
        format!(
            "{HEAD}.visible .global .align 8 .b64 counter$openmps;\n\
             .visible .global .align 8 .b64 table$openmps;\n.global .u32 plain = 5;\n"
        )
    );
    let expected = |name: &str, size, align, init: &[u8]| Managed {
        name: name.into(),
        pointer: format!("{name}$openmps"),
        size,
        align,
        init: init.into(),
    };
    assert_eq!(
        rewritten.managed[0],
        expected("counter", 4, 4, &[3, 0, 0, 0])
    );
    assert_eq!(rewritten.managed[1], expected("table", 6, 16, &[1, 2]));
}

#[test]
fn variables_of_other_modules_are_theirs() {
    let rewritten = written(
        ".extern .global .attribute(.managed) .align 4 .u32 theirs;\n\
         .weak .global .attribute(.managed) .u32 anyones = 4;\n\
         .func f() {\n.reg .b32 %r1;\nld.global.u32 %r1, [theirs];\nret; }\n",
    );
    let names: Vec<&str> = rewritten.managed.iter().map(|it| &it.name[..]).collect();
    assert_eq!(names, ["anyones"]);
    for part in [
        ".extern .global .align 8 .b64 theirs$openmps;",
        ".weak .global .align 8 .b64 anyones$openmps;",
        "ld.global.b64 %openmps0, [theirs$openmps];",
    ] {
        assert!(rewritten.text.contains(part), "{}", rewritten.text);
    }
}

#[test]
fn each_use_loads_the_address() {
    let load = |number: usize, name: &str| {
        format!(".reg .b64 %openmps{number}; ld.global.b64 %openmps{number}, [{name}$openmps]; ")
    };
    let counter = load(0, "counter");
    for (statement, expected) in [
        (
            "ld.global.u32 %r1, [counter];",
            format!("{{ {counter}ld.global.u32 %r1, [%openmps0]; }}"),
        ),
        (
            "$L: @!%p1 st.global.u32 [table+-4], %r1;",
            format!(
                "$L: {{ {}@!%p1 st.global.u32 [%openmps0+-4], %r1; }}",
                load(0, "table")
            ),
        ),
        (
            "mov.u64 %rd1, counter;",
            format!("{{ {counter}mov.u64 %rd1, %openmps0; }}"),
        ),
        (
            "mov.u64 %rd1, table+12;",
            format!(
                "{{ {}add.s64 %openmps0, %openmps0, 12; mov.u64 %rd1, %openmps0; }}",
                load(0, "table")
            ),
        ),
        (
            "{ .reg .b32 %t; atom.global.add.u32 %t, [counter], 1; }",
            format!(
                "{{ .reg .b32 %t; {{ {counter}atom.global.add.u32 %t, [%openmps0], 1; }} }}"
            ),
        ),
        (
            "selp.b64 %rd1, counter, table, %p1;",
            format!(
                "{{ {counter}{}selp.b64 %rd1, %openmps0, %openmps1, %p1; }}",
                load(1, "table")
            ),
        ),
        (
            "mov.b64 {%r1, %r2}, %rd1;",
            "mov.b64 {%r1, %r2}, %rd1;".into(),
        ),
        (
            "{ .reg .b64 %u; .loc 1 2 3, function_name $x, inlined_at 4 5 6\n mov.b64 {%r1, %r2}, %u; }",
            "{ .reg .b64 %u; .loc 1 2 3, function_name $x, inlined_at 4 5 6\n mov.b64 {%r1, %r2}, %u; }"
                .into(),
        ),
    ] {
        assert_eq!(body(statement), expected, "{statement}");
    }
}

#[test]
fn what_cannot_be_rewritten_is_refused_with_its_line() {
    let refused = |source: &str| {
        let error = rewrite(&format!("{HEAD}{source}"), "", &[], Budget::default()).unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::Unsupported(_)),
            "{error}: {source}"
        );
        error.line
    };
    let managed = ".visible .global .attribute(.managed) .align 8 .u64 m;\n";
    assert_eq!(
        refused(&format!("{managed}.global .u64 p = m;")),
        5,
        "its address in another's first value"
    );
    assert_eq!(
        refused(".global .u32 g;\n.global .attribute(.managed) .u64 m = g;"),
        5
    );
    assert_eq!(
        refused(&format!(
            "{managed}.func f() {{\n.reg .b64 %rd1;\nmov.u64 %rd1, m+4*2;\nret; }}"
        )),
        7
    );
    assert_eq!(
        refused(&format!("{managed}.func f() {{\n.local .b64 m;\nret; }}")),
        6
    );
}

const PRINTS: &str = ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 a,\n.param .b64 b\n)\n;\n\
    .visible .entry k() {\n.reg .b64 %rd<3>;\n{\n.param .b64 param0;\n.param .b64 param1;\n.param .b32 retval0;\n\
    call.uni (retval0),\nvprintf,\n(\nparam0,\nparam1\n);\n}\nret;\n}\n";

#[test]
fn calls_are_redirected() {
    let redirects = [
        Redirect {
            from: "vprintf",
            to: "mine",
            definition: ".func (.param .b32 r) mine(.param .b64 a, .param .b64 b) { ret; }",
            keep: false,
        },
        Redirect {
            from: "other",
            to: "mine",
            definition: "nonsense",
            keep: false,
        },
    ];
    let source = format!("{HEAD}{PRINTS}");
    let rewritten = rewrite(
        &source,
        ".global .u32 shared;\n",
        &redirects,
        Budget::default(),
    )
    .unwrap();
    assert_eq!(rewritten.redirected, [true, false]);
    assert!(!rewritten.text.contains("vprintf"), "{}", rewritten.text);
    assert!(rewritten.text.contains("(retval0),\nmine,\n("));
    assert!(
        rewritten
            .text
            .contains("shared;\n.func (.param .b32 r) mine")
    );
    crate::parse(&rewritten.text).unwrap();
    let kept = [Redirect {
        keep: true,
        ..redirects[0]
    }];
    let text = rewrite(&source, "", &kept, Budget::default()).unwrap().text;
    assert_eq!(text.matches("vprintf").count(), 1);
    crate::parse(&text).unwrap();
    // A module that brings its own keeps it.
    let own = PRINTS
        .replacen(")\n;\n", ")\n{ ret; }\n", 1)
        .replace(".extern ", "");
    let own = format!("{HEAD}{own}");
    assert_eq!(
        rewrite(&own, "", &redirects, Budget::default())
            .unwrap()
            .text,
        own
    );
}

#[test]
fn damage_never_panics() {
    let source =
        format!("{HEAD}.visible .global .attribute(.managed) .align 4 .u32 counter = 3;\n{PRINTS}");
    let step = if cfg!(miri) { 97 } else { 1 };
    for end in (0..source.len()).step_by(step) {
        let _ = rewrite(&source[..end], "", &[], Budget::default());
        let mut rewriter = Rewriter {
            words: words(&source[..end]),
            names: HashMap::from([(
                "counter".to_owned(),
                Pointer {
                    pointer: "counter$openmps".into(),
                    linkage: ".visible",
                },
            )]),
            prelude: "",
            redirects: &[],
            redirected: Vec::new(),
            defined: HashSet::new(),
            edits: Edits::default(),
        };
        let _ = rewriter.module();
    }
}

const READS: &str = ".visible .entry k() {\n.reg .f32 %f<5>;\n.reg .b64 %rd1;\n.reg .b32 %r1;\n.reg .pred %p1;\n\
    @%p1 tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [picture, {%f1, %f2}];\n\
    txq.width.b32 %r1, [picture];\nsust.b.1d.b32.trap [target, {%r1}], {%r1};\nmov.b64 %rd1, picture;\nret; }\n";

#[test]
fn references_leave_variables_with_objects() {
    let source = format!(
        "{HEAD}.global .texref picture;\n.visible .global .surfref target;\n.global .attribute(.managed) .u32 m;\n{READS}"
    );
    let text = references(&source, Budget::default()).unwrap();
    crate::parse(&text).unwrap();
    for expected in [
        ".visible .global .align 8 .b64 picture$texture;\n",
        ".visible .global .align 8 .b64 target$surface;\n",
        // Left to whoever rewrites all.
        ".global .attribute(.managed) .u32 m;\n",
        "{ .reg .b64 %openmps0; ld.global.b64 %openmps0, [picture$texture]; \
            @%p1 tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%openmps0, {%f1, %f2}]; }\n",
        "[picture$texture]; txq.width.b32 %r1, [%openmps0]; }\n",
        "[target$surface]; sust.b.1d.b32.trap [%openmps0, {%r1}], {%r1}; }\n",
        "[picture$texture]; mov.b64 %rd1, %openmps0; }\n",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let all = rewrite(&source, "", &[], Budget::default()).unwrap();
    assert_eq!(all.managed.len(), 1);
    assert!(all.text.contains(".b64 picture$texture;"));
    assert!(all.text.contains(".b64 m$openmps;"));
}

#[test]
fn references_of_other_modules_are_theirs() {
    let text = references(
        &format!("{HEAD}.extern .global .texref a;\n.weak .global .texref b;\n"),
        Budget::default(),
    );
    let text = text.unwrap();
    assert!(text.contains(".extern .global .align 8 .b64 a$texture;"));
    assert!(text.contains(".weak .global .align 8 .b64 b$texture;"));
}

#[test]
fn references_that_are_no_plain_variables_are_refused() {
    for source in [
        ".global .texref t = { addr_mode_0 = clamp_to_edge };",
        ".global .texref t[4];",
        ".global .texref a, b;",
        ".visible .entry k(.param .texref t) { ret; }",
        ".global .samplerref s;",
        ".global .texref t;\n.global .b64 address[1] = {t};",
        ".texref",
    ] {
        let refused = references(&format!("{HEAD}{source}"), Budget::default()).unwrap_err();
        assert!(refused.line >= 4, "{refused}");
    }
}
