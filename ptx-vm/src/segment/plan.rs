//! What a segment's accesses share, found before its code is made: loads from one address register, and elements of arrays.
//!
//! Called by `allocate`. Must not know instructions of a processor: those are made by `group` and `indexed`.

use std::collections::HashMap;

use super::step::{RegisterSlot, SegmentStep};
use super::tag::Tag;
use crate::ir::Reg;
use crate::reach::GROUPS;
use crate::spaces::unpack;

/// The furthest that a group reaches.
const FURTHEST: i64 = 1 << 20;

/// A group of loads.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Steps of the segment, ascending.
    pub(super) members: Vec<usize>,
    /// The least distance from the address register, and how far the greatest is from that.
    pub(super) least: i64,
    pub(super) span: i64,
}

impl Group {
    /// Whether a step is one of its loads.
    pub(super) fn has(&self, step: usize) -> bool {
        self.members.contains(&step)
    }

    /// The groups that are worth it, as many as there are registers for.
    pub(super) fn all(steps: &[SegmentStep]) -> Vec<Self> {
        let mut written: HashMap<Reg, usize> = HashMap::new();
        let mut groups: Vec<(_, Vec<(usize, i64)>)> = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let access = unpack(step.access.0);
            let size = i64::from(step.access.1) * access.count as i64;
            if matches!(step.tag, Tag::LoadGlobal | Tag::LoadShared) && step.access.1 >= 4 {
                let offset = access.offset;
                let address = step.s[0];
                let key = (
                    (address, written.get(&address).copied()),
                    (step.tag, access.place, step.access.1, access.count),
                    offset & (size - 1),
                );
                match groups.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, members)) => members.push((index, offset)),
                    None => groups.push((key, vec![(index, offset)])),
                }
            }
            for &reg in &step.d {
                written.insert(reg, index);
            }
        }
        let mut groups: Vec<Self> = groups
            .into_iter()
            .filter_map(|(_, members)| {
                let offsets = members.iter().map(|(_, offset)| *offset);
                let (least, most) = (offsets.clone().min()?, offsets.max()?);
                (members.len() > 1 && most - least < FURTHEST).then(|| Self {
                    members: members.into_iter().map(|(index, _)| index).collect(),
                    least,
                    span: most - least,
                })
            })
            .collect();
        groups.sort_by_key(|group| usize::MAX - group.members.len());
        groups.truncate(GROUPS);
        groups
    }
}

/// Where an element is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indexed {
    /// Of 64 bits, the same in all lanes.
    pub(super) base: Reg,
    /// Of 32 bits; the accesses' own first source.
    index: Reg,
    pub(super) signed: bool,
    /// Of the constant, a power of two up to 8.
    pub(super) log: u8,
}

/// Rewrites steps whose addresses are so and serve nothing else: they read the index, and what made the address goes.
pub(super) fn find(
    steps: &[SegmentStep],
    groups: &[Group],
    slot_of: &dyn Fn(Reg) -> RegisterSlot,
    live_after: &dyn Fn(Reg) -> bool,
    constant_of: &dyn Fn(Reg) -> Option<u64>,
) -> HashMap<usize, Option<Indexed>> {
    // What is found by step: `None` for those that are not needed.
    let mut found = HashMap::new();
    let mut writers: HashMap<Reg, Vec<usize>> = HashMap::new();
    let mut readers: HashMap<Reg, Vec<usize>> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        for &reg in &step.d {
            writers.entry(reg).or_default().push(at);
        }
        for &reg in &step.s {
            readers.entry(reg).or_default().push(at);
        }
    }
    let written = |reg: Reg| writers.get(&reg).map_or(&[][..], Vec::as_slice);
    let read = |reg: Reg| readers.get(&reg).map_or(&[][..], Vec::as_slice);
    // Written by this step alone, and not needed later.
    let passes = |reg: Reg, by: usize| written(reg) == [by] && !live_after(reg);
    for (made, step) in steps.iter().enumerate() {
        let signed = is_signed(step);
        let &[product] = step.d.as_slice() else {
            continue;
        };
        let Some((index, factor)) = factors(step, constant_of) else {
            continue;
        };
        // The base, if the step adds one to the product and only accesses read the sum.
        let base_of = |add: usize| {
            let (&[first, second], &[sum]) = (steps[add].s.as_slice(), steps[add].d.as_slice())
            else {
                return None;
            };
            let base = if first == product { second } else { first };
            let is_access = |&access: &usize| {
                let step = &steps[access];
                access > add
                    && matches!(step.tag, Tag::LoadGlobal | Tag::StoreGlobal)
                    && step.s[0] == sum
                    && !step.s[1..].contains(&sum)
                    && !groups.iter().any(|group| group.has(access))
                    && !written(index)
                        .iter()
                        .any(|write| (made..=access).contains(write))
            };
            let fits = steps[add].tag == Tag::Add64
                && add > made
                && base != product
                && !slot_of(base).varying
                && passes(sum, add)
                && read(sum).iter().all(is_access);
            fits.then_some((base, sum))
        };
        let adds: Option<Vec<_>> = read(product).iter().map(|&add| base_of(add)).collect();
        let fits = factor.is_power_of_two()
            && factor <= 8
            && slot_of(index).varying
            && slot_of(index).width == 4
            && passes(product, made);
        let Some(adds) = adds.filter(|_| fits) else {
            continue;
        };
        let log = factor.trailing_zeros() as u8;
        found.insert(made, None);
        found.extend(read(product).iter().map(|&add| (add, None)));
        for (base, sum) in adds {
            let indexed = Indexed {
                base,
                index,
                signed,
                log,
            };
            found.extend(read(sum).iter().map(|&access| (access, Some(indexed))));
        }
    }
    found
}

/// An index and the constant that a step multiplies it by.
fn factors(step: &SegmentStep, constant_of: &dyn Fn(Reg) -> Option<u64>) -> Option<(Reg, u64)> {
    match (step.tag, step.s.as_slice()) {
        (Tag::MulWideS32 | Tag::MulWideU32, &[first, second]) => {
            let orders = [(first, second), (second, first)].into_iter();
            let mut known = orders.map(|(index, factor)| Some((index, constant_of(factor)?)));
            known.find_map(|known| known)
        }
        (Tag::WidenS32 | Tag::WidenU32, &[index]) => Some((index, 1)),
        _ => None,
    }
}

fn is_signed(step: &SegmentStep) -> bool {
    matches!(step.tag, Tag::MulWideS32 | Tag::WidenS32)
}

impl Indexed {
    /// The elements from a base on by the product that a step makes, if it makes one.
    pub(super) fn of_product(
        step: &SegmentStep,
        base: Reg,
        constant_of: &dyn Fn(Reg) -> Option<u64>,
    ) -> Option<Self> {
        let (index, factor) = factors(step, constant_of)?;
        (factor.is_power_of_two() && factor <= 8).then(|| Self {
            base,
            index,
            signed: is_signed(step),
            log: factor.trailing_zeros() as u8,
        })
    }

    /// The register that the access reads instead of an address.
    pub(super) fn index(&self) -> Reg {
        self.index
    }
}
