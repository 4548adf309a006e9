// needs: mapped
// Memory is registered that begins and ends in the middle of pages, while other threads write to what
// lies beside it on these pages: nothing that they write is lost.
#include <atomic>
#include <thread>

#include "check.h"

int main() {
    const size_t PAGE = 4096, BYTES = 4 * PAGE;
    char *memory = static_cast<char *>(aligned_alloc(PAGE, BYTES));
    memset(memory, 0, BYTES);
    auto *first = reinterpret_cast<volatile unsigned long long *>(memory);
    auto *last = reinterpret_cast<volatile unsigned long long *>(memory + BYTES - 8);
    std::atomic<bool> stop(false);
    std::atomic<int> running(0);
    std::atomic<unsigned long long> lost(0);
    auto count = [&](volatile unsigned long long *word) {
        running++;
        for (unsigned long long mine = 0; !stop; mine++) {
            if (*word != mine) {
                lost++;
                mine = *word;
            }
            *word = mine + 1;
        }
    };
    std::thread one(count, first), other(count, last);
    while (running < 2) std::this_thread::yield();
    OK(cudaFree(nullptr));
    const int ROUNDS = 500;
    for (int i = 0; i < ROUNDS; i++) {
        OK(cudaHostRegister(memory + 1024, BYTES - 2048, cudaHostRegisterMapped));
        OK(cudaHostUnregister(memory + 1024));
    }
    stop = true;
    one.join(), other.join();
    CHECK(lost == 0, "%llu writes were lost", (unsigned long long)lost);
    printf("registered and given back %d times\n", ROUNDS);
    return check::pass();
}
