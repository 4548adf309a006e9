//! Semaphores of other interfaces.
//!
//! They show that a wait holds its own stream until the signal, in a stream and in a graph, and what is refused.

use std::os::fd::{AsRawFd, IntoRawFd};

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, List};
use crate::testing::*;

const TIMELINE: u32 = 9;
const WRONG: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

fn described(r#type: u32, fd: i32) -> CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
        r#type,
        handle: [u64::from(fd.cast_unsigned()), 0],
        flags: 0,
        reserved: [0; 16],
    }
}

fn import(
    described: &CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC,
) -> Result<CUexternalSemaphore, CUresult> {
    let mut semaphore = CUexternalSemaphore::NULL;
    // SAFETY: it lives as long as the call.
    let described = unsafe { In::new(described) };
    cuImportExternalSemaphore(out(&mut semaphore), described).map(|()| semaphore)
}

fn timeline() -> CUexternalSemaphore {
    let file = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
    import(&described(TIMELINE, file)).unwrap()
}

fn signalled(value: u64) -> CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
        value,
        nvSciSync: 0,
        key: 0,
        reserved0: [0; 12],
        flags: 0,
        reserved1: [0; 16],
    }
}

fn awaited(value: u64) -> CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
        value,
        nvSciSync: 0,
        key: 0,
        timeoutMs: 0,
        padding: 0,
        reserved0: [0; 10],
        flags: 0,
        reserved1: [0; 16],
    }
}

fn list<T: Copy>(values: &[T]) -> List<T> {
    // SAFETY: the slice is as long as it says, and outlives the call that it is for.
    unsafe { List::new(values.as_ptr(), values.len()) }
}

fn signal(semaphore: CUexternalSemaphore, value: u64, stream: CUstream) -> Outcome {
    cuSignalExternalSemaphoresAsync(list(&[semaphore]), list(&[signalled(value)]), 1, stream)
}

fn wait(semaphore: CUexternalSemaphore, value: u64, stream: CUstream) -> Outcome {
    cuWaitExternalSemaphoresAsync(list(&[semaphore]), list(&[awaited(value)]), 1, stream)
}

fn streams() -> [CUstream; 2] {
    [0; 2].map(|_| {
        let mut stream = CUstream::NULL;
        cuStreamCreate(out(&mut stream), CU_STREAM_NON_BLOCKING).unwrap();
        stream
    })
}

#[test]
fn a_wait_holds_its_stream_until_the_signal() {
    let mine = context(0);
    let [waits, signals] = streams();
    let semaphore = timeline();
    wait(semaphore, 3, waits).unwrap();
    signal(semaphore, 2, signals).unwrap();
    cuStreamSynchronize(signals).unwrap();
    assert_eq!(cuStreamQuery(waits), Err(CUresult::ERROR_NOT_READY));
    signal(semaphore, 3, signals).unwrap();
    cuStreamSynchronize(waits).unwrap();
    cuDestroyExternalSemaphore(semaphore).unwrap();
    assert_eq!(cuDestroyExternalSemaphore(semaphore), WRONG);
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(wait(semaphore, 3, waits), gone);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn graphs_signal_and_wait() {
    let mine = context(0);
    let [waits, signals] = streams();
    let semaphore = timeline();
    // Captured.
    cuStreamBeginCapture_v2(waits, CUstreamCaptureMode::THREAD_LOCAL).unwrap();
    wait(semaphore, 7, waits).unwrap();
    let mut captured = CUgraph::NULL;
    cuStreamEndCapture(waits, out(&mut captured)).unwrap();
    // Built.
    let (mut built, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    cuGraphCreate(out(&mut built), 0).unwrap();
    let (mut handles, first, then) = ([semaphore], [signalled(5)], [signalled(7)]);
    let mut params = CUDA_EXT_SEM_SIGNAL_NODE_PARAMS {
        extSemArray: handles.as_mut_ptr(),
        paramsArray: first.as_ptr(),
        numExtSems: 1,
    };
    // SAFETY: they live as long as the call.
    let made = unsafe { In::new(&raw const params) };
    cuGraphAddExternalSemaphoresSignalNode(out(&mut node), built, List::null(), 0, made).unwrap();
    let mut kind = CUgraphNodeType(0);
    cuGraphNodeGetType(node, out(&mut kind)).unwrap();
    assert_eq!(kind, CUgraphNodeType::EXT_SEMAS_SIGNAL);
    let mut told = params;
    cuGraphExternalSemaphoresSignalNodeGetParams(node, out(&mut told)).unwrap();
    assert_eq!(told.numExtSems, 1);
    // SAFETY: the node's own, which it still has.
    let own = unsafe { (*told.extSemArray, *told.paramsArray) };
    assert_eq!(own, (semaphore, first[0]));
    let mut of_waits = CUDA_EXT_SEM_WAIT_NODE_PARAMS {
        extSemArray: std::ptr::null_mut(),
        paramsArray: std::ptr::null(),
        numExtSems: 0,
    };
    let other = cuGraphExternalSemaphoresWaitNodeGetParams(node, out(&mut of_waits));
    assert_eq!(other, WRONG, "a node that signals waits for nothing");
    let [waiting, signalling] = [captured, built].map(|graph| {
        let mut exec = CUgraphExec::NULL;
        cuGraphInstantiateWithFlags(out(&mut exec), graph, 0).unwrap();
        exec
    });
    cuGraphLaunch(waiting, waits).unwrap();
    cuGraphLaunch(signalling, signals).unwrap();
    cuStreamSynchronize(signals).unwrap();
    assert_eq!(cuStreamQuery(waits), Err(CUresult::ERROR_NOT_READY));
    params.paramsArray = then.as_ptr();
    // SAFETY: they live as long as the call.
    let changed = unsafe { In::new(&raw const params) };
    cuGraphExecExternalSemaphoresSignalNodeSetParams(signalling, node, changed).unwrap();
    params.numExtSems = 0;
    // SAFETY: they live as long as the call.
    let fewer = unsafe { In::new(&raw const params) };
    assert!(cuGraphExecExternalSemaphoresSignalNodeSetParams(signalling, node, fewer).is_err());
    cuGraphLaunch(signalling, signals).unwrap();
    cuStreamSynchronize(waits).unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn what_is_no_semaphore_is_refused_and_the_descriptor_stays() {
    let mine = context(0);
    let file = std::fs::File::open("/dev/null").unwrap();
    let fd = file.as_raw_fd();
    for (kind, expected) in [
        (0, CUresult::ERROR_INVALID_VALUE),
        (11, CUresult::ERROR_INVALID_VALUE),
        (2, CUresult::ERROR_NOT_SUPPORTED),
        (10, CUresult::ERROR_NOT_SUPPORTED),
    ] {
        assert_eq!(import(&described(kind, fd)), Err(expected), "{kind}");
    }
    assert_eq!(import(&described(TIMELINE, -1)).map(drop), WRONG);
    let mut flags = described(TIMELINE, fd);
    flags.flags = 1;
    assert_eq!(import(&flags).map(drop), WRONG);
    assert!(file.metadata().is_ok(), "still the program's");
    let [stream, _] = streams();
    let semaphore = timeline();
    let mut params = signalled(1);
    params.flags = 1;
    let flagged = cuSignalExternalSemaphoresAsync(list(&[semaphore]), list(&[params]), 1, stream);
    assert_eq!(flagged, WRONG);
    let nothing = cuSignalExternalSemaphoresAsync(List::null(), List::null(), 1, stream);
    assert_eq!(nothing, WRONG);
    let unknown = CUexternalSemaphore::from_bits(5);
    let invalid = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(wait(unknown, 0, stream), invalid);
    cuCtxDestroy(mine).unwrap();
}
