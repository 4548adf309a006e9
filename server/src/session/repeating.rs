//! Work that was cut off: what of it can be done again without anybody being able to tell, and why not the rest.
//!
//! A copy, a fill or a write can, and a kernel of which its text shows that it writes nothing that it reads, given the
//! blocks that the pointers of this launch are in. All that may have been begun is done again in its order or nothing is:
//! so nothing of it may write what an earlier one has read. That a pointer stays within its allocation is CUDA's rule, and
//! so is that the host does not write what a kernel reads before it has waited for it.
//!
//! Called by `takeover` once the client's objects are there that lived where the ring's oldest record stands. Kernels of
//! which something came or went later are not looked into. Must not know how a kernel is understood.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use cuda_abi::CUresult;
use engine::{Client, KernelPointers, Place};
use protocol::image_descriptor::Descriptor;
use protocol::operations::{
    At, Copy, Fill, HostFree, ImagePut, Launch, MemFree, ModuleLoad, ModuleUnload, Opcode,
    OperationClass, Space, Write,
};
use protocol::wire::Fields;
use transport::ring::Record;
use transport::session::Former;
use transport::session::journal::{Entry, Outcome};

use crate::code::images::Images;
use crate::memory::client_memory::ClientMemory;

/// Bytes of a write that may be a flag for somebody who watches it: such a write is not done twice.
const FLAG_BYTES: usize = 8;

/// Which of a stream's operations that are not complete may have been begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The first one at most.
    First,
    /// Any: a device has several, and says late how far it is.
    All,
    /// None: the former server has waited until nothing ran, and begun nothing more.
    None,
    /// Those before the first kernel of their stream, which is here: the former server has said that it had begun none.
    BeforeKernels(HashMap<u32, u64>),
}

impl Begun {
    /// No kernel among these records, in the ring's order.
    pub(super) fn no_kernel<'a>(
        records: impl Iterator<Item = &'a Record>,
        former: &Former,
    ) -> Self {
        let mut first = HashMap::new();
        for record in records {
            let (stream, sequence) = (record.header.channel, record.header.sequence);
            let opcode = Opcode::from_number(record.header.opcode);
            if matches!(opcode, Some(Opcode::Launch | Opcode::RunLaunch))
                && sequence > completed(former, stream)
            {
                let _ = first.entry(stream).or_insert(sequence);
            }
        }
        Self::BeforeKernels(first)
    }

    /// Whether this one may have been.
    pub(super) fn is_it(&self, at: At, former: &Former) -> bool {
        let behind = at.sequence.saturating_sub(completed(former, at.stream));
        match self {
            Self::None => false,
            Self::First => behind == 1,
            Self::All => behind >= 1,
            Self::BeforeKernels(first) => {
                let kernel = first.get(&at.stream);
                behind >= 1 && kernel.is_none_or(|&kernel| at.sequence < kernel)
            }
        }
    }
}

pub(super) fn completed(former: &Former, stream: u32) -> u64 {
    let completed = former.completed.get(stream as usize);
    completed.copied().unwrap_or(0)
}

/// What an operation reads and writes of memory that kernels and copies reach by its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
}

/// What is known of the kernels and the memory of a client.
pub(super) trait Knowledge {
    /// What a launch reads and writes, of whole blocks.
    ///
    /// # Errors
    /// Why that cannot be said.
    fn launch(&mut self, launch: &Launch, data: &[u8]) -> Result<Effects, String>;

    /// Whether this is all of one block.
    fn is_in_block(&self, range: &Range<u64>) -> bool;
}

/// Why some of these records, in the ring's order, that may have been begun cannot be done again without anybody being
/// able to tell. One that writes what an earlier one has read is such, as that one is done again too.
pub(super) fn cut_off<'a>(
    records: impl Iterator<Item = &'a Record>,
    (former, begun): (&Former, &Begun),
    known: &mut dyn Knowledge,
) -> Option<String> {
    let mut read: Vec<Range<u64>> = Vec::new();
    let mut has_kernel = false;
    for record in records {
        let header = record.header;
        let opcode = Opcode::from_number(header.opcode);
        let Some(opcode) = opcode.filter(|opcode| opcode.row().class == OperationClass::Stream)
        else {
            continue;
        };
        let at = At {
            stream: header.channel,
            sequence: header.sequence,
        };
        if !begun.is_it(at, former) {
            continue;
        }
        let name = opcode.row().name;
        let effects = match effects(opcode, record, known) {
            Ok(effects) => effects,
            Err(why) => return Some(format!("{name}: {why}")),
        };
        has_kernel |= opcode == Opcode::Launch;
        read.extend(effects.reads);
        for writes in effects.writes {
            let overlaps = |read: &Range<u64>| read.start < writes.end && writes.start < read.end;
            if read.iter().any(overlaps) {
                return Some(format!("{name}: it writes what was read"));
            }
            // Kernels may read variables, which lie in no block.
            if has_kernel && !known.is_in_block(&writes) {
                return Some(format!("{name}: it writes to none of the client's blocks"));
            }
        }
    }
    None
}

/// What a stream's operation touches, if it can be done again after it was begun.
fn effects(opcode: Opcode, record: &Record, known: &mut dyn Knowledge) -> Result<Effects, String> {
    let damaged = |_| "it makes no sense".to_owned();
    let slots = record.slots();
    let (reads, writes) = match opcode {
        Opcode::StreamWait
        | Opcode::HostBarrier
        | Opcode::ValueWait
        | Opcode::EventRecord
        | Opcode::StreamDestroy => (None, None),
        Opcode::Launch => {
            let launch = Launch::read(slots).map_err(damaged)?;
            return known.launch(&launch, record.data());
        }
        Opcode::Fill => {
            let fill = Fill::read(slots).map_err(damaged)?;
            let width = fill.width.saturating_mul(fill.element.into());
            let rows = (fill.height, fill.pitch);
            (None, Some(extent(fill.to, width, rows, (1, 0))))
        }
        Opcode::Write => {
            let write = Write::read(slots).map_err(damaged)?;
            let bytes = record.data().len();
            if bytes <= FLAG_BYTES {
                return Err("it may be a flag".into());
            }
            (None, Some(write.to..write.to.saturating_add(bytes as u64)))
        }
        Opcode::Copy => {
            let copy = Copy::read(slots).map_err(damaged)?;
            let is_memory = |space: u32| space == Space::Unified as u32;
            let side = |at, pitch, slice| {
                extent(at, copy.width, (copy.height, pitch), (copy.depth, slice))
            };
            let from = side(copy.from, copy.from_pitch, copy.from_slice);
            let to = side(copy.to, copy.to_pitch, copy.to_slice);
            (
                is_memory(copy.from_space).then_some(from),
                is_memory(copy.to_space).then_some(to),
            )
        }
        _ => return Err("it is none that is done again".into()),
    };
    Ok(Effects {
        reads: reads.into_iter().collect(),
        writes: writes.into_iter().collect(),
    })
}

/// From the first to the last byte of rows of `width` bytes, in slices.
fn extent(
    at: u64,
    width: u64,
    (height, pitch): (u64, u64),
    (depth, slice): (u64, u64),
) -> Range<u64> {
    let rows = height.saturating_sub(1).saturating_mul(pitch);
    let slices = depth.saturating_sub(1).saturating_mul(slice);
    let bytes = width.saturating_add(rows).saturating_add(slices);
    at..at.saturating_add(bytes)
}

/// What a session has, where the ring's oldest record stands.
pub(super) struct Objects<'a> {
    client: &'a dyn Client,
    memory: &'a ClientMemory,
    images: &'a Images,
    /// What made the objects.
    entries: &'a [Entry],
    /// Why nothing is known of any kernel.
    unknown: Option<&'static str>,
    /// Blocks that the client has asked for: variables of modules lie in others, and kernels read them without a pointer.
    allocated: BTreeSet<u64>,
    /// Blocks that were freed meanwhile, and modules that were unloaded.
    freed: BTreeSet<u64>,
    unloaded: BTreeSet<u64>,
    kernels: HashMap<(u64, u32), Result<KernelPointers, String>>,
}

impl<'a> Objects<'a> {
    /// `entries` made what lived where the oldest of `records` stands, `later` what came since.
    pub(super) fn new(
        (client, memory, images): (&'a dyn Client, &'a ClientMemory, &'a Images),
        (entries, later): (&'a [Entry], &[Entry]),
        records: impl Iterator<Item = &'a Record>,
        former: &Former,
    ) -> Self {
        let mut objects = Self {
            client,
            memory,
            images,
            entries,
            unknown: None,
            allocated: entries.iter().filter_map(allocated).collect(),
            freed: BTreeSet::new(),
            unloaded: BTreeSet::new(),
            kernels: HashMap::new(),
        };
        if former.faults.iter().any(|&code| code != CUresult::SUCCESS) {
            objects.unknown = Some("a context of the client's was dead");
        }
        if entries
            .iter()
            .chain(later)
            .any(|entry| objects.has_stray(entry))
        {
            objects.unknown = Some("a variable lies elsewhere than the client's memory");
        }
        for record in records {
            let slots = record.slots();
            match Opcode::from_number(record.header.opcode) {
                Some(Opcode::MemFree) => {
                    objects
                        .freed
                        .extend(MemFree::read(slots).map(|it| it.address));
                }
                Some(Opcode::HostFree) => {
                    objects
                        .freed
                        .extend(HostFree::read(slots).map(|it| it.address));
                }
                Some(Opcode::ModuleUnload) => {
                    objects
                        .unloaded
                        .extend(ModuleUnload::read(slots).map(|it| it.module));
                }
                Some(Opcode::ContextDestroy) => {
                    objects.unknown = Some("a context was ended meanwhile");
                }
                _ => {}
            }
        }
        objects
    }

    /// Whether an entry made a module with a variable that an address may point to as none of the windows' does.
    fn has_stray(&self, entry: &Entry) -> bool {
        let is_load = entry.record.header.opcode == Opcode::ModuleLoad as u16;
        let Outcome::Answered(answer) = &entry.outcome else {
            return false;
        };
        let (addresses, _) = answer.data.as_chunks::<8>();
        let is_stray = |bytes: &[u8; 8]| !self.memory.is_in_window(u64::from_le_bytes(*bytes));
        is_load && addresses.iter().any(is_stray)
    }

    /// Through which pointers a kernel of a module reads and writes.
    fn kernel(&self, module: u64, kernel: u32) -> Result<KernelPointers, String> {
        let loads = self
            .entries
            .iter()
            .filter(|entry| entry.record.header.opcode == Opcode::ModuleLoad as u16);
        let mut loads = loads.filter_map(|entry| ModuleLoad::read(entry.record.slots()).ok());
        let load = loads.find(|load| load.module == module);
        let load = load.filter(|_| !self.unloaded.contains(&module));
        let load = load.ok_or("its module came or went meanwhile")?;
        let said = self.images.engine_reply(load.image);
        let descriptor = said.and_then(|said| Descriptor::decode(said).ok());
        let kernels = descriptor.map(|descriptor| descriptor.kernels);
        let kernels = kernels.ok_or("its image is not known")?;
        let name = &kernels
            .get(kernel as usize)
            .ok_or("there is no such kernel")?
            .name;
        let mut bytes = Vec::new();
        for entry in self.entries {
            if entry.record.header.opcode == Opcode::ImagePut as u16
                && ImagePut::read(entry.record.slots()).is_ok_and(|put| put.image == load.image)
            {
                let begin = bytes.len();
                bytes.resize(begin + entry.staged_bytes() as usize, 0);
                entry.copy_staged(&mut bytes[begin..]);
            }
        }
        let pointers = self.client.kernel_pointers(&bytes, name);
        pointers.map_err(|why| format!("kernel {name}: {why}"))
    }

    /// As [`ClientMemory::blocks_at`], of blocks that the client has asked for.
    fn blocks_at(&self, address: u64) -> [Option<Range<u64>>; 2] {
        let is_asked_for = |block: &Range<u64>| self.allocated.contains(&block.start);
        let blocks = self.memory.blocks_at(address);
        blocks.map(|block| block.filter(is_asked_for))
    }

    /// The blocks that an address of a kernel may lie in.
    fn blocks(&self, place: &Place, parameters: &[u8]) -> Result<Vec<Range<u64>>, String> {
        let values = place
            .values(parameters)
            .ok_or("it has too few parameters")?;
        let at = |value| (self.blocks_at(value), self.memory.is_in_window(value));
        let blocks = blocks(&values, place.is_lowered, at)?;
        match blocks
            .iter()
            .find(|block| self.freed.contains(&block.start))
        {
            Some(block) => Err(format!(
                "the block at {:#x} was freed meanwhile",
                block.start
            )),
            None => Ok(blocks),
        }
    }
}

/// The address of the block that an entry made.
fn allocated(entry: &Entry) -> Option<u64> {
    let opcode = Opcode::from_number(entry.record.header.opcode)?;
    match (opcode, &entry.outcome) {
        (
            Opcode::MemAlloc | Opcode::ManagedAlloc | Opcode::HostAlloc,
            Outcome::Answered(answer),
        ) => answer.slots.first().copied(),
        _ => None,
    }
}

/// The blocks that an address may lie in which is made of these values. `at` says of a value in which block it lies, which
/// one ends there, and whether it lies in the client's windows at all.
fn blocks(
    values: &[u64],
    is_lowered: bool,
    at: impl Fn(u64) -> ([Option<Range<u64>>; 2], bool),
) -> Result<Vec<Range<u64>>, String> {
    let mut blocks = Vec::new();
    // Nobody reads or writes at zero.
    for value in values.iter().copied().filter(|&value| value != 0) {
        let ([within, before], is_in_window) = at(value);
        if within.is_none() && before.is_none() && is_in_window {
            return Err(format!("{value:#x} lies in none of the client's blocks"));
        }
        // What ends where another one begins may be meant if it is gone through from its end.
        let before = before.filter(|_| within.is_none() || is_lowered);
        blocks.extend(within.into_iter().chain(before));
    }
    if blocks.is_empty() && values.iter().any(|&value| value != 0) {
        return Err("an address that lies in none of the client's blocks".into());
    }
    Ok(blocks)
}

impl Knowledge for Objects<'_> {
    fn launch(&mut self, launch: &Launch, data: &[u8]) -> Result<Effects, String> {
        if let Some(why) = self.unknown {
            return Err(why.into());
        }
        if launch.attributes != 0 || launch.flags != 0 {
            return Err("it was launched with attributes".into());
        }
        let which = (launch.module, launch.kernel);
        if !self.kernels.contains_key(&which) {
            let kernel = self.kernel(launch.module, launch.kernel);
            self.kernels.insert(which, kernel);
        }
        let kernel = self.kernels[&which].as_ref().map_err(Clone::clone)?;
        let all = |places: &[Place]| -> Result<Vec<Range<u64>>, String> {
            let mut blocks = Vec::new();
            for place in places {
                blocks.append(&mut self.blocks(place, data)?);
            }
            Ok(blocks)
        };
        Ok(Effects {
            reads: all(&kernel.reads)?,
            writes: all(&kernel.writes)?,
        })
    }

    fn is_in_block(&self, range: &Range<u64>) -> bool {
        let [within, _] = self.blocks_at(range.start);
        within.is_some_and(|block| range.end <= block.end)
    }
}

#[cfg(test)]
mod tests;
