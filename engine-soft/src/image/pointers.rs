//! Through which pointers the kernels of an image reach memory.
//!
//! Called for work that was cut off. Must not know where pointers point.

use engine::{KernelPointers, Place};
use protocol::linked_image;

use super::{Room, Workspace, forms};

/// Through which pointers a kernel of an image reads and writes, whichever of its forms was compiled.
///
/// # Errors
/// What of the image, or of the kernel in one of the forms, is not understood.
pub(crate) fn of_kernel(
    bytes: &[u8],
    kernel: &str,
    device: u32,
    memory: &Workspace,
) -> Result<KernelPointers, String> {
    if linked_image::is_linked(bytes) {
        return Err("its image was linked of parts".into());
    }
    let mut forms = forms(bytes, device);
    if forms.is_empty() {
        // Text, which has one.
        forms.push(device);
    }
    let mut all = KernelPointers::default();
    for newest in forms {
        memory.clear();
        let mut room = Room::new(bytes, device, memory);
        room.newest = newest;
        let source = room.select(bytes).map_err(|error| error.to_string())?;
        let module = ptx::parse_within(&source.text, room.budget());
        let module = module.map_err(|error| error.to_string())?;
        let found = ptx::pointers::pointers(&module, kernel).map_err(|why| why.to_string())?;
        all.reads.extend(found.reads.into_iter().map(place));
        all.writes.extend(found.writes.into_iter().map(place));
    }
    Ok(all)
}

fn place(found: ptx::pointers::Place) -> Place {
    Place {
        offsets: found.offsets,
        is_lowered: found.is_lowered,
    }
}
