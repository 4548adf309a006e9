//! Runs of which a device has told that they are over, before the server knows it.

use std::sync::PoisonError;

use super::*;

#[test]
fn a_run_counts_until_the_server_knows_that_it_is_over() {
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = start();
    let mine = context(0);
    let store_it = function(load(STORE), "store\0");
    let gate = function(load("kernel gate\n\0"), "gate\0");
    let (captured, to) = (stream(CU_STREAM_NON_BLOCKING), allocate(8));
    cuStreamBeginCapture_v2(captured, THREAD).unwrap();
    for value in [1, 2] {
        store(store_it, captured, to, value).unwrap();
    }
    let graph = ended(captured).unwrap();
    let exec = instantiate(graph);
    for _ in 0..2 {
        cuGraphLaunch(exec, captured).unwrap();
    }
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(runs(to), [2]);
    let last = {
        let launches = shared.launches.lock().unwrap();
        let mut here = launches.iter().rev();
        let last = here.find(|launch| launch.data.starts_with(&to.to_le_bytes()));
        last.map(|launch| (launch.stream, launch.sequence)).unwrap()
    };

    shared.open_gate(false);
    launch(gate, captured, &mut []).unwrap();
    cuGraphLaunch(exec, captured).unwrap();
    assert_eq!(cuStreamQuery(captured), Err(CUresult::ERROR_NOT_READY));
    shared.tell(last.0, last.1 + 2);
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(launched(to).len(), 4, "it is not over");
    cuGraphExecDestroy(exec).unwrap();
    assert_eq!(runs(to), [2], "it counts");
    shared.open_gate(true);
    // Of this nobody tells but the server.
    store(store_it, captured, to, 3).unwrap();
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(launched(to).len(), 4 + 3);
    cuGraphExecDestroy(instantiate(graph)).unwrap();
    assert_eq!(runs(to), [0_usize; 0]);
    cuCtxDestroy_v2(mine).unwrap();
}
