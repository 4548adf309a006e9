//! Compiled code in a form that can lie in a file until a later process of the same program has the same text to run.
//!
//! A module is kept as what is known of it, without its code; each program of a kernel by itself, as it was emitted. What
//! runs operations are functions of this program, which lies elsewhere in every process: a kept program has them as
//! distances from where this program's own code begins, and they are looked up again when it is read. So what is kept is
//! good for exactly this build ([`compiled_for`] names it), and a reader is given nothing but what that build wrote: who
//! has the files answers for that, by a checksum and by whose they are. Whatever the bytes are, a reader reads them without harm.
//!
//! Called by `module`. Must not know files.

mod build;
mod bytes;
mod module;
mod program;

use std::fmt::Debug;

use super::module::{Module, Options};
use super::segment::CodeBytes;

/// Who keeps what is compiled of one module, and has it compiled again where something is missing.
pub trait KeptCode: Debug + Send + Sync {
    /// The program of a kernel for lane groups of so many lanes, as [`KeptCode::compiled`] was given it, whole and by this build.
    fn find(&self, kernel: u32, lanes: u32) -> Option<CodeBytes>;

    /// A program has been compiled; `bytes` if it can be kept.
    fn compiled(&self, kernel: u32, lanes: u32, bytes: Option<&[u8]>);

    /// Compiles the text of a module that was read from what was kept, for the code of its kernels. `None` if that is not
    /// possible any more.
    fn compile(&self) -> Option<Module>;
}

/// What code depends on beside the module's text and [`Options::max_registers`]: this build of the program, and what it compiles
/// for on this machine. `None` where a build cannot be told from another.
#[must_use]
pub fn compiled_for(options: &Options) -> Option<Vec<u8>> {
    let mut name = build::own()?.id.clone();
    let target = options.target();
    name.extend([
        target.isa as u8,
        u8::from(target.jit),
        u8::from(target.gathers),
    ]);
    name.extend(options.lanes().to_le_bytes());
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::program::Program;

    const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .global .u32 counter[2] = {1, 2};\n.global .u64 place = counter;\n\
        .func (.reg .u32 out) twice(.reg .u32 in) { shl.b32 out, in, 1; ret; }\n\
        .visible .entry k(.param .u64 to) .maxntid 64 {\n\
        .reg .u64 %rd<4>; .reg .u32 %r<4>; .reg .pred %p<2>;\n\
        ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;\n\
        setp.gt.u32 %p1, %r1, 5; @%p1 bra end; call (%r1), twice, (%r1);\n\
        end: st.global.u32 [%rd3], %r1; ret; }\n";

    fn kept() -> (Vec<u8>, Vec<u8>) {
        let tree = ptx::parse(TEXT).unwrap();
        let module = Module::load(&tree, &Options::default()).unwrap();
        let (program, ..) = module.kernels()[0].program(64).unwrap();
        (module.to_kept(), program.to_kept().unwrap())
    }

    fn read_program(bytes: &[u8]) -> Option<Program> {
        // SAFETY: nothing that is read here runs.
        unsafe { Program::from_kept(CodeBytes::copy_of(bytes)?) }
    }

    #[test]
    fn what_is_read_is_what_was_kept() {
        let (module, program) = kept();
        let read = Module::from_kept(&module, &Options::default()).unwrap();
        assert_eq!(read.to_kept(), module);
        assert_eq!(read_program(&program).unwrap().to_kept().unwrap(), program);
    }

    #[test]
    fn other_bytes_are_read_without_harm() {
        let (module, program) = kept();
        let options = Options::default();
        let read = |bytes: &[u8]| Module::from_kept(bytes, &options);
        for at in 0..module.len() {
            assert!(read(&module[..at]).is_none(), "cut at {at}");
            for bits in [0x01, 0x80, 0xff] {
                let mut damaged = module.clone();
                damaged[at] ^= bits;
                // What it is then, it is without a doubt.
                if let Some(read) = read(&damaged) {
                    assert_eq!(read.to_kept(), damaged, "byte {at}");
                }
            }
        }
        for at in 0..program.len() {
            assert!(read_program(&program[..at]).is_none(), "cut at {at}");
            let mut damaged = program.clone();
            damaged[at] ^= 0x80;
            let _ = read_program(&damaged);
        }
        assert!(read_program(&[0xff; 4096]).is_none());
    }

    #[test]
    fn the_name_of_what_code_depends_on_tells_builds_and_targets_apart() {
        let name = |isa, jit, group_lanes| {
            let options = Options {
                isa: Some(isa),
                jit: Some(jit),
                group_lanes,
                ..Options::default()
            };
            compiled_for(&options).unwrap()
        };
        let plain = name(Isa::Sse2, false, None);
        assert!(plain.starts_with(&build::own().unwrap().id));
        assert_eq!(plain, name(Isa::Sse2, false, None));
        assert_ne!(plain, name(Isa::Sse2, true, None));
        assert_ne!(plain, name(Isa::Sse2, false, Some(32)));
        if Isa::Avx2.available() {
            assert_ne!(plain, name(Isa::Avx2, false, None));
        }
    }
}
