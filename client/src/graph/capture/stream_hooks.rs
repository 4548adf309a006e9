//! What streams ask of captures, by the traits of `stream::capture`: whether work may go on beside one, and what becomes of work
//! in a captured stream.
//!
//! Called by `stream` alone, which must not know graphs.

use super::*;

impl capture::Captures for Captures {
    fn forbid_unsafe(&self) -> Result<(), CUresult> {
        self.forbid_unsafe()
    }

    fn break_beside(&self, legacy: u32) -> Result<(), CUresult> {
        self.break_those(
            |capture| capture.slot == legacy && capture.state().has_blocking(),
            CUresult::ERROR_STREAM_CAPTURE_IMPLICIT,
        )
    }

    /// The stream ends. If it is captured, so does the capture that began in it; one that it only
    /// joined goes on, and what the stream did there still has to be joined.
    fn stream_ends(&self, key: Key) {
        let Some(stream) = self.graphs.streams.at(key.index()) else {
            return;
        };
        let capture = stream.capture().take();
        let Some(capture) = capture.and_then(known) else {
            return;
        };
        let mut state = capture.state();
        stream.set_mode_bit(CAPTURED, false);
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut state.members)
            .into_iter()
            .partition(|member| member.slot == key.index());
        state.members = stay;
        state
            .left
            .extend(gone.into_iter().flat_map(|it| it.frontier));
        if capture.origin == key {
            state.broken = true;
            capture.finish(&mut state);
            drop(state);
            if !capture.into_programs_graph {
                let _ = self.graphs.destroy(capture.graph);
            }
        }
    }
}

impl capture::Capture for Capture {
    fn add(&self, slot: u32, operation: Operation) -> Result<(), CUresult> {
        self.add_node(slot, Payload::of(operation)?)
    }

    fn mark(self: Arc<Self>, slot: u32) -> Result<Arc<dyn capture::CapturedEvent>, CUresult> {
        let mut state = self.state();
        state.check()?;
        let member = state
            .member(slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        Ok(Arc::new(CapturePoint::new(&self, member.frontier.clone())))
    }

    fn wait(self: Arc<Self>, slot: u32, what: WaitFor) -> Result<(), CUresult> {
        self.state().check()?;
        let mark = match what {
            WaitFor::External(event) => return self.add_node(slot, Payload::Wait(event.bits())),
            WaitFor::Nothing => return Ok(()),
            WaitFor::Outside => {
                self.state().broken = true;
                return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
            }
            WaitFor::CapturedEvent(mark) => mark.into_any().downcast::<CapturePoint>(),
        };
        let mark = mark.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if !mark.is_of(&self) {
            mark.check()?;
            self.state().broken = true;
            mark.invalidate_capture();
            return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
        }
        let mut state = self.state();
        let member = state
            .member(slot)
            .ok_or(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)?;
        for from in mark.frontier() {
            if !member.frontier.iter().any(|(node, _)| *node == from.0) {
                member.frontier.push(*from);
            }
        }
        Ok(())
    }

    fn invalidate(&self) {
        self.state().broken = true;
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A capture as this module knows it; there is no other kind.
pub(super) fn known(capture: Arc<dyn capture::Capture>) -> Option<Arc<Capture>> {
    capture.into_any().downcast().ok()
}

/// The capture that a stream is in.
pub(super) fn of_stream(stream: &Stream) -> Option<Arc<Capture>> {
    let capture = stream.capture().clone();
    capture.and_then(known)
}
