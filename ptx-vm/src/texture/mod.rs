//! Textures and surfaces as kernels see them: numbers that lead to objects of their own client.
//!
//! Owns the memory of arrays ([`Texels`]) and the objects ([`Texture`], [`Surface`]); how a texture is
//! read is [`sample`]'s. An array's memory lies outside of every [`super::Window`], so that no load or
//! store reaches it. Must not know what CUDA's descriptions look like.

mod sample;
mod texels;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::memory::AddressSpace;

pub(crate) use sample::Coordinates;
pub use texels::Texels;

/// The format of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Format {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    F16,
    F32,
}

impl Format {
    /// Bytes of a channel.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }

    /// Whether its values are floats.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32)
    }
}

/// What lies beyond a texture's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The texture again.
    Wrap,
    /// Its last texel.
    Clamp,
    /// The texture the other way round.
    Mirror,
    /// The border's colour.
    Border,
}

/// One level of an array, in texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Texels of a row, rows, and slices or layers.
    pub sides: [u64; 3],
    /// Where it begins among the array's bytes.
    pub offset: u64,
}

/// Where texels lie.
#[derive(Clone, Debug)]
pub enum Source {
    /// In an array: its levels, the first one the largest.
    Array(Arc<Texels>, Vec<Level>),
    /// In the client's memory, which each read is tested against.
    Memory {
        /// The first address.
        base: u64,
        /// Bytes from row to row.
        pitch: u64,
        /// Texels of a row, and rows.
        sides: [u64; 2],
        /// One row, which is read by number only and is 0 beyond its end.
        run: bool,
    },
}

/// A texture.
#[derive(Clone, Debug)]
pub struct Texture {
    /// Where its texels lie.
    pub source: Source,
    /// Their channels' format.
    pub format: Format,
    /// Their channels.
    pub channels: u32,
    /// By direction, what lies beyond the edge.
    pub edges: [Edge; 3],
    /// Whether texels are interpolated.
    pub linear: bool,
    /// Whether levels are.
    pub linear_levels: bool,
    /// Whether coordinates go from 0 to 1.
    pub normalized: bool,
    /// Whether integers are read as fractions of their greatest value.
    pub fractions: bool,
    /// Whether such fractions are sRGB, to be read as linear light.
    pub srgb: bool,
    /// Added to a level of detail.
    pub bias: f32,
    /// The least and the greatest level of detail.
    pub detail: [f32; 2],
    /// The border's colour.
    pub border: [f32; 4],
    /// The first layer that is seen, and how many.
    pub layers: [u64; 2],
}

/// A surface: one level of an array, by its bytes.
#[derive(Clone, Debug)]
pub struct Surface {
    /// The array.
    pub texels: Arc<Texels>,
    /// The level.
    pub level: Level,
    /// The channels' format.
    pub format: Format,
    /// Channels of an element.
    pub channels: u32,
}

impl Surface {
    /// Bytes of an element.
    pub(crate) fn element(&self) -> u64 {
        self.format.bytes() * u64::from(self.channels)
    }

    /// Where a byte lies in the array: byte of a row, row, slice. The caller has found it to be inside.
    pub(crate) fn place(&self, x: u64, y: u64, z: u64) -> u64 {
        let [width, height, _] = self.level.sides;
        self.level.offset + (z * height + y) * width * self.element() + x
    }
}

/// A client's textures and surfaces, by the numbers that kernels have of them.
#[derive(Default)]
pub struct Textures {
    objects: RwLock<Objects>,
}

#[derive(Default)]
struct Objects {
    textures: HashMap<u64, Arc<Texture>>,
    surfaces: HashMap<u64, Arc<Surface>>,
    last: u64,
}

impl fmt::Debug for Textures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        write!(
            f,
            "Textures({}, {} surfaces)",
            objects.textures.len(),
            objects.surfaces.len()
        )
    }
}

impl Textures {
    /// Adds a texture and gives its number, which is never 0 and never comes again.
    pub fn add_texture(&self, texture: Texture) -> u64 {
        self.add(|objects, number| {
            objects.textures.insert(number, Arc::new(texture));
        })
    }

    /// Adds a surface and gives its number; see [`Textures::add_texture`].
    pub fn add_surface(&self, surface: Surface) -> u64 {
        self.add(|objects, number| {
            objects.surfaces.insert(number, Arc::new(surface));
        })
    }

    fn add(&self, insert: impl FnOnce(&mut Objects, u64)) -> u64 {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.last += 1;
        let number = objects.last;
        insert(&mut objects, number);
        number
    }

    /// Takes a texture out. Whoever reads it at the moment keeps it. Says whether it was there.
    pub fn remove_texture(&self, number: u64) -> bool {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.textures.remove(&number).is_some()
    }

    /// Takes a surface out; see [`Textures::remove_texture`].
    pub fn remove_surface(&self, number: u64) -> bool {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.surfaces.remove(&number).is_some()
    }

    pub(crate) fn texture(&self, number: u64) -> Option<Arc<Texture>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.textures.get(&number).cloned()
    }

    pub(crate) fn surface(&self, number: u64) -> Option<Arc<Surface>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.surfaces.get(&number).cloned()
    }
}

/// Channels as stored, zero- or sign-extended; those that are not there are 0, but the last is 1.
pub(crate) fn channels(format: Format, count: u32, mut load: impl FnMut(u64) -> u32) -> [u32; 4] {
    let mut value = [0; 4];
    if count < 4 {
        value[3] = 1;
    }
    for (index, channel) in value.iter_mut().enumerate().take(count as usize) {
        let raw = load(index as u64 * format.bytes());
        *channel = match format {
            Format::S8 => i32::from(raw as i8).cast_unsigned(),
            Format::S16 => i32::from(raw as i16).cast_unsigned(),
            _ => raw,
        };
    }
    value
}

/// Reads one channel of the client's memory.
pub(crate) fn load_memory(space: &AddressSpace, address: u64, bytes: u64) -> Result<u32, u64> {
    if !space.allows(address, bytes) {
        return Err(address);
    }
    // SAFETY: just tested; a texture's base and pitch are multiples of its channels' size.
    Ok(unsafe { texels::load(address, bytes) })
}
