#include "benchmarks/support/flax_modules.h"

#include <cstdlib>
#include <filesystem>

#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"

namespace minka {
namespace {

namespace fs = std::filesystem;

constexpr char kScript[] = "benchmarks/prediction/make_modules.py";

std::string IndexOf(const std::string& folder) { return folder + "/index.json"; }

// Name -> batch inputs.
absl::StatusOr<nlohmann::ordered_json> ReadIndex(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(IndexOf(folder)));
  return ParseJson(text);
}

}  // namespace

absl::Status MakeFlaxModules(const std::string& python, const std::string& folder) {
  std::error_code none;  // a file that is missing is older than every other
  if (fs::last_write_time(IndexOf(folder), none) >= fs::last_write_time(kScript, none)) {
    return absl::OkStatus();
  }
  const std::string command = fmt::format("{} {} {} >&2", python, kScript, folder);
  if (std::system(command.c_str()) == 0) return absl::OkStatus();
  return FailedPrecondition(
      "no modules: {} failed; `make build/stamps/deps-bench` installs what it needs", command);
}

absl::StatusOr<std::vector<std::string>> FlaxModuleNames(const std::string& folder) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json index, ReadIndex(folder));
  std::vector<std::string> names;
  for (const auto& module : index.items()) names.push_back(module.key());
  return names;
}

absl::StatusOr<Step> LoadFlaxModule(const std::string& name, const std::string& folder) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json batch_inputs, ReadIndex(folder));
  if (!batch_inputs.contains(name)) {
    return NotFound("{} lists no module {}; make the modules again", IndexOf(folder), name);
  }
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(fmt::format("{}/{}.pb", folder, name)));
  ASSIGN_OR_RETURN(Module module, ImportHlo(bytes));
  return MakeStep(std::move(module),
                  {.batch_inputs = batch_inputs[name].get<std::vector<std::string>>()});
}

}  // namespace minka
