// Kernels of formats with one scale a block of 32, for inputs in 8 bits.
#include "linear_int.h"

namespace octavo {

LinearKernel byte_legacy_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_Q4_0: return byte_kernel_of<OCTAVO_Q4_0>();
  case OCTAVO_Q4_1: return byte_kernel_of<OCTAVO_Q4_1>();
  case OCTAVO_Q5_0: return byte_kernel_of<OCTAVO_Q5_0>();
  case OCTAVO_Q5_1: return byte_kernel_of<OCTAVO_Q5_1>();
  case OCTAVO_Q8_0: return byte_kernel_of<OCTAVO_Q8_0>();
  case OCTAVO_IQ4_NL: return byte_kernel_of<OCTAVO_IQ4_NL>();
  default: return byte_kernel_of<OCTAVO_MXFP4>();
  }
}

} // namespace octavo
