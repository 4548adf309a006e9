// needs: heap
// malloc, new and free in kernels: blocks of different size, kept between launches, freed by
// another thread; NULL when the heap is exhausted.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__global__ void build(Node **lists, int length) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    Node *head = nullptr;
    for (int k = 0; k < length + i % 5; k++) {
        Node *node = new Node;
        node->value = i * 100 + k;
        node->next = head;
        head = node;
    }
    lists[i] = head;
}

__global__ void tear_down(Node **lists, long long *sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    Node *node = lists[n - 1 - i];
    long long sum = 0;
    while (node) {
        Node *next = node->next;
        sum += node->value;
        delete node;
        node = next;
    }
    sums[n - 1 - i] = sum;
}

__global__ void exhaust(int *out) {
    char *p = static_cast<char *>(malloc(size_t(1) << 40));
    *out = p == nullptr;
}

int main() {
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 8 << 20));
    const int n = 128;
    Array<Node *> lists(n);
    Array<long long> sums(n);
    for (int round = 0; round < 3; round++) {
        build<<<4, 32>>>(lists, 10);
        tear_down<<<4, 32>>>(lists, sums);
        RAN();
        auto got = sums.host();
        for (int i = 0; i < n; i++) {
            long long expected = 0;
            for (int k = 0; k < 10 + i % 5; k++) expected += i * 100 + k;
            CHECK(got[i] == expected, "list %d: %lld, not %lld", i, got[i], expected);
        }
    }
    Array<int> out(1);
    exhaust<<<1, 1>>>(out);
    RAN();
    CHECK(out.host()[0] == 1, "a tebibyte was granted");
    printf("%d lists\n", n);
    return check::pass();
}
