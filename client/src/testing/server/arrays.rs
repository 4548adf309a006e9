//! Arrays, as vectors of bytes.
//!
//! Called by the test server for requests on arrays; it loads and stores other memory by `memory`.

use cuda_abi::CUresult;
use protocol::arrays::Shape;
use protocol::operations::{ArrayCopy, ArrayCreate, ArrayCreateReply, Space};

use super::Server;

impl Server<'_> {
    pub(super) fn make_array(
        &mut self,
        request: &ArrayCreate,
    ) -> Result<ArrayCreateReply, CUresult> {
        let shape = Shape::of(request)?;
        let bytes = shape.bytes();
        let content = vec![0; bytes as usize];
        let before = self.arrays.insert(request.array, (shape, content));
        assert!(before.is_none(), "handles never come again");
        Ok(ArrayCreateReply { bytes })
    }

    pub(super) fn copy_array(&mut self, request: &ArrayCopy) {
        let inside = |shape: &Shape, level: u32, x: u64, y: u64, z: u64| {
            let level = shape.level(level).expect("a level");
            assert!(y < level.height && z < level.depth);
            let row = level.width * shape.element();
            assert!(x + request.width <= row);
            (level.offset + (z * level.height + y) * row + x) as usize
        };
        let width = request.width as usize;
        for z in 0..request.depth {
            for y in 0..request.height {
                let row = if request.from_space == Space::Array as u32 {
                    let (shape, content) = &self.arrays[&request.from];
                    let (from_y, from_z) = (request.from_y + y, request.from_z + z);
                    let at = inside(shape, request.from_level, request.from_x, from_y, from_z);
                    content[at..at + width].to_vec()
                } else {
                    let from = request.from + z * request.from_slice + y * request.from_pitch;
                    self.load(request.from_space, from, request.width)
                };
                if request.to_space == Space::Array as u32 {
                    let (shape, content) = self.arrays.get_mut(&request.to).expect("an array");
                    let (to_y, to_z) = (request.to_y + y, request.to_z + z);
                    let at = inside(shape, request.to_level, request.to_x, to_y, to_z);
                    content[at..at + width].copy_from_slice(&row);
                } else {
                    let to = request.to + z * request.to_slice + y * request.to_pitch;
                    self.store(request.to_space, to, &row);
                }
            }
        }
    }
}
