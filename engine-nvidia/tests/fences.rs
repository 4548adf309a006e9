//! Fenced clients over the fake driver: what is loaded for them, what their modules are told they may reach, and who is
//! told of what a kernel was not let do. The fake's kernels check nothing; what checks do is tested with `ptx::fence`.

mod common;

use common::machine_code::elf;
use common::{Controls, Fake, poke, until};
use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, simple_launch};
use engine::{Engine as _, Window};
use protocol::linked_image::{self, Part};
use protocol::operations::{ContextDestroy, ImageUnload, ModuleUnload};
use ptx::fence::{Fault, PAGE};

/// A text with one variable, and the kernel that the fake has.
const TEXT: &str = ".version 7.8\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 room[64];\n\
    .visible .entry poke(.param .u64 to, .param .u32 value) { .reg .b64 %a; .reg .b32 %v;\n\
    ld.param.u64 %a, [to]; ld.param.u32 %v, [value]; st.global.u32 [%a], %v; ret; }";

fn fake() -> Fake {
    Fake::new(&["VERSION=12040"])
}

/// What the module that was loaded last is told: the window that is looked at first, and all of them. Its kernels are
/// launched first, which is when it is told.
fn told(guest: &mut Guest, module: u64, controls: &Controls) -> (Window, Vec<Window>) {
    guest.launch(0, module, 1, 1, &poke(0, 0));
    assert_eq!(guest.wait(0), Ok(()));
    let [base, bytes, table, count, record] = controls.fence();
    assert_ne!(record, 0);
    let windows = (0..count).filter_map(|at| {
        // SAFETY: the fake's device memory is this process', and the client whose table it is is there.
        let word = unsafe { *((table + 8 * at) as *const u64) };
        (word != 0).then_some(Window {
            base: (word >> 28) * PAGE,
            bytes: (word & ((1 << 28) - 1)) * PAGE,
        })
    });
    let mut windows: Vec<Window> = windows.collect();
    windows.sort_by_key(|window| window.base);
    (Window { base, bytes }, windows)
}

/// Writes into the fault record of the module that was loaded last, as a check of its kernels would.
fn deny(controls: &Controls, kind: Fault, line: u32, address: u64) {
    let record = controls.fence()[4];
    let first = u64::from(line) << 32 | kind as u64;
    // SAFETY: the record is pinned memory of the fake's, which is this process', and is read as whole words only.
    unsafe {
        ((record + 8) as *mut u64).write_volatile(address);
        (record as *mut u64).write_volatile(first);
    }
}

#[test]
fn what_is_loaded_has_fences_and_what_others_load_is_as_it_was() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut plain = Guest::new(&engine);
    plain.module(TEXT);
    assert_eq!(controls.text(), TEXT, "byte for byte");
    let mut fenced = Guest::fenced(&engine);
    let (_, descriptor, _) = fenced.image(7, TEXT.as_bytes());
    let names: Vec<&str> = descriptor
        .variables
        .iter()
        .map(|variable| &*variable.name)
        .collect();
    assert_eq!(names, ["room"], "ours are not the program's");
    let text = controls.text();
    assert!(text.contains("call openmps$fence_check"), "{text}");
    // Neither gets the other's of the same bytes, which stay when their clients have gone.
    drop(fenced);
    plain.end();
    let load = |mut guest: Guest, text: &str| {
        let (status, _, log) = guest.image(1, text.as_bytes());
        assert_eq!(status, CUresult::SUCCESS, "{log}");
        controls.text()
    };
    let second = TEXT.replace("room", "rooms");
    assert_ne!(load(Guest::fenced(&engine), &second), second);
    assert_eq!(load(Guest::new(&engine), &second), second);
    let loads = controls.loads();
    load(Guest::fenced(&engine), &second);
    load(Guest::new(&engine), &second);
    assert_eq!(controls.loads(), loads, "both are there");
    let third = TEXT.replace("room", "roomy");
    assert_eq!(load(Guest::new(&engine), &third), third);
    assert_ne!(load(Guest::fenced(&engine), &third), third);
}

#[test]
fn modules_are_told_what_their_client_has_now() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::fenced(&engine);
    let module = guest.module(TEXT);
    let nothing = Window { base: 0, bytes: 0 };
    assert_eq!(told(&mut guest, module, &controls), (nothing, vec![]));
    let window = |base, granules| Window {
        base,
        bytes: granules * GRANULE,
    };
    let one = guest.commit(0, GRANULE);
    let far = guest.commit(40 * GRANULE, 3 * GRANULE);
    let both = vec![window(one, 1), window(far, 3)];
    assert_eq!(
        told(&mut guest, module, &controls),
        (window(far, 3), both),
        "the largest is looked at first"
    );
    // From then on what there is from there on, though another is larger.
    guest.commit(GRANULE, 20 * GRANULE);
    guest.commit(43 * GRANULE, GRANULE);
    let host = guest.commit_host();
    let mut all = vec![window(one, 21), window(far, 4)];
    let (first, windows) = told(&mut guest, module, &controls);
    assert_eq!(first, window(far, 4));
    let pinned = windows.iter().find(|window| window.contains(host, 1));
    all.push(*pinned.expect("page-locked memory is reached too"));
    all.sort_by_key(|window| window.base);
    assert_eq!(windows, all);
    // In the middle, and at the beginning.
    guest.client.decommit(window(one + 5 * GRANULE, 2));
    guest.client.decommit(window(far, 1));
    let (first, windows) = told(&mut guest, module, &controls);
    assert_eq!(
        first,
        window(far, 0),
        "it is not moved under kernels that run"
    );
    for there in [
        window(one, 5),
        window(one + 7 * GRANULE, 14),
        window(far + GRANULE, 3),
    ] {
        assert!(windows.contains(&there), "{windows:x?} lacks {there:x?}");
    }
    assert_eq!(windows.len(), 4);
    // Another client's are its own.
    let mut other = Guest::fenced(&engine);
    let second = other.module(TEXT);
    let own = other.commit(0, GRANULE);
    let told = told(&mut other, second, &controls);
    assert_eq!(told, (window(own, 1), vec![window(own, 1)]));
}

#[test]
fn runs_are_told_too_and_memory_of_others_that_is_opened() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut owner = Guest::new(&engine);
    let lent = Window {
        base: owner.commit(0, 2 * GRANULE),
        bytes: 2 * GRANULE,
    };
    let handle = owner.client.share(lent).unwrap();
    let mut guest = Guest::fenced(&engine);
    let module = guest.module(TEXT);
    guest.run_add(3, &simple_launch(module, 1, 1), &poke(0, 0));
    guest.commit(0, GRANULE);
    guest.run_launch(0, 3);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(controls.fence()[0], guest.windows[0].base);
    guest.client.import(&handle).unwrap();
    let (_, windows) = told(&mut guest, module, &controls);
    assert!(windows.contains(&lent), "{windows:x?}");
    guest.client.close(&handle);
    let (_, windows) = told(&mut guest, module, &controls);
    assert!(!windows.contains(&lent), "{windows:x?}");
    // As another process has it, it lies in more memory than is lent.
    let patience = std::time::Duration::from_secs(20);
    let exported = engine.export_memory(&handle, patience).unwrap();
    let [piece] = &exported.pieces[..] else {
        panic!("{exported:?}");
    };
    let middle = guest.windows[0].base + guest.windows[0].bytes / 2;
    let at = Window {
        base: middle.next_multiple_of(piece.bytes),
        bytes: piece.bytes,
    };
    let lent = Window {
        base: at.base + exported.offset,
        ..lent
    };
    let memory = guest.client.foreign_import(0, piece).unwrap();
    guest.client.foreign_map(at, &memory, lent).unwrap();
    let (_, windows) = told(&mut guest, module, &controls);
    let [found] = windows
        .iter()
        .filter(|window| at.contains(window.base, 1))
        .collect::<Vec<_>>()[..]
    else {
        panic!("{windows:x?}");
    };
    assert_eq!(*found, lent);
    guest.client.physical_access(at, 0, false).unwrap();
    let (_, windows) = told(&mut guest, module, &controls);
    assert!(!windows.contains(&lent), "{windows:x?}");
    guest.client.physical_unmap(at);
}

#[test]
fn what_a_kernel_was_not_let_do_ends_its_client_alone() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut neighbour = Guest::fenced(&engine);
    let second = neighbour.module(TEXT);
    let there = neighbour.commit(0, GRANULE);
    neighbour.launch(0, second, 1, 1, &poke(there, 1));
    let mut guest = Guest::fenced(&engine);
    let module = guest.module(TEXT);
    let own = guest.commit(0, GRANULE);
    assert_eq!(told(&mut guest, module, &controls).0.base, own);
    // What has ended before is complete; what ends afterwards has failed, though it was not denied anything itself.
    deny(&controls, Fault::Address, 5, 0xdead_0000);
    guest.launch(0, module, 1, 1, &poke(own, 2));
    let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
    assert_eq!(guest.wait(0), Err(illegal));
    let (context, code, text) = guest.observer.fault();
    assert_eq!((context, code), (0, illegal));
    assert!(text.contains("0xdead0000, line 5"), "{text}");
    let launched = guest.launch_result(0, &simple_launch(module, 1, 1), &poke(own, 3));
    assert_eq!(launched, Err(illegal));
    assert_eq!(guest.observer.faults().len(), 1, "once");
    // The neighbour works, and so does whoever comes, and the same client in a new context.
    neighbour.launch(0, second, 1, 1, &poke(there, 7));
    assert_eq!(neighbour.wait(0), Ok(()));
    assert_eq!(neighbour.word(there), 7);
    assert!(neighbour.observer.faults().is_empty());
    let destroyed = guest
        .client
        .context_destroy(&ContextDestroy { context: 0 }, &[]);
    assert_eq!(destroyed, Ok(()));
    guest.context(1, 0);
    let (again, _) = guest.module_in(1, TEXT);
    guest.launch(1, again, 1, 1, &poke(own, 9));
    assert_eq!(guest.wait(1), Ok(()));
    assert_eq!(guest.observer.faults().len(), 1);
}

#[test]
fn every_denial_has_its_error() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    for (kind, code) in [
        (Fault::Address, CUresult::ERROR_ILLEGAL_ADDRESS),
        (Fault::Misaligned, CUresult::ERROR_MISALIGNED_ADDRESS),
        (Fault::Trap, CUresult::ERROR_LAUNCH_FAILED),
        (Fault::Target, CUresult::ERROR_INVALID_PC),
    ] {
        let mut guest = Guest::fenced(&engine);
        let module = guest.module(TEXT);
        told(&mut guest, module, &controls);
        deny(&controls, kind, 1, 0);
        guest.launch(0, module, 1, 1, &poke(0, 0));
        assert_eq!(guest.wait(0), Err(code));
    }
}

/// Others of the grid may wait for ever for the thread that was ended.
#[test]
fn a_denial_is_told_while_its_kernel_runs() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::fenced(&engine);
    let module = guest.module(TEXT);
    told(&mut guest, module, &controls);
    controls.spin(true);
    guest.launch(0, module, 1, 1, &poke(0, 1));
    deny(&controls, Fault::Address, 1, 0x10);
    until("the client is told", || {
        guest.client.poll();
        !guest.observer.faults().is_empty()
    });
    assert!(!guest.is_done(0), "its kernel runs");
    controls.spin(false);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn memory_stays_as_long_as_a_kernel_may_be_let_reach_it() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::fenced(&engine);
    let module = guest.module(TEXT);
    let own = guest.commit(0, GRANULE);
    told(&mut guest, module, &controls);
    let taken = controls.counts()[4];
    controls.spin(true);
    guest.launch(0, module, 1, 1, &poke(0, 1));
    guest.client.decommit(Window {
        base: own,
        bytes: GRANULE,
    });
    guest.client.assist();
    assert_eq!(controls.counts()[4], taken, "it was taken under a kernel");
    controls.spin(false);
    assert_eq!(guest.wait(0), Ok(()));
    until("it is given back", || {
        guest.client.assist();
        controls.counts()[4] < taken
    });
}

#[test]
fn what_has_no_fence_is_refused_by_name() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::fenced(&engine);
    let loads = controls.loads();
    let code = elf(TEXT, &[], &[]);
    let surface = TEXT.replace("ret;", "trap; suld.b.1d.b32.trap {%v}, [%a, {%v}]; ret;");
    let device_heap = TEXT.replace(
        ".visible .entry",
        ".extern .func (.param .b64 p) malloc(.param .b64 n);\n.visible .entry",
    );
    let device_heap = device_heap.replace(
        "ret;",
        "{ .param .b64 n; .param .b64 p; st.param.b64 [n], %a; call (p), malloc, (n); } ret;",
    );
    let parts = linked_image::encode([0, 1].map(|_| Part {
        kind: 1,
        name: "",
        bytes: TEXT.as_bytes(),
    }));
    for (image, words) in [
        (&code[..], "must come as PTX"),
        (surface.as_bytes(), "texture or surface"),
        (device_heap.as_bytes(), "not in the text: call"),
        (&parts, "several parts"),
    ] {
        let (status, _, log) = guest.image(1, image);
        assert_eq!(status, CUresult::ERROR_NOT_SUPPORTED, "{log}");
        assert!(log.contains("this client is fenced"), "{log}");
        assert!(log.contains(words), "{log}");
    }
    assert_eq!(controls.loads(), loads, "something was loaded");
    // Who is not fenced has it.
    let mut plain = Guest::new(&engine);
    assert_eq!(plain.image(1, &code).0, CUresult::SUCCESS);
    // One part is what it is by itself.
    let one = linked_image::encode([Part {
        kind: 1,
        name: "",
        bytes: TEXT.as_bytes(),
    }]);
    assert_eq!(guest.image(1, &one).0, CUresult::SUCCESS);
    assert!(controls.text().contains("openmps$fence_check"));
}

#[test]
fn what_it_prints_to_is_its_modules_alone() {
    let fake = fake();
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guest = Guest::fenced(&engine);
    let prints = TEXT.replace(
        ".visible .entry",
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
         .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);\n\
         .visible .entry",
    );
    let module = guest.module(&prints);
    let text = controls.text();
    assert!(
        !text.contains("call __assertfail"),
        "the driver's would end all"
    );
    let [ring, bytes] = controls.list();
    assert!(ring != 0 && bytes > 1 << 20, "{ring:x} {bytes:x}");
    let (_, windows) = told(&mut guest, module, &controls);
    assert_eq!(windows, [], "it is in no table");
    let unloaded = guest.client.module_unload(&ModuleUnload { module }, &[]);
    assert_eq!(unloaded, Ok(()));
    let image = ImageUnload { image: module };
    let _ = guest.client.image_unload(&image, &[]);
}
