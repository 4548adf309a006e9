//! What PTX's memory model forbids is never seen: litmus tests, each some thousands of times.
//!
//! A test has a few roles, each a block or a warp of one block. In every round all roles begin together and do some tries, each
//! lane of theirs on words of its own, the odd roles from the last try to the first: so some try is done by several at the same time, however
//! far apart they begin. What they loaded is kept, and looked at when the kernel is over. Roles of a single lane have little between a store and
//! the next load: there processors that buffer stores are caught, if fences do nothing.

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
