// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// What PTX's memory model forbids is never seen, in thousands of tries: messages, buffered stores and loads, two readers of two
// writers, one place that everybody reads; by acquire and release, and by fences, of the block and of the device.
#include <cuda/atomic>

#include "check.h"

constexpr int TRIES = 64, LANES = 32;

template <cuda::thread_scope SCOPE> using Word = cuda::atomic_ref<int, SCOPE>;
constexpr auto relaxed = cuda::memory_order_relaxed;
constexpr auto acquire = cuda::memory_order_acquire;
constexpr auto release = cuda::memory_order_release;
constexpr auto seq_cst = cuda::memory_order_seq_cst;

// The number of a role: which block, or which warp of a block.
__device__ int role(bool blocks) { return blocks ? blockIdx.x : threadIdx.x / 32; }

// All roles begin a try at about the same time.
template <cuda::thread_scope SCOPE> __device__ void meet(int *gate, int roles, int attempt) {
    if (threadIdx.x % 32 == 0) {
        Word<SCOPE> arrived(*gate);
        arrived.fetch_add(1, cuda::memory_order_acq_rel);
        while (arrived.load(acquire) < roles * (attempt + 1)) {}
    }
    __syncwarp();
}

// `x` and `y` are new in every try; `seen` has two numbers for each role, try and lane.
template <cuda::thread_scope SCOPE, int TEST> __global__ void litmus(int *x, int *y, int *seen, int *gate, int roles, bool blocks) {
    int who = role(blocks), lane = threadIdx.x % 32;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        int at = attempt * LANES + lane;
        Word<SCOPE> a(x[at]), b(y[at]);
        int *out = &seen[(who * TRIES * LANES + at) * 2];
        meet<SCOPE>(gate, roles, attempt);
        if constexpr (TEST == 0) {
            // A message, by release and acquire.
            if (who == 0) {
                a.store(1, relaxed);
                b.store(1, release);
            } else {
                out[0] = b.load(acquire);
                out[1] = a.load(relaxed);
            }
        } else if constexpr (TEST == 1) {
            // A message, by fences; the data is plain.
            if (who == 0) {
                *(volatile int *)&x[at] = 1;
                cuda::atomic_thread_fence(cuda::memory_order_acq_rel, SCOPE);
                b.store(1, relaxed);
            } else {
                out[0] = b.load(relaxed);
                cuda::atomic_thread_fence(cuda::memory_order_acq_rel, SCOPE);
                out[1] = *(volatile int *)&x[at];
            }
        } else if constexpr (TEST == 2) {
            // Buffered stores, with fences of the strongest kind.
            (who == 0 ? a : b).store(1, relaxed);
            cuda::atomic_thread_fence(seq_cst, SCOPE);
            out[0] = (who == 0 ? b : a).load(relaxed);
        } else if constexpr (TEST == 3) {
            // Buffered loads.
            out[0] = (who == 0 ? a : b).load(acquire);
            (who == 0 ? b : a).store(1, release);
        } else if constexpr (TEST == 4) {
            // Two writers, two readers that may not disagree about the order.
            if (who < 2) {
                (who == 0 ? a : b).store(1, seq_cst);
            } else {
                out[0] = (who == 2 ? a : b).load(seq_cst);
                out[1] = (who == 2 ? b : a).load(seq_cst);
            }
        } else {
            // One place: what was read once is not followed by what was there before.
            if (who == 0) {
                a.store(1, relaxed);
                a.store(2, relaxed);
            } else {
                out[0] = a.load(relaxed);
                out[1] = a.load(relaxed);
            }
        }
    }
}

template <cuda::thread_scope SCOPE, int TEST> void test(const char *name, int roles) {
    for (bool blocks : {true, false}) {
        if (blocks && SCOPE == cuda::thread_scope_block) continue;
        const size_t count = size_t(TRIES) * LANES;
        Array<int> x(count), y(count), seen(4 * count * 2), gate(1);
        x.clear(), y.clear(), seen.clear(), gate.clear();
        litmus<SCOPE, TEST><<<blocks ? roles : 1, blocks ? 32 : 32 * roles>>>(x, y, seen, gate, roles, blocks);
        RAN();
        auto got = seen.host();
        for (size_t i = 0; i < count; i++) {
            auto of = [&](int who, int n) { return got[(who * count + i) * 2 + n]; };
            bool forbidden = TEST <= 1   ? of(1, 0) == 1 && of(1, 1) == 0
                             : TEST == 2 ? of(0, 0) == 0 && of(1, 0) == 0
                             : TEST == 3 ? of(0, 0) == 1 && of(1, 0) == 1
                             : TEST == 4 ? of(2, 0) == 1 && of(2, 1) == 0 && of(3, 0) == 1 && of(3, 1) == 0
                                         : of(1, 0) > of(1, 1);
            CHECK(!forbidden, "%s, %s, try %zu of lane %zu", name, blocks ? "blocks" : "warps", i / LANES, i % LANES);
        }
    }
}

template <cuda::thread_scope SCOPE> void all(const char *scope) {
    test<SCOPE, 0>("message by release and acquire", 2);
    test<SCOPE, 1>("message by fences", 2);
    test<SCOPE, 2>("buffered stores", 2);
    test<SCOPE, 3>("buffered loads", 2);
    test<SCOPE, 4>("two writers, two readers", 4);
    test<SCOPE, 5>("one place", 2);
    printf("%s: nothing forbidden\n", scope);
}

int main() {
    all<cuda::thread_scope_block>("block");
    all<cuda::thread_scope_device>("device");
    all<cuda::thread_scope_system>("system");
    return check::pass();
}
