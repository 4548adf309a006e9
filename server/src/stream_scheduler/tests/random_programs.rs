//! Programs of random records: whatever they post, every rule of the order holds, and every record is complete in the end.

use super::*;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Everything that was posted, with what CUDA says it waits for, worked out the slow way.
#[derive(Default)]
struct Model {
    needs: std::collections::HashMap<(u32, u64), Vec<(u32, u64)>>,
    posted: Vec<At>,
    submitted: std::collections::HashMap<u32, u64>,
}

impl Model {
    fn ready(&self, place: At, progress: &CompletionTracker) -> bool {
        self.submitted.get(&place.stream).copied().unwrap_or(0) + 1 == place.sequence
            && self.needs[&(place.stream, place.sequence)]
                .iter()
                .all(|&(stream, until)| progress.completed(stream) >= until)
    }

    fn submit(&mut self, place: At, progress: &CompletionTracker) {
        assert!(self.ready(place, progress), "{place:?} went too early");
        self.submitted.insert(place.stream, place.sequence);
    }
}

#[test]
fn random_programs_keep_every_rule_and_nothing_is_forgotten() {
    const BLOCKING: [u32; 3] = [40, 41, 42];
    const FREE: [u32; 2] = [50, 51];
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let (mut scheduler, progress) = with_streams(&[
            (40, 0),
            (41, 0),
            (42, 0),
            (50, STREAM_NON_BLOCKING),
            (51, STREAM_NON_BLOCKING),
        ]);
        let all: Vec<u32> = [0].into_iter().chain(BLOCKING).chain(FREE).collect();
        let mut model = Model::default();
        let mut taken: std::collections::HashMap<u32, u64> =
            all.iter().map(|&slot| (slot, 0)).collect();
        let mut frees: Vec<Vec<(u32, u64)>> = Vec::new();
        let mut freed = 0;
        for round in 0..300 {
            let posting = round < 200;
            match dice.roll(if posting { 10 } else { 3 }) {
                3..=8 => {
                    let slot = all[dice.roll(all.len() as u64) as usize];
                    let place = at(slot, taken[&slot] + 1);
                    let mut needs = Vec::new();
                    let step = if dice.roll(3) == 0 {
                        let on = all[dice.roll(all.len() as u64) as usize];
                        let until = dice.roll(taken[&on] + 1);
                        if on != slot {
                            needs.push((on, until));
                        }
                        OrderingConstraint::Wait { on, until }
                    } else {
                        OrderingConstraint::Work
                    };
                    if slot == 0 {
                        needs.extend(BLOCKING.map(|other| (other, taken[&other])));
                    } else if BLOCKING.contains(&slot) {
                        needs.push((0, taken[&0]));
                    }
                    taken.insert(slot, place.sequence);
                    model.needs.insert((slot, place.sequence), needs);
                    model.posted.push(place);
                    match admit(&mut scheduler, &progress, place, step) {
                        Disposition::Submit => model.submit(place, &progress),
                        Disposition::Blocked => assert!(
                            !model.ready(place, &progress),
                            "{place:?} was held for nothing"
                        ),
                        Disposition::Closed => panic!("nothing is closed here"),
                    }
                }
                9 => {
                    let snapshot: Vec<_> = all.iter().map(|slot| (*slot, taken[slot])).collect();
                    frees.push(snapshot);
                    if scheduler.defer(frees.len() as u32 - 1, &progress).is_some() {
                        assert_eq!(freed, frees.len() - 1, "frees keep their order");
                        freed += 1;
                    }
                }
                _ => {
                    // The engine completes something that it has.
                    let slot = all[dice.roll(all.len() as u64) as usize];
                    let done = progress.completed(slot);
                    let mut woken = false;
                    if model.submitted.get(&slot).copied().unwrap_or(0) > done {
                        woken = progress.complete(slot, done + 1);
                    }
                    if !woken {
                        continue;
                    }
                    for place in release(&mut scheduler, &progress) {
                        model.submit(place, &progress);
                    }
                    while let Some(action) = scheduler.pop_ready_action(&progress) {
                        assert_eq!(action as usize, freed, "frees keep their order");
                        assert!(
                            frees[freed]
                                .iter()
                                .all(|&(stream, until)| progress.completed(stream) >= until),
                            "a free came too early"
                        );
                        freed += 1;
                    }
                }
            }
            // Whatever can go has gone, though the session only looks when it is woken.
            for place in &model.posted {
                assert!(
                    model.submitted.get(&place.stream).copied().unwrap_or(0) >= place.sequence
                        || !model.ready(*place, &progress),
                    "{place:?} of seed {seed} was forgotten"
                );
            }
        }
        // Let everything finish.
        for _ in 0..2000 {
            for &slot in &all {
                let done = progress.completed(slot);
                if model.submitted.get(&slot).copied().unwrap_or(0) > done
                    && progress.complete(slot, done + 1)
                {
                    for place in release(&mut scheduler, &progress) {
                        model.submit(place, &progress);
                    }
                    while scheduler.pop_ready_action(&progress).is_some() {
                        freed += 1;
                    }
                }
            }
        }
        for &slot in &all {
            assert_eq!(progress.completed(slot), taken[&slot], "seed {seed}");
        }
        assert_eq!(freed, frees.len(), "seed {seed}");
        assert_eq!(scheduler.blocked_bytes(), 0, "seed {seed}");
    }
}
