//! Whether a text is fenced, read from its syntax tree.
//!
//! Called by `fence` with what the rewriter wrote, and by the fuzz target: a mistake of the rewriter's is an error
//! here, and no way around a fence. Believes only `access` beside it, and knows the one form that a check has. No
//! label but the check's own may stand within one, or a branch could go past it.

use super::access::{Access, Memory, Size, access};
use super::{CHECK, STOP, TARGET, VARIABLE, refused};
use crate::ast::{Base, Function, Instruction, Module, Operand, Register, Symbol};
use crate::error::Error;

/// # Errors
/// A text that does not parse, or the first instruction that has no fence, with its line.
pub(super) fn verify(text: &str, provided: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    let module = crate::parse(text)?;
    let own = |function: &&Function<'_>| !function.name.starts_with(VARIABLE);
    for function in module.functions.iter().filter(own) {
        let body = function.body.as_deref().unwrap_or_default();
        for (at, instruction) in body.iter().enumerate() {
            let line = instruction.line;
            let need = access(&module, function, instruction, provided)
                .map_err(|what| refused(line, what))?;
            let mut check = Reader {
                module: &module,
                function,
                body,
                at,
            };
            let found = match need {
                Access::Free => continue,
                Access::Trap => None,
                Access::Memory(memory) => check.memory(&memory, instruction),
                Access::Branch(operand, count) => check.branch(operand, count, instruction),
                Access::Call(operand) => check.target(operand, instruction),
            };
            if found.is_none() || !check.is_closed(at) {
                return Err(refused(line, "an access whose fence is not whole"));
            }
        }
    }
    Ok(())
}

/// Reads a check backwards from the access that it guards.
struct Reader<'a, 'src> {
    module: &'a Module<'src>,
    function: &'a Function<'src>,
    body: &'a [Instruction<'src>],
    /// The instruction that was read last.
    at: usize,
}

impl<'a, 'src> Reader<'a, 'src> {
    /// The instruction before, which must be this one, without a guard.
    fn before(&mut self, words: &str) -> Option<&'a [Operand<'src>]> {
        let instruction = self.peek(words)?;
        if instruction.guard.is_some() {
            return None;
        }
        self.at -= 1;
        Some(&instruction.operands)
    }

    fn peek(&self, words: &str) -> Option<&'a Instruction<'src>> {
        let instruction = self.body.get(self.at.checked_sub(1)?)?;
        let mut expected = words.split('.');
        let same = expected.next() == Some(instruction.opcode)
            && expected.eq(instruction.modifiers.iter().copied());
        same.then_some(instruction)
    }

    /// The one operand of a call's parameter, before it.
    fn parameter(&mut self, words: &str) -> Option<&'a Operand<'src>> {
        match self.before(words)? {
            [Operand::Address(_), value] => Some(value),
            _ => None,
        }
    }

    fn call(&mut self, name: &str) -> Option<()> {
        match self.before("call")? {
            [
                Operand::Symbol(Symbol::Function(index), 0),
                Operand::List(_),
            ] => (self.module.functions.get(*index)?.name == name).then_some(()),
            _ => None,
        }
    }

    /// `@!P bra` to the access, and before it the guard of the access, taken into P.
    fn skip(&mut self, access: usize) -> Option<Register> {
        let branch = self.peek("bra")?;
        let guard = branch.guard.filter(|guard| guard.negated)?;
        let [Operand::Label(label)] = &branch.operands[..] else {
            return None;
        };
        if self.function.labels.get(label.0 as usize) != Some(&access) {
            return None;
        }
        self.at -= 1;
        let condition = guard.register;
        if let Some(guard) = self.body.get(access)?.guard {
            let register = match self.before("and.pred")? {
                [
                    Operand::Register(out),
                    Operand::Register(first),
                    Operand::Register(second),
                ] if *out == condition && *first == condition => *second,
                _ => return None,
            };
            if guard.negated {
                let operands = self.before("not.pred")?;
                is(operands, 0, register)?;
                is(operands, 1, guard.register)?;
            } else if register != guard.register {
                return None;
            }
        }
        Some(condition)
    }

    /// P is always true.
    fn always(&mut self, condition: Register, address: Register) -> Option<()> {
        let operands = self.before("setp.eq.u64")?;
        is(operands, 0, condition)?;
        is(operands, 1, address)?;
        is(operands, 2, address)
    }

    fn memory(&mut self, memory: &Memory, access: &Instruction<'src>) -> Option<()> {
        let end = self.at;
        self.call(CHECK)?;
        self.parameter("st.param.b32")?;
        let flags = integer(self.parameter("st.param.b32")?)?;
        let mask = integer(self.parameter("st.param.b32")?)?;
        let size = self.parameter("st.param.b64")?;
        let address = register(self.parameter("st.param.b64")?)?;
        let (generic, reads) = (flags & 1 != 0, flags & 2 != 0);
        let align = i64::try_from(memory.align).ok()?;
        if generic != memory.generic || reads != memory.reads || mask != align - 1 {
            return None;
        }
        let condition = self.skip(end)?;
        match memory.size {
            Size::Fixed(bytes) => {
                if integer(size)? != i64::try_from(bytes).ok()? {
                    return None;
                }
                self.quick(condition, address, mask)?;
            }
            Size::Operand(at) => {
                self.always(condition, address)?;
                let operands = self.before("cvt.u64.u32")?;
                is(operands, 0, register(size)?)?;
                let narrow = register(operands.get(1)?)?;
                let operands = self.before("mov.b32")?;
                is(operands, 0, narrow)?;
                if operands.get(1) != access.operands.get(at) {
                    return None;
                }
            }
        }
        self.address(memory, address)
    }

    /// What is compared before anything is called.
    fn quick(&mut self, condition: Register, address: Register, mask: i64) -> Option<()> {
        if mask > 0 {
            let operands = self.before("setp.ne.or.u32")?;
            is(operands, 0, condition)?;
            is(operands, 3, condition)?;
            let low = register(operands.get(1)?)?;
            (integer(operands.get(2)?)? == 0).then_some(())?;
            let operands = self.before("and.b32")?;
            is(operands, 0, low)?;
            is(operands, 1, low)?;
            (integer(operands.get(2)?)? == mask).then_some(())?;
            let operands = self.before("cvt.u32.u64")?;
            is(operands, 0, low)?;
            is(operands, 1, address)?;
        }
        let operands = self.before("setp.ge.u64")?;
        is(operands, 0, condition)?;
        let distance = register(operands.get(1)?)?;
        let size = register(operands.get(2)?)?;
        self.word(size, 8)?;
        let operands = self.before("sub.u64")?;
        is(operands, 0, distance)?;
        is(operands, 1, address)?;
        is(operands, 2, distance)?;
        self.word(distance, 0)
    }

    /// A word of the description of the windows.
    fn word(&mut self, out: Register, place: i64) -> Option<()> {
        let operands = self.before("ld.const.u64")?;
        is(operands, 0, out)?;
        let Some(Operand::Address(address)) = operands.get(1) else {
            return None;
        };
        let Base::Symbol(Symbol::Module(index)) = address.base else {
            return None;
        };
        let variable = self.module.variables.get(index)?;
        (variable.name == VARIABLE && address.offset == place).then_some(())
    }

    /// How the address that is looked at is made: as the access makes its own.
    fn address(&mut self, memory: &Memory, out: Register) -> Option<()> {
        let offset = memory.address.offset;
        if memory.address.base == Base::Immediate {
            let operands = self.before("mov.u64")?;
            is(operands, 0, out)?;
            return (integer(operands.get(1)?)? == offset).then_some(());
        }
        let operands = self.before("add.s64")?;
        is(operands, 0, out)?;
        (integer(operands.get(2)?)? == offset).then_some(())?;
        let from = register(operands.get(1)?)?;
        match memory.address.base {
            Base::Register(base) if from == base => Some(()),
            Base::Register(base) => {
                let operands = self.before("cvt.u64.u32")?;
                is(operands, 0, from)?;
                is(operands, 1, base)
            }
            Base::Symbol(symbol) => {
                let operands = self.before("mov.u64")?;
                is(operands, 0, from)?;
                (operands.get(1) == Some(&Operand::Symbol(symbol, 0))).then_some(())
            }
            Base::Immediate => None,
        }
    }

    fn branch(&mut self, operand: usize, count: u32, access: &Instruction<'src>) -> Option<()> {
        let end = self.at;
        self.call(STOP)?;
        let index = register(self.parameter("st.param.b64")?)?;
        self.parameter("st.param.b32")?;
        self.parameter("st.param.b32")?;
        let condition = self.skip(end)?;
        let operands = self.before("setp.ge.u64")?;
        is(operands, 0, condition)?;
        is(operands, 1, index)?;
        (integer(operands.get(2)?)? == i64::from(count)).then_some(())?;
        let operands = self.before("cvt.u64.u32")?;
        is(operands, 0, index)?;
        (operands.get(1) == access.operands.get(operand)).then_some(())
    }

    fn target(&mut self, operand: usize, access: &Instruction<'src>) -> Option<()> {
        let end = self.at;
        self.call(TARGET)?;
        self.parameter("st.param.b32")?;
        let pointer = register(self.parameter("st.param.b64")?)?;
        let condition = self.skip(end)?;
        self.always(condition, pointer)?;
        let operands = self.before("mov.b64")?;
        is(operands, 0, pointer)?;
        (operands.get(1) == access.operands.get(operand)).then_some(())
    }

    /// Whether nothing but the check's own branch leads past its beginning.
    fn is_closed(&self, access: usize) -> bool {
        let labels = self.function.labels.iter();
        let inside = labels.filter(|&&place| place > self.at && place <= access);
        inside.count() == 1
    }
}

fn register(operand: &Operand<'_>) -> Option<Register> {
    match operand {
        Operand::Register(register) => Some(*register),
        _ => None,
    }
}

fn integer(operand: &Operand<'_>) -> Option<i64> {
    match operand {
        Operand::Integer(value) => Some(*value),
        _ => None,
    }
}

fn is(operands: &[Operand<'_>], at: usize, expected: Register) -> Option<()> {
    (register(operands.get(at)?)? == expected).then_some(())
}
