//! Host functions, captures and graphs.
//!
//! They show when what was captured or built runs, in which order, and what breaks a capture.

mod locks;
mod told_runs;

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, List, ListOut};
use crate::testing::*;

const STORE: &str = "kernel store 8 8\n\0";
const THREAD: CUstreamCaptureMode = CUstreamCaptureMode::THREAD_LOCAL;

fn stream(flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    cuStreamCreate(out(&mut stream), flags).expect("a stream");
    stream
}

fn event() -> CUevent {
    let mut event = CUevent::NULL;
    cuEventCreate(out(&mut event), CU_EVENT_DISABLE_TIMING).expect("an event");
    event
}

/// Puts `value` where `to` is.
fn store(function: CUfunction, on: CUstream, mut to: u64, mut value: u64) -> Outcome {
    let params = &mut [(&raw mut to).cast(), (&raw mut value).cast()];
    launch(function, on, params)
}

fn number(at: u64) -> u64 {
    u64::from_le_bytes(read(at, 8).try_into().unwrap())
}

fn capturing(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = CUstreamCaptureStatus(9);
    cuStreamIsCapturing(stream, out(&mut status)).unwrap();
    status
}

fn ended(stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = CUgraph::from_bits(7);
    let result = cuStreamEndCapture(stream, out(&mut graph));
    assert_eq!(
        result.is_err(),
        graph.is_null(),
        "no graph of a broken capture"
    );
    result.map(|()| graph)
}

fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    // SAFETY: NULL asks for the count.
    cuGraphGetNodes(
        graph,
        unsafe { ListOut::new(std::ptr::null_mut(), 0) },
        out(&mut count),
    )
    .unwrap();
    let mut nodes = vec![CUgraphNode::NULL; count];
    // SAFETY: there is room for as many as there are.
    let list = unsafe { ListOut::new(nodes.as_mut_ptr(), nodes.len()) };
    cuGraphGetNodes(graph, list, out(&mut count)).unwrap();
    nodes
}

fn none() -> List<CUgraphNode> {
    List::null()
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut exec = CUgraphExec::NULL;
    cuGraphInstantiateWithFlags(out(&mut exec), graph, 0).expect("an executable graph");
    exec
}

static CALLS: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());

extern "C" fn note(data: *mut c_void) {
    // What a host function must not call says so.
    let asked = crate::stream::host_function::check_outside_host_function();
    CALLS.lock().unwrap().push((data.addr(), asked));
}

extern "C" fn noted(stream: CUstream, status: CUresult, data: *mut c_void) {
    assert_eq!(status, CUresult::SUCCESS);
    assert!(!stream.is_null());
    note(data);
}

#[test]
fn host_functions_are_called_in_the_order_of_their_stream_and_may_call_nothing() {
    let mine = context(0);
    let module = load(STORE);
    let store_it = function(module, "store\0");
    let streams = [stream(CU_STREAM_NON_BLOCKING), stream(0), CUstream::NULL];
    let to = allocate(8);
    for (which, stream) in streams.into_iter().enumerate() {
        for round in 0..20 {
            let data = std::ptr::without_provenance_mut(1000 * (which + 1) + round);
            store(store_it, stream, to, round as u64).unwrap();
            match round % 2 {
                0 => cuLaunchHostFunc(stream, Some(note), data_of_call(data)).unwrap(),
                _ if which == 2 => {
                    cuLaunchHostFunc(stream, Some(note), data_of_call(data)).unwrap();
                }
                _ => cuStreamAddCallback(stream, Some(noted), data_of_call(data), 0).unwrap(),
            }
        }
    }
    cuCtxSynchronize().unwrap();
    let calls = CALLS.lock().unwrap();
    for which in 1..=3 {
        let of_stream = calls.iter().filter(|(data, _)| data / 1000 == which);
        let numbers: Vec<usize> = of_stream.clone().map(|(data, _)| data % 1000).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        for (_, asked) in of_stream {
            assert_eq!(*asked, Err(CUresult::ERROR_NOT_PERMITTED));
        }
    }
    drop(calls);
    assert_eq!(number(to), 19);
    let null = std::ptr::null_mut();
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(
        cuLaunchHostFunc(streams[0], None, data_of_call(null)),
        wrong
    );
    assert_eq!(
        cuStreamAddCallback(streams[0], Some(noted), data_of_call(null), 1),
        wrong
    );
    cuCtxDestroy_v2(mine).unwrap();
}

/// How many launches the runs have that store to an address, the shortest first.
fn runs(to: u64) -> Vec<usize> {
    // What was posted before has come when a later call has its reply.
    cuMemFree_v2(allocate(8)).unwrap();
    let runs = start().runs.lock().unwrap();
    let here = runs.values();
    let here = here.filter(|launches| launches[0].starts_with(&to.to_le_bytes()));
    let mut lengths: Vec<_> = here.map(Vec::len).collect();
    lengths.sort_unstable();
    lengths
}

/// The places of the launches so far that store to an address.
fn launched(to: u64) -> Vec<u64> {
    let launches = start().launches.lock().unwrap();
    let here = launches.iter();
    let here = here.filter(|launch| launch.data.starts_with(&to.to_le_bytes()));
    here.map(|launch| launch.sequence).collect()
}

#[test]
fn a_graph_that_is_launched_again_is_launched_in_runs() {
    let mine = context(0);
    let store_it = function(load(STORE), "store\0");
    let (captured, to) = (stream(CU_STREAM_NON_BLOCKING), allocate(8));
    cuStreamBeginCapture_v2(captured, THREAD).unwrap();
    for value in [1, 2, 3] {
        store(store_it, captured, to, value).unwrap();
    }
    cuMemsetD8Async(to, 0, 8, captured).unwrap();
    for value in [4, 5] {
        store(store_it, captured, to, value).unwrap();
    }
    // One alone is no run.
    cuMemsetD8Async(to, 0, 8, captured).unwrap();
    store(store_it, captured, to, 6).unwrap();
    let graph = ended(captured).unwrap();
    let exec = instantiate(graph);
    let launch = |number: usize| {
        cuGraphLaunch(exec, captured).unwrap();
        cuStreamSynchronize(captured).unwrap();
        assert_eq!(self::number(to), 6);
        assert_eq!(launched(to).len(), 6 * number);
    };
    launch(1);
    assert_eq!(runs(to), [0_usize; 0], "launched once");
    launch(2);
    assert_eq!(runs(to), [2, 3]);
    launch(3);
    let places = launched(to);
    let [first, .., last] = places[12..] else {
        panic!("{places:?}");
    };
    // Three, a fill, two, a fill, one.
    assert_eq!((places[12..15].to_vec(), last - first), (vec![first; 3], 4));
    // One that changes is launched node by node, and then again in runs.
    let nodes = nodes(graph);
    cuGraphNodeSetEnabled(exec, nodes[0], 0).unwrap();
    assert_eq!(runs(to), [0_usize; 0], "they are forgotten");
    cuGraphLaunch(exec, captured).unwrap();
    cuStreamSynchronize(captured).unwrap();
    assert_eq!((runs(to), launched(to).len()), (vec![], 18 + 5));
    cuGraphLaunch(exec, captured).unwrap();
    assert_eq!(runs(to), [2, 2]);
    cuGraphExecDestroy(exec).unwrap();
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(launched(to).len(), 18 + 10);
    // Whoever ends one next has those forgotten of which something was under way.
    cuGraphExecDestroy(instantiate(graph)).unwrap();
    let again = instantiate(graph);
    for _ in 0..2 {
        cuGraphLaunch(again, captured).unwrap();
    }
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(runs(to), [2, 3], "the former ones are gone");
    cuGraphExecDestroy(again).unwrap();
    assert_eq!(runs(to), [0_usize; 0]);
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn a_graph_that_kernels_may_launch_is_one_run_with_its_handle() {
    const DEVICE_LAUNCH: u64 = 4;
    let shared = start();
    let mine = context(0);
    let store_it = function(load(STORE), "store\0");
    let (captured, to) = (stream(CU_STREAM_NON_BLOCKING), allocate(8));
    let instantiate = |graph| {
        let mut exec = CUgraphExec::NULL;
        cuGraphInstantiateWithFlags(out(&mut exec), graph, DEVICE_LAUNCH).map(|()| exec)
    };
    let published = |exec: CUgraphExec| {
        let all = shared.published.lock().unwrap();
        let own = all.iter().filter(|(number, _)| *number == exec.bits());
        own.map(|(_, launches)| *launches).collect::<Vec<_>>()
    };
    let begin = || cuStreamBeginCapture_v2(captured, THREAD).unwrap();
    begin();
    for value in [1, 2, 3] {
        store(store_it, captured, to, value).unwrap();
    }
    let graph = ended(captured).unwrap();
    let exec = instantiate(graph).unwrap();
    let mut flags = 0;
    cuGraphExecGetFlags(exec, out(&mut flags)).unwrap();
    assert_eq!(
        (flags, published(exec), runs(to)),
        (DEVICE_LAUNCH, vec![3], vec![3])
    );
    for _ in 0..2 {
        cuGraphLaunch(exec, captured).unwrap();
        cuGraphUpload(exec, captured).unwrap();
    }
    cuStreamSynchronize(captured).unwrap();
    assert_eq!((number(to), launched(to).len()), (3, 6));
    assert_eq!(published(exec), [3], "once");
    // What changes is given to the server by an upload or by a launch.
    let nodes = nodes(graph);
    cuGraphNodeSetEnabled(exec, nodes[2], 0).unwrap();
    assert_eq!(published(exec), [3]);
    cuGraphUpload(exec, captured).unwrap();
    assert_eq!(published(exec), [3, 2]);
    cuGraphNodeSetEnabled(exec, nodes[1], 0).unwrap();
    cuGraphLaunch(exec, captured).unwrap();
    assert_eq!(published(exec), [3, 2, 1]);
    cuStreamSynchronize(captured).unwrap();
    assert_eq!(number(to), 1);
    cuGraphExecDestroy(exec).unwrap();
    assert_eq!(runs(to), [0_usize; 0]);
    // Only launches, and some.
    begin();
    store(store_it, captured, to, 1).unwrap();
    cuMemsetD8Async(to, 0, 8, captured).unwrap();
    let with_fill = ended(captured).unwrap();
    assert_eq!(instantiate(with_fill), Err(CUresult::ERROR_NOT_SUPPORTED));
    begin();
    let empty = ended(captured).unwrap();
    assert_eq!(instantiate(empty), Err(CUresult::ERROR_INVALID_VALUE));
    begin();
    for value in 0..=protocol::operations::RUN_LENGTH as u64 {
        store(store_it, captured, to, value).unwrap();
    }
    let long = ended(captured).unwrap();
    assert_eq!(instantiate(long), Err(CUresult::ERROR_NOT_SUPPORTED));
    assert_eq!(runs(to), [0_usize; 0]);
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn a_run_ends_where_other_lanes_wait_and_begins_where_its_own_waits() {
    let mine = context(0);
    let store_it = function(load(STORE), "store\0");
    let (main, side) = (
        stream(CU_STREAM_NON_BLOCKING),
        stream(CU_STREAM_NON_BLOCKING),
    );
    let (fork, join) = (event(), event());
    let (a, b) = (allocate(8), allocate(8));
    cuStreamBeginCapture_v2(main, THREAD).unwrap();
    store(store_it, main, a, 1).unwrap();
    store(store_it, main, a, 2).unwrap();
    cuEventRecord(fork, main).unwrap();
    cuStreamWaitEvent(side, fork, 0).unwrap();
    for value in [3, 4, 5] {
        store(store_it, main, a, value).unwrap();
        store(store_it, side, b, value).unwrap();
    }
    cuEventRecord(join, side).unwrap();
    cuStreamWaitEvent(main, join, 0).unwrap();
    store(store_it, main, a, 6).unwrap();
    store(store_it, main, a, 7).unwrap();
    let exec = instantiate(ended(main).unwrap());
    for _ in 0..3 {
        cuGraphLaunch(exec, main).unwrap();
    }
    cuStreamSynchronize(main).unwrap();
    assert_eq!((number(a), number(b)), (7, 5));
    assert_eq!((launched(a).len(), launched(b).len()), (3 * 7, 3 * 3));
    // Two before the fork and two behind the join; three on each side.
    assert_eq!((runs(a), runs(b)), (vec![2, 2, 3], vec![3]));
    cuGraphExecDestroy(exec).unwrap();
    assert_eq!((runs(a), runs(b)), (vec![], vec![]));
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn a_capture_with_a_fork_runs_nothing_before_its_launches() {
    let mine = context(0);
    let module = load(STORE);
    let store_it = function(module, "store\0");
    let (first, side) = (
        stream(CU_STREAM_NON_BLOCKING),
        stream(CU_STREAM_NON_BLOCKING),
    );
    let (fork, join) = (event(), event());
    let (a, b) = (allocate(8), allocate(8));
    cuMemsetD8_v2(a, 0, 8).unwrap();
    cuMemsetD8_v2(b, 0, 8).unwrap();
    cuCtxSynchronize().unwrap();
    cuStreamBeginCapture_v2(first, THREAD).unwrap();
    assert_eq!(
        cuStreamBeginCapture_v2(first, THREAD),
        Err(CUresult::ERROR_ILLEGAL_STATE)
    );
    cuEventRecord(fork, first).unwrap();
    cuStreamWaitEvent(side, fork, 0).unwrap();
    assert_eq!(capturing(side), CUstreamCaptureStatus::ACTIVE);
    store(store_it, first, a, 1).unwrap();
    store(store_it, side, b, 2).unwrap();
    cuEventRecord(join, side).unwrap();
    cuStreamWaitEvent(first, join, 0).unwrap();
    cuMemcpyDtoDAsync_v2(a, b, 4, first).unwrap();
    cuMemsetD8Async(b, 9, 1, first).unwrap();
    let graph = ended(first).unwrap();
    assert_eq!(capturing(side), CUstreamCaptureStatus::NONE);
    assert_eq!((number(a), number(b)), (0, 0));
    assert_eq!(nodes(graph).len(), 4);
    let exec = instantiate(graph);
    for _ in 0..3 {
        cuGraphLaunch(exec, first).unwrap();
        cuGraphLaunch(exec, side).unwrap();
    }
    cuCtxSynchronize().unwrap();
    assert_eq!((number(a), number(b)), (2, 9));
    // Events of a capture that is over stand for nothing.
    let gone = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(cuEventQuery(join), gone);
    assert_eq!(cuStreamWaitEvent(first, join, 0), gone);
    cuGraphExecDestroy(exec).unwrap();
    cuGraphDestroy(graph).unwrap();
    assert_eq!(cuGraphDestroy(graph), gone);
    assert_eq!(cuGraphLaunch(exec, first), gone);
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn what_a_capture_does_not_bear_breaks_it() {
    let mine = context(0);
    let (one, two) = (
        stream(CU_STREAM_NON_BLOCKING),
        stream(CU_STREAM_NON_BLOCKING),
    );
    let (before, inside) = (event(), event());
    cuEventRecord(before, two).unwrap();
    cuCtxSynchronize().unwrap();
    let broken = Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
    let unsupported = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let breaks = |what: &dyn Fn() -> Outcome, error: CUresult| {
        cuStreamBeginCapture_v2(one, CUstreamCaptureMode::RELAXED).unwrap();
        assert_eq!(what(), Err(error));
        assert_eq!(capturing(one), CUstreamCaptureStatus::INVALIDATED);
        assert_eq!(
            cuMemsetD8Async(0, 0, 0, one),
            Ok(()),
            "nothing is put there"
        );
        assert_eq!(cuEventRecord(inside, one).map(|()| CUgraph::NULL), broken);
        assert_eq!(ended(one), broken);
        assert_eq!(capturing(one), CUstreamCaptureStatus::NONE);
    };
    breaks(
        &|| cuStreamSynchronize(one),
        CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED,
    );
    breaks(
        &|| cuStreamQuery(one),
        CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED,
    );
    breaks(
        &cuCtxSynchronize,
        CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED,
    );
    breaks(
        &|| cuStreamWaitEvent(one, before, 0),
        CUresult::ERROR_STREAM_CAPTURE_ISOLATION,
    );
    breaks(
        &|| {
            cuEventRecord(inside, one)?;
            cuEventSynchronize(inside)
        },
        CUresult::ERROR_CAPTURED_EVENT,
    );
    breaks(
        &|| {
            cuEventRecord(inside, one)?;
            cuStreamWaitEvent(two, inside, 0)?;
            ended(two).map(drop)
        },
        CUresult::ERROR_STREAM_CAPTURE_UNMATCHED,
    );
    assert_eq!(ended(one), Err(CUresult::ERROR_ILLEGAL_STATE));
    assert_eq!(cuStreamBeginCapture_v2(CUstream::NULL, THREAD), unsupported);
    // A stream that joined and did something must come back.
    cuStreamBeginCapture_v2(one, THREAD).unwrap();
    cuEventRecord(inside, one).unwrap();
    cuStreamWaitEvent(two, inside, 0).unwrap();
    cuLaunchHostFunc(two, Some(note), data_of_call(std::ptr::null_mut())).unwrap();
    assert_eq!(ended(one), Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED));
    assert_eq!(capturing(two), CUstreamCaptureStatus::NONE);
    // Two captures cannot become one.
    cuStreamBeginCapture_v2(one, THREAD).unwrap();
    cuStreamBeginCapture_v2(two, THREAD).unwrap();
    cuEventRecord(inside, two).unwrap();
    assert_eq!(
        cuStreamWaitEvent(one, inside, 0),
        Err(CUresult::ERROR_STREAM_CAPTURE_MERGE)
    );
    assert_eq!((ended(one), ended(two)), (broken, broken));
    // A blocking stream's capture forbids the legacy stream.
    let blocking = stream(0);
    cuStreamBeginCapture_v2(blocking, THREAD).unwrap();
    let implicit = Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(cuEventRecord(before, CUstream::NULL), implicit);
    assert_eq!(ended(blocking), broken);
    assert_eq!(cuEventRecord(before, CUstream::NULL), Ok(()));
    // Ended by another thread it is gone.
    cuStreamBeginCapture_v2(one, THREAD).unwrap();
    let session_context = mine.bits();
    let other = std::thread::spawn(move || {
        cuCtxSetCurrent(CUcontext::from_bits(session_context)).unwrap();
    });
    other.join().unwrap();
    ended(one).map(cuGraphDestroy).unwrap().unwrap();
    // A context's end ends what is captured in it.
    cuStreamBeginCapture_v2(one, THREAD).unwrap();
    cuStreamDestroy_v2(two).unwrap();
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn a_prohibited_call_breaks_captures_that_forbid_it_to_the_thread() {
    let mine = context(0);
    let one = stream(CU_STREAM_NON_BLOCKING);
    let unsupported = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cuStreamBeginCapture_v2(one, THREAD).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(crate::stream::may_be_unsafe(), Ok(())));
    });
    let mut mode = CUstreamCaptureMode::RELAXED;
    cuThreadExchangeStreamCaptureMode(out(&mut mode)).unwrap();
    assert_eq!(mode, CUstreamCaptureMode::GLOBAL);
    assert_eq!(crate::stream::may_be_unsafe(), Ok(()));
    cuThreadExchangeStreamCaptureMode(out(&mut mode)).unwrap();
    assert_eq!(capturing(one), CUstreamCaptureStatus::ACTIVE);
    assert_eq!(crate::stream::may_be_unsafe(), unsupported);
    assert_eq!(capturing(one), CUstreamCaptureStatus::INVALIDATED);
    assert!(ended(one).is_err());
    cuCtxDestroy_v2(mine).unwrap();
}

static ENDED: AtomicU32 = AtomicU32::new(0);

extern "C" fn end_object(_: *mut c_void) {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn graphs_are_built_copied_updated_and_launched() {
    let mine = context(0);
    let module = load(STORE);
    let store_it = function(module, "store\0");
    let on = stream(CU_STREAM_NON_BLOCKING);
    let (mut to, value) = (allocate(8), AtomicU64::new(5));
    let mut graph = CUgraph::NULL;
    cuGraphCreate(out(&mut graph), 0).unwrap();
    let mut each: [*mut c_void; 2] = [(&raw mut to).cast(), value.as_ptr().cast()];
    let mut params = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: store_it,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: each.as_mut_ptr(),
        extra: std::ptr::null_mut(),
    };
    let mut kernel = CUgraphNode::NULL;
    cuGraphAddKernelNode(out(&mut kernel), graph, none(), 0, In::of(&params)).unwrap();
    // Program memory is read when the graph runs, not when it is built.
    let mut result = Box::new(0_u64);
    let described = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::DEVICE,
        srcDevice: to,
        dstMemoryType: CUmemorytype::HOST,
        dstHost: (&raw mut *result).cast(),
        WidthInBytes: 8,
        Height: 1,
        Depth: 1,
        // SAFETY: numbers and pointers may be zero.
        ..unsafe { std::mem::zeroed() }
    };
    let mut copy = CUgraphNode::NULL;
    // SAFETY: one node stands there.
    let after = unsafe { List::new(&raw const kernel, 1) };
    cuGraphAddMemcpyNode(out(&mut copy), graph, after, 1, In::of(&described), mine).unwrap();
    let mut object = CUuserObject::NULL;
    let null = std::ptr::null_mut();
    cuUserObjectCreate(out(&mut object), data_of_call(null), Some(end_object), 1, 1).unwrap();
    cuGraphRetainUserObject(graph, object, 1, 1).unwrap();

    let exec = instantiate(graph);
    let run = || {
        cuGraphLaunch(exec, on).unwrap();
        cuStreamSynchronize(on).unwrap();
    };
    run();
    // SAFETY: the graph has written it, and nothing is under way.
    let seen = |result: &u64| unsafe { (&raw const *result).read_volatile() };
    assert_eq!(seen(&result), 5);
    value.store(6, Ordering::SeqCst);
    cuGraphExecKernelNodeSetParams(exec, kernel, In::of(&params)).unwrap();
    run();
    assert_eq!(seen(&result), 6);
    let mut clone = CUgraph::NULL;
    cuGraphClone(out(&mut clone), graph).unwrap();
    let mut twin = CUgraphNode::NULL;
    cuGraphNodeFindInClone(out(&mut twin), kernel, clone).unwrap();
    value.store(7, Ordering::SeqCst);
    cuGraphKernelNodeSetParams(twin, In::of(&params)).unwrap();
    // SAFETY: handles and numbers may be zero.
    let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    cuGraphExecUpdate_v2(exec, clone, out(&mut info)).unwrap();
    run();
    assert_eq!(seen(&result), 7);
    // A disabled node does nothing.
    *result = 0;
    let ms = CUresult::ERROR_INVALID_VALUE;
    cuGraphNodeSetEnabled(exec, copy, 0).unwrap();
    run();
    assert_eq!(seen(&result), 0);
    cuGraphNodeSetEnabled(exec, copy, 1).unwrap();
    // The form of an executable graph stays.
    cuGraphDestroyNode(twin).unwrap();
    assert_eq!(
        cuGraphExecUpdate_v2(exec, clone, out(&mut info)),
        Err(CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    );
    assert_eq!(info.result, CUgraphExecUpdateResult::TOPOLOGY_CHANGED);
    params.gridDimX = 0;
    assert_eq!(
        cuGraphExecKernelNodeSetParams(exec, kernel, In::of(&params)),
        Err(ms)
    );
    // A graph inside of a graph, and one inside of itself.
    let mut outer = CUgraph::NULL;
    cuGraphCreate(out(&mut outer), 0).unwrap();
    let mut child = CUgraphNode::NULL;
    cuGraphAddChildGraphNode(out(&mut child), outer, none(), 0, graph).unwrap();
    cuGraphAddChildGraphNode(out(&mut child), outer, none(), 0, outer).unwrap();
    let nested = instantiate(outer);
    cuGraphLaunch(nested, on).unwrap();
    cuStreamSynchronize(on).unwrap();
    assert_eq!(seen(&result), 5);
    let mut inside = CUgraph::NULL;
    cuGraphChildGraphNodeGetGraph(child, out(&mut inside)).unwrap();
    assert_eq!(cuGraphDestroy(inside), Err(ms));
    for exec in [exec, nested] {
        cuGraphExecDestroy(exec).unwrap();
    }
    for graph in [graph, outer, clone] {
        assert_eq!(
            ENDED.load(Ordering::SeqCst),
            0,
            "some graph holds the object"
        );
        cuGraphDestroy(graph).unwrap();
    }
    assert_eq!(ENDED.load(Ordering::SeqCst), 1);
    cuCtxDestroy_v2(mine).unwrap();
}

#[test]
fn memory_of_a_graph_is_there_from_its_node_to_its_last_holder() {
    let mine = context(0);
    let on = stream(CU_STREAM_NON_BLOCKING);
    let mut graph = CUgraph::NULL;
    cuGraphCreate(out(&mut graph), 0).unwrap();
    // SAFETY: numbers and pointers may be zero.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.allocType = 1;
    params.location = CUmemLocation { r#type: 1, id: 0 };
    params.bytesize = 100;
    let mut node = CUgraphNode::NULL;
    cuGraphAddMemAllocNode(out(&mut node), graph, none(), 0, out(&mut params)).unwrap();
    assert_ne!(params.dptr, 0);
    let unsupported = Err(CUresult::ERROR_NOT_SUPPORTED);
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    let (mut no_graph, mut no_exec) = (CUgraph::NULL, CUgraphExec::NULL);
    assert_eq!(cuGraphClone(out(&mut no_graph), graph), unsupported);
    assert_eq!(cuGraphDestroyNode(node), unsupported);
    let exec = instantiate(graph);
    let again = cuGraphInstantiateWithFlags(out(&mut no_exec), graph, 0);
    assert_eq!(again, unsupported);
    assert_eq!(
        cuMemFree_v2(params.dptr),
        wrong,
        "nothing has allocated it yet"
    );
    cuGraphLaunch(exec, on).unwrap();
    assert_eq!(cuGraphLaunch(exec, on), wrong, "it is not freed yet");
    cuMemsetD8Async(params.dptr, 1, 100, on).unwrap();
    cuMemFree_v2(params.dptr).unwrap();
    assert_eq!(cuMemFree_v2(params.dptr), wrong);
    cuGraphLaunch(exec, on).unwrap();
    cuStreamSynchronize(on).unwrap();
    cuGraphExecDestroy(exec).unwrap();
    cuGraphDestroy(graph).unwrap();
    // The program still has it.
    assert_eq!(read(params.dptr, 1), [1]);
    cuMemFree_v2(params.dptr).unwrap();
    assert_eq!(cuMemFree_v2(params.dptr), wrong);
    cuCtxDestroy_v2(mine).unwrap();
}
