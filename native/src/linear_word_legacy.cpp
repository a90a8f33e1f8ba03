// Kernels of formats with one scale a block of 32, for inputs in 16 bits.
#include "linear_int.h"

namespace octavo {

template <int Number> using Kernels = IntBlocks<Number, Coding::words>;

LinearKernel word_legacy_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_Q4_0: return kernel_of<Kernels<OCTAVO_Q4_0>>();
  case OCTAVO_Q4_1: return kernel_of<Kernels<OCTAVO_Q4_1>>();
  case OCTAVO_Q5_0: return kernel_of<Kernels<OCTAVO_Q5_0>>();
  case OCTAVO_Q5_1: return kernel_of<Kernels<OCTAVO_Q5_1>>();
  case OCTAVO_Q8_0: return kernel_of<Kernels<OCTAVO_Q8_0>>();
  case OCTAVO_IQ4_NL: return kernel_of<Kernels<OCTAVO_IQ4_NL>>();
  default: return kernel_of<Kernels<OCTAVO_MXFP4>>();
  }
}

} // namespace octavo
