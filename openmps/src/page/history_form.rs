//! The form of the file that keeps the page's history: so many records for each minute of a day, each at its minute's place.
//!
//! `store` reads and writes the file, and a fuzz target reads whatever there may be. The bytes may be anything: what is no record of the
//! last day is passed over. Knows no files and no plots.

/// What the file begins with: what it is, and its form's number.
pub const HEAD: [u8; 16] = *b"openmps history1";

/// Minutes that the file has room for.
pub const MINUTES: u64 = 24 * 60;

/// Records that a minute has room for.
pub const IN_MINUTE: usize = 56;

/// Bytes of a record.
pub const RECORD: usize = 128;

/// Bytes of a minute's records.
pub const BLOCK: usize = IN_MINUTE * RECORD;

/// Bytes of a whole file.
pub const WHOLE: u64 = HEAD.len() as u64 + MINUTES * BLOCK as u64;

/// Bytes that names may take.
const PROGRAM: usize = 56;
const USER: usize = 24;

/// The greatest ordinal of a device that is believed.
const MOST_DEVICE: u32 = 63;

/// A minute's average of a device, or of a client of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Minutes since 1970.
    pub minute: u64,
    /// The device's ordinal.
    pub device: u32,
    /// The client, or nothing: then it is of the device.
    pub client: Option<Client>,
    /// The parts of kernels, of multiprocessors and of waiting, and bytes of memory.
    pub sample: [f32; 4],
}

/// Whose average it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// A number that no other client of its daemon has had.
    pub session: u64,
    /// Its process id, or 0.
    pub pid: i32,
    /// Its program's name.
    pub program: String,
    /// Its user's name.
    pub user: String,
}

/// Where the records of a minute are in the file.
#[must_use]
pub fn place(minute: u64) -> u64 {
    HEAD.len() as u64 + minute % MINUTES * BLOCK as u64
}

/// A minute's records as bytes: those that there is no room for are left out, the last first.
#[must_use]
pub fn block(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    for record in records.iter().take(IN_MINUTE) {
        encode(record, &mut bytes);
    }
    bytes.resize(BLOCK, 0);
    bytes
}

/// The records of the day that ends with this minute, oldest first, in the bytes of a file.
#[must_use]
pub fn records(file: &[u8], now: u64) -> Vec<Record> {
    let Some(rest) = file.strip_prefix(&HEAD) else {
        return Vec::new();
    };
    let blocks = (0..MINUTES).zip(rest.chunks(BLOCK));
    let mut found: Vec<Record> = blocks
        .flat_map(|(place, block)| {
            let records = block.chunks_exact(RECORD).filter_map(get);
            records.filter(move |record| record.minute % MINUTES == place)
        })
        .filter(|record| record.minute <= now && now - record.minute < MINUTES)
        .collect();
    found.sort_by_key(|record| record.minute);
    found
}

fn encode(record: &Record, bytes: &mut Vec<u8>) {
    let begin = bytes.len();
    let nobody = Client {
        session: 0,
        pid: 0,
        program: String::new(),
        user: String::new(),
    };
    let client = record.client.as_ref().unwrap_or(&nobody);
    bytes.extend(record.minute.to_le_bytes());
    bytes.extend(client.session.to_le_bytes());
    bytes.extend(record.device.to_le_bytes());
    bytes.extend(client.pid.to_le_bytes());
    for value in record.sample {
        bytes.extend(value.to_le_bytes());
    }
    put_name(&client.program, PROGRAM, bytes);
    put_name(&client.user, USER, bytes);
    bytes.extend(u32::from(record.client.is_some()).to_le_bytes());
    bytes.extend(sum_of(&bytes[begin..]).to_le_bytes());
}

/// As much of a name as there is room for, with zeroes behind it.
fn put_name(name: &str, room: usize, bytes: &mut Vec<u8>) {
    let end = bytes.len() + room;
    let fits = (0..=room.min(name.len())).rev();
    let cut = fits.into_iter().find(|&at| name.is_char_boundary(at));
    bytes.extend(name.as_bytes().iter().take(cut.unwrap_or(0)));
    bytes.resize(end, 0);
}

fn get(bytes: &[u8]) -> Option<Record> {
    let mut rest = Fields(bytes);
    let record = Record {
        minute: u64::from_le_bytes(rest.next_bytes()?),
        client: None,
        device: 0,
        sample: [0.0; 4],
    };
    let session = u64::from_le_bytes(rest.next_bytes()?);
    let device = u32::from_le_bytes(rest.next_bytes()?);
    let pid = i32::from_le_bytes(rest.next_bytes()?);
    let mut sample = [0.0; 4];
    for value in &mut sample {
        *value = f32::from_le_bytes(rest.next_bytes()?);
    }
    let program = name(&rest.next_bytes::<PROGRAM>()?)?;
    let user = name(&rest.next_bytes::<USER>()?)?;
    let is_client = u32::from_le_bytes(rest.next_bytes()?);
    let sum = u32::from_le_bytes(rest.next_bytes()?);
    let is_whole = sum == sum_of(&bytes[..RECORD - 4]) && is_client <= 1;
    // A part of a time may be above 1 by rounding; of a device it is the sum over clients.
    let is_sane = sample
        .iter()
        .all(|value| value.is_finite() && *value >= 0.0);
    (is_whole && is_sane && device <= MOST_DEVICE && pid >= 0).then(|| Record {
        device,
        client: (is_client == 1).then_some(Client {
            session,
            pid,
            program,
            user,
        }),
        sample,
        ..record
    })
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next_bytes<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// A name without what a terminal or a page would take for more than text.
fn name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()?;
    let is_plain = |character: char| !character.is_control();
    text.chars().all(is_plain).then(|| text.to_owned())
}

/// FNV-1a, against records that were written in part: not against whoever makes one up.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(minute: u64, session: u64) -> Record {
        Record {
            minute,
            device: 1,
            client: (session > 0).then(|| Client {
                session,
                pid: 40,
                program: format!("prögram {session}"),
                user: "ada".into(),
            }),
            sample: [0.5, 0.25, 0.0, 4096.0],
        }
    }

    fn file(minutes: &[&[Record]]) -> Vec<u8> {
        let mut file = HEAD.to_vec();
        file.resize(usize::try_from(WHOLE).unwrap(), 0);
        for records in minutes {
            let at = usize::try_from(place(records[0].minute)).unwrap();
            file[at..at + BLOCK].copy_from_slice(&block(records));
        }
        file
    }

    #[test]
    fn a_day_is_read_as_it_was_written() {
        let day = 20_000 * MINUTES;
        let (one, two) = (
            [record(day + 3, 0), record(day + 3, 7)],
            [record(day + 4, 7)],
        );
        let file = file(&[&one, &two]);
        let both = [&one[..], &two[..]].concat();
        assert_eq!(records(&file, day + 4), both);
        assert_eq!(records(&file, day + 3), one, "what is to come was not");
        assert_eq!(records(&file, day + 3 + MINUTES), two, "a day later");
        assert_eq!(records(&file, day + 4 + MINUTES), []);
        // The next day's minute takes the place.
        assert_eq!(place(day + 3), place(day + 3 + MINUTES));
        // A file that was cut off counts as far as it goes.
        let cut = usize::try_from(place(day + 4)).unwrap() + 5;
        assert_eq!(records(&file[..cut], day + 4), one);
    }

    #[test]
    fn bytes_of_any_kind_are_no_records() {
        let minute = 5;
        let whole = file(&[&[record(minute, 7)]]);
        let at = usize::try_from(place(minute)).unwrap();
        for place in at..at + RECORD {
            let mut changed = whole.clone();
            changed[place] ^= 0x41;
            assert_eq!(records(&changed, 100), [], "{place}");
        }
        let with = |change: fn(&mut Record)| {
            let mut odd = record(minute, 7);
            change(&mut odd);
            records(&file(&[&[odd]]), 100)
        };
        assert_eq!(with(|_| {}).len(), 1);
        assert_eq!(with(|it| it.sample[2] = f32::NAN), []);
        assert_eq!(with(|it| it.sample[1] = -1.0), []);
        assert_eq!(with(|it| it.device = 64), []);
        assert_eq!(with(|it| it.client.as_mut().unwrap().pid = -1), []);
        let control = |it: &mut Record| it.client.as_mut().unwrap().program = "\u{1b}[2J".into();
        assert_eq!(with(control), []);
        let mut elsewhere = whole;
        elsewhere.copy_within(at..at + BLOCK, usize::try_from(place(9)).unwrap());
        assert_eq!(records(&elsewhere, 100).len(), 1, "it is of another minute");
        for foreign in [&b""[..], b"openmps", b"openmps history2", &[0xff; 300]] {
            assert_eq!(records(foreign, 100), []);
        }
    }

    #[test]
    fn names_and_minutes_have_their_room() {
        let mut long = record(5, 7);
        long.client.as_mut().unwrap().program = "ö".repeat(100);
        let read = records(&file(&[&vec![long; IN_MINUTE + 9]]), 5);
        assert_eq!(read.len(), IN_MINUTE);
        assert_eq!(
            read[0].client.as_ref().unwrap().program,
            "ö".repeat(PROGRAM / 2)
        );
    }
}
