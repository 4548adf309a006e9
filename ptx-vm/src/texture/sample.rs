//! How a texture is read: coordinates, edges, interpolation with weights of eight fractional bits, and
//! the levels between which it is made (the CUDA C++ Programming Guide, "Texture Fetching").
//!
//! Called by `ops::texture`. Must not know lanes, nor which object a kernel named.

use super::{Edge, Format, Level, Source, Texture, channels, load_memory};
use crate::memory::AddressSpace;
use crate::ops::half;

/// Where a texture is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coordinates {
    /// x, y, z: texels by number, or places between them.
    pub(crate) at: [f32; 3],
    /// How many of them count: 1 to 3.
    pub(crate) count: usize,
    /// They are numbers of texels, which nothing is done to.
    pub(crate) whole: Option<[i32; 3]>,
    /// The layer, for textures that have some.
    pub(crate) layer: Option<i32>,
    /// `at` is a direction from the middle of a cube.
    pub(crate) cube: bool,
}

/// The two texels on an axis between which a coordinate lies, before the edge is thought of: the first one, and the
/// weight of the next one in 256ths.
#[derive(Clone, Copy)]
struct Neighbours {
    first: i64,
    weight: u32,
}

impl Texture {
    /// Reads it at a level of detail. What comes is float bits, or integers where the texture gives
    /// integers.
    ///
    /// # Errors
    /// The address of memory that the client does not have.
    pub(crate) fn sample(
        &self,
        space: &AddressSpace,
        coordinates: &Coordinates,
        detail: f32,
    ) -> Result<[u32; 4], u64> {
        let levels = self.levels();
        if levels == 1 {
            return self.sample_level(space, coordinates, 0);
        }
        let last = (levels - 1) as f32;
        let [least, most] = self.detail;
        // `max` and `min` pass over what is no number.
        let detail = (detail + self.bias).max(least).min(most).max(0.0).min(last);
        if !self.linear_levels {
            return self.sample_level(space, coordinates, (detail + 0.5) as usize);
        }
        let fixed = (detail * 256.0 + 0.5) as usize;
        let (level, weight) = (fixed >> 8, fixed & 255);
        let fine = self.sample_level(space, coordinates, level)?;
        if weight == 0 || !self.is_float() {
            return Ok(fine);
        }
        let coarse = self.sample_level(space, coordinates, level + 1)?;
        let weight = weight as f32 / 256.0;
        Ok(std::array::from_fn(|channel| {
            let (a, b) = (
                f32::from_bits(fine[channel]),
                f32::from_bits(coarse[channel]),
            );
            ((1.0 - weight) * a + weight * b).to_bits()
        }))
    }

    /// The four texels around a place, of each the same channel, counter-clockwise from the lower left.
    ///
    /// # Errors
    /// As [`Texture::sample`].
    pub(crate) fn gather(
        &self,
        space: &AddressSpace,
        coordinates: &Coordinates,
        channel: usize,
    ) -> Result<[u32; 4], u64> {
        let sides = self.sides(0);
        let (at, slice) = self.flatten(coordinates, sides);
        let x = Self::step(at[0], true).first;
        let y = Self::step(at[1], true).first;
        let mut out = [0; 4];
        for (value, (dx, dy)) in out.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
            let texel = self.texel(space, 0, [x + dx, y + dy, 0], 2, slice)?;
            *value = texel[channel & 3];
        }
        Ok(out)
    }

    /// The level of detail at which neighbours that are so far apart read neighbouring texels.
    pub(crate) fn detail_of(&self, dx: [f32; 3], dy: [f32; 3], count: usize) -> f32 {
        let sides = self.sides(0);
        let length = |d: [f32; 3]| {
            let scaled = (0..count).map(|index| {
                let size = if self.normalized {
                    sides[index] as f32
                } else {
                    1.0
                };
                d[index] * size
            });
            scaled.map(|d| d * d).sum::<f32>()
        };
        0.5 * length(dx).max(length(dy)).log2()
    }

    /// Whether what is read are floats.
    pub(crate) fn is_float(&self) -> bool {
        self.fractions || self.format.is_float()
    }

    /// Texels of a row, rows, and slices or layers of a level.
    pub(crate) fn sides(&self, level: usize) -> [u64; 3] {
        match &self.source {
            Source::Array(_, levels) => levels.get(level).map_or([1; 3], |level| level.sides),
            Source::Memory { sides, .. } => [sides[0], sides[1], 1],
        }
    }

    /// How many levels it has.
    pub(crate) fn levels(&self) -> u32 {
        match &self.source {
            Source::Array(_, levels) => levels.len() as u32,
            Source::Memory { .. } => 1,
        }
    }

    fn sample_level(
        &self,
        space: &AddressSpace,
        coordinates: &Coordinates,
        level: usize,
    ) -> Result<[u32; 4], u64> {
        let sides = self.sides(level);
        if let Some(whole) = coordinates.whole {
            let slice = coordinates.layer.map(|layer| self.layer(layer, 1));
            return self.texel(space, level, whole.map(i64::from), coordinates.count, slice);
        }
        let (at, slice) = self.flatten(coordinates, sides);
        let count = if coordinates.cube {
            2
        } else {
            coordinates.count
        };
        let linear = self.linear && self.is_float();
        let mut steps = [Neighbours {
            first: 0,
            weight: 0,
        }; 3];
        for side in 0..count {
            steps[side] = Self::step(at[side], linear);
        }
        let firsts = steps.map(|step| step.first);
        if steps.iter().all(|step| step.weight == 0) {
            return self.texel(space, level, firsts, count, slice);
        }
        let mut sum = [0.0f32; 4];
        for corner in 0..1usize << count {
            let mut weight = 1.0f32;
            let mut place = firsts;
            for side in 0..count {
                let part = steps[side].weight as f32 / 256.0;
                if corner >> side & 1 != 0 {
                    place[side] += 1;
                    weight *= part;
                } else {
                    weight *= 1.0 - part;
                }
            }
            if weight == 0.0 {
                continue;
            }
            let texel = self.texel(space, level, place, count, slice)?;
            for (sum, value) in sum.iter_mut().zip(texel) {
                *sum += weight * f32::from_bits(value);
            }
        }
        Ok(sum.map(f32::to_bits))
    }

    /// Coordinates in texels, a cube's on its face, and the slice that a layer or a face is.
    fn flatten(&self, coordinates: &Coordinates, sides: [u64; 3]) -> ([f32; 3], Option<u64>) {
        let at = coordinates.at;
        if coordinates.cube {
            let (face, on_face) = face(at);
            let first = coordinates
                .layer
                .map_or(0, |layer| self.layer(layer, 6) * 6);
            let scaled = |at: f32, side: u64| at * side as f32;
            let at = [
                scaled(on_face[0], sides[0]),
                scaled(on_face[1], sides[1]),
                0.0,
            ];
            return (at, Some(first + face));
        }
        let mut out = at;
        for side in 0..coordinates.count {
            if self.normalized {
                let size = sides[side] as f32;
                out[side] = match self.edges[side] {
                    Edge::Wrap => (at[side] - at[side].floor()) * size,
                    _ => at[side] * size,
                };
            }
        }
        (out, coordinates.layer.map(|layer| self.layer(layer, 1)))
    }

    /// A layer by its number, the nearest one that is there; `each` slices make one.
    fn layer(&self, layer: i32, each: u64) -> u64 {
        let [first, count] = self.layers;
        let last = (count / each).saturating_sub(1);
        first / each + u64::try_from(layer).unwrap_or(0).min(last)
    }

    fn step(at: f32, linear: bool) -> Neighbours {
        // Beyond this no texel is; and what is no number is 0.
        let bounded = |value: f32| value.clamp(-1e9, 1e9);
        if !linear {
            return Neighbours {
                first: bounded(at).floor() as i64,
                weight: 0,
            };
        }
        let fixed = ((f64::from(bounded(at)) - 0.5) * 256.0 + 0.5).floor() as i64;
        Neighbours {
            first: fixed >> 8,
            weight: (fixed & 255) as u32,
        }
    }

    /// One texel by its numbers.
    fn texel(
        &self,
        space: &AddressSpace,
        level: usize,
        at: [i64; 3],
        count: usize,
        slice: Option<u64>,
    ) -> Result<[u32; 4], u64> {
        let sides = self.sides(level);
        let mut place = [0u64; 3];
        for side in 0..count {
            match self.inside(at[side], sides[side], side) {
                Some(at) => place[side] = at,
                None => return Ok(self.outside()),
            }
        }
        if let Some(slice) = slice {
            place[2] = slice.min(sides[2] - 1);
        }
        let bytes = self.format.bytes() * u64::from(self.channels);
        let raw = match &self.source {
            Source::Array(texels, levels) => {
                let Some(Level { sides, offset }) = levels.get(level) else {
                    return Ok(self.outside());
                };
                let index = (place[2] * sides[1] + place[1]) * sides[0] + place[0];
                let base = offset + index * bytes;
                channels(self.format, self.channels, |at| {
                    texels.channel(base + at, self.format.bytes())
                })
            }
            Source::Memory { base, pitch, .. } => {
                // An address that wraps around is found not to be the client's, as any other.
                let row = base.wrapping_add(place[1].wrapping_mul(*pitch));
                let base = row.wrapping_add(place[0] * bytes);
                let mut missing = None;
                let value = channels(self.format, self.channels, |at| {
                    load_memory(space, base.wrapping_add(at), self.format.bytes()).unwrap_or_else(
                        |address| {
                            missing.get_or_insert(address);
                            0
                        },
                    )
                });
                match missing {
                    Some(address) => return Err(address),
                    None => value,
                }
            }
        };
        Ok(self.convert(raw))
    }

    /// The texel that stands for the one of this number, if any does.
    fn inside(&self, at: i64, side: u64, direction: usize) -> Option<u64> {
        let last = side.cast_signed() - 1;
        let edge = match (&self.source, self.edges[direction]) {
            (Source::Memory { run: true, .. }, _) => Edge::Border,
            // Only coordinates from 0 to 1 come again.
            (_, Edge::Wrap | Edge::Mirror) if !self.normalized => Edge::Clamp,
            (_, edge) => edge,
        };
        let at = match edge {
            Edge::Clamp => at.clamp(0, last),
            Edge::Wrap => at.rem_euclid(last + 1),
            Edge::Mirror => {
                let folded = at.rem_euclid(2 * (last + 1));
                folded.min(2 * last + 1 - folded)
            }
            Edge::Border if (0..=last).contains(&at) => at,
            Edge::Border => return None,
        };
        Some(at.cast_unsigned())
    }

    fn outside(&self) -> [u32; 4] {
        if matches!(self.source, Source::Memory { run: true, .. }) {
            return [0; 4];
        }
        if self.is_float() {
            self.border.map(f32::to_bits)
        } else {
            self.border.map(|value| (value as i64) as u32)
        }
    }

    /// From channels as stored to what the texture gives.
    fn convert(&self, raw: [u32; 4]) -> [u32; 4] {
        if !self.is_float() {
            return raw;
        }
        let mut out = [0.0f32, 0.0, 0.0, 1.0];
        for (index, value) in out.iter_mut().enumerate().take(self.channels as usize) {
            let raw = raw[index];
            *value = match self.format {
                Format::F32 => f32::from_bits(raw),
                Format::F16 => half::to_f32(raw as u16, 0),
                Format::U8 if self.srgb && index < 3 => linear_light(raw as f32 / 255.0),
                Format::U8 => raw as f32 / 255.0,
                Format::U16 => raw as f32 / 65535.0,
                Format::S8 => (raw.cast_signed() as f32 / 127.0).max(-1.0),
                Format::S16 => (raw.cast_signed() as f32 / 32767.0).max(-1.0),
                // Not read as fractions: whoever made the texture saw to it.
                Format::U32 | Format::S32 => raw as f32,
            };
        }
        out.map(f32::to_bits)
    }
}

/// From sRGB to linear light (IEC 61966-2-1).
fn linear_light(value: f32) -> f32 {
    if value <= 0.040_45 {
        value / 12.92
    } else {
        ((value + 0.055) / 1.055).powf(2.4)
    }
}

/// The face of a cube that a direction meets (+x, -x, +y, -y, +z, -z), and where on it, from 0 to 1.
fn face([x, y, z]: [f32; 3]) -> (u64, [f32; 2]) {
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, major, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 {
            (0, ax, -z, -y)
        } else {
            (1, ax, z, -y)
        }
    } else if ay >= az {
        if y >= 0.0 {
            (2, ay, x, z)
        } else {
            (3, ay, x, -z)
        }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    (face, [(s / major + 1.0) / 2.0, (t / major + 1.0) / 2.0])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Texels;
    use super::*;

    /// A row of the values 0, 10, 20, 30.
    fn row() -> Texture {
        let texels = Texels::new(16).unwrap();
        for index in 0..4_u32 {
            let value = (index * 10) as f32;
            texels.write(u64::from(index) * 4, &value.to_le_bytes());
        }
        let level = Level {
            sides: [4, 1, 1],
            offset: 0,
        };
        Texture {
            source: Source::Array(Arc::new(texels), vec![level]),
            format: Format::F32,
            channels: 1,
            edges: [Edge::Clamp; 3],
            linear: false,
            linear_levels: false,
            normalized: false,
            fractions: false,
            srgb: false,
            bias: 0.0,
            detail: [0.0; 2],
            border: [-1.0; 4],
            layers: [0, 1],
        }
    }

    fn read(texture: &Texture, x: f32) -> f32 {
        let coordinates = Coordinates {
            at: [x, 0.0, 0.0],
            count: 1,
            whole: None,
            layer: None,
            cube: false,
        };
        let value = texture.sample(&AddressSpace::default(), &coordinates, 0.0);
        f32::from_bits(value.unwrap()[0])
    }

    #[test]
    fn edges_give_what_they_should() {
        let mut texture = row();
        let at = |texture: &Texture| [-0.5, 0.5, 3.9, 4.5, 9.0].map(|x| read(texture, x));
        assert_eq!(at(&texture), [0.0, 0.0, 30.0, 30.0, 30.0]);
        texture.edges = [Edge::Border; 3];
        assert_eq!(at(&texture), [-1.0, 0.0, 30.0, -1.0, -1.0]);
        texture.normalized = true;
        texture.edges = [Edge::Wrap; 3];
        assert_eq!(
            [-0.1, 0.3, 1.3].map(|x| read(&texture, x)),
            [30.0, 10.0, 10.0]
        );
        texture.edges = [Edge::Mirror; 3];
        assert_eq!(
            [-0.1, 0.3, 1.3].map(|x| read(&texture, x)),
            [0.0, 10.0, 20.0]
        );
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            read(&texture, x);
        }
    }

    #[test]
    fn weights_have_eight_bits() {
        let mut texture = row();
        texture.linear = true;
        assert_eq!(read(&texture, 1.0), 5.0);
        assert_eq!(read(&texture, 0.5), 0.0);
        assert_eq!(read(&texture, 0.5 + 1.0 / 256.0), 10.0 / 256.0);
        assert_eq!(read(&texture, 0.5 + 1.0 / 1024.0), 0.0);
        assert_eq!(read(&texture, -7.0), 0.0);
    }

    #[test]
    fn directions_meet_the_faces_of_a_cube() {
        for (direction, expected) in [
            ([1.0, 0.0, 0.0], 0),
            ([-2.0, 1.0, 1.0], 1),
            ([0.0, 3.0, 1.0], 2),
            ([0.0, -3.0, 1.0], 3),
            ([0.1, 0.2, 0.5], 4),
            ([0.1, 0.2, -0.5], 5),
        ] {
            assert_eq!(face(direction).0, expected);
        }
        assert_eq!(face([1.0, 0.5, -0.5]), (0, [0.75, 0.25]));
    }
}
