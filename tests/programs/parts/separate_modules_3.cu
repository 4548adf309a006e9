// A part of separate_modules.cu: operations that are called through pointers.
typedef int (*Operation)(int);

static __device__ int plus_one(int x) { return x + 1; }
static __device__ int square(int x) { return x * x; }
static __device__ int negative(int x) { return -x; }
__device__ Operation operations[3] = {plus_one, square, negative};

__device__ Operation select_operation(int which) { return operations[which % 3]; }
__device__ __noinline__ int shared_name(int x) { return 3 * x; }
