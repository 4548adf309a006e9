//! Reading textures, reading and writing surfaces, and asking about both, lane by lane.
//!
//! Source 0 is always the object's number. For textures sources 1 to 3 are coordinates and source 4 the
//! layer and, in its upper half, the level of detail. For surfaces that are read sources 1 to 3 are
//! byte, row and slice (or layer).
//!
//! Chosen by `lower::texture`. Must not know how texels are filtered: `texture::sample` does.

use std::sync::Arc;

use super::half;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::texture::{Coordinates, Format, Surface, Texture};

/// What a texture instruction does, as its operation's constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// Directions: 1 to 3.
    pub(crate) count: u8,
    pub(crate) layered: bool,
    pub(crate) cube: bool,
    /// Coordinates are integers.
    pub(crate) whole: bool,
    /// The channel of a gather.
    pub(crate) gather: Option<u8>,
}

impl Read {
    pub(crate) fn imm(self) -> u64 {
        u64::from(self.count)
            | u64::from(self.layered) << 4
            | u64::from(self.cube) << 5
            | u64::from(self.whole) << 6
            | self.gather.map_or(0, |channel| u64::from(channel) + 1) << 8
    }

    fn of(imm: u64) -> Self {
        Self {
            count: (imm & 0xf) as u8,
            layered: imm >> 4 & 1 != 0,
            cube: imm >> 5 & 1 != 0,
            whole: imm >> 6 & 1 != 0,
            gather: (imm >> 8 & 0xf).checked_sub(1).map(|channel| channel as u8),
        }
    }
}

/// What happens beyond a surface's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    Trap,
    Clamp,
    Zero,
}

/// What a surface instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    /// Bytes of an element.
    pub(crate) bytes: u8,
    /// Elements.
    pub(crate) elements: u8,
    pub(crate) beyond: Beyond,
    /// Coordinates count elements, and values are converted to the surface's format.
    pub(crate) formatted: bool,
    /// Only the first coordinate counts.
    pub(crate) row: bool,
    /// The type of a formatted element is a float.
    pub(crate) float: bool,
}

impl Touch {
    pub(crate) fn imm(self) -> u64 {
        u64::from(self.bytes)
            | u64::from(self.elements) << 8
            | (self.beyond as u64) << 16
            | u64::from(self.formatted) << 20
            | u64::from(self.row) << 21
            | u64::from(self.float) << 22
    }

    fn of(imm: u64) -> Self {
        Self {
            bytes: imm as u8,
            elements: (imm >> 8) as u8,
            beyond: match imm >> 16 & 0xf {
                0 => Beyond::Trap,
                1 => Beyond::Clamp,
                _ => Beyond::Zero,
            },
            formatted: imm >> 20 & 1 != 0,
            row: imm >> 21 & 1 != 0,
            float: imm >> 22 & 1 != 0,
        }
    }
}

/// What `txq` and `suq` ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Question {
    Width,
    Height,
    Depth,
    ChannelType,
    ChannelOrder,
    Normalized,
    Layers,
    Levels,
    Samples,
    MemoryLayout,
}

impl Question {
    /// What a modifier asks.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "width" => Self::Width,
            "height" => Self::Height,
            "depth" => Self::Depth,
            "channel_data_type" => Self::ChannelType,
            "channel_order" => Self::ChannelOrder,
            "normalized_coords" => Self::Normalized,
            "array_size" => Self::Layers,
            "num_mipmap_levels" => Self::Levels,
            "num_samples" => Self::Samples,
            "memory_layout" => Self::MemoryLayout,
            _ => return None,
        })
    }

    const ALL: [Self; 10] = [
        Self::Width,
        Self::Height,
        Self::Depth,
        Self::ChannelType,
        Self::ChannelOrder,
        Self::Normalized,
        Self::Layers,
        Self::Levels,
        Self::Samples,
        Self::MemoryLayout,
    ];
}

/// The values of a source, by lane.
fn source(cx: &Machine<'_>, op: &Op, index: usize, width: u8) -> impl Fn(usize) -> u64 + use<> {
    let (frame, offset, varies) = (cx.frame, op.s[index] as usize, op.varies(index));
    move |lane| frame.wide(offset, if varies { lane } else { 0 }, width)
}

/// Keeps the object that the lane before had: almost always all have the same.
struct LastObject<T> {
    number: u64,
    object: Option<Arc<T>>,
}

impl<T> LastObject<T> {
    fn new() -> Self {
        Self {
            number: 0,
            object: None,
        }
    }

    fn get(&mut self, number: u64, find: impl Fn(u64) -> Option<Arc<T>>) -> Option<&Arc<T>> {
        if number != self.number {
            self.object = find(number);
            self.number = number;
        }
        self.object.as_ref()
    }
}

/// Reads a texture into four 32-bit destinations.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn read(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let how = Read::of(op.imm);
    let number = source(cx, op, 0, 8);
    let at = [1, 2, 3].map(|index| source(cx, op, index, 4));
    let more = source(cx, op, 4, 8);
    let mut known = LastObject::<Texture>::new();
    let grid = cx.grid;
    for lane in cx.mask.lanes() {
        let number = number(lane);
        let Some(texture) = known.get(number, |number| grid.textures.texture(number)) else {
            return cx.fault(FaultKind::IllegalAddress, number, lane);
        };
        let bits = [0, 1, 2].map(|index: usize| at[index](lane) as u32);
        let more = more(lane);
        let coordinates = Coordinates {
            at: bits.map(f32::from_bits),
            count: usize::from(how.count),
            whole: how.whole.then(|| bits.map(u32::cast_signed)),
            // An unsigned index: below the first layer is far beyond the last.
            layer: how
                .layered
                .then_some((more as u32).min(i32::MAX as u32).cast_signed()),
            cube: how.cube,
        };
        let value = match how.gather {
            Some(channel) => texture.gather(&grid.memory, &coordinates, usize::from(channel)),
            None => {
                let detail = f32::from_bits((more >> 32) as u32);
                texture.sample(&grid.memory, &coordinates, detail)
            }
        };
        match value {
            Ok(value) => {
                for (offset, value) in op.d.iter().zip(value) {
                    cx.frame.set_lane(*offset as usize, lane, value);
                }
            }
            Err(address) => return cx.fault(FaultKind::IllegalAddress, address, lane),
        }
    }
    Flow::Next
}

/// The level of detail that two gradients make: sources 1 and 2 are two components of each, source 3
/// the third of both; the constant is how many count.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn detail(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let number = source(cx, op, 0, 8);
    let parts = [1, 2, 3].map(|index| source(cx, op, index, 8));
    let mut known = LastObject::<Texture>::new();
    let grid = cx.grid;
    let float = |bits: u64| f32::from_bits(bits as u32);
    for lane in cx.mask.lanes() {
        let number = number(lane);
        let Some(texture) = known.get(number, |number| grid.textures.texture(number)) else {
            return cx.fault(FaultKind::IllegalAddress, number, lane);
        };
        let [dx, dy, third] = [0, 1, 2].map(|index: usize| parts[index](lane));
        let level = texture.detail_of(
            [float(dx), float(dx >> 32), float(third)],
            [float(dy), float(dy >> 32), float(third >> 32)],
            op.imm as usize,
        );
        cx.frame.set_lane(op.d[0] as usize, lane, level.to_bits());
    }
    Flow::Next
}

/// Answers a question about a texture (or, with bit 8 of the constant, a surface). Source 1 is a level.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn query(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let number = source(cx, op, 0, 8);
    let level = source(cx, op, 1, 4);
    let question = Question::ALL[(op.imm & 0xff) as usize % Question::ALL.len()];
    let grid = cx.grid;
    for lane in cx.mask.lanes() {
        let number = number(lane);
        let answer = if op.imm >> 8 & 1 != 0 {
            let surface = grid.textures.surface(number);
            surface.map(|surface| {
                about(
                    question,
                    surface.level.sides,
                    surface.format,
                    surface.channels,
                    false,
                    1,
                )
            })
        } else {
            let texture = grid.textures.texture(number);
            texture.map(|texture| {
                about(
                    question,
                    texture.sides(level(lane) as usize),
                    texture.format,
                    texture.channels,
                    texture.normalized,
                    texture.levels(),
                )
            })
        };
        match answer {
            Some(answer) => cx.frame.set_lane(op.d[0] as usize, lane, answer),
            None => return cx.fault(FaultKind::IllegalAddress, number, lane),
        }
    }
    Flow::Next
}

fn about(
    question: Question,
    sides: [u64; 3],
    format: Format,
    channels: u32,
    normalized: bool,
    levels: u32,
) -> u32 {
    match question {
        Question::Width => sides[0] as u32,
        Question::Height => sides[1] as u32,
        Question::Depth | Question::Layers => sides[2] as u32,
        // OpenCL's numbers, which PTX takes over.
        Question::ChannelType => match format {
            Format::S8 => 0x10d7,
            Format::S16 => 0x10d8,
            Format::S32 => 0x10d9,
            Format::U8 => 0x10da,
            Format::U16 => 0x10db,
            Format::U32 => 0x10dc,
            Format::F16 => 0x10dd,
            Format::F32 => 0x10de,
        },
        Question::ChannelOrder => match channels {
            1 => 0x10b0,
            2 => 0x10b2,
            _ => 0x10b5,
        },
        Question::Normalized => normalized.into(),
        Question::Levels => levels,
        Question::Samples => 1,
        Question::MemoryLayout => 0,
    }
}

/// Where an access to a surface lies.
enum SurfaceAccess {
    At(u64),
    /// It is dropped, or reads zeroes.
    Nowhere,
    Wrong(FaultKind),
}

fn locate(surface: &Surface, how: Touch, x: u64, y: u64, z: u64) -> SurfaceAccess {
    let element = surface.element();
    let bytes = if how.formatted {
        element
    } else {
        u64::from(how.bytes) * u64::from(how.elements)
    };
    let signed = |at: u64| i64::from((at as u32).cast_signed());
    let mut at = [signed(x), signed(y), signed(z)];
    if how.formatted {
        at[0] *= element.cast_signed();
    }
    let [width, height, depth] = surface.level.sides;
    let row = (width * element).cast_signed();
    let bytes = bytes.cast_signed();
    if row < bytes {
        return SurfaceAccess::Wrong(FaultKind::Trap);
    }
    let most = [
        row - bytes,
        height.cast_signed() - 1,
        depth.cast_signed() - 1,
    ];
    if how.row {
        at[1] = 0;
    }
    if at[0] % bytes != 0 && how.beyond != Beyond::Clamp {
        return SurfaceAccess::Wrong(FaultKind::MisalignedAddress);
    }
    for (at, &most) in at.iter_mut().zip(&most) {
        if !(0..=most).contains(at) {
            match how.beyond {
                Beyond::Trap => return SurfaceAccess::Wrong(FaultKind::Trap),
                Beyond::Clamp => *at = (*at).clamp(0, most),
                Beyond::Zero => return SurfaceAccess::Nowhere,
            }
        }
    }
    let [x, y, z] = at.map(i64::cast_unsigned);
    SurfaceAccess::At(surface.place(x, y, z))
}

/// Reads up to four elements of a surface into as many destinations.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn load(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let how = Touch::of(op.imm);
    let number = source(cx, op, 0, 8);
    let at = [1, 2, 3].map(|index| source(cx, op, index, 4));
    let (width, count) = (usize::from(how.bytes), usize::from(how.elements));
    let mut known = LastObject::<Surface>::new();
    let grid = cx.grid;
    for lane in cx.mask.lanes() {
        let number = number(lane);
        let Some(surface) = known.get(number, |number| grid.textures.surface(number)) else {
            return cx.fault(FaultKind::IllegalAddress, number, lane);
        };
        let [x, y, z] = [0, 1, 2].map(|index: usize| at[index](lane));
        let mut bytes = [0u8; 32];
        match locate(surface, how, x, y, z) {
            SurfaceAccess::At(offset) => surface.texels.read(offset, &mut bytes[..width * count]),
            SurfaceAccess::Nowhere => {}
            SurfaceAccess::Wrong(kind) => return cx.fault(kind, x, lane),
        }
        for (element, &offset) in bytes.chunks_exact(width).zip(op.d.iter()).take(count) {
            let mut value = [0u8; 8];
            value[..width].copy_from_slice(element);
            let register = how.bytes.max(2);
            cx.frame
                .set_wide(offset as usize, lane, register, u64::from_le_bytes(value));
        }
    }
    Flow::Next
}

/// Writes up to four elements of a surface. Source 2 is row and slice, sources 3 and 4 hold two 32-bit
/// elements each, or one of 64 bits.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn store(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let how = Touch::of(op.imm);
    let number = source(cx, op, 0, 8);
    // Row and slice in one, to make room for the values.
    let x = source(cx, op, 1, 4);
    let yz = source(cx, op, 2, 8);
    let values = [3, 4].map(|index| source(cx, op, index, 8));
    let (width, count) = (usize::from(how.bytes), usize::from(how.elements));
    let mut known = LastObject::<Surface>::new();
    let grid = cx.grid;
    for lane in cx.mask.lanes() {
        let number = number(lane);
        let Some(surface) = known.get(number, |number| grid.textures.surface(number)) else {
            return cx.fault(FaultKind::IllegalAddress, number, lane);
        };
        let (x, yz) = (x(lane), yz(lane));
        let packed = [values[0](lane), values[1](lane)];
        let mut bytes = [0u8; 32];
        for index in 0..count {
            let value = if width == 8 {
                packed[index & 1]
            } else {
                packed[index / 2] >> (32 * (index % 2))
            };
            bytes[index * width..][..width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        match locate(surface, how, x, yz & 0xffff_ffff, yz >> 32) {
            SurfaceAccess::At(offset) if how.formatted => {
                let element = formatted(surface, how, &bytes);
                let length = surface.element() as usize;
                surface.texels.write(offset, &element[..length]);
            }
            SurfaceAccess::At(offset) => surface.texels.write(offset, &bytes[..width * count]),
            SurfaceAccess::Nowhere => {}
            SurfaceAccess::Wrong(kind) => return cx.fault(kind, x, lane),
        }
    }
    Flow::Next
}

/// An element in a surface's format, of 32-bit values.
fn formatted(surface: &Surface, how: Touch, values: &[u8; 32]) -> [u8; 16] {
    let mut out = [0; 16];
    let bytes = surface.format.bytes() as usize;
    for (index, value) in values
        .chunks_exact(4)
        .take(surface.channels.min(u32::from(how.elements)) as usize)
        .enumerate()
    {
        let raw = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
        let limited = |least: i64, most: i64| {
            let value = if how.float {
                f32::from_bits(raw) as i64
            } else {
                i64::from(raw.cast_signed())
            };
            value.clamp(least, most) as u32
        };
        let value = match surface.format {
            Format::F32 => raw,
            Format::F16 => half::from_f64(f64::from(f32::from_bits(raw)), 0).into(),
            Format::U8 => limited(0, 0xff),
            Format::U16 => limited(0, 0xffff),
            Format::S8 => limited(-0x80, 0x7f),
            Format::S16 => limited(-0x8000, 0x7fff),
            Format::U32 | Format::S32 => raw,
        };
        out[index * bytes..][..bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    out
}
