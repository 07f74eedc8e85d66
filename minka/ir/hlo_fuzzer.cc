// Arbitrary bytes as module: `make fuzz`, or by hand
//
//   cmake --preset asan && ninja -C build/asan hlo_fuzzer
//   mkdir -p build/asan/corpus/hlo_fuzzer
//   build/asan/bin/hlo_fuzzer -max_total_time=60 build/asan/corpus/hlo_fuzzer \
//       minka/ir/testdata/hlo_fuzzer_corpus
//
// Bytes that start like HLO text are read as text, others as proto. What is accepted must be
// accepted again after export, and from then on not change.
#include <cstdint>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

void CheckRoundTrip(const Module& module) {
  const auto first = ImportHlo(ExportHlo(module));
  MINKA_CHECK(first.ok(), "{}", Message(first.status()));
  const std::string bytes = ExportHlo(*first);
  const auto second = ImportHlo(bytes);
  MINKA_CHECK(second.ok(), "{}", Message(second.status()));
  MINKA_CHECK(ExportHlo(*second) == bytes, "the second export differs");
  const std::string text = HloText(*first);
  const auto parsed = ParseHloText(text);
  MINKA_CHECK(parsed.ok(), "{} in\n{}", Message(parsed.status()), text);
  MINKA_CHECK(HloText(*parsed) == text, "the text changes\n{}", text);
}

}  // namespace
}  // namespace minka

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto module =
      bytes.starts_with("Hlo") ? minka::ParseHloText(bytes) : minka::ImportHlo(bytes);
  if (module.ok()) minka::CheckRoundTrip(*module);
  return 0;
}
