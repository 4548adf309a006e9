//! What is refused, what is written, and that the verifier finds what the rewriter would have forgotten.

use super::{Windows, fence, verify};

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
const ALL: Windows = Windows {
    base: 1 << 32,
    size: 1 << 32,
    table: 0,
    count: 0,
    record: 64,
};

fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.extern .func elsewhere();\n.global .texref picture;\n\
         .visible .entry k(.param .align 64 .b8 map[128]) {{ .reg .b64 %a, %b; .reg .b32 %r<9>; .reg .pred %p;\n\
         .shared .align 16 .b8 tile[256]; .shared .b64 bar;\n{body}\nret; }}"
    )
}

fn fenced(text: &str) -> Result<super::Fenced, String> {
    let fenced = fence(text, &ALL, &|_| false, crate::Budget::default());
    fenced.map_err(|error| error.to_string())
}

#[test]
fn what_has_no_fence_is_refused_by_name() {
    for (body, words) in [
        (
            "cp.async.bulk.prefetch.tensor.1d.L2.global [%a, {%r1}];",
            "tensor map",
        ),
        (
            "tensormap.replace.tile.rank.global.b1024.b32 [%a], 1;",
            "tensormap.replace",
        ),
        (
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%a], {%r1, %r2, %r3, %r4}, 16;",
            "wmma.store",
        ),
        (
            "suld.b.1d.b32.trap {%r1}, [%a, {%r2}];",
            "texture or surface",
        ),
        (
            "multimem.red.relaxed.gpu.global.add.u32 [%a], %r1;",
            "multimem.red",
        ),
        ("call elsewhere;", "not in the text: call"),
        (
            "mbarrier.init.b64 [%a], 1;",
            "not said to be one of shared memory",
        ),
        (
            "fence.proxy.tensormap::generic.acquire.gpu [%a], 128;",
            "fence.proxy",
        ),
        ("ld.shared.global.u32 %r1, [%a];", "several state spaces"),
        ("ld.u32 %r1, [tile];", "not one of global memory"),
        ("brkpt;", "brkpt"),
        ("stackrestore.u64 %a;", "stackrestore"),
        ("launch.anything %a;", "launch.anything"),
        (
            "cp.async.ca.shared.global [tile], [%a], 4, %p;",
            "number of 32 bits",
        ),
        (".reg .b64 %openmps$fence_A;", "kept for fences"),
    ] {
        let text = kernel(body).replace(".global .texref picture;\n", "");
        let error = fenced(&text).unwrap_err();
        assert!(error.contains(words), "{body}: {error}");
        assert!(error.starts_with("line 7: "), "{body}: {error}");
    }
}

#[test]
fn variables_that_no_list_can_name_are_refused() {
    let inside = kernel(".global .b32 inside;").replace(".global .texref picture;\n", "");
    let error = fenced(&inside).unwrap_err();
    assert!(error.starts_with("line 7: "), "{error}");
    assert!(error.contains("inside of a function"), "{error}");
    let many: String = (0..5000)
        .map(|at| format!(".global .b32 v{at};\n"))
        .collect();
    let error = fenced(&format!("{HEAD}{many}")).unwrap_err();
    assert!(error.contains("so many variables"), "{error}");
}

#[test]
fn a_window_is_one_word() {
    assert_eq!(Windows::word(0x7000, 0x3000), Some(7 << 28 | 3));
    assert_eq!(Windows::word(1 << 47, 1 << 39), Some(1 << 63 | 1 << 27));
    for (base, bytes) in [
        (0x7001, 0x1000),
        (0x7000, 0x1001),
        (0x1000, 1 << 40),
        ((1 << 48) - 0x1000, 0x1000),
        (1 << 48, 0x1000),
    ] {
        assert_eq!(Windows::word(base, bytes), None, "{base:x} {bytes:x}");
    }
}

#[test]
fn what_reaches_nothing_stays_as_it_is() {
    let text = kernel(
        "ld.param.u64 %a, [map]; st.shared.u32 [tile], %r1; add.s32 %r1, %r1, 1; bar.sync 0;",
    )
    .replace(".global .texref picture;\n", "");
    let fenced = fenced(&text).unwrap();
    assert_eq!(fenced.checked, 0);
    assert!(fenced.text.contains("st.shared.u32 [tile], %r1; add.s32"));
    assert!(crate::parse(&fenced.text).is_ok());
}

/// Everything that a fence consists of, taken away word by word: the verifier misses each.
#[test]
fn the_verifier_misses_whatever_is_not_there() {
    let text = format!(
        "{HEAD}.global .b32 v[4];\n.visible .entry k() {{ .reg .b64 %a; .reg .b32 %r<9>; .reg .pred %p;\n\
         @!%p ld.global.u32 %r1, [%a+8]; ret; }}"
    );
    let whole = fenced(&text).unwrap().text;
    assert!(verify::verify(&whole, &|_| false).is_ok());
    let (before, rest) = whole.split_once("{ .reg .pred %openmps$fence_P").unwrap();
    let (check, after) = rest.split_once("@!%p ld.global").unwrap();
    let parts: Vec<&str> = check.split_inclusive(';').collect();
    let mut missed = 0;
    for left_out in 0..parts.len() {
        let part = parts[left_out];
        // Declarations, and the line that a record names.
        if part.contains(".reg") || part.contains(".param .b") || part.contains("fence_Q;") {
            continue;
        }
        let without: String = parts
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != left_out)
            .map(|(_, part)| *part)
            .collect();
        let text = format!("{before}{{ .reg .pred %openmps$fence_P{without}@!%p ld.global{after}");
        assert!(verify::verify(&text, &|_| false).is_err(), "without {part}");
        missed += 1;
    }
    assert!(missed > 12, "{missed}");
    for (from, to) in [
        ("[%a+8]", "[%a+12]"),
        (
            "and.b32 %openmps$fence_D, %openmps$fence_D, 3",
            "and.b32 %openmps$fence_D, %openmps$fence_D, 1",
        ),
        ("[openmps$fence+8]", "[openmps$fence+16]"),
        ("@!%p ld.global", "INTO: @!%p ld.global"),
        ("fence_V], 4", "fence_V], 2"),
        ("setp.ge.u64", "setp.gt.u64"),
    ] {
        assert!(whole.contains(from), "{from}");
        let changed = whole.replacen(from, to, 1);
        assert!(verify::verify(&changed, &|_| false).is_err(), "{to}");
    }
}
