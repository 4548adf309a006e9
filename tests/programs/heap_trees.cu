// needs: heap
// nvcc: -std=c++17
// Structures in the device's heap: binary trees that many threads insert into and that others read and free in later kernels;
// hash tables whose chains grow; strings of any length; objects with virtual functions made by new and ended by delete.
#include <algorithm>
#include <map>

#include "check.h"

struct Node {
    int key, count;
    Node *left, *right;
};

__device__ Node *root;

__global__ void insert(const int *keys, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Node *fresh = nullptr;
    Node **place = &root;
    while (true) {
        Node *there = *(Node *volatile *)place;
        if (!there) {
            if (!fresh) {
                fresh = (Node *)malloc(sizeof(Node));
                *fresh = {keys[i], 1, nullptr, nullptr};
                __threadfence();
            }
            there = (Node *)atomicCAS((unsigned long long *)place, 0ull, (unsigned long long)fresh);
            if (!there) return;
        }
        if (there->key == keys[i]) {
            atomicAdd(&there->count, 1);
            break;
        }
        place = keys[i] < there->key ? &there->left : &there->right;
    }
    free(fresh);
}

// In order, without recursion.
__global__ void list(int *keys, int *counts, int *size) {
    Node *stack[128];
    int depth = 0, n = 0;
    Node *node = root;
    while (node || depth) {
        for (; node; node = node->left) stack[depth++] = node;
        node = stack[--depth];
        keys[n] = node->key;
        counts[n++] = node->count;
        node = node->right;
    }
    *size = n;
}

__device__ int fell(Node *node) {
    if (!node) return 0;
    int below = fell(node->left) + fell(node->right);
    free(node);
    return below + 1;
}
__global__ void clear(int *freed) {
    *freed = fell(root);
    root = nullptr;
}

struct Shape {
    __device__ virtual int area() const = 0;
    __device__ virtual ~Shape() { atomicAdd(ended, 1); }
    int *ended;
};
struct Square : Shape {
    int side;
    __device__ int area() const override { return side * side; }
};
struct Ell : Shape {
    Square a, b;
    __device__ int area() const override { return a.area() + b.area(); }
};

__global__ void shapes(int *areas, int *ended) {
    int t = threadIdx.x;
    Shape *shape;
    if (t % 2) {
        auto *square = new Square;
        square->side = t;
        shape = square;
    } else {
        auto *ell = new Ell;
        ell->a.side = t;
        ell->b.side = 3;
        ell->a.ended = ell->b.ended = ended;
        shape = ell;
    }
    shape->ended = ended;
    areas[t] = shape->area();
    delete shape;
}

__global__ void strings(unsigned *hashes) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, length = t * 37 % 600 + 1;
    char *text = new char[length];
    for (int i = 0; i < length; i++) text[i] = 'a' + (i * 7 + t) % 26;
    unsigned hash = 0;
    for (int i = length - 1; i >= 0; i--) hash = hash * 131 + text[i];
    hashes[t] = hash + ((unsigned long long)text % 16 ? 1 : 0);
    delete[] text;
}

int main() {
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    const int count = 3000;
    Random random(89);
    std::vector<int> keys(count);
    std::map<int, int> model;
    for (int &key : keys) model[key = int(random.below(700))]++;
    Array<int> in(keys), listed(count), counts(count), size(1);
    for (int round = 0; round < 3; round++) {
        insert<<<blocks(count, 64), 64>>>(in, count);
        list<<<1, 1>>>(listed, counts, size);
        RAN();
        int n = size.host()[0], i = 0;
        CHECK(n == int(model.size()), "%d kinds, not %zu", n, model.size());
        auto k = listed.host(), c = counts.host();
        for (auto [key, times] : model) {
            CHECK(k[i] == key && c[i] == times, "%d: %d times %d", i, c[i], k[i]);
            i++;
        }
        clear<<<1, 1>>>(size);
        RAN();
        CHECK(size.host()[0] == n, "%d freed, not %d", size.host()[0], n);
    }
    printf("a tree of %zu\n", model.size());
    Array<int> areas(96), ended(1);
    ended.clear();
    shapes<<<1, 96>>>(areas, ended);
    RAN();
    auto got = areas.host();
    for (int t = 0; t < 96; t++) CHECK(got[t] == t * t + (t % 2 ? 0 : 9), "shape %d: %d", t, got[t]);
    CHECK(ended.host()[0] == 48 + 48 * 3, "%d ended", ended.host()[0]);
    Array<unsigned> hashes(1024);
    strings<<<16, 64>>>(hashes);
    RAN();
    auto h = hashes.host();
    for (int t = 0; t < 1024; t++) {
        unsigned hash = 0;
        for (int i = t * 37 % 600; i >= 0; i--) hash = hash * 131 + 'a' + (i * 7 + t) % 26;
        CHECK(h[t] == hash, "string %d: %08x, not %08x", t, h[t], hash);
    }
    printf("objects, strings %016llx\n", (unsigned long long)check::hash(h));
    return check::pass();
}
