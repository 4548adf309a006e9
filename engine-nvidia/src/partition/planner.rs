//! Who has which multiprocessors, by what clients and groups of them are to have.
//!
//! **What is reserved** is taken from a device's highest groups down: reserved groups of clients first, by
//! their numbers, then clients, as they came. What a client of a reserved group reserves comes out of that
//! group's. Whoever has reserved nothing stays in *the rest*, whether who reserved uses his or not. That is the
//! whole device while nothing is reserved, and never nothing: where all groups are reserved it is what the
//! driver's split leaves over, and where that is nothing, one group that somebody reserved.
//!
//! **In the rest**, and within what a group has, a percentage is an upper limit: so many groups together, those
//! that the fewest others use. Who has a place that still does keeps it.
//!
//! All follows from the claims and the places that there are, so what was reserved moves when something before
//! it goes or changes; that keeps what is reserved and the rest in one piece each, and so the number of
//! different places small, which all have to be made once and stay.
//!
//! Numbers only; `C` is what stands for a context. Called by [`SmAllocator`](crate::partition::allocator::SmAllocator), which sees to
//! that what this says also holds. Must not know streams or the driver.

use std::collections::BTreeMap;

use cuda_abi::CUresult;
use engine::plan::checks;
use engine::{GroupShare, Share};

use crate::partition::sm_set::{SmSet, SmTopology};

/// By how much percentages that make 100 together may exceed it, being no exact numbers.
const INEXACT: f64 = 1e-3;

/// Who has what of all devices.
#[derive(Clone, Debug)]
pub(crate) struct PartitionPlan<C> {
    splits: Vec<SmTopology>,
    /// In the order in which they came.
    clients: BTreeMap<u64, Client<C>>,
    groups: BTreeMap<u32, Group>,
    /// The next client's number.
    next: u64,
}

#[derive(Clone, Debug)]
struct Client<C> {
    share: Share,
    group: Option<u32>,
    seats: Vec<Seat<C>>,
}

#[derive(Clone, Debug)]
struct Group {
    share: GroupShare,
    /// Of each device.
    places: Vec<SmSet>,
}

/// A context's place.
#[derive(Clone, Debug)]
pub(crate) struct Seat<C> {
    pub(crate) context: C,
    pub(crate) device: usize,
    /// The per cent of the device that it asked for itself.
    percentage: f32,
    pub(crate) place: SmSet,
}

/// Something that is reserved.
struct Reserved {
    who: Who,
    /// The group that has reserved something of which this is a part.
    of: Option<u32>,
    percentage: f32,
}

enum Who {
    Group(u32),
    Client(u64),
}

/// What is whose on a device, before anybody has a place in it.
struct Areas {
    /// Everybody's who reserved nothing.
    rest: SmSet,
    /// Of reserved groups: what their clients have not reserved for themselves.
    groups: BTreeMap<u32, SmSet>,
    /// Of clients that reserved something.
    clients: BTreeMap<u64, SmSet>,
}

/// How many contexts have a group of multiprocessors.
struct Users([u32; u128::BITS as usize]);

impl Default for Users {
    fn default() -> Self {
        Self([0; u128::BITS as usize])
    }
}

impl Users {
    fn add(&mut self, place: SmSet) {
        place.groups().for_each(|group| self.0[group as usize] += 1);
    }

    fn assign(&mut self, place: SmSet) {
        place.groups().for_each(|group| self.0[group as usize] -= 1);
    }

    fn of(&self, place: SmSet) -> u32 {
        place.groups().map(|group| self.0[group as usize]).sum()
    }
}

impl<C: Clone + PartialEq> PartitionPlan<C> {
    /// Nobody has anything of these devices.
    pub(crate) fn new(splits: Vec<SmTopology>) -> Self {
        Self {
            splits,
            clients: BTreeMap::new(),
            groups: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds a client, and gives it a number. What follows for places is for [`PartitionPlan::solve`], here and
    /// below.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a percentage that is none.
    pub(crate) fn add_client(&mut self, share: Share, group: Option<u32>) -> Result<u64, CUresult> {
        checks::percentage(share.percentage)?;
        let id = self.next;
        self.next += 1;
        let client = Client {
            share,
            group,
            seats: Vec::new(),
        };
        self.clients.insert(id, client);
        Ok(id)
    }

    /// Takes out a client.
    pub(crate) fn remove_client(&mut self, id: u64) {
        self.clients.remove(&id);
    }

    /// Changes a client's share.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a percentage that is none.
    pub(crate) fn set_share(&mut self, id: u64, share: Share) -> Result<(), CUresult> {
        checks::percentage(share.percentage)?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.share = share;
        }
        Ok(())
    }

    /// Sets what a group has.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a percentage that is none.
    pub(crate) fn set_group(&mut self, number: u32, share: GroupShare) -> Result<(), CUresult> {
        checks::percentage(share.percentage)?;
        let places = vec![SmSet::default(); self.splits.len()];
        let group = self.groups.entry(number);
        group.or_insert(Group { share, places }).share = share;
        Ok(())
    }

    pub(crate) fn end_group(&mut self, number: u32) {
        self.groups.remove(&number);
    }

    /// Adds a client's context, that is to have so many per cent of its device at most.
    pub(crate) fn add_context(&mut self, id: u64, context: C, device: usize, percentage: f32) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.seats.push(Seat {
                context,
                device,
                percentage,
                place: SmSet::default(),
            });
        }
    }

    /// Takes out a client's context.
    pub(crate) fn remove_context(&mut self, id: u64, context: &C) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.seats.retain(|seat| seat.context != *context);
        }
    }

    /// All contexts, with their places.
    pub(crate) fn seats(&self) -> impl Iterator<Item = &Seat<C>> {
        self.clients.values().flat_map(|client| &client.seats)
    }

    /// The multiprocessors of a device that nobody has reserved; of one that cannot be split, any number.
    pub(crate) fn unreserved(&self, device: usize) -> u32 {
        let split = self.splits.get(device).filter(|split| split.groups > 0);
        let areas = self.areas(device);
        split
            .zip(areas.ok())
            .map_or(u32::MAX, |(split, areas)| split.multiprocessors(areas.rest))
    }

    /// Gives everybody the place that is due to him.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if something is reserved of a device that cannot be split, and
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more is reserved than there is. Then places are not
    /// to be relied on.
    pub(crate) fn solve(&mut self) -> Result<(), CUresult> {
        for device in 0..self.splits.len() {
            let areas = self.areas(device)?;
            self.seat(device, &areas);
        }
        Ok(())
    }

    fn areas(&self, device: usize) -> Result<Areas, CUresult> {
        let split = self.splits[device];
        let mut areas = Areas {
            rest: split.all(),
            groups: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        let reserved = self.reserved(device);
        if reserved.is_empty() {
            return Ok(areas);
        }
        if split.groups == 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let full = CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION;
        // Of the device, and of each reserved group.
        let mut left = BTreeMap::from([(None, 100.0 + INEXACT)]);
        let mut whole = BTreeMap::new();
        for Reserved {
            who,
            of,
            percentage,
        } in reserved
        {
            let left_of = left.get_mut(&of).ok_or(full)?;
            *left_of -= f64::from(percentage);
            if *left_of < 0.0 {
                return Err(full);
            }
            let area = match of.and_then(|group| areas.groups.get_mut(&group)) {
                Some(place) => place,
                None => &mut areas.rest,
            };
            let place = split.highest(*area, percentage).ok_or(full)?;
            *area = area.without(place);
            match who {
                Who::Group(number) => {
                    left.insert(Some(number), f64::from(percentage) + INEXACT);
                    areas.groups.insert(number, place);
                    whole.insert(number, place);
                }
                Who::Client(id) => {
                    areas.clients.insert(id, place);
                }
            }
        }
        // Those who have reserved nothing are somewhere too.
        if areas.rest.is_empty() {
            areas.rest = split.all().lowest(1);
        }
        for (number, area) in &mut areas.groups {
            if area.is_empty() {
                *area = whole[number].lowest(1);
            }
        }
        Ok(areas)
    }

    /// What is reserved of a device, in the order in which it is taken.
    fn reserved(&self, device: usize) -> Vec<Reserved> {
        let is_reserved = |group: &Group| group.share.reserved && group.share.is_of(device);
        let groups = self.groups.iter().filter(|(_, group)| is_reserved(group));
        let groups = groups.map(|(&number, group)| Reserved {
            who: Who::Group(number),
            of: None,
            percentage: group.share.percentage,
        });
        let clients = self
            .clients
            .iter()
            .filter(|(_, client)| client.share.reserved);
        let clients = clients.map(|(&id, client)| Reserved {
            who: Who::Client(id),
            of: client
                .group
                .filter(|number| self.groups.get(number).is_some_and(is_reserved)),
            percentage: client.share.percentage,
        });
        groups.chain(clients).collect()
    }

    /// Gives all contexts on a device their places.
    fn seat(&mut self, device: usize, areas: &Areas) {
        let split = self.splits[device];
        let granularity = split.granularity();
        let all = split.multiprocessors(split.all());
        let mut users = Users::default();
        for seat in self.seats().filter(|seat| seat.device == device) {
            users.add(seat.place);
        }
        let reserved = self.clients.values().filter(|client| client.share.reserved);
        let reserved: Vec<(Option<u32>, f32)> = reserved
            .map(|client| (client.group, client.share.percentage))
            .collect();
        for (&number, group) in &mut self.groups {
            let place = &mut group.places[device];
            *place = match areas.groups.get(&number) {
                Some(&place) => place,
                None if !group.share.is_of(device) => areas.rest,
                None => {
                    let own = reserved.iter().filter(|(of, _)| *of == Some(number));
                    let taken: f32 = own.map(|&(_, part)| part).sum();
                    let left = (group.share.percentage - taken).max(0.0);
                    let granted = granularity.granted(all, left);
                    split.fit(areas.rest, granted, *place, &users)
                }
            };
        }
        for (id, client) in &mut self.clients {
            let group = client.group.and_then(|number| self.groups.get(&number));
            let (area, of) = match (areas.clients.get(id), group) {
                (Some(&place), _) => (place, all),
                (None, Some(group)) => {
                    let place = group.places[device];
                    let of = if group.share.is_of(device) {
                        split.multiprocessors(place)
                    } else {
                        all
                    };
                    (place, of)
                }
                (None, None) => (areas.rest, all),
            };
            for seat in client.seats.iter_mut().filter(|seat| seat.device == device) {
                let percentage = client.share.percentage.min(seat.percentage);
                let granted = granularity.granted(of, percentage);
                users.assign(seat.place);
                seat.place = split.fit(area, granted, seat.place, &users);
                users.add(seat.place);
            }
        }
    }
}

impl SmTopology {
    /// The highest of an area's groups that a percentage of the device grants; `None` if there are not as
    /// many.
    fn highest(self, area: SmSet, percentage: f32) -> Option<SmSet> {
        let granted = self
            .granularity()
            .granted(self.multiprocessors(self.all()), percentage);
        let count = (granted / self.each).clamp(1, self.groups);
        area.and(self.whole_groups()).highest(count)
    }

    /// A place in an area, of so many multiprocessors at most, but of something: the one that there is, if it
    /// does, or else the one that the fewest use.
    fn fit(self, area: SmSet, granted: u32, current: SmSet, users: &Users) -> SmSet {
        let groups = area.and(self.whole_groups());
        if self.multiprocessors(area) <= granted || groups.is_empty() {
            return area;
        }
        let count = (granted / self.each).clamp(1, groups.count());
        if current.is_within(groups) && current.count() == count {
            return current;
        }
        let parts = self.parts(area, count).into_iter();
        parts.min_by_key(|&part| users.of(part)).unwrap_or(area)
    }
}

#[cfg(test)]
mod tests;
