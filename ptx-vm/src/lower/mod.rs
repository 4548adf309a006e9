//! From the syntax tree to [`super::ir`]: what each instruction means.
//!
//! A kernel is lowered with everything that it may call, so that shared variables have one place in it
//! and nothing is linked later.
//!
//! Called by `module` when a module is loaded. Must not know lanes at run time, nor where registers lie: `analysis`
//! and `emit` say that.

mod arith;
mod body;
mod bulk;
mod cluster;
mod compare;
mod control;
mod copies;
mod device_runtime;
mod matrix;
mod mbarrier;
mod memory;
mod newer;
mod scaled;
mod sparse;
mod stack;
mod tensor;
mod texture;
mod warpgroup;
mod wide;
mod wmma;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use ptx::ast::{self, Base, Instruction, Operand, Space, Symbol};

use super::analysis::{self, local_stride};
use super::ir::{Callee, End, Func};
use super::limits::{self, FRAME_BYTES, KERNEL_COST, KERNEL_INSTRUCTIONS, MODULE_INSTRUCTIONS};
use super::load_error::LoadError;
use super::program::NOWHERE;
use super::spaces::{FUNCTION_BASE, FUNCTION_STEP};
use super::variables::{Global, GlobalSpace, Relocated};

/// A variable of the module or of one of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum VariableId {
    Module(usize),
    /// Function, index in its variables.
    Local(usize, usize),
}

/// What all functions of a module see.
pub(crate) struct ModuleFacts<'a> {
    pub(crate) tree: &'a ast::Module<'a>,
    pub(crate) globals: Vec<Global>,
    /// Where a `.global` or `.const` variable stands in `globals`.
    global_index: HashMap<VariableId, u32>,
    /// See [`ModuleFacts::address_taken`].
    taken: OnceCell<Vec<usize>>,
}

/// A lowered kernel.
pub(crate) struct Lowered {
    /// The entry and what it may call.
    pub(crate) funcs: Vec<Func>,
    /// For each function of the module: which of `funcs` it is, or [`NOWHERE`]. Empty if nothing is called
    /// through a pointer.
    pub(crate) by_address: Vec<u32>,
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    /// Bytes of local memory of a thread, with all calls.
    pub(crate) local_stride: u32,
    /// The most 32-bit registers that are live at once in one of `funcs`.
    pub(crate) pressure: u32,
    /// Whether it asks of addresses whether they are constants'.
    pub(crate) asks_constants: bool,
    /// Whether it uses the system's part of shared memory.
    pub(crate) asks_reserved: bool,
    /// Whether it calls CUDA's device runtime.
    pub(crate) asks_runtime: bool,
}

impl<'a> ModuleFacts<'a> {
    pub(crate) fn new(tree: &'a ast::Module<'a>) -> Result<Self, LoadError> {
        let mut facts = Self {
            tree,
            globals: Vec::new(),
            global_index: HashMap::new(),
            taken: OnceCell::new(),
        };
        let module = tree
            .variables
            .iter()
            .enumerate()
            .map(|(index, v)| (VariableId::Module(index), v));
        let local = tree.functions.iter().enumerate().flat_map(|(function, f)| {
            f.variables
                .iter()
                .enumerate()
                .map(move |(index, v)| (VariableId::Local(function, index), v))
        });
        let mut sources = Vec::new();
        for (id, variable) in module.chain(local) {
            let space = match variable.space {
                Space::Global => GlobalSpace::Global,
                Space::Const => GlobalSpace::Const,
                _ => continue,
            };
            if variable.linkage == ast::Linkage::Extern {
                let message = format!(
                    "variable \"{}\" is defined in another module",
                    variable.name
                );
                return Err(LoadError::new(variable.line, "", message));
            }
            if !variable.align.is_power_of_two() || variable.init.bytes.len() as u64 > variable.size
            {
                return Err(LoadError::new(variable.line, "", "malformed variable"));
            }
            facts.global_index.insert(id, facts.globals.len() as u32);
            sources.push((id, variable));
            facts.globals.push(Global {
                name: variable.name.into(),
                space,
                size: variable.size,
                align: variable.align,
                init: variable.init.bytes.clone(),
                relocations: Vec::new(),
                visible: variable.linkage != ast::Linkage::Internal,
                managed: variable.managed,
            });
        }
        for (index, (id, variable)) in sources.into_iter().enumerate() {
            let relocations: Result<Vec<_>, _> = variable
                .init
                .relocations
                .iter()
                .map(|relocation| facts.relocate(id, variable, relocation))
                .collect();
            facts.globals[index].relocations = relocations?;
        }
        Ok(facts)
    }

    fn relocate(
        &self,
        id: VariableId,
        variable: &ast::Variable<'_>,
        relocation: &ast::Relocation,
    ) -> Result<Relocated, LoadError> {
        let fail = |message: &str| {
            LoadError::new(
                variable.line,
                "",
                format!("{message} in \"{}\"", variable.name),
            )
        };
        if relocation
            .offset
            .checked_add(8)
            .is_none_or(|end| end > variable.size)
        {
            return Err(fail("an address lies outside of the variable"));
        }
        let at = |target, addend| Relocated {
            offset: relocation.offset,
            target,
            addend,
        };
        let addend = relocation.addend.cast_unsigned();
        let target = match relocation.symbol {
            Symbol::Function(index) => {
                return Ok(at(None, function_address(index).wrapping_add(addend)));
            }
            Symbol::Module(index) => VariableId::Module(index),
            Symbol::Local(index) => match id {
                VariableId::Local(function, _) => VariableId::Local(function, index),
                VariableId::Module(_) => return Err(fail("a name of a function")),
            },
            Symbol::Param(_) | Symbol::Return(_) => return Err(fail("the address of a parameter")),
        };
        let index = self
            .global_index
            .get(&target)
            .ok_or_else(|| fail("the address of no global variable"))?;
        Ok(at(Some(*index as usize), addend))
    }

    fn variable(&self, id: VariableId) -> Option<&'a ast::Variable<'a>> {
        match id {
            VariableId::Module(index) => self.tree.variables.get(index),
            VariableId::Local(function, index) => {
                self.tree.functions.get(function)?.variables.get(index)
            }
        }
    }

    /// Lowers the entry with this index, for lane groups of up to `lanes` lanes. Takes what it costs from
    /// `left`, of which a module has so much for all of its kernels.
    pub(crate) fn kernel(
        &self,
        entry: usize,
        lanes: usize,
        left: &mut u64,
    ) -> Result<Lowered, LoadError> {
        let tree = &self.tree.functions[entry];
        let refuse = |what: &str, most: u64| LoadError::beyond(tree.line, tree.name, what, most);
        let closure = self.closure(entry);
        if closure.len() > limits::FUNCTIONS {
            let most = limits::FUNCTIONS as u64;
            return Err(refuse("functions that a kernel may call", most));
        }
        let numbers: HashMap<usize, u32> = closure.iter().copied().zip(0..).collect();
        let (shared, shared_bytes) = self.place_shared(&closure)?;
        let kernel = KernelFacts {
            module: self,
            numbers: &numbers,
            shared,
        };
        let room = KERNEL_INSTRUCTIONS.min(*left);
        let mut spent = KERNEL_COST;
        let mut lowered = Lowered {
            funcs: Vec::with_capacity(closure.len()),
            by_address: Vec::new(),
            shared_bytes,
            local_bytes: 0,
            local_stride: 0,
            pressure: 0,
            asks_constants: false,
            asks_reserved: false,
            asks_runtime: false,
        };
        let too_many = || {
            let (what, most) = if room < KERNEL_INSTRUCTIONS {
                (
                    "instructions of all kernels of a module",
                    MODULE_INSTRUCTIONS,
                )
            } else {
                ("instructions of a kernel", KERNEL_INSTRUCTIONS)
            };
            refuse(what, most)
        };
        for &function in &closure {
            let rest = room.saturating_sub(spent);
            let (mut func, cost) = body::lower(&kernel, function, rest)?.ok_or_else(too_many)?;
            spent += cost;
            let prepared = analysis::prepare(&mut func, function == entry, lanes);
            let pressure = prepared.map_err(|(what, most)| {
                let tree = &self.tree.functions[function];
                LoadError::beyond(tree.line, tree.name, what, most)
            })?;
            lowered.pressure = lowered.pressure.max(pressure);
            lowered.local_bytes = lowered.local_bytes.max(func.local_bytes);
            lowered.asks_constants |= func.asks_constants;
            lowered.asks_reserved |= func.asks_reserved;
            lowered.asks_runtime |= func.asks_runtime;
            lowered.funcs.push(func);
        }
        let blocks = lowered.funcs.iter().flat_map(|func| &func.blocks);
        let indirect = |end: &End| {
            let callee = |callee: &Callee| matches!(callee, Callee::Indirect(_));
            matches!(end, End::Call { callee: how, .. } if callee(how))
        };
        if blocks.into_iter().any(|block| indirect(&block.end)) {
            lowered.by_address = vec![NOWHERE; self.tree.functions.len()];
            for (index, &function) in closure.iter().enumerate() {
                lowered.by_address[function] = index as u32;
            }
            spent += lowered.by_address.len() as u64;
        }
        let most = u64::from(limits::LOCAL_BYTES);
        lowered.local_stride = local_stride(&lowered.funcs)
            .ok_or_else(|| refuse("bytes of local memory of a thread", most))?;
        *left = left.checked_sub(spent).ok_or_else(too_many)?;
        Ok(lowered)
    }

    /// The entry and the functions that it may call, itself or through others; all whose address is taken
    /// anywhere, as soon as one of them calls through a pointer.
    fn closure(&self, entry: usize) -> Vec<usize> {
        let functions = &self.tree.functions;
        let mut found = vec![entry];
        let mut known = HashSet::from([entry]);
        let mut next = 0;
        let mut indirect = false;
        while next < found.len() {
            let function = &functions[found[next]];
            next += 1;
            let mut add = |index: usize| {
                let callable = functions
                    .get(index)
                    .is_some_and(|f| f.body.is_some() && !f.entry);
                if callable && known.insert(index) {
                    found.push(index);
                }
            };
            for instruction in function.body.iter().flatten() {
                indirect |= instruction.opcode == "call" && !calls_by_name(instruction);
                each_symbol(instruction, &mut |symbol| {
                    if let Symbol::Function(index) = symbol {
                        add(index);
                    }
                });
            }
            if indirect && next == found.len() {
                indirect = false;
                let taken = self.taken.get_or_init(|| self.address_taken());
                found.extend(taken.iter().filter(|&&index| known.insert(index)));
            }
        }
        found
    }

    /// Functions whose address is taken by an instruction or stands in a variable.
    fn address_taken(&self) -> Vec<usize> {
        let functions = &self.tree.functions;
        let mut taken = Vec::new();
        let mut known = HashSet::new();
        let mut add = |symbol: Symbol| {
            if let Symbol::Function(index) = symbol {
                let callable = functions
                    .get(index)
                    .is_some_and(|f| f.body.is_some() && !f.entry);
                if callable && known.insert(index) {
                    taken.push(index);
                }
            }
        };
        let variables = self
            .tree
            .variables
            .iter()
            .chain(functions.iter().flat_map(|f| &f.variables));
        for relocation in variables.flat_map(|variable| &variable.init.relocations) {
            add(relocation.symbol);
        }
        for instruction in functions.iter().flat_map(|f| f.body.iter().flatten()) {
            if instruction.opcode != "call" {
                each_symbol(instruction, &mut add);
            }
        }
        taken
    }

    /// Gives the shared variables that these functions name their places; unsized ones begin where the
    /// sized ones end. Where a module has such, the static part is as long as their alignment wants it,
    /// as NVIDIA's assembler has it, so that all bytes of the dynamic part are within a block's memory.
    fn place_shared(
        &self,
        closure: &[usize],
    ) -> Result<(HashMap<VariableId, u64>, u32), LoadError> {
        let mut ids = HashSet::new();
        for &function in closure {
            for instruction in self.tree.functions[function].body.iter().flatten() {
                each_symbol(instruction, &mut |symbol| {
                    let id = match symbol {
                        Symbol::Module(index) => VariableId::Module(index),
                        Symbol::Local(index) => VariableId::Local(function, index),
                        _ => return,
                    };
                    let shared = self.variable(id).is_some_and(|v| v.space == Space::Shared);
                    if shared {
                        ids.insert(id);
                    }
                });
            }
        }
        let mut ids: Vec<VariableId> = ids.into_iter().collect();
        ids.sort_unstable();
        let mut places = HashMap::new();
        let mut end = 0u64;
        for &id in &ids {
            let Some(variable) = self.variable(id).filter(|variable| variable.size != 0) else {
                continue;
            };
            end = end.next_multiple_of(variable.align.max(1));
            places.insert(id, end);
            end = end.saturating_add(variable.size);
            if end > FRAME_BYTES {
                let what = "bytes of shared memory of a block";
                return Err(LoadError::beyond(variable.line, "", what, FRAME_BYTES));
            }
        }
        let functions = self.tree.functions.iter();
        let variables = functions.flat_map(|function| &function.variables);
        let align = variables
            .chain(&self.tree.variables)
            .filter(|variable| variable.space == Space::Shared && variable.size == 0)
            .map(|variable| variable.align.max(16))
            .max();
        if let Some(align) = align {
            end = end.next_multiple_of(align);
            if end > FRAME_BYTES {
                let what = "bytes of shared memory of a block";
                return Err(LoadError::beyond(
                    self.tree.functions[closure[0]].line,
                    "",
                    what,
                    FRAME_BYTES,
                ));
            }
            let is_unsized = |id: &&VariableId| self.variable(**id).is_some_and(|v| v.size == 0);
            places.extend(ids.iter().filter(is_unsized).map(|&id| (id, end)));
        }
        Ok((places, end as u32))
    }
}

/// What the functions of one kernel see.
struct KernelFacts<'a> {
    module: &'a ModuleFacts<'a>,
    /// Which of the kernel's functions each function of the module is.
    numbers: &'a HashMap<usize, u32>,
    shared: HashMap<VariableId, u64>,
}

/// The number that stands for a function's address.
pub(crate) fn function_address(index: usize) -> u64 {
    FUNCTION_BASE + index as u64 * FUNCTION_STEP
}

fn calls_by_name(instruction: &Instruction<'_>) -> bool {
    instruction
        .operands
        .iter()
        .any(|operand| matches!(operand, Operand::Symbol(Symbol::Function(_), _)))
}

/// Calls `f` with every symbol that the instruction names.
fn each_symbol(instruction: &Instruction<'_>, f: &mut impl FnMut(Symbol)) {
    fn visit(operand: &Operand<'_>, f: &mut impl FnMut(Symbol)) {
        match operand {
            Operand::Symbol(symbol, _) => f(*symbol),
            Operand::Address(address) => {
                if let Base::Symbol(symbol) = address.base {
                    f(symbol);
                }
            }
            Operand::List(list) | Operand::Vector(list) | Operand::Indexed(list) => {
                list.iter().for_each(|operand| visit(operand, f));
            }
            Operand::Pair(a, b) => {
                visit(a, f);
                visit(b, f);
            }
            _ => {}
        }
    }
    instruction
        .operands
        .iter()
        .for_each(|operand| visit(operand, f));
}
