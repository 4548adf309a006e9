//! The file of the page's history: whatever its bytes are, what is read of it is a day's, and what was written is read or passed over.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The binary's own: it is no library.
#[allow(dead_code, reason = "a whole file is not made here")]
#[path = "../../openmps/src/page/history_form.rs"]
mod form;

use form::{BLOCK, Client, HEAD, IN_MINUTE, MINUTES, RECORD, Record};

fn check(file: &[u8], now: u64) -> Vec<Record> {
    let records = form::records(file, now);
    for record in &records {
        assert!(record.minute <= now && now - record.minute < MINUTES);
        assert!(
            record
                .sample
                .iter()
                .all(|value| value.is_finite() && *value >= 0.0)
        );
        assert!(record.device < 64);
        if let Some(client) = &record.client {
            assert!(!client.program.chars().any(char::is_control));
            assert!(!client.user.chars().any(char::is_control) && client.pid >= 0);
        }
        assert_eq!(form::block(std::slice::from_ref(record)).len(), BLOCK);
    }
    records
}

fuzz_target!(|data: &[u8]| {
    let Some((now, rest)) = data.split_first_chunk() else {
        return;
    };
    let now = u64::from_le_bytes(*now);
    check(rest, now);
    check(&[&HEAD[..], rest].concat(), now);

    // A minute's records, one of whose bytes is another.
    let mut words = rest
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let mut word = || words.next().unwrap_or_default();
    let (at, other) = (word() as usize % BLOCK, word() as u8);
    // Of the first few: the file before it is of no interest, and long.
    let minute = word() % 4;
    let text = String::from_utf8_lossy(rest).into_owned();
    let record = Record {
        minute,
        device: word() as u32,
        client: (word() & 1 == 1).then(|| Client {
            session: word(),
            pid: word() as i32,
            program: text.clone(),
            user: text,
        }),
        sample: [0; 4].map(|_| f32::from_bits(word() as u32)),
    };
    let mut file = HEAD.to_vec();
    file.resize(form::place(minute) as usize, 0);
    file.extend(form::block(&vec![record; IN_MINUTE]));
    let whole = check(&file, minute);
    let place = form::place(minute) as usize + at;
    file[place] ^= other;
    let changed = check(&file, minute);
    let lost = usize::from(other != 0 && at < IN_MINUTE * RECORD && !whole.is_empty());
    assert_eq!(changed.len(), whole.len() - lost);
});
