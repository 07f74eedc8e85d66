#include <cstddef>
#include <cstdint>

#include "minka/base/check.h"
#include "minka/tensors/checkpoint_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = minka::ParseManifest({reinterpret_cast<const char*>(data), size});
  if (!manifest.ok()) return 0;
  const auto again = minka::ParseManifest(minka::ManifestToJson(*manifest));
  MINKA_CHECK(again.ok() && *again == *manifest, "a manifest does not parse back");
  return 0;
}
