// Kernels of GGUF's K-quants for inputs in 16 bits.
#include "linear_int.h"
#if defined(OCTAVO_ISA_AVX512)
#include "linear_int_fine.h"
#endif

namespace octavo {

template <int Number> using Kernels = IntBlocks<Number, Coding::words>;

LinearKernel word_k_quant_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_Q2_K: return kernel_of<Kernels<OCTAVO_Q2_K>>();
  case OCTAVO_Q3_K: return kernel_of<Kernels<OCTAVO_Q3_K>>();
  case OCTAVO_Q4_K: return kernel_of<Kernels<OCTAVO_Q4_K>>();
  case OCTAVO_Q5_K: return kernel_of<Kernels<OCTAVO_Q5_K>>();
  default: return kernel_of<Kernels<OCTAVO_Q6_K>>();
  }
}

} // namespace octavo
