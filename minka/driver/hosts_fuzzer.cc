// Any text names workers, or is refused with a message.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "minka/base/check.h"
#include "minka/driver/hosts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string token_file;
  const auto hosts = minka::HostsFromJson({reinterpret_cast<const char*>(data), size}, token_file);
  if (hosts.ok()) MINKA_CHECK(!hosts->workers.empty() && !token_file.empty());
  return 0;
}
