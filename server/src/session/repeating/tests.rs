//! What is done again together, and what is not.

use super::*;
use protocol::operations::{Launch, Request, STREAM_SLOTS};
use protocol::wire::{Header, MAX_FIELD_SLOTS};

fn record<R: Request>(request: &R, sequence: u64, data: &[u8]) -> Record {
    let mut slots = [0; MAX_FIELD_SLOTS];
    request.write(&mut slots[..R::SLOTS]);
    let header = Header {
        opcode: R::OPCODE as u16,
        sequence,
        channel: 40,
        ..Header::default()
    };
    Record::new(header, slots[..R::SLOTS].to_vec(), data.to_vec())
}

fn former(completed: u64) -> Former {
    let mut words = vec![0; STREAM_SLOTS as usize];
    words[40] = completed;
    Former {
        journal: Vec::new(),
        taken: 0,
        retired: 0,
        is_spilled: false,
        has_begun_no_kernel: false,
        has_begun_nothing: false,
        completed: words,
        faults: Vec::new(),
        answered: Vec::new(),
    }
}

/// Kernels are numbers of blocks that they read and write: in their parameters a pair of bytes each. Blocks are of 1000 bytes.
struct Blocks;

impl Knowledge for Blocks {
    fn launch(&mut self, _: &Launch, data: &[u8]) -> Result<Effects, String> {
        let block = |number: u8| u64::from(number) * 1000..u64::from(number) * 1000 + 1000;
        match data {
            &[read, written] => Ok(Effects {
                reads: vec![block(read)],
                writes: vec![block(written)],
            }),
            _ => Err("nobody knows it".into()),
        }
    }

    fn is_in_block(&self, range: &Range<u64>) -> bool {
        range.start / 1000 == (range.end - 1) / 1000 && range.end <= 10_000
    }
}

fn is_cut_off<'a>(
    records: impl Iterator<Item = &'a Record>,
    former: &Former,
    begun: &Begun,
) -> bool {
    cut_off(records, (former, begun), &mut Blocks).is_some()
}

/// A copy of 100 bytes.
fn copy(to: u64, from: u64) -> Copy {
    Copy {
        to,
        from,
        width: 100,
        height: 1,
        depth: 1,
        ..Copy::default()
    }
}

#[test]
fn kernels_are_repeated_together_with_what_is_around_them_or_not_at_all() {
    let kernel = |read, written| (Launch::default(), [read, written]);
    let is = |kernels: &[(Launch, [u8; 2])], then: Option<Record>| {
        let kernels = (8..).zip(kernels);
        let kernels = kernels.map(|(at, (launch, data))| record(launch, at, data));
        let records: Vec<Record> = kernels.chain(then).collect();
        is_cut_off(records.iter(), &former(7), &Begun::All)
    };
    assert!(!is(&[kernel(1, 2)], None));
    assert!(is(&[kernel(1, 1)], None), "in place");
    assert!(
        !is(&[kernel(1, 2), kernel(2, 3)], None),
        "one after the other"
    );
    assert!(!is(&[kernel(1, 2), kernel(3, 2)], None), "over each other");
    assert!(is(&[kernel(1, 2), kernel(2, 1)], None), "there and back");
    let copied = |to, from| Some(record(&copy(to, from), 20, &[]));
    assert!(
        !is(&[kernel(1, 2)], copied(5000, 2000)),
        "its result goes elsewhere"
    );
    assert!(
        is(&[kernel(1, 2)], copied(1500, 5000)),
        "what it read is next's"
    );
    assert!(!is(&[], copied(20_000, 5000)));
    assert!(
        is(&[kernel(1, 2)], copied(20_000, 5000)),
        "a variable may be there"
    );
    assert!(
        is(&[kernel(1, 2)], copied(3950, 5000)),
        "more than one block"
    );
    let unknown = [record(&Launch::default(), 8, &[1])];
    let why = cut_off(unknown.iter(), (&former(7), &Begun::First), &mut Blocks);
    assert_eq!(why.as_deref(), Some("launch: nobody knows it"));
}

#[test]
fn pointers_are_of_the_blocks_that_they_lie_in() {
    // Blocks of 100 bytes at 1000, 1100 and 1300, in a window from 1000 to 2000.
    let at = |value: u64| {
        let block = |start: u64| start..start + 100;
        let all = [1000, 1100, 1300];
        let within = all.into_iter().map(block).find(|it| it.contains(&value));
        let before = all.into_iter().map(block).find(|it| it.end == value);
        ([within, before], (1000..2000).contains(&value))
    };
    let of = |values: &[u64], is_lowered| {
        let found = blocks(values, is_lowered, at).ok()?;
        Some(
            found
                .into_iter()
                .map(|block| block.start)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(of(&[1000], false), Some(vec![1000]));
    assert_eq!(of(&[1099], true), Some(vec![1000]));
    assert_eq!(of(&[1100], false), Some(vec![1100]));
    assert_eq!(
        of(&[1100], true),
        Some(vec![1100, 1000]),
        "gone through from the end"
    );
    assert_eq!(of(&[1200], false), Some(vec![1100]), "its end");
    assert_eq!(
        of(&[1000, 1350], false),
        Some(vec![1000, 1300]),
        "one or the other"
    );
    assert_eq!(of(&[1000, 7], false), Some(vec![1000]), "a number");
    assert_eq!(of(&[7], false), None, "a number alone");
    assert_eq!(of(&[0], false), Some(vec![]), "nothing");
    assert_eq!(of(&[0, 7], false), None);
    assert_eq!(of(&[1250], false), None, "in no block");
    assert_eq!(of(&[1000, 1250], false), None, "a variable, maybe");
}

#[test]
fn what_may_have_been_begun_and_cannot_be_repeated_is_cut_off() {
    let launch = Launch::default();
    let is = |record: Record, completed, begun| {
        is_cut_off(std::iter::once(&record), &former(completed), begun)
    };
    let behind = || record(&launch, 9, &[]);
    assert!(is(record(&launch, 8, &[]), 7, &Begun::First));
    assert!(!is(behind(), 7, &Begun::First), "behind another");
    assert!(is(behind(), 7, &Begun::All), "the device may have both");
    assert!(!is(record(&launch, 8, &[]), 8, &Begun::All), "complete");
    let write = Write { to: 4096 };
    assert!(is(record(&write, 8, &[0; 4]), 7, &Begun::First), "a flag");
    assert!(!is(record(&write, 8, &[0; 64]), 7, &Begun::First));
}

#[test]
fn what_stands_before_kernels_of_which_none_was_begun_may_have_been() {
    let launch = |at| record(&Launch::default(), at, &[]);
    let is = |records: &[Record], completed| {
        let former = former(completed);
        let begun = Begun::no_kernel(records.iter(), &former);
        is_cut_off(records.iter(), &former, &begun)
    };
    assert!(!is(&[launch(8), launch(9)], 7));
    let behind = [
        record(&copy(1000, 2000), 8, &[]),
        launch(9),
        record(&copy(2000, 1000), 10, &[]),
    ];
    assert!(!is(&behind, 7), "it was not begun either");
    let before = [
        record(&copy(1000, 2000), 8, &[]),
        record(&copy(2000, 3000), 9, &[]),
        launch(10),
    ];
    assert!(is(&before, 7));
    assert!(!is(&before, 8), "the first is complete");
    assert!(
        !is(&[launch(7), record(&copy(0, 200), 8, &[])], 7),
        "of a kernel that is complete"
    );
    assert!(is(&[launch(7), record(&copy(0, 0), 8, &[]), launch(9)], 7));
}

#[test]
fn a_copy_onto_itself_is_not_repeated() {
    for (to, from, is) in [(0, 0, true), (0, 99, true), (99, 0, true), (0, 100, false)] {
        let record = [record(&copy(to, from), 8, &[])];
        let found = is_cut_off(record.iter(), &former(7), &Begun::First);
        assert_eq!(found, is, "{to} {from}");
    }
    let staged = Copy {
        from_space: Space::Staging as u32,
        ..copy(0, 0)
    };
    let staged = [record(&staged, 8, &[])];
    assert!(!is_cut_off(staged.iter(), &former(7), &Begun::First));
}

#[test]
fn copies_are_repeated_together_unless_one_writes_what_an_earlier_one_has_read() {
    let both = |second: Copy| {
        let records = [record(&copy(1000, 2000), 8, &[]), record(&second, 9, &[])];
        is_cut_off(records.iter(), &former(7), &Begun::All)
    };
    assert!(!both(copy(3000, 1000)), "it reads what was written");
    assert!(!both(copy(1000, 3000)), "it writes the same");
    assert!(both(copy(2050, 3000)), "it writes what was read");
    let fill = Fill {
        to: 2099,
        width: 1,
        element: 1,
        height: 1,
        ..Fill::default()
    };
    let records = [record(&copy(1000, 2000), 8, &[]), record(&fill, 9, &[])];
    assert!(is_cut_off(records.iter(), &former(7), &Begun::All));
    assert!(!is_cut_off(records.iter(), &former(7), &Begun::First));
}
