use super::*;

/// As an H200 is split.
const HOPPER: SmTopology = SmTopology {
    groups: 15,
    each: 8,
    left_over: 12,
};

const FULL: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);

fn group(percentage: f32, reserved: bool) -> GroupShare {
    GroupShare {
        device: None,
        percentage,
        reserved,
    }
}

/// A layout of devices, whose contexts are numbers.
struct Rig(PartitionPlan<u32>);

impl Rig {
    fn new(splits: &[SmTopology]) -> Self {
        Self(PartitionPlan::new(splits.to_vec()))
    }

    /// Makes a change as its user does: one that cannot be is not kept.
    fn change(&mut self, change: impl FnOnce(&mut PartitionPlan<u32>)) -> Result<(), CUresult> {
        let mut next = self.0.clone();
        change(&mut next);
        next.solve()?;
        self.0 = next;
        Ok(())
    }

    /// A client with a context on the first device.
    fn client(&mut self, context: u32, share: Share, group: Option<u32>) -> Result<u64, CUresult> {
        let mut id = 0;
        self.change(|layout| {
            id = layout.add_client(share, group).unwrap();
            layout.add_context(id, context, 0, 100.0);
        })?;
        Ok(id)
    }

    fn set(&mut self, id: u64, share: Share) -> Result<(), CUresult> {
        self.change(|layout| layout.set_share(id, share).unwrap())
    }

    fn group(&mut self, number: u32, share: GroupShare) -> Result<(), CUresult> {
        self.change(|layout| layout.set_group(number, share).unwrap())
    }

    fn leave(&mut self, id: u64) {
        self.change(|layout| layout.remove_client(id)).unwrap();
    }

    fn place(&self, context: u32) -> SmSet {
        let mut seats = self.0.seats();
        seats.find(|seat| seat.context == context).unwrap().place
    }

    fn multiprocessors(&self, context: u32) -> u32 {
        let mut seats = self.0.seats();
        let seat = seats.find(|seat| seat.context == context).unwrap();
        self.0.splits[seat.device].multiprocessors(seat.place)
    }

    fn assert_apart(&self, one: u32, other: u32) {
        assert!(self.place(one).and(self.place(other)).is_empty());
    }
}

#[test]
fn who_has_reserved_is_alone_in_his_part() {
    let mut rig = Rig::new(&[HOPPER]);
    rig.client(1, Share::of(100.0), None).unwrap();
    rig.client(2, Share::of(90.0), None).unwrap();
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(2)), (132, 112));
    let owner = rig.client(3, Share::reserving(50.0), None).unwrap();
    assert_eq!(rig.multiprocessors(3), 64);
    // All of the rest, to which what the split leaves over belongs.
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(2)), (68, 68));
    assert_eq!(rig.0.unreserved(0), 68);
    let second = rig.client(4, Share::reserving(25.0), None).unwrap();
    assert_eq!((rig.multiprocessors(4), rig.multiprocessors(1)), (32, 36));
    for (one, other) in [(1, 3), (1, 4), (2, 3), (2, 4), (3, 4)] {
        rig.assert_apart(one, other);
    }
    // What is limited in the rest stays in it.
    rig.client(5, Share::of(10.0), None).unwrap();
    assert_eq!(rig.multiprocessors(5), 8);
    assert!(rig.place(5).is_within(rig.place(1)));
    rig.leave(owner);
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(4)), (100, 32));
    rig.set(second, Share::of(25.0)).unwrap();
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(4)), (132, 32));
}

#[test]
fn no_more_is_reserved_than_there_is_and_the_others_are_somewhere() {
    let mut rig = Rig::new(&[HOPPER]);
    let first = rig.client(1, Share::reserving(70.0), None).unwrap();
    assert_eq!(rig.client(2, Share::reserving(40.0), None).map(drop), FULL);
    let second = rig.client(2, Share::reserving(30.0), None).unwrap();
    assert_eq!(rig.set(first, Share::reserving(71.0)), FULL);
    assert_eq!(rig.multiprocessors(1) + rig.multiprocessors(2), 120);
    rig.client(3, Share::of(1.0), None).unwrap();
    assert_eq!(rig.multiprocessors(3), 12, "what is left over");
    rig.assert_apart(3, 2);
    rig.leave(first);
    rig.set(second, Share::reserving(100.0)).unwrap();
    assert_eq!(rig.multiprocessors(2), 120);
    // Groups are few; a hundred of one per cent find none.
    let mut rig = Rig::new(&[HOPPER]);
    for context in 0..15 {
        rig.client(context, Share::reserving(1.0), None).unwrap();
    }
    assert_eq!(rig.client(15, Share::reserving(1.0), None).map(drop), FULL);
    // Where nothing is left over, one group is not its owner's alone.
    let even = SmTopology {
        groups: 4,
        each: 10,
        left_over: 0,
    };
    let mut rig = Rig::new(&[even]);
    rig.client(1, Share::reserving(100.0), None).unwrap();
    rig.client(2, Share::of(100.0), None).unwrap();
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(2)), (40, 10));
}

#[test]
fn a_group_has_its_part_together() {
    let mut rig = Rig::new(&[HOPPER]);
    rig.group(7, group(60.0, false)).unwrap();
    rig.client(1, Share::of(100.0), Some(7)).unwrap();
    rig.client(2, Share::of(50.0), Some(7)).unwrap();
    rig.client(3, Share::of(100.0), None).unwrap();
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(2)), (72, 32));
    assert!(rig.place(2).is_within(rig.place(1)));
    assert_eq!(rig.multiprocessors(3), 132);
    rig.group(7, group(60.0, true)).unwrap();
    assert_eq!((rig.multiprocessors(1), rig.multiprocessors(3)), (72, 60));
    rig.assert_apart(1, 3);
    // A client of it reserves of its part, and no more than that.
    assert_eq!(
        rig.client(4, Share::reserving(61.0), Some(7)).map(drop),
        FULL
    );
    let fourth = rig.client(4, Share::reserving(20.0), Some(7)).unwrap();
    assert_eq!((rig.multiprocessors(4), rig.multiprocessors(1)), (24, 48));
    assert_eq!((rig.multiprocessors(2), rig.multiprocessors(3)), (24, 60));
    rig.assert_apart(1, 4);
    rig.set(fourth, Share::reserving(60.0)).unwrap();
    assert_eq!((rig.multiprocessors(4), rig.multiprocessors(1)), (72, 8));
    rig.set(fourth, Share::reserving(59.0)).unwrap();
    let some = rig.client(5, Share::reserving(1.0), Some(7));
    assert_eq!(some.map(drop), FULL, "no group of multiprocessors is left");
    // Of a group that is not reserved it is its client's own, and the others have the less.
    rig.set(fourth, Share::reserving(20.0)).unwrap();
    rig.group(7, group(60.0, false)).unwrap();
    assert_eq!((rig.multiprocessors(4), rig.multiprocessors(1)), (24, 48));
    rig.assert_apart(1, 4);
    assert_eq!(rig.multiprocessors(3), 108);
    rig.change(|layout| layout.end_group(7)).unwrap();
    assert_eq!((rig.multiprocessors(4), rig.multiprocessors(1)), (24, 108));
}

#[test]
fn a_part_of_one_device_is_none_of_another() {
    let mut rig = Rig::new(&[HOPPER, HOPPER]);
    let of = |device| GroupShare {
        device: Some(device),
        ..group(80.0, true)
    };
    rig.group(1, of(0)).unwrap();
    rig.group(2, of(1)).unwrap();
    let client = rig.client(1, Share::of(100.0), Some(1)).unwrap();
    rig.change(|layout| layout.add_context(client, 2, 1, 100.0))
        .unwrap();
    assert_eq!(rig.multiprocessors(1), 104);
    assert_eq!(rig.multiprocessors(2), 28, "it has none there of its own");
    assert_eq!(rig.group(3, of(1)), FULL);
}

#[test]
fn those_in_the_rest_are_spread_and_stay_where_they_are() {
    let mut rig = Rig::new(&[HOPPER]);
    for context in 0..3 {
        rig.client(context, Share::of(33.0), None).unwrap();
    }
    let before = [0, 1, 2].map(|context| rig.place(context));
    rig.assert_apart(0, 1);
    rig.assert_apart(1, 2);
    rig.assert_apart(0, 2);
    rig.client(3, Share::of(50.0), None).unwrap();
    rig.client(4, Share::of(33.0), None).unwrap();
    assert_eq!([0, 1, 2].map(|context| rig.place(context)), before);
    // A context that asks for less has less; for more, no more.
    let client = rig.client(5, Share::of(50.0), None).unwrap();
    rig.change(|layout| {
        layout.add_context(client, 6, 0, 25.0);
        layout.add_context(client, 7, 0, 75.0);
    })
    .unwrap();
    assert_eq!((rig.multiprocessors(6), rig.multiprocessors(7)), (32, 64));
    rig.change(|layout| layout.remove_context(client, &6))
        .unwrap();
    assert!(rig.0.seats().all(|seat| seat.context != 6));
}

#[test]
fn a_device_that_cannot_be_split_is_everybodys() {
    let mut rig = Rig::new(&[HOPPER, SmTopology::default()]);
    let client = rig.client(1, Share::of(50.0), None).unwrap();
    rig.change(|layout| layout.add_context(client, 2, 1, 100.0))
        .unwrap();
    assert_eq!(rig.place(2), SmTopology::default().all());
    assert_eq!((rig.0.unreserved(0), rig.0.unreserved(1)), (132, u32::MAX));
    let refused = rig.set(client, Share::reserving(50.0));
    assert_eq!(refused, Err(CUresult::ERROR_NOT_SUPPORTED));
    let first = GroupShare {
        device: Some(0),
        ..group(50.0, true)
    };
    assert_eq!(rig.group(1, first), Ok(()), "the first can");
}

#[test]
fn percentages_that_are_none_are_refused() {
    let mut layout = PartitionPlan::<u32>::new(vec![HOPPER]);
    for percentage in [0.0, -1.0, 100.5, f32::NAN, f32::INFINITY] {
        let none = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(
            layout.add_client(Share::of(percentage), None).map(drop),
            none
        );
        assert_eq!(layout.set_share(0, Share::of(percentage)), none);
        assert_eq!(layout.set_group(0, group(percentage, false)), none);
    }
}

/// Whatever is asked for in whatever order: parts that are reserved are nobody else's, and so are few places.
#[test]
fn what_is_reserved_is_never_anothers() {
    let mut random = 1_u64;
    let mut below = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % bound
    };
    let mut rig = Rig::new(&[HOPPER]);
    let mut clients: Vec<(u64, u32)> = Vec::new();
    let mut places = std::collections::HashSet::new();
    let (mut held, mut refused) = (0, 0);
    for context in 0..4000 {
        let percentage = 1.0 + below(50) as f32;
        let share = Share {
            reserved: below(2) == 0,
            ..Share::of(percentage)
        };
        let some = Some(below(3) as u32).filter(|&number| number > 0);
        let pick = below(clients.len().max(1) as u64) as usize;
        let result = match below(5) {
            0 | 1 => rig
                .client(context, share, some)
                .map(|id| clients.push((id, context))),
            2 if !clients.is_empty() => rig.set(clients[pick].0, share),
            3 if !clients.is_empty() => {
                rig.leave(clients.swap_remove(pick).0);
                Ok(())
            }
            _ => rig.group(1 + below(2) as u32, group(percentage, share.reserved)),
        };
        match result {
            Ok(()) => held += 1,
            refused_with => {
                assert_eq!(refused_with, FULL);
                refused += 1;
            }
        }
        let all: Vec<_> = rig.0.clients.values().collect();
        for (at, owner) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                if at == other_at || !owner.share.reserved {
                    continue;
                }
                // Where clients of a group have reserved all of it, its others are in a part of that.
                let is_in_it = !other.share.reserved && other.group.is_some();
                let most = u32::from(is_in_it && other.group == owner.group);
                let both = owner.seats[0].place.and(other.seats[0].place);
                assert!(both.count() <= most, "{owner:?} {other:?}");
            }
        }
        for seat in rig.0.seats() {
            assert!(!seat.place.is_empty());
            places.insert(seat.place);
        }
    }
    assert!(held > 1000 && refused > 100, "{held} {refused}");
    // Runs of neighbours, with what is left over or without: 15 * 16 / 2 and 15 more, and the whole.
    assert!(places.len() <= 136, "{}", places.len());
}
