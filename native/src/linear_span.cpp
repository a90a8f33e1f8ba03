// Kernels of formats whose scales belong to spans of inputs: quantized safetensors checkpoints.
#include "linear_blocks.h"

namespace octavo {

LinearKernel span_kernel(int32_t format) {
  switch (format) {
  case OCTAVO_INT4: return kernel_of<Blocks<OCTAVO_INT4>>();
  case OCTAVO_INT4Z: return kernel_of<Blocks<OCTAVO_INT4Z>>();
  case OCTAVO_INT8: return kernel_of<Blocks<OCTAVO_INT8>>();
  case OCTAVO_INT4S: return kernel_of<Blocks<OCTAVO_INT4S>>();
  case OCTAVO_INT8Z: return kernel_of<Blocks<OCTAVO_INT8Z>>();
  default: return kernel_of<Blocks<OCTAVO_E4M3>>();
  }
}

} // namespace octavo
