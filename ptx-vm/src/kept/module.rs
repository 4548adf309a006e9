//! What is known of a module, without its code, as bytes and back.
//!
//! Called by who keeps modules. Must not know where.

use std::sync::Arc;

use super::bytes::{Reader, Writer};
use crate::module::{Code, Kernel, Module, Options, ParamFact};
use crate::variables::{Global, GlobalSpace, Relocated};

impl Module {
    /// What is to be kept of it: all but the code of its kernels.
    #[must_use]
    pub fn to_kept(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(self.instructions);
        to.u8(u8::from(self.uses_heap));
        to.list(&self.globals, global);
        to.list(&self.entries, |to, &(address, kernel)| {
            to.u64(address);
            to.u32(kernel);
        });
        to.list(&self.kernels, |to, kernel| self::kernel(to, kernel));
        to.0
    }

    /// A module as [`Module::to_kept`] wrote it, loaded with the same options; its code is with [`Options::kept`].
    /// `None` for other bytes, as far as that can be seen.
    #[must_use]
    pub fn from_kept(bytes: &[u8], options: &Options) -> Option<Self> {
        let mut from = Reader(bytes);
        let instructions = from.u64()?;
        let uses_heap = from.bool()?;
        let globals = from.list(read_global)?;
        let targets = globals.iter().flat_map(|global| &global.relocations);
        let mut targets = targets.filter_map(|relocated| relocated.target);
        if targets.any(|target| target >= globals.len()) {
            return None;
        }
        let entries = from.list(|from| Some((from.u64()?, from.u32()?)))?;
        let code = Arc::new(Code::new(options));
        let mut index = 0;
        let kernels = from.list(|from| {
            let kernel = read_kernel(from, &code, index)?;
            index += 1;
            Some(Arc::new(kernel))
        })?;
        let is_one = |entry: &(u64, u32)| (entry.1 as usize) < kernels.len();
        let is_whole = from.0.is_empty() && entries.iter().all(is_one);
        is_whole.then_some(Self {
            kernels,
            globals,
            uses_heap,
            instructions,
            entries,
        })
    }
}

fn global(to: &mut Writer, global: &Global) {
    to.text(&global.name);
    to.u8(u8::from(global.space == GlobalSpace::Const));
    to.u64(global.size);
    to.u64(global.align);
    to.count(global.init.len());
    to.0.extend(&global.init);
    to.list(&global.relocations, |to, relocated| {
        to.u64(relocated.offset);
        to.option(relocated.target, |to, target| to.u64(target as u64));
        to.u64(relocated.addend);
    });
    to.u8(u8::from(global.visible));
    to.u8(u8::from(global.managed));
}

fn read_global(from: &mut Reader<'_>) -> Option<Global> {
    let global = Global {
        name: from.text()?,
        space: match from.bool()? {
            false => GlobalSpace::Global,
            true => GlobalSpace::Const,
        },
        size: from.u64()?,
        align: from.u64()?,
        init: {
            let count = from.u32()? as usize;
            from.bytes(count)?.to_vec()
        },
        relocations: from.list(|from| {
            Some(Relocated {
                offset: from.u64()?,
                target: from.option(|from| usize::try_from(from.u64()?).ok())?,
                addend: from.u64()?,
            })
        })?,
        visible: from.bool()?,
        managed: from.bool()?,
    };
    (global.align.is_power_of_two() && global.init.len() as u64 <= global.size).then_some(global)
}

fn kernel(to: &mut Writer, kernel: &Kernel) {
    let sides = |to: &mut Writer, sides: [u32; 3]| sides.into_iter().for_each(|side| to.u32(side));
    to.text(&kernel.name);
    to.list(&kernel.params, |to, param| {
        to.u32(param.offset);
        to.u32(param.size);
    });
    to.u32(kernel.param_bytes);
    to.u32(kernel.shared_bytes);
    to.u32(kernel.local_bytes);
    to.u32(kernel.const_bytes);
    to.u32(kernel.max_threads);
    to.option(kernel.required_threads, sides);
    to.option(kernel.required_cluster, sides);
    to.option(kernel.max_cluster, Writer::u32);
    to.u8(u8::from(kernel.explicit_cluster));
    to.u32(kernel.registers);
    to.u32(kernel.ptx_version);
    to.list(&kernel.constants, |to, &(global, bytes)| {
        to.u32(global);
        to.u64(bytes);
    });
    to.u8(u8::from(kernel.asks_reserved));
    to.u8(u8::from(kernel.asks_runtime));
}

fn read_kernel(from: &mut Reader<'_>, code: &Arc<Code>, index: u32) -> Option<Kernel> {
    let sides = |from: &mut Reader<'_>| Some([from.u32()?, from.u32()?, from.u32()?]);
    Some(Kernel {
        name: from.text()?,
        params: from.list(|from| {
            Some(ParamFact {
                offset: from.u32()?,
                size: from.u32()?,
            })
        })?,
        param_bytes: from.u32()?,
        shared_bytes: from.u32()?,
        local_bytes: from.u32()?,
        const_bytes: from.u32()?,
        max_threads: from.u32()?,
        required_threads: from.option(sides)?,
        required_cluster: from.option(sides)?,
        max_cluster: from.option(Reader::u32)?,
        explicit_cluster: from.bool()?,
        registers: from.u32()?,
        ptx_version: from.u32()?,
        constants: from.list(|from| Some((from.u32()?, from.u64()?)))?.into(),
        asks_reserved: from.bool()?,
        asks_runtime: from.bool()?,
        code: Arc::clone(code),
        index,
        programs: Default::default(),
    })
}
