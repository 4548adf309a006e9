//! Perfetto's own form: a `Trace` of `TracePacket`s in protobuf, made from events of Chrome's JSON.
//!
//! Messages and field numbers are of Perfetto's published protocol (`protos/perfetto/trace`: trace.proto,
//! trace_packet.proto, clock_snapshot.proto and track_event/{track_descriptor, process_descriptor,
//! thread_descriptor, track_event, debug_annotation}.proto); only the fields that are written stand here. Times are
//! times of day in nanoseconds: they are given as the trace's default clock, and a snapshot says so.
//!
//! Called by `openmps trace merge`, an event at a time. Must not know who recorded, nor where the packets are kept.

use std::collections::HashMap;

use prost::Message;
use serde_json::Value;

use crate::chrome::read::Entry;

/// A packet, as it stands in a `Trace`.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<ClockValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockValue {
    #[prost(uint32, optional, tag = "1")]
    clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

/// `BUILTIN_CLOCK_REALTIME`.
const REALTIME: u32 = 1;
/// `BUILTIN_CLOCK_BOOTTIME`, the default.
const BOOTTIME: u32 = 6;

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

/// `TYPE_SLICE_BEGIN`, `TYPE_SLICE_END`, `TYPE_INSTANT`.
const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    int_value: Option<i64>,
    #[prost(double, optional, tag = "5")]
    double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

/// The most ends of arrows that are kept until their slices come; arrows beyond are left out.
const MOST_ARROWS: usize = 4_000_000;

/// Where an arrow's end is: process, track, time.
type Spot = (String, String, i64);

/// Makes packets of events. Each event is shown to it twice: all to [`look`](Self::look), then all to
/// [`packets`](Self::packets).
#[derive(Debug, Default)]
pub struct Converter {
    wall_ns: u64,
    /// The arrow at a place, and whether it begins there.
    arrows: HashMap<Spot, (u64, bool)>,
    left_out: u64,
    names: HashMap<(String, Option<String>), String>,
    tracks: HashMap<(String, Option<String>), u64>,
    began: bool,
}

impl Converter {
    /// For events whose times count from this time of day, in nanoseconds since 1970.
    #[must_use]
    pub fn new(wall_ns: u64) -> Self {
        Self {
            wall_ns,
            ..Self::default()
        }
    }

    /// Arrows for which there was no room.
    #[must_use]
    pub fn arrows_left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes what stands apart from the slices that it is of: names and arrows.
    pub fn look(&mut self, entry: &Entry) {
        match entry.phase() {
            b'M' => {
                let key = match entry.text("name") {
                    "process_name" => (entry.identity("pid"), None),
                    "thread_name" => (entry.identity("pid"), Some(entry.identity("tid"))),
                    _ => return,
                };
                if let Some(name) = entry.argument("name").and_then(Value::as_str)
                    && self.names.len() < 1_000_000
                {
                    self.names.insert(key, name.to_owned());
                }
            }
            phase @ (b's' | b'f') => {
                let id = entry.0.get("id").and_then(Value::as_u64);
                if let (Some(id), Some(spot)) = (id, spot(entry)) {
                    if self.arrows.len() < MOST_ARROWS {
                        self.arrows.insert(spot, (id, phase == b's'));
                    } else {
                        self.left_out += 1;
                    }
                }
            }
            _ => {}
        }
    }

    /// The bytes for one event; nothing for those that are told with others.
    #[must_use]
    pub fn packets(&mut self, entry: &Entry) -> Vec<u8> {
        let mut packets = Vec::new();
        let kind = match entry.phase() {
            b'X' | b'B' => BEGIN,
            b'E' => END,
            b'i' | b'I' => INSTANT,
            _ => return packets,
        };
        let Some(ts) = entry.nanoseconds("ts") else {
            return packets;
        };
        if !self.began {
            self.began = true;
            let clock = |clock_id| ClockValue {
                clock_id: Some(clock_id),
                timestamp: Some(self.wall_ns),
            };
            push(
                &mut packets,
                TracePacket {
                    clock_snapshot: Some(ClockSnapshot {
                        clocks: vec![clock(BOOTTIME), clock(REALTIME)],
                    }),
                    ..packet(Some(self.wall_ns))
                },
            );
        }
        let at = self.wall_ns.saturating_add_signed(ts);
        let track_uuid = Some(self.track(entry, &mut packets));
        let mut event = TrackEvent {
            kind: Some(kind),
            track_uuid,
            ..TrackEvent::default()
        };
        if kind != END {
            event.name = Some(entry.text("name").to_owned());
            event.categories = vec![entry.text("cat").to_owned()];
            event.debug_annotations = annotations(entry);
        }
        let arrow = spot(entry).and_then(|spot| self.arrows.get(&spot));
        if let (Some((id, begins)), b'X') = (arrow, entry.phase()) {
            let ends = if *begins {
                &mut event.flow_ids
            } else {
                &mut event.terminating_flow_ids
            };
            ends.push(*id);
        }
        push(
            &mut packets,
            TracePacket {
                track_event: Some(event),
                ..packet(Some(at))
            },
        );
        if entry.phase() == b'X' {
            let duration = entry.nanoseconds("dur").unwrap_or_default();
            push(
                &mut packets,
                TracePacket {
                    track_event: Some(TrackEvent {
                        kind: Some(END),
                        track_uuid,
                        ..TrackEvent::default()
                    }),
                    ..packet(Some(at.saturating_add_signed(duration.max(0))))
                },
            );
        }
        packets
    }

    /// The track of an event, told when it is first used, after its process.
    fn track(&mut self, entry: &Entry, packets: &mut Vec<u8>) -> u64 {
        let pid = entry.identity("pid");
        let process_key = (pid.clone(), None);
        let process_uuid = if let Some(uuid) = self.tracks.get(&process_key) {
            *uuid
        } else {
            let uuid = self.tracks.len() as u64 + 1;
            let name = self.names.get(&process_key).cloned();
            let process = ProcessDescriptor {
                // Those of other machines, and names, get numbers that no process has.
                pid: Some(pid.parse().unwrap_or_else(|_| {
                    i32::try_from(uuid)
                        .unwrap_or(i32::MAX - 2_000_000_000)
                        .saturating_add(2_000_000_000)
                })),
                process_name: Some(name.unwrap_or_else(|| pid.clone())),
            };
            push(
                packets,
                TracePacket {
                    track_descriptor: Some(TrackDescriptor {
                        uuid: Some(uuid),
                        process: Some(process),
                        ..TrackDescriptor::default()
                    }),
                    ..packet(None)
                },
            );
            self.tracks.insert(process_key, uuid);
            uuid
        };
        let tid = entry.identity("tid");
        let key = (pid, Some(tid.clone()));
        if let Some(uuid) = self.tracks.get(&key) {
            return *uuid;
        }
        let uuid = self.tracks.len() as u64 + 1;
        let name = self.names.get(&key).cloned();
        push(
            packets,
            TracePacket {
                track_descriptor: Some(TrackDescriptor {
                    uuid: Some(uuid),
                    name: Some(name.unwrap_or_else(|| format!("thread {tid}"))),
                    parent_uuid: Some(process_uuid),
                    ..TrackDescriptor::default()
                }),
                ..packet(None)
            },
        );
        self.tracks.insert(key, uuid);
        uuid
    }
}

fn spot(entry: &Entry) -> Option<Spot> {
    let ts = entry.nanoseconds("ts")?;
    Some((entry.identity("pid"), entry.identity("tid"), ts))
}

fn packet(timestamp: Option<u64>) -> TracePacket {
    TracePacket {
        timestamp,
        trusted_packet_sequence_id: Some(1),
        ..TracePacket::default()
    }
}

fn push(packets: &mut Vec<u8>, packet: TracePacket) {
    let trace = Trace {
        packet: vec![packet],
    };
    packets.extend(trace.encode_to_vec());
}

fn annotations(entry: &Entry) -> Vec<DebugAnnotation> {
    let Some(Value::Object(arguments)) = entry.0.get("args") else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (name, value) in arguments {
        let mut annotation = DebugAnnotation {
            name: Some(name.clone()),
            ..DebugAnnotation::default()
        };
        match value {
            Value::Number(number) if number.is_u64() => annotation.uint_value = number.as_u64(),
            Value::Number(number) if number.is_i64() => annotation.int_value = number.as_i64(),
            Value::Number(number) => annotation.double_value = number.as_f64(),
            Value::String(text) => annotation.string_value = Some(text.clone()),
            other => annotation.string_value = Some(other.to_string()),
        }
        all.push(annotation);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chrome::read::read;

    fn converted(file: &str) -> Vec<TracePacket> {
        let mut converter = Converter::new(1_000_000);
        read(file.as_bytes(), |entry| {
            converter.look(&entry);
            Ok(())
        })
        .unwrap();
        let mut bytes = Vec::new();
        read(file.as_bytes(), |entry| {
            bytes.extend(converter.packets(&entry));
            Ok(())
        })
        .unwrap();
        Trace::decode(&bytes[..]).unwrap().packet
    }

    #[test]
    fn slices_tracks_and_arrows_are_told() {
        let packets = converted(
            r#"[{"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "pid": 5, "tid": 6, "ts": 1, "dur": 2},
                {"ph": "s", "id": 9, "pid": 5, "tid": 6, "ts": 1},
                {"ph": "X", "cat": "kernel", "name": "k", "pid": 5, "tid": 7, "ts": 2, "dur": 4,
                 "args": {"stream": 7, "grid": [1, 2, 3], "x": -1, "y": 0.5}},
                {"ph": "f", "id": 9, "bp": "e", "pid": 5, "tid": 7, "ts": 2},
                {"ph": "i", "name": "note", "pid": "Spans", "tid": 0, "ts": 3},
                {"ph": "M", "name": "thread_name", "pid": 5, "tid": 7, "args": {"name": "stream 7"}},
                {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "app"}}]"#,
        );
        let descriptors: Vec<_> = packets
            .iter()
            .filter_map(|packet| packet.track_descriptor.as_ref())
            .collect();
        assert_eq!(descriptors.len(), 5);
        let process = descriptors[0].process.as_ref().unwrap();
        assert_eq!(
            (process.pid, process.process_name.as_deref()),
            (Some(5), Some("app"))
        );
        assert_eq!(descriptors[2].name.as_deref(), Some("stream 7"));
        assert_eq!(descriptors[2].parent_uuid, descriptors[0].uuid);
        let events: Vec<_> = packets
            .iter()
            .filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)))
            .collect();
        let told: Vec<_> = events
            .iter()
            .map(|(at, event)| (*at, event.kind.unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                (1_001_000, BEGIN),
                (1_003_000, END),
                (1_002_000, BEGIN),
                (1_006_000, END),
                (1_003_000, INSTANT)
            ]
        );
        assert_eq!(events[0].1.flow_ids, [9]);
        assert_eq!(events[2].1.terminating_flow_ids, [9]);
        assert_eq!(events[2].1.track_uuid, descriptors[2].uuid);
        let values = &events[2].1.debug_annotations;
        assert_eq!(values[0].string_value.as_deref(), Some("[1,2,3]"));
        assert_eq!(values[1].uint_value, Some(7));
        assert_eq!(
            (values[2].int_value, values[3].double_value),
            (Some(-1), Some(0.5))
        );
    }

    #[test]
    fn the_bytes_are_of_the_published_fields() {
        let mut bytes = Vec::new();
        push(
            &mut bytes,
            TracePacket {
                track_event: Some(TrackEvent {
                    kind: Some(BEGIN),
                    track_uuid: Some(2),
                    name: Some("k".into()),
                    flow_ids: vec![1],
                    ..TrackEvent::default()
                }),
                ..packet(Some(3))
            },
        );
        // Trace.packet { timestamp 8, sequence 10, track_event 11 { type 9, track_uuid 11, name 23, flow_ids 47 } }
        let event = b"\x48\x01\x58\x02\xba\x01\x01k\xf9\x02\x01\0\0\0\0\0\0\0";
        let mut packet = b"\x40\x03\x50\x01\x5a".to_vec();
        packet.push(u8::try_from(event.len()).unwrap());
        packet.extend(event);
        let mut expected = vec![0x0a, u8::try_from(packet.len()).unwrap()];
        expected.extend(packet);
        assert_eq!(bytes, expected);
    }
}
