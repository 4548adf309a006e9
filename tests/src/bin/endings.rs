//! A program that is in the middle of using one feature of CUDA, and ends in one of several ways.
//!
//! `endings FEATURE WAY` says `in the middle` and ends by itself, or stays if it is to be killed;
//! `endings` alone lists the features and `endings --ways` the ways.

use std::ffi::CString;
use std::time::Duration;

use tests::program::say;
use tests::script::State;

/// `wait` runs until the program's end: what is put behind it in a stream is never done.
const IMAGE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .global .align 4 .b8 numbers[64];\n\
    .global .align 1 .b8 words[7] = {119, 111, 114, 100, 115, 10, 0};\n\
    .extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);\n\
    .extern .func (.param .b64 result) malloc(.param .b64 bytes);\n\
    .visible .entry nothing(.param .u64 out) { ret; }\n\
    .visible .entry small(.param .u64 out) .maxntid 64, 1, 1 { ret; }\n\
    .visible .entry wait(.param .u64 out) {\n\
        .reg .pred %p<2>; .reg .b32 %r<2>;\n\
        again: ld.volatile.global.u32 %r1, [numbers]; setp.eq.u32 %p1, %r1, 0;\n\
        @%p1 bra again; ret;\n\
    }\n\
    .visible .entry print(.param .u64 out) {\n\
        .reg .b64 %d<3>; .reg .b32 %r<2>;\n\
        again: mov.u64 %d1, words; cvta.global.u64 %d2, %d1;\n\
        { .param .b64 f; .param .b64 v; .param .b32 r; st.param.b64 [f], %d2; st.param.b64 [v], 0;\n\
          call.uni (r), vprintf, (f, v); ld.param.b32 %r1, [r]; }\n\
        bra.uni again;\n\
    }\n\
    .visible .entry take(.param .u64 out) {\n\
        .reg .b64 %d<3>; .reg .pred %p<2>;\n\
        again: { .param .b64 n; .param .b64 r; st.param.b64 [n], 1000;\n\
          call.uni (r), malloc, (n); ld.param.b64 %d1, [r]; }\n\
        setp.ne.u64 %p1, %d1, 0;\n\
        @%p1 bra again;\n\
        bra.uni again;\n\
    }\n\
    .visible .entry stop(.param .u64 out) { trap; }\n";

/// Puts a kernel into a stream that runs until the end.
const BUSY: &str = "cuLaunchKernel wait 1 1 1 1 1 1 0 stream {64:heap} NULL";

/// Each feature, and the lines that bring a program into the middle of it: all succeed. The last of
/// those with a `*` before their name does not return.
const FEATURES: &[(&str, &[&str])] = &[
    (
        "launches",
        &[
            BUSY,
            "cuLaunchKernel nothing 1 1 1 1 1 1 0 stream {64:heap} NULL",
            "cuLaunchKernel nothing 9 9 9 64 1 1 0 stream {64:heap} NULL",
            "cuLaunchCooperativeKernel nothing 2 1 1 32 1 1 0 stream {64:heap}",
        ],
    ),
    (
        "cooperative launch",
        &["cuLaunchCooperativeKernel wait 2 1 1 32 1 1 0 stream {64:heap}"],
    ),
    (
        "copies",
        &[
            BUSY,
            "cuMemcpyHtoDAsync_v2 dptr heap 65536 stream",
            "cuMemcpyHtoDAsync_v2 dptr host 65536 stream",
            "cuMemcpyDtoHAsync_v2 host dptr 65536 stream",
            "cuMemsetD32Async dptr 7 1000 stream",
        ],
    ),
    (
        "* copy to the program's memory",
        &[BUSY, "cuMemcpyDtoHAsync_v2 heap dptr 65536 stream"],
    ),
    (
        "* synchronisation",
        &[
            BUSY,
            "cuEventRecord event stream",
            "cuEventSynchronize event",
        ],
    ),
    (
        "streams",
        &[
            BUSY,
            "cuEventRecord event stream",
            "cuStreamCreateWithPriority &other 1 -1",
            "cuStreamWaitEvent other event 0",
            "cuLaunchKernel nothing 1 1 1 1 1 1 0 other {64:heap} NULL",
            "cuStreamDestroy_v2 other",
        ],
    ),
    (
        "values in memory",
        &[
            "cuStreamWaitValue32_v2 stream dptr+64 1 1",
            "cuStreamWriteValue32_v2 stream dptr+128 1 0",
        ],
    ),
    (
        "host functions",
        &[BUSY, "cuLaunchHostFunc stream sleep NULL"],
    ),
    (
        "running host function",
        &[
            "cuLaunchHostFunc stream sleep NULL",
            "cuStreamAddCallback stream sleep NULL 0",
            "cuLaunchKernel nothing 1 1 1 1 1 1 0 stream {64:heap} NULL",
        ],
    ),
    (
        "pools",
        &[
            BUSY,
            "cuMemAllocAsync &p 1048576 stream",
            "cuMemFreeAsync p stream",
            "cuMemPoolCreate &pool {32:1,32:0,32:1,32:0,64:0}",
            "cuMemAllocFromPoolAsync &q 1048576 pool stream",
        ],
    ),
    (
        "managed memory",
        &[
            "cuMemAllocManaged &m 1048576 1",
            BUSY,
            "cuMemPrefetchAsync m 1048576 0 stream",
            "cuMemsetD8Async m 1 1048576 stream",
        ],
    ),
    (
        "registered memory",
        &[
            "cuMemHostRegister_v2 heap 65536 2",
            "cuMemHostGetDevicePointer_v2 &r heap 0",
            BUSY,
            "cuMemsetD8Async r 1 65536 stream",
        ],
    ),
    (
        "virtual memory",
        &[
            "cuMemCreate &h 0x200000 {32:1,32:1,32:1,32:0,64*3:0} 0",
            "cuMemAddressReserve &v 0x400000 0 0 0",
            "cuMemMap v 0x200000 0 h 0",
            "cuMemSetAccess v 0x200000 {32:1,32:0,32:3} 1",
            BUSY,
            "cuMemsetD8Async v 1 0x200000 stream",
        ],
    ),
    (
        "memory in descriptors",
        &[
            "cuMemCreate &h 0x200000 {32:1,32:1,32:1,32:0,64*3:0} 0",
            "cuMemExportToShareableHandle out h 1 0",
            BUSY,
        ],
    ),
    (
        "memory and events of several processes",
        &[
            "cuIpcGetMemHandle out dptr",
            "cuEventCreate &e 6",
            "cuIpcGetEventHandle out e",
            BUSY,
            "cuEventRecord e stream",
        ],
    ),
    (
        "arrays and textures",
        &[
            "cuArrayCreate_v2 &a {64:64,64:64,32:32,32:4}",
            "cuTexObjectCreate &t {32:0,64:a,64*16:0} {32*8:0} NULL",
            BUSY,
            "cuMemcpy2DAsync_v2 {64*2:0,32:1,64:heap,64:0,64:0,64:1024,64*2:0,32:3,64:0,64:0,64:a,64:0,64:1024,64:32} stream",
        ],
    ),
    (
        "capture",
        &[
            "cuStreamBeginCapture_v2 stream 2",
            "cuLaunchKernel nothing 1 1 1 1 1 1 0 stream {64:heap} NULL",
            "cuMemAllocAsync &p 1048576 stream",
        ],
    ),
    (
        "graphs",
        &[
            "cuStreamBeginCapture_v2 stream 2",
            "cuMemAllocAsync &p 1048576 stream",
            BUSY,
            "cuMemsetD8Async p 1 1048576 stream",
            "cuMemFreeAsync p stream",
            "cuStreamEndCapture stream &g",
            "cuGraphInstantiateWithFlags &x g 0",
            "cuGraphLaunch x stream",
            "cuGraphLaunch x stream",
        ],
    ),
    (
        "modules",
        &[
            BUSY,
            "cuModuleLoadData &n image",
            "cuLibraryLoadData &l image NULL NULL 0 NULL NULL 0",
            "cuModuleUnload n",
        ],
    ),
    (
        "linking",
        &[
            "cuLinkCreate_v2 0 NULL NULL &l",
            "cuLinkAddData_v2 l 1 image image_bytes \"part\" 0 NULL NULL",
        ],
    ),
    (
        "printing",
        &["cuLaunchKernel print 1 1 1 1 1 1 0 stream {64:heap} NULL"],
    ),
    (
        "the device's heap",
        &["cuLaunchKernel take 1 1 1 1 1 1 0 stream {64:heap} NULL"],
    ),
    (
        "a trap",
        &["cuLaunchKernel stop 1 1 1 1 1 1 0 stream {64:heap} NULL"],
    ),
    (
        "contexts",
        &[
            BUSY,
            "cuCtxCreate_v2 &other 0 0",
            "cuMemAlloc_v2 &p 1048576",
            "cuMemsetD8Async p 1 1048576 2",
        ],
    ),
    (
        "two devices",
        &[
            "cuCtxCreate_v2 &other 0 1",
            "cuMemAlloc_v2 &p 1048576",
            "cuCtxEnablePeerAccess ctx 0",
            "cuCtxSetCurrent ctx",
            BUSY,
            "cuMemcpyPeerAsync p other dptr ctx 65536 stream",
        ],
    ),
];

/// The ways of [`end`].
const WAYS: &[&str] = &["exit", "crash", "fork", "exec", "stay"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => FEATURES.iter().for_each(|(name, _)| say(name)),
        ["--ways"] => WAYS.iter().for_each(|way| say(way)),
        ["stay"] => stay(),
        [feature, way] => {
            let lines = FEATURES.iter().find(|(name, _)| *name == feature);
            // Nothing is given back by the program.
            let _kept = begin(feature.starts_with('*'), lines.expect("a feature").1);
            say("in the middle");
            end(way);
        }
        _ => panic!("endings [FEATURE WAY]"),
    }
}

/// Comes into the middle of a feature.
fn begin(blocks: bool, lines: &'static [&'static str]) -> Option<State> {
    let mut state = State::new(IMAGE);
    assert_eq!(
        state.line("cuModuleGetFunction &wait module \"wait\""),
        "SUCCESS"
    );
    for name in ["print", "take", "stop"] {
        let found = state.line(&format!("cuModuleGetFunction &{name} module \"{name}\""));
        assert_eq!(found, "SUCCESS", "{name}");
    }
    extern "C" fn sleep() {
        stay();
    }
    state.name("sleep", sleep as extern "C" fn() as usize as u64);
    let (last, rest) = lines.split_last().expect("lines");
    for line in rest {
        assert_eq!(state.line(line), "SUCCESS", "{line}");
    }
    if blocks {
        std::thread::spawn(move || {
            state.line("cuCtxSetCurrent ctx");
            let code = state.line(last);
            panic!("{last}: {code}");
        });
        std::thread::sleep(Duration::from_millis(30));
        None
    } else {
        assert_eq!(state.line(last), "SUCCESS", "{last}");
        Some(state)
    }
}

/// Ends, or does what else a program may do instead.
#[expect(clippy::exit, reason = "how a program ends is what is tested")]
fn end(way: &str) {
    match way {
        "exit" => std::process::exit(0),
        // SAFETY: ends this process as a wild pointer would.
        "crash" => unsafe {
            libc::raise(libc::SIGSEGV);
        },
        // The child keeps whatever a fork leaves it, and the parent ends.
        // SAFETY: the child only sleeps.
        "fork" => match unsafe { libc::fork() } {
            0 => stay(),
            child => {
                say(&child.to_string());
                std::process::exit(0);
            }
        },
        "exec" => {
            let program = CString::new("/proc/self/exe").expect("no NUL in it");
            let stay = CString::new("stay").expect("no NUL in it");
            let arguments = [program.as_ptr(), stay.as_ptr(), std::ptr::null()];
            // SAFETY: a list of two strings that ends with NULL.
            unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
            panic!("the program is still there");
        }
        "stay" => stay(),
        other => panic!("no way {other:?}"),
    }
}

fn stay() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
