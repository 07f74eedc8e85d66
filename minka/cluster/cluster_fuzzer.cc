// Any text names a cluster or is one, or is refused with a message; what is read writes and reads
// back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "minka/base/check.h"
#include "minka/cluster/cluster.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)minka::Cluster::Preset(text);
  const auto cluster = minka::Cluster::FromJson(text);
  if (!cluster.ok()) return 0;
  MINKA_CHECK(cluster->num_devices() >= 1);
  const auto again = minka::Cluster::FromJson(cluster->ToJson());
  MINKA_CHECK(again.ok() && again->ToJson() == cluster->ToJson());
  return 0;
}
