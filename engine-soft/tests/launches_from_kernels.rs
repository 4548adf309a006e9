//! Launches from kernels, of the first generation of CUDA's device runtime, whose kernels may wait for what they
//! launched; and what holds for both generations: how deep, how many, and what a child's fault or the client's end
//! comes to.

use engine::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, bounded, params};
use engine_soft::{Config, SoftEngine};
use protocol::operations::LimitSet;

/// CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT
const PENDING: u32 = 4;

fn engine(workers: usize) -> SoftEngine {
    let config = Config {
        workers,
        memory: 512 << 20,
        ..Config::with_devices(1)
    };
    SoftEngine::new(&config).expect("a software GPU")
}

const HEAD: &str = "
.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b64 r) cudaGetParameterBufferV2(.param .b64 f, .param .align 4 .b8 g[12],
    .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 p, .param .b64 s);
.extern .func (.param .b64 r) cudaGetParameterBuffer(.param .b64 a, .param .b64 n);
.extern .func (.param .b32 r) cudaLaunchDevice(.param .b64 f, .param .b64 p, .param .align 4 .b8 g[12],
    .param .align 4 .b8 b[12], .param .b32 m, .param .b64 s);
.extern .func (.param .b32 r) cudaDeviceSynchronize();
.extern .func (.param .b32 r) cudaGetLastError();

.visible .entry count(.param .u64 at) { .reg .b64 %d; ld.param.u64 %d, [at]; red.global.add.u32 [%d], 1; ret; }
.visible .entry poke(.param .u64 at) { .reg .b64 %d; ld.param.u64 %d, [at]; st.global.u32 [%d], 1; ret; }
.visible .entry spin(.param .u64 at) { .reg .b64 %d; .reg .b32 %r; .reg .pred %p; ld.param.u64 %d, [at];
    AGAIN: ld.volatile.global.u32 %r, [%d]; setp.eq.u32 %p, %r, 0; @%p bra AGAIN; ret; }
";

/// PTX that launches `kernel` with one parameter of 64 bits into a stream; the status comes to %status.
fn launch(kernel: &str, blocks: u32, parameter: &str, stream: u64) -> String {
    format!(
        "{{ .reg .b64 %f, %p; .reg .pred %none; mov.u64 %f, {kernel}; mov.u32 %status, 0;
        .param .b64 f; st.param.b64 [f], %f;
        .param .align 4 .b8 g[12]; st.param.b32 [g], {blocks}; st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;
        .param .align 4 .b8 b[12]; st.param.b32 [b], 1; st.param.b32 [b+4], 1; st.param.b32 [b+8], 1;
        .param .b32 m; st.param.b32 [m], 0; .param .b64 r;
        call.uni (r), cudaGetParameterBufferV2, (f, g, b, m); ld.param.b64 %p, [r];
        setp.eq.s64 %none, %p, 0; @%none bra LEAVE; st.u64 [%p], {parameter};
        .param .b64 q; st.param.b64 [q], %p; .param .b64 s; st.param.b64 [s], {stream}; .param .b32 e;
        call.uni (e), cudaLaunchDeviceV2, (q, s); ld.param.b32 %status, [e];
        LEAVE: }}"
    )
}

const REGISTERS: &str = ".reg .b64 %d<8>; .reg .b32 %r<8>, %status; .reg .pred %p<4>;";
const WAIT: &str =
    "{ .param .b32 w; call.uni (w), cudaDeviceSynchronize, (); ld.param.b32 %r7, [w]; }";

struct Rig {
    guest: Guest,
    module: u64,
    memory: u64,
}

fn rig(engine: &SoftEngine, text: &str) -> Rig {
    let mut guest = Guest::new(engine);
    let memory = guest.commit(0, 16 * GRANULE);
    guest.heap(16 * GRANULE, 4 << 20);
    let module = guest.module(&format!("{HEAD}{text}"));
    Rig {
        guest,
        module,
        memory,
    }
}

impl Rig {
    /// Launches the module's kernel of this number with parameters.
    fn run(&mut self, kernel: u32, blocks: u32, data: &[u64]) -> Result<(), CUresult> {
        self.post(kernel, blocks, data);
        self.guest.wait(0)
    }

    fn post(&mut self, kernel: u32, blocks: u32, data: &[u64]) {
        let mut request = engine::conformance::rig::simple_launch(self.module, blocks, 1);
        request.kernel = kernel;
        let at = self.guest.at(0);
        let taken = self.guest.client.launch(at, &request, &params(data));
        assert_eq!(self.guest.taken(at, taken), Ok(()));
    }
}

/// The entries of HEAD come first.
const FIRST: u32 = 3;

#[test]
fn a_kernel_waits_for_what_its_block_has_launched() {
    // Each block launches 5 grids that count, waits, and notes how many it saw in its own place.
    let text = format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; mov.u32 %r1, %ctaid.x;
        mul.wide.u32 %d2, %r1, 8; add.s64 %d3, %d1, %d2; mov.u32 %r2, 0;
        AGAIN: {} add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 5; @%p1 bra AGAIN;
        {WAIT} ld.global.u32 %r3, [%d3]; add.u32 %r3, %r3, %r7; st.global.u32 [%d3+4], %r3; ret; }}",
        launch("count", 2, "%d3", 0)
    );
    for workers in [1, 3] {
        let mut rig = rig(&engine(workers), &text);
        let memory = rig.memory;
        assert_eq!(rig.run(FIRST, 20, &[memory]), Ok(()));
        for block in 0..20 {
            let (counted, seen) = (memory + 8 * block, memory + 8 * block + 4);
            assert_eq!(
                (rig.guest.word(counted), rig.guest.word(seen)),
                (10, 10),
                "block {block} of {workers} workers"
            );
        }
    }
}

#[test]
fn the_first_form_of_a_launch_takes_kernel_and_shape_with_it() {
    let text = format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; mov.u64 %d2, count;
        {{ .param .b64 a; st.param.b64 [a], 64; .param .b64 n; st.param.b64 [n], 8; .param .b64 r;
        call.uni (r), cudaGetParameterBuffer, (a, n); ld.param.b64 %d3, [r]; st.u64 [%d3], %d1; }}
        {{ .param .b64 f; st.param.b64 [f], %d2; .param .b64 p; st.param.b64 [p], %d3;
        .param .align 4 .b8 g[12]; st.param.b32 [g], 3; st.param.b32 [g+4], 2; st.param.b32 [g+8], 1;
        .param .align 4 .b8 b[12]; st.param.b32 [b], 7; st.param.b32 [b+4], 1; st.param.b32 [b+8], 5;
        .param .b32 m; st.param.b32 [m], 0; .param .b64 s; st.param.b64 [s], 0; .param .b32 e;
        call.uni (e), cudaLaunchDevice, (f, p, g, b, m, s); ld.param.b32 %r1, [e]; }}
        st.global.u32 [%d1+4], %r1; ret; }}"
    );
    let mut rig = rig(&engine(2), &text);
    let memory = rig.memory;
    assert_eq!(rig.run(FIRST, 1, &[memory]), Ok(()));
    assert_eq!(
        (rig.guest.word(memory), rig.guest.word(memory + 4)),
        (6 * 35, 0)
    );
}

/// A kernel that launches itself, each one deeper, until it is told why not; and notes how many began.
fn deeper() -> String {
    format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; red.global.add.u32 [%d1], 1;
        {} setp.eq.u32 %p1, %status, 0; @%p1 ret; st.global.u32 [%d1+4], %status;
        {{ .param .b32 e; call.uni (e), cudaGetLastError, (); ld.param.b32 %r2, [e]; }}
        st.global.u32 [%d1+8], %r2;
        {{ .param .b32 e; call.uni (e), cudaGetLastError, (); ld.param.b32 %r2, [e]; }}
        st.global.u32 [%d1+12], %r2; ret; }}",
        launch("k", 1, "%d1", 0)
    )
}

#[test]
fn recursion_ends_at_its_depth_with_an_error_of_its_own() {
    let mut rig = rig(&engine(2), &deeper());
    let memory = rig.memory;
    assert_eq!(rig.run(FIRST, 1, &[memory]), Ok(()));
    let words = [0, 4, 8, 12].map(|at| rig.guest.word(memory + at));
    // cudaErrorLaunchMaxDepthExceeded, as the launch's status and as the last error, once.
    assert_eq!(words, [25, 65, 65, 0]);
}

#[test]
fn a_grid_may_follow_itself_for_ever_and_is_still_one_grid() {
    let text = format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; atom.global.add.u32 %r1, [%d1], 1;
        setp.ge.u32 %p1, %r1, 20000; @%p1 ret; {} ret; }}",
        launch("k", 1, "%d1", 3)
    );
    let mut rig = rig(&engine(1), &text);
    let memory = rig.memory;
    assert_eq!(rig.run(FIRST, 1, &[memory]), Ok(()));
    assert_eq!(rig.guest.word(memory), 20001);
}

/// A kernel that launches grids into a stream, as many as its second parameter says, and counts those that are refused.
fn many(kernel: &str, stream: u64) -> String {
    format!(
        ".visible .entry k(.param .u64 at, .param .u64 n) {{ {REGISTERS} ld.param.u64 %d1, [at]; ld.param.u32 %r1, [n];
        mov.u32 %r2, 0; mov.u32 %r3, 0;
        AGAIN: {} setp.ne.u32 %p1, %status, 0; @!%p1 bra NEXT; add.u32 %r3, %r3, 1; st.global.u32 [%d1+8], %status;
        NEXT: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r1; @%p2 bra AGAIN;
        st.global.u32 [%d1+4], %r3; ret; }}",
        launch(kernel, 1, "%d1", stream)
    )
}

#[test]
fn launches_that_cannot_begin_are_refused_beyond_the_limit() {
    let mut rig = rig(&engine(2), &many("count", 3));
    let memory = rig.memory;
    assert_eq!(rig.run(FIRST, 1, &[memory, 3000]), Ok(()));
    let words = [0, 4, 8].map(|at| rig.guest.word(memory + at));
    // cudaErrorLaunchPendingCountExceeded
    assert_eq!(words, [2048, 3000 - 2048, 69]);
    let request = LimitSet {
        context: 0,
        limit: PENDING,
        value: 3000,
    };
    assert_eq!(rig.guest.client.limit_set(&request, &[]), Ok(()));
    let fresh = memory + 64;
    assert_eq!(rig.run(FIRST, 1, &[fresh, 3000]), Ok(()));
    let words = [0, 4].map(|at| rig.guest.word(fresh + at));
    assert_eq!(words, [3000, 0]);
}

#[test]
fn who_launches_more_than_may_wait_is_held_up_until_some_have_begun() {
    for stream in [0, 4] {
        for workers in [1, 2] {
            let mut rig = rig(&engine(workers), &many("count", stream));
            let memory = rig.memory;
            assert_eq!(rig.run(FIRST, 1, &[memory, 9000]), Ok(()));
            let words = [0, 4].map(|at| rig.guest.word(memory + at));
            assert_eq!(words, [9000, 0], "stream {stream}, {workers} workers");
        }
    }
}

#[test]
fn grids_that_all_wait_for_room_are_told_that_there_is_none() {
    // Each launches four of itself, far more than there is room for, so that sooner or later some are refused.
    let one = launch("k", 1, "%d1", 4);
    let text = format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; atom.global.add.u32 %r1, [%d1], 1;
        setp.gt.u32 %p1, %r1, 9000; @%p1 ret; mov.u32 %r2, 0;
        AGAIN: {one} add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 4; @%p2 bra AGAIN; ret; }}"
    );
    let mut rig = rig(&engine(2), &text);
    let memory = rig.memory;
    let result = bounded("a tree of grids that want more than there is", || {
        rig.run(FIRST, 1, &[memory])
    });
    assert_eq!(result, Ok(()));
    assert!(rig.guest.word(memory) > 128);
}

#[test]
fn a_childs_fault_is_the_fault_of_all_and_what_waits_never_begins() {
    let text = format!(
        ".visible .entry k(.param .u64 at, .param .u64 bad) {{ {REGISTERS} ld.param.u64 %d1, [at];
        ld.param.u64 %d2, [bad]; {} {} {} ret; }}",
        launch("poke", 1, "%d2", 0),
        launch("count", 1, "%d1", 0).replace("LEAVE", "LEAVE2"),
        launch("count", 1, "%d1", 3).replace("LEAVE", "LEAVE3"),
    );
    let mut rig = rig(&engine(2), &text);
    let memory = rig.memory;
    let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
    assert_eq!(rig.run(FIRST, 1, &[memory, 16]), Err(illegal));
    let (_, code, words) = rig.guest.observer.fault();
    assert_eq!(code, illegal);
    assert!(words.contains("poke"), "{words}");
    assert_eq!(rig.guest.observer.faults().len(), 1);
}

#[test]
fn a_stream_goes_on_only_when_the_children_have_ended() {
    let text = format!(
        ".visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; {} ret; }}",
        launch("spin", 1, "%d1", 0)
    );
    let mut rig = rig(&engine(2), &text);
    let memory = rig.memory;
    rig.post(FIRST, 1, &[memory]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!rig.guest.is_done(0));
    rig.guest.stream(33);
    rig.guest.write(33, memory, &[1]);
    assert_eq!(rig.guest.wait(33), Ok(()));
    assert_eq!(rig.guest.wait(0), Ok(()));
}

#[test]
fn a_client_that_goes_takes_all_that_its_kernels_launched_along() {
    // Endless children under way, others that wait for their turn, in streams and as tails.
    for stream in [0, 3, 4] {
        let text = many("spin", stream);
        let engine = engine(2);
        let mut rig = rig(&engine, &text);
        let memory = rig.memory;
        rig.post(FIRST, 4, &[memory, 400]);
        std::thread::sleep(std::time::Duration::from_millis(30));
        bounded("a client that goes", || drop(rig.guest));
    }
}

#[test]
fn streams_that_are_never_destroyed_come_to_an_end_with_their_grid() {
    // One more than there may be, twice: what a grid had is given back when it is over.
    let text = format!(
        ".extern .func (.param .b32 r) cudaStreamCreateWithFlags(.param .b64 p, .param .b32 f);
        .visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at]; mov.u32 %r1, 0; mov.u32 %r2, 0;
        add.s64 %d2, %d1, 8;
        AGAIN: {{ .param .b64 p; st.param.b64 [p], %d2; .param .b32 f; st.param.b32 [f], 1; .param .b32 r;
        call.uni (r), cudaStreamCreateWithFlags, (p, f); ld.param.b32 %r3, [r]; }}
        setp.ne.u32 %p1, %r3, 0; @!%p1 bra NEXT; add.u32 %r2, %r2, %r3;
        NEXT: add.u32 %r1, %r1, 1; setp.le.u32 %p2, %r1, 65536; @%p2 bra AGAIN;
        st.global.u32 [%d1], %r2; ret; }}"
    );
    let mut rig = rig(&engine(1), &text);
    let memory = rig.memory;
    for _ in 0..2 {
        assert_eq!(rig.run(FIRST, 1, &[memory]), Ok(()));
        // cudaErrorMemoryAllocation, once.
        assert_eq!(rig.guest.word(memory), 2);
    }
}

/// The functions with pointers, sizes and handles, and the bytes of their arguments and results.
const CALLS: [(&str, &[u32], u32); 25] = [
    ("cudaGetParameterBuffer", &[8, 8], 8),
    ("cudaGetParameterBufferV2", &[8, 12, 12, 4], 8),
    ("cudaLaunchDevice", &[8, 8, 12, 12, 4, 8], 4),
    ("cudaLaunchDeviceV2", &[8, 8], 4),
    ("cudaGraphLaunch", &[8, 8], 4),
    ("cudaDeviceSynchronize", &[], 4),
    ("cudaStreamCreateWithFlags", &[8, 4], 4),
    ("cudaStreamDestroy", &[8], 4),
    ("__cudaCDP2StreamWaitEvent", &[8, 8, 4], 4),
    ("cudaEventCreateWithFlags", &[8, 4], 4),
    ("cudaEventRecord", &[8, 8], 4),
    ("cudaEventRecordWithFlags_ptsz", &[8, 8, 4], 4),
    ("cudaEventDestroy", &[8], 4),
    ("cudaPeekAtLastError", &[], 4),
    ("cudaGetDevice", &[8], 4),
    ("cudaDeviceGetAttribute", &[8, 4, 4], 4),
    ("cudaFuncGetAttributes", &[8, 8], 4),
    (
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        &[8, 8, 4, 8],
        4,
    ),
    ("cudaGetErrorName", &[4], 8),
    ("cudaGetErrorString", &[4], 8),
    ("cudaFree", &[8], 4),
    ("cudaMemcpyAsync", &[8, 8, 8, 4, 8], 4),
    ("cudaMemcpy2DAsync", &[8, 8, 8, 8, 8, 8, 4, 8], 4),
    ("cudaMemsetAsync", &[8, 4, 8, 8], 4),
    ("cudaMemset2DAsync", &[8, 8, 4, 8, 8, 8], 4),
];

/// A kernel whose threads call a function each with words of their own from memory.
fn caller(name: &str, arguments: &[u32], result: u32) -> String {
    let declared: Vec<String> = arguments
        .iter()
        .enumerate()
        .map(|(at, bytes)| match bytes {
            12 => format!(".param .align 4 .b8 a{at}[12]"),
            bytes => format!(".param .b{} a{at}", 8 * bytes),
        })
        .collect();
    let mut body = String::new();
    for (at, bytes) in arguments.iter().enumerate() {
        body += &format!("{};\n", declared[at]);
        for word in 0..bytes / 4 {
            body += &format!(
                "ld.global.u32 %r1, [%d1+{}]; st.param.b32 [a{at}+{}], %r1;\n",
                16 * at as u32 + 4 * word,
                4 * word
            );
        }
    }
    let names: Vec<String> = (0..arguments.len()).map(|at| format!("a{at}")).collect();
    format!(
        ".version 8.0\n.target sm_75\n.address_size 64\n
        .extern .func (.param .b{bits} r) {name}({});
        .visible .entry k(.param .u64 at) {{ {REGISTERS} ld.param.u64 %d1, [at];
        mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 128; add.s64 %d1, %d1, %d2;
        {{ .param .b{bits} r; {body} call.uni (r), {name}, ({}); }} ret; }}",
        declared.join(", "),
        names.join(", "),
        bits = 8 * result,
    )
}

#[test]
fn calls_with_any_arguments_end_in_a_status_or_in_their_clients_fault() {
    let engine = engine(2);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for (name, arguments, result) in CALLS {
        let text = caller(name, arguments, result);
        for round in 0..6 {
            let mut guest = Guest::new(&engine);
            let memory = guest.commit(0, 4 * GRANULE);
            let heap = guest.heap(4 * GRANULE, 1 << 20);
            let module = guest.module(&text);
            let words: Vec<u8> = (0..32 * 16)
                .flat_map(|_| {
                    match next() % 9 {
                        0 => 0,
                        1 => next() % 8,
                        2 => memory + next() % 64,
                        3 => heap + 64 * (next() % 8),
                        4 => u64::MAX - next() % 4,
                        5 => 1 << (next() % 64),
                        6 => 0x100 + next() % 8,
                        // Functions' addresses.
                        7 => 0x0100_0400_0000 + 16 * (next() % 3),
                        _ => next(),
                    }
                    .to_le_bytes()
                })
                .collect();
            guest.upload(memory + GRANULE, &words);
            guest.launch(0, module, 1, 32, &params(&[memory + GRANULE]));
            let ended = guest.wait(0);
            let faults = [
                CUresult::ERROR_ILLEGAL_ADDRESS,
                CUresult::ERROR_MISALIGNED_ADDRESS,
            ];
            assert!(
                ended.is_ok() || faults.iter().any(|fault| ended == Err(*fault)),
                "{name}, round {round}: {ended:?}, {:?}",
                guest.observer.faults()
            );
        }
    }
}
