// needs: jit
// nvcc: -gencode arch=compute_75,code=compute_75 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_80,code=sm_80
// Device code for several architectures: the newest that the device can run is taken, and machine code
// for others does no harm.
#define ARCHITECTURES 1
#include "parts/image_kernels.h"
