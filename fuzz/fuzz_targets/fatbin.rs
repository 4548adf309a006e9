//! Any bytes as an image, an image of several parts, a host object with images in it, or the description
//! of a texture: no panic, no size beyond the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::linked_image;
use protocol::textures::Spec;
use ptx::image::{Limits, fatbin, select_within};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        max_bytes: 4 << 20,
        ..Limits::default()
    };
    let _ = linked_image::decode(bytes);
    let _ = Spec::decode(bytes);
    for image in fatbin::embedded(bytes) {
        assert!(image.len() <= bytes.len());
    }
    for entry in fatbin::entries(bytes).flatten() {
        if let Ok(payload) = entry.payload(&limits) {
            assert!(payload.len() as u64 <= limits.max_bytes.max(bytes.len() as u64));
        }
    }
    for device in [75, 90, 103] {
        if let Ok(ptx) = select_within(bytes, device, &limits) {
            assert!(!ptx.text.contains('\0'));
        }
    }
});
