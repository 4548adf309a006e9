//! A client's images: put together from pieces in its staging memory, and what the engine said of
//! each.
//!
//! Everything counts against a bound, so that no client fills the server with images. Sessions call it;
//! it knows neither sessions nor engines.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{Bound, Charge};
use protocol::image_descriptor::Descriptor;

use crate::memory::heap::ALIGNMENT;

/// Bytes that a client's images may have together.
const MAX_BYTES: u64 = 1 << 30;

/// Images that a client may have.
const MAX_IMAGES: usize = 1 << 16;

/// Bytes that a module's variables may need beyond their sizes: for the engine's alignment.
const SLACK: u64 = 64 << 10;

/// Bytes that the variables of a module may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Of device memory.
    pub device: u64,
    /// Of managed memory.
    pub managed: u64,
    /// Of device memory that the engine takes by itself: once when an image is loaded that has any, for its first module, and
    /// then for each further module.
    pub in_engine: u64,
}

/// An image.
#[derive(Debug)]
enum Image {
    /// Some of its pieces are there.
    Coming {
        total: u64,
        bytes: Vec<u8>,
        /// What of the server's memory is held for it.
        held: Charge,
    },
    /// There was no memory for one of its pieces.
    TooLarge { total: u64 },
    /// The engine has it.
    Loaded {
        total: u64,
        /// What the engine said of it: its descriptor and its log.
        said: Vec<u8>,
        /// What the variables of a module of it may need, or `None` if that is absurd.
        variables: Option<Needed>,
        /// What counts for the variables of a module that nobody uses yet.
        unused: EngineVariables,
        _held: Charge,
    },
}

/// Bytes of a device that the engine itself takes for variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineVariables {
    pub device: u32,
    pub bytes: u64,
}

impl Image {
    const fn total(&self) -> u64 {
        match self {
            Self::Coming { total, .. } | Self::TooLarge { total } | Self::Loaded { total, .. } => {
                *total
            }
        }
    }
}

/// The images of one client.
#[derive(Debug)]
pub struct Images {
    images: HashMap<u64, Image>,
    /// What of the server's memory may be held for the client.
    held: Arc<Bound>,
    /// Of all images, as announced.
    bytes: u64,
}

/// Where the next piece of an image goes: `read` fills exactly the piece.
pub type ReadPiece<'a> = &'a mut dyn FnMut(&mut [u8]);

impl Images {
    /// None yet, of a client for which so much may be held.
    #[must_use]
    pub fn new(held: Arc<Bound>) -> Self {
        Self {
            images: HashMap::new(),
            held,
            bytes: 0,
        }
    }

    /// Adds a piece. Pieces come in order.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for pieces that do not fit each other, CUDA_ERROR_OUT_OF_MEMORY
    /// beyond the bound.
    pub fn add_piece(
        &mut self,
        image: u64,
        total: u64,
        offset: u64,
        piece: u64,
        read: ReadPiece<'_>,
    ) -> Result<(), CUresult> {
        if offset == 0 && !self.images.contains_key(&image) {
            if total > MAX_BYTES - self.bytes.min(MAX_BYTES) || self.images.len() >= MAX_IMAGES {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            self.bytes += total;
            let coming = Image::Coming {
                total,
                bytes: Vec::new(),
                held: Charge::new(self.held.clone()),
            };
            self.images.insert(image, coming);
        }
        let known = self.images.get_mut(&image);
        let known = known.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        match known {
            Image::Coming {
                total: announced,
                bytes,
                held,
            } if *announced == total && bytes.len() as u64 == offset && piece <= total - offset => {
                // Grows with what really comes, not with what was announced.
                let start = bytes.len();
                if !held.grow(piece) || bytes.try_reserve(piece as usize).is_err() {
                    // What came of it is of no use. Who loads it is told.
                    *known = Image::TooLarge { total };
                    return Err(CUresult::ERROR_OUT_OF_MEMORY);
                }
                bytes.resize(start + piece as usize, 0);
                read(&mut bytes[start..]);
                Ok(())
            }
            Image::TooLarge { .. } => Ok(()),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Takes the bytes of an image of which all pieces are there.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when there is none such, CUDA_ERROR_OUT_OF_MEMORY when there was no
    /// memory for it.
    pub fn remove_bytes(&mut self, image: u64) -> Result<Vec<u8>, CUresult> {
        match self.images.get_mut(&image) {
            Some(Image::TooLarge { .. }) => Err(CUresult::ERROR_OUT_OF_MEMORY),
            Some(Image::Coming { total, bytes, .. }) if bytes.len() as u64 == *total => {
                Ok(std::mem::take(bytes))
            }
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Keeps what the engine said of an image; its first `descriptor` bytes are the descriptor, and
    /// empty if the engine refused the image.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there is no memory to keep that; then it is kept as refused.
    pub fn set_engine_reply(
        &mut self,
        image: u64,
        said: Vec<u8>,
        descriptor: u64,
    ) -> Result<(), CUresult> {
        let Some(image) = self.images.get_mut(&image) else {
            return Ok(());
        };
        let total = image.total();
        // Its pieces are gone, and with them what they took.
        *image = Image::TooLarge { total };
        let mut held = Charge::new(self.held.clone());
        let fits = held.grow(said.len() as u64);
        let (said, descriptor) = if fits {
            (said, descriptor)
        } else {
            (Vec::new(), 0)
        };
        let descriptor = usize::try_from(descriptor)
            .ok()
            .and_then(|bytes| said.get(..bytes))
            .and_then(|bytes| Descriptor::decode(bytes).ok());
        *image = Image::Loaded {
            total,
            variables: descriptor.as_ref().and_then(bytes_of_variables),
            said,
            unused: EngineVariables::default(),
            _held: held,
        };
        fits.then_some(()).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Sets what counts for a module of an image that nobody uses, and gives what did until now.
    pub fn set_unused_charge(&mut self, image: u64, charge: EngineVariables) -> EngineVariables {
        match self.images.get_mut(&image) {
            Some(Image::Loaded { unused, .. }) => std::mem::replace(unused, charge),
            _ => EngineVariables::default(),
        }
    }

    /// What the engine said of an image.
    #[must_use]
    pub fn engine_reply(&self, image: u64) -> Option<&[u8]> {
        match self.images.get(&image)? {
            Image::Loaded { said, .. } => Some(said),
            Image::Coming { .. } | Image::TooLarge { .. } => None,
        }
    }

    /// What the variables of a module of an image may need.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when it is not loaded, CUDA_ERROR_OUT_OF_MEMORY when no device has
    /// as much.
    pub fn variables(&self, image: u64) -> Result<Needed, CUresult> {
        match self.images.get(&image) {
            Some(Image::Loaded { variables, .. }) => variables.ok_or(CUresult::ERROR_OUT_OF_MEMORY),
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Forgets an image. Says whether the engine has it.
    pub fn remove(&mut self, image: u64) -> bool {
        let removed = self.images.remove(&image);
        if let Some(image) = &removed {
            self.bytes -= image.total();
        }
        matches!(removed, Some(Image::Loaded { .. }))
    }
}

fn bytes_of_variables(descriptor: &Descriptor) -> Option<Needed> {
    let mut needed = Needed::default();
    for variable in &descriptor.variables {
        let sum = match (variable.managed, variable.align) {
            (true, _) => &mut needed.managed,
            (false, 0) => &mut needed.in_engine,
            (false, _) => &mut needed.device,
        };
        if *sum == 0 {
            *sum = SLACK;
        }
        // The memory that an engine is given is only aligned to ALIGNMENT: it asks for as much more
        // as it takes to align the variable within.
        let padding = variable.align.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let bytes = variable
            .bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)?
            .checked_add(padding)?;
        *sum = sum.checked_add(bytes)?;
    }
    Some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::image_descriptor::Variable;

    fn put(
        images: &mut Images,
        image: u64,
        total: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), CUresult> {
        images.add_piece(image, total, offset, piece.len() as u64, &mut |into| {
            into.copy_from_slice(piece);
        })
    }

    #[test]
    fn pieces_in_order_make_an_image() {
        let mut images = Images::new(Arc::new(Bound::new(u64::MAX)));
        put(&mut images, 7, 6, 0, b"abcd").unwrap();
        assert!(images.remove_bytes(7).is_err(), "not all there");
        put(&mut images, 7, 6, 4, b"ef").unwrap();
        assert_eq!(images.remove_bytes(7).unwrap(), b"abcdef");
        images.set_engine_reply(7, b"said".to_vec(), 0).unwrap();
        assert_eq!(images.engine_reply(7), Some(&b"said"[..]));
        assert!(images.remove_bytes(7).is_err(), "loaded once");
        assert!(put(&mut images, 7, 6, 0, b"abcdef").is_err());
        assert!(images.remove(7));
        assert!(!images.remove(7));
        assert_eq!(images.bytes, 0);
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let mut images = Images::new(Arc::new(Bound::new(u64::MAX)));
        put(&mut images, 1, 6, 0, b"abcd").unwrap();
        for (total, offset, piece) in [
            (6, 3, &b"d"[..]),
            (6, 5, b"f"),
            (7, 4, b"ef"),
            (6, 4, b"efg"),
            (6, 0, b"abcdef"),
        ] {
            assert_eq!(
                put(&mut images, 1, total, offset, piece),
                Err(CUresult::ERROR_INVALID_VALUE)
            );
        }
        assert!(
            put(&mut images, 2, 6, 4, b"ef").is_err(),
            "has no beginning"
        );
        assert!(put(&mut images, 3, u64::MAX, 0, b"").is_err());
        assert!(images.add_piece(4, 6, 0, u64::MAX, &mut |_| {}).is_err());
    }

    #[test]
    fn announced_bytes_are_bounded_together() {
        let mut images = Images::new(Arc::new(Bound::new(u64::MAX)));
        put(&mut images, 1, MAX_BYTES - 1, 0, b"").unwrap();
        assert_eq!(
            put(&mut images, 2, 2, 0, b"ab"),
            Err(CUresult::ERROR_OUT_OF_MEMORY)
        );
        put(&mut images, 3, 1, 0, b"a").unwrap();
        images.remove(1);
        put(&mut images, 2, 2, 0, b"ab").unwrap();
    }

    #[test]
    fn an_image_that_is_not_held_is_refused_when_it_is_loaded() {
        let held = Arc::new(Bound::new(6));
        let mut images = Images::new(held.clone());
        put(&mut images, 1, 8, 0, b"abcd").unwrap();
        assert_eq!(held.taken(), 4);
        let full = Err(CUresult::ERROR_OUT_OF_MEMORY);
        assert_eq!(put(&mut images, 1, 8, 4, b"efg"), full);
        assert_eq!(held.taken(), 0, "what came of it is gone");
        assert_eq!(put(&mut images, 1, 8, 7, b"h"), Ok(()), "as if it came");
        assert_eq!(images.remove_bytes(1).map(drop), full);
        put(&mut images, 2, 5, 0, b"abcde").unwrap();
        images.remove_bytes(2).unwrap();
        images.set_engine_reply(2, b"said".to_vec(), 0).unwrap();
        assert_eq!(held.taken(), 4, "what was said of it stays");
        put(&mut images, 3, 1, 0, b"a").unwrap();
        assert_eq!(images.set_engine_reply(3, b"too long".to_vec(), 0), full);
        images.remove(2);
        images.remove(3);
        assert_eq!(held.taken(), 0);
    }

    #[test]
    fn variables_are_counted_with_room_to_align_them() {
        let mut images = Images::new(Arc::new(Bound::new(u64::MAX)));
        let variable = |bytes, align, managed| Variable {
            name: "v".into(),
            bytes,
            managed,
            align,
        };
        let mut load = |image, variables| {
            let descriptor = Descriptor {
                variables,
                ..Descriptor::default()
            }
            .encode();
            put(&mut images, image, 0, 0, b"").unwrap();
            let length = descriptor.len() as u64;
            images.set_engine_reply(image, descriptor, length).unwrap();
            images.variables(image)
        };
        assert_eq!(load(1, vec![]), Ok(Needed::default()));
        let two = load(2, vec![variable(1, 4, false), variable(1000, 8, false)]).unwrap();
        assert!(two.device >= 512 + 1024 && two.managed == 0 && two.in_engine == 0);
        let mixed = vec![
            variable(1, 4, false),
            variable(1000, 8, true),
            variable(1000, 0, false),
        ];
        let mixed = load(3, mixed).unwrap();
        assert!(mixed.device >= 512 && mixed.managed >= 1024 && mixed.in_engine >= 1024);
        // Many variables that are aligned to more than all memory is.
        let aligned = load(4, vec![variable(8, 1 << 16, false); 100]).unwrap();
        assert!(aligned.device >= 100 * (1 << 16));
        for (image, absurd) in [
            (5, variable(u64::MAX, 0, false)),
            (6, variable(1, u64::MAX, true)),
        ] {
            assert_eq!(
                load(image, vec![absurd]),
                Err(CUresult::ERROR_OUT_OF_MEMORY)
            );
        }
    }
}
