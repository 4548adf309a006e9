//! What an instruction can reach, read from the syntax tree alone: nothing outside of its block, memory by an
//! address that must be checked, code by a number that must be, or what cannot be fenced.
//!
//! Called by the rewriter and by the verifier beside it, so that both have one opinion. An instruction that
//! stands in no list here is refused: what is new is fenced when somebody has thought about it.

use crate::ast::{
    Address, Base, Function, Instruction, Linkage, Module, Operand, Space, Symbol, Targets, Type,
};

/// What an instruction needs before it may run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Access {
    /// Nothing: it reaches no memory, or only what is the thread's, the block's or its cluster's own, or a place
    /// inside of a variable of the module that the text itself names.
    Free,
    /// A check of an address.
    Memory(Memory),
    /// A check of an index against the length of a list of labels: the operand and the length.
    Branch(usize, u32),
    /// A check that a pointer is that of a function whose address the module takes: the operand.
    Call(usize),
    /// To be replaced: it would end the whole context.
    Trap,
}

/// An access to memory by an address.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Memory {
    /// Which operand is the address.
    pub(super) operand: usize,
    /// The address.
    pub(super) address: Address,
    /// How many bytes.
    pub(super) size: Size,
    /// What the address must be a multiple of, in bytes, a power of two.
    pub(super) align: u64,
    /// Whether addresses of shared and local memory are right as well.
    pub(super) generic: bool,
    /// Whether it only reads.
    pub(super) reads: bool,
}

/// How many bytes an access takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// So many, at most [`super::MOST_FIXED`].
    Fixed(u64),
    /// As an operand says: a register of 32 bits or a number.
    Operand(usize),
}

/// Instructions without memory operands. `bra` goes to labels, `ret` to where the call was.
const WITHOUT_MEMORY: &[&str] = &[
    "abs",
    "activemask",
    "add",
    "addc",
    "alloca",
    "and",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "bra",
    "brev",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cvt",
    "cvta",
    "div",
    "dp2a",
    "dp4a",
    "elect",
    "ex2",
    "exit",
    "fence",
    "fma",
    "fns",
    "getctarank",
    "griddepcontrol",
    "isspacep",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "mapa",
    "match",
    "max",
    "membar",
    "min",
    "mma",
    "mov",
    "movmatrix",
    "mul",
    "mul24",
    "nanosleep",
    "neg",
    "not",
    "or",
    "pmevent",
    "popc",
    "prmt",
    "rcp",
    "redux",
    "rem",
    "ret",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setmaxnreg",
    "setp",
    "shf",
    "shfl",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "stacksave",
    "sub",
    "subc",
    "szext",
    "tanh",
    "testp",
    "vabsdiff",
    "vabsdiff2",
    "vabsdiff4",
    "vadd",
    "vadd2",
    "vadd4",
    "vavrg2",
    "vavrg4",
    "vmad",
    "vmax",
    "vmax2",
    "vmax4",
    "vmin",
    "vmin2",
    "vmin4",
    "vote",
    "vset",
    "vset2",
    "vset4",
    "vshl",
    "vshr",
    "vsub",
    "vsub2",
    "vsub4",
    "wgmma",
    "xor",
];

/// What an instruction of a function needs; an error names what cannot be fenced.
pub(super) fn access(
    module: &Module<'_>,
    function: &Function<'_>,
    instruction: &Instruction<'_>,
    provided: &dyn Fn(&str) -> bool,
) -> Result<Access, &'static str> {
    let Instruction {
        opcode,
        modifiers,
        operands,
        ..
    } = instruction;
    let has = |word: &str| modifiers.contains(&word);
    let reader = Reader {
        module,
        function,
        instruction,
    };
    match *opcode {
        "ld" | "ldu" => reader.plain(1, true),
        "st" => reader.plain(0, false),
        "atom" => reader.plain(1, false),
        "red" => reader.plain(0, false),
        "prefetch" | "prefetchu" if !has("tensormap") => reader.hint(1),
        "applypriority" | "discard" => reader.hint(128),
        "cp" if has("tensor") => Err("a copy by a tensor map, whose addresses the client writes"),
        "cp" if has("bulk") => reader.bulk(),
        "cp" => reader.small_copy(),
        "createpolicy" => Ok(Access::Free),
        "wmma" if modifiers.first() == Some(&"mma") => reader.without_memory(),
        "wmma" | "ldmatrix" | "stmatrix" | "mbarrier" => reader.shared(),
        "call" => reader.call(provided),
        "brx" => {
            let targets = operands.iter().find_map(|operand| match operand {
                Operand::Targets(index) => function.targets.get(*index),
                _ => None,
            });
            let index = operands
                .iter()
                .position(|operand| reader.is_register(operand, 4));
            match (index, targets) {
                (Some(index), Some(Targets::Branch(labels))) => {
                    let count = u32::try_from(labels.len()).map_err(|_| "a list of labels")?;
                    Ok(Access::Branch(index, count))
                }
                _ => Err("a branch to an address without a list of labels"),
            }
        }
        "trap" => Ok(Access::Trap),
        "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" => {
            Err("a texture or surface, whose handle may be another client's")
        }
        _ if WITHOUT_MEMORY.contains(opcode) => reader.without_memory(),
        _ => Err("an instruction that no fence is known for"),
    }
}

/// Functions whose addresses a module takes: what its indirect calls may call.
pub(super) fn address_taken(module: &Module<'_>) -> Vec<usize> {
    fn visit(operand: &Operand<'_>, taken: &mut Vec<usize>) {
        match operand {
            Operand::Symbol(Symbol::Function(index), _) => taken.push(*index),
            Operand::List(list) | Operand::Vector(list) | Operand::Indexed(list) => {
                list.iter().for_each(|operand| visit(operand, taken));
            }
            _ => {}
        }
    }
    let mut taken = Vec::new();
    let mut inits: Vec<_> = module.variables.iter().map(|v| &v.init).collect();
    for function in &module.functions {
        inits.extend(function.variables.iter().map(|v| &v.init));
        for instruction in function.body.iter().flatten() {
            let mut callee = None;
            if instruction.opcode == "call" {
                callee = instruction.operands.iter().position(|o| !is_list(o));
            }
            for (at, operand) in instruction.operands.iter().enumerate() {
                if callee != Some(at) {
                    visit(operand, &mut taken);
                }
            }
        }
    }
    for relocation in inits.iter().flat_map(|init| &init.relocations) {
        if let Symbol::Function(index) = relocation.symbol {
            taken.push(index);
        }
    }
    taken.sort_unstable();
    taken.dedup();
    taken.retain(|&index| module.functions.get(index).is_some_and(|f| !f.entry));
    taken
}

fn is_list(operand: &Operand<'_>) -> bool {
    matches!(operand, Operand::List(_))
}

fn is_memory(operand: &Operand<'_>) -> bool {
    match operand {
        Operand::Address(_) | Operand::Indexed(_) => true,
        Operand::Pair(first, second) => is_memory(first) || is_memory(second),
        _ => false,
    }
}

/// A state space as a modifier names it: whether it is global memory.
fn space(word: &str) -> Option<bool> {
    match word {
        "global" => Some(true),
        "const" | "local" | "param" | "param::entry" | "param::func" | "shared" | "shared::cta"
        | "shared::cluster" => Some(false),
        _ => None,
    }
}

struct Reader<'a, 'src> {
    module: &'a Module<'src>,
    function: &'a Function<'src>,
    instruction: &'a Instruction<'src>,
}

impl Reader<'_, '_> {
    fn operands(&self) -> &[Operand<'_>] {
        &self.instruction.operands
    }

    fn spaces(&self) -> Vec<bool> {
        let words = self.instruction.modifiers.iter();
        words.filter_map(|word| space(word)).collect()
    }

    fn without_memory(&self) -> Result<Access, &'static str> {
        if self.operands().iter().any(is_memory) {
            return Err("a memory operand where none is known");
        }
        Ok(Access::Free)
    }

    /// Instructions that are for shared memory, if they say so: without the word they take any address.
    fn shared(&self) -> Result<Access, &'static str> {
        if !self.operands().iter().any(is_memory) {
            return Ok(Access::Free);
        }
        match self.spaces()[..] {
            [] => Err("an address that is not said to be one of shared memory"),
            [true, ..] => Err("a matrix in global memory"),
            [false, ..] if self.spaces().contains(&true) => Err("several state spaces"),
            _ => Ok(Access::Free),
        }
    }

    /// Bytes of the values that move.
    fn bytes(&self) -> Result<u64, &'static str> {
        let words = &self.instruction.modifiers;
        let mut types = words.iter().filter_map(|word| Type::named(word));
        let (Some(ty), None) = (types.next(), types.next()) else {
            return Err("an access without one type");
        };
        let lanes = words.iter().filter_map(|word| match *word {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        let bytes = ty.size() * lanes.product::<u64>();
        match bytes {
            1..=super::MOST_FIXED if bytes.is_power_of_two() => Ok(bytes),
            _ => Err("an access of such a size"),
        }
    }

    /// A load, a store or an atomic, whose address is this operand.
    fn plain(&self, operand: usize, reads: bool) -> Result<Access, &'static str> {
        let generic = match self.spaces()[..] {
            [] => true,
            [true] => false,
            [false] => return Ok(Access::Free),
            _ => return Err("several state spaces"),
        };
        if operand == 0 || !matches!(self.operands().first(), Some(Operand::Address(_))) {
            let bytes = self.bytes()?;
            return self.memory(operand, Size::Fixed(bytes), bytes, generic, reads);
        }
        Err("an address where a value should be")
    }

    fn hint(&self, bytes: u64) -> Result<Access, &'static str> {
        let generic = match self.spaces()[..] {
            [] => true,
            [true] => false,
            [false] => return Ok(Access::Free),
            _ => return Err("several state spaces"),
        };
        self.memory(0, Size::Fixed(bytes), bytes, generic, false)
    }

    /// `cp.async` of 4, 8 or 16 bytes, and what belongs to it.
    fn small_copy(&self) -> Result<Access, &'static str> {
        let words = &self.instruction.modifiers;
        if words.first() != Some(&"async") {
            return Err("a copy that no fence is known for");
        }
        if !self.operands().iter().any(is_memory) {
            return Ok(Access::Free);
        }
        if words.contains(&"mbarrier") {
            return self.shared();
        }
        let (&[false, true], Some(&Operand::Integer(bytes))) =
            (&self.spaces()[..], self.operands().get(2))
        else {
            return Err("a copy that does not go from global to shared memory");
        };
        let bytes = match bytes {
            4 => 4,
            8 => 8,
            16 => 16,
            _ => return Err("a copy of such a size"),
        };
        let hint = words.contains(&"L2::cache_hint");
        let size = match self.operands().get(3) {
            None => Size::Fixed(bytes),
            Some(Operand::Register(_)) if hint && self.operands().len() == 4 => Size::Fixed(bytes),
            // What is not read may stand anywhere.
            Some(Operand::Register(_) | Operand::Integer(_)) => Size::Operand(3),
            Some(_) => return Err("a copy that a predicate may keep from reading"),
        };
        self.memory(1, size, bytes, false, true)
    }

    /// `cp.async.bulk` and `cp.reduce.async.bulk` without a tensor map.
    fn bulk(&self) -> Result<Access, &'static str> {
        if !self.operands().iter().any(is_memory) {
            return Ok(Access::Free);
        }
        let prefetch = self.instruction.modifiers.contains(&"prefetch");
        match (prefetch, &self.spaces()[..]) {
            (true, [true]) => self.memory(0, Size::Operand(1), 16, false, true),
            (false, [true, false]) => self.memory(0, Size::Operand(2), 16, false, false),
            (false, [false, true]) => self.memory(1, Size::Operand(2), 16, false, true),
            (false, [false, false]) => Ok(Access::Free),
            _ => Err("a copy between such state spaces"),
        }
    }

    fn call(&self, provided: &dyn Fn(&str) -> bool) -> Result<Access, &'static str> {
        let operands = self.operands();
        match operands.iter().enumerate().find(|(_, o)| !is_list(o)) {
            Some((_, Operand::Symbol(Symbol::Function(index), 0))) => {
                match self.module.functions.get(*index) {
                    Some(callee) if callee.body.is_some() || provided(callee.name) => {
                        Ok(Access::Free)
                    }
                    _ => Err("a call of a function that is not in the text"),
                }
            }
            Some((at, pointer)) if self.is_register(pointer, 8) => Ok(Access::Call(at)),
            _ => Err("a call of such a kind"),
        }
    }

    fn memory(
        &self,
        operand: usize,
        size: Size,
        align: u64,
        generic: bool,
        reads: bool,
    ) -> Result<Access, &'static str> {
        let Some(Operand::Address(address)) = self.operands().get(operand) else {
            return Err("an access whose address stands elsewhere");
        };
        match size {
            Size::Operand(at) => match self.operands().get(at) {
                Some(Operand::Integer(size)) if u32::try_from(*size).is_ok() => {}
                Some(Operand::Register(register)) if self.width(register.0) == Some(4) => {}
                _ => return Err("a copy whose size is no number of 32 bits"),
            },
            Size::Fixed(bytes) => {
                if let Base::Symbol(symbol) = address.base
                    && self.lies_within(symbol, address.offset, bytes, align)
                {
                    return Ok(Access::Free);
                }
            }
        }
        match address.base {
            Base::Immediate => {}
            Base::Register(register) => match self.width(register.0) {
                Some(4 | 8) => {}
                _ => return Err("an address in a register of such a type"),
            },
            Base::Symbol(symbol) if self.is_global(symbol) => {}
            Base::Symbol(_) => return Err("a name that is not one of global memory"),
        }
        Ok(Access::Memory(Memory {
            operand,
            address: address.clone(),
            size,
            align,
            generic,
            reads,
        }))
    }

    fn is_register(&self, operand: &Operand<'_>, bytes: u64) -> bool {
        matches!(operand, Operand::Register(register) if self.width(register.0) == Some(bytes))
    }

    /// Bytes of a register.
    fn width(&self, register: u32) -> Option<u64> {
        let ty = self.function.registers.get(register as usize)?;
        Some(ty.size())
    }

    fn variable(&self, symbol: Symbol) -> Option<&crate::ast::Variable<'_>> {
        match symbol {
            Symbol::Local(index) => self.function.variables.get(index),
            Symbol::Module(index) => self.module.variables.get(index),
            _ => None,
        }
    }

    fn is_global(&self, symbol: Symbol) -> bool {
        let variable = self.variable(symbol);
        variable.is_some_and(|variable| variable.space == Space::Global)
    }

    /// Whether a place is inside of a global variable whose size this text decides.
    fn lies_within(&self, symbol: Symbol, offset: i64, bytes: u64, align: u64) -> bool {
        let Some(variable) = self.variable(symbol) else {
            return false;
        };
        let decided = matches!(variable.linkage, Linkage::Internal | Linkage::Visible);
        let end = u64::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(bytes));
        decided
            && variable.space == Space::Global
            && variable.align.is_multiple_of(align)
            && offset.unsigned_abs().is_multiple_of(align)
            && end.is_some_and(|end| end <= variable.size)
    }
}
