// Kernels of GGUF's formats with one scale a block of 32, and MXFP4, for inputs in 8 bits.
#include "linear_int.h"

namespace octavo {

LinearKernel int_legacy_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_Q4_0: return kernel_of<IntBlocks<OCTAVO_Q4_0>>();
  case OCTAVO_Q4_1: return kernel_of<IntBlocks<OCTAVO_Q4_1>>();
  case OCTAVO_Q5_0: return kernel_of<IntBlocks<OCTAVO_Q5_0>>();
  case OCTAVO_Q5_1: return kernel_of<IntBlocks<OCTAVO_Q5_1>>();
  case OCTAVO_Q8_0: return kernel_of<IntBlocks<OCTAVO_Q8_0>>();
  case OCTAVO_IQ4_NL: return kernel_of<IntBlocks<OCTAVO_IQ4_NL>>();
  default: return kernel_of<IntBlocks<OCTAVO_MXFP4>>();
  }
}

} // namespace octavo
