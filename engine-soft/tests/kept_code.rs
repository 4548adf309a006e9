//! A second engine, as a later server has it, compiles nothing that the first one has.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::CodeSource;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine_soft::{CodeFiles, Config, SoftEngine};
use protocol::operations::Launch;
use tempfile::TempDir;

/// Two kernels, a variable, a function, a branch that lanes disagree about.
const TEXT: &str = r"
.version 7.5
.target sm_75
.address_size 64
.global .align 4 .u32 table[4] = {10, 20, 30, 40};
.func (.reg .u32 out) twice(.reg .u32 in) { shl.b32 out, in, 1; ret; }
.visible .entry fill(.param .u64 to)
{
    .reg .u64 %rd<5>;
    .reg .u32 %r<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 3;
    mul.wide.u32 %rd2, %r2, 4;
    mov.u64 %rd3, table;
    add.u64 %rd3, %rd3, %rd2;
    ld.global.u32 %r3, [%rd3];
    setp.gt.u32 %p1, %r1, 40;
    @%p1 bra more;
    call (%r3), twice, (%r3);
more:
    add.u32 %r4, %r3, %r1;
    mul.wide.u32 %rd4, %r1, 4;
    add.u64 %rd4, %rd1, %rd4;
    st.global.u32 [%rd4], %r4;
    ret;
}
.visible .entry other(.param .u64 to)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// What an engine says when it ends, after `work` with what it gives.
fn run(folder: &Path, work: impl FnOnce(&SoftEngine)) -> String {
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&said);
    let say = Box::new(move |text: &str| to.lock().unwrap().push(text.to_owned()));
    let config = Config {
        workers: 2,
        memory: 512 << 20,
        ..Config::default()
    };
    let files = CodeFiles::open(folder, say).unwrap();
    let engine = SoftEngine::with_numbers(&config, &[0], Some(files)).unwrap();
    work(&engine);
    drop(engine);
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
    said[0].clone()
}

fn launch(guest: &mut Guest, kernel: u32, threads: u32) -> Vec<u32> {
    let to = guest.commit(0, GRANULE);
    let module = guest.module(TEXT);
    let request = Launch {
        kernel,
        ..simple_launch(module, 1, threads)
    };
    guest.launch_result(0, &request, &params(&[to])).unwrap();
    guest.wait(0).unwrap();
    let bytes = guest.download(to, u64::from(threads) * 4);
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn expected(threads: u32) -> Vec<u32> {
    let value = |lane: u32| {
        let entry = 10 * (lane % 4 + 1);
        lane + if lane > 40 { entry } else { 2 * entry }
    };
    (0..threads).map(value).collect()
}

fn fill(engine: &SoftEngine) {
    let mut guest = Guest::new(engine);
    assert_eq!(launch(&mut guest, 0, 64), expected(64));
}

#[test]
fn a_second_server_compiles_nothing() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("code");
    let said = run(&folder, fill);
    assert!(
        said.starts_with("Compiled: 1 images, 1 kernels; kept from before: 0 images, 0 kernels"),
        "{said}"
    );
    let said = run(&folder, fill);
    assert!(
        said.starts_with("Compiled: 0 images, 0 kernels; kept from before: 1 images, 1 kernels"),
        "{said}"
    );
}

#[test]
fn clients_are_told_where_their_code_came_from() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("code");
    for source in [CodeSource::Compiler, CodeSource::Disk] {
        run(&folder, |engine| {
            let mut guest = Guest::new(engine);
            launch(&mut guest, 0, 64);
            assert_eq!(guest.observer.code(), [source; 2], "image and kernel");
            // What the first has is in memory.
            let mut other = Guest::new(engine);
            launch(&mut other, 0, 64);
            assert_eq!(other.observer.code(), []);
        });
    }
}

#[test]
fn what_the_first_did_not_launch_the_second_compiles() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("code");
    run(&folder, fill);
    let said = run(&folder, |engine| {
        let mut guest = Guest::new(engine);
        assert_eq!(launch(&mut guest, 1, 1), [7]);
        drop(guest);
        let mut guest = Guest::new(engine);
        assert_eq!(launch(&mut guest, 0, 200), expected(200), "other lanes");
    });
    // Once for each client that brings the image, since nobody had it in between.
    assert!(
        said.starts_with("Compiled: 2 images, 2 kernels; kept from before: 2 images, 0 kernels"),
        "{said}"
    );
    let said = run(&folder, fill);
    assert!(said.starts_with("Compiled: 0 images, 0 kernels"), "{said}");
}

#[test]
fn a_folder_full_of_damage_only_costs_time() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("code");
    run(&folder, fill);
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap();
    let file = file.unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    for step in [1, 7, 64] {
        let mut damaged = whole.clone();
        damaged.iter_mut().step_by(step).for_each(|byte| *byte ^= 1);
        std::fs::write(&file, &damaged).unwrap();
        let said = run(&folder, fill);
        assert!(said.starts_with("Compiled: 1 images, 1 kernels"), "{said}");
    }
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    run(&folder, fill);
    let said = run(&folder, fill);
    assert!(said.starts_with("Compiled: 0 images, 0 kernels"), "{said}");
}
