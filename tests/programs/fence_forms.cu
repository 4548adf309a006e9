// needs: sm_90
// nvcc: -gencode arch=compute_90,code=compute_90
// Every form of fences, of loads and stores with an order and a scope, of atomics with them, and hints for caches: what they
// move is what was there; a message by each pair of them.
#include "check.h"

__global__ void fences(unsigned *flag, unsigned *data, unsigned *wrong) {
#define ROUND(n, after_store, before_load)                                                                                       \
    if (blockIdx.x == 0) {                                                                                                       \
        *(volatile unsigned *)data = n;                                                                                          \
        asm volatile(after_store ::: "memory");                                                                                  \
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(2 * n) : "memory");                                  \
        unsigned seen;                                                                                                           \
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");                              \
        while (seen != 2 * n + 1);                                                                                               \
    } else {                                                                                                                     \
        unsigned seen;                                                                                                           \
        do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");                              \
        while (seen != 2 * n);                                                                                                   \
        asm volatile(before_load ::: "memory");                                                                                  \
        if (*(volatile unsigned *)data != n) atomicAdd(wrong, 1);                                                                \
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(2 * n + 1) : "memory");                              \
    }
    ROUND(1, "fence.acq_rel.gpu;", "fence.acq_rel.gpu;")
    ROUND(2, "fence.sc.gpu;", "fence.sc.gpu;")
    ROUND(3, "membar.gl;", "membar.gl;")
    ROUND(4, "membar.sys;", "fence.acq_rel.sys;")
    ROUND(5, "fence.sc.sys;", "membar.gl;")
    ROUND(6, "fence.acq_rel.gpu; fence.acq_rel.cta; membar.cta; fence.sc.cta;", "fence.acq_rel.cluster; fence.sc.cluster; fence.acq_rel.gpu;")
    ROUND(7, "fence.proxy.alias; fence.acq_rel.gpu;", "fence.acq_rel.gpu; fence.proxy.async; fence.proxy.async.global;")
}

__global__ void orders(unsigned long long *words, unsigned *out) {
    unsigned n = 0;
    auto put = [&](unsigned value) { out[n++] = value; };
    unsigned *narrow = reinterpret_cast<unsigned *>(words);
    unsigned r;
    unsigned long long w;
#define LOAD(form) asm volatile("ld." form " %0, [%1];" : "=r"(r) : "l"(narrow + n % 4) : "memory"); put(r);
    LOAD("relaxed.cta.u32") LOAD("relaxed.cluster.u32") LOAD("relaxed.gpu.u32") LOAD("relaxed.sys.u32")
    LOAD("acquire.cta.u32") LOAD("acquire.cluster.global.u32") LOAD("acquire.gpu.u32") LOAD("acquire.sys.u32")
    LOAD("volatile.u32") LOAD("weak.global.u32") LOAD("global.ca.u32") LOAD("global.cg.u32") LOAD("global.cs.u32") LOAD("global.lu.u32")
    LOAD("global.cv.u32") LOAD("global.nc.u32") LOAD("global.L1::no_allocate.u32") LOAD("global.L1::evict_last.L2::128B.u32")
    LOAD("global.nc.L1::no_allocate.L2::256B.u32") LOAD("mmio.relaxed.sys.global.u32")
#define STORE(form, value) asm volatile("st." form " [%0], %1;" ::"l"(narrow + 4), "r"(value) : "memory"); put(((volatile unsigned *)narrow)[4]);
    STORE("relaxed.cta.u32", 1) STORE("relaxed.gpu.u32", 2) STORE("relaxed.sys.u32", 3) STORE("release.cta.u32", 4) STORE("release.cluster.u32", 5)
    STORE("release.gpu.u32", 6) STORE("release.sys.u32", 7) STORE("volatile.u32", 8) STORE("weak.global.u32", 9) STORE("global.wb.u32", 10)
    STORE("global.cg.u32", 11) STORE("global.cs.u32", 12) STORE("global.wt.u32", 13) STORE("global.L1::evict_first.u32", 14)
#define ATOM(form, value) asm volatile("atom." form " %0, [%1], %2;" : "=l"(w) : "l"(words + 4), "l"((unsigned long long)(value)) : "memory"); put(unsigned(w));
    ATOM("relaxed.cta.add.u64", 5) ATOM("acquire.gpu.add.u64", 7) ATOM("release.sys.min.u64", 3) ATOM("acq_rel.cluster.max.u64", 90) ATOM("acq_rel.gpu.exch.b64", 44)
    ATOM("global.relaxed.gpu.or.b64", 3) ATOM("global.add.u64", 1)
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 0.5;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(r) : "l"(narrow), "l"(policy) : "memory");
    put(r);
    asm volatile("prefetch.global.L2 [%0]; prefetchu.L1 [%0]; prefetch.global.L2::evict_last [%0];" ::"l"(words));
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(words + 16) : "memory");
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(narrow), "r"(100) : "memory");
    asm volatile("red.relaxed.cta.xor.b32 [%0], %1;" ::"l"(narrow + 1), "r"(0xff) : "memory");
    put(((volatile unsigned *)narrow)[0]);
    put(((volatile unsigned *)narrow)[1]);
    out[63] = n;
}

int main() {
    Array<unsigned> flag(1), data(1), wrong(1), out(64);
    flag.clear(), data.clear(), wrong.clear();
    fences<<<2, 1>>>(flag, data, wrong);
    RAN();
    CHECK(wrong.host()[0] == 0, "%u messages are not what was sent", wrong.host()[0]);
    printf("fences\n");
    std::vector<unsigned long long> start(64, 0);
    for (int i = 0; i < 64; i++) start[i] = (i * 2 + 1ull) << 32 | i * 2;
    Array<unsigned long long> words(start);
    out.clear();
    orders<<<1, 1>>>(words, out);
    RAN();
    auto got = out.host();
    for (unsigned i = 0; i < got[63]; i++) printf("%u%s", got[i], i % 10 == 9 || i + 1 == got[63] ? "\n" : " ");
    return check::pass();
}
