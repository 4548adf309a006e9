//! What of a session's operations goes into its client's accounts, as they are handed to the engine.
//!
//! Called by the operations' methods. Must not know who reads the accounts.

use protocol::operations::{ArrayCopy, At, Copy, Space};

use crate::accounts::Direction;
use crate::session::Session;

impl Session {
    /// The device that a stream is on. A stream that there is not is on the first: the engine refuses what comes in it.
    pub(crate) fn device_of_stream(&self, stream: u32) -> u32 {
        let context = self.observer.progress.context(stream);
        let device = self.contexts.get(context as usize).copied().flatten();
        device.unwrap_or(0)
    }

    /// Kernels go to the engine.
    pub(crate) fn count_launches(&self, at: At, kernels: u64) {
        self.accounts
            .add_launches(self.device_of_stream(at.stream), kernels);
    }

    /// A copy goes to the engine.
    pub(crate) fn count_copy(&self, at: At, request: &Copy) {
        let direction = direction(
            self.is_on_host(request.from_space, request.from),
            self.is_on_host(request.to_space, request.to),
        );
        let bytes = volume(request.width, request.height, request.depth);
        self.count_bytes(at, direction, bytes);
    }

    /// A copy with an array goes to the engine.
    pub(crate) fn count_array_copy(&self, at: At, request: &ArrayCopy) {
        let direction = direction(
            self.is_on_host(request.from_space, request.from),
            self.is_on_host(request.to_space, request.to),
        );
        let bytes = volume(request.width, request.height, request.depth);
        self.count_bytes(at, direction, bytes);
    }

    /// So many bytes go from the record to an address.
    pub(crate) fn count_write(&self, at: At, to: u64, bytes: u64) {
        let to_host = self.is_on_host(Space::Unified as u32, to);
        self.count_bytes(at, direction(true, to_host), bytes);
    }

    /// A place is filled.
    pub(crate) fn count_fill(&self, at: At, to: u64, bytes: u64) {
        let on_host = self.is_on_host(Space::Unified as u32, to);
        self.count_bytes(at, direction(on_host, on_host), bytes);
    }

    fn count_bytes(&self, at: At, direction: Direction, bytes: u64) {
        self.accounts
            .add_copy(self.device_of_stream(at.stream), direction, bytes);
    }

    fn is_on_host(&self, space: u32, address: u64) -> bool {
        match Space::from_number(space) {
            Some(Space::Unified) => self.memory.is_in_host_window(address),
            Some(Space::Staging) => true,
            Some(Space::Array) | None => false,
        }
    }
}

fn direction(from_host: bool, to_host: bool) -> Direction {
    match (from_host, to_host) {
        (true, false) => Direction::ToDevice,
        (false, true) => Direction::FromDevice,
        (false, false) => Direction::WithinDevice,
        (true, true) => Direction::WithinHost,
    }
}

/// Bytes of a copy: of a request that the engine has not checked yet.
fn volume(width: u64, height: u64, depth: u64) -> u64 {
    width.saturating_mul(height).saturating_mul(depth)
}
