// needs: plain
// Edit distance of two words: a block walks the anti-diagonals with a barrier after each, three rows
// in dynamic shared memory.
#include <algorithm>
#include <string>

#include "check.h"

__global__ void edit(const char *a, const char *b, int n, int m, int *out) {
    extern __shared__ int rows[];
    int *now = rows, *last = rows + n + 1, *older = last + n + 1;
    for (int d = 0; d <= n + m; d++) {
        for (int i = threadIdx.x; i <= n; i += blockDim.x) {
            int j = d - i;
            if (j < 0 || j > m) continue;
            if (i == 0 || j == 0) now[i] = i + j;
            else now[i] = min(min(last[i - 1], last[i]) + 1, older[i - 1] + (a[i - 1] != b[j - 1]));
        }
        __syncthreads();
        int *free = older;
        older = last, last = now, now = free;
    }
    if (threadIdx.x == 0) *out = last[n];
}

int distance(const std::string &a, const std::string &b) {
    std::vector<int> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = int(j);
    for (size_t i = 1; i <= a.size(); i++) {
        int corner = row[0];
        row[0] = int(i);
        for (size_t j = 1; j <= b.size(); j++) {
            int up = row[j];
            row[j] = std::min(std::min(up, row[j - 1]) + 1, corner + (a[i - 1] != b[j - 1]));
            corner = up;
        }
    }
    return row.back();
}

int main() {
    const int n = 300, m = 257;
    Random random(73);
    std::string a, b;
    for (int i = 0; i < n; i++) a += "acgt"[random.below(4)];
    for (int i = 0; i < m; i++) b += "acgt"[random.below(4)];
    Array<char> da(std::vector<char>(a.begin(), a.end())), db(std::vector<char>(b.begin(), b.end()));
    Array<int> out(1);
    edit<<<1, 128, 3 * (n + 1) * sizeof(int)>>>(da, db, n, m, out);
    RAN();
    CHECK(out.host()[0] == distance(a, b), "%d, not %d", out.host()[0], distance(a, b));
    printf("distance %d\n", out.host()[0]);
    return check::pass();
}
