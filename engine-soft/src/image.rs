//! From the bytes that a program brings to a compiled module: finds the PTX in them, links it where
//! there are several parts, and has it compiled, or says in CUDA's codes and in words why not.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

use cuda_abi::linked::{self, Part};
use cuda_abi::types::CUjitInputType;
use engine::{Bound, CUresult, Charge};
use ptx::image::fatbin::{self, Damage};
use ptx::image::{self, ImageError, Limits, PtxText};
use ptx::{Budget, Memory, link, rewrite};

use crate::exec;

/// Why an image is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The status.
    pub(crate) code: CUresult,
    /// The JIT log.
    pub(crate) log: String,
}

/// Bytes of text that an image may become: thirty-two times what was brought, which no compiler's output
/// compresses to, within these.
const TEXT_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;

/// Forms of one image that are tried: compilers put a few into a fatbin.
const MOST_FORMS: usize = 8;

/// What is chosen from images: how much text there may still be, over all parts and forms of one load, and
/// the newest architecture whose PTX is wanted.
struct Room<'m> {
    memory: &'m Workspace,
    bytes: u64,
    /// The device's architecture.
    device: u32,
    newest: u32,
}

impl<'m> Room<'m> {
    fn new(bytes: &[u8], device: u32, memory: &'m Workspace) -> Self {
        let most = (bytes.len() as u64).saturating_mul(32);
        Self {
            memory,
            bytes: most.clamp(*TEXT_BYTES.start(), *TEXT_BYTES.end()),
            device,
            newest: device,
        }
    }

    /// The PTX for this device.
    fn select<'a>(&mut self, image: &'a [u8]) -> Result<PtxText<'a>, ImageError> {
        let limits = Limits {
            max_bytes: self.bytes.min(self.memory.left()),
            ..Limits::default()
        };
        let mut text = image::select_up_to(image, self.device, self.newest, &limits)?;
        let bytes = text.text.len() as u64;
        self.bytes = self.bytes.saturating_sub(bytes);
        // What is not compressed is read where it lies.
        if matches!(text.text, Cow::Owned(_)) && !self.memory.take(bytes) {
            return Err(ImageError::Damaged(Damage::NoRoom {
                compressed: image.len() as u64,
                expanded: bytes,
            }));
        }
        // What cannot be rewritten is refused with its reference.
        if rewrite::has_references(&text.text)
            && let Ok(rewritten) = rewrite::references(&text.text, self.budget())
        {
            self.bytes = self.bytes.saturating_sub(rewritten.len() as u64);
            text.text = rewritten.into();
        }
        Ok(text)
    }

    fn budget(&self) -> Budget<'m> {
        Budget {
            instructions: exec::MODULE_INSTRUCTIONS,
            memory: self.memory,
        }
    }
}

/// The memory that compiling an image takes until that is done, of what may be held for its client.
#[derive(Debug)]
pub(crate) struct Workspace {
    held: Arc<Bound>,
    charge: RefCell<Charge>,
}

impl Workspace {
    pub(crate) fn new(held: &Arc<Bound>) -> Self {
        Self {
            held: Arc::clone(held),
            charge: RefCell::new(Charge::new(Arc::clone(held))),
        }
    }

    fn left(&self) -> u64 {
        self.held.left()
    }

    /// What was made in it is gone.
    pub(crate) fn clear(&self) {
        self.charge.borrow_mut().shrink_to(0);
    }
}

impl Memory for Workspace {
    fn take(&self, bytes: u64) -> bool {
        self.charge.borrow_mut().grow(bytes)
    }
}

/// Compiles an image.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for what is no image, CUDA_ERROR_NO_BINARY_FOR_GPU for one without PTX
/// for this device, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_INVALID_PTX for PTX that is
/// wrong or asks for what is not built, and CUDA_ERROR_OUT_OF_MEMORY for what is beyond the limits of
/// one load; as [`LINK_FAILED`] says where parts do not fit together.
///
/// An image that has PTX for several architectures is taken in the newest form that is not refused.
pub(crate) fn compile(
    bytes: &[u8],
    options: &exec::Options,
    device: u32,
    memory: &Workspace,
) -> Result<Compiled, Refused> {
    let mut room = Room::new(bytes, device, memory);
    let mut result = compile_form(bytes, options, &mut room);
    let mut notes = String::new();
    if matches!(&result, Err(refused) if refused.is_about_ptx()) {
        let forms = forms(bytes, device);
        for (newer, &older) in forms.iter().zip(forms.iter().skip(1)) {
            let Err(refused) = &result else { break };
            let _ = write!(
                notes,
                "note: its PTX for sm_{newer} is not taken: {}",
                refused.log
            );
            room.newest = older;
            match compile_form(bytes, options, &mut room) {
                Err(older) if !older.is_about_ptx() => break,
                other => result = other,
            }
        }
        if result.is_ok() {
            let _ = writeln!(notes, "note: its PTX for sm_{} is used", room.newest);
        }
    }
    match result {
        Ok(module) => Ok(Compiled { module, notes }),
        Err(mut refused) => {
            refused.log.push_str(&notes);
            Err(refused)
        }
    }
}

/// A compiled image.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) module: exec::Module,
    /// What its user should know of how it was taken, for the log; mostly nothing.
    pub(crate) notes: String,
}

/// The architectures for which an image, or a part of a linked one, has PTX, the newest first, as many as
/// are tried.
fn forms(bytes: &[u8], device: u32) -> Vec<u32> {
    let mut found = if linked::is_linked(bytes) {
        let parts = linked::decode(bytes).unwrap_or_default();
        let mut found: Vec<u32> = Vec::new();
        for part in parts {
            match CUjitInputType(part.kind) {
                CUjitInputType::OBJECT | CUjitInputType::LIBRARY => {
                    for image in fatbin::embedded(part.bytes) {
                        found.extend(image::architectures(image, device));
                    }
                }
                _ => found.extend(image::architectures(part.bytes, device)),
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        found
    } else {
        image::architectures(bytes, device)
    };
    found.truncate(MOST_FORMS);
    found
}

/// Compiles the form of an image that `room` chooses.
fn compile_form(
    bytes: &[u8],
    options: &exec::Options,
    room: &mut Room<'_>,
) -> Result<exec::Module, Refused> {
    // Of a form that was refused nothing is left.
    room.memory.clear();
    if linked::is_linked(bytes) {
        return compile_linked(bytes, options, room);
    }
    let source = room.select(bytes).map_err(|error| refused(&error))?;
    let module = ptx::parse_within(&source.text, room.budget())
        .map_err(|error| Refused::new(code_of(&error), &error))?;
    if !asks_runtime(&module) {
        return load(&module, options, room.memory);
    }
    let runtime = device_runtime()?;
    let parts = vec![
        link::Part {
            name: "image",
            module,
        },
        runtime,
    ];
    // What else nobody defines is refused where a kernel calls it.
    let module = link::link(parts, |_| true).map_err(link_failed)?;
    load(&module, options, room.memory)
}

/// The status for a text that does not parse.
fn code_of(error: &ptx::Error) -> CUresult {
    match error.is_limit() {
        true => CUresult::ERROR_OUT_OF_MEMORY,
        false => CUresult::ERROR_INVALID_PTX,
    }
}

/// What a link comes to whose parts do not fit together: what an H200's driver was seen to give.
const LINK_FAILED: CUresult = CUresult::ERROR_INVALID_SOURCE;

/// Functions that device code calls and nobody defines, since every device has them.
const PROVIDED: [&str; 5] = [
    "vprintf",
    "malloc",
    "free",
    "__assertfail",
    "cudaGraphSetConditional",
];

/// How the names begin of what NVIDIA's device runtime library, which nvcc adds to every link, asks of
/// its driver, and of that library itself, whose PTX a device of an older architecture cannot take. A
/// kernel that calls one that is not there is refused, and no other.
const SYSTEM_CALLS: [&str; 4] = ["__cuda_syscall_", "cnp", "__cudaCDP", "cuda"];

/// What this engine has of that library.
const DEVICE_RUNTIME: &str = include_str!("device_runtime.ptx");

/// The functions of [`DEVICE_RUNTIME`].
const RUNTIME_FUNCTIONS: [&str; 5] = [
    "__cuda_syscall_CGS_get_intrinsic_handle",
    "__cuda_syscall_CGS_sync",
    "cudaCGGetIntrinsicHandle",
    "cudaCGSynchronize",
    "cudaCGSynchronizeGrid",
];

/// Whether a module names a function of [`DEVICE_RUNTIME`] and does not define it.
fn asks_runtime(module: &ptx::ast::Module<'_>) -> bool {
    let mut missing = module
        .functions
        .iter()
        .filter(|function| function.body.is_none());
    missing.any(|function| RUNTIME_FUNCTIONS.contains(&function.name))
}

fn device_runtime() -> Result<link::Part<'static>, Refused> {
    let module = ptx::parse(DEVICE_RUNTIME)
        .map_err(|error| Refused::new(CUresult::ERROR_UNKNOWN, &error))?;
    Ok(link::Part {
        name: "device runtime",
        module,
    })
}

fn link_failed(messages: Vec<String>) -> Refused {
    let log = messages.iter().map(|message| format!("error: {message}\n"));
    Refused {
        code: LINK_FAILED,
        log: log.collect(),
    }
}

fn refused(error: &ImageError) -> Refused {
    Refused::new(CUresult(error.cuda_error()), error)
}

/// Looks at an image that will be a part of a link.
///
/// # Errors
/// As [`compile`], but for what only the whole can show.
pub(crate) fn check_part(bytes: &[u8], device: u32, memory: &Workspace) -> Result<(), Refused> {
    let mut room = Room::new(bytes, device, memory);
    for part in decode(bytes)? {
        let mut texts = Vec::new();
        match gather(&part, &mut room, &mut texts)? {
            Some(error) if texts.is_empty() && part.kind != CUjitInputType::LIBRARY.0 => {
                return Err(refused(&error));
            }
            _ => {}
        }
        for text in &texts {
            parse(part.name, text, room.budget())?;
        }
    }
    Ok(())
}

fn decode(bytes: &[u8]) -> Result<Vec<Part<'_>>, Refused> {
    let damaged = "the linked image is damaged";
    linked::decode(bytes).map_err(|_| Refused::new(CUresult::ERROR_INVALID_IMAGE, &damaged))
}

fn parse<'a>(
    name: &str,
    text: &'a PtxText<'_>,
    budget: Budget<'a>,
) -> Result<ptx::ast::Module<'a>, Refused> {
    ptx::parse_within(&text.text, budget).map_err(|error| {
        let message = format!("{name}: {error}");
        Refused::new(code_of(&error), &message)
    })
}

/// Adds the PTX of a part. What comes is why there is none, where that need not matter: other parts
/// may have all that is used.
fn gather<'a>(
    part: &Part<'a>,
    room: &mut Room<'_>,
    texts: &mut Vec<PtxText<'a>>,
) -> Result<Option<ImageError>, Refused> {
    let mut add = |image: &'a [u8]| match room.select(image) {
        Ok(text) => {
            texts.push(text);
            Ok(None)
        }
        Err(error @ (ImageError::MachineCodeOnly { .. } | ImageError::NoPtxForDevice { .. })) => {
            Ok(Some(error))
        }
        Err(error) => Err(refused(&error)),
    };
    match CUjitInputType(part.kind) {
        CUjitInputType::CUBIN | CUjitInputType::PTX | CUjitInputType::FATBINARY => add(part.bytes),
        CUjitInputType::OBJECT | CUjitInputType::LIBRARY => {
            let mut missing = None;
            for image in fatbin::embedded(part.bytes) {
                missing = add(image)?.or(missing);
            }
            Ok(missing)
        }
        _ => {
            let kind = format!("inputs of kind {} cannot be linked", part.kind);
            Err(Refused::new(CUresult::ERROR_NOT_SUPPORTED, &kind))
        }
    }
}

fn compile_linked(
    bytes: &[u8],
    options: &exec::Options,
    room: &mut Room<'_>,
) -> Result<exec::Module, Refused> {
    let (whole, parts): (Vec<_>, Vec<_>) = decode(bytes)?
        .into_iter()
        .partition(|part| part.kind == linked::ALREADY_LINKED);
    for part in &whole {
        if let Ok(source) = room.select(part.bytes) {
            let module = parse(part.name, &source, room.budget())?;
            return load(&module, options, room.memory);
        }
    }
    let mut sources = Vec::new();
    let mut missing = None;
    for part in &parts {
        let mut texts = Vec::new();
        missing = gather(part, room, &mut texts)?.or(missing);
        sources.extend(texts.into_iter().map(|text| (part.name, text)));
    }
    if let (Some(error), true) = (&missing, sources.is_empty()) {
        return Err(refused(error));
    }
    let mut modules = Vec::new();
    for (name, text) in &sources {
        modules.push(link::Part {
            name,
            module: parse(name, text, room.budget())?,
        });
    }
    if modules.iter().any(|part| asks_runtime(&part.module)) {
        modules.push(device_runtime()?);
    }
    let module = link::link(modules, |name| {
        PROVIDED.contains(&name) || SYSTEM_CALLS.iter().any(|start| name.starts_with(start))
    })
    .map_err(link_failed)?;
    load(&module, options, room.memory).map_err(|mut error| {
        if let Some(missing) = missing {
            // What is missing may stand in the part that was left out.
            let _ = writeln!(error.log, "note: {missing}");
        }
        error
    })
}

fn load(
    module: &ptx::ast::Module<'_>,
    options: &exec::Options,
    memory: &Workspace,
) -> Result<exec::Module, Refused> {
    exec::Module::load_within(module, options, memory).map_err(|error| {
        let code = match error.limit {
            true => CUresult::ERROR_OUT_OF_MEMORY,
            false => CUresult::ERROR_INVALID_PTX,
        };
        Refused::new(code, &error)
    })
}

/// What [`assemble`] says of PTX that a device can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// What its user should know.
    pub notes: String,
    /// Registers, memory and constants of each kernel, a line each.
    pub kernels: String,
}

/// Looks whether a device of this architecture (90 for compute capability 9.0) could run an image, without
/// a device.
///
/// # Errors
/// Why not, in lines.
pub fn assemble(
    image: &[u8],
    device: u32,
    max_registers: Option<u32>,
) -> Result<Assembled, String> {
    let options = exec::Options {
        max_registers,
        ..exec::Options::default()
    };
    let memory = Workspace::new(&Arc::new(Bound::new(u64::MAX)));
    let compiled = compile(image, &options, device, &memory).map_err(|refused| refused.log)?;
    Ok(Assembled {
        kernels: remarks(&compiled.module),
        notes: compiled.notes,
    })
}

/// What a program may want to know of its kernels.
pub(crate) fn remarks(module: &exec::Module) -> String {
    let mut log = String::new();
    for kernel in module.kernels() {
        let _ = writeln!(
            log,
            "info: kernel '{}': {} registers, {} bytes of shared memory, {} bytes of local memory, \
             {} bytes of constants",
            kernel.name,
            kernel.registers,
            kernel.shared_bytes,
            kernel.local_bytes,
            kernel.const_bytes
        );
    }
    log
}

impl Refused {
    pub(crate) fn new(code: CUresult, why: &dyn std::fmt::Display) -> Self {
        Self {
            code,
            log: format!("error: {why}\n"),
        }
    }

    /// It is the PTX that is refused, rather than the image or how much it asks for.
    fn is_about_ptx(&self) -> bool {
        matches!(
            self.code,
            CUresult::ERROR_INVALID_PTX | CUresult::ERROR_UNSUPPORTED_PTX_VERSION
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

    fn compiled(image: &[u8]) -> Result<Compiled, Refused> {
        compiled_within(image, u64::MAX)
    }

    fn compiled_within(image: &[u8], bytes: u64) -> Result<Compiled, Refused> {
        let held = Arc::new(Bound::new(bytes));
        let memory = Workspace::new(&held);
        let result = compile(image, &exec::Options::default(), 121, &memory);
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
        use cuda_abi::textures::{SURFACE_REFERENCE, TEXTURE_REFERENCE};
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
        let more = "ret;".repeat(exec::MODULE_INSTRUCTIONS as usize);
        let refused = compiled(text(75, "more", &more).as_bytes()).unwrap_err();
        assert_eq!(refused.code, CUresult::ERROR_OUT_OF_MEMORY);
        let why = "more than 4194304 instructions";
        assert!(refused.log.contains(why), "{}", refused.log);
    }

    #[test]
    fn launches_from_kernels_are_refused_in_words() {
        let ptx = format!(
            "{HEAD}.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 a, .param .b64 b);\n\
             .visible .entry root() {{\n.param .b64 a;\n.param .b64 b;\n.param .b32 r;\n\
             call.uni (r), __cudaCDP2LaunchDeviceV2, (a, b);\nret;\n}}\n"
        );
        let refused = compiled(ptx.as_bytes()).unwrap_err();
        assert_eq!(refused.code, CUresult::ERROR_INVALID_PTX);
        assert!(
            refused.log.contains("launches from kernels"),
            "{}",
            refused.log
        );
        assert!(
            refused.log.contains("__cudaCDP2LaunchDeviceV2"),
            "{}",
            refused.log
        );
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
            let taken =
                compiled(ptx.as_bytes()).unwrap_or_else(|refused| panic!("{}", refused.log));
            assert!(taken.module.kernel("meet").is_some());
        }
    }
}
