// Kernels of formats whose scales belong to spans of inputs, for inputs in 8 bits.
#include "linear_int.h"

namespace octavo {

LinearKernel byte_span_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_INT4: return byte_kernel_of<OCTAVO_INT4>();
  case OCTAVO_INT4Z: return byte_kernel_of<OCTAVO_INT4Z>();
  case OCTAVO_INT8: return byte_kernel_of<OCTAVO_INT8>();
  case OCTAVO_INT4S: return byte_kernel_of<OCTAVO_INT4S>();
  default: return byte_kernel_of<OCTAVO_INT8Z>();
  }
}

} // namespace octavo
