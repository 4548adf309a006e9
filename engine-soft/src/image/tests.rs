//! Images that are damaged, too large, or linked.

use super::*;

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

fn compiled(image: &[u8]) -> Result<Compiled, Refused> {
    compiled_within(image, u64::MAX)
}

fn compiled_within(image: &[u8], bytes: u64) -> Result<Compiled, Refused> {
    let held = Arc::new(Bound::new(bytes));
    let memory = Workspace::new(&held);
    let result = compile(image, &ptx_vm::Options::default(), 121, &memory);
    drop(memory);
    assert_eq!(held.taken(), 0, "it is given back");
    result
}

/// A fatbin of PTX for several architectures.
fn fatbin(texts: &[(u32, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (arch, text) in texts {
        let mut payload = text.as_bytes().to_vec();
        payload.resize(payload.len().next_multiple_of(8), 0);
        body.extend(1_u16.to_le_bytes());
        body.extend(0x0101_u16.to_le_bytes());
        body.extend(64_u32.to_le_bytes());
        body.extend((payload.len() as u64).to_le_bytes());
        body.extend([0; 8]);
        body.extend([0, 0, 8, 0]);
        body.extend(arch.to_le_bytes());
        body.extend([0; 8]);
        body.extend(0x11_u64.to_le_bytes());
        body.extend([0; 16]);
        body.extend(payload);
    }
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}

fn text(arch: u32, name: &str, instruction: &str) -> String {
    format!(
        ".version 8.0\n.target sm_{arch}\n.address_size 64\n\
             .visible .entry {name}() {{ {instruction}; ret; }}\n"
    )
}

#[test]
fn references_have_the_names_that_clients_ask_for() {
    use protocol::textures::{SURFACE_REFERENCE, TEXTURE_REFERENCE};
    assert_eq!(rewrite::TEXTURE, TEXTURE_REFERENCE);
    assert_eq!(rewrite::SURFACE, SURFACE_REFERENCE);
}

#[test]
fn a_newer_form_that_is_refused_does_not_hide_an_older_one() {
    let old = text(75, "old", "bar.sync 0");
    let middle = text(90, "middle", "no.such.instruction");
    let new = text(120, "new", "no.other.instruction");
    let image = fatbin(&[(75, &old), (120, &new), (90, &middle)]);
    let taken = compiled(&image).unwrap();
    assert!(taken.module.kernel("old").is_some());
    for said in ["sm_120", "no.other", "sm_90", "no.such", "sm_75 is used"] {
        assert!(taken.notes.contains(said), "{said}: {}", taken.notes);
    }
    // What is refused in every form is refused as the newest, with the others beside it.
    let refused = compiled(&fatbin(&[(120, &new), (90, &middle)])).unwrap_err();
    assert_eq!(refused.code, CUresult::ERROR_INVALID_PTX);
    // Nothing is said of an image that is taken as it is.
    let image = fatbin(&[(75, &old), (90, &text(90, "good", "bar.sync 0"))]);
    let taken = compiled(&image).unwrap();
    assert!(taken.module.kernel("good").is_some());
    assert_eq!(taken.notes, "");
}

#[test]
fn what_an_image_becomes_is_within_what_may_be_held_for_its_client() {
    let many = format!("{} ret", "@p ret;".repeat(10_000));
    let large = text(75, "large", &many).replace("{ @p", "{ .reg .pred p; @p");
    // Enough for the tree and not for what becomes of it; not enough for the tree.
    for (bytes, why) in [
        (2 << 20, "this program's code"),
        (512 << 10, "it is parsed"),
    ] {
        let refused = compiled_within(large.as_bytes(), bytes).unwrap_err();
        assert_eq!(refused.code, CUresult::ERROR_OUT_OF_MEMORY, "{why}");
        assert!(refused.log.contains(why), "{}", refused.log);
    }
    assert!(compiled_within(large.as_bytes(), 64 << 20).is_ok());
    let more = "ret;".repeat(ptx_vm::MODULE_INSTRUCTIONS as usize);
    let refused = compiled(text(75, "more", &more).as_bytes()).unwrap_err();
    assert_eq!(refused.code, CUresult::ERROR_OUT_OF_MEMORY);
    let why = "more than 4194304 instructions";
    assert!(refused.log.contains(why), "{}", refused.log);
}

#[test]
fn what_is_not_built_of_the_device_runtime_is_refused_by_name() {
    for name in ["__cudaCDP2Memcpy3DAsync", "cudaGraphUpload"] {
        let ptx = format!(
            "{HEAD}.extern .func (.param .b32 r) {name}(.param .b64 a, .param .b64 b);\n\
             .visible .entry root() {{\n.param .b64 a;\n.param .b64 b;\n.param .b32 r;\n\
             call.uni (r), {name}, (a, b);\nret;\n}}\n"
        );
        let refused = compiled(ptx.as_bytes()).unwrap_err();
        assert_eq!(refused.code, CUresult::ERROR_INVALID_PTX);
        assert!(refused.log.contains(name), "{}", refused.log);
    }
}

#[test]
fn a_grid_meets_through_functions_of_the_device_runtime() {
    for functions in [
        ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"],
        [
            "__cuda_syscall_CGS_get_intrinsic_handle",
            "__cuda_syscall_CGS_sync",
        ],
    ] {
        let [handle, sync] = functions;
        let ptx = format!(
            "{HEAD}.extern .func (.param .b64 r) {handle}(.param .b32 a);\n\
                 .extern .func (.param .b32 r) {sync}(.param .b64 a, .param .b32 b);\n\
                 .visible .entry meet() {{\n.param .b32 a;\n.param .b64 b;\n.param .b32 c;\n\
                 call.uni (b), {handle}, (a);\ncall.uni (c), {sync}, (b, a);\nret;\n}}\n"
        );
        let taken = compiled(ptx.as_bytes()).unwrap_or_else(|refused| panic!("{}", refused.log));
        assert!(taken.module.kernel("meet").is_some());
    }
}
