//! Elements of arrays in a loop whose lanes go through it alone: an access by a base that all lanes share and an index of 32 bits is
//! one comparison, of the index with how many elements there are from the base on in what may be reached.
//!
//! How many there are is found once for all lanes, before the first of them, and anew when the executor was asked about such an access,
//! which may have learned what may be reached. Where nothing makes use of the address itself, it is not made.
//!
//! Called by `scalar` and `lane_steps`. Must not know what an element is for.

use std::collections::HashMap;

use super::branch::{Label, When};
use super::general::{BOUNDS, FIRST_BOUND, Place, R11, RAX, op, when};
use super::homes::Home;
use super::plan::{self, Indexed};
use super::repeat::{Loop, LoopBlock, LoopRun};
use super::scalar::Scalar;
use super::step::{RegisterSlot, SegmentStep};
use super::tag::Tag;
use crate::ir::Reg;
use crate::reach::{LONGEST, Reach};
use crate::spaces::unpack;

/// What is known of an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    index: Reg,
    /// Of the index.
    signed: bool,
    /// The address is made: it is a register that something else reads too.
    has_address: bool,
    /// The number of its array.
    pub(super) bound: usize,
}

impl Element {
    fn new(indexed: &Indexed, bound: usize, has_address: bool) -> Self {
        Self {
            index: indexed.index(),
            signed: indexed.signed,
            has_address,
            bound,
        }
    }

    /// Its index, if that is all that the access needs.
    pub(super) fn alone(&self) -> Option<Reg> {
        (!self.has_address).then_some(self.index)
    }
}

/// Elements of so many bytes, a power of two, at a distance from a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Array {
    base: Reg,
    log: u8,
    offset: i32,
}

/// A loop's accesses by index, and their arrays.
#[derive(Debug, Default)]
pub(super) struct Elements {
    /// By run and step.
    accesses: HashMap<(usize, usize), Element>,
    /// With the number among loads and stores by which what may be reached around it is known.
    arrays: Vec<(Array, usize)>,
    /// The general registers that have bases.
    homes: HashMap<Reg, u8>,
    /// Those that have how many elements there are, by array.
    counts: HashMap<usize, u8>,
}

impl Elements {
    /// Finds them in a loop whose loads and stores are numbered from `first` on. Returns the loop as well, without the steps that make
    /// addresses which nothing needs: such accesses read their index in place of an address.
    pub(super) fn find(
        repeated: &Loop,
        slot_of: &dyn Fn(Reg) -> RegisterSlot,
        constant_of: &dyn Fn(Reg) -> Option<u64>,
        first: usize,
    ) -> (Self, Loop) {
        let mut found = Self::default();
        let (mut runs, mut transfers) = (0, first);
        let blocks = repeated.blocks.iter().map(|block| LoopBlock {
            runs: block
                .runs
                .iter()
                .map(|run| {
                    let place = (runs, transfers);
                    runs += 1;
                    let accesses = run.steps.iter().filter(|step| step.access.1 != 0);
                    transfers += accesses.count();
                    found.of_run(run, slot_of, constant_of, place)
                })
                .collect(),
            end: block.end,
        });
        let blocks = blocks.collect();
        let repeated = Loop {
            blocks,
            read: repeated.read.clone(),
            needed: repeated.needed.clone(),
            inner: repeated.inner.clone(),
        };
        (found, repeated)
    }

    /// The same of a run of steps: its number, and that of its first load or store.
    fn of_run(
        &mut self,
        run: &LoopRun,
        slot_of: &dyn Fn(Reg) -> RegisterSlot,
        constant_of: &dyn Fn(Reg) -> Option<u64>,
        (number, first): (usize, usize),
    ) -> LoopRun {
        let live = |reg: Reg| run.live.contains(&reg);
        let mut indexed = plan::find(&run.steps, &[], slot_of, &live, constant_of);
        let number_of = |at: usize| {
            let before = run.steps[..at].iter();
            first + before.filter(|step| step.access.1 != 0).count()
        };
        let mut arrays = HashMap::new();
        for (at, step) in run.steps.iter().enumerate() {
            let Some(one) = indexed.get(&at).copied().flatten() else {
                continue;
            };
            match self.array(&one, step, number_of(at)) {
                Some(array) => arrays.insert(at, array),
                // Its address is made, and with it those that other accesses have of the same steps.
                None => {
                    indexed.clear();
                    break;
                }
            };
        }
        let mut steps: Vec<SegmentStep> = Vec::new();
        for (at, step) in run.steps.iter().enumerate() {
            let mut step = step.clone();
            match indexed.get(&at) {
                Some(None) => continue,
                Some(Some(one)) => {
                    step.s[0] = one.index();
                    let element = arrays
                        .get(&at)
                        .map(|&bound| Element::new(one, bound, false));
                    self.accesses
                        .extend(element.map(|element| ((number, steps.len()), element)));
                }
                None => {
                    if let Some(one) = made_by_index(&run.steps[..at], &step, slot_of, constant_of)
                        && let Some(bound) = self.array(&one, &step, number_of(at))
                    {
                        // It reads the index too.
                        step.s.push(one.index());
                        let element = Element::new(&one, bound, true);
                        self.accesses.insert((number, steps.len()), element);
                    }
                }
            }
            steps.push(step);
        }
        LoopRun {
            steps,
            live: run.live.clone(),
            guard: run.guard,
        }
    }

    /// Which of the arrays an access is to; a new one if there is room for it.
    fn array(&mut self, indexed: &Indexed, step: &SegmentStep, number: usize) -> Option<usize> {
        let access = unpack(step.access.0);
        let array = Array {
            base: indexed.base,
            log: indexed.log,
            offset: i32::try_from(access.offset).ok()?,
        };
        // Then an element is aligned if the first one is.
        if access.count != 1 || step.access.1 != 1 << indexed.log {
            return None;
        }
        let known = self.arrays.iter().position(|(known, _)| *known == array);
        if known.is_none() && self.arrays.len() < BOUNDS {
            self.arrays.push((array, number));
            return Some(self.arrays.len() - 1);
        }
        known
    }

    /// What is known of an access of a run.
    pub(super) fn of(&self, run: usize, step: usize) -> Option<Element> {
        self.accesses.get(&(run, step)).copied()
    }

    /// The number by which what may be reached around an element's array is known.
    pub(super) fn number(&self, element: Element) -> usize {
        self.arrays[element.bound].1
    }
}

impl Scalar<'_> {
    /// Keeps bases in general registers, of which so many are for them.
    pub(super) fn settle_bases(&mut self, mut most: usize) {
        for at in 0..self.elements.arrays.len() {
            let base = self.elements.arrays[at].0.base;
            if most > 0
                && !self.elements.homes.contains_key(&base)
                && let Some(register) = self.free[0].pop()
            {
                self.elements.homes.insert(base, register);
                most -= 1;
            }
        }
    }

    /// Keeps in general registers how many elements there are, if more than so many are free: first of the arrays that are asked about most.
    pub(super) fn settle_counts(&mut self, least: usize) {
        let mut uses = vec![0; self.elements.arrays.len()];
        for (&(run, step), element) in &self.elements.accesses {
            let known = self.neighbours.of(run);
            if known.is_none_or(|known| !known.distances.contains_key(&step)) {
                uses[element.bound] += 1;
            }
        }
        let mut arrays: Vec<usize> = (0..uses.len()).filter(|&array| uses[array] > 0).collect();
        arrays.sort_by_key(|&array| (usize::MAX - uses[array], array));
        for array in arrays {
            if self.free[0].len() > least
                && let Some(register) = self.free[0].pop()
            {
                self.elements.counts.insert(array, register);
            }
        }
    }

    /// Before the first lane: loads the bases, and finds how many elements there are of each array.
    pub(super) fn begin_elements(&mut self) -> Option<()> {
        let mut homes: Vec<(Reg, u8)> = self
            .elements
            .homes
            .iter()
            .map(|(&reg, &home)| (reg, home))
            .collect();
        homes.sort_unstable();
        for (base, register) in homes {
            self.load_slot(register, base)?;
        }
        for bound in 0..self.elements.arrays.len() {
            self.count(bound)?;
        }
        self.find_shortest(None);
        Some(())
    }

    /// Finds how many elements of an array there are, of which none is outside of what may be reached and none not aligned; rax and r11
    /// are lost.
    fn count(&mut self, bound: usize) -> Option<()> {
        let (array, number) = self.elements.arrays[bound];
        let (first, limit) = Reach::range(number);
        let (mut none, mut done) = (Label::default(), Label::default());
        let base = self.base(array.base)?;
        let out = &mut self.out;
        out.general(true, op::LOAD, RAX, base);
        if array.offset != 0 {
            out.general_constant(true, 0, RAX, array.offset);
        }
        out.general(true, op::LOAD, R11, Place::Register(RAX));
        out.general(true, op::SUB, R11, Place::Reach(first));
        if array.log > 0 {
            out.test_low(RAX, (1 << array.log) - 1);
            out.jump_if(when::NOT_ZERO, &mut none);
        }
        out.general(true, op::LOAD, RAX, Place::Reach(limit));
        out.general(true, op::SUB, RAX, Place::Register(R11));
        out.jump_if(when::NOT_ABOVE, &mut none);
        // In so many bytes the longest access may begin, and as many more are its own: an element fits there as well.
        out.general_constant(true, 0, RAX, LONGEST as i32 - 1);
        out.shift(true, 5, RAX, array.log);
        out.jump(When::Always, &mut done);
        out.bind(none);
        out.set_constant(RAX, 0);
        out.bind(done);
        out.general(true, op::STORE, RAX, kept(bound));
        if let Some(&register) = self.elements.counts.get(&bound) {
            out.general(true, op::LOAD, register, Place::Register(RAX));
        }
        Some(())
    }

    /// Where a base is.
    fn base(&self, base: Reg) -> Option<Place> {
        match self.elements.homes.get(&base) {
            Some(&register) => Some(Place::Register(register)),
            None => self.slot(base),
        }
    }

    /// Where an element is whose index is found to be one; who is not jumps. rax and r11 are lost. `address` has its address, if that is
    /// made.
    pub(super) fn element(
        &mut self,
        element: Element,
        address: Reg,
        asked: &mut Label,
    ) -> Option<Place> {
        let array = self.elements.arrays[element.bound].0;
        let index = match self.home(element.index) {
            Home::General(register) if !element.signed => register,
            home => {
                self.index(R11, element, home)?;
                R11
            }
        };
        let count = match self.elements.counts.get(&element.bound) {
            Some(&register) => Place::Register(register),
            None => kept(element.bound),
        };
        self.out.general(true, op::COMPARE, index, count);
        self.out.jump_if(when::NOT_BELOW, asked);
        if element.has_address
            && let Home::General(address) = self.home(address)
        {
            return Some(Place::At(address, array.offset));
        }
        let base = self.base_register(array.base)?;
        Some(Place::Element {
            base,
            index,
            log: array.log,
            distance: array.offset,
        })
    }

    /// An index in 64 bits, from where it is.
    fn index(&mut self, to: u8, element: Element, home: Home) -> Option<()> {
        self.read_from(to, element.index, home)?;
        if element.signed {
            self.out
                .general(true, op::LOAD_SIGNED_32, to, Place::Register(to));
        }
        Some(())
    }

    /// rax = the address of an element, without its offset, whose index is there
    pub(super) fn element_address(&mut self, element: Element, home: Home) -> Option<()> {
        let array = self.elements.arrays[element.bound].0;
        self.index(RAX, element, home)?;
        self.out.shift(true, 4, RAX, array.log);
        let base = self.base(array.base)?;
        self.out.general(true, op::ADD, RAX, base);
        Some(())
    }

    /// After the executor was asked about an element.
    pub(super) fn count_again(&mut self, element: Element) -> Option<()> {
        self.count(element.bound)?;
        self.find_shortest(Some(element.bound));
        Some(())
    }

    /// Where an element is that is there, so far from the one whose index a register has. rax may be lost.
    pub(super) fn neighbour(&mut self, element: Element, index: u8, further: i32) -> Option<Place> {
        let array = self.elements.arrays[element.bound].0;
        let base = self.base_register(array.base)?;
        Some(Place::Element {
            base,
            index,
            log: array.log,
            distance: array.offset.checked_add(further << array.log)?,
        })
    }

    /// A register that has a base: its own, or rax.
    fn base_register(&mut self, base: Reg) -> Option<u8> {
        Some(match self.base(base)? {
            Place::Register(register) => register,
            place => {
                self.out.general(true, op::LOAD, RAX, place);
                RAX
            }
        })
    }

    /// Where an element's index is.
    pub(super) fn index_home(&self, element: Element) -> Home {
        self.home(element.index)
    }
}

/// The index by which a load's address was made in steps before it, if the index is still what it was then.
fn made_by_index(
    before: &[SegmentStep],
    load: &SegmentStep,
    slot_of: &dyn Fn(Reg) -> RegisterSlot,
    constant_of: &dyn Fn(Reg) -> Option<u64>,
) -> Option<Indexed> {
    if load.tag != Tag::LoadGlobal {
        return None;
    }
    let writer =
        |reg: Reg, end: usize| before[..end].iter().rposition(|step| step.d.contains(&reg));
    let add = writer(load.s[0], before.len())?;
    let &[one, other] = before[add].s.as_slice() else {
        return None;
    };
    if before[add].tag != Tag::Add64 {
        return None;
    }
    let mut sums = [(one, other), (other, one)].into_iter();
    let (base, product) = sums.find(|(base, _)| !slot_of(*base).varying)?;
    let made = writer(product, add)?;
    let indexed = Indexed::of_product(&before[made], base, constant_of)?;
    let slot = slot_of(indexed.index());
    let stays = writer(indexed.index(), before.len()).is_none_or(|write| write < made);
    (stays && slot.varying && slot.width == 4).then_some(indexed)
}

/// Where it is kept how many elements an array has.
fn kept(bound: usize) -> Place {
    Place::Own(FIRST_BOUND + 8 * bound as u8)
}
