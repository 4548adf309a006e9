//! The runs of a client: launches that it makes together, again and again, as those of a graph.
//!
//! Owns which runs there are, and what they may take. Called by the clients of every engine. Must not know
//! what an engine keeps of a launch, which is its own `R`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::operations::{RUN_BYTES, RUN_LENGTH, RUNS, RunAdd};

use crate::bound::{Bound, Charge};

/// What one client has of runs. A run of which something was wrong is there too, as what that was.
#[derive(Debug)]
pub struct Runs<R> {
    runs: BTreeMap<u32, Result<Arc<Counted<R>>, CUresult>>,
    /// Within what may be held for the client.
    bound: Arc<Bound>,
}

/// A run, which counts for its client for as long as anybody has it: one that is forgotten may wait in a stream.
#[derive(Debug)]
pub struct Counted<R> {
    run: R,
    length: usize,
    charge: Charge,
}

impl<R> Deref for Counted<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.run
    }
}

impl<R: Default> Runs<R> {
    /// No runs. `held` is what may be held for the client.
    #[must_use]
    pub fn new(held: &Arc<Bound>) -> Self {
        Self {
            runs: BTreeMap::new(),
            bound: Arc::new(Bound::within(held, RUN_BYTES as u64)),
        }
    }

    /// Has `add` add a launch with so many bytes of data to a run.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a number that no run can have. What else is wrong is told by
    /// [`Runs::get`]: CUDA_ERROR_INVALID_VALUE for a run that is too long or was launched,
    /// CUDA_ERROR_OUT_OF_MEMORY if all together take too much, and what `add` gives.
    pub fn add(
        &mut self,
        number: u32,
        data: usize,
        add: impl FnOnce(&mut R) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        if number >= RUNS {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let state = self.runs.entry(number).or_insert_with(|| {
            Ok(Arc::new(Counted {
                run: R::default(),
                length: 0,
                charge: Charge::new(Arc::clone(&self.bound)),
            }))
        });
        let Ok(counted) = state else {
            return Ok(());
        };
        let added = Arc::get_mut(counted)
            .filter(|counted| counted.length < RUN_LENGTH)
            .ok_or(CUresult::ERROR_INVALID_VALUE)
            .and_then(|counted| {
                counted.length += 1;
                match counted.charge.grow(RunAdd::bytes(data) as u64) {
                    true => add(&mut counted.run),
                    false => Err(CUresult::ERROR_OUT_OF_MEMORY),
                }
            });
        if let Err(code) = added {
            *state = Err(code);
        }
        Ok(())
    }

    /// A run.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if there is none, and what was wrong with a launch of it.
    pub fn get(&self, number: u32) -> Result<&Arc<Counted<R>>, CUresult> {
        let state = self.runs.get(&number);
        let state = state.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        state.as_ref().map_err(|code| *code)
    }

    /// Forgets a run.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if there is none.
    pub fn remove(&mut self, number: u32) -> Result<(), CUresult> {
        let run = self.runs.remove(&number);
        run.map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Lets go of the runs that have something which is gone, as of a module. To launch them is
    /// CUDA_ERROR_INVALID_HANDLE.
    pub fn refuse(&mut self, is_gone: impl Fn(&R) -> bool) {
        for state in self.runs.values_mut() {
            if state.as_ref().is_ok_and(|counted| is_gone(counted)) {
                *state = Err(CUresult::ERROR_INVALID_HANDLE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(held: u64) -> Runs<Vec<u32>> {
        Runs::new(&Arc::new(Bound::new(held)))
    }

    fn push(value: u32) -> impl FnOnce(&mut Vec<u32>) -> Result<(), CUresult> {
        move |launches| {
            launches.push(value);
            Ok(())
        }
    }

    fn wrong_with(runs: &Runs<Vec<u32>>, number: u32) -> CUresult {
        runs.get(number).expect_err("something wrong")
    }

    #[test]
    fn a_run_has_what_was_added_until_it_is_forgotten() {
        let mut runs = runs(1 << 20);
        for value in [1, 2, 3] {
            runs.add(7, 8, push(value)).unwrap();
        }
        assert_eq!(***runs.get(7).unwrap(), [1, 2, 3]);
        let invalid = CUresult::ERROR_INVALID_HANDLE;
        assert_eq!(wrong_with(&runs, 8), invalid);
        assert_eq!(runs.add(RUNS, 8, push(1)), Err(invalid));
        assert_eq!(runs.remove(7), Ok(()));
        assert_eq!(
            (runs.remove(7), wrong_with(&runs, 7)),
            (Err(invalid), invalid)
        );
        assert_eq!(runs.bound.taken(), 0);
    }

    #[test]
    fn what_is_wrong_with_a_launch_is_what_comes_of_the_run() {
        let mut runs = runs(1 << 20);
        runs.add(0, 8, push(1)).unwrap();
        let wrong = CUresult::ERROR_INVALID_IMAGE;
        runs.add(0, 8, |_| Err(wrong)).unwrap();
        runs.add(0, 8, push(2)).unwrap();
        assert_eq!(wrong_with(&runs, 0), wrong);
        for value in 0..=RUN_LENGTH as u32 {
            runs.add(1, 8, push(value)).unwrap();
        }
        assert_eq!(wrong_with(&runs, 1), CUresult::ERROR_INVALID_VALUE);
        // One that is being launched.
        runs.add(2, 8, push(1)).unwrap();
        let launched = Arc::clone(runs.get(2).unwrap());
        runs.add(2, 8, push(2)).unwrap();
        assert_eq!(wrong_with(&runs, 2), CUresult::ERROR_INVALID_VALUE);
        // It counts until that is over.
        assert_eq!(runs.remove(2), Ok(()));
        assert_eq!(
            (&launched[..], runs.bound.taken()),
            (&[1][..], RunAdd::bytes(8) as u64)
        );
        drop(launched);
        assert_eq!(runs.bound.taken(), 0);
    }

    #[test]
    fn runs_take_what_may_be_held_for_their_client_and_no_more() {
        let one = RunAdd::bytes(4096);
        let mut tight = runs(2 * one as u64);
        for number in 0..3 {
            tight.add(number, 4096, push(1)).unwrap();
        }
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        assert_eq!(wrong_with(&tight, 2), full);
        tight.refuse(|launches| launches == &[1]);
        assert_eq!(wrong_with(&tight, 0), CUresult::ERROR_INVALID_HANDLE);
        assert_eq!(tight.bound.taken(), 0);
        // And no client has more than this.
        let mut wide = runs(u64::MAX);
        let fit = RUN_BYTES / one;
        for number in 0..=fit {
            wide.add((number / RUN_LENGTH) as u32, 4096, push(1))
                .unwrap();
        }
        assert_eq!(wrong_with(&wide, (fit / RUN_LENGTH) as u32), full);
    }
}
