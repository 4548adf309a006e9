//! What PTX's memory model forbids is never seen: litmus tests, each some thousands of times.
//!
//! A test has a few roles, each a block or a warp of one block. In every round all roles begin together and do some tries, each
//! lane of theirs on words of its own, the odd roles from the last try to the first: so some try is done by several at the same time, however
//! far apart they begin. What they loaded is kept, and looked at when the kernel is over.
//!
//! Other tests have no tries that begin together: each role goes through its turns at its own pace, what it stores is the number of the turn, and
//! what it loads says in which turn the other was. So the turns of one are compared with all those of the other that they fell into, and caches
//! fight for two lines all the time: there processors that buffer stores are caught, if fences do nothing.

use std::fmt::Write;

use super::rig::{Guest, params};
use crate::Engine;
use crate::arena::GRANULE;

/// How often a test is done, by all lanes together.
const TRIES: u64 = 2048;

/// Where in the memory lie the words x and y of each try, what was loaded, and the count of who has come.
const Y: u64 = TRIES * 4;
const SEEN: u64 = 2 * Y;
const GATE: u64 = SEEN + 4 * TRIES * 8;
const BYTES: u64 = GATE + 4;

/// Who the roles are.
#[derive(Clone, Copy, Debug)]
enum Among {
    /// Blocks of one thread.
    Threads,
    /// Blocks of a warp.
    Blocks,
    /// Warps of one block.
    Warps,
}

impl Among {
    /// Lanes of each role.
    fn lanes(self) -> u64 {
        match self {
            Self::Threads => 1,
            Self::Blocks | Self::Warps => 32,
        }
    }

    /// Tries of each lane in a round.
    fn tries(self) -> u64 {
        match self {
            Self::Threads => 64,
            Self::Blocks | Self::Warps => 4,
        }
    }
}

/// Scopes, and between whom they order anything.
const SCOPES: [(&str, &[Among]); 3] = [
    ("cta", &[Among::Warps]),
    ("gpu", &[Among::Warps, Among::Blocks, Among::Threads]),
    ("sys", &[Among::Blocks, Among::Threads]),
];

/// What a role's lane has loaded in a round: as `%a` and `%b`, which begin as [`NOTHING`].
type Loaded = [u32; 2];

const NOTHING: u32 = 9;

/// Does what each role does, by blocks and by warps as the scope allows; no outcome may be `forbidden`. In the texts `%x` and `%y` are addresses,
/// and SCOPE is the scope.
fn never(engine: &dyn Engine, roles: &[&str], forbidden: impl Fn(&[Loaded]) -> bool) {
    for (scope, among) in SCOPES {
        let roles: Vec<String> = roles
            .iter()
            .map(|role| role.replace("SCOPE", scope))
            .collect();
        for &among in among {
            let mut guest = Guest::new(engine);
            let memory = guest.commit(0, BYTES.next_multiple_of(GRANULE));
            let module = guest.module(&kernel(&roles, among));
            let (count, lanes) = (roles.len() as u32, among.lanes() as u32);
            let (blocks, threads) = match among {
                Among::Threads | Among::Blocks => (count, lanes),
                Among::Warps => (1, count * lanes),
            };
            guest.launch(0, module, blocks, threads, &params(&[memory]));
            assert_eq!(guest.wait(0), Ok(()));
            let seen = guest.download(memory + SEEN, roles.len() as u64 * TRIES * 8);
            let word = |role: u64, try_of: u64, which: u64| {
                let at = ((role * TRIES + try_of) * 8 + which * 4) as usize;
                u32::from_le_bytes([seen[at], seen[at + 1], seen[at + 2], seen[at + 3]])
            };
            for try_of in 0..TRIES {
                let loaded: Vec<Loaded> = (0..roles.len() as u64)
                    .map(|role| [word(role, try_of, 0), word(role, try_of, 1)])
                    .collect();
                assert!(
                    !forbidden(&loaded),
                    "{roles:?} among {among:?}, try {try_of}: {loaded:?}"
                );
            }
        }
    }
}

/// The kernel of a test: parameter memory.
fn kernel(roles: &[String], among: Among) -> String {
    let role = match among {
        Among::Threads | Among::Blocks => "mov.u32 %role, %ctaid.x;",
        Among::Warps => "mov.u32 %role, %tid.x; shr.u32 %role, %role, 5;",
    };
    let (lanes, tries) = (among.lanes(), among.tries());
    let mut text = format!(
        ".version 7.8\n.target sm_75\n.address_size 64\n\
         .visible .entry litmus(.param .u64 memory) {{\n\
         .reg .pred %p; .reg .b32 %role, %lane, %round, %step, %want, %r, %a, %b; .reg .b64 %memory, %x, %y, %to, %gate, %at;\n\
         ld.param.u64 %memory, [memory]; add.s64 %gate, %memory, {GATE};\n\
         {role} mov.u32 %lane, %laneid; mov.u32 %round, 0; mov.u32 %want, 0;\n\
         ROUND: mov.u32 %step, 0; add.u32 %want, %want, {count};\n\
         setp.ne.u32 %p, %lane, 0; @%p bra MET;\n\
         fence.acq_rel.gpu; red.global.add.u32 [%gate], 1;\n\
         WAIT: ld.volatile.global.u32 %r, [%gate]; setp.lt.u32 %p, %r, %want; @%p bra WAIT;\n\
         fence.acq_rel.gpu;\n\
         MET: bar.warp.sync {mask:#x};\n\
         STEP: and.b32 %r, %role, 1; setp.ne.u32 %p, %r, 0; mov.u32 %r, %step; @%p sub.u32 %r, {last}, %step;\n\
         mad.lo.u32 %r, %round, {tries}, %r; mad.lo.u32 %r, %r, {lanes}, %lane; mul.wide.u32 %at, %r, 4;\n\
         add.s64 %x, %memory, %at; add.s64 %y, %x, {Y};\n\
         mad.lo.u32 %r, %role, {each}, %r; mul.wide.u32 %at, %r, 8; add.s64 %to, %memory, %at;\n\
         mov.u32 %a, {NOTHING}; mov.u32 %b, {NOTHING};\n",
        last = tries - 1,
        each = TRIES,
        count = roles.len(),
        mask = u32::MAX >> (32 - lanes),
    );
    for (number, role) in roles.iter().enumerate() {
        // What a write to a String gives is always Ok.
        let _ = writeln!(
            text,
            "setp.ne.u32 %p, %role, {number}; @%p bra NOT_{number}; {role}\nNOT_{number}:"
        );
    }
    let _ = writeln!(
        text,
        "st.global.v2.u32 [%to+{SEEN}], {{%a, %b}};\n\
         add.u32 %step, %step, 1; setp.lt.u32 %p, %step, {tries}; @%p bra STEP;\n\
         add.u32 %round, %round, 1; setp.lt.u32 %p, %round, {}; @%p bra ROUND;\nret; }}",
        TRIES / lanes / tries
    );
    text
}

/// Turns of each role where roles go at their own pace.
const TURNS: usize = 1 << 14;

/// Where in the memory lie the words x and y, each in a cache line of its own, the count of who has come, and what was loaded.
const FAR_Y: u64 = 256;
const FAR_GATE: u64 = 512;
const FAR_SEEN: u64 = 1024;

/// The kernel in which each role, a block of one thread, takes its turns: `%turn` is the number of a turn, from 1 on.
fn endless_kernel(roles: &[String]) -> String {
    let mut text = format!(
        ".version 7.8\n.target sm_75\n.address_size 64\n\
         .visible .entry turns(.param .u64 memory) {{\n\
         .reg .pred %p; .reg .b32 %role, %turn, %r, %a, %b; .reg .b64 %memory, %x, %y, %to, %gate;\n\
         ld.param.u64 %memory, [memory]; mov.u64 %x, %memory; add.s64 %y, %memory, {FAR_Y}; add.s64 %gate, %memory, {FAR_GATE};\n\
         mov.u32 %role, %ctaid.x; mul.wide.u32 %to, %role, {each}; add.s64 %to, %to, %memory; add.s64 %to, %to, {FAR_SEEN};\n\
         fence.acq_rel.gpu; red.global.add.u32 [%gate], 1;\n\
         WAIT: ld.volatile.global.u32 %r, [%gate]; setp.lt.u32 %p, %r, {count}; @%p bra WAIT;\n\
         fence.acq_rel.gpu; mov.u32 %turn, 0; mov.u32 %a, 0; mov.u32 %b, 0;\n",
        each = TURNS * 8,
        count = roles.len(),
    );
    for (number, role) in roles.iter().enumerate() {
        // What a write to a String gives is always Ok.
        let _ = writeln!(
            text,
            "setp.ne.u32 %p, %role, {number}; @%p bra NOT_{number};\n\
             TURN_{number}: add.u32 %turn, %turn, 1; {role} st.global.v2.u32 [%to], {{%a, %b}}; add.s64 %to, %to, 8;\n\
             setp.lt.u32 %p, %turn, {TURNS}; @%p bra TURN_{number}; ret;\nNOT_{number}:"
        );
    }
    text + "ret; }\n"
}

/// Lets each role take its turns, at the scopes that order blocks, and looks at what each loaded, turn by turn: it is wrong if `wrong` says
/// of which turn.
fn at_no_turn(
    engine: &dyn Engine,
    roles: &[&str],
    wrong: impl Fn(&[Vec<Loaded>]) -> Option<usize>,
) {
    for scope in ["gpu", "sys"] {
        let roles: Vec<String> = roles
            .iter()
            .map(|role| role.replace("SCOPE", scope))
            .collect();
        let mut guest = Guest::new(engine);
        let seen = (roles.len() * TURNS * 8) as u64;
        let memory = guest.commit(0, (FAR_SEEN + seen).next_multiple_of(GRANULE));
        let module = guest.module(&endless_kernel(&roles));
        guest.launch(0, module, roles.len() as u32, 1, &params(&[memory]));
        assert_eq!(guest.wait(0), Ok(()));
        let seen = guest.download(memory + FAR_SEEN, seen);
        let (words, _) = seen.as_chunks::<4>();
        let loaded: Vec<Loaded> = words
            .chunks(2)
            .map(|pair| [u32::from_le_bytes(pair[0]), u32::from_le_bytes(pair[1])])
            .collect();
        let by_role: Vec<Vec<Loaded>> = loaded.chunks(TURNS).map(<[Loaded]>::to_vec).collect();
        if let Some(turn) = wrong(&by_role) {
            let about: Vec<&[Loaded]> = by_role
                .iter()
                .map(|turns| &turns[turn.saturating_sub(1)..(turn + 1).min(TURNS)])
                .collect();
            panic!("{roles:?}, turn {turn}: {about:?}");
        }
    }
}

/// What a role loaded first in a turn, whose numbers begin with 1; 0 before its first turn.
fn first_of(turns: &[Loaded], turn: u32) -> Option<u32> {
    match turn {
        0 => Some(0),
        turn => turns.get(turn as usize - 1).map(|loaded| loaded[0]),
    }
}

/// A turn of the first role for which `is_wrong` holds, of its number and what it loaded first.
fn turn_of(turns: &[Loaded], is_wrong: impl Fn(u32, u32) -> bool) -> Option<usize> {
    let mut numbered = (1..).zip(turns);
    let found = numbered.find(|(turn, [seen, _])| is_wrong(*turn, *seen));
    found.map(|(turn, _)| turn as usize)
}

/// Two store their turns and load the other's: a turn whose store the other did not see, though that had not stored what this one missed.
fn both_missed(loaded: &[Vec<Loaded>]) -> Option<usize> {
    turn_of(&loaded[0], |turn, seen| {
        first_of(&loaded[1], seen + 1).is_some_and(|back| back < turn)
    })
}

/// Two load the other's turn and store theirs: a turn that the other had seen before it stored what was seen here.
fn both_saw(loaded: &[Vec<Loaded>]) -> Option<usize> {
    turn_of(&loaded[0], |turn, seen| {
        first_of(&loaded[1], seen).is_some_and(|back| back >= turn)
    })
}

/// The second role loads what the first stores second, then what that stores first: a turn in which that is older.
fn went_back(loaded: &[Vec<Loaded>]) -> Option<usize> {
    loaded[1].iter().position(|[flag, data]| data < flag)
}

/// The third role loads x and y, the fourth y and x: a turn of that in which it has a newer y than a turn of the third that has a newer x.
fn readers_disagree(loaded: &[Vec<Loaded>]) -> Option<usize> {
    let (one, other) = (&loaded[2], &loaded[3]);
    other.iter().position(|[y, x]| {
        // The last turn of the third with an older y.
        let before = one.partition_point(|[_, seen_y]| seen_y < y);
        before > 0 && one[before - 1][0] > *x
    })
}

/// Two add 1 to a word: the first value that nobody got, or that came twice.
fn sum_is_lost(loaded: &[Vec<Loaded>]) -> Option<usize> {
    let mut values: Vec<u32> = loaded.iter().flatten().map(|loaded| loaded[0]).collect();
    values.sort_unstable();
    let mut wanted = values.iter().zip(0..);
    wanted
        .position(|(value, wanted)| *value != wanted)
        .map(|at| at / loaded.len())
}

/// Of two that write and then look at what the other writes, one sees it, at whatever moment each does.
pub fn buffered_stores_are_seen_at_every_turn(engine: &dyn Engine) {
    for [first, second] in [
        [
            "st.relaxed.SCOPE.global.u32 [%x], %turn; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%y];",
            "st.relaxed.SCOPE.global.u32 [%y], %turn; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%x];",
        ],
        [
            "st.volatile.global.u32 [%x], %turn; membar.gl; ld.volatile.global.u32 %a, [%y];",
            "st.volatile.global.u32 [%y], %turn; membar.sys; ld.volatile.global.u32 %a, [%x];",
        ],
        [
            "atom.relaxed.SCOPE.global.exch.b32 %r, [%x], %turn; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%y];",
            "st.relaxed.SCOPE.global.u32 [%y], %turn; fence.sc.SCOPE; atom.relaxed.SCOPE.global.or.b32 %a, [%x], 0;",
        ],
    ] {
        at_no_turn(engine, &[first, second], both_missed);
    }
}

/// Whoever sees a turn's second store sees its first one, or a later one.
pub fn messages_are_whole_at_every_turn(engine: &dyn Engine) {
    for [write, read] in [
        [
            "st.relaxed.SCOPE.global.u32 [%x], %turn; st.release.SCOPE.global.u32 [%y], %turn;",
            "ld.acquire.SCOPE.global.u32 %a, [%y]; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        [
            "st.volatile.global.u32 [%x], %turn; fence.acq_rel.SCOPE; st.relaxed.SCOPE.global.u32 [%y], %turn;",
            "ld.relaxed.SCOPE.global.u32 %a, [%y]; fence.acq_rel.SCOPE; ld.volatile.global.u32 %b, [%x];",
        ],
        [
            "st.relaxed.SCOPE.global.u32 [%x], %turn; red.release.SCOPE.global.add.u32 [%y], 1;",
            "atom.acquire.SCOPE.global.or.b32 %a, [%y], 0; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        // One word: it never goes back.
        [
            "st.relaxed.SCOPE.global.u32 [%x], %turn;",
            "ld.relaxed.SCOPE.global.u32 %a, [%x]; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
    ] {
        at_no_turn(engine, &[write, read], went_back);
    }
}

/// Nobody loads what is only stored because of it, or behind it in the order that both keep.
pub fn loads_are_before_what_follows_them_at_every_turn(engine: &dyn Engine) {
    at_no_turn(
        engine,
        &[
            "ld.acquire.SCOPE.global.u32 %a, [%x]; st.release.SCOPE.global.u32 [%y], %turn;",
            "ld.acquire.SCOPE.global.u32 %a, [%y]; st.release.SCOPE.global.u32 [%x], %turn;",
        ],
        both_saw,
    );
}

/// Two readers agree about the order of two writers' stores, at every turn.
pub fn readers_agree_at_every_turn(engine: &dyn Engine) {
    at_no_turn(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], %turn;",
            "st.relaxed.SCOPE.global.u32 [%y], %turn;",
            "ld.relaxed.SCOPE.global.u32 %a, [%x]; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %b, [%y];",
            "ld.relaxed.SCOPE.global.u32 %a, [%y]; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        readers_disagree,
    );
}

/// Two that add to one word lose nothing, however long they do, and no value comes twice.
pub fn sums_of_many_turns_lose_nothing(engine: &dyn Engine) {
    at_no_turn(
        engine,
        &[
            "atom.relaxed.SCOPE.global.add.u32 %a, [%x], 1; red.relaxed.SCOPE.global.add.u32 [%y], 1;",
            "atom.relaxed.SCOPE.global.add.u32 %a, [%x], 1; atom.relaxed.SCOPE.global.add.u32 %b, [%y], 1;",
        ],
        sum_is_lost,
    );
}

/// Whoever has seen the flag sees what was written before it.
pub fn messages_arrive_whole(engine: &dyn Engine) {
    let missed = |loaded: &[Loaded]| loaded[1] == [1, 0];
    for [write, read] in [
        [
            "st.relaxed.SCOPE.global.u32 [%x], 1; st.release.SCOPE.global.u32 [%y], 1;",
            "ld.acquire.SCOPE.global.u32 %a, [%y]; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        [
            "st.global.u32 [%x], 1; fence.acq_rel.SCOPE; st.relaxed.SCOPE.global.u32 [%y], 1;",
            "ld.relaxed.SCOPE.global.u32 %a, [%y]; fence.acq_rel.SCOPE; ld.volatile.global.u32 %b, [%x];",
        ],
        [
            "st.global.u32 [%x], 1; fence.sc.SCOPE; st.volatile.global.u32 [%y], 1;",
            "ld.volatile.global.u32 %a, [%y]; fence.sc.SCOPE; ld.global.u32 %b, [%x];",
        ],
        [
            "st.global.u32 [%x], 1; atom.release.SCOPE.global.exch.b32 %r, [%y], 1;",
            "atom.acquire.SCOPE.global.or.b32 %a, [%y], 0; ld.global.u32 %b, [%x];",
        ],
        [
            "st.global.u32 [%x], 1; red.release.SCOPE.global.add.u32 [%y], 1;",
            "atom.acq_rel.SCOPE.global.cas.b32 %a, [%y], 5, 6; ld.global.u32 %b, [%x];",
        ],
    ] {
        never(engine, &[write, read], missed);
    }
}

/// A message that is passed on brings along what the one who passes it on had seen.
pub fn messages_are_passed_on_whole(engine: &dyn Engine) {
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1;",
            "ld.relaxed.SCOPE.global.u32 %a, [%x]; fence.acq_rel.SCOPE; st.relaxed.SCOPE.global.u32 [%y], 1;",
            "ld.acquire.SCOPE.global.u32 %a, [%y]; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        |loaded| loaded[1][0] == 1 && loaded[2] == [1, 0],
    );
}

/// Of two that write and then look at what the other writes, one sees it.
pub fn buffered_stores_are_seen_behind_fences(engine: &dyn Engine) {
    for [first, second] in [
        [
            "st.relaxed.SCOPE.global.u32 [%x], 1; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%y];",
            "st.relaxed.SCOPE.global.u32 [%y], 1; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%x];",
        ],
        [
            "st.volatile.global.u32 [%x], 1; membar.sys; ld.volatile.global.u32 %a, [%y];",
            "st.volatile.global.u32 [%y], 1; membar.gl; ld.volatile.global.u32 %a, [%x];",
        ],
    ] {
        never(engine, &[first, second], |loaded| {
            loaded[0][0] == 0 && loaded[1][0] == 0
        });
    }
}

/// Nobody loads what is only stored because of it.
pub fn loads_do_not_see_what_follows_them(engine: &dyn Engine) {
    for [first, second] in [
        [
            "ld.acquire.SCOPE.global.u32 %a, [%x]; st.release.SCOPE.global.u32 [%y], 1;",
            "ld.acquire.SCOPE.global.u32 %a, [%y]; st.release.SCOPE.global.u32 [%x], 1;",
        ],
        // Out of thin air, without any order.
        [
            "ld.relaxed.SCOPE.global.u32 %a, [%x]; st.relaxed.SCOPE.global.u32 [%y], %a;",
            "ld.relaxed.SCOPE.global.u32 %a, [%y]; st.relaxed.SCOPE.global.u32 [%x], %a;",
        ],
    ] {
        never(engine, &[first, second], |loaded| {
            loaded[0][0] == 1 && loaded[1][0] == 1
        });
    }
}

/// Two readers agree about which of two writers was first.
pub fn readers_agree_about_two_writers(engine: &dyn Engine) {
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1;",
            "st.relaxed.SCOPE.global.u32 [%y], 1;",
            "ld.relaxed.SCOPE.global.u32 %a, [%x]; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %b, [%y];",
            "ld.relaxed.SCOPE.global.u32 %a, [%y]; fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %b, [%x];",
        ],
        |loaded| loaded[2] == [1, 0] && loaded[3] == [1, 0],
    );
}

/// The values of one word come in one order, which everybody sees.
pub fn one_word_has_one_order(engine: &dyn Engine) {
    let read = "ld.relaxed.SCOPE.global.u32 %a, [%x]; ld.relaxed.SCOPE.global.u32 %b, [%x];";
    // One writer: never back to what was before.
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; st.relaxed.SCOPE.global.u32 [%x], 2;",
            read,
        ],
        |loaded| loaded[1][0] > loaded[1][1],
    );
    // Two writers, two readers.
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1;",
            "st.relaxed.SCOPE.global.u32 [%x], 2;",
            read,
            read,
        ],
        |loaded| {
            let (one, other) = (loaded[2], loaded[3]);
            matches!((one, other), ([1, 2], [2, 1]) | ([2, 1], [1, 2]))
        },
    );
    // What one has written itself is not followed by what was there before.
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; ld.relaxed.SCOPE.global.u32 %a, [%x];",
            "st.relaxed.SCOPE.global.u32 [%x], 2; ld.relaxed.SCOPE.global.u32 %a, [%x];",
        ],
        |loaded| loaded[0][0] == 0 || loaded[1][0] == 0,
    );
}

/// Of two that write two words in opposite orders behind fences, one is last at both or at none.
pub fn stores_behind_fences_have_one_order(engine: &dyn Engine) {
    never(
        engine,
        &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; fence.sc.SCOPE; st.relaxed.SCOPE.global.u32 [%y], 2; \
             fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%x]; ld.relaxed.SCOPE.global.u32 %b, [%y];",
            "st.relaxed.SCOPE.global.u32 [%y], 1; fence.sc.SCOPE; st.relaxed.SCOPE.global.u32 [%x], 2; \
             fence.sc.SCOPE; ld.relaxed.SCOPE.global.u32 %a, [%x]; ld.relaxed.SCOPE.global.u32 %b, [%y];",
        ],
        // Both words are what their first writer wrote, for both roles.
        |loaded| loaded[0] == [1, 1] && loaded[1] == [1, 1],
    );
}

/// Sums by atomics lose nothing, and each value that they give comes once.
pub fn every_atomic_has_its_turn(engine: &dyn Engine) {
    never(
        engine,
        &[
            "atom.relaxed.SCOPE.global.add.u32 %a, [%x], 1; atom.relaxed.SCOPE.global.add.u32 %b, [%x], 1;",
            "atom.relaxed.SCOPE.global.inc.u32 %a, [%x], 100; atom.relaxed.SCOPE.global.add.u32 %b, [%x], 1;",
            "atom.relaxed.SCOPE.global.add.u32 %a, [%x], 1; atom.relaxed.SCOPE.global.add.u32 %b, [%x], 1;",
        ],
        |loaded| {
            let mut values: Vec<u32> = loaded.iter().flatten().copied().collect();
            values.sort_unstable();
            values != [0, 1, 2, 3, 4, 5]
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What roles loaded first, turn by turn.
    fn firsts(roles: &[&[u32]]) -> Vec<Vec<Loaded>> {
        let role = |turns: &&[u32]| turns.iter().map(|&first| [first, 0]).collect();
        roles.iter().map(role).collect()
    }

    #[test]
    fn what_the_model_forbids_is_found() {
        // The first had not seen turn 2 of the other when it stored 2, and that not turn 2 of the first.
        assert_eq!(both_missed(&firsts(&[&[0, 1, 3], &[1, 1, 2]])), Some(2));
        assert_eq!(both_missed(&firsts(&[&[0, 1, 3], &[1, 2, 2]])), None);
        assert_eq!(both_missed(&firsts(&[&[0, 0, 0], &[3, 3, 3]])), None);
        // Each saw what the other stored because of it.
        assert_eq!(both_saw(&firsts(&[&[0, 1, 2], &[0, 3, 3]])), Some(3));
        assert_eq!(both_saw(&firsts(&[&[0, 1, 2], &[0, 1, 2]])), None);
        let pairs = |role: &[Loaded]| vec![Vec::new(), role.to_vec()];
        assert_eq!(went_back(&pairs(&[[0, 0], [3, 2]])), Some(1));
        assert_eq!(went_back(&pairs(&[[0, 1], [3, 3]])), None);
        let readers = |one: &[Loaded], other: &[Loaded]| {
            vec![Vec::new(), Vec::new(), one.to_vec(), other.to_vec()]
        };
        assert_eq!(
            readers_disagree(&readers(&[[1, 0], [2, 4]], &[[0, 0], [3, 0]])),
            Some(1)
        );
        assert_eq!(
            readers_disagree(&readers(&[[1, 0], [2, 4]], &[[0, 0], [3, 1]])),
            None
        );
        assert_eq!(sum_is_lost(&firsts(&[&[0, 2, 3], &[1, 3, 4]])), Some(2));
        assert_eq!(sum_is_lost(&firsts(&[&[0, 2, 3], &[1, 4, 5]])), None);
    }
}
