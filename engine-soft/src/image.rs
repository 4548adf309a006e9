//! From the bytes that a program brings to a compiled module: finds the PTX in them, links it where
//! there are several parts, and has it compiled, or says in CUDA's codes and in words why not.

use std::fmt::Write as _;

use cuda_abi::linked::{self, Part};
use cuda_abi::types::CUjitInputType;
use engine::CUresult;
use ptx::image::{self, ImageError, Limits, PtxText, fatbin};
use ptx::link;

use crate::device::BINARY_VERSION;
use crate::exec;

/// Why an image is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The status.
    pub(crate) code: CUresult,
    /// The JIT log.
    pub(crate) log: String,
}

/// Bytes of text that an image may become: sixteen times what was brought, which no compiler's output
/// compresses to, within these.
const TEXT_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;

/// What is left of the text that one load may become, over all of its parts.
struct Room(u64);

impl Room {
    fn new(bytes: &[u8]) -> Self {
        let most = (bytes.len() as u64).saturating_mul(16);
        Self(most.clamp(*TEXT_BYTES.start(), *TEXT_BYTES.end()))
    }

    /// The PTX for this device.
    fn select<'a>(&mut self, image: &'a [u8]) -> Result<PtxText<'a>, ImageError> {
        let limits = Limits {
            max_bytes: self.0,
            ..Limits::default()
        };
        let text = image::select_within(image, BINARY_VERSION, &limits)?;
        self.0 = self.0.saturating_sub(text.text.len() as u64);
        Ok(text)
    }
}

/// Compiles an image.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for what is no image, CUDA_ERROR_NO_BINARY_FOR_GPU for one without PTX
/// for this device, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_INVALID_PTX for PTX that is
/// wrong or asks for what is not built, and CUDA_ERROR_OUT_OF_MEMORY for what is beyond the limits of
/// one load; as [`LINK_FAILED`] says where parts do not fit together.
pub(crate) fn compile(bytes: &[u8], options: &exec::Options) -> Result<exec::Module, Refused> {
    if linked::is_linked(bytes) {
        return compile_linked(bytes, options);
    }
    let source = Room::new(bytes)
        .select(bytes)
        .map_err(|error| refused(&error))?;
    let invalid = CUresult::ERROR_INVALID_PTX;
    let module = ptx::parse(&source.text).map_err(|error| Refused::new(invalid, &error))?;
    load(&module, options)
}

/// What a link comes to whose parts do not fit together: what an H200's driver was seen to give.
const LINK_FAILED: CUresult = CUresult::ERROR_INVALID_SOURCE;

/// Functions that device code calls and nobody defines, since every device has them.
const PROVIDED: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// How the names begin of what NVIDIA's device runtime library, which nvcc adds to every link, asks of
/// its driver. Launches from device code are not built: a kernel that calls one is refused, and no other.
const SYSTEM_CALLS: [&str; 2] = ["__cuda_syscall_", "cnp"];

fn refused(error: &ImageError) -> Refused {
    Refused::new(CUresult(error.cuda_error()), error)
}

/// Looks at an image that will be a part of a link.
///
/// # Errors
/// As [`compile`], but for what only the whole can show.
pub(crate) fn check_part(bytes: &[u8]) -> Result<(), Refused> {
    let mut room = Room::new(bytes);
    for part in decode(bytes)? {
        let mut texts = Vec::new();
        match gather(&part, &mut room, &mut texts)? {
            Some(error) if texts.is_empty() && part.kind != CUjitInputType::LIBRARY.0 => {
                return Err(refused(&error));
            }
            _ => {}
        }
        for text in &texts {
            parse(part.name, text)?;
        }
    }
    Ok(())
}

fn decode(bytes: &[u8]) -> Result<Vec<Part<'_>>, Refused> {
    let damaged = "the linked image is damaged";
    linked::decode(bytes).map_err(|_| Refused::new(CUresult::ERROR_INVALID_IMAGE, &damaged))
}

fn parse<'a>(name: &str, text: &'a PtxText<'_>) -> Result<ptx::ast::Module<'a>, Refused> {
    ptx::parse(&text.text).map_err(|error| {
        let message = format!("{name}: {error}");
        Refused::new(CUresult::ERROR_INVALID_PTX, &message)
    })
}

/// Adds the PTX of a part. What comes is why there is none, where that need not matter: other parts
/// may have all that is used.
fn gather<'a>(
    part: &Part<'a>,
    room: &mut Room,
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

fn compile_linked(bytes: &[u8], options: &exec::Options) -> Result<exec::Module, Refused> {
    let (whole, parts): (Vec<_>, Vec<_>) = decode(bytes)?
        .into_iter()
        .partition(|part| part.kind == linked::ALREADY_LINKED);
    let mut room = Room::new(bytes);
    for part in &whole {
        if let Ok(source) = room.select(part.bytes) {
            let module = parse(part.name, &source)?;
            return load(&module, options);
        }
    }
    let mut sources = Vec::new();
    let mut missing = None;
    for part in &parts {
        let mut texts = Vec::new();
        missing = gather(part, &mut room, &mut texts)?.or(missing);
        sources.extend(texts.into_iter().map(|text| (part.name, text)));
    }
    if let (Some(error), true) = (&missing, sources.is_empty()) {
        return Err(refused(error));
    }
    let mut modules = Vec::new();
    for (name, text) in &sources {
        modules.push(link::Part {
            name,
            module: parse(name, text)?,
        });
    }
    let module = link::link(modules, |name| {
        PROVIDED.contains(&name) || SYSTEM_CALLS.iter().any(|start| name.starts_with(start))
    })
    .map_err(|messages| {
        let log = messages
            .iter()
            .map(|message| format!("error: {message}\n"))
            .collect();
        Refused {
            code: LINK_FAILED,
            log,
        }
    })?;
    load(&module, options).map_err(|mut error| {
        if let Some(missing) = missing {
            // What is missing may stand in the part that was left out.
            let _ = writeln!(error.log, "note: {missing}");
        }
        error
    })
}

fn load(module: &ptx::ast::Module<'_>, options: &exec::Options) -> Result<exec::Module, Refused> {
    exec::Module::load(module, options).map_err(|error| {
        let code = match error.limit {
            true => CUresult::ERROR_OUT_OF_MEMORY,
            false => CUresult::ERROR_INVALID_PTX,
        };
        Refused::new(code, &error)
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
}
