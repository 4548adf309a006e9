//! Textures and surfaces: `tex`, `tld4`, `txq`, `suld`, `sust`, `suq`.
//!
//! Called by `lower::arith`. Must not know textures' contents or modes: the object is looked up when the operation
//! runs.

use ptx::ast::{Base, Instruction, Operand, Type};

use super::body::{Body, Lowered};
use crate::ir::{InstKind, Reg};
use crate::machine::OpFn;
use crate::ops::simple::Words;
use crate::ops::texture::{self, Beyond, Question, Read, Touch};
use crate::ops::{logic, parts};

/// What an instruction's geometry is.
#[derive(Clone, Copy)]
struct Geometry {
    /// Coordinates, without the layer.
    count: usize,
    layered: bool,
    cube: bool,
}

impl Geometry {
    fn named(words: &Words<'_>) -> Option<Self> {
        let of = |count, layered, cube| Self {
            count,
            layered,
            cube,
        };
        words.flags.iter().find_map(|word| {
            Some(match *word {
                "1d" => of(1, false, false),
                "2d" => of(2, false, false),
                "3d" => of(3, false, false),
                "a1d" => of(1, true, false),
                "a2d" => of(2, true, false),
                "cube" => of(3, false, true),
                "acube" => of(3, true, true),
                _ => return None,
            })
        })
    }
}

const GEOMETRIES: [&str; 7] = ["1d", "2d", "3d", "a1d", "a2d", "cube", "acube"];

impl<'a> Body<'a> {
    pub(super) fn texture(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        match at.opcode {
            "tex" => self.tex(at, words),
            "tld4" => self.gather(at, words),
            "txq" | "suq" => self.question(at, words),
            "suld" => self.surface_load(at, words),
            "sust" => self.surface_store(at, words),
            _ => Err(self.unbuilt()),
        }
    }

    /// The flags must be a geometry and these.
    fn known(&self, words: &Words<'_>, known: &[&str]) -> Lowered<Geometry> {
        let all = words
            .flags
            .iter()
            .all(|word| GEOMETRIES.contains(word) || known.contains(word));
        Geometry::named(words)
            .filter(|_| all)
            .ok_or_else(|| self.unbuilt())
    }

    /// The object's number and the coordinates of `[object, {…}]`.
    fn object<'o>(&mut self, operand: &'o Operand<'a>) -> Lowered<(Reg, &'o [Operand<'a>])> {
        let Operand::Indexed(inside) = operand else {
            return Err(self.fail("an operand without coordinates"));
        };
        // With a sampler of its own there would be three: that mode is not built.
        let [object, Operand::Vector(at)] = inside.as_slice() else {
            return Err(self.unbuilt());
        };
        Ok((self.number(object)?, at))
    }

    fn number(&mut self, operand: &Operand<'a>) -> Lowered<Reg> {
        match operand {
            Operand::Address(address) if address.offset == 0 => match address.base {
                Base::Register(register) => self.register(register, 8),
                _ => Err(self.unbuilt()),
            },
            _ => Err(self.unbuilt()),
        }
    }

    /// The coordinates as three 32-bit registers, and the layer.
    fn place(&mut self, at: &[Operand<'a>], geometry: Geometry) -> Lowered<([Reg; 3], Reg)> {
        let zero = self.constant(0, 4);
        let (layer, at) = match at {
            [layer, at @ ..] if geometry.layered => (self.read(layer, 4)?, at),
            at => (zero, at),
        };
        if at.len() < geometry.count {
            return Err(self.fail("too few coordinates"));
        }
        let mut place = [zero; 3];
        for (place, at) in place.iter_mut().zip(&at[..geometry.count]) {
            *place = self.read(at, 4)?;
        }
        Ok((place, layer))
    }

    fn join(&mut self, low: Reg, high: Reg) -> Reg {
        self.compute(&parts::pack64(), vec![low, high])
    }

    /// Emits an operation that writes four 32-bit registers to what an operand names.
    fn four(&mut self, d: &Operand<'a>, run: OpFn, imm: u64, sources: Vec<Reg>) -> Lowered {
        let (elements, resident) = match d {
            Operand::Vector(elements) => (elements.as_slice(), None),
            Operand::Pair(first, second) => match &**first {
                Operand::Vector(elements) => (elements.as_slice(), Some(&**second)),
                _ => return Err(self.unbuilt()),
            },
            _ => return Err(self.unbuilt()),
        };
        if elements.len() != 4 {
            return Err(self.unbuilt());
        }
        let mut results = Vec::new();
        for element in elements {
            results.push(self.dest(element, 4)?);
        }
        self.emit(InstKind::Texture { run, imm }, results.clone(), sources);
        for (element, result) in elements.iter().zip(results) {
            self.finish(element, result, false)?;
        }
        if let Some(resident) = resident {
            // There are no sparse arrays: every texel is there.
            let dest = self.dest(resident, 1)?;
            let yes = self.constant(1, 1);
            let copy = logic::mov(1).ok_or_else(|| self.unbuilt())?;
            self.simple(&copy, dest, vec![yes]);
        }
        Ok(())
    }

    fn tex(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let geometry = self.known(words, &["v4", "level", "grad", "base"])?;
        let &[result, coordinate] = words.types else {
            return Err(self.unbuilt());
        };
        let whole = match coordinate {
            Type::F32 => false,
            Type::S32 => true,
            _ => return Err(self.unbuilt()),
        };
        if !words.has("v4") || !matches!(result, Type::F32 | Type::U32 | Type::S32) {
            return Err(self.unbuilt());
        }
        let [d, source, rest @ ..] = at.operands.as_slice() else {
            return Err(self.fail("a wrong number of operands"));
        };
        let (object, coordinates) = self.object(source)?;
        let (place, layer) = self.place(coordinates, geometry)?;
        let detail = match rest {
            [] if !words.has("level") && !words.has("grad") => self.constant(0, 4),
            [level] if words.has("level") => {
                let level = self.read(level, 4)?;
                if whole {
                    // A number of a level, not a level of detail.
                    return Err(self.unbuilt());
                }
                level
            }
            [Operand::Vector(dx), Operand::Vector(dy)] if words.has("grad") => {
                self.detail_of(object, dx, dy, geometry.count)?
            }
            // Offsets and depth comparison.
            _ => return Err(self.unbuilt()),
        };
        let more = self.join(layer, detail);
        let imm = Read {
            count: geometry.count as u8,
            layered: geometry.layered,
            cube: geometry.cube,
            whole,
            gather: None,
        }
        .imm();
        let sources = vec![object, place[0], place[1], place[2], more];
        self.four(d, texture::read, imm, sources)
    }

    /// The level of detail that two gradients make.
    fn detail_of(
        &mut self,
        object: Reg,
        dx: &[Operand<'a>],
        dy: &[Operand<'a>],
        count: usize,
    ) -> Lowered<Reg> {
        let zero = self.constant(0, 4);
        let component = |body: &mut Self, list: &[Operand<'a>], index: usize| {
            if index >= count {
                return Ok(zero);
            }
            match list.get(index) {
                Some(operand) => body.read(operand, 4),
                None => Err(body.fail("too few components of a gradient")),
            }
        };
        let mut pairs = Vec::new();
        for list in [dx, dy] {
            let (x, y) = (component(self, list, 0)?, component(self, list, 1)?);
            pairs.push(self.join(x, y));
        }
        let third = (component(self, dx, 2)?, component(self, dy, 2)?);
        pairs.push(self.join(third.0, third.1));
        let d = self.temp(4);
        let kind = InstKind::Texture {
            run: texture::detail,
            imm: count as u64,
        };
        self.emit(kind, vec![d], vec![object, pairs[0], pairs[1], pairs[2]]);
        Ok(d)
    }

    fn gather(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let geometry = self.known(words, &["v4", "r", "g", "b", "a"])?;
        let channel = ["r", "g", "b", "a"].iter().position(|word| words.has(word));
        let ([d, source], Some(channel), 2, [_, Type::F32]) =
            (self.operands(at)?, channel, geometry.count, words.types)
        else {
            return Err(self.unbuilt());
        };
        let (object, coordinates) = self.object(source)?;
        let (place, layer) = self.place(coordinates, geometry)?;
        let zero = self.constant(0, 4);
        let more = self.join(layer, zero);
        let imm = Read {
            count: 2,
            layered: geometry.layered,
            cube: false,
            whole: false,
            gather: Some(channel as u8),
        }
        .imm();
        let sources = vec![object, place[0], place[1], place[2], more];
        self.four(d, texture::read, imm, sources)
    }

    fn question(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let asked: Vec<Question> = words
            .flags
            .iter()
            .filter_map(|word| Question::named(word))
            .collect();
        let known = |word: &&str| *word == "level" || Question::named(word).is_some();
        let (&[question], true) = (asked.as_slice(), words.flags.iter().all(known)) else {
            return Err(self.unbuilt());
        };
        let (d, object, level) = match at.operands.as_slice() {
            [d, object] => (d, object, None),
            [d, object, level] => (d, object, Some(level)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let object = self.number(object)?;
        let level = match level {
            Some(level) => self.read(level, 4)?,
            None => self.constant(0, 4),
        };
        let dest = self.dest(d, 4)?;
        let kind = InstKind::Texture {
            run: texture::query,
            imm: question as u64 | u64::from(at.opcode == "suq") << 8,
        };
        self.emit(kind, vec![dest], vec![object, level]);
        self.finish(d, dest, false)
    }

    /// What a surface instruction's words say.
    fn touch(&self, words: &Words<'_>) -> Lowered<(Geometry, Touch)> {
        let known = [
            "b", "p", "v2", "v4", "trap", "clamp", "zero", "ca", "cg", "cs", "cv", "wb", "wt",
        ];
        let geometry = self.known(words, &known)?;
        let formatted = words.has("p");
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        let bytes = ty.size();
        if ty == Type::Pred || !matches!(bytes, 1 | 2 | 4 | 8) || (formatted && bytes != 4) {
            return Err(self.unbuilt());
        }
        let touch = Touch {
            bytes: bytes as u8,
            elements: if words.has("v4") {
                4
            } else if words.has("v2") {
                2
            } else {
                1
            },
            beyond: if words.has("clamp") {
                Beyond::Clamp
            } else if words.has("zero") {
                Beyond::Zero
            } else {
                Beyond::Trap
            },
            formatted,
            row: geometry.count == 1,
            float: ty == Type::F32,
        };
        if bytes == 8 && touch.elements == 4 {
            return Err(self.unbuilt());
        }
        Ok((geometry, touch))
    }

    fn surface_load(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let (geometry, touch) = self.touch(words)?;
        let [d, source] = self.operands(at)?;
        if touch.formatted || geometry.cube {
            return Err(self.unbuilt());
        }
        let elements = match d {
            Operand::Vector(elements) => elements.as_slice(),
            operand => std::slice::from_ref(operand),
        };
        if elements.len() != usize::from(touch.elements) {
            return Err(self.fail("a vector of a wrong length"));
        }
        let (object, coordinates) = self.object(source)?;
        let (mut place, layer) = self.place(coordinates, geometry)?;
        if geometry.layered {
            place[2] = layer;
        }
        let width = touch.bytes.max(2);
        let mut results = Vec::new();
        for element in elements {
            results.push(self.dest(element, width)?);
        }
        let kind = InstKind::Texture {
            run: texture::load,
            imm: touch.imm(),
        };
        let sources = vec![object, place[0], place[1], place[2]];
        self.emit(kind, results.clone(), sources);
        for (element, result) in elements.iter().zip(results) {
            self.finish(element, result, false)?;
        }
        Ok(())
    }

    fn surface_store(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let (geometry, touch) = self.touch(words)?;
        let [destination, value] = self.operands(at)?;
        if geometry.cube {
            return Err(self.unbuilt());
        }
        let elements = match value {
            Operand::Vector(elements) => elements.as_slice(),
            operand => std::slice::from_ref(operand),
        };
        if elements.len() != usize::from(touch.elements) {
            return Err(self.fail("a vector of a wrong length"));
        }
        let (object, coordinates) = self.object(destination)?;
        let (mut place, layer) = self.place(coordinates, geometry)?;
        if geometry.layered {
            place[2] = layer;
        }
        let yz = self.join(place[1], place[2]);
        let zero = self.constant(0, 8);
        let mut values = [zero; 2];
        if touch.bytes == 8 {
            for (value, element) in values.iter_mut().zip(elements) {
                *value = self.read(element, 8)?;
            }
        } else {
            for (value, pair) in values.iter_mut().zip(elements.chunks(2)) {
                let mut halves = [self.constant(0, 4); 2];
                for (half, element) in halves.iter_mut().zip(pair) {
                    let narrow = self.read(element, touch.bytes.max(2))?;
                    *half = if touch.bytes < 4 {
                        let widen = logic::resize(2, 4, false).ok_or_else(|| self.unbuilt())?;
                        self.compute(&widen, vec![narrow])
                    } else {
                        narrow
                    };
                }
                *value = self.join(halves[0], halves[1]);
            }
        }
        let kind = InstKind::Texture {
            run: texture::store,
            imm: touch.imm(),
        };
        let sources = vec![object, place[0], yz, values[0], values[1]];
        self.emit(kind, Vec::new(), sources);
        Ok(())
    }
}
