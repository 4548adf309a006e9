//! Linking of syntax trees: one module of several, with names resolved between them.
//!
//! What one module declares and another defines becomes one symbol; a second definition is refused,
//! unless it is weak or common, and so is a use of what nobody defines.
//!
//! Called by the image loading of `engine-soft`; NVIDIA's driver links by itself. Reads no text and knows no
//! device: trees in, a tree out.

use std::collections::{BTreeSet, HashMap};

use crate::ast::{
    Base, Function, Initializer, Instruction, Linkage, Module, Operand, Space, Symbol, Targets,
    Variable,
};
use crate::error::shorten;

/// Messages of one link, at most; a log of more is read by nobody.
const MOST_MESSAGES: usize = 64;

/// A module that is linked, and its name in messages.
#[derive(Clone, Debug)]
pub struct LinkInput<'a> {
    /// The name.
    pub name: &'a str,
    /// The module.
    pub module: Module<'a>,
}

/// How strongly a symbol is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Declared,
    Common,
    Weak,
    Defined,
}

/// The one symbol of a name.
#[derive(Clone, Copy, Debug)]
struct DefinedSymbol {
    index: usize,
    strength: Strength,
    /// The part that it comes from.
    part: usize,
}

/// Where the symbols of one part have come to lie.
#[derive(Debug, Default)]
struct Moved {
    functions: Vec<usize>,
    variables: Vec<usize>,
}

/// Links modules. `provided` tells functions that the engine itself has.
///
/// # Errors
/// A message for each symbol that is defined twice, or that is used and not defined at all.
pub fn link<'a>(
    parts: Vec<LinkInput<'a>>,
    provided: impl Fn(&str) -> bool,
) -> Result<Module<'a>, Vec<String>> {
    let mut linked = Linker::default();
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let mut moved = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let module = part.module;
        linked.version = linked.version.max(module.version);
        linked.target = linked.target.max(module.target);
        let mut to = Moved::default();
        for variable in module.variables {
            to.variables.push(linked.variable(variable, number, &names));
        }
        for function in module.functions {
            to.functions.push(linked.function(function, number, &names));
        }
        moved.push(to);
    }
    for (function, part) in &mut linked.functions {
        renumber_function(function, &moved[*part]);
    }
    for (variable, part) in &mut linked.variables {
        renumber_init(&mut variable.init, &moved[*part]);
    }
    linked.refuse_undefined(&names, &provided);
    if !linked.messages.is_empty() {
        return Err(linked.messages);
    }
    Ok(Module {
        version: linked.version,
        target: linked.target,
        variables: linked.variables.into_iter().map(|(v, _)| v).collect(),
        functions: linked.functions.into_iter().map(|(f, _)| f).collect(),
    })
}

/// What is put together, each thing with the part that it comes from.
#[derive(Default)]
struct Linker<'a> {
    version: (u8, u8),
    target: u32,
    variables: Vec<(Variable<'a>, usize)>,
    functions: Vec<(Function<'a>, usize)>,
    known_variables: HashMap<&'a str, DefinedSymbol>,
    known_functions: HashMap<&'a str, DefinedSymbol>,
    messages: Vec<String>,
}

impl<'a> Linker<'a> {
    fn say(&mut self, message: String) {
        if self.messages.len() < MOST_MESSAGES {
            self.messages.push(message);
        }
    }

    fn twice(&mut self, name: &str, first: &str, second: &str) {
        self.say(format!(
            "multiple definition of '{}' in '{}', first defined in '{}'",
            shorten(name),
            shorten(second),
            shorten(first)
        ));
    }

    fn variable(&mut self, variable: Variable<'a>, part: usize, names: &[&str]) -> usize {
        // Unsized shared memory is each kernel's own, whatever it is called.
        let dynamic = variable.space == Space::Shared && variable.size == 0;
        let strength = match variable.linkage {
            Linkage::Internal => None,
            _ if dynamic => None,
            Linkage::Extern => Some(Strength::Declared),
            Linkage::Common => Some(Strength::Common),
            Linkage::Weak => Some(Strength::Weak),
            Linkage::Visible => Some(Strength::Defined),
        };
        let name = variable.name;
        let known = strength.and_then(|_| self.known_variables.get(name).copied());
        let Some(strength) = strength else {
            self.variables.push((variable, part));
            return self.variables.len() - 1;
        };
        let Some(known) = known else {
            self.variables.push((variable, part));
            let index = self.variables.len() - 1;
            let known = DefinedSymbol {
                index,
                strength,
                part,
            };
            self.known_variables.insert(name, known);
            return index;
        };
        let (before, after) = (&self.variables[known.index].0, &variable);
        if before.space != after.space {
            let message = format!(
                "'{}' lies in another state space in '{}' than in '{}'",
                shorten(name),
                shorten(names[part]),
                shorten(names[known.part])
            );
            self.say(message);
            return known.index;
        }
        if strength == Strength::Defined && known.strength == Strength::Defined {
            self.twice(name, names[known.part], names[part]);
            return known.index;
        }
        let larger = strength == Strength::Common
            && known.strength == Strength::Common
            && after.size > before.size;
        if strength > known.strength || larger {
            self.variables[known.index] = (variable, part);
            let known = DefinedSymbol {
                strength,
                part,
                ..known
            };
            self.known_variables.insert(name, known);
        }
        known.index
    }

    fn function(&mut self, function: Function<'a>, part: usize, names: &[&str]) -> usize {
        let strength = match (function.linkage, &function.body) {
            (Linkage::Internal, Some(_)) => None,
            (_, None) => Some(Strength::Declared),
            (Linkage::Weak | Linkage::Common, _) => Some(Strength::Weak),
            _ => Some(Strength::Defined),
        };
        let name = function.name;
        let Some(strength) = strength else {
            self.functions.push((function, part));
            return self.functions.len() - 1;
        };
        let Some(known) = self.known_functions.get(name).copied() else {
            self.functions.push((function, part));
            let index = self.functions.len() - 1;
            let known = DefinedSymbol {
                index,
                strength,
                part,
            };
            self.known_functions.insert(name, known);
            return index;
        };
        let before = &self.functions[known.index].0;
        if before.params.len() != function.params.len()
            || before.returns.len() != function.returns.len()
        {
            let message = format!(
                "function '{}' has other parameters in '{}' than in '{}'",
                shorten(name),
                shorten(names[part]),
                shorten(names[known.part])
            );
            self.say(message);
            return known.index;
        }
        if strength == Strength::Defined && known.strength == Strength::Defined {
            self.twice(name, names[known.part], names[part]);
        } else if strength > known.strength {
            self.functions[known.index] = (function, part);
            let known = DefinedSymbol {
                strength,
                part,
                ..known
            };
            self.known_functions.insert(name, known);
        }
        known.index
    }

    fn refuse_undefined(&mut self, names: &[&str], provided: &dyn Fn(&str) -> bool) {
        let mut undefined: BTreeSet<(usize, &str)> = self
            .variables
            .iter()
            .filter(|(variable, _)| {
                variable.linkage == Linkage::Extern
                    && matches!(variable.space, Space::Global | Space::Const)
            })
            .map(|(variable, part)| (*part, variable.name))
            .collect();
        for index in self.used_functions() {
            if let Some((function, part)) = self.functions.get(index)
                && function.body.is_none()
                && !provided(function.name)
            {
                undefined.insert((*part, function.name));
            }
        }
        for (part, name) in undefined {
            self.say(format!(
                "undefined reference to '{}' in '{}'",
                shorten(name),
                shorten(names[part])
            ));
        }
    }
}

impl Linker<'_> {
    /// Functions that instructions and first values name.
    fn used_functions(&self) -> BTreeSet<usize> {
        fn visit(operand: &Operand<'_>, used: &mut BTreeSet<usize>) {
            match operand {
                Operand::Symbol(Symbol::Function(index), _) => {
                    used.insert(*index);
                }
                Operand::List(list) | Operand::Vector(list) | Operand::Indexed(list) => {
                    list.iter().for_each(|operand| visit(operand, used));
                }
                _ => {}
            }
        }
        let mut used = BTreeSet::new();
        let mut inits: Vec<&Initializer> = self.variables.iter().map(|(v, _)| &v.init).collect();
        for (function, _) in &self.functions {
            inits.extend(function.variables.iter().map(|variable| &variable.init));
            for instruction in function.body.iter().flatten() {
                let operands = instruction.operands.iter();
                operands.for_each(|operand| visit(operand, &mut used));
            }
        }
        for relocation in inits.iter().flat_map(|init| &init.relocations) {
            if let Symbol::Function(index) = relocation.symbol {
                used.insert(index);
            }
        }
        used
    }
}

impl Moved {
    fn symbol(&self, symbol: &mut Symbol) {
        match symbol {
            Symbol::Function(index) => self.function(index),
            Symbol::Module(index) => {
                if let Some(&to) = self.variables.get(*index) {
                    *index = to;
                }
            }
            Symbol::Local(_) | Symbol::Param(_) | Symbol::Return(_) => {}
        }
    }

    fn function(&self, index: &mut usize) {
        if let Some(&to) = self.functions.get(*index) {
            *index = to;
        }
    }

    fn operand(&self, operand: &mut Operand<'_>) {
        match operand {
            Operand::Symbol(symbol, _) => self.symbol(symbol),
            Operand::Address(address) => {
                if let Base::Symbol(symbol) = &mut address.base {
                    self.symbol(symbol);
                }
            }
            Operand::List(list) | Operand::Vector(list) | Operand::Indexed(list) => {
                list.iter_mut().for_each(|operand| self.operand(operand));
            }
            Operand::Pair(first, second) => {
                self.operand(first);
                self.operand(second);
            }
            _ => {}
        }
    }
}

fn renumber_init(init: &mut Initializer, moved: &Moved) {
    for relocation in &mut init.relocations {
        moved.symbol(&mut relocation.symbol);
    }
}

fn renumber_function(function: &mut Function<'_>, moved: &Moved) {
    for variable in &mut function.variables {
        renumber_init(&mut variable.init, moved);
    }
    for targets in &mut function.targets {
        if let Targets::Call(list) = targets {
            list.iter_mut().for_each(|index| moved.function(index));
        }
    }
    for Instruction { operands, .. } in function.body.iter_mut().flatten() {
        operands
            .iter_mut()
            .for_each(|operand| moved.operand(operand));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_75\n.address_size 64\n";

    fn parts<'a>(texts: &'a [String]) -> Vec<LinkInput<'a>> {
        const NAMES: [&str; 3] = ["first", "second", "third"];
        let parsed = texts.iter().zip(NAMES).map(|(text, name)| LinkInput {
            name,
            module: crate::parse(text).unwrap(),
        });
        parsed.collect()
    }

    fn texts(bodies: &[&str]) -> Vec<String> {
        bodies.iter().map(|body| format!("{HEAD}{body}")).collect()
    }

    const CALLER: &str = ".extern .global .u32 count;\n\
        .extern .func (.param .b32 r) twice (.param .b32 v);\n\
        .global .u32 own = 1;\n\
        .visible .entry k() { .reg .b32 %r; .reg .b64 %d;\n\
        ld.global.u32 %r, [count];\nld.global.u32 %r, [own];\nmov.u64 %d, twice;\nret; }";
    const CALLEE: &str = ".global .u32 own = 2;\n.visible .global .u32 count = 7;\n\
        .func helper() { ret; }\n\
        .visible .func (.param .b32 r) twice (.param .b32 v) { .reg .b32 %r;\n\
        ld.global.u32 %r, [own];\nret; }\n\
        .visible .global .u64 pointer = twice;";

    #[test]
    fn declarations_become_what_others_define() {
        for order in [[CALLER, CALLEE], [CALLEE, CALLER]] {
            let texts = texts(&order);
            let linked = link(parts(&texts), |_| false).unwrap();
            let names: Vec<_> = linked.variables.iter().map(|v| v.name).collect();
            assert_eq!(names.iter().filter(|name| **name == "own").count(), 2);
            let count = names.iter().position(|name| *name == "count").unwrap();
            assert_eq!(linked.variables[count].init.bytes, [7, 0, 0, 0]);
            let twice = linked
                .functions
                .iter()
                .position(|f| f.name == "twice")
                .unwrap();
            assert!(linked.functions[twice].body.is_some());
            let kernel = linked.functions.iter().find(|f| f.name == "k").unwrap();
            let body = kernel.body.as_ref().unwrap();
            let named = |at: usize| match &body[at].operands[1] {
                Operand::Address(address) => match address.base {
                    Base::Symbol(Symbol::Module(index)) => &linked.variables[index],
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            };
            assert_eq!(named(0).name, "count");
            // Each module sees its own of what is not visible.
            assert_eq!(named(1).init.bytes[0], 1);
            assert_eq!(
                body[2].operands[1],
                Operand::Symbol(Symbol::Function(twice), 0)
            );
            let pointer = linked
                .variables
                .iter()
                .find(|v| v.name == "pointer")
                .unwrap();
            assert_eq!(pointer.init.relocations[0].symbol, Symbol::Function(twice));
        }
    }

    #[test]
    fn second_definitions_are_refused_by_name() {
        let texts = texts(&[CALLEE, CALLEE]);
        let messages = link(parts(&texts), |_| false).unwrap_err();
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages[0].contains("'count'") && messages[0].contains("'second'"));
        assert!(messages.iter().any(|message| message.contains("'twice'")));
    }

    #[test]
    fn what_nobody_defines_is_named() {
        let texts = texts(&[CALLER]);
        let count = "undefined reference to 'count' in 'first'".to_owned();
        let twice = "undefined reference to 'twice' in 'first'".to_owned();
        assert_eq!(
            link(parts(&texts), |name| name == "twice"),
            Err(vec![count.clone()])
        );
        assert_eq!(link(parts(&texts), |_| false), Err(vec![count, twice]));
    }

    #[test]
    fn weak_and_common_definitions_give_way() {
        let texts = texts(&[
            ".weak .global .u32 w = 1;\n.common .global .b8 c[4];\n.weak .func f() { ret; }",
            ".weak .global .u32 w = 2;\n.common .global .b8 c[8];\n.weak .func f() { exit; }",
            ".visible .global .u32 w = 3;\n.visible .func f() { trap; }",
        ]);
        let linked = link(parts(&texts), |_| false).unwrap();
        assert_eq!(linked.variables.len(), 2);
        assert_eq!(linked.variables[0].init.bytes[0], 3);
        assert_eq!(linked.variables[1].size, 8);
        let body = linked.functions[0].body.as_ref().unwrap();
        assert_eq!((linked.functions.len(), body[0].opcode), (1, "trap"));
    }
}
