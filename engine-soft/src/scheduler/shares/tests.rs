//! Shares, groups, reservations and priorities on a device whose clock is a number: what comes out
//! is the same on every machine.

use super::*;

/// How long a turn is unless it is limited.
const TURN: u64 = 3_000_000;
const MS: u64 = 1_000_000;

/// Threads that take turns, and clients that always have work for all of them.
struct Device {
    shares: Shares,
    threads: usize,
    now: u64,
    /// When each turn ends, what it took and what it is.
    turns: Vec<(u64, u64, Choice)>,
    /// What each client was given.
    given: BTreeMap<usize, u64>,
    /// What contexts have at most, of clients that have such.
    parts: BTreeMap<usize, f32>,
}

impl Device {
    fn new(threads: usize) -> Self {
        Self {
            shares: Shares::new(threads),
            threads,
            now: 0,
            turns: Vec::new(),
            given: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    /// A client without work.
    fn client(&mut self, share: Share, group: Option<u32>) -> Arc<Account> {
        self.shares.join(share, group, self.now).unwrap()
    }

    /// A client that has work from now on.
    fn busy(&mut self, share: Share, group: Option<u32>) -> Arc<Account> {
        let account = self.client(share, group);
        self.shares.wake(account.id);
        account
    }

    fn group(&mut self, group: u32, percentage: f32, reserved: bool) -> Result<(), CUresult> {
        let share = GroupShare {
            device: None,
            percentage,
            reserved,
        };
        self.shares.set_group(group, Some(share), self.now)
    }

    fn set(&mut self, account: &Account, share: Share) -> Result<(), CUresult> {
        self.shares.set_share(account, share, self.now)
    }

    /// Lets some time pass.
    fn run(&mut self, nanoseconds: u64) {
        let until = self.now + nanoseconds;
        loop {
            while self.turns.len() < self.threads
                && let Some(choice) = self.shares.next(self.now)
            {
                let limit = self.shares.begin(choice, self.now);
                let took = limit.map_or(TURN, |limit| TURN.min(limit.as_nanos() as u64));
                self.turns.push((self.now + took, took, choice));
            }
            let mut next = self.turns.iter().map(|turn| turn.0).min();
            if self.turns.len() < self.threads
                && let Some(opens) = self.shares.opens(self.now)
            {
                let opens = self.now + opens.as_nanos() as u64;
                next = Some(next.map_or(opens, |next| next.min(opens)));
            }
            let Some(next) = next.filter(|&next| next <= until) else {
                self.now = until;
                return;
            };
            self.now = next;
            let over = |turn: &mut (u64, u64, Choice)| turn.0 <= next;
            for (_, took, choice) in self.turns.extract_if(.., over).collect::<Vec<_>>() {
                let part = self.parts.get(&choice.id).copied().unwrap_or(100.0);
                self.shares.end(choice, took, part, next);
                *self.given.entry(choice.id).or_default() += took;
            }
        }
    }

    /// Percent of the device that each of these clients gets in some time.
    fn percentages<const N: usize>(&mut self, time: u64, of: [&Account; N]) -> [f64; N] {
        let given = |device: &Self| of.map(|client| *device.given.get(&client.id).unwrap_or(&0));
        let before = given(self);
        self.run(time);
        let after = given(self);
        let all = time as f64 * self.threads as f64;
        std::array::from_fn(|index| (after[index] - before[index]) as f64 / all * 100.0)
    }
}

fn below(share: Share) -> Share {
    Share {
        priority: 1,
        ..share
    }
}

fn assert_near<const N: usize>(got: [f64; N], wanted: [f64; N]) {
    let near = |(got, wanted): (&f64, &f64)| (got - wanted).abs() < 1.5;
    assert!(got.iter().zip(&wanted).all(near), "{got:?}, not {wanted:?}");
}

#[test]
fn three_to_one_is_three_to_one() {
    for threads in [1, 2, 16] {
        let mut device = Device::new(threads);
        let [a, b] = [75.0, 25.0].map(|part| device.busy(Share::of(part), None));
        device.run(50 * MS);
        assert_near(device.percentages(2000 * MS, [&a, &b]), [75.0, 25.0]);
        // Percentages are weights: they need not make 100.
        let c = device.busy(Share::of(100.0), None);
        device.run(50 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &c]),
            [37.5, 12.5, 50.0],
        );
    }
}

#[test]
fn who_is_alone_has_everything_unless_it_is_reserved() {
    for threads in [1, 2, 16] {
        let mut device = Device::new(threads);
        let client = device.busy(Share::of(25.0), None);
        assert_near(device.percentages(1000 * MS, [&client]), [100.0]);
        device.set(&client, Share::reserving(25.0)).unwrap();
        device.run(100 * MS);
        assert_near(device.percentages(2000 * MS, [&client]), [25.0]);
        device.set(&client, Share::of(25.0)).unwrap();
        device.run(10 * MS);
        assert_near(device.percentages(1000 * MS, [&client]), [100.0]);
    }
}

#[test]
fn a_reservation_holds_in_every_stretch_of_time() {
    for threads in [1, 2, 16] {
        for part in [1.0, 10.0, 25.0, 50.0] {
            let mut device = Device::new(threads);
            let client = device.client(Share::reserving(part), None);
            device.run(1000 * MS);
            device.shares.wake(client.id);
            for _ in 0..50 {
                let time = 40 * MS;
                let [got] = device.percentages(time, [&client]);
                // Twenty milliseconds' worth may be saved up, and each thread is in one turn.
                let turn = (f64::from(part) / 100.0 * 20.0 * threads as f64).clamp(0.2, 3.0);
                let most = f64::from(part) * 60.0 / 40.0 + turn / 40.0 * 100.0;
                assert!(got <= most, "{got} % of {part}, {threads} threads");
            }
            assert_near(device.percentages(5000 * MS, [&client]), [f64::from(part)]);
        }
    }
}

#[test]
fn what_is_reserved_is_kept_free() {
    for threads in [1, 2, 16] {
        let mut device = Device::new(threads);
        let owner = device.client(Share::reserving(40.0), None);
        let [a, b] = [100.0, 50.0].map(|part| device.busy(Share::of(part), None));
        device.run(50 * MS);
        assert_near(device.percentages(2000 * MS, [&a, &b]), [40.0, 20.0]);
        // At once, and whatever the others are up to.
        device.shares.wake(owner.id);
        let [soon] = device.percentages(60 * MS, [&owner]);
        assert!(soon > 35.0, "{soon} %");
        assert_near(
            device.percentages(2000 * MS, [&owner, &a, &b]),
            [40.0, 40.0, 20.0],
        );
        device.shares.idle(owner.id);
        device.shares.leave(owner.id, device.now);
        device.run(50 * MS);
        assert_near(device.percentages(2000 * MS, [&a, &b]), [66.7, 33.3]);
    }
}

#[test]
fn clients_of_a_group_share_its_part() {
    for threads in [1, 4] {
        let mut device = Device::new(threads);
        device.group(7, 50.0, false).unwrap();
        let [a, b] = [75.0, 25.0].map(|part| device.client(Share::of(part), Some(7)));
        let other = device.busy(Share::of(50.0), None);
        device.shares.wake(a.id);
        device.run(50 * MS);
        assert_near(device.percentages(2000 * MS, [&a, &other]), [50.0, 50.0]);
        device.shares.wake(b.id);
        device.run(50 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &other]),
            [37.5, 12.5, 50.0],
        );
        // Ten more in the group take nothing from who is not.
        let more: Vec<_> = (0..10)
            .map(|_| device.busy(Share::of(100.0), Some(7)))
            .collect();
        device.run(50 * MS);
        assert_near(device.percentages(2000 * MS, [&other]), [50.0]);
        for client in more {
            device.shares.idle(client.id);
        }
        // The group's weight changes, then there is none.
        device.group(7, 100.0, false).unwrap();
        device.run(50 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &other]),
            [50.0, 16.7, 33.3],
        );
        device.shares.set_group(7, None, device.now).unwrap();
        device.run(50 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &other]),
            [50.0, 16.7, 33.3],
        );
        device.shares.idle(b.id);
        device.run(50 * MS);
        assert_near(device.percentages(4000 * MS, [&a, &other]), [60.0, 40.0]);
    }
}

#[test]
fn a_reserved_group_is_held_and_its_clients_may_reserve_of_it() {
    for threads in [1, 4] {
        let mut device = Device::new(threads);
        device.group(1, 40.0, true).unwrap();
        let [a, b] = [100.0, 100.0].map(|part| device.busy(Share::of(part), Some(1)));
        device.run(100 * MS);
        assert_near(device.percentages(2000 * MS, [&a, &b]), [20.0, 20.0]);
        let c = device.busy(Share::reserving(10.0), Some(1));
        let other = device.busy(Share::of(5.0), None);
        device.run(100 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &c, &other]),
            [15.0, 15.0, 10.0, 60.0],
        );
        // A group that is not reserved keeps nothing but what its clients reserved.
        device.group(1, 40.0, false).unwrap();
        device.set(&other, Share::of(30.0)).unwrap();
        device.run(100 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &c, &other]),
            [22.5, 22.5, 10.0, 45.0],
        );
        device.shares.idle(c.id);
        device.run(100 * MS);
        assert_near(
            device.percentages(4000 * MS, [&a, &b, &other]),
            [22.5, 22.5, 45.0],
        );
    }
}

#[test]
fn a_change_holds_from_the_next_turn_on() {
    let mut device = Device::new(1);
    let [small, large] = [1.0, 100.0].map(|part| device.busy(Share::of(part), None));
    device.run(1000 * MS);
    // It is far ahead by its one percent, which is not held against it.
    device.set(&small, Share::of(100.0)).unwrap();
    assert_near(device.percentages(200 * MS, [&small, &large]), [50.0, 50.0]);
    device.set(&large, below(Share::of(100.0))).unwrap();
    assert_near(device.percentages(960 * MS, [&small, &large]), [97.0, 3.0]);
    device.set(&large, Share::of(50.0)).unwrap();
    device.run(50 * MS);
    assert_near(device.percentages(960 * MS, [&small, &large]), [66.7, 33.3]);
}

#[test]
fn more_than_there_is_cannot_be_reserved() {
    let full = Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
    let mut device = Device::new(2);
    let thirds: Vec<_> = (0..3)
        .map(|_| device.busy(Share::reserving(33.3), None))
        .collect();
    assert!(device.shares.join(Share::reserving(10.0), None, 0).is_err());
    assert_eq!(device.group(1, 10.0, true), full);
    let other = device.busy(Share::of(10.0), Some(1));
    assert_eq!(device.set(&other, Share::reserving(10.0)), full);
    assert_eq!(device.set(&thirds[0], Share::reserving(34.0)), full);
    // What was refused changed nothing.
    device.run(100 * MS);
    let got = device.percentages(2000 * MS, [&thirds[0], &thirds[1], &thirds[2]]);
    assert_near(got, [33.0; 3]);
    device.set(&thirds[0], Share::reserving(20.0)).unwrap();
    device.group(1, 13.3, true).unwrap();
    device.set(&other, Share::reserving(13.3)).unwrap();
    assert_eq!(device.group(1, 13.0, true), full, "less than its clients'");
    device.shares.leave(thirds[1].id, device.now);
    device.group(1, 46.0, true).unwrap();
    device.shares.set_group(1, None, device.now).unwrap();
    device.group(1, 13.3, true).unwrap();
}

#[test]
fn nobody_starves_where_all_is_reserved() {
    let mut device = Device::new(2);
    let owners = [60.0, 40.0].map(|part| device.busy(Share::reserving(part), None));
    let [a, b] = [100.0, 100.0].map(|part| device.busy(Share::of(part), None));
    let c = device.busy(below(Share::of(100.0)), None);
    device.run(100 * MS);
    let [first, second, a, b, c] =
        device.percentages(60_000 * MS, [&owners[0], &owners[1], &a, &b, &c]);
    assert_near([first, second], [59.4, 39.6]);
    assert!(a > 0.2 && b > 0.2 && c > 0.0, "{a} {b} {c}");
}

#[test]
fn below_normal_work_has_what_normal_work_leaves_and_a_trickle() {
    for threads in [1, 4] {
        let mut device = Device::new(threads);
        let normal = device.busy(Share::reserving(25.0), None);
        let waits = device.busy(below(Share::of(100.0)), None);
        device.run(100 * MS);
        // The normal client is held, so what is left is nobody's but this one's.
        let got = device.percentages(4000 * MS, [&normal, &waits]);
        assert_near(got, [25.0, 75.0]);
        // That is not held against it once somebody comes who could have it.
        let other = device.busy(Share::of(100.0), None);
        device.run(100 * MS);
        let [a, b, c] = device.percentages(4000 * MS, [&normal, &other, &waits]);
        assert!(c > 0.5 && c < 5.0, "{c} %");
        assert!(a > 22.0 && a < 26.0 && a + b + c > 99.0, "{a} {b} {c}");
    }
}

#[test]
fn a_context_has_no_more_than_its_part() {
    let mut device = Device::new(1);
    let [a, b] = [100.0, 50.0].map(|part| device.busy(Share::of(part), None));
    device.parts.insert(a.id, 25.0);
    device.run(50 * MS);
    assert_near(device.percentages(2000 * MS, [&a, &b]), [33.3, 66.7]);
    // A context cannot have more than its client.
    device.parts.insert(b.id, 90.0);
    assert_near(device.percentages(2000 * MS, [&a, &b]), [33.3, 66.7]);
}

#[test]
fn what_is_done_outside_of_turns_counts() {
    let mut device = Device::new(1);
    device.group(1, 50.0, false).unwrap();
    let [a, b] = [Some(1), None].map(|group| device.busy(Share::of(100.0), group));
    device.set(&b, Share::reserving(50.0)).unwrap();
    device.run(100 * MS);
    device.shares.idle(b.id);
    device.run(100 * MS);
    let now = device.now;
    assert!(device.shares.may_go_ahead(&b, now));
    device.shares.charge(&b, 30 * MS, 100.0, now);
    assert!(!device.shares.may_go_ahead(&b, now), "its part is used up");
    assert!(!device.shares.may_go_ahead(&b, now + 38 * MS));
    device.shares.charge(&a, 30 * MS, 100.0, now);
    device.run(100 * MS);
    device.shares.wake(b.id);
    let got = device.percentages(2000 * MS, [&a, &b]);
    assert_near(got, [50.0, 50.0]);
}

#[test]
fn any_order_of_changes_leaves_nothing() {
    let mut random = 1_u64;
    let mut below = |end: u64| {
        random = random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) % end
    };
    for _ in 0..20 {
        let mut device = Device::new(1 + below(4) as usize);
        let mut clients: Vec<Arc<Account>> = Vec::new();
        for _ in 0..400 {
            let some = Share {
                percentage: 1.0 + below(30) as f32,
                priority: below(2) as u32,
                reserved: below(3) == 0,
            };
            let group = below(4) as u32;
            let index = below(clients.len().max(1) as u64) as usize;
            match below(8) {
                0 | 1 => {
                    let named = Some(group).filter(|&group| group > 0);
                    clients.extend(device.shares.join(some, named, device.now));
                }
                2 => {
                    let _ = device.group(group, some.percentage, some.reserved);
                }
                3 => device.shares.set_group(group, None, device.now).unwrap(),
                4 if index < clients.len() => {
                    let _ = device.set(&clients[index], some);
                }
                5 if index < clients.len() && device.turns.is_empty() => {
                    let client = clients.swap_remove(index);
                    device.shares.idle(client.id);
                    device.shares.leave(client.id, device.now);
                }
                6 if index < clients.len() => device.shares.wake(clients[index].id),
                _ => {
                    device.run(below(20) * MS);
                    for client in clients.iter().filter(|_| below(2) == 0) {
                        device.shares.idle(client.id);
                    }
                }
            }
            let ready = device.shares.ready();
            let can = device.shares.may_go_on(device.now);
            let waits = device.shares.opens(device.now).is_some();
            assert_eq!(ready > 0, can || waits, "{:?}", device.shares);
        }
        device.run(100 * MS);
        for client in clients {
            device.shares.idle(client.id);
            device.shares.leave(client.id, device.now);
        }
        assert_eq!(device.shares.ready(), 0);
        for group in 0..4 {
            device.shares.set_group(group, None, device.now).unwrap();
        }
        assert!(device.shares.is_plain());
        assert!(device.shares.reserved() == 0.0);
        assert_eq!(device.shares.opens(device.now), None);
    }
}
