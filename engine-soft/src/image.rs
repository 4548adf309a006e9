//! From the bytes that a program brings to a compiled module: finds the PTX in them, links it where
//! there are several parts, and has it compiled, or says in CUDA's codes and in words why not.
//!
//! Owns the room in which texts are parsed. Called by clients that load an image. Must not know who they are.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

use cuda_abi::types::CUjitInputType;
use engine::{Bound, CUresult, Charge};
use protocol::linked_image::{self, Part};
use ptx::image::fatbin::{self, Damage};
use ptx::image::{self, ImageError, Limits, PtxText};
use ptx::{Budget, Memory, link, rewrite};

pub(crate) mod pointers;

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
            instructions: ptx_vm::MODULE_INSTRUCTIONS,
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
        self.held.remaining()
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
    options: &ptx_vm::Options,
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
    pub(crate) module: ptx_vm::Module,
    /// What its user should know of how it was taken, for the log; mostly nothing.
    pub(crate) notes: String,
}

/// The architectures for which an image, or a part of a linked one, has PTX, the newest first, as many as
/// are tried.
fn forms(bytes: &[u8], device: u32) -> Vec<u32> {
    let mut found = if linked_image::is_linked(bytes) {
        let parts = linked_image::decode(bytes).unwrap_or_default();
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
    options: &ptx_vm::Options,
    room: &mut Room<'_>,
) -> Result<ptx_vm::Module, Refused> {
    // Of a form that was refused nothing is left.
    room.memory.clear();
    if linked_image::is_linked(bytes) {
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
        link::LinkInput {
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

/// Takes the bodies of NVIDIA's device runtime out of a module where this engine has functions of its own: those ask
/// for what only NVIDIA's driver has.
fn leave_out_runtime(module: &mut ptx::ast::Module<'_>) {
    for function in &mut module.functions {
        if ptx_vm::is_device_function(function.name) && !function.entry {
            function.body = None;
            function.linkage = ptx::ast::Linkage::Extern;
        }
    }
}

fn device_runtime() -> Result<link::LinkInput<'static>, Refused> {
    let module = ptx::parse(DEVICE_RUNTIME)
        .map_err(|error| Refused::new(CUresult::ERROR_UNKNOWN, &error))?;
    Ok(link::LinkInput {
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
    linked_image::decode(bytes).map_err(|_| Refused::new(CUresult::ERROR_INVALID_IMAGE, &damaged))
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
    options: &ptx_vm::Options,
    room: &mut Room<'_>,
) -> Result<ptx_vm::Module, Refused> {
    let (whole, parts): (Vec<_>, Vec<_>) = decode(bytes)?
        .into_iter()
        .partition(|part| part.kind == linked_image::ALREADY_LINKED);
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
        let mut module = parse(name, text, room.budget())?;
        leave_out_runtime(&mut module);
        modules.push(link::LinkInput { name, module });
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
    options: &ptx_vm::Options,
    memory: &Workspace,
) -> Result<ptx_vm::Module, Refused> {
    ptx_vm::Module::load_within(module, options, memory).map_err(|error| {
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
    let options = ptx_vm::Options {
        max_registers,
        ..ptx_vm::Options::default()
    };
    let memory = Workspace::new(&Arc::new(Bound::new(u64::MAX)));
    let compiled = compile(image, &options, device, &memory).map_err(|refused| refused.log)?;
    Ok(Assembled {
        kernels: remarks(&compiled.module),
        notes: compiled.notes,
    })
}

/// What a program may want to know of its kernels.
pub(crate) fn remarks(module: &ptx_vm::Module) -> String {
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
mod tests;
