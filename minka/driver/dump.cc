#include "minka/driver/dump.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "minka/base/file.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(size_t number, const std::string& name, std::string_view role, const Shape& shape,
                 const Sharding& sharding, const Mesh& mesh) {
  return fmt::format("{:4}  {:8}  {}\n", number, role, DescribeArray(name, shape, sharding, mesh));
}

}  // namespace

std::string DescribeArray(const std::string& name, const Shape& shape, const Sharding& sharding,
                          const Mesh& mesh) {
  const Shape local = LocalShape(shape, sharding, mesh);
  return fmt::format("{}  {}  {}  on each device {}, {} bytes", name, ToString(shape),
                     ToString(sharding, mesh), ToString(local), local.num_bytes());
}

absl::StatusOr<DumpFolder> DumpFolder::Create(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return InvalidArgument("{}: {}; name a folder that can be written", path, error.message());
  DumpFolder folder;
  folder.path_ = path;
  return folder;
}

absl::Status DumpFolder::Write(const std::string& name, std::string_view contents) const {
  if (!enabled()) return absl::OkStatus();
  return WriteFile((std::filesystem::path(path_) / name).string(), contents);
}

std::string DescribeInputs(const Step& step, const SpmdProgram& program, const Mesh& mesh) {
  const Computation& entry = step.module.entry_computation();
  std::string text;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const ParameterInfo& info = step.parameters[i];
    std::string role(RoleName(info.role));
    if (info.batch_dim >= 0) role += fmt::format(":{}", info.batch_dim);
    text += Line(i, info.name, role, entry.instructions[entry.parameters[i]].shape(),
                 program.parameters[i], mesh);
  }
  return text;
}

std::string DescribeOutputs(const Step& step, const SpmdProgram& program, const Mesh& mesh) {
  const Computation& entry = step.module.entry_computation();
  std::string text;
  for (size_t i = 0; i < step.results.size(); ++i) {
    text += Line(i, step.results[i].name, RoleName(step.results[i].role),
                 entry.shape(entry.results[i]), program.results[i], mesh);
  }
  return text;
}

std::string DescribeMemory(const Plan& plan, const pjrt::MemoryStatistics& compiled) {
  const Json json = {
      {"predicted_peak_memory_bytes", plan.peak_memory_bytes},
      {"memory_tier", plan.memory_tier == MemoryTier::kCompiled ? "compiled" : "estimated"},
      {"state_bytes", plan.state_bytes_per_device},
      {"argument_bytes", compiled.argument_bytes},
      {"output_bytes", compiled.output_bytes},
      {"alias_bytes", compiled.alias_bytes},
      {"temp_bytes", compiled.temp_bytes},
      {"generated_code_bytes", compiled.generated_code_bytes},
      {"total_allocation_bytes", compiled.total_bytes()}};
  return json.dump(1) + "\n";
}

std::string DescribeManifest(const std::map<std::string, std::string>& configuration,
                             const std::map<std::string, std::string>& versions,
                             const std::string& module_hash, const Mesh& mesh,
                             const std::vector<CompileTime>& times) {
  Json json = {{"schema_version", 1},     {"configuration", configuration},
               {"versions", versions},    {"module_hash", module_hash},
               {"mesh", mesh.ToString()}, {"compile_seconds", Json::array()}};
  for (const CompileTime& time : times) {
    json["compile_seconds"].push_back({{"step", time.step}, {"seconds", time.seconds}});
  }
  return json.dump(1) + "\n";
}

}  // namespace minka
