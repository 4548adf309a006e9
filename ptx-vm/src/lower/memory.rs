//! Loads, stores and atomics.
//!
//! Called by `lower::arith`, and by the files beside it for addresses and hints. Must not know what memory there
//! is: addresses are tested when the operation runs.

use ptx::ast::{Base, Instruction, Operand, Space, Symbol, Type};

use super::body::{Body, Lowered};
use crate::access::WHOLE;
use crate::ir::{InstKind, Passed, Reg, Traits};
use crate::machine::OpFn;
use crate::ops::simple::Words;
use crate::ops::{atomic, memory};
use crate::ops::{logic, parts};
use crate::segment::Tag;
use crate::spaces::{Access, StateSpace, pack};

/// Words of a memory instruction that change nothing here: scopes, caching, and orderings that every
/// access of x86 has anyway.
pub(super) fn is_hint(word: &str) -> bool {
    matches!(
        word,
        "weak"
            | "relaxed"
            | "acquire"
            | "release"
            | "acq_rel"
            | "volatile"
            | "mmio"
            | "cta"
            | "cluster"
            | "gpu"
            | "sys"
            | "ca"
            | "cg"
            | "cs"
            | "lu"
            | "cv"
            | "wb"
            | "wt"
            | "nc"
            | "noftz"
            | "unified"
    ) || word.starts_with("L1::")
        || word.starts_with("L2::")
        || word.starts_with("level::")
}

/// Whether all elements of a vector, of so many bytes each, are to be accessed at once: others may use the memory at
/// the same time, as the words say, and programs count on what NVIDIA's GPUs do with such accesses, though
/// PTX promises it of the elements alone (a status beside a value, in the scans of CUB).
fn is_whole(words: &Words<'_>, count: usize, bytes: u64) -> bool {
    const SHARED: [&str; 8] = [
        "volatile", "relaxed", "acquire", "release", "mmio", "cg", "cv", "wt",
    ];
    count > 1 && bytes * count as u64 <= WHOLE as u64 && SHARED.iter().any(|word| words.has(word))
}

/// Elements that one access takes at most; longer vectors are several.
const MOST_ELEMENTS: usize = 4;

/// What an address stands in.
#[derive(Clone, Copy)]
pub(super) struct Target {
    place: StateSpace,
    pub(super) base: Reg,
    wide: bool,
    offset: i64,
    /// Where in the entry's parameters, if it is a fixed place there.
    fixed: Option<u64>,
}

impl Target {
    /// It stands in no space of its own.
    pub(super) fn is_generic(&self) -> bool {
        self.place == StateSpace::Generic
    }

    /// So many bytes further on.
    pub(super) fn beyond(self, bytes: i64) -> Self {
        Self {
            offset: self.offset.wrapping_add(bytes),
            fixed: self.fixed.and_then(|place| place.checked_add_signed(bytes)),
            ..self
        }
    }
}

impl<'a> Body<'a> {
    /// The space that the words name, and the other words, which must be among those known.
    fn space(&self, words: &Words<'_>, known: &[&str]) -> Lowered<Option<Space>> {
        let mut space = None;
        for word in words.flags {
            let named = match *word {
                "global" => Space::Global,
                "const" => Space::Const,
                "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
                "local" => Space::Local,
                "param" | "param::entry" | "param::func" => Space::Param,
                word if is_hint(word) || known.contains(&word) => continue,
                _ => return Err(self.unbuilt()),
            };
            space = Some(named);
        }
        Ok(space)
    }

    pub(super) fn target(
        &mut self,
        space: Option<Space>,
        operand: &Operand<'_>,
    ) -> Lowered<Target> {
        let Operand::Address(address) = operand else {
            return Err(self.fail("an operand that is no address"));
        };
        let mut offset = address.offset;
        let mut fixed = None;
        // A variable's own space, where the instruction is generic.
        let mut own = None;
        let (base, wide) = match address.base {
            Base::Register(register) => {
                let width = self
                    .func
                    .regs
                    .get(register.0 as usize)
                    .copied()
                    .unwrap_or(0);
                if !matches!(width, 4 | 8) {
                    return Err(self.fail("an address register must have 32 or 64 bits"));
                }
                (self.register(register, width)?, width == 8)
            }
            Base::Immediate => {
                let base = self.constant(offset.cast_unsigned(), 8);
                offset = 0;
                (base, true)
            }
            Base::Symbol(symbol) => {
                if let (true, Symbol::Param(index)) = (self.tree.entry, symbol) {
                    let place = self.param_places.get(index).copied().unwrap_or(0);
                    fixed = Some(u64::from(place).wrapping_add_signed(offset));
                }
                own = match symbol {
                    Symbol::Param(_) | Symbol::Return(_) => Some(Space::Param),
                    Symbol::Local(index) => self.tree.variables.get(index).map(|v| v.space),
                    Symbol::Module(index) => self
                        .kernel
                        .module
                        .tree
                        .variables
                        .get(index)
                        .map(|v| v.space),
                    Symbol::Function(_) => None,
                };
                // Variables of a call stand in the local frame, even in an entry.
                if space == Some(Space::Param) && fixed.is_none() {
                    own = Some(Space::Local);
                }
                (self.symbol(symbol, 0)?, true)
            }
        };
        let space = match own {
            Some(Space::Local) if space == Some(Space::Param) => Some(Space::Local),
            Some(own) if space.is_none() => Some(own),
            _ => space,
        };
        let place = match space {
            None => StateSpace::Generic,
            Some(Space::Global | Space::Const) => StateSpace::Global,
            Some(Space::Shared) => StateSpace::Shared,
            Some(Space::Local) => StateSpace::Local,
            Some(Space::Param) if self.tree.entry => StateSpace::Param,
            Some(Space::Param) => StateSpace::Local,
        };
        Ok(Target {
            place,
            base,
            wide,
            offset,
            fixed,
        })
    }

    pub(super) fn access(&self, target: &Target, count: usize) -> Lowered<u64> {
        let access = Access {
            offset: target.offset,
            place: target.place,
            wide: target.wide,
            count,
        };
        pack(access).ok_or_else(|| self.fail("an offset out of range"))
    }

    /// The address itself, in 64 bits, with something added.
    pub(super) fn whole_address(&mut self, target: &Target, added: u64) -> Lowered<Reg> {
        let mut base = target.base;
        if self.func.regs[base as usize] == 4 {
            let widen = logic::resize(4, 8, false).ok_or_else(|| self.unbuilt())?;
            base = self.compute(&widen, vec![base]);
        }
        let offset = target.offset.cast_unsigned().wrapping_add(added);
        if offset == 0 {
            return Ok(base);
        }
        let offset = self.constant(offset, 8);
        Ok(self.compute(&parts::offset64(false), vec![base, offset]))
    }

    /// The type, and how many elements the words say.
    fn shape(&self, words: &Words<'_>) -> Lowered<(Type, usize)> {
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        let count = if words.has("v8") {
            8
        } else if words.has("v4") {
            4
        } else if words.has("v2") {
            2
        } else {
            1
        };
        if ty == Type::Pred || ty.size() > 8 {
            return Err(self.unbuilt());
        }
        Ok((ty, count))
    }

    /// The operands of an instruction without the policy of its cache, which changes nothing here.
    pub(super) fn without_policy(
        &self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
    ) -> Lowered<&'a [Operand<'a>]> {
        let operands = at.operands.as_slice();
        let hinted = ["L1::cache_hint", "L2::cache_hint", "level::cache_hint"];
        if !hinted.iter().any(|word| words.has(word)) {
            return Ok(operands);
        }
        match operands.split_last() {
            Some((Operand::Register(_) | Operand::Integer(_), rest)) => Ok(rest),
            _ => Err(self.fail("no policy of the cache")),
        }
    }

    /// The parts of a vector, which may be of one element.
    pub(super) fn elements<'o>(
        &self,
        operand: &'o Operand<'a>,
        count: usize,
    ) -> Lowered<&'o [Operand<'a>]> {
        let elements = match operand {
            Operand::Vector(elements) => elements.as_slice(),
            operand => std::slice::from_ref(operand),
        };
        if elements.len() == count {
            Ok(elements)
        } else {
            Err(self.fail("a vector of a wrong length"))
        }
    }

    pub(super) fn load(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, address] = self.without_policy(at, words)? else {
            return Err(self.fail("a wrong number of operands"));
        };
        let space = self.space(words, &["v2", "v4", "v8"])?;
        if Self::is_whole(words) && !words.has("v2") && !words.has("v4") && !words.has("v8") {
            let target = self.target(space, address)?;
            self.load_whole(d, &target)?;
            if words.has("acquire") {
                self.fence();
            }
            return Ok(());
        }
        let (ty, count) = self.shape(words)?;
        let mut target = self.target(space, address)?;
        let signed = matches!(ty, Type::S8 | Type::S16 | Type::S32);
        let elements = self.elements(d, count)?;
        // All elements of one instruction go to registers of one width; wider ones are extended after.
        let bytes = ty.size() as u8;
        let natural = bytes.max(2);
        let width = match elements {
            [Operand::Register(register)] => self
                .func
                .regs
                .get(register.0 as usize)
                .copied()
                .unwrap_or(natural)
                .max(natural),
            _ => natural,
        };
        let whole = is_whole(words, count, ty.size());
        let run = memory::load(bytes, signed, width, whole).ok_or_else(|| self.unbuilt())?;
        let mut results = Vec::with_capacity(count);
        for element in elements {
            results.push(self.dest(element, width)?);
        }
        if count > MOST_ELEMENTS && results.contains(&target.base) {
            // The first part must not take the others' address away.
            let copy = logic::mov(self.func.regs[target.base as usize]);
            let copy = copy.ok_or_else(|| self.unbuilt())?;
            target.base = self.compute(&copy, vec![target.base]);
        }
        let size = ptx::layout::params_size(self.tree);
        for (part, results) in results.chunks(MOST_ELEMENTS).enumerate() {
            let len = ty.size() * results.len() as u64;
            let target = target.beyond((part * MOST_ELEMENTS) as i64 * ty.size() as i64);
            let imm = self.access(&target, results.len())?;
            // What cannot fail may run before everything else; what fails, fails only if it is reached.
            let sure = target.fixed.is_some_and(|place| {
                place.is_multiple_of(len) && place.checked_add(len).is_some_and(|end| end <= size)
            });
            let kind = if sure {
                InstKind::Param { run, imm }
            } else {
                let volatile = ["volatile", "relaxed", "acquire", "mmio"]
                    .iter()
                    .any(|word| words.has(word));
                let traits = Traits {
                    private: matches!(target.place, StateSpace::Local | StateSpace::Generic),
                    volatile,
                    loose: {
                        // In segments narrow values have zeros before them.
                        let extended = bytes <= 2 && width <= 4 && !signed;
                        let alone = !volatile && !whole;
                        if alone && (bytes == width || extended) {
                            bytes
                        } else {
                            0
                        }
                    },
                };
                InstKind::Load { run, imm, traits }
            };
            self.emit(kind, results.to_vec(), vec![target.base]);
        }
        if words.has("acquire") {
            self.fence();
        }
        for (element, result) in elements.iter().zip(results) {
            self.finish(element, result, signed)?;
        }
        Ok(())
    }

    pub(super) fn store(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [address, value] = self.without_policy(at, words)? else {
            return Err(self.fail("a wrong number of operands"));
        };
        let space = self.space(words, &["v2", "v4", "v8"])?;
        if words.has("release") {
            self.fence();
        }
        if Self::is_whole(words) && !words.has("v2") && !words.has("v4") && !words.has("v8") {
            let target = self.target(space, address)?;
            return self.store_whole(&target, value);
        }
        let (ty, count) = self.shape(words)?;
        let target = self.target(space, address)?;
        let whole = is_whole(words, count, ty.size());
        const ORDERED: [&str; 4] = ["volatile", "relaxed", "release", "mmio"];
        let ordered = ORDERED.iter().any(|word| words.has(word));
        self.store_elements(target, value, (ty, count), (whole, ordered))
    }

    fn store_elements(
        &mut self,
        target: Target,
        value: &Operand<'a>,
        (ty, count): (Type, usize),
        (whole, ordered): (bool, bool),
    ) -> Lowered {
        let bytes = ty.size() as u8;
        let loose = if whole || ordered { 0 } else { bytes };
        let elements = self.elements(value, count)?;
        let mut values = Vec::with_capacity(count);
        for element in elements {
            // Bytes are stored from 16-bit registers or wider ones, narrowed to 16 bits.
            values.push(self.read(element, bytes.max(2))?);
        }
        let run = memory::store(bytes, bytes.max(2), whole).ok_or_else(|| self.unbuilt())?;
        for (part, values) in values.chunks(MOST_ELEMENTS).enumerate() {
            let target = target.beyond((part * MOST_ELEMENTS) as i64 * ty.size() as i64);
            let imm = self.access(&target, values.len())?;
            let mut sources = vec![target.base];
            sources.extend(values);
            self.emit(InstKind::Store { run, imm, loose }, Vec::new(), sources);
        }
        Ok(())
    }

    /// `st.async` and `red.async`: a store or an atomic in shared memory, of which a barrier there is told.
    pub(super) fn tell_and_write(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        const KNOWN: [&str; 8] = [
            "async",
            "weak",
            "relaxed",
            "cluster",
            "shared::cluster",
            "mbarrier::complete_tx::bytes",
            "v2",
            "v4",
        ];
        let [address, value, barrier] = self.operands(at)?;
        let (ty, count) = self.shape(words)?;
        let others: Vec<&str> = words
            .flags
            .iter()
            .copied()
            .filter(|word| !KNOWN.contains(word))
            .collect();
        let target = self.target(Some(Space::Shared), address)?;
        match (words.opcode, others.as_slice(), count) {
            ("st", [], _) => self.store_elements(target, value, (ty, count), (false, true))?,
            ("red", &[name], 1) => {
                let found = atomic::find(name, ty).filter(|found| found.operands == 1);
                let run = found.ok_or_else(|| self.unbuilt())?.run;
                let imm = self.access(&target, 1)?;
                let value = self.read(value, ty.size() as u8)?;
                self.emit(
                    InstKind::Atomic {
                        run,
                        imm,
                        tag: Tag::None,
                    },
                    Vec::new(),
                    vec![target.base, value],
                );
            }
            _ => return Err(self.unbuilt()),
        }
        self.tell_barrier(barrier, ty.size() * count as u64)
    }

    pub(super) fn atomic(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        const NAMES: [&str; 10] = [
            "add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max",
        ];
        const VECTORS: [&str; 3] = ["v2", "v4", "v8"];
        let known: Vec<&str> = NAMES.iter().chain(&VECTORS).copied().collect();
        let space = self.space(words, &known)?;
        let named: Vec<&str> = words
            .flags
            .iter()
            .copied()
            .filter(|word| NAMES.contains(word))
            .collect();
        let &[name] = named.as_slice() else {
            return Err(self.unbuilt());
        };
        if Self::is_whole(words) && !VECTORS.iter().any(|vector| words.has(vector)) {
            return match (words.opcode, self.without_policy(at, words)?) {
                ("atom", [d, address, values @ ..]) => {
                    let target = self.target(space, address)?;
                    self.exchange_whole(name, &target, Some(d), values)
                }
                _ => Err(self.unbuilt()),
            };
        }
        let (ty, length) = self.shape(words)?;
        let found = atomic::find(name, ty).ok_or_else(|| self.unbuilt())?;
        let (run, count) = (found.run, found.operands);
        let (d, address, values) = match (words.opcode, self.without_policy(at, words)?) {
            ("atom", [d, address, values @ ..]) => (Some(d), address, values),
            ("red", [address, values @ ..]) => (None, address, values),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        if values.len() != count {
            return Err(self.fail("a wrong number of operands"));
        }
        let target = self.target(space, address)?;
        let is_global = target.place == StateSpace::Global;
        let run = match (name, ty) {
            ("add", Type::F32) if is_global => atomic::add_flushed(),
            _ => run,
        };
        if target.place == StateSpace::Param {
            return Err(self.unbuilt());
        }
        let width = ty.size() as u8;
        if length > 1 {
            let [value] = values else {
                return Err(self.unbuilt());
            };
            return self.atomics(target, run, (width, length), d, value);
        }
        let imm = self.access(&target, 1)?;
        let mut sources = vec![target.base];
        for value in values {
            sources.push(self.read(value, width)?);
        }
        let mut results = Vec::new();
        if let Some(d) = d.filter(|d| !matches!(d, Operand::Sink)) {
            results.push(self.dest(d, width)?);
        }
        let tag = match (name, ty) {
            ("add", Type::U32 | Type::S32) if target.place == StateSpace::Shared => Tag::SumShared,
            _ => Tag::None,
        };
        let kind = InstKind::Atomic { run, imm, tag };
        self.emit(kind, results.clone(), sources);
        if let (Some(d), Some(&result)) = (d, results.first()) {
            self.finish(d, result, false)?;
        }
        Ok(())
    }

    /// An atomic of a vector of so many elements, of so many bytes each: each element is atomic by itself.
    fn atomics(
        &mut self,
        target: Target,
        run: OpFn,
        (width, length): (u8, usize),
        d: Option<&Operand<'a>>,
        value: &Operand<'a>,
    ) -> Lowered {
        let mut values = Vec::with_capacity(length);
        for element in self.elements(value, length)? {
            values.push(self.read(element, width)?);
        }
        let mut results = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let imm = self.access(&target.beyond((index * usize::from(width)) as i64), 1)?;
            // A destination may be another element's operand, or the address.
            let result = d.map(|_| self.temp(width));
            results.extend(result);
            let written = result.into_iter().collect();
            self.emit(
                InstKind::Atomic {
                    run,
                    imm,
                    tag: Tag::None,
                },
                written,
                vec![target.base, value],
            );
        }
        let Some(d) = d.filter(|d| !matches!(d, Operand::Sink)) else {
            return Ok(());
        };
        let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
        for (element, result) in self.elements(d, length)?.iter().zip(results) {
            if !matches!(element, Operand::Sink) {
                let dest = self.dest(element, width)?;
                self.simple(&copy, dest, vec![result]);
                self.finish(element, dest, false)?;
            }
        }
        Ok(())
    }

    /// The value of an argument of a call, of `width` bytes.
    pub(super) fn argument(&mut self, passed: Passed, width: u8) -> Lowered<Reg> {
        match passed {
            Passed::Register(reg) if self.func.regs[reg as usize] == width => Ok(reg),
            Passed::Local(place, size) if size == u32::from(width) => {
                let (imm, base) = self.own(place)?;
                let run = memory::load(width, false, width, false).ok_or_else(|| self.unbuilt())?;
                let d = self.temp(width);
                let traits = Traits {
                    private: true,
                    ..Traits::default()
                };
                self.emit(InstKind::Load { run, imm, traits }, vec![d], vec![base]);
                Ok(d)
            }
            _ => Err(self.fail("arguments that do not fit the function")),
        }
    }

    /// Puts the result of a call where the caller wants it.
    pub(super) fn store_result(&mut self, passed: Passed, value: Reg, width: u8) -> Lowered {
        match passed {
            Passed::Register(reg) if self.func.regs[reg as usize] == width => {
                let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, reg, vec![value]);
                Ok(())
            }
            Passed::Local(place, size) if size == u32::from(width) => {
                let (imm, base) = self.own(place)?;
                let run = memory::store(width, width, false).ok_or_else(|| self.unbuilt())?;
                let loose = 0;
                self.emit(
                    InstKind::Store { run, imm, loose },
                    Vec::new(),
                    vec![base, value],
                );
                Ok(())
            }
            _ => Err(self.fail("arguments that do not fit the function")),
        }
    }

    /// The access to a place in the function's own frame, and its address.
    fn own(&mut self, place: u32) -> Lowered<(u64, Reg)> {
        let access = Access {
            offset: 0,
            place: StateSpace::Local,
            wide: true,
            count: 1,
        };
        let imm = pack(access).ok_or_else(|| self.fail("an offset out of range"))?;
        Ok((imm, self.local(place.into())))
    }

    pub(super) fn fence(&mut self) {
        self.emit(InstKind::Fence, Vec::new(), Vec::new());
    }
}
