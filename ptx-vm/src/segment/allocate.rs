//! Registers for a segment's values, and its instructions.
//!
//! A value has as many *units* as vectors for the lanes that one round of the loop takes: one of 4-byte
//! lanes, two of 8-byte lanes. Narrower ones have one of 4-byte lanes, with zeros before them. A unit is in a register, in its slot, or both. When registers run out, the
//! unit goes whose next use is furthest; to its slot, if its slot does not have it.
//!
//! Called by `segment` alone. Must not know bytes of instructions: those are `encode`'s.

use std::collections::HashMap;

use super::branch::{Label, When};
use super::decided::Decided;
use super::encode::{self, Assembler, Base, Opcode, Rm};
use super::plan::{self, Group, Indexed};
use super::question::{self, Question};
use super::rows::{KnownRow, Rows};
use super::step::{Compiled, Known, RegisterSlot, SegmentLanes, SegmentStep};
use super::tag::Tag;
use super::transfer::BROADCAST_32;
use super::widen::{SHL_64, SHR_U64};
use crate::ir::Reg;
use crate::isa::{Isa, Target};
use crate::reach::Reach;

/// A register of the program, and which vector of it.
pub(super) type Unit = (Reg, u8);

/// Nothing comes.
pub(super) const NEVER: usize = usize::MAX;
/// After the segment.
const AFTER: usize = usize::MAX - 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRegister {
    pub(super) unit: Unit,
    /// Its slot does not have this value.
    pub(super) dirty: bool,
    /// The step that made it; [`NEVER`] for one that was loaded.
    pub(super) made: usize,
}

pub(super) struct Allocator<'a> {
    pub(super) out: Assembler,
    pub(super) slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    live_after: &'a dyn Fn(Reg) -> bool,
    pub(super) masked: bool,
    /// See [`Facts::once`].
    pub(super) once: bool,
    /// See [`Target::gathers`].
    pub(super) gathers: bool,
    /// See [`Facts::merges`].
    pub(super) merges: bool,
    pub(super) registers: Vec<Option<CachedRegister>>,
    /// Registers that the current step needs.
    pub(super) pinned: Vec<u8>,
    /// Loads and stores so far, and how each is asked for.
    pub(super) transfers: usize,
    pub(super) questions: Vec<Question>,
    /// Loads that share their address register.
    pub(super) groups: Vec<Group>,
    /// Accesses by indices, and steps that make addresses which nothing else reads.
    pub(super) indexed: HashMap<usize, Option<Indexed>>,
    /// Accesses that are known to be rows.
    pub(super) rows: HashMap<usize, KnownRow>,
    /// For each register of the program: the steps that read it and those that write it, ascending.
    reads: HashMap<Reg, Vec<usize>>,
    writes: HashMap<Reg, Vec<usize>>,
    pub(super) now: usize,
    /// A slot is further away than an instruction can say.
    pub(super) far: bool,
}

pub(super) fn compile(
    steps: &[SegmentStep],
    known: &Known<'_>,
    live_after: &dyn Fn(Reg) -> bool,
    target: Target,
    lanes: SegmentLanes,
    first: usize,
) -> Option<Compiled> {
    let masked = lanes == SegmentLanes::Masked;
    let once = lanes == SegmentLanes::Once;
    let Known {
        slot_of,
        constant_of,
        row_of,
    } = *known;
    let facts = Facts {
        slot_of,
        live_after,
        constant_of,
        masked,
        once,
        gathers: target.gathers,
        merges: false,
    };
    let groups = if once { Vec::new() } else { Group::all(steps) };
    let indexed = plan::find(steps, &groups, slot_of, live_after, constant_of);
    let rows = Rows::find(steps, &indexed, slot_of, row_of, first);
    let mut out = Assembler::new(target.isa);
    out.push_bases(groups.len());
    if rows.has_starts() {
        out.push_starts();
    }
    out.set_reach();
    let mut questions = Vec::new();
    let decided = (!masked && target.isa == Isa::Avx512)
        .then(|| Decided::find(steps, known, live_after))
        .flatten();
    if let Some(decided) = &decided {
        let mut other = Label::default();
        decided.ask(&mut out, &mut other);
        out.bind(other);
    }
    rows.ask_apart(&mut out);
    if rows.asks() {
        let mut other = Label::default();
        rows.ask(&mut out, &mut other);
        out = strips(out, steps, facts, first, &rows, &mut questions)?;
        out.bind(other);
    }
    out = strips(out, steps, facts, first, &rows.shared(), &mut questions)?;
    question::answer(&mut out, questions);
    Some(Compiled {
        code: out.finish(),
        decided: decided.map_or_else(Vec::new, |decided| decided.results()),
    })
}

/// The loop over strips and the return behind it.
fn strips(
    mut out: Assembler,
    steps: &[SegmentStep],
    facts: Facts<'_>,
    first: usize,
    rows: &Rows,
    questions: &mut Vec<Question>,
) -> Option<Assembler> {
    let transfers = steps.iter().any(|step| step.access.1 != 0);
    let has_mask = facts.masked || transfers;
    let top = out.open(has_mask);
    let mut empty = Label::default();
    if has_mask {
        // Lanes that run may be far apart; addresses of the others are no one's.
        out.test_running();
        out.jump(When::Zero, &mut empty);
    }
    rows.start(&mut out);
    let mut allocator = Allocator::new(out, steps, facts, first, rows);
    allocator.steps(steps);
    allocator.flush();
    let mut out = allocator.out;
    if allocator.far {
        return None;
    }
    out.bind(empty);
    out.close(top);
    questions.append(&mut allocator.questions);
    Some(out)
}

/// What is known of a run of steps beside themselves.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    /// Whether a register is needed after the run.
    pub(super) live_after: &'a dyn Fn(Reg) -> bool,
    pub(super) constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    /// Only lanes of the masks change.
    pub(super) masked: bool,
    /// All lanes have the same.
    pub(super) once: bool,
    /// See [`Target::gathers`].
    pub(super) gathers: bool,
    /// Slots are written whole, other lanes as they were: what is soon read again. A processor does not hand a store under a
    /// mask on to loads.
    pub(super) merges: bool,
}

impl<'a> Allocator<'a> {
    /// For steps whose loads and stores are numbered from `first` on.
    pub(super) fn new(
        out: Assembler,
        steps: &[SegmentStep],
        facts: Facts<'a>,
        first: usize,
        rows: &Rows,
    ) -> Self {
        let Facts {
            slot_of,
            live_after,
            constant_of,
            masked,
            once,
            gathers,
            merges,
        } = facts;
        // Those have something in common, which is not looked for in a loop (`Transfer`).
        let groups = if once || merges && gathers {
            Vec::new()
        } else {
            Group::all(steps)
        };
        let indexed = plan::find(steps, &groups, slot_of, live_after, constant_of);
        let rows = rows.known();
        let mut reads: HashMap<Reg, Vec<usize>> = HashMap::new();
        let mut writes: HashMap<Reg, Vec<usize>> = HashMap::new();
        for (index, step) in steps.iter().enumerate() {
            let own = indexed.get(&index);
            if own.is_some_and(Option::is_none) {
                continue;
            }
            let by_index = own.copied().flatten();
            // Of a row that is known, lanes' indices and addresses are not looked at.
            let is_known = rows.contains_key(&index);
            let looks = by_index.filter(|_| !is_known);
            let sources = looks.iter().map(Indexed::index);
            let others = &step.s[usize::from(is_known || by_index.is_some())..];
            for reg in sources.chain(others.iter().copied()) {
                reads.entry(reg).or_default().push(index);
            }
            for &reg in &step.d {
                writes.entry(reg).or_default().push(index);
            }
        }
        let registers = vec![None; out.registers()];
        Self {
            out,
            slot_of,
            live_after,
            masked,
            once,
            gathers,
            merges,
            registers,
            pinned: Vec::new(),
            transfers: first,
            questions: Vec::new(),
            groups,
            indexed,
            rows,
            reads,
            writes,
            now: 0,
            far: false,
        }
    }

    /// Does the steps.
    pub(super) fn steps(&mut self, steps: &[SegmentStep]) {
        for (index, step) in steps.iter().enumerate() {
            self.now = index;
            if matches!(self.indexed.get(&index), Some(None)) || self.serves_nothing(step) {
                continue;
            }
            if step.tag == Tag::SumShared {
                self.sum(step);
                continue;
            }
            if step.access.1 != 0 {
                self.transfer(step);
                continue;
            }
            let parts = ((self.slot_of)(step.d[0]).width / 4).max(1);
            for part in 0..parts {
                self.step(step, part);
            }
        }
        self.now = steps.len();
    }

    /// Whether nobody reads what a step makes: the index of a row that is known.
    fn serves_nothing(&self, step: &SegmentStep) -> bool {
        let read = |reg: &Reg| self.reads.contains_key(reg) || (self.live_after)(*reg);
        !self.rows.is_empty() && step.access.1 == 0 && !step.d.iter().any(read)
    }

    /// Writes what is needed after the steps to its slots.
    pub(super) fn flush(&mut self) {
        for register in 0..self.registers.len() {
            self.clean(register as u8);
        }
    }
}

impl Allocator<'_> {
    /// The next step, from `from` on, that reads the unit's present value; [`AFTER`] if it is needed after
    /// the segment only.
    fn next_use(&self, unit: Unit, from: usize) -> usize {
        let after = |list: Option<&Vec<usize>>, from: usize| {
            let list = list?;
            list.get(list.partition_point(|&at| at < from)).copied()
        };
        // A step reads before it writes, so what it writes ends the value only after its own reads.
        let read = after(self.reads.get(&unit.0), from);
        let written = after(self.writes.get(&unit.0), from);
        match (read, written) {
            (Some(read), Some(written)) if read <= written => read,
            (Some(read), None) => read,
            (None, None) if (self.live_after)(unit.0) => AFTER,
            _ => NEVER,
        }
    }

    /// When a held value is needed next, the present step included as long as it has not made it.
    fn wanted(&self, held: CachedRegister) -> usize {
        self.next_use(held.unit, self.now + usize::from(held.made == self.now))
    }

    pub(super) fn find(&self, unit: Unit) -> Option<u8> {
        let held = |slot: &Option<CachedRegister>| slot.is_some_and(|held| held.unit == unit);
        self.registers
            .iter()
            .position(held)
            .map(|register| register as u8)
    }

    /// Where in the frame a register lies that is the same in all lanes.
    pub(super) fn uniform_offset(&mut self, reg: Reg) -> i32 {
        let offset = (self.slot_of)(reg).offset;
        i32::try_from(offset).unwrap_or_else(|_| {
            self.far = true;
            0
        })
    }

    /// Where a unit lies in memory; r11 may be lost.
    fn address(&mut self, unit: Unit) -> (Base, i32) {
        let slot = (self.slot_of)(unit.0);
        let vector = if slot.varying { unit.1 } else { 0 };
        let offset = u64::from(slot.offset) + u64::from(vector) * self.out.bytes() as u64;
        let offset = i32::try_from(offset).unwrap_or_else(|_| {
            self.far = true;
            0
        });
        let base = match slot {
            // All vectors of a uniform slot are the same.
            RegisterSlot { varying: false, .. } => Base::Rdi,
            RegisterSlot { width: 8, .. } => Base::R9,
            RegisterSlot { width: 4, .. } => Base::R8,
            RegisterSlot { width, .. } => {
                self.out.narrow_strip(width);
                Base::R11
            }
        };
        (base, offset)
    }

    /// Writes a register's value to its slot if that does not have it and somebody wants it.
    fn clean(&mut self, register: u8) {
        let Some(held) = self.registers[register as usize] else {
            return;
        };
        if held.dirty && self.wanted(held) != NEVER {
            let (base, offset) = self.address(held.unit);
            let width = (self.slot_of)(held.unit.0).width;
            let mut mask = if !self.masked { 0 } else { 1 + held.unit.1 };
            if self.merges {
                self.out.load_others(register, base, offset, width, mask);
                mask = 0;
            }
            if width < 4 {
                self.out.store_narrow(register, base, offset, width, mask);
            } else {
                self.out.store(register, base, offset, width == 8, mask);
            }
        }
        self.registers[register as usize] = Some(CachedRegister {
            dirty: false,
            ..held
        });
    }

    /// A register that nothing needs.
    pub(super) fn free(&mut self) -> u8 {
        let candidates =
            (0..self.registers.len() as u8).filter(|register| !self.pinned.contains(register));
        let best = candidates
            .max_by_key(|&register| match self.registers[register as usize] {
                None => (2, 0),
                Some(held) => {
                    let next = self.wanted(held);
                    (u8::from(next == NEVER), next)
                }
            })
            .unwrap_or(0);
        self.clean(best);
        self.registers[best as usize] = None;
        self.pinned.push(best);
        best
    }

    /// A unit in a register.
    pub(super) fn load(&mut self, unit: Unit) -> u8 {
        if let Some(register) = self.find(unit) {
            self.pinned.push(register);
            return register;
        }
        let register = self.free();
        let (base, offset) = self.address(unit);
        match (self.slot_of)(unit.0).width {
            width @ 1..=3 => self.out.load_narrow(register, base, offset, width),
            _ => self.out.load(register, base, offset),
        }
        self.registers[register as usize] = Some(CachedRegister {
            unit,
            dirty: false,
            made: NEVER,
        });
        register
    }

    /// A unit as a last operand: where it is, if it is not wanted again.
    pub(super) fn operand(&mut self, unit: Unit) -> Rm {
        if self.find(unit).is_none() && (self.slot_of)(unit.0).width >= 4 {
            let uniform = !(self.slot_of)(unit.0).varying;
            let next = self.next_use(unit, self.now + 1);
            if next >= AFTER || uniform && next > self.now + 8 {
                let (base, offset) = self.address(unit);
                return Rm::Memory(base, offset);
            }
        }
        Rm::Register(self.load(unit))
    }

    /// Whether a register's value is not needed in it after this step.
    pub(super) fn dies(&self, register: u8) -> bool {
        self.registers[register as usize].is_some_and(|held| {
            let next = self.next_use(held.unit, self.now + 1);
            next == NEVER || next == AFTER && !held.dirty
        })
    }

    /// The register for a result: that of a source that ends here, or a free one.
    pub(super) fn result(&mut self, sources: &[u8]) -> u8 {
        let ends = sources
            .iter()
            .copied()
            .find(|&register| self.dies(register));
        ends.unwrap_or_else(|| self.free())
    }

    /// The register now has the unit's new value.
    pub(super) fn define(&mut self, register: u8, unit: Unit) {
        for held in &mut self.registers {
            if held.is_some_and(|held| held.unit == unit) {
                *held = None;
            }
        }
        self.registers[register as usize] = Some(CachedRegister {
            unit,
            dirty: true,
            made: self.now,
        });
    }

    pub(super) fn step(&mut self, step: &SegmentStep, part: u8) {
        self.pinned.clear();
        let d = (step.d[0], part);
        let source = |index: usize| (step.s[index], part);
        let register = match step.tag {
            Tag::AddF32 => self.float(encode::ADD_F32, source(0), source(1), true),
            Tag::SubF32 => self.float(encode::SUB_F32, source(0), source(1), false),
            Tag::MulF32 => self.float(encode::MUL_F32, source(0), source(1), true),
            Tag::DivF32 => self.float(encode::DIV_F32, source(0), source(1), false),
            Tag::AddF64 => self.float(encode::ADD_F64, source(0), source(1), true),
            Tag::SubF64 => self.float(encode::SUB_F64, source(0), source(1), false),
            Tag::MulF64 => self.float(encode::MUL_F64, source(0), source(1), true),
            Tag::DivF64 => self.float(encode::DIV_F64, source(0), source(1), false),
            Tag::Add32 => self.binary(encode::ADD_32, source(0), source(1), true),
            Tag::Add64 => self.binary(encode::ADD_64, source(0), source(1), true),
            Tag::Sub32 => self.binary(encode::SUB_32, source(0), source(1), false),
            Tag::Mul32 => self.binary(encode::MUL_32, source(0), source(1), true),
            Tag::Sub64 => self.binary(encode::SUB_64, source(0), source(1), false),
            Tag::And32 | Tag::And64 | Tag::AndPredicate => {
                self.binary(encode::AND_32, source(0), source(1), true)
            }
            Tag::Or32 | Tag::Or64 | Tag::OrPredicate => {
                self.binary(encode::OR_32, source(0), source(1), true)
            }
            Tag::Xor32 | Tag::Xor64 | Tag::XorPredicate => {
                self.binary(encode::XOR_32, source(0), source(1), true)
            }
            Tag::MinS32 => self.binary(encode::MIN_S32, source(0), source(1), true),
            Tag::MinU32 => self.binary(encode::MIN_U32, source(0), source(1), true),
            Tag::MaxS32 => self.binary(encode::MAX_S32, source(0), source(1), true),
            Tag::MaxU32 => self.binary(encode::MAX_U32, source(0), source(1), true),
            Tag::Not32 => self.with_constant(encode::XOR_32, source(0), u32::MAX),
            Tag::NotPredicate => self.with_constant(encode::XOR_32, source(0), 1),
            Tag::Narrow16 => self.with_constant(encode::AND_32, source(0), 0xffff),
            Tag::Compare(compared, predicate) => self.compare(step, compared, predicate),
            Tag::BlockIndex(axis) => {
                let to = self.free();
                let index = Rm::Memory(Base::R10, Reach::block_index(axis) as i32);
                self.out.vector(BROADCAST_32, to, 0, index, 0);
                to
            }
            Tag::Select32 => self.select(step, part, false),
            Tag::Select64 => self.select(step, part, true),
            Tag::AbsF32 => self.with_constant(encode::AND_32, source(0), 0x7fff_ffff),
            Tag::CvtS32F32 => self.unary(encode::CVT_S32_F32, source(0)),
            Tag::CvtU32F32 => self.unary(encode::CVT_U32_F32, source(0)),
            Tag::Lop3 => self.lop3(step, part),
            Tag::WidenS32 => self.widen((step.s[0], 0), part, true),
            Tag::WidenU32 => self.widen((step.s[0], 0), part, false),
            Tag::MulWideS32 => self.multiply_wide(step, part, true),
            Tag::MulWideU32 => self.multiply_wide(step, part, false),
            Tag::Narrow => self.narrow(step.s[0]),
            Tag::Shl64 => self.shift_wide(SHL_64, step, part),
            Tag::ShrU64 => self.shift_wide(SHR_U64, step, part),
            Tag::Shl32 => self.binary(encode::SHL_32, source(0), source(1), false),
            Tag::ShrU32 => self.binary(encode::SHR_U32, source(0), source(1), false),
            Tag::ShrS32 => self.binary(encode::SHR_S32, source(0), source(1), false),
            Tag::SqrtF32 => self.unary(encode::SQRT_F32, source(0)),
            Tag::SqrtF64 => self.unary(encode::SQRT_F64, source(0)),
            Tag::FmaF32 => self.fma(false, source(0), source(1), source(2)),
            Tag::FmaF64 => self.fma(true, source(0), source(1), source(2)),
            Tag::Mad32 => self.multiply_add(source(0), source(1), source(2)),
            Tag::Mov32 | Tag::Mov64 | Tag::MovNarrow => {
                let from = self.load(source(0));
                let to = self.result(&[from]);
                self.out.copy(to, from);
                to
            }
            Tag::NegF32 => self.negate(source(0)),
            Tag::MaxF32 => self.extreme(source(0), source(1), true),
            Tag::MinF32 => self.extreme(source(0), source(1), false),
            Tag::RsqrtF32 => self.rsqrt(source(0), false),
            Tag::RsqrtFtzF32 => self.rsqrt(source(0), true),
            Tag::None
            | Tag::LoadGlobal
            | Tag::LoadShared
            | Tag::StoreGlobal
            | Tag::StoreShared
            | Tag::SumShared => return,
        };
        self.define(register, d);
    }

    fn binary(&mut self, op: Opcode, a: Unit, b: Unit, commutes: bool) -> u8 {
        self.binary_of(op, a, b, commutes, 0)
    }

    /// The same of floating-point numbers.
    fn float(&mut self, op: Opcode, a: Unit, b: Unit, commutes: bool) -> u8 {
        self.binary_of(op, a, b, commutes, self.running(a.1))
    }

    /// The mask for arithmetic on floating-point numbers of a part. Lanes that do not run hold anything, and a subnormal
    /// number among it would cost more than a hundred cycles.
    pub(super) fn running(&self, part: u8) -> u8 {
        if self.masked {
            encode::ZEROED | (1 + part)
        } else {
            0
        }
    }

    fn binary_of(&mut self, op: Opcode, a: Unit, b: Unit, commutes: bool, mask: u8) -> u8 {
        let (a, b) = if commutes && self.find(a).is_none() && self.find(b).is_some() {
            (b, a)
        } else {
            (a, b)
        };
        let left = self.load(a);
        let right = self.operand(b);
        let mut ends = vec![left];
        if let Rm::Register(right) = right {
            ends.push(right);
        }
        let d = self.result(&ends);
        self.out.vector(op, d, left, right, mask);
        d
    }

    fn unary(&mut self, op: Opcode, a: Unit) -> u8 {
        let from = self.operand(a);
        let d = match from {
            Rm::Register(register) => self.result(&[register]),
            _ => self.free(),
        };
        self.out.vector(op, d, 0, from, self.running(a.1));
        d
    }

    /// An operation with one constant; AVX-512 only.
    fn with_constant(&mut self, op: Opcode, a: Unit, constant: u32) -> u8 {
        let from = self.load(a);
        let d = self.result(&[from]);
        self.out.vector(op, d, from, Rm::Constant(constant), 0);
        d
    }

    /// Any function of three bits, whose table is the step's constant; AVX-512 only.
    fn lop3(&mut self, step: &SegmentStep, part: u8) -> u8 {
        let [a, b, c] = [0, 1, 2].map(|index| self.load((step.s[index], part)));
        let d = self.free();
        self.out.copy(d, a);
        let table = Some(step.imm as u8);
        self.out
            .vector_imm(encode::LOP3, d, b, Rm::Register(c), 0, table);
        d
    }
}
