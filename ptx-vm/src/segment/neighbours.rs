//! Elements of a run at constant distances from one index, of a loop whose lanes go through it alone: one comparison says that all of
//! them are there, of the furthest index with how many elements the shortest of their arrays has.
//!
//! Where one may be missing, the run's steps come once more with a comparison for each element. Both leave the same registers in the
//! same places.
//!
//! Called by `scalar`. Must not know what an element is for.

use std::collections::{HashMap, HashSet};

use super::elements::Elements;
use super::general::{BOUNDS, FIRST_BOUND, Place, R11, RAX, SHORTEST, op, when};
use super::repeat::LoopRun;
use super::scalar::Scalar;
use super::step::{RegisterSlot, SegmentStep};
use super::tag::Tag;
use crate::ir::Reg;

/// How far from the index an element may be.
const FURTHEST: u64 = 1 << 12;
/// More elements than that are not counted. An index below it is the same number with a sign and without, and the sum of one and a
/// distance does not go over the end of 32 bits.
const MOST: u64 = 1 << 31;

/// What is known of a run.
#[derive(Clone, Debug)]
pub(super) struct Neighbours {
    /// What all indices are sums of: a register that the run has from before.
    pub(super) index: Reg,
    /// The greatest distance.
    pub(super) furthest: i32,
    /// By access, how far its element is from the index.
    pub(super) distances: HashMap<usize, i32>,
    /// The steps that make such sums for nothing else.
    pub(super) sums: HashSet<usize>,
    /// Which of the lists of arrays they are of.
    pub(super) arrays: usize,
}

/// What is known of a loop's runs, by number, and the lists of arrays that they are of.
#[derive(Debug, Default)]
pub(super) struct AllNeighbours {
    runs: HashMap<usize, Neighbours>,
    arrays: Vec<Vec<usize>>,
}

impl AllNeighbours {
    /// Finds them, of the runs from which the elements were found.
    pub(super) fn find<'r>(
        runs: impl Iterator<Item = &'r LoopRun>,
        elements: &Elements,
        slot_of: &dyn Fn(Reg) -> RegisterSlot,
        constant_of: &dyn Fn(Reg) -> Option<u64>,
    ) -> Self {
        let mut found = Self::default();
        for (number, run) in runs.enumerate() {
            found.of_run(number, run, elements, slot_of, constant_of);
        }
        found
    }

    fn of_run(
        &mut self,
        number: usize,
        run: &LoopRun,
        elements: &Elements,
        slot_of: &dyn Fn(Reg) -> RegisterSlot,
        constant_of: &dyn Fn(Reg) -> Option<u64>,
    ) {
        let steps = &run.steps;
        let index_of = |at: usize| elements.of(number, at)?.alone();
        let written = |reg: Reg, end: usize| steps[..end].iter().any(|step| step.d.contains(&reg));
        let mut roots: Vec<Reg> = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let root = index_of(at).or(sum(step, constant_of).map(|(root, _)| root));
            roots.extend(root.filter(|root| !roots.contains(root) && !written(*root, at)));
        }
        let found = roots.into_iter().filter_map(|root| {
            if !slot_of(root).varying || slot_of(root).width != 4 {
                return None;
            }
            let end = steps.iter().position(|step| step.d.contains(&root));
            let end = end.unwrap_or(steps.len());
            let reads = |reg: Reg| {
                let all = steps.iter().enumerate();
                all.filter(move |(_, step)| step.s.contains(&reg))
                    .map(|(at, _)| at)
            };
            let is_element = |reg: Reg, at: usize| {
                index_of(at) == Some(reg) && at < end && !steps[at].s[1..].contains(&reg)
            };
            let mut distances: HashMap<usize, i32> = reads(root)
                .filter(|&at| is_element(root, at))
                .map(|at| (at, 0))
                .collect();
            let mut sums = HashSet::new();
            for (at, step) in steps[..end].iter().enumerate() {
                let Some((_, distance)) = sum(step, constant_of).filter(|(of, _)| *of == root)
                else {
                    continue;
                };
                let reg = step.d[0];
                let once = !written(reg, at) && !steps[at + 1..].iter().any(|s| s.d.contains(&reg));
                let passes = once && !run.live.contains(&reg);
                if passes && reads(reg).all(|access| access > at && is_element(reg, access)) {
                    distances.extend(reads(reg).map(|access| (access, distance)));
                    sums.insert(at);
                }
            }
            Some((root, distances, sums))
        });
        let most = found.max_by_key(|(root, distances, _)| (distances.len(), *root));
        let Some((index, distances, sums)) = most.filter(|(_, distances, _)| distances.len() > 1)
        else {
            return;
        };
        let bounds = distances.keys().filter_map(|&at| elements.of(number, at));
        let mut arrays: Vec<usize> = bounds.map(|element| element.bound).collect();
        arrays.sort_unstable();
        arrays.dedup();
        let known = self.arrays.iter().position(|known| *known == arrays);
        if known.is_none() && self.arrays.len() == SHORTEST {
            return;
        }
        let neighbours = Neighbours {
            index,
            furthest: distances.values().copied().max().unwrap_or(0),
            distances,
            sums,
            arrays: known.unwrap_or(self.arrays.len()),
        };
        if known.is_none() {
            self.arrays.push(arrays);
        }
        self.runs.insert(number, neighbours);
    }

    /// What is known of a run.
    pub(super) fn of(&self, run: usize) -> Option<&Neighbours> {
        self.runs.get(&run)
    }
}

/// Of a sum of a register and a short constant, both.
fn sum(step: &SegmentStep, constant_of: &dyn Fn(Reg) -> Option<u64>) -> Option<(Reg, i32)> {
    let &[first, second] = step.s.as_slice() else {
        return None;
    };
    let orders = [(first, second), (second, first)].into_iter();
    let mut sums = orders.filter_map(|(of, by)| Some((of, constant_of(by)?)));
    let (of, by) = sums.find(|(of, by)| constant_of(*of).is_none() && *by <= FURTHEST)?;
    (step.tag == Tag::Add32).then_some((of, by as i32))
}

impl Scalar<'_> {
    /// Finds of each list of arrays how many elements the shortest has, of those lists that have this array, or of all; rax and r11 are
    /// lost.
    pub(super) fn find_shortest(&mut self, of: Option<usize>) {
        for (at, arrays) in self.neighbours.arrays.iter().enumerate() {
            if of.is_some_and(|of| !arrays.contains(&of)) {
                continue;
            }
            self.out.set_constant(RAX, MOST);
            for &array in arrays {
                let count = Place::Own(FIRST_BOUND + 8 * array as u8);
                self.out.general(true, op::LOAD, R11, count);
                self.out
                    .general(true, op::COMPARE, R11, Place::Register(RAX));
                self.out
                    .move_if(true, when::BELOW, RAX, Place::Register(R11));
            }
            self.out.general(true, op::STORE, RAX, shortest(at));
        }
    }

    /// Looks whether all of a run's elements are there, from the register that has the index: if not, it is not below.
    pub(super) fn test_neighbours(&mut self, neighbours: &Neighbours, index: u8) {
        let furthest = if neighbours.furthest == 0 {
            index
        } else {
            let place = Place::At(index, neighbours.furthest);
            self.out.general(true, op::ADDRESS, RAX, place);
            RAX
        };
        self.compare_with_shortest(neighbours, furthest);
    }

    /// Compares an index with how many elements the shortest array has.
    pub(super) fn compare_with_shortest(&mut self, neighbours: &Neighbours, index: u8) {
        let count = shortest(neighbours.arrays);
        self.out.general(true, op::COMPARE, index, count);
    }
}

/// Where it is kept how many elements the shortest array of a list has.
fn shortest(arrays: usize) -> Place {
    Place::Own(FIRST_BOUND + 8 * (BOUNDS + arrays) as u8)
}
