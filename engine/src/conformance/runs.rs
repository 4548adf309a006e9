//! Runs: launches that are kept, and made again and again as one operation.

use protocol::operations::{Launch, ModuleUnload, RUN_LENGTH, RUNS, RunAdd, RunDestroy};

use super::kernels;
use super::rig::{Guest, params, simple_launch};
use crate::arena::GRANULE;
use crate::{CUresult, Engine};

/// Each launch of a run has its own parameters and comes in its turn, in whichever stream the run is launched, and
/// between what is posted before and after it.
pub fn a_run_does_what_its_launches_do_in_their_order(engine: &dyn Engine) {
    const PAIRS: u64 = RUN_LENGTH as u64 / 2;
    let mut guest = Guest::new(engine);
    let (poke, peek) = (guest.module(kernels::POKE), guest.module(kernels::PEEK));
    let word = guest.commit(0, GRANULE);
    let list = guest.commit(GRANULE, 4 * PAIRS + GRANULE);
    let (poke, peek) = (simple_launch(poke, 1, 1), simple_launch(peek, 1, 1));
    for number in 0..PAIRS {
        guest.run_add(3, &poke, &params(&[word, 7 * number + 1]));
        guest.run_add(3, &peek, &params(&[word, list + 4 * number]));
    }
    // A short one, which leaves what it finds.
    guest.run_add(4, &peek, &params(&[word, word + 4]));
    guest.run_add(4, &peek, &params(&[word, word + 8]));
    guest.stream(40);
    for round in 0..6_u32 {
        let stream = [0, 40][round as usize % 2];
        guest.write(stream, word, &round.to_le_bytes());
        guest.run_launch(stream, 4);
        guest.write(stream, list, &vec![0xff; 4 * PAIRS as usize]);
        guest.run_launch(stream, 3);
        guest.launch(stream, poke.module, 1, 1, &params(&[word, 5]));
        assert_eq!(guest.wait(stream), Ok(()));
        assert_eq!([guest.word(word + 4), guest.word(word + 8)], [round; 2]);
        let words = guest.download(list, 4 * PAIRS);
        for (number, found) in words.chunks_exact(4).enumerate() {
            assert_eq!(
                found,
                (7 * number as u32 + 1).to_le_bytes(),
                "{round}: {number}"
            );
        }
        assert_eq!(guest.word(word), 5);
    }
    assert!(guest.observer.completed(0).is_sorted_by_key(|done| done.0));
    // Many at once, and forgotten before they are done; the number is another run's then.
    for _ in 0..100 {
        guest.run_launch(40, 3);
    }
    guest.run_destroy(3);
    guest.run_add(3, &poke, &params(&[word, 9]));
    guest.run_launch(40, 3);
    assert_eq!(guest.wait(40), Ok(()));
    let last = guest.download(list + 4 * (PAIRS - 1), 4);
    assert_eq!(last, (7 * (PAIRS as u32 - 1) + 1).to_le_bytes());
    assert_eq!(guest.word(word), 9);
}

/// What is wrong with a launch is the result of all of its run, in the stream's order, and harms nothing.
pub fn a_run_with_something_wrong_does_nothing(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::POKE);
    let word = guest.commit(0, GRANULE);
    guest.context(1, 0);
    let (invalid, handle) = (
        CUresult::ERROR_INVALID_VALUE,
        CUresult::ERROR_INVALID_HANDLE,
    );
    let good = simple_launch(module, 1, 1);
    let data = params(&[word, 7]);
    let wrong = [
        (Launch { module: 77, ..good }, &data[..], handle),
        (Launch { kernel: 1, ..good }, &data[..], handle),
        (good, &data[..9], invalid),
        (Launch { flags: 64, ..good }, &data[..], invalid),
    ];
    for (run, (launch, data, code)) in (0..).zip(wrong) {
        guest.run_add(run, &good, &params(&[word, 8]));
        guest.run_add(run, &launch, data);
        guest.run_launch(0, run);
        assert_eq!(guest.wait(0), Err(code), "{launch:?}");
        assert_eq!(guest.word(word), 0, "{launch:?}");
    }
    // None of these numbers; one of no launches any more; one too long; one of another context's kernels.
    guest.run_add(10, &good, &data);
    guest.run_destroy(10);
    for _ in 0..=RUN_LENGTH {
        guest.run_add(11, &good, &data);
    }
    guest.run_add(12, &good, &data);
    let cases = [
        (0, 99, handle),
        (0, RUNS, handle),
        (0, 10, handle),
        (0, 11, invalid),
        (1, 12, handle),
    ];
    for (stream, run, code) in cases {
        guest.run_launch(stream, run);
        assert_eq!(guest.wait(stream), Err(code), "{run}");
    }
    let beyond = RunAdd::new(RUNS, &good);
    assert_eq!(guest.client.run_add(&beyond, &data), Err(handle));
    let none = RunDestroy { run: 99 };
    assert_eq!(guest.client.run_destroy(&none, &[]), Err(handle));
    assert_eq!(guest.word(word), 0);
    guest.run_launch(0, 12);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(word), 7);
    assert!(guest.observer.faults().is_empty());
}

/// A module that is unloaded takes no run along that is under way; those that have kernels of it are no runs any
/// more.
pub fn a_run_whose_module_is_unloaded_is_none(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let (first, second) = (guest.module(kernels::POKE), guest.module(kernels::POKE));
    let word = guest.commit(0, GRANULE);
    for (run, module) in [(0, first), (0, second), (1, second)] {
        guest.run_add(run, &simple_launch(module, 1, 1), &params(&[word, 1]));
    }
    for _ in 0..3 {
        guest.run_launch(0, 0);
    }
    assert_eq!(guest.wait(0), Ok(()));
    guest.run_launch(0, 0);
    let unload = ModuleUnload { module: first };
    assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    assert_eq!(guest.wait(0), Ok(()));
    guest.run_launch(0, 0);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_HANDLE));
    guest.run_launch(0, 1);
    assert_eq!(guest.wait(0), Ok(()));
}
