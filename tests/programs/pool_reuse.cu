// needs: pools
// Stream-ordered memory in a pipeline: each step allocates, computes and frees in its own stream; what was freed is
// used again in the same stream at once, in another behind an event; a pool keeps what its threshold says, and gives the rest
// back when it is trimmed; sizes of all kinds, to exhaustion and after it.
#include "check.h"

__global__ void fill(int *data, int count, int value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] = value + i;
}
__global__ void add(const int *from, int *to, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] += from[i];
}

static unsigned long long attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
    unsigned long long value = 0;
    OK(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
}

int main() {
    const int count = 5000, rounds = 40;
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool;
    OK(cudaMemPoolCreate(&pool, &props));
    unsigned long long threshold = ~0ull;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    cudaStream_t streams[3];
    cudaEvent_t freed;
    OK(cudaEventCreateWithFlags(&freed, cudaEventDisableTiming));
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    // Sums in three streams, each with temporary memory.
    Array<int> sums(3 * count);
    sums.clear();
    OK(cudaDeviceSynchronize());
    for (int round = 0; round < rounds; round++)
        for (int s = 0; s < 3; s++) {
            int *temporary;
            OK(cudaMallocFromPoolAsync((void **)&temporary, (count + round * 100) * sizeof(int), pool, streams[s]));
            fill<<<4, 128, 0, streams[s]>>>(temporary, count, round * (s + 1));
            add<<<4, 128, 0, streams[s]>>>(temporary, sums + s * count, count);
            OK(cudaFreeAsync(temporary, streams[s]));
        }
    OK(cudaDeviceSynchronize());
    auto got = sums.host();
    for (int i = 0; i < 3 * count; i++) {
        int expected = rounds * (i % count) + (i / count + 1) * rounds * (rounds - 1) / 2;
        CHECK(got[i] == expected, "sum %d: %d, not %d", i, got[i], expected);
    }
    CHECK(attribute(pool, cudaMemPoolAttrUsedMemCurrent) == 0, "%llu are used", attribute(pool, cudaMemPoolAttrUsedMemCurrent));
    CHECK(attribute(pool, cudaMemPoolAttrUsedMemHigh) >= (count + 3900) * sizeof(int), "%llu at most", attribute(pool, cudaMemPoolAttrUsedMemHigh));
    CHECK(attribute(pool, cudaMemPoolAttrReservedMemCurrent) > 0, "nothing is kept");
    printf("a pipeline %016llx\n", (unsigned long long)check::hash(got));

    // The same place at once in its own stream, and in another behind the event of the free.
    void *first, *second, *third;
    OK(cudaMallocFromPoolAsync(&first, 1 << 20, pool, streams[0]));
    OK(cudaFreeAsync(first, streams[0]));
    OK(cudaMallocFromPoolAsync(&second, 1 << 20, pool, streams[0]));
    CHECK(first == second, "%p and %p", first, second);
    OK(cudaFreeAsync(second, streams[0]));
    OK(cudaEventRecord(freed, streams[0]));
    OK(cudaStreamWaitEvent(streams[1], freed));
    OK(cudaMallocFromPoolAsync(&third, 1 << 20, pool, streams[1]));
    OK(cudaMemsetAsync(third, 1, 1 << 20, streams[1]));
    OK(cudaFreeAsync(third, streams[1]));
    OK(cudaDeviceSynchronize());
    printf("used again\n");

    auto kept = attribute(pool, cudaMemPoolAttrReservedMemCurrent);
    OK(cudaMemPoolTrimTo(pool, 0));
    CHECK(attribute(pool, cudaMemPoolAttrReservedMemCurrent) < kept, "%llu of %llu are still kept", attribute(pool, cudaMemPoolAttrReservedMemCurrent), kept);
    unsigned long long zero = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    CHECK(attribute(pool, cudaMemPoolAttrUsedMemHigh) == 0, "%llu", attribute(pool, cudaMemPoolAttrUsedMemHigh));

    // Sizes of all kinds, freed in another order than they came.
    std::vector<void *> blocks_of;
    for (size_t bytes = 1; bytes <= 1 << 21; bytes = bytes * 3 + 1) {
        void *block;
        OK(cudaMallocFromPoolAsync(&block, bytes, pool, streams[bytes % 3]));
        OK(cudaMemsetAsync(block, 7, bytes, streams[bytes % 3]));
        blocks_of.push_back(block);
    }
    OK(cudaDeviceSynchronize());
    for (size_t i = 0; i < blocks_of.size(); i++) OK(cudaFreeAsync(blocks_of[i * 7 % blocks_of.size()], streams[0]));
    OK(cudaDeviceSynchronize());
    void *huge = nullptr;
    FAILS(cudaMallocFromPoolAsync(&huge, size_t(1) << 45, pool, streams[0]), cudaErrorMemoryAllocation);
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaMallocFromPoolAsync(&huge, 4096, pool, streams[0]));
    OK(cudaFreeAsync(huge, streams[0]));
    OK(cudaDeviceSynchronize());
    printf("%zu sizes\n", blocks_of.size());
    OK(cudaMemPoolDestroy(pool));
    for (auto &stream : streams) OK(cudaStreamDestroy(stream));
    return check::pass();
}
