// needs: plain
// Breadth-first search by levels over a random graph, and all shortest paths by Floyd-Warshall; many
// small dependent launches, with a flag read back after each.
#include <queue>

#include <algorithm>

#include "check.h"

__global__ void level(const int *starts, const int *ends, int *distances, int now, int *more, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count || distances[i] != now) return;
    for (int k = starts[i]; k < starts[i + 1]; k++)
        if (atomicCAS(&distances[ends[k]], -1, now + 1) == -1) *more = 1;
}

__global__ void relax(int *matrix, int size, int k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < size && y < size) matrix[y * size + x] = min(matrix[y * size + x], matrix[y * size + k] + matrix[k * size + x]);
}

int main() {
    const int count = 4000;
    Random random(69);
    std::vector<int> starts(1), ends;
    for (int i = 0; i < count; i++) {
        for (int k = random.below(4); k > 0; k--) ends.push_back((i + random.below(300) + count - 150) % count);
        starts.push_back(int(ends.size()));
    }
    std::vector<int> expected(count, -1), first(count, -1);
    std::queue<int> queue;
    queue.push(0);
    expected[0] = first[0] = 0;
    for (; !queue.empty(); queue.pop())
        for (int k = starts[queue.front()]; k < starts[queue.front() + 1]; k++)
            if (expected[ends[k]] < 0) expected[ends[k]] = expected[queue.front()] + 1, queue.push(ends[k]);
    Array<int> ds(starts), de(ends), distances(first), more(1);
    int levels = 0;
    for (bool again = true; again; levels++) {
        more.clear();
        level<<<blocks(count, 256), 256>>>(ds, de, distances, levels, more, count);
        again = more.host()[0];
    }
    RAN();
    auto got = distances.host();
    int reached = 0;
    for (int i = 0; i < count; i++) {
        CHECK(got[i] == expected[i], "node %d at %d, not %d", i, got[i], expected[i]);
        reached += got[i] >= 0;
    }
    printf("%d nodes in %d levels\n", reached, levels);

    const int size = 70;
    std::vector<int> matrix(size * size);
    for (int i = 0; i < size * size; i++) matrix[i] = i % (size + 1) == 0 ? 0 : random.below(5) ? 1000000 : 1 + random.below(50);
    Array<int> d(matrix);
    for (int k = 0; k < size; k++) relax<<<dim3(blocks(size, 16), blocks(size, 16)), dim3(16, 16)>>>(d, size, k);
    RAN();
    for (int k = 0; k < size; k++)
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) matrix[y * size + x] = std::min(matrix[y * size + x], matrix[y * size + k] + matrix[k * size + x]);
    CHECK(d.host() == matrix, "the shortest paths differ");
    printf("%016llx\n", (unsigned long long)check::hash(matrix));
    return check::pass();
}
