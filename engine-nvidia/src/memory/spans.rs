//! The addresses that a client has on one device, in as many pieces as its memory has grown by, and which granules of
//! them are its own.
//!
//! Called by the window of the device. Must not know what backs the memory.

use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{Owner, Window};

use crate::device::Device;
use crate::memory::granules::Granules;
use crate::memory::physical::Reservation;

/// Addresses of a client in one piece.
#[derive(Debug)]
pub(super) struct Span {
    window: Window,
    reservation: Arc<Reservation>,
    granules: Granules,
}

impl Span {
    fn reserve(
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<Self, CUresult> {
        let granularity = device.granularity();
        if !window.base.is_multiple_of(granularity) || !window.bytes.is_multiple_of(granularity) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self {
            window,
            reservation: Reservation::at(device, window, addresses)?,
            granules: Granules::new(window.base),
        })
    }

    /// The addresses.
    pub(super) const fn window(&self) -> Window {
        self.window
    }

    /// Where chunks are mapped.
    pub(super) const fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }
}

/// The first window, and further ones. No chunk and no range of the client's lies in two.
#[derive(Debug)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    /// Reserves the addresses of the first window.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for addresses that physical memory cannot be mapped at, and
    /// CUDA_ERROR_OUT_OF_MEMORY if this process uses some of them already.
    pub(super) fn new(
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<Self, CUresult> {
        Ok(Self(vec![Span::reserve(device, window, addresses)?]))
    }

    /// Reserves the addresses of a further window.
    ///
    /// # Errors
    /// As [`Spans::new`].
    pub(super) fn add(
        &mut self,
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<(), CUresult> {
        self.0.push(Span::reserve(device, window, addresses)?);
        Ok(())
    }

    /// Lets go of a further window, whose addresses are free when its last chunk is; never of the first.
    pub(super) fn remove(&mut self, window: Window) {
        let mut number = 0;
        self.0.retain(|span| {
            number += 1;
            number == 1 || span.window != window
        });
    }

    /// The one that a range lies in.
    pub(super) fn of(&self, range: Window) -> Option<&Span> {
        let mut spans = self.0.iter();
        spans.find(|span| span.window.contains(range.base, range.bytes))
    }

    /// Whether any of a range lies in one of them.
    pub(super) fn overlap(&self, range: Window) -> bool {
        let end = range.base.saturating_add(range.bytes);
        let mut windows = self.0.iter().map(|span| span.window);
        windows.any(|window| window.base < end && range.base < window.base + window.bytes)
    }

    /// Whether the client has all of a range, which lies in one window.
    pub(super) fn has_all(&self, range: Window) -> bool {
        let span = self.of(range);
        span.is_some_and(|span| span.granules.has_all(range))
    }

    /// Whether the client has any of a range. It has nothing of a window that was removed.
    pub(super) fn has_any(&self, range: Window) -> bool {
        let span = self.of(range);
        span.is_some_and(|span| span.granules.has_any(range))
    }

    /// Notes what the client has of a window.
    pub(super) fn set(&mut self, range: Window, had: bool) {
        let mut spans = self.0.iter_mut();
        let span = spans.find(|span| span.window.contains(range.base, range.bytes));
        if let Some(span) = span {
            span.granules.set(range, had);
        }
    }

    /// What the client has, in pieces.
    pub(super) fn runs(&self) -> impl Iterator<Item = Window> {
        self.0.iter().flat_map(|span| span.granules.runs())
    }

    /// Bytes that the client has.
    pub(super) fn used(&self) -> u64 {
        self.0.iter().map(|span| span.granules.bytes()).sum()
    }
}
