//! Trees made at random, printed, parsed, and compared.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;

use proptest::prelude::*;
use ptx::ast::*;

/// Names to borrow: a tree holds slices of a source that does not exist yet.
const MODULE_VARIABLES: [&str; 4] = ["g0", "$g1", "_g2", "_ZN2g3E"];
const FUNCTIONS: [&str; 3] = ["f0", "_Z2f1v", "f$2"];
const PARAMS: [&str; 4] = ["p0", "p1", "p2", "p3"];
const LOCALS: [&str; 4] = ["v0", "v1", "v2", "v3"];
const OPCODES: [&str; 5] = ["add", "ld", "tex", "mov", "setp"];
const MODIFIERS: [&str; 6] = ["global", "v4", "f32", "shared::cta", "2d", "L2::128B"];
const SPECIALS: [(&str, Option<char>); 4] = [
    ("tid", Some('x')),
    ("nctaid", Some('z')),
    ("laneid", None),
    ("clock64", None),
];
const MEMORY_TYPES: [Type; 12] = [
    Type::B8,
    Type::U8,
    Type::S16,
    Type::B16,
    Type::U32,
    Type::F32,
    Type::B64,
    Type::S64,
    Type::F64,
    Type::F16,
    Type::Bf16x2,
    Type::B128,
];

fn printed_type(kind: Type) -> String {
    format!("{kind:?}").to_lowercase()
}

fn space_of(space: Space) -> String {
    format!("{space:?}").to_lowercase()
}

// ---- Trees ----

fn linkage() -> impl Strategy<Value = Linkage> {
    prop_oneof![
        Just(Linkage::Internal),
        Just(Linkage::Visible),
        Just(Linkage::Weak)
    ]
}

fn variable(
    name: &'static str,
    space: Space,
    initial: bool,
) -> impl Strategy<Value = Variable<'static>> {
    let kinds = prop::sample::select(&MEMORY_TYPES[..]);
    let values = prop::collection::vec(any::<u64>(), 0..if initial { 5 } else { 1 });
    let addresses = prop::collection::vec((0..2_usize, any::<i32>(), any::<bool>()), 0..3);
    let rest = (1..6_u64, 0..6_u32, linkage(), any::<bool>());
    (kinds, values, addresses, rest).prop_map(
        move |(element, values, addresses, (extra, align, linkage, managed))| {
            let size = element.size();
            let width = usize::try_from(size.min(8)).unwrap();
            let mut bytes = Vec::new();
            for value in &values {
                bytes.extend(&value.to_le_bytes()[..width]);
                bytes.resize(
                    bytes.len().next_multiple_of(usize::try_from(size).unwrap()),
                    0,
                );
            }
            // What ends in a value that is 0 is the shorter initializer to the parser.
            let last = usize::try_from(size).unwrap();
            while bytes.len() >= last && bytes[bytes.len() - last..].iter().all(|&b| b == 0) {
                bytes.truncate(bytes.len() - last);
            }
            let relocations = if size == 8 && initial {
                let count = bytes.len() as u64;
                let place =
                    |(at, (symbol, addend, generic)): (usize, (usize, i32, bool))| Relocation {
                        offset: count + 8 * at as u64,
                        symbol: if symbol == 0 {
                            Symbol::Function(0)
                        } else {
                            Symbol::Module(0)
                        },
                        addend: i64::from(addend),
                        generic,
                    };
                addresses.into_iter().enumerate().map(place).collect()
            } else {
                Vec::new()
            };
            let count = bytes.len() as u64 / size + relocations.len() as u64 + extra;
            Variable {
                name,
                space,
                linkage: if space == Space::Global {
                    linkage
                } else {
                    Linkage::Internal
                },
                element,
                size: size * count,
                align: 1 << align,
                init: Initializer { bytes, relocations },
                managed: managed && space == Space::Global,
                line: 0,
            }
        },
    )
}

fn register_type() -> impl Strategy<Value = Type> {
    prop::sample::select(
        &[
            Type::Pred,
            Type::B16,
            Type::B32,
            Type::F32,
            Type::B64,
            Type::F64,
        ][..],
    )
}

/// Registers 0 and 1 are predicates, so that guards have something to name.
fn registers() -> impl Strategy<Value = Vec<Type>> {
    prop::collection::vec(register_type(), 1..20)
        .prop_map(|rest| [vec![Type::Pred, Type::Pred], rest].concat())
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    registers: u32,
    locals: usize,
    params: usize,
    labels: u32,
}

fn symbol(counts: Counts) -> impl Strategy<Value = Symbol> {
    prop_oneof![
        Just(Symbol::Function(0)),
        Just(Symbol::Module(1)),
        (0..counts.locals).prop_map(Symbol::Local),
        (0..counts.params).prop_map(Symbol::Param),
    ]
}

fn address(counts: Counts) -> impl Strategy<Value = Address> {
    let base = prop_oneof![
        Just(Base::Immediate),
        (0..counts.registers).prop_map(|r| Base::Register(Register(r))),
        symbol(counts).prop_map(Base::Symbol),
    ];
    (base, any::<i32>()).prop_map(|(base, offset)| Address {
        base,
        offset: i64::from(offset),
    })
}

fn simple(counts: Counts) -> impl Strategy<Value = Operand<'static>> {
    prop_oneof![
        3 => (0..counts.registers).prop_map(|r| Operand::Register(Register(r))),
        1 => any::<i64>().prop_map(Operand::Integer),
        1 => any::<u32>().prop_map(Operand::Float32),
        1 => any::<u64>().prop_map(Operand::Float64),
        1 => Just(Operand::Sink),
        1 => prop::sample::select(&SPECIALS[..]).prop_map(|(n, c)| Operand::Special(n, c)),
        1 => (symbol(counts), any::<i32>()).prop_map(|(s, o)| Operand::Symbol(s, i64::from(o))),
        1 => (0..2_u32).prop_map(|r| Operand::Not(Register(r))),
    ]
}

fn operand(counts: Counts) -> impl Strategy<Value = Operand<'static>> {
    let vector = || prop::collection::vec(simple(counts), 1..5).prop_map(Operand::Vector);
    let pair = (0..counts.registers, prop::option::of(0..counts.registers)).prop_map(|(a, b)| {
        let second = b.map_or(Operand::Sink, |b| Operand::Register(Register(b)));
        Operand::Pair(Box::new(Operand::Register(Register(a))), Box::new(second))
    });
    let texture = (address(counts), vector())
        .prop_map(|(texture, at)| Operand::Indexed(vec![Operand::Address(texture), at]));
    prop_oneof![
        6 => simple(counts),
        2 => address(counts).prop_map(Operand::Address),
        1 => vector(),
        1 => pair,
        1 => texture,
    ]
}

fn instruction(counts: Counts) -> impl Strategy<Value = Instruction<'static>> {
    let guard = prop::option::of((0..2_u32, any::<bool>()));
    let guard = guard.prop_map(|guard| {
        guard.map(|(r, negated)| Guard {
            register: Register(r),
            negated,
        })
    });
    let modifiers = prop::collection::vec(prop::sample::select(&MODIFIERS[..]), 0..4);
    let plain = (
        prop::sample::select(&OPCODES[..]),
        prop::collection::vec(operand(counts), 0..5),
    );
    let branch = (0..counts.labels).prop_map(|l| ("bra", vec![Operand::Label(Label(l))]));
    let list = prop::collection::vec(simple(counts), 0..3).prop_map(Operand::List);
    let call = list.prop_map(|list| ("call", vec![Operand::Symbol(Symbol::Function(0), 0), list]));
    let words = prop_oneof![5 => plain, 1 => branch, 1 => call];
    (guard, modifiers, words).prop_map(|(guard, modifiers, (opcode, operands))| Instruction {
        guard,
        opcode,
        modifiers,
        operands,
        line: 0,
    })
}

fn function(name: &'static str) -> impl Strategy<Value = Function<'static>> {
    let variables: Vec<_> = LOCALS
        .iter()
        .map(|name| {
            let space = prop::sample::select(&[Space::Shared, Space::Local, Space::Param][..]);
            space
                .prop_flat_map(|space| variable(name, space, false))
                .boxed()
        })
        .collect();
    let params: Vec<_> = PARAMS
        .iter()
        .map(|name| variable(name, Space::Param, false).boxed())
        .collect();
    let directives = (
        prop::option::of(1..2000_u32),
        prop::option::of(any::<[u32; 3]>()),
        prop::option::of(any::<u32>()),
        prop::option::of(any::<u32>()),
    );
    (
        registers(),
        variables,
        params,
        directives,
        linkage(),
        any::<[bool; 2]>(),
    )
        .prop_flat_map(
            move |(registers, variables, params, directives, linkage, [entry, noreturn])| {
                let counts = Counts {
                    registers: u32::try_from(registers.len()).unwrap(),
                    locals: variables.len(),
                    params: params.len(),
                    labels: 3,
                };
                prop::collection::vec(instruction(counts), 1..20).prop_flat_map(move |body| {
                    let function = Function {
                        name,
                        entry,
                        linkage,
                        returns: Vec::new(),
                        params: params.iter().cloned().map(Parameter::Memory).collect(),
                        max_threads: directives.0,
                        required_threads: directives.1,
                        cluster: directives.1.filter(|_| noreturn),
                        max_cluster: directives.2.filter(|_| noreturn),
                        explicit_cluster: !noreturn,
                        blocks_are_clusters: noreturn,
                        min_blocks: directives.2,
                        max_registers: directives.3,
                        noreturn,
                        registers: registers.clone(),
                        variables: variables.clone(),
                        labels: Vec::new(),
                        targets: Vec::new(),
                        prototypes: Vec::new(),
                        body: None,
                        line: 0,
                    };
                    prop::collection::vec(0..=body.len(), 3).prop_map(move |labels| Function {
                        labels,
                        body: Some(body.clone()),
                        ..function.clone()
                    })
                })
            },
        )
}

fn module() -> impl Strategy<Value = Module<'static>> {
    let variables: Vec<_> = MODULE_VARIABLES
        .iter()
        .map(|name| {
            let space = prop::sample::select(&[Space::Global, Space::Const][..]);
            space
                .prop_flat_map(|space| variable(name, space, true))
                .boxed()
        })
        .collect();
    let functions: Vec<_> = FUNCTIONS
        .iter()
        .map(|name| function(name).boxed())
        .collect();
    (1..10_u8, 0..9_u8, 50..130_u32, variables, functions).prop_map(
        |(major, minor, target, variables, functions)| Module {
            version: (major, minor),
            target,
            variables,
            functions,
        },
    )
}

// ---- Printing ----

struct Printer<'a> {
    module: &'a Module<'static>,
    /// What separates tokens where anything may: the parser must not care.
    gap: &'a str,
    out: String,
}

impl Printer<'_> {
    fn module(mut self) -> String {
        let (major, minor) = self.module.version;
        let target = self.module.target;
        let _ = write!(
            self.out,
            ".version {major}.{minor}\n.target sm_{target}\n.address_size 64\n"
        );
        // Everything is declared first, so that anything may name anything.
        for function in &self.module.functions {
            self.header(function);
            self.out.push_str(";\n");
        }
        for variable in &self.module.variables {
            self.variable(variable);
            self.initializer(variable);
            self.out.push_str(";\n");
        }
        for function in &self.module.functions {
            self.header(function);
            self.body(function);
        }
        self.out
    }

    fn linkage(&mut self, linkage: Linkage) {
        if linkage != Linkage::Internal {
            let _ = write!(self.out, ".{} ", format!("{linkage:?}").to_lowercase());
        }
    }

    fn header(&mut self, function: &Function<'static>) {
        self.linkage(function.linkage);
        let keyword = if function.entry { ".entry" } else { ".func" };
        let _ = write!(self.out, "{keyword} {}{}(", function.name, self.gap);
        for (index, parameter) in function.params.iter().enumerate() {
            let Parameter::Memory(variable) = parameter else {
                continue;
            };
            self.out.push_str(if index > 0 { ", " } else { "" });
            self.variable(variable);
        }
        self.out.push(')');
        if let Some(threads) = function.max_threads {
            let _ = write!(self.out, " .maxntid {threads}");
        }
        if let Some([x, y, z]) = function.required_threads {
            let _ = write!(self.out, " .reqntid {x},{y}, {z}");
        }
        if let Some([x, y, z]) = function.cluster {
            let _ = write!(self.out, " .reqnctapercluster {x}, {y},{z}");
        }
        if function.explicit_cluster {
            self.out.push_str(" .explicitcluster");
        }
        if function.blocks_are_clusters {
            self.out.push_str(" .blocksareclusters");
        }
        if let Some(blocks) = function.max_cluster {
            let _ = write!(self.out, " .maxclusterrank {blocks}");
        }
        if let Some(blocks) = function.min_blocks {
            let _ = write!(self.out, " .minnctapersm {blocks}");
        }
        if let Some(registers) = function.max_registers {
            let _ = write!(self.out, " .maxnreg {registers}");
        }
        self.out
            .push_str(if function.noreturn { " .noreturn" } else { "" });
    }

    fn variable(&mut self, variable: &Variable<'static>) {
        if variable.space != Space::Param {
            self.linkage(variable.linkage);
        }
        let managed = if variable.managed {
            ".attribute(.managed) "
        } else {
            ""
        };
        let _ = write!(
            self.out,
            ".{} {managed}.align {} .{} {}[{}]",
            space_of(variable.space),
            variable.align,
            printed_type(variable.element),
            variable.name,
            variable.size / variable.element.size(),
        );
    }

    fn initializer(&mut self, variable: &Variable<'static>) {
        let size = usize::try_from(variable.element.size()).unwrap();
        if variable.init.bytes.is_empty() && variable.init.relocations.is_empty() {
            return;
        }
        let _ = write!(self.out, " = {{{}", self.gap);
        let mut separator = "";
        for chunk in variable.init.bytes.chunks(size) {
            let mut bits = [0; 8];
            bits[..size.min(8)].copy_from_slice(&chunk[..size.min(8)]);
            let bits = u64::from_le_bytes(bits);
            let _ = match variable.element {
                Type::F32 => write!(self.out, "{separator}0f{bits:08x}"),
                Type::F64 => write!(self.out, "{separator}0D{bits:016X}"),
                _ => write!(self.out, "{separator}{bits:#x}U"),
            };
            separator = ", ";
        }
        for relocation in &variable.init.relocations {
            let name = match relocation.symbol {
                Symbol::Function(index) => FUNCTIONS[index],
                _ => MODULE_VARIABLES[0],
            };
            let addend = relocation.addend;
            let _ = if relocation.generic {
                write!(self.out, "{separator}generic({name})+{addend}")
            } else {
                write!(self.out, "{separator}{name} + {addend}")
            };
            separator = ", ";
        }
        self.out.push('}');
    }

    fn body(&mut self, function: &Function<'static>) {
        self.out.push_str("\n{\n");
        for (index, kind) in function.registers.iter().enumerate() {
            // A range of one now and then, which must mean the same.
            let name = if index % 3 == 0 {
                format!("%x{index}_<1>")
            } else {
                register(index)
            };
            let _ = writeln!(self.out, ".reg .{} {name};", printed_type(*kind));
        }
        for variable in &function.variables {
            self.variable(variable);
            self.out.push_str(";\n");
        }
        let instructions = function.body.as_deref().unwrap_or_default();
        for at in 0..=instructions.len() {
            for (label, _) in function
                .labels
                .iter()
                .enumerate()
                .filter(|(_, place)| **place == at)
            {
                let _ = writeln!(self.out, "$L{label}:");
            }
            if let Some(instruction) = instructions.get(at) {
                self.instruction(instruction);
            }
        }
        self.out.push_str("}\n");
    }

    fn instruction(&mut self, instruction: &Instruction<'static>) {
        if let Some(guard) = instruction.guard {
            let not = if guard.negated { "!" } else { "" };
            let _ = write!(self.out, "@{not}{} ", register(guard.register.0 as usize));
        }
        self.out.push_str(instruction.opcode);
        for modifier in &instruction.modifiers {
            let _ = write!(self.out, ".{modifier}");
        }
        self.out.push_str(self.gap);
        self.out.push(' ');
        self.list(&instruction.operands);
        self.out.push_str(";\n");
    }

    fn list(&mut self, operands: &[Operand<'static>]) {
        for (index, operand) in operands.iter().enumerate() {
            if index > 0 {
                let _ = write!(self.out, ",{}", self.gap);
            }
            self.operand(operand);
        }
    }

    fn symbol(symbol: Symbol) -> &'static str {
        match symbol {
            Symbol::Function(index) => FUNCTIONS[index],
            Symbol::Local(index) => LOCALS[index],
            Symbol::Module(index) => MODULE_VARIABLES[index],
            Symbol::Param(index) | Symbol::Return(index) => PARAMS[index],
        }
    }

    fn address(&mut self, address: &Address) {
        let offset = address.offset;
        let _ = match address.base {
            Base::Immediate => write!(self.out, "{offset}"),
            Base::Register(base) => write!(self.out, "{}+{offset}", register(base.0 as usize)),
            Base::Symbol(symbol) => write!(self.out, "{} + {offset}", Self::symbol(symbol)),
        };
    }

    fn operand(&mut self, operand: &Operand<'static>) {
        let _ = match operand {
            Operand::Address(address) => {
                self.out.push('[');
                self.address(address);
                write!(self.out, "]")
            }
            Operand::Float32(bits) => write!(self.out, "0F{bits:08X}"),
            Operand::Float64(bits) => write!(self.out, "0d{bits:016x}"),
            Operand::Indexed(parts) => {
                self.out.push('[');
                for (index, part) in parts.iter().enumerate() {
                    self.out.push_str(if index > 0 { ", " } else { "" });
                    match part {
                        Operand::Address(address) => self.address(address),
                        part => self.operand(part),
                    }
                }
                write!(self.out, "]")
            }
            Operand::Integer(value) => write!(self.out, "{value}"),
            Operand::Label(label) => write!(self.out, "$L{}", label.0),
            Operand::List(elements) => {
                self.out.push('(');
                self.list(elements);
                write!(self.out, ")")
            }
            Operand::Not(predicate) => write!(self.out, "!{}", register(predicate.0 as usize)),
            Operand::Pair(first, second) => {
                self.operand(first);
                self.out.push('|');
                self.operand(second);
                Ok(())
            }
            Operand::Part {
                register: index,
                first,
                bits,
            } => {
                let kind = if *bits == 8 { 'b' } else { 'h' };
                write!(
                    self.out,
                    "{}.{kind}{}",
                    register(index.0 as usize),
                    first / bits
                )
            }
            Operand::Register(index) => write!(self.out, "{}", register(index.0 as usize)),
            Operand::Sink => write!(self.out, "_"),
            Operand::Special(name, None) => write!(self.out, "%{name}"),
            Operand::Special(name, Some(component)) => write!(self.out, "%{name}.{component}"),
            Operand::Symbol(symbol, offset) => {
                write!(self.out, "{}+{offset}", Self::symbol(*symbol))
            }
            Operand::Vector(elements) => {
                self.out.push('{');
                self.list(elements);
                write!(self.out, "}}")
            }
            Operand::Prototype(_) | Operand::Targets(_) => Ok(()),
        };
    }
}

/// A register's name: `%x3_0`, of a range, or `%x4`.
fn register(index: usize) -> String {
    if index.is_multiple_of(3) {
        format!("%x{index}_0")
    } else {
        format!("%x{index}")
    }
}

// ---- Comparing ----

/// Takes out what printing cannot keep: lines, and the numbers that labels happen to get.
fn normal(mut module: Module<'_>) -> Module<'_> {
    module
        .variables
        .iter_mut()
        .for_each(|variable| variable.line = 0);
    for function in &mut module.functions {
        function.line = 0;
        function
            .variables
            .iter_mut()
            .for_each(|variable| variable.line = 0);
        for parameter in &mut function.params {
            if let Parameter::Memory(variable) = parameter {
                variable.line = 0;
            }
        }
        for instruction in function.body.iter_mut().flatten() {
            instruction.line = 0;
            for operand in &mut instruction.operands {
                if let Operand::Label(label) = operand {
                    label.0 = u32::try_from(function.labels[label.0 as usize]).unwrap();
                }
            }
        }
        function.labels.sort_unstable();
    }
    module
}

/// A few cases for Miri, which has no files to keep failures in.
fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig {
            cases: 2,
            failure_persistence: None,
            ..ProptestConfig::default()
        }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_printed_is_parsed_back(
        module in module(),
        gap in prop::sample::select(&["", " ", "\n\t", " /* , ; */ ", "// }\n"][..]),
    ) {
        let text = Printer { module: &module, gap, out: String::new() }.module();
        let parsed = ptx::parse(&text);
        prop_assert!(parsed.is_ok(), "{}\n{text}", parsed.unwrap_err());
        prop_assert_eq!(normal(parsed.unwrap()), normal(module), "{}", text);
    }

    #[test]
    fn damaged_texts_never_panic(
        module in module(), at in any::<prop::sample::Index>(), with in "[ -~]{0,4}", cut in 0..5_usize,
    ) {
        let mut text = Printer { module: &module, gap: "", out: String::new() }.module();
        let start = at.index(text.len());
        let end = (start + cut).min(text.len());
        text.replace_range(start..end, &with);
        let _ = ptx::parse(&text);
    }
}
