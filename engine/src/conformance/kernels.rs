//! The suite's kernels, in PTX written by hand.
//!
//! Used by the suite's cases. Must not know any engine's way of running them.

/// Puts the head of a PTX text before a kernel.
macro_rules! ptx {
    ($($line:literal)*) => {
        concat!(".version 7.8\n.target sm_75\n.address_size 64\n", $($line, "\n"),*)
    };
}

/// `y[i] = a * x[i] + y[i]`: parameters n, a, x, y.
pub const SAXPY: &str = ptx! {
    ".visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y) {"
    "  .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<5>; .reg .b64 %d<8>;"
    "  ld.param.u32 %r1, [n];"
    "  ld.param.f32 %f1, [a];"
    "  ld.param.u64 %d1, [x];"
    "  ld.param.u64 %d2, [y];"
    "  mov.u32 %r2, %ctaid.x;"
    "  mov.u32 %r3, %ntid.x;"
    "  mov.u32 %r4, %tid.x;"
    "  mad.lo.s32 %r5, %r2, %r3, %r4;"
    "  setp.ge.u32 %p, %r5, %r1;"
    "  @%p bra DONE;"
    "  cvta.to.global.u64 %d3, %d1;"
    "  cvta.to.global.u64 %d4, %d2;"
    "  mul.wide.u32 %d5, %r5, 4;"
    "  add.s64 %d6, %d3, %d5;"
    "  add.s64 %d7, %d4, %d5;"
    "  ld.global.f32 %f2, [%d6];"
    "  ld.global.f32 %f3, [%d7];"
    "  fma.rn.f32 %f4, %f1, %f2, %f3;"
    "  st.global.f32 [%d7], %f4;"
    "DONE:"
    "  ret;"
    "}"
};

/// Adds 1 to the counter of each block and thread: parameter counters, one word for each thread of
/// the grid, which is three-dimensional.
pub const COUNT: &str = ptx! {
    ".visible .entry count(.param .u64 counters) {"
    "  .reg .b32 %r<20>; .reg .b64 %d<4>;"
    "  ld.param.u64 %d1, [counters];"
    "  mov.u32 %r1, %ctaid.x;"
    "  mov.u32 %r2, %ctaid.y;"
    "  mov.u32 %r3, %ctaid.z;"
    "  mov.u32 %r4, %nctaid.x;"
    "  mov.u32 %r5, %nctaid.y;"
    "  mad.lo.s32 %r6, %r3, %r5, %r2;"
    "  mad.lo.s32 %r6, %r6, %r4, %r1;"
    "  mov.u32 %r7, %ntid.x;"
    "  mov.u32 %r8, %ntid.y;"
    "  mov.u32 %r9, %ntid.z;"
    "  mul.lo.s32 %r10, %r7, %r8;"
    "  mul.lo.s32 %r10, %r10, %r9;"
    "  mul.lo.s32 %r6, %r6, %r10;"
    "  mov.u32 %r11, %tid.x;"
    "  mov.u32 %r12, %tid.y;"
    "  mov.u32 %r13, %tid.z;"
    "  mad.lo.s32 %r14, %r13, %r8, %r12;"
    "  mad.lo.s32 %r14, %r14, %r7, %r11;"
    "  add.s32 %r6, %r6, %r14;"
    "  mul.wide.u32 %d2, %r6, 4;"
    "  add.s64 %d3, %d1, %d2;"
    "  red.global.add.u32 [%d3], 1;"
    "  ret;"
    "}"
};

/// Waits until the word at an address is at least a value, then writes a value to another: parameters
/// flag, least, then, value.
pub const RELAY: &str = ptx! {
    ".visible .entry relay(.param .u64 flag, .param .u64 least, .param .u64 then, .param .u64 value) {"
    "  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<5>;"
    "  ld.param.u64 %d1, [flag];"
    "  ld.param.u64 %d2, [least];"
    "  ld.param.u64 %d3, [then];"
    "  ld.param.u64 %d4, [value];"
    "  cvt.u32.u64 %r1, %d2;"
    "  cvt.u32.u64 %r2, %d4;"
    "AGAIN:"
    "  ld.volatile.global.u32 %r3, [%d1];"
    "  setp.lt.u32 %p, %r3, %r1;"
    "  @%p bra AGAIN;"
    "  st.volatile.global.u32 [%d3], %r2;"
    "  ret;"
    "}"
};

/// Each block waits until all blocks after it have counted, then counts too: parameter counter. Ends
/// only if blocks proceed beside each other.
pub const COUNT_DOWN: &str = ptx! {
    ".visible .entry count_down(.param .u64 counter) {"
    "  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<2>;"
    "  ld.param.u64 %d1, [counter];"
    "  mov.u32 %r1, %ctaid.x;"
    "  mov.u32 %r2, %nctaid.x;"
    "  sub.s32 %r3, %r2, %r1;"
    "  sub.s32 %r3, %r3, 1;"
    "AGAIN:"
    "  ld.volatile.global.u32 %r4, [%d1];"
    "  setp.lt.u32 %p, %r4, %r3;"
    "  @%p bra AGAIN;"
    "  atom.global.add.u32 %r5, [%d1], 1;"
    "  ret;"
    "}"
};

/// All blocks of a cooperative grid arrive and wait for each other, so many times: parameters counter,
/// rounds.
pub const MEET: &str = ptx! {
    ".visible .entry meet(.param .u64 counter, .param .u64 rounds) {"
    "  .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<3>;"
    "  ld.param.u64 %d1, [counter];"
    "  ld.param.u64 %d2, [rounds];"
    "  cvt.u32.u64 %r1, %d2;"
    "  mov.u32 %r2, %nctaid.x;"
    "  mov.u32 %r3, 0;"
    "ROUND:"
    "  atom.global.add.u32 %r4, [%d1], 1;"
    "  add.s32 %r3, %r3, %r2;"
    "WAIT:"
    "  ld.volatile.global.u32 %r5, [%d1];"
    "  setp.lt.u32 %p, %r5, %r3;"
    "  @%p bra WAIT;"
    "  sub.s32 %r1, %r1, 1;"
    "  setp.ne.u32 %p, %r1, 0;"
    "  @%p bra ROUND;"
    "  ret;"
    "}"
};

/// Adds 1 to a word again and again, and never ends: parameter counter.
pub const BEAT: &str = ptx! {
    ".visible .entry beat(.param .u64 counter) {"
    "  .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %d<2>;"
    "  ld.param.u64 %d1, [counter];"
    "BEAT:"
    "  mov.u32 %r1, 0;"
    "AGAIN:"
    "  add.s32 %r1, %r1, 1;"
    "  setp.lt.u32 %p, %r1, 100;"
    "  @%p bra AGAIN;"
    "  red.global.add.u32 [%d1], 1;"
    "  bra BEAT;"
    "}"
};

/// Never ends.
pub const ENDLESS: &str = ptx! {
    ".visible .entry endless() {"
    "  .reg .b32 %r<2>;"
    "  mov.u32 %r1, 0;"
    "AGAIN:"
    "  add.s32 %r1, %r1, 1;"
    "  bra AGAIN;"
    "}"
};

/// Sets the word of each multiprocessor that a block runs on: parameter words, by their numbers.
pub const WHERE: &str = ptx! {
    ".visible .entry where(.param .u64 words) {"
    "  .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %d<6>;"
    "  ld.param.u64 %d1, [words];"
    "  mov.u32 %r1, %smid;"
    "  mul.wide.u32 %d2, %r1, 4;"
    "  add.s64 %d1, %d1, %d2;"
    "  mov.u32 %r2, 1;"
    "  st.global.u32 [%d1], %r2;"
    "  mov.u64 %d3, %globaltimer;"
    "AGAIN:"
    "  mov.u64 %d4, %globaltimer;"
    "  sub.s64 %d5, %d4, %d3;"
    "  setp.lt.u64 %p, %d5, 10000;"
    "  @%p bra AGAIN;"
    "  ret;"
    "}"
};

/// Writes a word to an address: parameters to, value.
pub const POKE: &str = ptx! {
    ".visible .entry poke(.param .u64 to, .param .u64 value) {"
    "  .reg .b32 %r<2>; .reg .b64 %d<3>;"
    "  ld.param.u64 %d1, [to];"
    "  ld.param.u64 %d2, [value];"
    "  cvt.u32.u64 %r1, %d2;"
    "  st.global.u32 [%d1], %r1;"
    "  ret;"
    "}"
};

/// Reads a word through a generic address and writes it to another: parameters from, to.
pub const PEEK: &str = ptx! {
    ".visible .entry peek(.param .u64 from, .param .u64 to) {"
    "  .reg .b32 %r<2>; .reg .b64 %d<3>;"
    "  ld.param.u64 %d1, [from];"
    "  ld.param.u64 %d2, [to];"
    "  ld.u32 %r1, [%d1];"
    "  st.u32 [%d2], %r1;"
    "  ret;"
    "}"
};

/// Stops on purpose.
pub const TRAP: &str = ptx! {
    ".visible .entry stop() {"
    "  trap;"
    "  ret;"
    "}"
};

/// Writes its dynamic shared memory from the first to the last word and sums it: parameters to, words.
pub const SHARED: &str = ptx! {
    ".extern .shared .align 16 .b8 room[];"
    ".visible .entry shared(.param .u64 to, .param .u64 words) {"
    "  .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<3>;"
    "  ld.param.u64 %d1, [to];"
    "  ld.param.u64 %d2, [words];"
    "  cvt.u32.u64 %r1, %d2;"
    "  mov.u32 %r2, room;"
    "  mov.u32 %r3, 0;"
    "  mov.u32 %r5, 0;"
    "STORE:"
    "  add.s32 %r3, %r3, 1;"
    "  st.shared.u32 [%r2], %r3;"
    "  ld.shared.u32 %r4, [%r2];"
    "  add.s32 %r5, %r5, %r4;"
    "  add.s32 %r2, %r2, 4;"
    "  setp.lt.u32 %p, %r3, %r1;"
    "  @%p bra STORE;"
    "  st.global.u32 [%d1], %r5;"
    "  ret;"
    "}"
};

/// Variables with first values, a pointer to one of them, and a kernel that copies words from that
/// pointer's target and from a constant: parameter to.
pub const VARIABLES: &str = ptx! {
    ".visible .global .align 4 .u32 table[4] = {11, 22, 33};"
    ".visible .global .align 8 .u64 pointer = table;"
    ".visible .const .align 4 .u32 seven = 7;"
    ".visible .global .align 4 .b8 room[4096];"
    ".visible .entry variables(.param .u64 to) {"
    "  .reg .b32 %r<3>; .reg .b64 %d<4>;"
    "  ld.param.u64 %d1, [to];"
    "  ld.global.u64 %d2, [pointer];"
    "  ld.global.u32 %r1, [%d2+4];"
    "  st.global.u32 [%d1], %r1;"
    "  ld.const.u32 %r2, [seven];"
    "  st.global.u32 [%d1+4], %r2;"
    "  ld.global.u32 %r1, [table+8];"
    "  add.u32 %r1, %r1, 1;"
    "  st.global.u32 [table+8], %r1;"
    "  st.global.u32 [%d1+8], %r1;"
    "  ret;"
    "}"
};

/// A managed variable with a first value, one without, both aligned to more than memory is, and a
/// kernel that adds the first to the second.
pub const MANAGED: &str = ptx! {
    ".visible .global .attribute(.managed) .align 4096 .u32 counter = 3;"
    ".visible .global .attribute(.managed) .align 1024 .b8 room[2048];"
    ".visible .global .align 4096 .u32 aligned = 5;"
    ".visible .entry add() {"
    "  .reg .b32 %r<3>;"
    "  ld.global.u32 %r1, [counter];"
    "  ld.global.u32 %r2, [room+1024];"
    "  add.u32 %r1, %r1, %r2;"
    "  st.global.u32 [room+1024], %r1;"
    "  ret;"
    "}"
};

/// Each thread prints `number 7`.
pub const PRINT: &str = ptx! {
    ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);"
    ".global .align 1 .b8 text[11] = {110, 117, 109, 98, 101, 114, 32, 37, 100, 10, 0};"
    ".visible .entry print() {"
    "  .local .align 8 .b8 frame[8];"
    "  .reg .b32 %r<3>;"
    "  .reg .b64 %rd<5>;"
    "  mov.u64 %rd1, frame;"
    "  mov.u32 %r1, 7;"
    "  st.local.u32 [%rd1], %r1;"
    "  cvta.local.u64 %rd2, %rd1;"
    "  mov.u64 %rd3, text;"
    "  cvta.global.u64 %rd4, %rd3;"
    "  { .param .b64 a; .param .b64 b; .param .b32 c;"
    "    st.param.b64 [a], %rd4;"
    "    st.param.b64 [b], %rd2;"
    "    call.uni (c), vprintf, (a, b);"
    "    ld.param.b32 %r2, [c]; }"
    "  ret;"
    "}"
};

/// Variables without a first value, of [`LARGE_BYTES`] and of an odd size.
pub const LARGE: &str = ptx! {
    ".visible .global .align 4 .b8 large[16777219];"
    ".visible .global .align 1 .b8 odd[70001];"
    ".visible .entry nothing() {"
    "  ret;"
    "}"
};

/// Bytes of the first variable of [`LARGE`].
pub const LARGE_BYTES: u64 = 16_777_219;

/// PTX that does not parse, on its line 6.
pub const BROKEN: &str = ptx! {
    ".visible .entry broken() {"
    "  ret;"
    "  add.s32 %r1, %r1 1;"
    "}"
};

/// PTX with an instruction that does not exist, on its line 5.
pub const UNKNOWN: &str = ptx! {
    ".visible .entry unknown() {"
    "  frobnicate.u32;"
    "  ret;"
    "}"
};

/// Reads a one-dimensional texture of integers and writes a surface of them: lane i writes texel i + 4
/// to element i.
pub const TEXTURE: &str = ptx! {
    ".visible .entry texture(.param .u64 texture, .param .u64 surface) {"
    "  .reg .b32 %r<8>; .reg .f32 %f<3>; .reg .b64 %d<3>;"
    "  ld.param.u64 %d1, [texture];"
    "  ld.param.u64 %d2, [surface];"
    "  mov.u32 %r1, %tid.x;"
    "  cvt.rn.f32.u32 %f1, %r1;"
    "  add.f32 %f2, %f1, 0f40900000;"
    "  tex.1d.v4.u32.f32 {%r2, %r3, %r4, %r5}, [%d1, {%f2}];"
    "  shl.b32 %r6, %r1, 2;"
    "  sust.b.1d.b32.trap [%d2, {%r6}], {%r2};"
    "  ret;"
    "}"
};

/// Calls a function of [`CALLEE`] with its variable: parameter out, one word.
pub const CALLER: &str = ptx! {
    ".extern .global .align 4 .u32 amount;"
    ".extern .func (.param .b32 result) thrice (.param .b32 value);"
    ".visible .entry call(.param .u64 out) {"
    "  .reg .b32 %r<3>; .reg .b64 %d<2>;"
    "  ld.param.u64 %d1, [out];"
    "  ld.global.u32 %r1, [amount];"
    "  {"
    "    .param .b32 in;"
    "    .param .b32 back;"
    "    st.param.b32 [in], %r1;"
    "    call.uni (back), thrice, (in);"
    "    ld.param.b32 %r2, [back];"
    "  }"
    "  st.global.u32 [%d1], %r2;"
    "  ret;"
    "}"
};

/// See [`CALLER`].
pub const CALLEE: &str = ptx! {
    ".visible .global .align 4 .u32 amount = 14;"
    ".visible .func (.param .b32 result) thrice (.param .b32 value) {"
    "  .reg .b32 %r<3>;"
    "  ld.param.b32 %r1, [value];"
    "  mul.lo.s32 %r2, %r1, 3;"
    "  st.param.b32 [result], %r2;"
    "  ret;"
    "}"
};
