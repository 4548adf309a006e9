//! What graphs and other work of streams never wait for: each other's locks.

use std::ffi::c_void;

use cuda_abi::types::*;

use super::{STORE, THREAD, ended, event, instantiate, number, store, stream};
use crate::api::*;
use crate::testing::*;

/// Of all that a warm program does with streams, nothing takes a lock of another stream's, or one that
/// is held while something is put into another stream.
#[test]
fn a_locked_stream_holds_up_no_other() {
    let mine = context(0);
    let module = load(STORE);
    let store_it = function(module, "store\0");
    let (held, free) = (
        stream(CU_STREAM_NON_BLOCKING),
        stream(CU_STREAM_NON_BLOCKING),
    );
    let (to, marked) = (allocate(8), event());
    cuStreamBeginCapture_v2(free, THREAD).unwrap();
    store(store_it, free, to, 3).unwrap();
    let graph = ended(free).unwrap();
    let exec = instantiate(graph);
    let other = event();
    cuEventRecord(other, held).unwrap();
    let target = crate::stream::target(held).unwrap();
    let order_lock = target.guard();
    let mine_bits = mine.bits();
    let (store_bits, free_bits) = (store_it.bits(), free.bits());
    let (exec_bits, marked_bits, other_bits) = (exec.bits(), marked.bits(), other.bits());
    let worker = std::thread::spawn(move || {
        let (store_it, free) = (
            CUfunction::from_bits(store_bits),
            CUstream::from_bits(free_bits),
        );
        let marked = CUevent::from_bits(marked_bits);
        cuCtxSetCurrent(CUcontext::from_bits(mine_bits)).unwrap();
        for _ in 0..10 {
            store(store_it, free, to, 4).unwrap();
            cuEventRecord(marked, free).unwrap();
            cuStreamWaitEvent(free, CUevent::from_bits(other_bits), 0).unwrap();
            cuLaunchHostFunc(free, Some(nothing), data_of_call(std::ptr::null_mut())).unwrap();
            cuGraphLaunch(CUgraphExec::from_bits(exec_bits), free).unwrap();
            cuEventSynchronize(marked).unwrap();
            cuStreamSynchronize(free).unwrap();
        }
    });
    // Were a lock shared, this would never end.
    worker.join().unwrap();
    drop(order_lock);
    assert_eq!(number(to), 3);
    cuCtxDestroy_v2(mine).unwrap();
}

extern "C" fn nothing(_: *mut c_void) {}

#[test]
fn a_launch_and_a_record_in_its_stream_do_not_wait_for_each_other() {
    const EXTERNAL: u32 = 1;
    let mine = context(0);
    let (on, waited) = (stream(CU_STREAM_NON_BLOCKING), event());
    cuEventRecord(waited, on).unwrap();
    cuStreamBeginCapture_v2(on, THREAD).unwrap();
    cuStreamWaitEvent(on, waited, EXTERNAL).unwrap();
    let exec = instantiate(ended(on).unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    for launches in [true, false] {
        let (tell, mine, exec) = (tell.clone(), mine.bits(), exec.bits());
        let (on, waited) = (on.bits(), waited.bits());
        std::thread::spawn(move || {
            cuCtxSetCurrent(CUcontext::from_bits(mine)).unwrap();
            let on = CUstream::from_bits(on);
            for _ in 0..3000 {
                match launches {
                    true => cuGraphLaunch(CUgraphExec::from_bits(exec), on).unwrap(),
                    false => cuEventRecord(CUevent::from_bits(waited), on).unwrap(),
                }
            }
            tell.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        let done = told.recv_timeout(std::time::Duration::from_secs(60));
        done.expect("each has what the other waits for");
    }
    cuCtxDestroy_v2(mine).unwrap();
}
