// needs: launches
// nvcc: -std=c++17 -rdc=true -lcudadevrt
// Kernels that launch kernels, over trees: sums that are halved until they are small, with a tail that adds up what
// the children have left; a flood of forget-me launches that counts by atomics; a chain of tails; streams and events of a
// kernel's own.
#include "check.h"

// Leaves the sum of in[from, to) in `out`; larger ranges leave it to two children and a tail.
__global__ void join(const long long *parts, long long *out) { *out = parts[0] + parts[1]; }

__global__ void sum(const int *in, int from, int to, long long *out, long long *room, int *kernels) {
    if (threadIdx.x == 0) atomicAdd(kernels, 1);
    if (to - from <= 256) {
        __shared__ long long total;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        long long own = 0;
        for (int i = from + threadIdx.x; i < to; i += blockDim.x) own += in[i];
        atomicAdd((unsigned long long *)&total, (unsigned long long)own);
        __syncthreads();
        if (threadIdx.x == 0) *out = total;
    } else if (threadIdx.x == 0) {
        // Two places of its own, then those of its children's trees.
        int middle = (from + to) / 2, leaves = (to - from + 255) / 256;
        long long *left = room + 2, *right = room + 2 + 8 * leaves;
        sum<<<1, 64>>>(in, from, middle, &room[0], left, kernels);
        sum<<<1, 64>>>(in, middle, to, &room[1], right, kernels);
        join<<<1, 1, 0, cudaStreamTailLaunch>>>(room, out);
    }
}

__global__ void flood(int depth, int *count) {
    if (threadIdx.x == 0) atomicAdd(count, 1);
    if (depth > 0 && threadIdx.x < 3) flood<<<1, 32, 0, cudaStreamFireAndForget>>>(depth - 1, count);
}

__global__ void countdown(int left, unsigned *hash) {
    *hash = *hash * 31 + left;
    if (left > 0) countdown<<<1, 1, 0, cudaStreamTailLaunch>>>(left - 1, hash);
}

__global__ void set(int *place, int value) { *place = value; }
__global__ void twice(int *place) { *place *= 2; }
__global__ void streams(int *out) {
    cudaStream_t a, b;
    cudaEvent_t done;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    set<<<1, 1, 0, a>>>(out, 21);
    cudaEventRecord(done, a);
    cudaStreamWaitEvent(b, done, 0);
    twice<<<1, 1, 0, b>>>(out);
    cudaEventDestroy(done);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

int main() {
    Random random(83);
    for (int count : {200, 1000, 5000}) {
        std::vector<int> values(count);
        long long expected = 0;
        for (int &value : values) expected += value = int(random.below(1000000));
        Array<int> in(values), kernels(1);
        Array<long long> out(1), room(32768);
        kernels.clear();
        sum<<<1, 64>>>(in, 0, count, out, room, kernels);
        RAN();
        CHECK(out.host()[0] == expected, "%d: %lld, not %lld", count, out.host()[0], expected);
        printf("sum of %d: %lld by %d kernels\n", count, expected, kernels.host()[0]);
    }
    Array<int> count(1);
    count.clear();
    flood<<<1, 32>>>(4, count);
    RAN();
    CHECK(count.host()[0] == 121, "%d", count.host()[0]);
    Array<unsigned> hash(1);
    hash.clear();
    countdown<<<1, 1>>>(100, hash);
    RAN();
    unsigned expected = 0;
    for (int left = 100; left >= 0; left--) expected = expected * 31 + left;
    CHECK(hash.host()[0] == expected, "%08x, not %08x", hash.host()[0], expected);
    streams<<<1, 1>>>(count);
    RAN();
    CHECK(count.host()[0] == 42, "%d", count.host()[0]);
    printf("a flood, a chain, streams\n");
    return check::pass();
}
