// needs: jit
// nvcc: -Xfatbin -compress-all --compress-mode=speed
// Device code that is packed as this compiler option packs it; several kernels, so that there is
// something to pack.
#include "parts/image_kernels.h"
