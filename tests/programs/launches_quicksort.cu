// needs: launches
// nvcc: -rdc=true -lcudadevrt
// Quicksort whose two halves are grids of their own, each in its own stream, and a selection sort for what is short or
// too deep.
#include <algorithm>

#include "check.h"

const int DEEPEST = 14, SHORT = 24;

__device__ void selection_sort(int *data, int left, int right) {
    for (int i = left; i <= right; i++) {
        int least = i;
        for (int j = i + 1; j <= right; j++)
            if (data[j] < data[least]) least = j;
        int value = data[i];
        data[i] = data[least];
        data[least] = value;
    }
}

__global__ void quicksort(int *data, int left, int right, int depth) {
    if (depth >= DEEPEST || right - left <= SHORT) {
        selection_sort(data, left, right);
        return;
    }
    int *l = data + left, *r = data + right, pivot = data[(left + right) / 2];
    while (l <= r) {
        while (*l < pivot) l++;
        while (*r > pivot) r--;
        if (l <= r) {
            int value = *l;
            *l++ = *r;
            *r-- = value;
        }
    }
    int middle_right = r - data, middle_left = l - data;
    if (left < middle_right) {
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        quicksort<<<1, 1, 0, stream>>>(data, left, middle_right, depth + 1);
        cudaStreamDestroy(stream);
    }
    if (middle_left < right) {
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        quicksort<<<1, 1, 0, stream>>>(data, middle_left, right, depth + 1);
        cudaStreamDestroy(stream);
    }
}

int main() {
    const int count = 5000;
    std::vector<int> model(count);
    unsigned state = 12345;
    for (int &value : model) {
        state = state * 1664525u + 1013904223u;
        value = state >> 12;
    }
    Array<int> data(model);
    quicksort<<<1, 1>>>(data, 0, count - 1, 0);
    RAN();
    std::sort(model.begin(), model.end());
    auto got = data.host();
    for (int i = 0; i < count; i++) CHECK(got[i] == model[i], "element %d is %d, not %d", i, got[i], model[i]);
    printf("%d %d %d\n", got[0], got[count / 2], got[count - 1]);
    printf("PASS\n");
}
