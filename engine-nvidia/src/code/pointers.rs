//! Through which pointers the kernels of a text reach memory.
//!
//! Called for work that was cut off. Must not know where pointers point.

use engine::{KernelPointers, Place};
use ptx::Budget;
use ptx::image::{ImageKind, classify};

use crate::code::rewrite::MOST_TREE;

/// Through which pointers a kernel of an image reads and writes, if it is text: of machine code nobody can say, and that
/// it does as text beside it says is not proven.
///
/// # Errors
/// What of the image or the kernel is not understood.
pub(crate) fn of_kernel(image: &[u8], kernel: &str) -> Result<KernelPointers, String> {
    if classify(image) != Some(ImageKind::Ptx) || image.len() > MOST_TREE {
        return Err("it was not compiled here from text that is known".into());
    }
    let text = str::from_utf8(image).map_err(|error| error.to_string())?;
    let text = text.trim_end_matches('\0');
    let module = ptx::parse_within(text, Budget::default()).map_err(|error| error.to_string())?;
    let found = ptx::pointers::pointers(&module, kernel).map_err(|why| why.to_string())?;
    let place = |found: ptx::pointers::Place| Place {
        offsets: found.offsets,
        is_lowered: found.is_lowered,
    };
    Ok(KernelPointers {
        reads: found.reads.into_iter().map(place).collect(),
        writes: found.writes.into_iter().map(place).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_understood() {
        let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry set(.param .u64 to, .param .u32 value) {\n\
            .reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [to]; ld.param.u32 %r, [value]; st.global.u32 [%d], %r; ret; }\0";
        let found = of_kernel(text.as_bytes(), "set").expect("it is understood");
        assert!(found.reads.is_empty());
        let written: Vec<_> = found.writes.iter().map(|it| it.offsets.clone()).collect();
        assert_eq!(written, [[0]]);
        assert!(of_kernel(text.as_bytes(), "get").is_err());
        let mut code = vec![0; 64];
        code[..5].copy_from_slice(b"\x7fELF\x02");
        code[18] = 190;
        assert!(of_kernel(&code, "set").is_err());
        let fatbin = ptx::image::FATBIN_MAGIC.to_le_bytes();
        assert!(of_kernel(&fatbin, "set").is_err());
    }
}
