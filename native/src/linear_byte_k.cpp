// Kernels of GGUF's K-quants for inputs in 8 bits.
#include "linear_int.h"
#if defined(OCTAVO_ISA_AVX512)
#include "linear_int_fine.h"
#endif

namespace octavo {

LinearKernel byte_k_quant_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_Q2_K: return byte_kernel_of<OCTAVO_Q2_K>();
  case OCTAVO_Q3_K: return byte_kernel_of<OCTAVO_Q3_K>();
  case OCTAVO_Q4_K: return byte_kernel_of<OCTAVO_Q4_K>();
  case OCTAVO_Q5_K: return byte_kernel_of<OCTAVO_Q5_K>();
  default: return byte_kernel_of<OCTAVO_Q6_K>();
  }
}

} // namespace octavo
