// needs: sm_80
// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
// cuda::atomic_ref and cuda::atomic of each scope and order: sums, least and greatest, bits, floats, compare and exchange,
// messages that are released and acquired, waiting and notifying, a latch and semaphores.
#include <cuda/atomic>
#include <cuda/latch>
#include <cuda/semaphore>

#include "check.h"

template <cuda::thread_scope SCOPE> __global__ void counts(int *words, unsigned long long *wide, float *real) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<int, SCOPE> sum(words[0]), least(words[1]), most(words[2]), any(words[3]), all(words[4]), differ(words[5]), tries(words[6]);
    cuda::atomic_ref<unsigned long long, SCOPE> total(*wide);
    cuda::atomic_ref<float, SCOPE> number(*real);
    sum.fetch_add(i, cuda::memory_order_relaxed);
    sum.fetch_sub(1, cuda::memory_order_acq_rel);
    least.fetch_min(i - 50, cuda::memory_order_release);
    most.fetch_max(i, cuda::memory_order_acquire);
    any.fetch_or(1 << i % 20, cuda::memory_order_seq_cst);
    all.fetch_and(~(1 << i % 20));
    differ.fetch_xor(i);
    total.fetch_add(1ull << 33);
    number.fetch_add(0.5f, cuda::memory_order_relaxed);
    // By compare and exchange: twice and one.
    int seen = tries.load(cuda::memory_order_relaxed);
    while (!tries.compare_exchange_weak(seen, seen + 2, cuda::memory_order_acq_rel, cuda::memory_order_relaxed)) {}
}

// Block 0 writes and releases, block 1 acquires and reads, a round after another.
template <cuda::thread_scope SCOPE> __global__ void messages(int *data, cuda::atomic<int, SCOPE> *flag, int rounds, int *wrong) {
    int t = threadIdx.x;
    for (int round = 1; round <= rounds; round++) {
        if (blockIdx.x == 0) {
            data[t] = round * 1000 + t;
            __syncthreads();
            if (t == 0) {
                flag->store(2 * round - 1, cuda::memory_order_release);
                flag->notify_all();
                while (flag->load(cuda::memory_order_acquire) != 2 * round) {}
            }
            __syncthreads();
        } else {
            if (t == 0) flag->wait(2 * round - 2, cuda::memory_order_acquire);
            __syncthreads();
            if (data[t] != round * 1000 + t) atomicAdd(wrong, 1);
            __syncthreads();
            if (t == 0) flag->store(2 * round, cuda::memory_order_release);
        }
    }
}

__device__ int together;

__global__ void gates(cuda::latch<cuda::thread_scope_device> *latch, cuda::counting_semaphore<cuda::thread_scope_device, 3> *room,
                      cuda::binary_semaphore<cuda::thread_scope_device> *door, int *counted, int *wrong) {
    if (threadIdx.x == 0) {
        latch->arrive_and_wait();
        room->acquire();
        // Never more than three.
        if (atomicAdd(&together, 1) >= 3) atomicAdd(wrong, 1);
        door->acquire();
        *counted = *counted + 1;
        door->release();
        atomicSub(&together, 1);
        room->release();
        if (!latch->try_wait()) atomicAdd(wrong, 1);
    }
}

template <typename T> __global__ void make(T *place, int value) { new (place) T(value); }

template <cuda::thread_scope SCOPE> void test(const char *name) {
    const int count = 4 * 64;
    Array<int> words(std::vector<int>{0, 0, 0, 0, ~0, 0, 1});
    Array<unsigned long long> wide(1);
    Array<float> real(1);
    wide.clear();
    real.clear();
    counts<SCOPE><<<4, 64>>>(words, wide, real);
    RAN();
    auto got = words.host();
    int differ = 0;
    for (int i = 0; i < count; i++) differ ^= i;
    CHECK(got[0] == count * (count - 1) / 2 - count && got[1] == -50 && got[2] == count - 1 && got[3] == (1 << 20) - 1 && got[4] == ~((1 << 20) - 1) &&
              got[5] == differ && got[6] == 2 * count + 1,
          "%s: %d %d %d %x %x %d %d", name, got[0], got[1], got[2], got[3], got[4], got[5], got[6]);
    CHECK(wide.host()[0] == (unsigned long long)count << 33 && real.host()[0] == count / 2, "%s: %llu, %g", name, wide.host()[0], real.host()[0]);
    Array<int> data(64), wrong(1);
    wrong.clear();
    Array<cuda::atomic<int, SCOPE>> flag(1);
    flag.clear();
    messages<SCOPE><<<2, 64>>>((int *)data, (cuda::atomic<int, SCOPE> *)flag, 50, (int *)wrong);
    RAN();
    CHECK(wrong.host()[0] == 0, "%s: %d messages are not what was sent", name, wrong.host()[0]);
    printf("%s\n", name);
}

int main() {
    test<cuda::thread_scope_device>("device");
    test<cuda::thread_scope_system>("system");
    Array<cuda::latch<cuda::thread_scope_device>> latch(1);
    Array<cuda::counting_semaphore<cuda::thread_scope_device, 3>> room(1);
    Array<cuda::binary_semaphore<cuda::thread_scope_device>> door(1);
    Array<int> counted(1), wrong(1);
    counted.clear();
    wrong.clear();
    make<<<1, 1>>>((cuda::latch<cuda::thread_scope_device> *)latch, 8);
    make<<<1, 1>>>((cuda::counting_semaphore<cuda::thread_scope_device, 3> *)room, 3);
    make<<<1, 1>>>((cuda::binary_semaphore<cuda::thread_scope_device> *)door, 1);
    gates<<<8, 32>>>(latch, room, door, counted, wrong);
    RAN();
    CHECK(counted.host()[0] == 8 && wrong.host()[0] == 0, "%d, %d wrong", counted.host()[0], wrong.host()[0]);
    printf("gates\n");
    return check::pass();
}
