// Any text is a trace with a measured step, or refused with a message; what is read is times.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "minka/base/check.h"
#include "minka/report/chrome_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto meshes = minka::MeasuredEvents({reinterpret_cast<const char*>(data), size});
  if (!meshes.ok()) return 0;
  for (const auto& events : *meshes) {
    for (const minka::TracedEvent& event : events) {
      MINKA_CHECK(event.begin_us >= 0 && event.end_us >= event.begin_us &&
                  std::isfinite(event.end_us));
    }
  }
  return 0;
}
