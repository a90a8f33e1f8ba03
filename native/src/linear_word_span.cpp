// Kernels of formats whose scales belong to spans of inputs, for inputs in 16 bits.
#include "linear_int.h"

namespace octavo {

template <int Number> using Kernels = IntBlocks<Number, Coding::words>;

LinearKernel word_span_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_INT4: return kernel_of<Kernels<OCTAVO_INT4>>();
  case OCTAVO_INT4Z: return kernel_of<Kernels<OCTAVO_INT4Z>>();
  case OCTAVO_INT8: return kernel_of<Kernels<OCTAVO_INT8>>();
  case OCTAVO_INT4S: return kernel_of<Kernels<OCTAVO_INT4S>>();
  default: return kernel_of<Kernels<OCTAVO_INT8Z>>();
  }
}

} // namespace octavo
