//! A client's end.
//!
//! Called when the server drops the client, on the session's own thread, which alone waits here. Must not keep
//! other clients waiting.

use std::time::Duration;

use super::NvidiaClient;

/// The least and the longest time between two looks at what a client that goes has running.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_millis(1);

impl Drop for NvidiaClient {
    fn drop(&mut self) {
        self.client_streams.close();
        self.client_streams.stop_polling();
        for context in self.contexts.values() {
            context.destroy();
        }
        for stream in self.streams.values().chain(&self.replaced_streams) {
            stream.clear();
            stream.context().abandon();
        }
        // The GPU must be done with the client's memory before that goes. This is the session's own
        // thread; nobody else waits. A device that dies ends the waiting: the poller asks it.
        let mut pause = FIRST_LOOK;
        while self.client_streams.is_busy() {
            if !self.client_streams.poll(&mut self.scratch).progress {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_LOOK);
                if pause == LAST_LOOK {
                    // Should it never end.
                    self.client_streams.note_abandoned_kernels();
                }
            }
        }
        self.memory.wait_for_looks();
        self.shared.poller.remove(&self.client_streams);
    }
}
