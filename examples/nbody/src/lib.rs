//! An n-body program on the CUDA driver API, which knows nothing of OpenMPS.
