#include <cstddef>
#include <cstdint>

#include "minka/tensors/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  minka::ParseTensors({reinterpret_cast<const char*>(data), size}).status().IgnoreError();
  return 0;
}
