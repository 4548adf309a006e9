// needs: plain
// Local memory: arrays indexed at run time, structs on the stack, addresses of locals passed to
// functions that are not inlined, 16 KiB a thread.
#include <algorithm>

#include "check.h"

struct Stack {
    int values[64], top;
    __device__ void push(int v) { values[top++] = v; }
    __device__ int pop() { return values[--top]; }
};

__device__ __noinline__ void sort(int *values, int count) {
    for (int i = 1; i < count; i++) {
        int v = values[i], k = i;
        for (; k > 0 && values[k - 1] > v; k--) values[k] = values[k - 1];
        values[k] = v;
    }
}

__device__ __noinline__ int evaluate(const char *program, Stack *stack, int x) {
    for (; *program; program++) switch (*program) {
        case 'x': stack->push(x); break;
        case '+': stack->push(stack->pop() + stack->pop()); break;
        case '*': stack->push(stack->pop() * stack->pop()); break;
        default: stack->push(*program - '0');
        }
    return stack->pop();
}

__global__ void kernel(int *out, const char *program, int modulus) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, values[40];
    for (int k = 0; k < 40; k++) values[k] = (i * 31 + k * 17) % modulus;
    sort(values, 40);
    Stack stack;
    stack.top = 0;
    out[2 * i] = values[i % 40] * 1000 + values[39 - i % 40];
    out[2 * i + 1] = evaluate(program, &stack, i);
}

__global__ void large(int *out, int stride) {
    int table[4096], i = threadIdx.x, at = i;
    for (int k = 0; k < 4096; k++) table[k] = (k * stride + i) % 4096;
    for (int k = 0; k < 100; k++) at = table[at];
    out[i] = at;
}

int main() {
    const int threads = 256;
    const char text[] = "x2*3+x*7x++";
    Array<char> program(sizeof text);
    OK(cudaMemcpy(program, text, sizeof text, cudaMemcpyHostToDevice));
    Array<int> out(threads * 2);
    kernel<<<2, threads / 2>>>(out, program, 97);
    RAN();
    auto got = out.host();
    for (int i = 0; i < threads; i++) {
        std::vector<int> values(40);
        for (int k = 0; k < 40; k++) values[k] = (i * 31 + k * 17) % 97;
        std::sort(values.begin(), values.end());
        CHECK(got[2 * i] == values[i % 40] * 1000 + values[39 - i % 40], "thread %d: %d", i, got[2 * i]);
        CHECK(got[2 * i + 1] == (i * 2 + 3) * i + 7 + i, "thread %d: %d", i, got[2 * i + 1]);
    }
    large<<<1, 64>>>(out, 12345);
    RAN();
    got = out.host();
    for (int i = 0; i < 64; i++) {
        int at = i;
        for (int k = 0; k < 100; k++) at = (at * 12345 + i) % 4096;
        CHECK(got[i] == at, "thread %d is at %d, not %d", i, got[i], at);
    }
    printf("%016llx\n", (unsigned long long)check::hash(got));
    return check::pass();
}
