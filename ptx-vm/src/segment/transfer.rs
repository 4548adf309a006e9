//! Loads and stores of a segment, for AVX-512.
//!
//! The addresses of a strip's lanes are looked at together. All alike: a load reads one element for all lanes. Each lane's
//! element after that of the lane before: a row, moved as vectors. Else a gather or a scatter. Before the first byte is
//! touched the addresses of all lanes that run have been compared with what may be reached, and their alignment seen; where
//! one is not inside, or not aligned, the executor is asked, which goes lane by lane and says what is wrong
//! ([`super::ask`]).
//!
//! Called by `allocate` for its steps. Must not know spaces: it sees limits.

use super::allocate::Allocator;
use super::ask::TransferFacts;
use super::branch::{Label, When};
use super::encode::{self, Base, Opcode, Rm, opcode};
use super::general::{Place, RAX, op, when};
use super::question::Question;
use super::rows::KnownRow;
use super::step::SegmentStep;
use super::tag::Tag;
use crate::reach::Reach;
use crate::spaces::unpack;

/// The masks of a strip's running lanes: of all 16 or the lower 8, and of the upper 8.
pub(super) const LOWER: u8 = 1;
pub(super) const UPPER: u8 = 2;

/// A transfer while its code is made.
pub(super) struct Transfer {
    pub(super) stores: bool,
    /// Bytes of an element, and of all elements of a lane.
    pub(super) element: usize,
    size: usize,
    /// Vectors of the elements: results, or what is stored.
    pub(super) elements: Vec<u8>,
    /// Two vectors that nothing needs.
    pub(super) spare: [u8; 2],
    /// Of shared memory.
    pub(super) shared: bool,
    /// There may be rows.
    rows: bool,
    /// Lane 0 may be one that does not run.
    pub(super) masked: bool,
    /// See [`crate::isa::Target::gathers`].
    gathers: bool,
    /// What lanes have in common is not looked for: they are in a loop that they leave one by one.
    apart: bool,
}

/// Where a strip's addresses are: vectors, and for global memory where its range stands.
pub(super) enum Places {
    /// 16 addresses of 32 bits.
    Shared { lanes: u8 },
    /// Two times 8 of 64 bits.
    Global {
        lanes: [u8; 2],
        range: (usize, usize),
    },
}

impl Allocator<'_> {
    /// A load, whose results are in registers then, or a store.
    pub(super) fn transfer(&mut self, step: &SegmentStep) {
        self.pinned.clear();
        let (imm, element) = step.access;
        let access = unpack(imm);
        let (count, vectors) = (access.count, (element / 4).max(1));
        let wide = matches!(step.tag, Tag::LoadGlobal | Tag::StoreGlobal);
        let stores = matches!(step.tag, Tag::StoreGlobal | Tag::StoreShared);
        let indexed = self.indexed.get(&self.now).copied().flatten();
        let known = self.rows.get(&self.now).copied();
        let looks = indexed.filter(|_| known.is_none());
        let index = looks.map(|indexed| self.load((indexed.index(), 0)));
        let places = match known {
            Some(KnownRow::Global { .. }) => 0,
            _ => 1 + u8::from(wide),
        };
        let addresses: Vec<u8> = (0..places)
            .map(|part| match (indexed, known) {
                (None, None) => self.load((step.s[0], part)),
                _ => self.free(),
            })
            .collect();
        let mut elements = Vec::new();
        for index in 0..count {
            for part in 0..vectors {
                elements.push(if stores {
                    self.load((step.s[1 + index], part))
                } else {
                    self.free()
                });
            }
        }
        let spare = [self.free(), self.free()];
        let is_held = |register: &u8| self.registers[usize::from(*register)].is_some();
        let held = (0..self.registers.len() as u8).filter(is_held).collect();
        let element_bytes = usize::from(element);
        let transfer = Transfer {
            stores,
            element: element_bytes,
            size: element_bytes * count,
            elements: elements.clone(),
            spare,
            shared: !wide,
            rows: count == 1,
            masked: self.masked,
            gathers: self.gathers,
            apart: self.merges && self.gathers,
        };
        let (mut asked, mut done) = (Label::default(), Label::default());
        let range = Reach::range(self.transfers);
        if let Some(KnownRow::Global {
            thread,
            log,
            kept,
            start,
            ahead,
        }) = known
        {
            self.known_row(&transfer, (thread, log), (kept, start), ahead);
            self.transfers += 1;
            self.define_elements(step, &elements);
            return;
        }
        let mut apart = Label::default();
        if let Some(KnownRow::Shared {
            facts,
            thread,
            block,
            offset,
            apart: kept,
        }) = known
        {
            let numbers = (thread, block, offset);
            let ways = (&mut done, &mut apart);
            self.known_shared(&transfer, addresses[0], (facts, numbers, kept), ways);
        }
        if let Some(first) = self.first_apart() {
            // The group's first load was made without a look at how its addresses lie.
            self.out.rax_from(first);
            self.out.general(true, op::TEST, RAX, Place::Register(RAX));
            self.out.jump_if(when::NOT_ZERO, &mut apart);
        }
        if let Some((number, is_first)) = self.group() {
            if is_first {
                let places = if wide {
                    let lanes = [addresses[0], addresses[1]];
                    Places::Global { lanes, range }
                } else {
                    let lanes = addresses[0];
                    Places::Shared { lanes }
                };
                self.look(number, &transfer, &places);
            }
            self.load_of_group(number, &transfer, access.offset, &mut done);
        }
        self.out.bind(apart);
        if self.once {
            self.one(
                &transfer,
                &addresses,
                access.offset as i32,
                range,
                &mut asked,
            );
        } else if let (Some(indexed), Some(index)) = (indexed, index) {
            let lanes = (index, [addresses[0], addresses[1]]);
            let offset = access.offset as i32;
            self.elements(&transfer, indexed, lanes, offset, range, &mut asked);
        } else if wide {
            let t = [addresses[0], addresses[1]];
            self.global(&transfer, t, access.offset as i32, range, &mut asked);
        } else {
            self.shared(&transfer, addresses[0], access.offset as u32, &mut asked);
        }
        self.out.bind(done);
        self.questions.push(Question {
            asked,
            back: self.out.code.len(),
            addresses,
            held,
            elements: elements.clone(),
            access: imm,
            facts: TransferFacts {
                element,
                stores,
                sums: false,
                number: (self.transfers % 256) as u8,
                line: step.line,
            },
        });
        self.transfers += 1;
        self.define_elements(step, &elements);
    }

    /// The vectors of a load's elements are its results.
    fn define_elements(&mut self, step: &SegmentStep, elements: &[u8]) {
        let vectors = (step.access.1 / 4).max(1);
        let mut elements = elements.iter();
        for &reg in &step.d {
            for (part, &register) in (0..vectors).zip(elements.by_ref()) {
                self.define(register, (reg, part));
            }
        }
    }

    /// With shared memory: `t` holds 16 addresses of 32 bits.
    fn shared(&mut self, transfer: &Transfer, t: u8, offset: u32, asked: &mut Label) {
        let out = &mut self.out;
        let [u, sum] = transfer.spare;
        let (element, size) = (transfer.element, transfer.size);
        let (mut done, mut differ, mut scattered) =
            (Label::default(), Label::default(), Label::default());
        let t = if offset == 0 {
            t
        } else {
            out.vector(encode::ADD_32, sum, t, Rm::Constant(offset), 0);
            sum
        };
        let low = (size - 1) as u8;
        if !transfer.apart {
            transfer.first(out, &[t], u);
        }
        let differs = |out: &mut encode::Assembler| {
            out.vector_imm(COMPARE_32, 3, t, Rm::Register(u), LOWER, Some(NOT_EQUAL));
            out.test_mask();
        };
        if !transfer.stores && !transfer.apart {
            differs(out);
            out.jump(When::NotZero, &mut differ);
            out.compare_eax(Reach::limit(size));
            out.jump(When::NotBelow, asked);
            out.test_al(low);
            out.jump(When::NotZero, asked);
            out.rax_plus(Reach::SHARED);
            transfer.one_for_all(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(differ);
        }
        if transfer.rows() {
            transfer.row_start(out, false, u, size);
            out.vector(encode::ADD_32, u, u, Rm::Row(false, element as u8, 0), 0);
            differs(out);
            out.jump(When::NotZero, &mut scattered);
            out.compare_eax(Reach::limit(16 * size));
            out.jump(When::NotBelow, &mut scattered);
            out.test_al(low);
            out.jump(When::NotZero, asked);
            out.rax_plus(Reach::SHARED);
            transfer.row(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(scattered);
        }
        let limit = Rm::Broadcast(Base::R10, Reach::limit(size) as i32);
        out.vector_imm(COMPARE_32, 3, t, limit, LOWER, Some(NOT_BELOW));
        out.vector(TEST_32, 4, t, Rm::Constant(u32::from(low)), LOWER);
        out.test_masks(false);
        out.jump(When::NotZero, asked);
        if transfer.near() {
            transfer.load_near(out, t, &mut done);
        }
        out.rax_from(Reach::SHARED);
        if element == 8 {
            // The upper lanes' addresses, for the second vector of each element.
            out.vector_imm(UPPER_HALF, t, 0, Rm::Register(u), 0, Some(1));
        }
        if element < 4 && transfer.stores {
            out.jump(When::Always, asked);
            out.bind(done);
            return;
        }
        if transfer.one_by_one() {
            let mut some = Label::default();
            let mut from = t;
            if element == 4 {
                // The vector unit's own gather is slower, unless few lanes run.
                out.test_running();
                out.jump(When::NotBelow, &mut some);
            } else {
                // Lanes that do not run read what the first one reads that does.
                out.vector(FIRST_32, t, 0, Rm::Register(u), LOWER);
                out.vector(BROADCAST_32, u, 0, Rm::Register(u), 0);
                out.vector(encode::BLEND, u, 0, Rm::Register(t), LOWER);
                from = u;
            }
            out.store(from, Base::R10, Reach::KEPT as i32, false, 0);
            for (index, &vector) in transfer.elements.iter().enumerate() {
                out.collect(vector, u, element, |out, lane| {
                    out.kept_address(false, Reach::KEPT + 4 * usize::from(lane));
                    Rm::Sum(0, 4 * index as i32)
                });
            }
            if element < 4 {
                out.bind(done);
                return;
            }
            out.jump(When::Always, &mut done);
            out.bind(some);
        }
        for (index, vectors) in transfer.elements.chunks(transfer.vectors()).enumerate() {
            let distance = (element * index) as i32;
            for (&vector, (lanes, mask)) in vectors.iter().zip([(t, LOWER), (u, UPPER)]) {
                out.copy_mask(mask);
                let op = match (transfer.stores, element) {
                    (false, 8) => GATHER_64_BY_32,
                    (false, _) => GATHER_32_BY_32,
                    (true, 4) => SCATTER_32_BY_32,
                    (true, _) => SCATTER_64_BY_32,
                };
                out.indexed(op, vector, (lanes, 0), distance);
            }
        }
        transfer.narrow(out);
        out.bind(done);
    }

    /// With global memory: `t` holds two times 8 addresses of 64 bits.
    pub(super) fn global(
        &mut self,
        transfer: &Transfer,
        t: [u8; 2],
        offset: i32,
        (first, limit): (usize, usize),
        asked: &mut Label,
    ) {
        let out = &mut self.out;
        let [u, v] = transfer.spare;
        let (element, size) = (transfer.element, transfer.size);
        let (mut done, mut differ, mut scattered) =
            (Label::default(), Label::default(), Label::default());
        let low = (size - 1) as u8;
        if !transfer.apart {
            transfer.first(out, &t, u);
            out.advance(offset);
        }
        if !transfer.stores && !transfer.apart {
            let other = Rm::Register(u);
            out.vector_imm(COMPARE_64, 3, t[0], other, LOWER, Some(NOT_EQUAL));
            out.vector_imm(COMPARE_64, 4, t[1], other, UPPER, Some(NOT_EQUAL));
            out.test_masks(true);
            out.jump(When::NotZero, &mut differ);
            out.compare_distance(first, limit);
            out.jump(When::NotBelow, asked);
            out.test_al(low);
            out.jump(When::NotZero, asked);
            transfer.one_for_all(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(differ);
        }
        if transfer.rows() {
            transfer.row_start(out, true, u, size);
            for (part, mask) in [(0, LOWER), (1, UPPER)] {
                let row = Rm::Row(true, element as u8, (8 * element * part) as u16);
                let into = 2 + mask;
                out.vector(encode::ADD_64, v, u, row, 0);
                let other = Rm::Register(v);
                out.vector_imm(COMPARE_64, into, t[part], other, mask, Some(NOT_EQUAL));
            }
            out.test_masks(true);
            out.jump(When::NotZero, &mut scattered);
            out.compare_distance(first, limit);
            out.jump(When::NotBelow, &mut scattered);
            out.test_al(low);
            out.jump(When::NotZero, asked);
            transfer.row(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(scattered);
        }
        for (part, distance) in [(0, u), (1, v)] {
            let from = Rm::Broadcast(Base::R10, first as i32);
            out.vector(encode::SUB_64, distance, t[part], from, 0);
            if offset != 0 {
                let offset = Rm::Constant64(i64::from(offset).cast_unsigned());
                out.vector(encode::ADD_64, distance, distance, offset, 0);
            }
        }
        let limit = Rm::Broadcast(Base::R10, limit as i32);
        let bits = Rm::Constant64(low.into());
        out.vector_imm(COMPARE_64, 3, u, limit, LOWER, Some(NOT_BELOW));
        out.vector_imm(COMPARE_64, 4, v, limit, UPPER, Some(NOT_BELOW));
        out.test_masks(true);
        out.jump(When::NotZero, asked);
        // What may be reached begins at a multiple of any access.
        out.vector(TEST_64, 3, u, bits, LOWER);
        out.vector(TEST_64, 4, v, bits, UPPER);
        out.test_masks(true);
        out.jump(When::NotZero, asked);
        if element < 4 && transfer.stores {
            out.jump(When::Always, asked);
            out.bind(done);
            return;
        }
        if transfer.one_by_one() {
            let mut some = Label::default();
            let mut from = t;
            if element == 4 {
                out.test_running();
                out.jump(When::NotBelow, &mut some);
            } else {
                out.vector(FIRST_64, t[1], 0, Rm::Register(u), UPPER);
                out.vector(FIRST_64, t[0], 0, Rm::Register(u), LOWER);
                out.vector(BROADCAST_64, u, 0, Rm::Register(u), 0);
                out.copy(v, u);
                out.vector(BLEND_64, u, 0, Rm::Register(t[0]), LOWER);
                out.vector(BLEND_64, v, 0, Rm::Register(t[1]), UPPER);
                from = [u, v];
            }
            out.store(from[0], Base::R10, Reach::KEPT as i32, false, 0);
            out.store(from[1], Base::R10, Reach::KEPT as i32 + 64, false, 0);
            for (index, &vector) in transfer.elements.iter().enumerate() {
                out.collect(vector, u, element, |out, lane| {
                    out.kept_address(true, Reach::KEPT + 8 * usize::from(lane));
                    Rm::Memory(Base::R11, offset + 4 * index as i32)
                });
            }
            if element < 4 {
                out.bind(done);
                return;
            }
            out.jump(When::Always, &mut done);
            out.bind(some);
        }
        out.clear_rax();
        for (index, vectors) in transfer.elements.chunks(transfer.vectors()).enumerate() {
            let distance = offset + (element * index) as i32;
            let half_way = |out: &mut encode::Assembler, op: Opcode, vector: u8, part: usize| {
                out.copy_mask([LOWER, UPPER][part]);
                out.indexed(op, vector, (t[part], 0), distance);
            };
            match (transfer.stores, element) {
                (false, 1..=4) => {
                    half_way(out, GATHER_32_BY_64, vectors[0], 0);
                    half_way(out, GATHER_32_BY_64, u, 1);
                    let upper = Rm::Register(u);
                    out.vector_imm(
                        encode::INSERT_UPPER,
                        vectors[0],
                        vectors[0],
                        upper,
                        0,
                        Some(1),
                    );
                }
                (true, 4) => {
                    half_way(out, SCATTER_32_BY_64, vectors[0], 0);
                    out.vector_imm(UPPER_HALF, vectors[0], 0, Rm::Register(u), 0, Some(1));
                    half_way(out, SCATTER_32_BY_64, u, 1);
                }
                (false, _) => {
                    half_way(out, GATHER_64_BY_64, vectors[0], 0);
                    half_way(out, GATHER_64_BY_64, vectors[1], 1);
                }
                (true, _) => {
                    half_way(out, SCATTER_64_BY_64, vectors[0], 0);
                    half_way(out, SCATTER_64_BY_64, vectors[1], 1);
                }
            }
        }
        transfer.narrow(out);
        out.bind(done);
    }
}

impl Transfer {
    /// Bytes of all elements of a lane.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// See the field.
    pub(super) fn stores(&self) -> bool {
        self.stores
    }

    /// Elements whose indices stand in a vector, from rax on; all are inside.
    pub(super) fn move_apart(&self, out: &mut encode::Assembler, lanes: u8, log: u8) {
        let (vector, [_, part]) = (self.elements[0], self.spare);
        let (mut some, mut done) = (Label::default(), Label::default());
        if self.one_by_one() {
            // As in shared memory: one by one where all lanes run.
            out.test_running();
            out.jump(When::NotBelow, &mut some);
            out.store(lanes, Base::R10, Reach::KEPT as i32, false, 0);
            out.collect(vector, part, 4, |out, lane| {
                out.kept_address(false, Reach::KEPT + 4 * usize::from(lane));
                Rm::Sum(log, 0)
            });
            out.jump(When::Always, &mut done);
            out.bind(some);
        }
        out.copy_mask(LOWER);
        let op = if self.stores {
            SCATTER_32_BY_32
        } else {
            GATHER_32_BY_32
        };
        out.indexed(op, vector, (lanes, log), 0);
        self.narrow(out);
        out.bind(done);
    }

    /// Whether rows are looked for.
    pub(super) fn rows(&self) -> bool {
        self.rows && !self.apart
    }

    /// See the field.
    pub(super) fn apart(&self) -> bool {
        self.apart
    }

    /// Whether elements whose places are all inside need but be gathered or scattered: aligned ones, if each index is a multiple of
    /// their size from the base on.
    pub(super) fn by_index(&self, log: u8) -> bool {
        let narrow = self.element < 4 && self.size == self.element && self.gathers && !self.stores;
        (self.size == 4 || narrow) && 1 << log >= self.size
    }

    /// Whether what is apart is loaded one by one, of words where all lanes run.
    fn one_by_one(&self) -> bool {
        !self.stores && self.element <= 4 && !self.gathers
    }

    /// Vectors of an element.
    fn vectors(&self) -> usize {
        (self.element / 4).max(1)
    }

    /// After a gather of words that begin with elements of one or two bytes: those alone.
    fn narrow(&self, out: &mut encode::Assembler) {
        if self.element < 4 {
            let (vector, ones) = (self.elements[0], (1 << (8 * self.element)) - 1);
            out.vector(encode::AND_32, vector, vector, Rm::Constant(ones), 0);
        }
    }
}

impl encode::Assembler {
    /// A mask of those of the lanes in `mask` in which two vectors differ.
    pub(super) fn differ(&mut self, wide: bool, into: u8, lanes: u8, other: u8, mask: u8) {
        let op = if wide { COMPARE_64 } else { COMPARE_32 };
        self.vector_imm(op, into, lanes, Rm::Register(other), mask, Some(NOT_EQUAL));
    }
}

/// Predicates of comparisons.
const NOT_EQUAL: u8 = 4;
pub(super) const NOT_BELOW: u8 = 5;

/// vpbroadcastd, vpbroadcastq
pub(super) const BROADCAST_32: Opcode = opcode(2, 1, false, 0x58);
pub(super) const BROADCAST_64: Opcode = opcode(2, 1, true, 0x59);
/// vpbroadcastd from eax, vpbroadcastq from rax
pub(super) const BROADCAST_EAX: Opcode = opcode(2, 1, false, 0x7c);
pub(super) const BROADCAST_RAX: Opcode = opcode(2, 1, true, 0x7c);
/// vpcompressd, vpcompressq, whose destination is the last operand: the lanes of a mask, from the lowest lane on
pub(super) const FIRST_32: Opcode = opcode(2, 1, false, 0x8b);
pub(super) const FIRST_64: Opcode = opcode(2, 1, true, 0x8b);
/// vmovapd with a mask
const BLEND_64: Opcode = opcode(1, 1, true, 0x28);
/// vpcmpud, vpcmpuq to a mask
pub(super) const COMPARE_32: Opcode = opcode(3, 1, false, 0x1e);
const COMPARE_64: Opcode = opcode(3, 1, true, 0x1e);
/// vptestmd, vptestmq to a mask
pub(super) const TEST_32: Opcode = opcode(2, 1, false, 0x27);
const TEST_64: Opcode = opcode(2, 1, true, 0x27);
/// vpgatherdd, vpgatherdq, vpgatherqd, vpgatherqq
pub(super) const GATHER_32_BY_32: Opcode = opcode(2, 1, false, 0x90);
const GATHER_64_BY_32: Opcode = opcode(2, 1, true, 0x90);
const GATHER_32_BY_64: Opcode = opcode(2, 1, false, 0x91);
const GATHER_64_BY_64: Opcode = opcode(2, 1, true, 0x91);
/// vpscatterdd, vpscatterdq, vpscatterqd, vpscatterqq
const SCATTER_32_BY_32: Opcode = opcode(2, 1, false, 0xa0);
const SCATTER_64_BY_32: Opcode = opcode(2, 1, true, 0xa0);
const SCATTER_32_BY_64: Opcode = opcode(2, 1, false, 0xa1);
const SCATTER_64_BY_64: Opcode = opcode(2, 1, true, 0xa1);
/// vextracti64x4, whose destination is the last operand
pub(super) const UPPER_HALF: Opcode = opcode(3, 1, true, 0x3b);
