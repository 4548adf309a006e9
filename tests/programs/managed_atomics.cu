// needs: managed
// Host and kernels that add to the same managed words: at the same time where the device says that it
// allows that, one after the other where it says that it does not. No update may be lost either way.
#include <thread>

#include "check.h"

const int ROUNDS = 20000, BLOCKS = 8, THREADS = 64;

struct Words {
    int sum;
    unsigned long long wide;
    unsigned bits;
    int most;
    volatile int started;
};

__global__ void add(Words *words) {
    words->started = 1;
    for (int i = 0; i < ROUNDS / 16; i++) {
        atomicAdd_system(&words->sum, 1);
        atomicAdd_system(&words->wide, 1ull << 32);
    }
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    atomicXor_system(&words->bits, 1u << (me % 16));
    atomicMax_system(&words->most, me);
}

// The same of the host's.
static void add_here(Words *words) {
    for (int i = 0; i < ROUNDS; i++) {
        __sync_fetch_and_add(&words->sum, 1);
        __sync_fetch_and_add(&words->wide, 1ull);
    }
    for (int bit = 16; bit < 32; bit++) __sync_fetch_and_xor(&words->bits, 1u << bit);
}

int main() {
    int concurrent, native, managed;
    OK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    OK(cudaDeviceGetAttribute(&native, cudaDevAttrHostNativeAtomicSupported, 0));
    CHECK(managed, "no managed memory");
    // Atomics over the bus promise more than access at the same time.
    CHECK(concurrent || !native, "atomic, but not at the same time");
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.concurrentManagedAccess == concurrent, "%d", properties.concurrentManagedAccess);
    CHECK(properties.hostNativeAtomicSupported == native, "%d", properties.hostNativeAtomicSupported);

    Words *words;
    OK(cudaMallocManaged(&words, sizeof *words));
    memset(words, 0, sizeof *words);
    add<<<BLOCKS, THREADS>>>(words);
    OK(cudaGetLastError());
    if (concurrent) {
        std::thread host([words] {
            while (!words->started) {}
            add_here(words);
        });
        host.join();
    }
    OK(cudaDeviceSynchronize());
    if (!concurrent) add_here(words);
    const unsigned long long device = 1ull * (ROUNDS / 16) * BLOCKS * THREADS;
    CHECK(words->sum == int(device) + ROUNDS, "%d, lost %d", words->sum, int(device) + ROUNDS - words->sum);
    CHECK(words->wide == (device << 32) + ROUNDS, "%llx", words->wide);
    // An even number of threads has flipped each of the lower bits.
    CHECK(words->bits == 0xffff0000u, "%x", words->bits);
    CHECK(words->most == BLOCKS * THREADS - 1, "%d", words->most);
    printf("sum %d\n", words->sum);

    // Advice and prefetching never break a program that does not ask first.
    cudaMemLocation place = {cudaMemLocationTypeDevice, 0};
    OK(cudaMemAdvise(words, sizeof *words, cudaMemAdviseSetPreferredLocation, place));
    OK(cudaMemAdvise(words, sizeof *words, cudaMemAdviseSetAccessedBy, place));
    OK(cudaMemPrefetchAsync(words, sizeof *words, place, 0, 0));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(words));
    return check::pass();
}
