// needs: plain mapped
// Does cudaStreamQuery or cudaStreamSynchronize of the legacy stream, in which nothing is, wait for
// a blocking stream's kernel? Prints what happened and asserts nothing of it.
#include "check.h"

// Ends when the flag is set, or after two seconds; says which.
__global__ void await(volatile int *flag, volatile int *ended) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*flag == 0 && now - begin < 2000000000ull);
    *ended = 1;
}

__global__ void nothing() {}

int main() {
    volatile int *words;
    OK(cudaHostAlloc((void **)&words, 64, cudaHostAllocMapped));
    int *flag = const_cast<int *>(words), *ended = flag + 1;
    for (bool used : {false, true})
        for (unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking}) {
            cudaStream_t stream;
            OK(cudaStreamCreateWithFlags(&stream, flags));
            words[0] = 1, words[1] = 0;
            await<<<1, 1, 0, stream>>>(flag, ended);
            RAN();
            // Whether the legacy stream has ever been used.
            if (used) {
                nothing<<<1, 1>>>();
                RAN();
            }
            words[0] = 0, words[1] = 0;
            await<<<1, 1, 0, stream>>>(flag, ended);
            OK(cudaGetLastError());
            cudaError_t query = cudaStreamQuery(cudaStreamLegacy);
            cudaError_t waited = cudaStreamSynchronize(cudaStreamLegacy);
            printf("%s stream, legacy stream %s: query %s, synchronize %s and the kernel had %s\n",
                   flags == cudaStreamDefault ? "blocking" : "non-blocking",
                   used ? "used before" : "never used", cudaGetErrorName(query),
                   cudaGetErrorName(waited), words[1] ? "ended" : "not ended");
            words[0] = 1;
            OK(cudaDeviceSynchronize());
            OK(cudaStreamDestroy(stream));
        }
    return check::pass();
}
