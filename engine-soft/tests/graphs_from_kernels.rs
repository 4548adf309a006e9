//! Graphs that kernels of graphs launch: by themselves, beside their launcher, or in its place; what is refused, and what a
//! fault comes to.

use engine::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, bounded, params, simple_launch};
use engine_soft::{Config, SoftEngine};
use protocol::operations::{ModuleUnload, RunPublish};

const TAIL: u64 = 0x0100_0000_0000_0000;
const ALONE: u64 = 0x0200_0000_0000_0000;
const SIBLING: u64 = 0x0300_0000_0000_0000;

/// cudaErrorInvalidValue
const INVALID: u32 = 1;

const TEXT: &str = "
.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b32 r) cudaGraphLaunch(.param .b64 g, .param .b64 s);

// Appends a value to a list, whose first word counts.
.visible .entry note(.param .u64 list, .param .u64 value) { .reg .b64 %d<3>; .reg .b32 %r<2>;
    ld.param.u64 %d0, [list]; ld.param.u32 %r1, [value]; atom.global.add.u32 %r0, [%d0], 1;
    mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0+4], %r1; ret; }
// Launches a graph, and stores the status and its own graph.
.visible .entry launch(.param .u64 graph, .param .u64 stream, .param .u64 at) { .reg .b64 %d<4>; .reg .b32 %r;
    ld.param.u64 %d0, [graph]; ld.param.u64 %d1, [stream]; ld.param.u64 %d2, [at]; mov.u64 %d3, %current_graph_exec;
    { .param .b64 g; st.param.b64 [g], %d0; .param .b64 s; st.param.b64 [s], %d1; .param .b32 e;
      call.uni (e), cudaGraphLaunch, (g, s); ld.param.b32 %r, [e]; }
    st.global.u32 [%d2], %r; st.global.u64 [%d2+8], %d3; ret; }
// Launches its own graph as its tail, as often as the first word says; the second counts.
.visible .entry again(.param .u64 at) { .reg .b64 %d<3>; .reg .b32 %r<3>; .reg .pred %p;
    ld.param.u64 %d0, [at]; red.global.add.u32 [%d0+4], 1; ld.global.u32 %r0, [%d0]; sub.u32 %r0, %r0, 1; st.global.u32 [%d0], %r0;
    setp.eq.u32 %p, %r0, 0; @%p bra DONE; mov.u64 %d1, %current_graph_exec; mov.u64 %d2, 0x0100000000000000;
    { .param .b64 g; st.param.b64 [g], %d1; .param .b64 s; st.param.b64 [s], %d2; .param .b32 e;
      call.uni (e), cudaGraphLaunch, (g, s); ld.param.b32 %r1, [e]; }
    DONE: ret; }
// Waits until a word is not 0.
.visible .entry spin(.param .u64 at) { .reg .b64 %d; .reg .b32 %r; .reg .pred %p; ld.param.u64 %d, [at];
    AGAIN: ld.volatile.global.u32 %r, [%d]; setp.eq.u32 %p, %r, 0; @%p bra AGAIN; ret; }
.visible .entry trap() { trap; ret; }
";

const NOTE: u32 = 0;
const LAUNCH: u32 = 1;
const AGAIN: u32 = 2;
const SPIN: u32 = 3;
const TRAP: u32 = 4;

struct Rig {
    guest: Guest,
    module: u64,
    memory: u64,
}

fn rig(workers: usize) -> Rig {
    let config = Config {
        workers,
        memory: 512 << 20,
        ..Config::with_devices(1)
    };
    let engine = SoftEngine::new(&config).expect("a software GPU");
    let mut guest = Guest::new(&engine);
    let memory = guest.commit(0, 16 * GRANULE);
    guest.heap(16 * GRANULE, 4 << 20);
    let module = guest.module(TEXT);
    Rig {
        guest,
        module,
        memory,
    }
}

impl Rig {
    /// A graph of these kernels, by number, that kernels may launch as 1000 and its number.
    fn graph(&mut self, run: u32, kernels: &[(u32, &[u64])]) {
        for (kernel, data) in kernels {
            let mut launch = simple_launch(self.module, 1, 1);
            launch.kernel = *kernel;
            self.guest.run_add(run, &launch, &params(data));
        }
        assert_eq!(self.publish(run, handle(run)), Ok(()));
    }

    fn publish(&mut self, run: u32, graph: u64) -> Result<(), CUresult> {
        let request = RunPublish { run, graph };
        let published = self
            .guest
            .client
            .run_publish(&request, &[], &mut Vec::new());
        published.map(drop)
    }

    fn set(&mut self, word: u64, value: u32) {
        self.guest.write(0, word, &value.to_le_bytes());
        assert_eq!(self.guest.wait(0), Ok(()));
    }

    fn run(&mut self, run: u32) -> Result<(), CUresult> {
        self.guest.run_launch(0, run);
        self.guest.wait(0)
    }

    /// What was noted in a list, which is empty afterwards.
    fn noted(&mut self, list: u64) -> Vec<u32> {
        let count = self.guest.word(list);
        let noted = (1..=u64::from(count)).map(|at| self.guest.word(list + 4 * at));
        let noted = noted.collect();
        self.set(list, 0);
        noted
    }
}

fn handle(run: u32) -> u64 {
    1000 + u64::from(run)
}

#[test]
fn kernels_of_graphs_launch_graphs() {
    bounded("graphs that launch graphs", || {
        for workers in [1, 3] {
            let mut rig = rig(workers);
            let (list, status) = (rig.memory, rig.memory + GRANULE);
            rig.graph(1, &[(NOTE, &[list, 1]), (NOTE, &[list, 2])]);
            rig.graph(2, &[(NOTE, &[list, 3])]);
            // A tail comes when the whole graph is over, whatever comes after the kernel that launched it.
            rig.graph(
                3,
                &[
                    (LAUNCH, &[handle(1), TAIL, status]),
                    (LAUNCH, &[handle(2), TAIL, status + 16]),
                    (NOTE, &[list, 4]),
                ],
            );
            for _ in 0..3 {
                assert_eq!(rig.run(3), Ok(()));
                assert_eq!(rig.noted(list), [4, 1, 2, 3]);
            }
            assert_eq!(
                [0, 8, 16].map(|at| rig.guest.word(status + at)),
                [0, handle(3) as u32, 0]
            );
            // What is launched by itself belongs to the launch, and comes before its tails.
            rig.graph(
                4,
                &[
                    (LAUNCH, &[handle(2), TAIL, status]),
                    (LAUNCH, &[handle(1), ALONE, status + 16]),
                ],
            );
            assert_eq!(rig.run(4), Ok(()));
            assert_eq!(rig.noted(list), [1, 2, 3]);
            // A graph that follows itself.
            rig.graph(5, &[(AGAIN, &[status])]);
            rig.set(status, 500);
            rig.set(status + 4, 0);
            assert_eq!(rig.run(5), Ok(()));
            assert_eq!([0, 4].map(|at| rig.guest.word(status + at)), [0, 500]);
        }
    });
}

#[test]
fn a_sibling_holds_up_no_tail() {
    bounded("a sibling and a tail", || {
        let mut rig = rig(2);
        let (list, status) = (rig.memory, rig.memory + GRANULE);
        // It ends once the tail has begun.
        rig.graph(1, &[(SPIN, &[list]), (NOTE, &[list, 7])]);
        rig.graph(2, &[(NOTE, &[list, 8])]);
        rig.graph(
            3,
            &[
                (LAUNCH, &[handle(1), SIBLING, status]),
                (LAUNCH, &[handle(2), TAIL, status + 16]),
            ],
        );
        // As a launch of the client's, and beneath another graph.
        rig.graph(4, &[(LAUNCH, &[handle(3), ALONE, status + 32])]);
        for run in [3, 4] {
            assert_eq!(rig.run(run), Ok(()));
            assert_eq!(rig.noted(list), [8, 7]);
        }
        assert_eq!([0, 16, 32].map(|at| rig.guest.word(status + at)), [0; 3]);
    });
}

#[test]
fn graphs_that_run_or_are_not_there_are_refused() {
    bounded("graphs that are refused", || {
        let mut rig = rig(2);
        let (list, status) = (rig.memory, rig.memory + GRANULE);
        rig.graph(1, &[(SPIN, &[list])]);
        rig.graph(2, &[(NOTE, &[list, 1])]);
        rig.graph(
            3,
            &[
                // It runs until the last kernel of this graph.
                (LAUNCH, &[handle(1), ALONE, status]),
                (LAUNCH, &[handle(1), ALONE, status + 16]),
                (LAUNCH, &[handle(1), TAIL, status + 32]),
                // One that runs, one that is none, streams that are none.
                (LAUNCH, &[handle(3), ALONE, status + 48]),
                (LAUNCH, &[handle(99), TAIL, status + 64]),
                (LAUNCH, &[handle(2), 0, status + 80]),
                (LAUNCH, &[handle(2), 4, status + 96]),
                // What is to follow already follows nothing more.
                (LAUNCH, &[handle(2), TAIL, status + 112]),
                (LAUNCH, &[handle(2), TAIL, status + 128]),
                (LAUNCH, &[handle(2), ALONE, status + 144]),
                (NOTE, &[list, 2]),
            ],
        );
        assert_eq!(rig.run(3), Ok(()));
        assert_eq!(rig.noted(list), [2, 1]);
        let told: Vec<u32> = (0..10).map(|at| rig.guest.word(status + 16 * at)).collect();
        assert_eq!(
            told,
            [
                0, INVALID, INVALID, INVALID, INVALID, INVALID, INVALID, 0, INVALID, INVALID
            ]
        );
        // A kernel that is in no graph.
        let mut request = simple_launch(rig.module, 1, 1);
        request.kernel = LAUNCH;
        let data = params(&[handle(2), ALONE, status]);
        assert_eq!(rig.guest.launch_result(0, &request, &data), Ok(()));
        assert_eq!([0, 8].map(|at| rig.guest.word(status + at)), [INVALID, 0]);
        // A run is published once; a number is the last run's that was published as it.
        assert_eq!(rig.publish(2, 5), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(rig.publish(6, 6), Err(CUresult::ERROR_INVALID_HANDLE));
        let launch = simple_launch(rig.module, 1, 1);
        rig.guest.run_add(5, &launch, &params(&[list, 9]));
        assert_eq!(rig.publish(5, handle(2)), Ok(()));
        rig.guest.run_destroy(2);
        rig.graph(7, &[(LAUNCH, &[handle(2), TAIL, status])]);
        assert_eq!(rig.run(7), Ok(()));
        assert_eq!((rig.guest.word(status), rig.noted(list)), (0, vec![9]));
        // What is forgotten or has lost its module is none.
        rig.guest.run_destroy(5);
        assert_eq!(rig.run(7), Ok(()));
        assert_eq!(rig.guest.word(status), INVALID);
        let other = rig.guest.module(TEXT);
        let mut launch = simple_launch(other, 1, 1);
        launch.kernel = NOTE;
        rig.guest.run_add(2, &launch, &params(&[list, 1]));
        assert_eq!(rig.publish(2, handle(2)), Ok(()));
        assert_eq!(rig.run(7), Ok(()));
        assert_eq!((rig.guest.word(status), rig.noted(list)), (0, vec![1]));
        let unload = ModuleUnload { module: other };
        assert_eq!(rig.guest.client.module_unload(&unload, &[]), Ok(()));
        assert_eq!(rig.run(7), Ok(()));
        assert_eq!(rig.guest.word(status), INVALID);
        assert_eq!(rig.run(2), Err(CUresult::ERROR_INVALID_HANDLE));
    });
}

#[test]
fn a_fault_in_a_launched_graph_is_that_of_the_launch() {
    bounded("a fault in a graph", || {
        for stream in [ALONE, TAIL, SIBLING] {
            let mut rig = rig(2);
            let (list, status) = (rig.memory, rig.memory + GRANULE);
            rig.graph(1, &[(TRAP, &[])]);
            rig.graph(2, &[(NOTE, &[list, 1])]);
            rig.graph(
                3,
                &[
                    (LAUNCH, &[handle(1), stream, status]),
                    (LAUNCH, &[handle(2), TAIL, status + 16]),
                ],
            );
            assert_eq!(rig.run(3), Err(CUresult::ERROR_LAUNCH_FAILED));
        }
    });
}

#[test]
fn a_client_that_goes_takes_its_graphs_with_it() {
    bounded("a client with graphs", || {
        let mut rig = rig(2);
        let (list, status) = (rig.memory, rig.memory + GRANULE);
        rig.graph(1, &[(SPIN, &[list])]);
        rig.graph(
            2,
            &[
                (LAUNCH, &[handle(1), ALONE, status]),
                (LAUNCH, &[handle(1), TAIL, status]),
            ],
        );
        rig.guest.run_launch(0, 2);
        // It waits until nobody has its memory.
        drop(rig);
    });
}
