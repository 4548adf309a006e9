//! How values flow through a function: what of its parameters, and what else, is in each register.
//!
//! Called by the module around it for a kernel, and by itself for functions that a kernel calls. Must not know what the
//! result is for.

use std::collections::HashMap;

use super::forms::{JUMPS, LOWERING, Named, STRONG, VALUES, is_negative, is_same_each_time, named};
use super::origin::{
    BYTES, FIRST, FOREIGN, LOWERED, OWN, PARAMETERS, VARIABLE, is_set, merge, offsets, set,
};
use super::{Place, Pointers, Unknown};
use crate::ast::{
    Address, Base, Function, Instruction, Module, Operand, Parameter, Space, Symbol, Type,
};
use crate::layout;

/// The most bytes of parameters: what launches could have before they could have more.
const MOST_PARAMETERS: u64 = 4096;
/// The most words that the origins of a function's registers take.
const MOST_WORDS: usize = 1 << 18;
/// The most instructions of a function.
const MOST_INSTRUCTIONS: usize = 1 << 18;
/// How often a function is gone through before it is given up. A value passes several instructions each time.
const MOST_ROUNDS: usize = 64;
/// How deep calls may go.
const MOST_CALLS: usize = 16;
/// The most different addresses.
const MOST_POINTERS: usize = 256;

/// What a function that is called was found to be.
type Calls = HashMap<usize, Result<(), Unknown>>;

/// What is known of the values of a function.
struct Flow<'a, 'src, 'c> {
    module: &'a Module<'src>,
    function: &'a Function<'src>,
    /// Offset and bytes of each parameter, of a kernel.
    parameters: Vec<(u64, u64)>,
    /// Words of an origin.
    width: usize,
    /// Origins, as bits: of each register, and then of each variable of the function, for what lies in `.param`.
    origins: Vec<u64>,
    changed: bool,
    /// Nothing is added any more: what addresses are made of can be said.
    settled: bool,
    line: u32,
    found: Pointers,
    calls: &'c mut Calls,
    depth: usize,
}

/// What a kernel reads and writes through its parameters.
pub(super) fn of_kernel(module: &Module<'_>, kernel: &Function<'_>) -> Result<Pointers, Unknown> {
    Flow::of(module, kernel, 0, &mut HashMap::new())
}

impl<'a, 'src, 'c> Flow<'a, 'src, 'c> {
    fn of(
        module: &'a Module<'src>,
        function: &'a Function<'src>,
        depth: usize,
        calls: &'c mut Calls,
    ) -> Result<Pointers, Unknown> {
        let too_large = Unknown {
            line: function.line,
            why: "so large a function",
        };
        // Of a function that is called nothing is known of the parameters.
        let bytes = match function.entry {
            true => layout::params_size(function),
            false => 0,
        };
        let body = function.body.as_deref().unwrap_or_default();
        let width = (FIRST + bytes.div_ceil(BYTES) as usize).div_ceil(64);
        let rows = function.registers.len() + function.variables.len();
        if bytes > MOST_PARAMETERS
            || rows > MOST_WORDS / width
            || body.len() > MOST_INSTRUCTIONS
            || depth > MOST_CALLS
        {
            return Err(too_large);
        }
        let mut flow = Self {
            module,
            function,
            parameters: layout::params(function),
            width,
            origins: vec![0; rows * width],
            changed: false,
            settled: false,
            line: function.line,
            found: Pointers::default(),
            calls,
            depth,
        };
        for parameter in function.params.iter().chain(&function.returns) {
            if let Parameter::Register(register) = parameter {
                flow.add(register.0 as usize, &flow.only(FOREIGN));
            }
        }
        for _ in 0..MOST_ROUNDS {
            flow.changed = false;
            flow.go_through(body)?;
            if !flow.changed {
                flow.settled = true;
                flow.go_through(body)?;
                return Ok(flow.found);
            }
        }
        Err(too_large)
    }

    fn go_through(&mut self, body: &[Instruction<'src>]) -> Result<(), Unknown> {
        for instruction in body {
            self.line = instruction.line;
            let gone = self.step(instruction);
            gone.map_err(|why| Unknown {
                line: self.line,
                why,
            })?;
        }
        Ok(())
    }

    fn step(&mut self, instruction: &Instruction<'src>) -> Result<(), &'static str> {
        let Instruction {
            opcode,
            modifiers,
            operands,
            ..
        } = instruction;
        let has = |word: &str| modifiers.contains(&word);
        if !operands.iter().all(is_same_each_time) {
            return Err("a special register that says something else each time");
        }
        if STRONG.iter().any(|word| has(word)) && !matches!(*opcode, "cp") {
            return Err("an access that others could watch");
        }
        match *opcode {
            "vote" if !has("sync") => Err("a vote of whoever is there"),
            "ld" | "ldu" => self.load(modifiers, operands),
            "st" => self.store(modifiers, operands),
            "prefetch" | "prefetchu" if !has("tensormap") => Ok(()),
            // Copies of 4, 8 or 16 bytes from global to shared memory, and waiting for them.
            "cp" if modifiers.first() == Some(&"async") && !has("bulk") && !has("mbarrier") => {
                match operands.get(1) {
                    Some(Operand::Address(from)) if has("global") => self.access(from, false),
                    Some(Operand::Address(_)) => Err("a copy between such state spaces"),
                    _ => Ok(()),
                }
            }
            "ldmatrix" => {
                let foreign = self.only(FOREIGN);
                operands
                    .first()
                    .map_or(Ok(()), |to| self.give(to, &foreign))
            }
            "stmatrix" => Ok(()),
            "wmma" if modifiers.first() == Some(&"mma") => self.value(opcode, modifiers, operands),
            "wmma" => self.matrix(modifiers, operands),
            "call" => self.call(operands),
            "mapa" | "getctarank" => self.value(opcode, modifiers, operands),
            "atom" | "red" => Err("an atomic operation"),
            "membar" | "fence" => Err("a fence"),
            _ if JUMPS.contains(opcode) => Ok(()),
            _ if VALUES.contains(opcode) => self.value(opcode, modifiers, operands),
            _ => Err("an instruction of which it is not known what it does if it is done again"),
        }
    }

    /// A value that is made of others.
    fn value(
        &mut self,
        opcode: &str,
        modifiers: &[&str],
        operands: &[Operand<'src>],
    ) -> Result<(), &'static str> {
        let Some((to, from)) = operands.split_first() else {
            return Ok(());
        };
        let mut origin = self.none();
        for operand in from {
            self.collect(operand, &mut origin)?;
        }
        if LOWERING.contains(&opcode) || from.iter().any(is_negative) {
            set(&mut origin, LOWERED);
        }
        match (opcode, named(modifiers)?) {
            ("mapa", _) | ("cvta", Named::Own) => set(&mut origin, OWN),
            ("cvta", Named::Param) => set(&mut origin, PARAMETERS),
            ("cvta", Named::Const) => set(&mut origin, VARIABLE),
            _ => {}
        }
        self.give(to, &origin)
    }

    fn load(&mut self, modifiers: &[&str], operands: &[Operand<'src>]) -> Result<(), &'static str> {
        let (Some(to), Some(Operand::Address(from))) = (operands.first(), operands.get(1)) else {
            return Err("a load of such a form");
        };
        let mut origin = self.only(FOREIGN);
        match named(modifiers)? {
            Named::Generic | Named::Global => self.access(from, false)?,
            Named::Const | Named::Own => {}
            Named::Param => match from.base {
                Base::Symbol(Symbol::Param(index)) if self.function.entry => {
                    return self.load_parameter(index, from.offset, modifiers, to);
                }
                Base::Symbol(Symbol::Local(index)) => {
                    origin = self.row(self.variable(index)).to_vec();
                }
                Base::Register(register) if self.function.entry => {
                    let flags = self.row(register.0 as usize)[0] & ((1 << FIRST) - 1);
                    if flags == 1 << PARAMETERS {
                        origin = self.all_parameters();
                    }
                }
                _ => {}
            },
        }
        self.give(to, &origin)
    }

    /// Each register that is loaded gets the bytes that stand where it is loaded from.
    fn load_parameter(
        &mut self,
        index: usize,
        offset: i64,
        modifiers: &[&str],
        to: &Operand<'src>,
    ) -> Result<(), &'static str> {
        let begin = self.parameters.get(index).map_or(0, |&(begin, _)| begin);
        let mut types = modifiers.iter().filter_map(|word| Type::named(word));
        let bytes = types.next_back().map_or(0, Type::size);
        let one = std::slice::from_ref(to);
        let elements = match to {
            Operand::Vector(elements) => elements,
            _ => one,
        };
        let mut from = begin.checked_add_signed(offset);
        for element in elements {
            let end = from.and_then(|from| from.checked_add(bytes));
            let (Some(start), Some(end)) = (from, end) else {
                return Err("a parameter that is not there");
            };
            let origin = self.bytes(start, end)?;
            self.give(element, &origin)?;
            from = Some(end);
        }
        Ok(())
    }

    fn store(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand<'src>],
    ) -> Result<(), &'static str> {
        let Some(Operand::Address(to)) = operands.first() else {
            return Err("a store of such a form");
        };
        match (named(modifiers)?, to.base) {
            (Named::Generic | Named::Global, _) => self.access(to, true),
            (Named::Own, _) | (Named::Param, Base::Symbol(Symbol::Return(_))) => Ok(()),
            (Named::Param, Base::Symbol(Symbol::Local(index))) => {
                let mut origin = self.none();
                for operand in operands.iter().skip(1) {
                    self.collect(operand, &mut origin)?;
                }
                self.add(self.variable(index), &origin);
                Ok(())
            }
            (Named::Param | Named::Const, _) => Err("a store into such a state space"),
        }
    }

    /// `wmma.load` and `wmma.store`.
    fn matrix(
        &mut self,
        modifiers: &[&str],
        operands: &[Operand<'src>],
    ) -> Result<(), &'static str> {
        let writes = match modifiers.first() {
            Some(&"load") => false,
            Some(&"store") => true,
            _ => return Err("a matrix of such a form"),
        };
        let Some(Operand::Address(address)) = operands.get(usize::from(!writes)) else {
            return Err("a matrix of such a form");
        };
        match named(modifiers)? {
            Named::Generic | Named::Global => self.access(address, writes)?,
            Named::Own => {}
            Named::Const | Named::Param => return Err("a matrix in such a state space"),
        }
        let foreign = self.only(FOREIGN);
        match operands.first() {
            Some(to) if !writes => self.give(to, &foreign),
            _ => Ok(()),
        }
    }

    /// A call of a function that has nothing but its parameters and memory of its own.
    fn call(&mut self, operands: &[Operand<'src>]) -> Result<(), &'static str> {
        let callee = operands
            .iter()
            .position(|it| !matches!(it, Operand::List(_)));
        let Some(at) = callee else {
            return Err("a call of such a form");
        };
        let Some(Operand::Symbol(Symbol::Function(index), 0)) = operands.get(at) else {
            return Err("a call by a pointer");
        };
        self.check_callee(*index)?;
        let mut origin = self.only(FOREIGN);
        let passed = operands.iter().skip(at + 1).flat_map(listed);
        for operand in passed {
            match operand {
                Operand::Symbol(Symbol::Local(index), _) => {
                    merge(&mut origin, self.row(self.variable(*index)));
                }
                _ => self.collect(operand, &mut origin)?,
            }
        }
        for operand in operands.iter().take(at).flat_map(listed) {
            match operand {
                Operand::Symbol(Symbol::Local(index), _) => {
                    self.add(self.variable(*index), &origin);
                }
                _ => self.give(operand, &origin)?,
            }
        }
        Ok(())
    }

    fn check_callee(&mut self, index: usize) -> Result<(), &'static str> {
        let module = self.module;
        let callee = module.functions.get(index);
        let Some(callee) = callee.filter(|callee| callee.body.is_some() && !callee.entry) else {
            return Err("a call of a function that is not in the text");
        };
        if !self.calls.contains_key(&index) {
            let itself = Unknown {
                line: callee.line,
                why: "a function that calls itself",
            };
            self.calls.insert(index, Err(itself));
            let known = Flow::of(module, callee, self.depth + 1, self.calls).map(drop);
            self.calls.insert(index, known);
        }
        match &self.calls[&index] {
            Ok(()) => Ok(()),
            Err(unknown) => {
                self.line = unknown.line;
                Err(unknown.why)
            }
        }
    }

    /// Notes an access to global memory, once all is known of its address.
    fn access(&mut self, address: &Address, writes: bool) -> Result<(), &'static str> {
        if !self.settled {
            return Ok(());
        }
        let origin = match address.base {
            Base::Immediate => self.none(),
            Base::Register(register) => self.row(register.0 as usize).to_vec(),
            Base::Symbol(symbol) => self.of_symbol(symbol),
        };
        if is_set(&origin, FOREIGN) {
            return Err("an address that is made of something that was loaded or is not known");
        }
        if writes && is_set(&origin, VARIABLE) {
            return Err("a variable that is written");
        }
        let offsets = offsets(&origin);
        if !offsets.is_empty() {
            let found = match writes {
                true => &mut self.found.writes,
                false => &mut self.found.reads,
            };
            found.insert(Place {
                offsets,
                is_lowered: address.offset < 0 || is_set(&origin, LOWERED),
            });
            if found.len() > MOST_POINTERS {
                return Err("so many different addresses");
            }
            return Ok(());
        }
        match [OWN, PARAMETERS, VARIABLE]
            .iter()
            .any(|&bit| is_set(&origin, bit))
        {
            true => Ok(()),
            false => Err("an address that no parameter says"),
        }
    }

    /// Adds what is in an operand that is read.
    fn collect(&self, operand: &Operand<'src>, origin: &mut [u64]) -> Result<(), &'static str> {
        match operand {
            Operand::Register(register)
            | Operand::Not(register)
            | Operand::Part { register, .. } => {
                merge(origin, self.row(register.0 as usize));
            }
            Operand::Symbol(symbol, _) => merge(origin, &self.of_symbol(*symbol)),
            Operand::Vector(parts) | Operand::List(parts) => {
                for part in parts {
                    self.collect(part, origin)?;
                }
            }
            Operand::Pair(first, second) => {
                self.collect(first, origin)?;
                self.collect(second, origin)?;
            }
            Operand::Integer(_)
            | Operand::Float32(_)
            | Operand::Float64(_)
            | Operand::Sink
            | Operand::Special(..) => {}
            Operand::Label(_) | Operand::Prototype(_) | Operand::Targets(_) => {
                set(origin, FOREIGN);
            }
            Operand::Address(_) | Operand::Indexed(_) => {
                return Err("a memory operand where none is known");
            }
        }
        Ok(())
    }

    /// Adds to what is in an operand that is written.
    fn give(&mut self, operand: &Operand<'src>, origin: &[u64]) -> Result<(), &'static str> {
        match operand {
            Operand::Register(register) => self.add(register.0 as usize, origin),
            Operand::Vector(parts) => {
                for part in parts {
                    self.give(part, origin)?;
                }
            }
            Operand::Pair(first, second) => {
                self.give(first, origin)?;
                self.give(second, origin)?;
            }
            // A barrier's first operand is its number.
            Operand::Integer(_) | Operand::Sink => {}
            Operand::Part { register, .. } => self.add(register.0 as usize, origin),
            _ => return Err("a result of such a form"),
        }
        Ok(())
    }

    fn of_symbol(&self, symbol: Symbol) -> Vec<u64> {
        let space = match symbol {
            Symbol::Local(index) => self.function.variables.get(index).map(|it| it.space),
            Symbol::Module(index) => self.module.variables.get(index).map(|it| it.space),
            Symbol::Param(_) if self.function.entry => return self.only(PARAMETERS),
            Symbol::Param(_) | Symbol::Return(_) => Some(Space::Local),
            Symbol::Function(_) => None,
        };
        self.only(match space {
            Some(Space::Local | Space::Shared | Space::Param) => OWN,
            Some(Space::Const | Space::Global) => VARIABLE,
            None => FOREIGN,
        })
    }

    /// The row of a variable of the function.
    fn variable(&self, index: usize) -> usize {
        self.function.registers.len() + index
    }

    fn row(&self, row: usize) -> &[u64] {
        let start = row * self.width;
        &self.origins[start..start + self.width]
    }

    fn add(&mut self, row: usize, origin: &[u64]) {
        let start = row * self.width;
        let row = &mut self.origins[start..start + self.width];
        for (word, &more) in row.iter_mut().zip(origin) {
            self.changed |= *word | more != *word;
            *word |= more;
        }
    }

    fn none(&self) -> Vec<u64> {
        vec![0; self.width]
    }

    fn only(&self, bit: usize) -> Vec<u64> {
        let mut origin = self.none();
        set(&mut origin, bit);
        origin
    }

    fn all_parameters(&self) -> Vec<u64> {
        let end = layout::params_size(self.function);
        self.bytes(0, end).unwrap_or_else(|_| self.only(FOREIGN))
    }

    /// These bytes of the parameters.
    fn bytes(&self, start: u64, end: u64) -> Result<Vec<u64>, &'static str> {
        if end > layout::params_size(self.function) {
            return Err("a parameter that is not there");
        }
        let mut origin = self.none();
        for bit in start / BYTES..end.div_ceil(BYTES) {
            set(&mut origin, FIRST + bit as usize);
        }
        Ok(origin)
    }
}

/// The elements of a call's list; what is none has none.
fn listed<'a, 'src>(operand: &'a Operand<'src>) -> &'a [Operand<'src>] {
    match operand {
        Operand::List(list) => list,
        _ => &[],
    }
}
