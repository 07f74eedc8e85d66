// What `--dump-to` writes about a step and its program, as text.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/lowering/spmd.h"
#include "minka/plan/plan.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {

// A folder that files are written to; without a path nothing is written.
class DumpFolder {
 public:
  DumpFolder() = default;
  // Makes the folder where it is missing.
  static absl::StatusOr<DumpFolder> Create(const std::string& path);

  bool enabled() const { return !path_.empty(); }
  absl::Status Write(const std::string& name, std::string_view contents) const;

 private:
  std::string path_;
};

// "x  f32[8,4]  [data,-]  on each device f32[4,4], 64 bytes".
std::string DescribeArray(const std::string& name, const Shape& shape, const Sharding& sharding,
                          const Mesh& mesh);
// One line per parameter or result: number, name, role, shape, sharding, what one device holds.
std::string DescribeInputs(const Step& step, const SpmdProgram& program, const Mesh& mesh);
std::string DescribeOutputs(const Step& step, const SpmdProgram& program, const Mesh& mesh);

// JSON: what the plan predicts and what the compiler laid out, bytes per device.
std::string DescribeMemory(const Plan& plan, const pjrt::MemoryStatistics& compiled);

struct CompileTime {
  std::string step;
  double seconds = 0;
};

// JSON: configuration, versions, seconds per step of the compiler.
std::string DescribeManifest(const std::map<std::string, std::string>& configuration,
                             const std::map<std::string, std::string>& versions,
                             const std::string& module_hash, const Mesh& mesh,
                             const std::vector<CompileTime>& times);

}  // namespace minka
