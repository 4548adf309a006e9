//! What the grammar takes, what it refuses, and on which line.

use crate::ast::*;
use crate::error::ErrorKind;
use crate::{Error, parse, parse_bytes};

const HEAD: &str = ".version 9.0\n.target sm_90a, debug\n.address_size 64\n";

/// A module whose only function has this body; its lines count from 1.
fn body(source: &str) -> String {
    format!(
        ".version 8.3 .target sm_75 .address_size 64 .global .align 8 .b8 table[64]; \
         .func (.param .b32 out) callee(.param .b64 in); .const .f32 scale = 2.0; \
         .visible .entry k(.param .u64 a, .param .u32 n) {{ {source} }}"
    )
}

fn with_body<T>(source: &str, look: impl FnOnce(&Function<'_>) -> T) -> T {
    let source = body(source);
    let module = parse(&source).unwrap_or_else(|error| panic!("{error}: {source}"));
    look(module.functions.last().unwrap())
}

fn operands(source: &str, count: usize) -> Vec<String> {
    with_body(
        &format!(".reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>; {source}"),
        |f| {
            let body = f.body.as_ref().unwrap();
            assert_eq!(body.len(), count, "{source}");
            body.iter()
                .flat_map(|i| &i.operands)
                .map(|o| format!("{o:?}"))
                .collect()
        },
    )
}

fn refused(source: &str) -> Error {
    parse(source).expect_err(source)
}

#[test]
fn a_kernel_with_everything_common() {
    let source = format!(
        "{HEAD}// a comment\n.extern .shared .align 16 .b8 dyn[];\n\
         .visible .entry _Z1kPf(\n\t.param .u64 p,\n\t.param .align 4 .b8 s[12]\n)\n\
         .maxntid 128, 2, 1\n.reqntid 64\n.minnctapersm 2\n{{\n\
         \t.reg .pred \t%p<2>;\n\t.reg .f32 \t%f<4>;\n\t.reg .b64 \t%rd<3>;\n\
         \t.loc\t1 5 0, function_name $L__info_string4+8, inlined_at 1 20 3\n\
         \tld.param.u64 \t%rd1, [p];\n\
         \t@!%p1 bra \t$L__BB0_2;\n\
         \tst.global.f32 \t[%rd1+-4], 0f3F800000;\n\
         $L__BB0_2:\n\tret;\n\n}}\n\
         .section .debug_str {{ info: .b8 1, {{ .b32 .debug_line }} }}\n"
    );
    let module = parse(&source).unwrap();
    assert_eq!((module.version, module.target), ((9, 0), 90));
    let dynamic = &module.variables[0];
    assert_eq!((dynamic.name, dynamic.size, dynamic.align), ("dyn", 0, 16));
    assert_eq!(
        (dynamic.linkage, dynamic.space),
        (Linkage::Extern, Space::Shared)
    );
    let kernel = &module.functions[0];
    assert_eq!(
        (kernel.name, kernel.entry, kernel.line),
        ("_Z1kPf", true, 6)
    );
    assert_eq!(kernel.max_threads, Some(256));
    assert_eq!(kernel.required_threads, Some([64, 1, 1]));
    assert_eq!(kernel.labels, [3]);
    let instructions = kernel.body.as_ref().unwrap();
    let lines: Vec<_> = instructions.iter().map(|i| i.line).collect();
    assert_eq!(lines, [18, 19, 20, 22]);
    // %p0 and %p1 are registers 0 and 1, then come four floats, then %rd0.
    assert_eq!(
        instructions[1],
        Instruction {
            guard: Some(Guard {
                register: Register(1),
                negated: true
            }),
            opcode: "bra",
            modifiers: vec![],
            operands: vec![Operand::Label(Label(0))],
            line: 19,
        }
    );
    assert_eq!(instructions[2].modifiers, ["global", "f32"]);
    let address = Address {
        base: Base::Register(Register(7)),
        offset: -4,
    };
    let expected = [Operand::Address(address), Operand::Float32(0x3f80_0000)];
    assert_eq!(instructions[2].operands, expected);
}

#[test]
fn operands_of_all_kinds() {
    let symbol = "Symbol(Module(0), 8)";
    for (source, expected) in [
        (
            "mov.u32 %r1, %tid.x;",
            vec!["Register(Register(10))", "Special(\"tid\", Some('x'))"],
        ),
        (
            "mov.u32 %r1, %laneid;",
            vec!["Register(Register(10))", "Special(\"laneid\", None)"],
        ),
        (
            "mov.u32 %r1, %envreg2;",
            vec!["Register(Register(10))", "Special(\"envreg2\", None)"],
        ),
        (
            "mov.u64 %r1, %clock64;",
            vec!["Register(Register(10))", "Special(\"clock64\", None)"],
        ),
        (
            "mov.u64 %r1, table+8;",
            vec!["Register(Register(10))", symbol],
        ),
        (
            "mov.u32 %r1, WARP_SZ;",
            vec!["Register(Register(10))", "Integer(32)"],
        ),
        (
            "mov.u32 %r1, (2+3)*4;",
            vec!["Register(Register(10))", "Integer(20)"],
        ),
        (
            "mov.f64 %r1, -1.5;",
            vec!["Register(Register(10))", "Float64(13832806255468478464)"],
        ),
        ("x.y _, !%p1;", vec!["Sink", "Not(Register(1))"]),
        ("x _|%p2;", vec!["Pair(Sink, Register(Register(2)))"]),
        (
            "x %p1|_, %r0;",
            vec!["Pair(Register(Register(1)), Sink)", "Register(Register(9))"],
        ),
        (
            "x {%r0, _, 1};",
            vec!["Vector([Register(Register(9)), Sink, Integer(1)])"],
        ),
        (
            "x [16];",
            vec!["Address(Address { base: Immediate, offset: 16 })"],
        ),
        (
            "x [table+4-8];",
            vec!["Address(Address { base: Symbol(Module(0)), offset: -4 })"],
        ),
        (
            "x [a];",
            vec!["Address(Address { base: Symbol(Param(0)), offset: 0 })"],
        ),
        (
            "x [%rd0+4*(2+1)];",
            vec!["Address(Address { base: Register(Register(108)), offset: 12 })"],
        ),
        (
            "x [%rd0, {%r0}];",
            vec![
                "Indexed([Address(Address { base: Register(Register(108)), offset: 0 }), \
                 Vector([Register(Register(9))])])",
            ],
        ),
    ] {
        assert_eq!(operands(source, 1), expected, "{source}");
    }
}

#[test]
fn calls_keep_their_lists() {
    with_body(
        "{ .param .b64 p0; .param .b32 r0; .reg .b64 f;
           call.uni (r0), callee, (p0);
           proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 8 .b8 _[16]);
           call (r0), f, (p0), proto;
           call callee, ((1)); call callee;
           list: .calltargets callee, k; call (r0), f, (p0), list; }",
        |f| {
            let list = |index| Operand::List(vec![Operand::Symbol(Symbol::Local(index), 0)]);
            let callee = Operand::Symbol(Symbol::Function(0), 0);
            let register = Operand::Register(Register(0));
            let body = f.body.as_ref().unwrap();
            assert_eq!(body[0].operands, [list(1), callee.clone(), list(0)]);
            let indirect = [list(1), register.clone(), list(0), Operand::Prototype(0)];
            assert_eq!(body[1].operands, indirect);
            let one = Operand::List(vec![Operand::Integer(1)]);
            assert_eq!(body[2].operands, [callee.clone(), one]);
            assert_eq!(body[3].operands, [callee]);
            assert_eq!(
                body[4].operands,
                [list(1), register, list(0), Operand::Targets(0)]
            );
            assert_eq!(f.targets, [Targets::Call(vec![0, 1])]);
            assert_eq!(f.prototypes[0].params[1].size, 16);
        },
    );
}

#[test]
fn names_are_those_of_the_innermost_block() {
    let found = operands(
        ".reg .b32 x; mov.b32 x, %r1; { .reg .b64 x; .reg .b32 %r<2>, %rd7; mov.b32 x, %r1; \
         mov.b32 %r2, %rd7; } mov.b32 x, %r1; .reg .b32 %q1<5>; mov.b32 %q13, 0;",
        5,
    );
    let registers: Vec<_> = found
        .iter()
        .map(|o| {
            o.trim_start_matches("Register(Register(")
                .trim_end_matches("))")
        })
        .collect();
    // 117 is the outer x; 118 the inner; 119 and 120 the inner %r0 and %r1; 121 the inner %rd7;
    // %r2 is still the outer range's, and %q13 the fourth of `%q1<5>`.
    let expected = [
        "117",
        "10",
        "118",
        "120",
        "11",
        "121",
        "117",
        "10",
        "125",
        "Integer(0)",
    ];
    assert_eq!(registers, expected);
}

#[test]
fn labels_belong_to_their_blocks() {
    with_body(
        "start: bra out; { bra out; bra in; in: { bra in; bra start; bra out; } } \
         ts: .branchtargets out, start; .reg .b32 i; brx.idx i, ts; { in: } bra in; in: out: ",
        |f| {
            let body = f.body.as_ref().unwrap();
            let places: Vec<_> = body
                .iter()
                .filter_map(|i| match i.operands[0] {
                    Operand::Label(label) => Some(f.labels[label.0 as usize]),
                    _ => None,
                })
                .collect();
            assert_eq!(places, [8, 8, 3, 3, 0, 8, 8]);
            assert_eq!(body[6].operands[1], Operand::Targets(0));
            let Targets::Branch(targets) = &f.targets[0] else {
                panic!("{:?}", f.targets)
            };
            let targets: Vec<_> = targets.iter().map(|l| f.labels[l.0 as usize]).collect();
            assert_eq!(targets, [8, 0]);
        },
    );
}

#[test]
fn vector_registers_are_their_elements() {
    let found = operands(
        ".reg .v4 .b32 q; mov.v4.b32 q, {%r0,%r0,%r0,%r0}; x q.x, q.w;",
        2,
    );
    assert_eq!(found[0].matches("Register(Register(").count(), 4);
    assert_eq!(
        found[2..],
        ["Register(Register(117))", "Register(Register(120))"]
    );
}

/// Bytes, and (offset, addend, generic) of relocations, of the last variable.
fn initial(source: &str) -> (Vec<u8>, Vec<(u64, i64, bool)>, u64) {
    let source = format!("{HEAD}.global .u32 x; .func f() {{ ret; }}\n.global {source};");
    let module = parse(&source).unwrap_or_else(|error| panic!("{error}: {source}"));
    let variable = module.variables.last().unwrap();
    let relocations = variable.init.relocations.iter();
    let relocations = relocations
        .map(|r| (r.offset, r.addend, r.generic))
        .collect();
    (variable.init.bytes.clone(), relocations, variable.size)
}

#[test]
fn initial_values_become_bytes() {
    for (source, bytes, size) in [
        (".b8 v[4] = {1, 255, -1}", vec![1, 255, 255], 4),
        (
            ".s16 v[2][2] = {{1}, {-2, 3}}",
            vec![1, 0, 0, 0, 254, 255, 3, 0],
            8,
        ),
        (".u16 v[][2] = {{1, 2}, {3}}", vec![1, 0, 2, 0, 3, 0], 8),
        (".u16 v[] = {1, 0, 2, 0}", vec![1, 0, 0, 0, 2, 0], 8),
        (".u8 v[2][2] = {1, 2, 3}", vec![1, 2, 3], 4),
        (".f32 v = 0f3F800000", vec![0, 0, 128, 63], 4),
        (".f32 v[2] = {1, 0.5}", vec![0, 0, 128, 63, 0, 0, 0, 63], 8),
        (".f64 v = 1.0", 1.0_f64.to_le_bytes().to_vec(), 8),
        (".b32 v = 0f3F800000", vec![0, 0, 128, 63], 4),
        (
            ".v2 .u16 v[2] = {{1, 2}, {3, 4}}",
            vec![1, 0, 2, 0, 3, 0, 4, 0],
            8,
        ),
        (".b8 v[100000000][3] = {{0}, {0}}", vec![], 300_000_000),
    ] {
        let (found, relocations, found_size) = initial(source);
        assert_eq!((found, found_size), (bytes, size), "{source}");
        assert_eq!(relocations, []);
    }
}

#[test]
fn initial_addresses_become_relocations() {
    let source = ".u64 v[6] = {7, generic(x)+4, x-1, f, generic(later), v + 8}; .global .u32 later";
    let module = format!("{HEAD}.global .u32 x; .func f() {{ ret; }}\n.global {source};");
    let module = parse(&module).unwrap();
    let variable = &module.variables[1];
    assert_eq!(variable.init.bytes, [7, 0, 0, 0, 0, 0, 0, 0]);
    let found: Vec<_> = variable
        .init
        .relocations
        .iter()
        .map(|r| (r.offset, r.symbol))
        .collect();
    let expected = [
        (8, Symbol::Module(0)),
        (16, Symbol::Module(0)),
        (24, Symbol::Function(0)),
        (32, Symbol::Module(2)),
        (40, Symbol::Module(1)),
    ];
    assert_eq!(found, expected);
    let (_, relocations, _) = initial(".u64 v[3] = {generic(x)+4, x-1, generic(x+1)+2}");
    assert_eq!(relocations, [(0, 4, true), (8, -1, false), (16, 3, true)]);
    let masks: Vec<_> = (0..8)
        .map(|i| format!("{:#X}(generic(x))", 0xff_u64 << (8 * i)))
        .collect();
    let (bytes, relocations, _) = initial(&format!(".b8 v[17] = {{ {}, 1, 2 }}", masks.join(", ")));
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(relocations, [(0, 0, true)]);
}

#[test]
fn definitions_take_the_place_of_declarations() {
    let source = format!(
        "{HEAD}.extern .global .u32 g;\n.func f(.param .b32 a);\n\
         .entry k() {{ .reg .b64 r; mov.u64 r, g; call f; call h; ret; }}\n\
         .visible .global .u32 g = 5;\n.visible .func f(.param .b32 b) {{ call f; ret; }}\n"
    );
    // A function must be declared before it is called, in real texts too.
    assert_eq!(refused(&source).kind, ErrorKind::UnknownSymbol("h".into()));
    let source = source.replace("call h;", "");
    let module = parse(&source).unwrap();
    assert_eq!((module.functions.len(), module.variables.len()), (2, 1));
    assert_eq!(module.variables[0].init.bytes, [5, 0, 0, 0]);
    let f = &module.functions[0];
    assert_eq!((f.name, f.linkage, f.line), ("f", Linkage::Visible, 8));
    let recursion = &f.body.as_ref().unwrap()[0];
    assert_eq!(
        recursion.operands,
        [Operand::Symbol(Symbol::Function(0), 0)]
    );
}

#[test]
fn aliases_are_the_functions_they_name() {
    let source = format!(
        "{HEAD}.func a; .func b {{ ret; }} .global .u64 t = a; .entry k() {{ call a; }} .alias a, b;"
    );
    let module = parse(&source).unwrap();
    let call = &module.functions[2].body.as_ref().unwrap()[0];
    assert_eq!(call.operands, [Operand::Symbol(Symbol::Function(1), 0)]);
    assert_eq!(
        module.variables[0].init.relocations[0].symbol,
        Symbol::Function(1)
    );
    for alias in [
        ".alias a, c;",
        ".alias c, b;",
        ".alias b, a;",
        ".alias a b;",
    ] {
        refused(&source.replace(".alias a, b;", alias));
    }
}

#[test]
fn directives_of_newer_targets_are_taken() {
    let source = format!(
        "{HEAD}.global .attribute(.managed) .align 4 .u32 m;\n.pragma \"nounroll\";\n\
         .file 1 \"a \\\" b.cu\", 123, 456\n.common .global .b8 c[8];\n\
         .weak .func .attribute(.unified(1, 2)) (.reg .u32 r) f(.reg .u64 a, .param .b8 _[8]) \
         .noreturn {{ mov.u32 r, a; .pragma \"used_bytes_mask 15\"; }}\n\
         .entry k(.param .u64 .ptr .global .align 64 p) .explicitcluster \
         .reqnctapercluster 2, 1, 1 .maxclusterrank 4 .maxnreg 64 {{ ret; }}"
    );
    let module = parse(&source).unwrap();
    assert!(module.variables[0].managed);
    let f = &module.functions[0];
    assert!(f.noreturn);
    assert_eq!(f.returns, [Parameter::Register(Register(0))]);
    assert_eq!(f.params[0], Parameter::Register(Register(1)));
    let Parameter::Memory(p) = &module.functions[1].params[0] else {
        panic!("{module:?}")
    };
    assert_eq!((p.size, p.align), (8, 8));
    let k = &module.functions[1];
    assert_eq!((k.cluster, k.max_cluster), (Some([2, 1, 1]), Some(4)));
    assert_eq!((k.explicit_cluster, k.blocks_are_clusters), (true, false));
}

#[test]
fn refusals_name_the_line() {
    for (source, line, message) in [
        ("", 1, "missing .version directive"),
        ("\n\n.target sm_75", 3, "missing .version directive"),
        (
            ".version 9.0\n.global .u32 x;",
            2,
            "missing .target directive",
        ),
        (
            ".version 9.0\n.target sm_75\n.address_size 32",
            3,
            "not supported: addresses of 32 bits",
        ),
        (
            ".version 9.0\n.target sm_75\n\nfoo",
            4,
            "syntax error near 'foo': expected a directive",
        ),
        (
            ".version 9.0\n.target sm_75\n.entry k()\n{\n",
            5,
            "syntax error near 'end of file': expected an instruction",
        ),
        (
            ".version 9.0\n.target sm_75\n.func f;\n.entry f() {}",
            4,
            "duplicate definition of 'f'",
        ),
        (
            ".version 9.0\n.target sm_75\n.global .u64 a = b;\n.global .u32 c;",
            3,
            "unknown symbol 'b'",
        ),
        (
            ".version 9.0\n.target sm_75\n.global .texref t;",
            3,
            "not supported: texture and surface references (.texref)",
        ),
        (".version 9.0\n.target sm_75\n/* open", 3, ""),
    ] {
        let error = refused(source);
        assert_eq!(error.line, line, "{error}: {source}");
        let prefix = format!("line {line}: ");
        assert!(
            error.to_string().starts_with(&format!("{prefix}{message}")),
            "{error}"
        );
    }
}

#[test]
fn bodies_with_mistakes_are_refused() {
    for (source, line, message) in [
        ("ret;\nadd.s32 %r1, %r1, 1;", 2, "unknown symbol '%r1'"),
        (
            ".reg .b32 %r<2>;\n\nmov.b32 %r1, %r2;",
            3,
            "unknown symbol '%r2'",
        ),
        (
            ".reg .b32 %r<2>; mov.b32 %r1, %r01;",
            1,
            "unknown symbol '%r01'",
        ),
        ("ret;\n bra nowhere;\n ret;", 2, "unknown symbol 'nowhere'"),
        ("{ in: }\n bra in;", 2, "unknown symbol 'in'"),
        ("a:\na:", 2, "duplicate definition of 'a'"),
        (
            ".reg .b32 a;\n.reg .b64 a;",
            2,
            "duplicate definition of 'a'",
        ),
        (
            ".reg .b32 a<2>;\n.reg .b64 a<2>;",
            2,
            "duplicate definition of 'a'",
        ),
        (".reg .b32 a; @a ret;", 1, "'a' is not a predicate"),
        (
            ".reg .b32 a;\nmov.b32 a, ;",
            2,
            "syntax error near ';': expected a constant",
        ),
        (
            ".reg .b32 a;\nmov.b32 a a;",
            2,
            "syntax error near 'a': expected ';'",
        ),
        (
            ".reg .b32 a; mov.b32 a, %tid.q;",
            1,
            "syntax error near '.q'",
        ),
        (
            ".reg .b32 a; mov.b32 a, %laneid.x;",
            1,
            "syntax error near '.x'",
        ),
        (
            ".reg .b32 a; vadd.s32.s32.s32 a, a.b4, a;",
            1,
            "not supported: operand selectors (.b4)",
        ),
        (
            ".reg .b32 a; vadd2.s32.s32.s32 a, a.h10, a, a;",
            1,
            "not supported: operand selectors (.h10)",
        ),
        (
            ".reg .b32 a; mov.b32 a, a.b0;",
            1,
            "not supported: operand selectors (.b0)",
        ),
        (".reg .b32 a; x [a;", 1, "syntax error near ';'"),
        (".reg .b32 a; x {a;", 1, "syntax error near ';'"),
        ("x [%tid.x];", 1, "'%tid' is no address"),
        (".reg .b32 %r<4000000000>;", 1, "too large: registers"),
        (".shared .b8 s[];", 1, "the size of 's' is missing"),
        (".shared .b8 s[-1];", 1, "syntax error"),
        (
            ".shared .b8 s[4294967296][4294967296];",
            1,
            "too large: variable",
        ),
        (
            ".shared .align 3 .b8 s;",
            1,
            "an alignment must be a power of two",
        ),
        (".shared .pred s;", 1, "predicates have no place in memory"),
        (
            ".local .u8 x[2] = {1,2,3};",
            1,
            "too many initial values for 'x'",
        ),
        (".local .u8 x[2] = {{1},{2}};", 1, ""),
        (".local .u32 x = table;", 1, "an address takes 64 bits"),
        (
            ".local .b8 x[8] = {0xFF(table)};",
            1,
            "an address lacks bytes",
        ),
        (
            ".local .b8 x[8] = {0xFF00(table)};",
            1,
            "not supported: parts of an address",
        ),
        (
            ".local .u32 x = 1.5;",
            1,
            "this value does not fit the variable's type",
        ),
        (".local .b8 x[99999999999][2] = {{1}};", 1, ""),
        ("\u{fc}", 1, "syntax error near '\u{fc}'"),
    ] {
        let source = body(source);
        let Err(error) = parse(&source) else {
            assert_eq!(message, "", "{source}");
            continue;
        };
        assert_eq!(error.line, line, "{error}: {source}");
        let prefix = format!("line {line}: {message}");
        assert!(
            error.to_string().starts_with(&prefix),
            "{error}: expected {message}"
        );
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    let error = parse_bytes(b".version 9.0\n.target sm_75\n// \xff").unwrap_err();
    assert_eq!(
        error,
        Error {
            line: 3,
            kind: ErrorKind::NotText
        }
    );
    assert!(parse_bytes(b".version 9.0\n.target sm_75\0\0").is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "megabytes of text take minutes")]
fn little_text_cannot_ask_for_much_memory() {
    let padding = format!("{HEAD}.global .b8 x[2][900000000] = {{{{1}}, {{1}}}};");
    assert_eq!(refused(&padding).kind, ErrorKind::TooLarge("initializer"));
    let nesting = body(&"{".repeat(100_000));
    assert_eq!(
        refused(&nesting).kind,
        ErrorKind::TooLarge("nesting of blocks")
    );
    let registers = body(&".reg .b32 %r<500000>; { ".repeat(100));
    assert_eq!(refused(&registers).kind, ErrorKind::TooLarge("registers"));
    let word = "x".repeat(1 << 20);
    assert!(refused(&body(&format!("{word} y;"))).to_string().len() < 1000);
    assert!(refused(&body(&format!("mov {word};"))).to_string().len() < 1000);
}

#[test]
#[cfg_attr(miri, ignore = "is about time")]
fn deep_and_long_texts_take_linear_time() {
    // Each of these would take minutes if any step were quadratic.
    let many = 100_000;
    let labels: String = (0..many).map(|i| format!("bra l{i}; ")).collect();
    let definitions: String = (0..many).map(|i| format!("l{i}: ")).collect();
    let nested = "{ ".repeat(100);
    let source = body(&format!(
        "{nested}{labels}{}{definitions}",
        "} ".repeat(100)
    ));
    assert_eq!(parse(&source).unwrap().functions[1].labels.len(), many);
    let blocks = "{ .reg .b32 %r<2>; mov.b32 %r0, %r1; } ".repeat(many);
    assert!(parse(&body(&blocks)).is_ok());
    let again = format!(
        "{HEAD}.global .b8 x[9] = {{1}};\n{}",
        ".extern .global .b8 x[9];".repeat(many)
    );
    assert!(parse(&again).is_ok());
    let aliased = format!("{HEAD}.func f {{ ret; }} {}", ".func f;".repeat(many));
    assert!(parse(&aliased).is_ok());
    let numbers = format!("{HEAD}.global .b8 x[{many}] = {{{}}};", "7,".repeat(many));
    assert_eq!(parse(&numbers).unwrap().variables[0].init.bytes.len(), many);
}

#[test]
fn types_of_instructions_alone_are_not_declared() {
    for word in ["u16x2", "s16x2", "u128", "f8"] {
        for declared in [
            format!(".global .{word} x;"),
            format!(".visible .entry e(.param .{word} p) {{ ret; }}"),
            format!(".visible .entry e() {{ .reg .{word} r; ret; }}"),
        ] {
            let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n{declared}");
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains("a type"), "{declared}: {error}");
            assert!(parse(&text.replace(word, "u32")).is_ok(), "{declared}");
        }
    }
    assert_eq!(Type::named("s16x2"), Some(Type::S16x2));
    assert_eq!(Type::named("u128"), None);
}

/// Counts what is taken, and has only so much.
#[derive(Debug)]
struct Room {
    left: std::cell::Cell<u64>,
}

impl Room {
    fn new(bytes: u64) -> Self {
        Self {
            left: std::cell::Cell::new(bytes),
        }
    }
}

impl crate::Memory for Room {
    fn take(&self, bytes: u64) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(self.left.get()));
        left.is_some()
    }
}

fn within(text: &str, instructions: u64, memory: &Room) -> Result<(), ErrorKind> {
    let budget = crate::Budget {
        instructions,
        memory,
    };
    match crate::parse_within(text, budget) {
        Ok(_) => Ok(()),
        Err(error) => {
            assert!(error.is_limit(), "{error}");
            Err(error.kind)
        }
    }
}

#[test]
fn a_text_costs_no_more_instructions_than_it_may() {
    let text = format!("{HEAD}.func f() {{ ret; ret; ret; }} .func g() {{ ret; }}");
    let room = Room::new(u64::MAX);
    assert_eq!(within(&text, 4, &room), Ok(()));
    assert_eq!(within(&text, 3, &room), Err(ErrorKind::Instructions(3)));
}

#[test]
#[cfg_attr(miri, ignore = "megabytes of text take minutes")]
fn whatever_a_text_repeats_it_pays_for() {
    // What a text can have many of, and how much of it a MiB of memory may hold at most.
    let body = |line: &str| format!(".func f() {{\n.reg .pred p; .reg .b32 r;\n{line}\n}}");
    let many = |line: &dyn Fn(u32) -> String| (0..20_000).map(line).collect::<String>();
    let texts = [
        body(&many(&|_| "ret;".into())),
        body(&many(&|_| "@p mov.b32 r, r;".into())),
        body(&many(&|n| format!("l{n}:"))),
        body(&many(&|n| format!("{{.reg .b32 r{n};}}"))),
        body(&many(&|n| format!(".reg .b32 r{n};"))),
        body(&many(&|n| format!(".local .b8 v{n};"))),
        body(&many(&|n| format!("t{n}: .branchtargets e;")).replace("t0:", "e: t0:")),
        body(&many(&|n| {
            format!("t{n}: .callprototype _ (.param .b32 _);")
        })),
        body(&format!("mov.b32 r, {{{}r}};", "r,".repeat(20_000))),
        many(&|n| format!(".func f{n};")),
        many(&|n| format!(".global .b8 v{n};")),
        format!(
            ".func f(.param .b32 p{});",
            many(&|n| format!(", .param .b32 p{n}"))
        ),
        format!(".global .b64 v[] = {{v{}}};", ", v".repeat(20_000)),
    ];
    for text in texts {
        let start: String = text.chars().take(60).collect();
        let text = format!("{HEAD}{text}");
        let found = within(&text, u64::MAX, &Room::new(512 << 10));
        assert_eq!(found, Err(ErrorKind::NoMemory), "{start}");
        let enough = within(&text, u64::MAX, &Room::new(64 << 20));
        assert_eq!(enough, Ok(()), "{start}");
    }
}
