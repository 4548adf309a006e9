//! When the test server does what: at once, or when the stream has reached it.
//!
//! The server of `super` hands each record in; what an operation does stands there.
//!
//! Called by the test server for each record that it takes; the tests never call it.

use std::collections::VecDeque;

use cuda_abi::CUresult;
use protocol::operations::*;
use transport::ring::Record;
use transport::session::REPLY_DATA;

use super::{Pending, Server, image};

impl Server<'_> {
    pub(super) fn handle(&mut self, record: Record) {
        let opcode = Opcode::from_number(record.header.opcode).expect("a known operation");
        let header = record.header;
        if opcode.row().class == OperationClass::Stream {
            let queue = self.pending.entry(header.channel).or_default();
            queue.push_back(Pending { record });
            self.advance();
            return;
        }
        let mut data = Vec::new();
        let outcome =
            dispatch(self, &header, record.slots(), record.data(), &mut data).expect("fields");
        if let RecordOutcome::Replied {
            status,
            slots,
            count,
        } = outcome
        {
            self.publisher
                .reply(
                    header.channel,
                    header.sequence,
                    status,
                    &slots[..count],
                    &data,
                )
                .expect("a reply that fits");
        } else {
            assert_eq!(outcome, RecordOutcome::Posted(Ok(())), "{opcode:?}");
        }
    }

    /// Runs what can run of every stream.
    pub(super) fn advance(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            let slots: Vec<u32> = self.pending.keys().copied().collect();
            for slot in slots {
                while let Some(next) = self.pending.get_mut(&slot).and_then(VecDeque::pop_front) {
                    if self.must_wait(&next.record) {
                        self.pending.entry(slot).or_default().push_front(next);
                        break;
                    }
                    let record = next.record;
                    let header = record.header;
                    let last = self.completed.entry(slot).or_default();
                    assert_eq!(
                        header.sequence,
                        *last + 1,
                        "places of stream {slot} are in order"
                    );
                    let outcome = dispatch(
                        self,
                        &header,
                        record.slots(),
                        record.data(),
                        &mut Vec::new(),
                    );
                    assert_eq!(outcome, Ok(RecordOutcome::Posted(Ok(()))), "{record:?}");
                    self.completed.insert(slot, header.sequence);
                    self.publisher.complete(slot, header.sequence);
                    moved = true;
                }
            }
        }
    }

    fn must_wait(&mut self, record: &Record) -> bool {
        use protocol::wire::Fields;
        match Opcode::from_number(record.header.opcode) {
            Some(Opcode::StreamWait) => {
                let wait = StreamWait::read(record.slots()).expect("fields");
                self.completed.get(&wait.on).copied().unwrap_or(0) < wait.until
            }
            Some(Opcode::ValueWait) => {
                let wait = ValueWait::read(record.slots()).expect("fields");
                let now = self.load(Space::Unified as u32, wait.address, u64::from(wait.bytes));
                // Enough for the tests: they wait for equal values.
                now != wait.value.to_le_bytes()[..wait.bytes as usize]
            }
            Some(Opcode::SemaphoreWait) => {
                let wait = SemaphoreWait::read(record.slots()).expect("fields");
                self.semaphores[&wait.semaphore] < wait.value
            }
            Some(Opcode::HostBarrier) => {
                let header = &record.header;
                self.released.get(&header.channel).copied().unwrap_or(0) < header.sequence
            }
            Some(Opcode::Launch) => {
                let launch = Launch::read(record.slots()).expect("fields");
                self.name(&launch) == "gate" && !self.shared.gate_is_open()
            }
            Some(Opcode::RunLaunch) => {
                let run = RunLaunch::read(record.slots()).expect("fields").run;
                let mut launches = self.runs[&run].iter();
                let waits = launches.any(|(launch, _)| self.name(launch) == "gate");
                waits && !self.shared.gate_is_open()
            }
            _ => false,
        }
    }

    pub(super) fn name(&self, launch: &Launch) -> String {
        let (image, _) = self.modules[&launch.module];
        self.descriptors[&image].kernels[launch.kernel as usize]
            .name
            .clone()
    }

    pub(super) fn device_of(&self, context: u32) -> usize {
        self.contexts[&context] as usize
    }

    /// Puts a long reply where it fits.
    pub(super) fn place(&self, data: Vec<u8>, staging: u64, capacity: u64, reply: &mut Vec<u8>) {
        if data.len() <= REPLY_DATA {
            *reply = data;
        } else if data.len() as u64 <= capacity {
            self.staging.copy_in(staging as usize, &data);
        }
    }

    pub(super) fn description(&self, image: u64) -> (CUresult, Vec<u8>, Vec<u8>) {
        match image::describe(&self.images[&image]) {
            Ok(descriptor) => (
                CUresult::SUCCESS,
                descriptor.encode(),
                b"no remarks".to_vec(),
            ),
            Err(log) => (CUresult::ERROR_INVALID_PTX, Vec::new(), log.into_bytes()),
        }
    }
}
