//! Any bytes as a file of compiled code, as a module and as a program that were kept: no panic, no memory beyond what the
//! bytes are worth, and what is found is what was written under its digest. Nothing that is read here runs: a checksum stands
//! before that.
//!
//! After a zero the rest is the file, with which an engine starts and loads a program. Else the rest is what was kept of a module, and
//! of a program, each half of it; an odd first byte changes a real one instead, at places and to values that the bytes say.
#![no_main]

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, OnceLock};

use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine_soft::{CodeFiles, Config, SoftEngine};
use libfuzzer_sys::fuzz_target;
use ptx_vm::{AddressSpace, CodeBytes, KeptCode, Launch, LaunchSpec, Module, Options};

const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .global .u64 place = counter;\n.global .u32 counter[2] = {1, 2};\n.const .f32 factor = 0f40000000;\n\
    .func (.reg .u32 out) twice(.reg .u32 in) { shl.b32 out, in, 1; ret; }\n\
    .visible .entry k(.param .u64 to) .reqntid 64, 1, 1 {\n\
    .reg .u64 %rd<4>; .reg .u32 %r<4>; .reg .pred %p<2>;\n\
    ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;\n\
    setp.gt.u32 %p1, %r1, 5; @%p1 bra end; call (%r1), twice, (%r1);\n\
    end: st.global.u32 [%rd3], %r1; ret; }\n";

/// Gives what it has for a program, and takes what is compiled.
#[derive(Debug, Default)]
struct Kept {
    given: Option<Vec<u8>>,
    taken: Mutex<Option<Vec<u8>>>,
}

impl KeptCode for Kept {
    fn find(&self, _: u32, _: u32) -> Option<CodeBytes> {
        CodeBytes::copy_of(self.given.as_ref()?)
    }

    fn compiled(&self, _: u32, _: u32, bytes: Option<&[u8]>) {
        *self.taken.lock().expect("no panic") = bytes.map(<[u8]>::to_vec);
    }

    fn compile(&self) -> Option<Module> {
        None
    }
}

fn options(kept: &Arc<Kept>) -> Options {
    Options {
        kept: Some(Arc::<Kept>::clone(kept)),
        ..Options::default()
    }
}

/// Looks a kernel's program up, which runs nothing.
fn look_up(module: &Module) {
    for kernel in module.kernels().iter().take(4) {
        let [x, y, z] = kernel.required_threads.unwrap_or([1, 1, 1]);
        let _ = Launch::new(LaunchSpec {
            kernel: Arc::clone(kernel),
            grid: [1, 1, 1],
            block: [x, y, z],
            cluster: None,
            dynamic_shared: 0,
            params: vec![0; (kernel.param_bytes as usize).min(1 << 16)].into(),
            globals: vec![4096; module.globals().len()].into(),
            memory: Arc::new(AddressSpace::new(Vec::new())),
            textures: Arc::default(),
            cancel: Arc::default(),
            grid_id: 1,
            graph: 0,
            sm_count: 1,
            services: Arc::new(()),
            runtime: None,
            cooperative: false,
        });
    }
}

/// A module and its program as they are kept.
fn real() -> &'static [Vec<u8>; 2] {
    static REAL: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    REAL.get_or_init(|| {
        let kept = Arc::new(Kept::default());
        let tree = ptx::parse(TEXT).expect("PTX");
        let module = Module::load(&tree, &options(&kept)).expect("a module");
        look_up(&module);
        let program = kept.taken.lock().expect("no panic").take();
        [module.to_kept(), program.expect("it is compiled")]
    })
}

/// Changes bytes: a place in two bytes, and a value.
fn changed(whole: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if change[2] == 0 {
            bytes.truncate(at);
        } else if let Some(byte) = bytes.get_mut(at) {
            *byte ^= change[2];
        }
    }
    bytes
}

fn in_file(bytes: &[u8]) {
    static FOLDER: OnceLock<std::path::PathBuf> = OnceLock::new();
    let folder = FOLDER
        .get_or_init(|| std::env::temp_dir().join(format!("openmps-fuzz-{}", std::process::id())));
    let _ = std::fs::remove_dir_all(folder);
    drop(CodeFiles::open(folder, Box::new(|_| {})).expect("a folder"));
    let file = std::fs::read_dir(folder)
        .expect("a folder")
        .next()
        .expect("a file")
        .expect("a name");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(file.path())
        .expect("a file");
    file.write_all(bytes).expect("room");
    let files = CodeFiles::open(folder, Box::new(|_| {})).expect("a folder");
    let config = Config {
        workers: 1,
        memory: 512 << 20,
        ..Config::default()
    };
    let engine = SoftEngine::with_numbers(&config, &[0], Some(files)).expect("an engine");
    let mut guest = Guest::new(&engine);
    let to = guest.commit(0, GRANULE);
    let module = guest.module(TEXT);
    guest
        .launch_result(0, &simple_launch(module, 1, 64), &params(&[to]))
        .expect("a launch");
    guest.wait(0).expect("it runs");
    assert_eq!(guest.word(to + 4 * 5), 10);
    assert_eq!(guest.word(to + 4 * 6), 6);
    drop(guest);
    drop(engine);
    let _ = std::fs::remove_dir_all(folder);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, rest)) = bytes.split_first() else {
        return;
    };
    if how == 0 {
        in_file(rest);
        return;
    }
    let (module, program) = rest.split_at(rest.len() / 2);
    let [module, program] = match how % 2 {
        0 => [module.to_vec(), program.to_vec()],
        _ => {
            let [real_module, real_program] = real();
            [changed(real_module, module), changed(real_program, program)]
        }
    };
    let given = Arc::new(Kept {
        given: Some(program),
        ..Kept::default()
    });
    if let Some(read) = Module::from_kept(&module, &options(&given)) {
        assert_eq!(read.to_kept(), module, "it is what was read");
        look_up(&read);
    }
    let tree = ptx::parse(TEXT).expect("PTX");
    look_up(&Module::load(&tree, &options(&given)).expect("a module"));
});
