//! Instructions that compute: arithmetic, logic, comparisons, conversions, moves.
//!
//! Owns also the table from an opcode to the file that lowers it: `lower::body` calls `instruction`. Must not
//! know how values are computed; that is `ops`.

use ptx::ast::{Instruction, Operand, Symbol, Type};

use super::body::{Body, Lowered};
use crate::ir::{InstKind, Reg};
use crate::isa::Isa;
use crate::ops::simple::{Simple, Words};
use crate::ops::special;
use crate::ops::{cold, compare, logic, parts, table, video};
use crate::ops::{convert, fp8, half};
use crate::segment::Tag;
use crate::spaces::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Words that change nothing here: how exact an approximation may be, and rounding to nearest.
const NEUTRAL: [&str; 4] = ["rn", "approx", "full", "uni"];

impl<'a> Body<'a> {
    /// Lowers one instruction.
    pub(super) fn instruction(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let mut types = Vec::new();
        let mut flags = Vec::new();
        for word in &at.modifiers {
            match Type::named(word) {
                Some(ty) => types.push(ty),
                None => flags.push(*word),
            }
        }
        let words = Words {
            opcode: at.opcode,
            flags: &flags,
            types: &types,
        };
        if flags.contains(&"f32x2") {
            return self.float_pairs(at, &words);
        }
        match at.opcode {
            "createpolicy" => self.cache_policy(at),
            "cp" => self.copy(at, &words),
            "mbarrier" => self.mbarrier(at, &words),
            "ldmatrix" | "stmatrix" => self.move_matrices(at, &words),
            "movmatrix" => self.turn_matrix(at, &words),
            "wmma" => self.wmma(at),
            "mma" => self.multiply(at),
            "wgmma" => self.warpgroup(at),
            "add" | "sub" | "fma"
                if matches!(types.as_slice(), [Type::F32, Type::F16 | Type::Bf16]) =>
            {
                self.mixed_floats(at, &words)
            }
            "fma" if flags.contains(&"oob") => self.fma_oob(at, &words),
            "min" | "max" if at.operands.len() == 4 => self.of_three(at, &words),
            "mov" if Self::is_whole(&words) => self.move_whole(at, &words),
            "mov" => self.mov(at, &words),
            "tensormap" => self.tensor_map(at, &words),
            "alloca" | "stacksave" | "stackrestore" => self.stack(at, &words),
            "mapa" | "getctarank" => self.of_cluster(at, &words),
            "clusterlaunchcontrol" => self.control_launches(at, &words),
            "setp" => self.setp(at, &words),
            "set" => self.set(at, &words),
            "cvt" => self.cvt(at, &words),
            "cvta" => self.cvta(at, &words),
            "isspacep" => self.isspacep(at, &words),
            "add" | "sub" | "mad" if words.has("cc") => self.carry_chain(at, &words),
            "addc" | "subc" | "madc" => self.carry_chain(at, &words),
            "bfi" => self.bfi(at, &words),
            "lop3" => self.lop3(at, &words),
            "st" | "red" if flags.first() == Some(&"async") => self.tell_and_write(at, &words),
            "ld" | "ldu" => self.load(at, &words),
            "st" => self.store(at, &words),
            "atom" | "red" => self.atomic(at, &words),
            "prefetch" | "prefetchu" | "applypriority" | "discard" | "griddepcontrol"
            | "setmaxnreg" => Ok(()),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier"
            | "membar" | "fence" | "nanosleep" | "shfl" | "vote" | "match" | "redux"
            | "activemask" | "elect" | "pmevent" => self.control(at, &words),
            word if word.starts_with('v') => self.video(at, &words),
            "tex" | "tld4" | "txq" | "suld" | "sust" | "suq" => self.texture(at, &words),
            _ => self.compute_lanes(at, &words),
        }
    }

    /// The common case: one operation of the table, with flushing and clamping around it.
    fn compute_lanes(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let rounding = cold::Rounding::of(words).is_some();
        let half = words
            .types
            .first()
            .is_some_and(|ty| matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2));
        let float = matches!(words.types, [Type::F32 | Type::F64]);
        let known = |flag: &&str| {
            NEUTRAL.contains(flag)
                || [
                    "lo", "hi", "wide", "l", "r", "wrap", "clamp", "shiftamt", "NaN", "relu",
                    "xorsign", "abs",
                ]
                .contains(flag)
                || ["ftz", "sat"].contains(flag)
                || [
                    "finite",
                    "infinite",
                    "number",
                    "notanumber",
                    "normal",
                    "subnormal",
                ]
                .contains(flag)
                || ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].contains(flag)
                || float && ["rz", "rm", "rp"].contains(flag)
        };
        if !words.flags.iter().all(known) {
            return Err(self.unbuilt());
        }
        let simple = table::find(words).ok_or_else(|| self.unbuilt())?;
        let arity = simple.widths[1..]
            .iter()
            .filter(|width| **width != 0)
            .count();
        if at.operands.len() != arity + 1 {
            return Err(self.fail("a wrong number of operands"));
        }
        let own_ftz = !rounding
            && matches!(
                words.opcode,
                "add" | "sub" | "mul" | "fma" | "mad" | "rsqrt"
            );
        let ftz = words.has("ftz") && float && words.types == [Type::F32] && !own_ftz;
        let mut sources = Vec::with_capacity(arity);
        for (operand, &width) in at.operands[1..].iter().zip(&simple.widths[1..]) {
            let mut reg = self.read_typed(operand, width, half, words.types)?;
            if ftz && width == 4 {
                reg = self.compute(&parts::flushed(), vec![reg]);
            }
            sources.push(reg);
        }
        let sat = words.has("sat") && float;
        let ftz = ftz && simple.widths[0] == 4;
        let dest = self.dest(&at.operands[0], simple.widths[0])?;
        if !sat && !ftz {
            self.simple(&simple, dest, sources);
        } else {
            let mut value = self.compute(&simple, sources);
            if ftz && sat {
                value = self.compute(&parts::flushed(), vec![value]);
            }
            let last = if sat {
                parts::saturated(simple.widths[0] == 8)
            } else {
                parts::flushed()
            };
            self.simple(&last, dest, vec![value]);
        }
        let signed = matches!(words.types, [Type::S16 | Type::S32 | Type::S64]);
        self.finish(&at.operands[0], dest, signed)
    }

    /// Reads an operand; immediates of 16-bit floats are rounded to their type.
    pub(super) fn read_typed(
        &mut self,
        operand: &Operand<'_>,
        width: u8,
        half: bool,
        types: &[Type],
    ) -> Lowered<Reg> {
        if half {
            let value = match operand {
                Operand::Float32(bits) => Some(f64::from(f32::from_bits(*bits))),
                Operand::Float64(bits) => Some(f64::from_bits(*bits)),
                _ => None,
            };
            if let (Some(value), Some(&ty)) = (value, types.first()) {
                let bits = u64::from(half::from_f64(value, half::kind(ty)));
                return Ok(self.constant(bits | bits << 16, width));
            }
        }
        self.read(operand, width)
    }

    fn mov(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        let [d, s] = self.operands(at)?;
        let width = if ty == Type::Pred { 1 } else { ty.size() as u8 };
        match (d, s) {
            (Operand::Vector(elements), _) => self.unpack(elements, s, width),
            (_, Operand::Vector(elements)) => {
                let dest = self.dest(d, width)?;
                self.pack(elements, dest, width)?;
                self.finish(d, dest, false)
            }
            _ => {
                let source = self.read(s, width)?;
                let dest = self.dest(d, width)?;
                let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, dest, vec![source]);
                self.finish(d, dest, false)
            }
        }
    }

    fn pack(&mut self, elements: &[Operand<'_>], dest: Reg, width: u8) -> Lowered {
        match (elements, width) {
            ([a, b], 2) => {
                let (a, b) = (self.read(a, 2)?, self.read(b, 2)?);
                self.simple(&parts::pack16(), dest, vec![a, b]);
            }
            ([a, b, c, d], 4) => {
                let (a, b) = (self.read(a, 2)?, self.read(b, 2)?);
                let (c, d) = (self.read(c, 2)?, self.read(d, 2)?);
                let low = self.compute(&parts::pack16(), vec![a, b]);
                let high = self.compute(&parts::pack16(), vec![c, d]);
                self.simple(&parts::pack32(), dest, vec![low, high]);
            }
            ([a, b], 4) => {
                let (a, b) = (self.read(a, 2)?, self.read(b, 2)?);
                self.simple(&parts::pack32(), dest, vec![a, b]);
            }
            ([a, b], 8) => {
                let (a, b) = (self.read(a, 4)?, self.read(b, 4)?);
                self.simple(&parts::pack64(), dest, vec![a, b]);
            }
            ([a, b, c, d], 8) => {
                let (a, b) = (self.read(a, 2)?, self.read(b, 2)?);
                let (c, d) = (self.read(c, 2)?, self.read(d, 2)?);
                let low = self.compute(&parts::pack32(), vec![a, b]);
                let high = self.compute(&parts::pack32(), vec![c, d]);
                self.simple(&parts::pack64(), dest, vec![low, high]);
            }
            _ => return Err(self.unbuilt()),
        }
        Ok(())
    }

    fn unpack(&mut self, elements: &[Operand<'_>], source: &Operand<'_>, width: u8) -> Lowered {
        let source = self.read(source, width)?;
        // A destination may be the source's own register: all parts are taken before any is written.
        let values = match (elements.len(), width) {
            (2, 2 | 4 | 8) => self.halves(source, width)?,
            (4, 4 | 8) => {
                let words = self.halves(source, width)?;
                let mut values = self.halves(words[0], width / 2)?;
                values.extend(self.halves(words[1], width / 2)?);
                values
            }
            _ => return Err(self.unbuilt()),
        };
        for (element, value) in elements.iter().zip(values) {
            if matches!(element, Operand::Sink) {
                continue;
            }
            let width = self.func.regs[value as usize];
            let dest = self.dest(element, width)?;
            let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
            self.simple(&copy, dest, vec![value]);
            self.finish(element, dest, false)?;
        }
        Ok(())
    }

    pub(super) fn halves(&mut self, source: Reg, width: u8) -> Lowered<Vec<Reg>> {
        let (low, high) = match width {
            8 => (logic::resize(8, 4, false), parts::high64()),
            4 => (logic::resize(4, 2, false), parts::high32()),
            _ => (Some(parts::low16()), parts::high16()),
        };
        let low = low.ok_or_else(|| self.unbuilt())?;
        Ok(vec![
            self.compute(&low, vec![source]),
            self.compute(&high, vec![source]),
        ])
    }

    /// A video instruction on words or on the parts of words.
    fn video(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let mut simple = table::find(words).ok_or_else(|| self.unbuilt())?;
        let [is_signed_a, is_signed_b] = video::signs(words).ok_or_else(|| self.unbuilt())?;
        let (d, a, b, c) = match at.operands.as_slice() {
            [
                Operand::Part {
                    register,
                    first,
                    bits,
                },
                a,
                b,
                c,
            ] => {
                // What is merged into the third operand has no second operation with it.
                if video::takes_three(words) {
                    return Err(self.unbuilt());
                }
                video::into_part(&mut simple, *first, *bits);
                (&Operand::Register(*register), a, b, self.read(c, 4)?)
            }
            [d, a, b, c] => (d, a, b, self.read(c, 4)?),
            // A second operation would be with the last one.
            [d, a, b] if !video::takes_three(words) => (d, a, b, self.constant(0, 4)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let a = self.selected(a, is_signed_a)?;
        let b = self.selected(b, is_signed_b)?;
        let dest = self.dest(d, 4)?;
        self.simple(&simple, dest, vec![a, b, c]);
        self.finish(d, dest, false)
    }

    /// An operand of a video instruction, of which a part may be selected.
    fn selected(&mut self, operand: &Operand<'_>, signed: bool) -> Lowered<Reg> {
        match operand {
            Operand::Part {
                register,
                first,
                bits,
            } => {
                let word = self.register(*register, 4)?;
                Ok(self.compute(&video::part(*first, *bits, signed), vec![word]))
            }
            whole => self.read(whole, 4),
        }
    }

    fn cvt(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        if let ([to @ (Type::F16x2 | Type::Bf16x2), Type::F32], [d, a, b]) =
            (words.types, at.operands.as_slice())
        {
            let pair = convert::pair(*to, words).ok_or_else(|| self.unbuilt())?;
            let (a, b) = (self.read(a, 4)?, self.read(b, 4)?);
            let mut value = self.compute(&pair, vec![a, b]);
            if let Some(bounded) = half::bounded(words, *to) {
                value = self.compute(&bounded, vec![value]);
            }
            return self.write32(d, value);
        }
        if words.has("pack") {
            let found = convert::pack(words).ok_or_else(|| self.unbuilt())?;
            return self.converted(at, found);
        }
        if let Some(found) = fp8::find(words) {
            return self.converted(at, found);
        }
        if words.has("tf32") {
            let round = convert::tf32(words).ok_or_else(|| self.unbuilt())?;
            let [d, s] = self.operands(at)?;
            let source = self.read(s, 4)?;
            let value = self.compute(&round, vec![source]);
            return self.write32(d, value);
        }
        let chain = convert::find(words).ok_or_else(|| self.unbuilt())?;
        let [d, s] = self.operands(at)?;
        let (Some((last, first)), &[to, _]) = (chain.split_last(), words.types) else {
            return Err(self.unbuilt());
        };
        let source_width = chain[0].widths[1];
        let mut value = self.read(s, source_width)?;
        for step in first {
            value = self.compute(step, vec![value]);
        }
        let dest = self.dest(d, last.widths[0])?;
        self.simple(last, dest, vec![value]);
        self.finish(d, dest, matches!(to, Type::S8 | Type::S16 | Type::S32))
    }

    /// A conversion of so many operands.
    fn converted(&mut self, at: &'a Instruction<'a>, (convert, count): (Simple, usize)) -> Lowered {
        let Some((d, sources)) = at
            .operands
            .split_first()
            .filter(|(_, all)| all.len() == count)
        else {
            return Err(self.fail("a wrong number of operands"));
        };
        let mut values = Vec::new();
        for (source, &width) in sources.iter().zip(&convert.widths[1..]) {
            values.push(self.read(source, width)?);
        }
        let dest = self.dest(d, convert.widths[0])?;
        self.simple(&convert, dest, values);
        self.finish(d, dest, false)
    }

    /// The generic address where a space's window begins; `None` for those that are generic themselves.
    fn window(&self, words: &Words<'_>) -> Lowered<Option<u64>> {
        let base = words.flags.iter().find_map(|flag| match *flag {
            "global" | "const" => Some(None),
            "shared" | "shared::cta" | "shared::cluster" => Some(Some(SHARED_BASE)),
            "local" => Some(Some(LOCAL_BASE)),
            "param" | "param::entry" if self.tree.entry => Some(Some(PARAM_BASE)),
            "param" | "param::func" => Some(Some(LOCAL_BASE)),
            _ => None,
        });
        base.ok_or_else(|| self.unbuilt())
    }

    fn cvta(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, s] = self.operands(at)?;
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        if ty.size() != 8 {
            return Err(self.unbuilt());
        }
        // Without `.to`, an address of a variable is meant in the variable's own space.
        let window = match self.window(words)? {
            Some(PARAM_BASE) if matches!(s, Operand::Symbol(Symbol::Local(_), _)) => {
                Some(LOCAL_BASE)
            }
            window => window,
        };
        let source = self.read(s, 8)?;
        let dest = self.dest(d, 8)?;
        match window {
            None => {
                let copy = logic::mov(8).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, dest, vec![source]);
            }
            Some(base) => {
                let base = self.constant(base, 8);
                self.simple(&parts::offset64(words.has("to")), dest, vec![source, base]);
            }
        }
        Ok(())
    }

    fn isspacep(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, s] = self.operands(at)?;
        let source = self.read(s, 8)?;
        let dest = self.dest(d, 1)?;
        let constants = InstKind::Pure {
            run: [special::in_constants; Isa::COUNT],
            tag: Tag::None,
            imm: 0,
        };
        if words.has("const") {
            self.func.asks_constants = true;
            self.emit(constants, vec![dest], vec![source]);
            return Ok(());
        }
        if ["shared", "shared::cta", "shared::cluster"]
            .iter()
            .any(|word| words.has(word))
        {
            return self.is_shared(source, dest, words.has("shared::cluster"));
        }
        if let Some(base) = self.window(words)? {
            let base = self.constant(base, 8);
            self.simple(&parts::in_window(), dest, vec![source, base]);
            return Ok(());
        }
        // Global memory is what is in none of the windows and is no constant, though those lie in it.
        let (not, or) = (self.predicate_op("not")?, self.predicate_op("or")?);
        let mut any = self.temp(1);
        self.func.asks_constants = true;
        self.emit(constants, vec![any], vec![source]);
        for base in [SHARED_BASE, LOCAL_BASE, PARAM_BASE] {
            let base = self.constant(base, 8);
            let inside = self.compute(&parts::in_window(), vec![source, base]);
            any = self.compute(&or, vec![any, inside]);
        }
        self.simple(&not, dest, vec![any]);
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
    fn carry_chain(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        let width = ty.size() as u8;
        if !matches!(width, 4 | 8) || words.has("sat") {
            return Err(self.unbuilt());
        }
        let wide = width == 8;
        let (base, subtract, takes) = match words.opcode {
            "add" => ("add", false, false),
            "addc" => ("add", false, true),
            "sub" => ("sub", true, false),
            "subc" => ("sub", true, true),
            "mad" => ("mad", false, false),
            _ => ("mad", false, true),
        };
        let (d, a, b) = if base == "mad" {
            let [d, a, b, c] = self.operands(at)?;
            let half = if words.has("hi") { "hi" } else { "lo" };
            let product = Words {
                opcode: "mul",
                flags: &[half],
                types: words.types,
            };
            let product = table::find(&product).ok_or_else(|| self.unbuilt())?;
            let (a, b, c) = (
                self.read(a, width)?,
                self.read(b, width)?,
                self.read(c, width)?,
            );
            (d, self.compute(&product, vec![a, b]), c)
        } else {
            let [d, a, b] = self.operands(at)?;
            (d, self.read(a, width)?, self.read(b, width)?)
        };
        let flag = self.carry();
        let carry_in = if takes {
            flag
        } else {
            self.constant(u64::from(subtract), 1)
        };
        let sum = self.compute(&parts::with_carry(wide, subtract), vec![a, b, carry_in]);
        if words.has("cc") {
            self.simple(&parts::carry(wide, subtract), flag, vec![a, b, carry_in]);
        }
        let dest = self.dest(d, width)?;
        let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, dest, vec![sum]);
        Ok(())
    }

    fn bfi(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, a, b, start, len] = self.operands(at)?;
        let &[ty @ (Type::B32 | Type::B64)] = words.types else {
            return Err(self.unbuilt());
        };
        let width = ty.size() as u8;
        let (a, b) = (self.read(a, width)?, self.read(b, width)?);
        let (start, len) = (self.read(start, 4)?, self.read(len, 4)?);
        let field = self.compute(&parts::field(), vec![start, len]);
        let dest = self.dest(d, width)?;
        self.simple(&parts::insert(width == 8), dest, vec![a, b, field]);
        Ok(())
    }

    fn lop3(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let (d, a, b, c, bits, predicates) = match at.operands.as_slice() {
            [d, a, b, c, Operand::Integer(bits)] => (d, a, b, c, bits, None),
            // With a predicate: whether any bit is set, together with another by the named operation.
            [Operand::Pair(d, p), a, b, c, Operand::Integer(bits), q] => {
                (&**d, a, b, c, bits, Some((&**p, q)))
            }
            _ => return Err(self.unbuilt()),
        };
        let mut simple: Simple = table::find(words).ok_or_else(|| self.unbuilt())?;
        simple.imm = bits.cast_unsigned() & 0xff;
        let sources = vec![self.read(a, 4)?, self.read(b, 4)?, self.read(c, 4)?];
        let Some((p, q)) = predicates else {
            let dest = self.dest(d, 4)?;
            self.simple(&simple, dest, sources);
            return Ok(());
        };
        let combine = match words.flags {
            ["and"] => "and",
            ["or"] => "or",
            _ => return Err(self.unbuilt()),
        };
        let combine = self.predicate_op(combine)?;
        let q = self.read(q, 1)?;
        let value = self.compute(&simple, sources);
        let zero = self.constant(0, 4);
        let any = compare::compare("ne", Type::U32).ok_or_else(|| self.unbuilt())?;
        let any = self.compute(&any, vec![value, zero]);
        let any = self.compute(&combine, vec![any, q]);
        self.write32(d, value)?;
        let dest = self.dest(p, 1)?;
        let copy = logic::mov(1).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, dest, vec![any]);
        Ok(())
    }

    /// A policy of the cache: there is none, so any number is one.
    fn cache_policy(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let Some(d) = at.operands.first() else {
            return Err(self.fail("a wrong number of operands"));
        };
        let zero = self.constant(0, 8);
        let dest = self.dest(d, 8)?;
        let copy = logic::mov(8).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, dest, vec![zero]);
        Ok(())
    }
}
