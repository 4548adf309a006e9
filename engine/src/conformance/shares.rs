//! What clients get of a device: percentages, what is reserved, groups, and changes of all that.
//!
//! What an engine cannot do (change a share, set a group, reserve) is left out. Engines that share out
//! time are asked who gets how much of it: what is compared is work that kernels have counted, so a busy
//! machine changes nothing. Of those that share out multiprocessors it is looked at on which kernels run.

use std::time::{Duration, Instant};

use protocol::device_facts::{DeviceFacts, MULTIPROCESSOR_COUNT};

use super::rig::{Guest, PATIENCE, params};
use super::{kernels, progress};
use crate::arena::GRANULE;
use crate::{Attachment, CUresult, Client, Engine, Granularity, GroupShare, Share};

/// Blocks of each client's kernel that counts: more than there are processors, on small machines.
const BLOCKS: u32 = 16;

/// More multiprocessors than a device has.
const MOST_MULTIPROCESSORS: usize = 1024;

/// How much is counted before it is compared.
const BEATS: u32 = 40_000;

/// A client whose kernels count, for ever.
fn counting(engine: &dyn Engine, share: Share, group: Option<u32>) -> Guest {
    let mut guest = Guest::in_group(engine, share, group);
    guest.context(0, 0);
    let host = guest.commit_host();
    let module = guest.module(kernels::BEAT);
    guest.stream(41);
    guest.launch(41, module, BLOCKS, 1, &params(&[host]));
    guest
}

fn beats(guest: &Guest) -> u32 {
    let word = guest.host_bytes(guest.host.base, 4);
    word.try_into().map_or(0, u32::from_le_bytes)
}

/// Waits until what each client counts from now on is what it is to have of all. One turn may be seen
/// to take very long on a busy machine, but over time that comes out even.
fn assert_parts<const N: usize>(guests: [&Guest; N], parts: [f64; N]) {
    let before = guests.map(beats);
    let deadline = Instant::now() + PATIENCE;
    loop {
        std::thread::sleep(Duration::from_millis(1));
        let now = guests.map(beats);
        let counted: [u32; N] = std::array::from_fn(|index| now[index].wrapping_sub(before[index]));
        let all: u32 = counted.iter().sum();
        let got = counted.map(|counted| f64::from(counted) / f64::from(all.max(1)));
        let near = |(got, part): (&f64, &f64)| (got - part).abs() < 0.06;
        if all > BEATS && got.iter().zip(&parts).all(near) {
            return;
        }
        assert!(Instant::now() < deadline, "{got:?} of {all}, not {parts:?}");
    }
}

/// Whether an engine can change a client's share.
fn can_change(guest: &mut Guest) -> bool {
    guest.client.set_share(Share::of(100.0)) != Err(CUresult::ERROR_NOT_SUPPORTED)
}

/// Whether an engine can keep a part of a device for a client.
fn can_reserve(engine: &dyn Engine) -> bool {
    let mut guest = Guest::new(engine);
    guest.client.set_share(Share::reserving(1.0)) != Err(CUresult::ERROR_NOT_SUPPORTED)
}

/// Whether an engine gives out multiprocessors, and not time.
fn gives_multiprocessors(engine: &dyn Engine) -> bool {
    engine.granularity(0) != Granularity::default()
}

/// Sets a group, if the engine can.
fn set_group(engine: &dyn Engine, group: u32, percentage: f32, reserved: bool) -> bool {
    let share = GroupShare {
        device: None,
        percentage,
        reserved,
    };
    let result = engine.set_group(group, Some(share));
    assert!(matches!(
        result,
        Ok(()) | Err(CUresult::ERROR_NOT_SUPPORTED)
    ));
    result.is_ok()
}

/// Clients that all have work get it in proportion to their percentages, reserved or not, and a change
/// holds for work that runs already.
pub fn work_is_done_by_percentage(engine: &dyn Engine) {
    if !can_reserve(engine) || gives_multiprocessors(engine) {
        return;
    }
    let mut first = counting(engine, Share::of(75.0), None);
    let mut second = counting(engine, Share::of(25.0), None);
    assert_parts([&first, &second], [0.75, 0.25]);
    assert_eq!(second.client.set_share(Share::of(75.0)), Ok(()));
    assert_parts([&first, &second], [0.5, 0.5]);
    assert_eq!(first.client.set_share(Share::reserving(30.0)), Ok(()));
    assert_parts([&first, &second], [0.3, 0.7]);
    let third = counting(engine, Share::reserving(50.0), None);
    assert_parts([&first, &second, &third], [0.3, 0.2, 0.5]);
    third.end();
    assert_eq!(first.client.set_share(Share::of(25.0)), Ok(()));
    assert_parts([&first, &second], [0.25, 0.75]);
}

/// However many a group's clients are, they have its part together.
pub fn groups_have_their_part_together(engine: &dyn Engine) {
    if !can_reserve(engine) || gives_multiprocessors(engine) || !set_group(engine, 5, 50.0, false) {
        return;
    }
    let first = counting(engine, Share::of(60.0), Some(5));
    let second = counting(engine, Share::of(20.0), Some(5));
    let other = counting(engine, Share::of(50.0), None);
    assert_parts([&first, &second, &other], [0.375, 0.125, 0.5]);
    assert!(set_group(engine, 5, 20.0, true));
    assert_parts([&first, &second, &other], [0.15, 0.05, 0.8]);
    assert_eq!(engine.set_group(5, None), Ok(()));
    assert_parts([&first, &second, &other], [0.46, 0.15, 0.39]);
    // Who is the last of a group has what the group has.
    assert!(set_group(engine, 5, 50.0, false));
    first.end();
    assert_parts([&second, &other], [0.5, 0.5]);
}

/// The multiprocessors on which a kernel runs that has more blocks than all of them hold.
fn multiprocessors_of(guest: &mut Guest, stream: u32) -> Vec<usize> {
    let seen = guest.windows[0].base;
    let none = [0; 4 * MOST_MULTIPROCESSORS];
    guest.upload(seen, &none);
    let module = guest.module(kernels::WHERE);
    guest.launch(stream, module, 4096, 1024, &params(&[seen]));
    assert_eq!(guest.wait(stream), Ok(()));
    let bytes = guest.download(seen, none.len() as u64);
    let words = bytes.as_chunks::<4>().0.iter().enumerate();
    words
        .filter(|(_, word)| **word != [0; 4])
        .map(|(number, _)| number)
        .collect()
}

/// Kernels of who has reserved multiprocessors, and of all others, run on different ones; in streams that
/// were there, too, and in groups, and after every change.
pub fn reserved_multiprocessors_are_nobody_elses(engine: &dyn Engine) {
    if !can_reserve(engine) || !gives_multiprocessors(engine) {
        return;
    }
    let come = |share, group| {
        let mut guest = Guest::in_group(engine, share, group);
        guest.context(0, 0);
        guest.commit(0, GRANULE);
        guest
    };
    let count = engine.devices()[0].attribute(MULTIPROCESSOR_COUNT);
    let all = count.map_or(0, |count| count.max(0) as usize);
    let granted = |percentage| {
        let granularity = engine.granularity(0);
        granularity.granted(all as u32, percentage) as usize
    };
    let mut first = come(Share::of(100.0), None);
    first.stream(40);
    assert_eq!(multiprocessors_of(&mut first, 40).len(), all);
    let mut owner = come(Share::reserving(50.0), None);
    let mut third = come(Share::of(25.0), None);
    let apart = |one: &[usize], other: &[usize]| {
        assert!(
            one.iter().all(|number| !other.contains(number)),
            "{one:?} {other:?}"
        );
    };
    let own = multiprocessors_of(&mut owner, 0);
    assert_eq!(own.len(), granted(50.0));
    let rest = multiprocessors_of(&mut first, 40);
    assert_eq!(rest.len(), all - own.len());
    assert_eq!(rest.len(), engine.unreserved(0) as usize);
    apart(&own, &rest);
    let part = multiprocessors_of(&mut third, 0);
    assert_eq!(part.len(), granted(25.0));
    apart(&own, &part);
    // A group's, of which a client has reserved something.
    assert!(set_group(engine, 3, 40.0, true));
    let mut member = come(Share::of(100.0), Some(3));
    let mut keeper = come(Share::reserving(20.0), Some(3));
    let parts = [&mut first, &mut owner, &mut member, &mut keeper];
    let parts = parts.map(|guest| multiprocessors_of(guest, 0));
    let counts = parts.each_ref().map(Vec::len);
    let kept = granted(20.0);
    let left = all - granted(50.0) - granted(40.0);
    assert_eq!(counts, [left, granted(50.0), granted(40.0) - kept, kept]);
    for (index, one) in parts.iter().enumerate() {
        for other in &parts[index + 1..] {
            apart(one, other);
        }
    }
    drop((member, keeper));
    assert_eq!(engine.set_group(3, None), Ok(()));
    assert_eq!(owner.client.set_share(Share::reserving(25.0)), Ok(()));
    let own = multiprocessors_of(&mut owner, 0);
    let rest = multiprocessors_of(&mut first, 40);
    assert_eq!(
        (own.len(), rest.len()),
        (granted(25.0), all - granted(25.0))
    );
    apart(&own, &rest);
    owner.end();
    assert_eq!(multiprocessors_of(&mut first, 40).len(), all);
}

/// No more is reserved than there is, and what is refused changes nothing.
pub fn shares_that_make_no_sense_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    if !can_change(&mut guest) {
        return;
    }
    let groups = set_group(engine, 9, 10.0, false);
    for percentage in [0.0, -1.0, 100.5, f32::NAN, f32::INFINITY] {
        let refused = guest.client.set_share(Share::of(percentage));
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE), "{percentage}");
        let group = GroupShare {
            device: None,
            percentage,
            reserved: false,
        };
        let refused = engine.set_group(9, Some(group));
        assert!(!groups || refused == Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(guest.client.set_share(Share::of(50.0)), Ok(()));
    if !can_reserve(engine) {
        return;
    }
    let full = Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
    assert_eq!(guest.client.set_share(Share::reserving(70.0)), Ok(()));
    let mut other = Guest::new(engine);
    assert_eq!(other.client.set_share(Share::reserving(40.0)), full);
    assert_eq!(other.client.set_share(Share::reserving(30.0)), Ok(()));
    assert_eq!(guest.client.set_share(Share::reserving(71.0)), full);
    if groups {
        let group = GroupShare {
            device: None,
            percentage: 5.0,
            reserved: true,
        };
        assert_eq!(engine.set_group(9, Some(group)), full);
        assert_eq!(other.client.set_share(Share::reserving(20.0)), Ok(()));
        assert_eq!(engine.set_group(9, Some(group)), Ok(()));
        assert_eq!(engine.set_group(9, None), Ok(()));
        assert_eq!(engine.set_group(9, None), Ok(()), "there is none already");
    }
    // Who goes takes its reservation along.
    guest.end();
    assert_eq!(other.client.set_share(Share::reserving(100.0)), Ok(()));
    // All the same, whoever has reserved nothing gets somewhere.
    let mut last = Guest::new(engine);
    let device = last.commit(0, GRANULE);
    let module = last.module(kernels::COUNT);
    last.launch(0, module, 4, 32, &params(&[device]));
    assert_eq!(last.wait(0), Ok(()));
}

/// An engine whose clients all have this share, and belong to this group.
#[derive(Debug)]
struct Under<'e> {
    engine: &'e dyn Engine,
    share: Share,
    group: Option<u32>,
}

impl Engine for Under<'_> {
    fn devices(&self) -> &[DeviceFacts] {
        self.engine.devices()
    }

    fn lost(&self) -> Option<CUresult> {
        self.engine.lost()
    }

    fn granularity(&self, device: usize) -> Granularity {
        self.engine.granularity(device)
    }

    fn unreserved(&self, device: usize) -> u32 {
        self.engine.unreserved(device)
    }

    fn attach(&self, attachment: Attachment) -> Result<Box<dyn Client>, CUresult> {
        self.engine.attach(Attachment {
            share: Share {
                priority: attachment.share.priority,
                ..self.share
            },
            group: self.group,
            ..attachment
        })
    }
}

/// Does something to an engine under every kind of share that it can give.
fn under_each(engine: &dyn Engine, case: impl Fn(&Under<'_>)) {
    let run = |share, group| {
        case(&Under {
            engine,
            share,
            group,
        });
    };
    run(Share::of(50.0), None);
    let groups = set_group(engine, 1, 50.0, false);
    if groups {
        run(Share::of(50.0), Some(1));
    }
    if can_reserve(engine) {
        run(Share::reserving(16.0), None);
        if groups && set_group(engine, 1, 50.0, true) {
            run(Share::reserving(12.0), Some(1));
        }
    }
    let _ = engine.set_group(1, None);
}

/// As [`under_each`], beside what somebody else has reserved, and is busy with.
fn beside_reserved(engine: &dyn Engine, case: impl Fn(&Under<'_>)) {
    if !can_reserve(engine) {
        return;
    }
    let mut owner = Guest::with_share(engine, Share::reserving(60.0));
    owner.context(0, 0);
    owner.stream(50);
    owner.launch_endless(50);
    case(&Under {
        engine,
        share: Share::of(100.0),
        group: None,
    });
}

fn waiting(under: &Under<'_>) {
    progress::a_kernel_waits_for_a_copy(under);
    progress::a_kernel_waits_for_another_stream(under);
    progress::a_block_waits_for_a_later_block(under);
}

fn endless(under: &Under<'_>) {
    progress::clients_share_what_endless_kernels_leave(under);
    progress::dropping_a_client_ends_its_kernels(under);
    progress::destroying_a_context_ends_its_kernels(under);
}

/// What waits for something goes on, however little of the device is its client's own.
pub fn what_waits_goes_on(engine: &dyn Engine) {
    under_each(engine, waiting);
}

/// What never ends keeps nobody else from going on, and ends with its client or context.
pub fn what_never_ends_keeps_nobody(engine: &dyn Engine) {
    under_each(engine, endless);
}

/// All that beside a part that somebody has reserved and uses for ever.
pub fn what_is_reserved_and_busy_keeps_nobody(engine: &dyn Engine) {
    beside_reserved(engine, waiting);
    beside_reserved(engine, endless);
}

/// Clients that come and go with shares and groups of all kinds, reserved ones too, leave nothing of them.
pub fn a_storm_of_shares_leaves_nothing(engine: &dyn Engine) {
    if !can_reserve(engine) {
        return;
    }
    progress::a_storm_of_clients_leaves_nothing(&Under {
        engine,
        share: Share::reserving(16.0),
        group: None,
    });
    let mut guest = Guest::new(engine);
    assert_eq!(guest.client.set_share(Share::reserving(100.0)), Ok(()));
}
