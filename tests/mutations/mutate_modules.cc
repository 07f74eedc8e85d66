// Damaged modules through the reader, the verifier and the command, by seeds that can be taken up
// again:
//
//   mutate_modules read FIRST_SEED COUNT FILE...    import, verify, export, import again; in
//   process mutate_modules run FIRST_SEED COUNT FILE...     `minka run` on two devices, as a child
//
// Prints every 1,000 (read) or 50 (run) seeds how many were accepted and refused, so that a run
// that was cut off goes on at the last seed printed. A crash of the reader is a crash of this
// program, named by the seed on the line before; `run` counts as a failure what ends by a signal,
// after two minutes, or with an exit code above 125, and keeps the module.
#include <sys/wait.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/module_equality.h"
#include "tests/support/mutation.h"

namespace minka {
namespace {

struct Totals {
  int64_t accepted = 0, refused = 0, failed = 0;
};

std::string Damaged(const std::vector<std::string>& originals, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes = originals[random() % originals.size()];
  const auto num_mutations = 1 + random() % 3;
  // Damage to bytes breaks the proto most of the time, damage to fields leaves it one.
  const bool by_fields = random() % 4 != 0;
  for (size_t i = 0; i < num_mutations; ++i) {
    by_fields ? MutateFields(random, bytes) : MutateBytes(random, bytes);
  }
  return bytes;
}

// Accepted modules must survive a round trip.
void ReadOne(const std::string& bytes, uint64_t seed, Totals& totals) {
  const auto module = ImportHlo(bytes);
  ++(module.ok() ? totals.accepted : totals.refused);
  if (!module.ok()) return;
  const auto first = ImportHlo(ExportHlo(*module));
  const auto second = first.ok() ? ImportHlo(ExportHlo(*first)) : first;
  if (second.ok() && Difference(*first, *second).empty()) return;
  ++totals.failed;
  fmt::print("seed {}: {}\n", seed,
             second.ok() ? Difference(*first, *second) : Message(second.status()));
}

void RunOne(const std::string& bytes, uint64_t seed, Totals& totals) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("minka_mutation_{}.pb", seed)).string();
  if (!WriteFile(path, bytes).ok()) return;
  const int status = std::system(fmt::format("timeout 120 {} run {} --mesh 2 --random-inputs 1 "
                                             "--time-limit 5s --cost-model roofline > /dev/null "
                                             "2> {}.err",
                                             MINKA_BINARY, path, path)
                                     .c_str());
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (exit_code == 0) {
    ++totals.accepted;
  } else if (exit_code >= 1 && exit_code < 124) {
    ++totals.refused;
  } else {
    ++totals.failed;
    fmt::print("seed {}: exit code {}, module {}\n", seed, exit_code, path);
    return;
  }
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".err");
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc < 5 || (mode != "read" && mode != "run")) {
    fmt::print(stderr, "usage: mutate_modules read|run FIRST_SEED COUNT FILE...\n");
    return 2;
  }
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t count = std::strtoull(argv[3], nullptr, 10);
  std::vector<std::string> originals;
  for (int i = 4; i < argc; ++i) {
    auto bytes = ReadFile(argv[i]);
    if (!bytes.ok()) {
      fmt::print(stderr, "{}\n", Message(bytes.status()));
      return 2;
    }
    // Text is damaged as the proto that it means.
    if (bytes->starts_with("Hlo")) {
      const auto module = ParseHloText(*bytes);
      if (module.ok()) *bytes = ExportHlo(*module);
    }
    originals.push_back(*std::move(bytes));
  }
  Totals totals;
  const uint64_t step = mode == "read" ? 1000 : 50;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const std::string bytes = Damaged(originals, seed);
    mode == "read" ? ReadOne(bytes, seed, totals) : RunOne(bytes, seed, totals);
    if ((seed + 1 - first) % step == 0 || seed + 1 == first + count) {
      fmt::print("next seed {}: {} accepted, {} refused, {} failed\n", seed + 1, totals.accepted,
                 totals.refused, totals.failed);
      std::fflush(stdout);
    }
  }
  return totals.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) { return minka::Main(argc, argv); }
