// `minka diff`: two plans side by side.
#include <map>
#include <memory>
#include <set>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/report/comparison.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/tools/command.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct DiffFlags {
  std::string before, after, module;
};

std::map<std::string, std::string> ShardingsByName(const PlanOfStep& loaded) {
  const Mesh& mesh = loaded.plan.stage.mesh;
  std::map<std::string, std::string> shardings;
  for (const TensorOnMesh& tensor : TensorsOfPlan(loaded.prepared, loaded.plan)) {
    // Operations have numbers for names, which mean nothing across modules.
    if (tensor.kind == TensorKind::kActivation) continue;
    shardings[std::string(TensorKindName(tensor.kind)) + " " + tensor.name] =
        ToString(tensor.sharding, mesh);
  }
  return shardings;
}

// Tensors whose sharding differs, equal layers once.
Table ShardingChanges(const PlanOfStep& before, const PlanOfStep& after) {
  const auto old_shardings = ShardingsByName(before), new_shardings = ShardingsByName(after);
  std::set<std::string> names;
  for (const auto& [name, sharding] : old_shardings) names.insert(name);
  for (const auto& [name, sharding] : new_shardings) names.insert(name);
  const auto find = [](const auto& shardings, const std::string& name) {
    const auto found = shardings.find(name);
    return found == shardings.end() ? std::string("none") : found->second;
  };
  std::map<std::tuple<std::string, std::string, std::string>, int> counts;
  for (const std::string& name : names) {
    const std::string old_one = find(old_shardings, name), new_one = find(new_shardings, name);
    if (old_one != new_one) ++counts[{FoldLayers(name).pattern, old_one, new_one}];
  }
  Table table({{"changed"}, {"count", Align::kRight}, {"before"}, {"after"}});
  for (const auto& [change, count] : counts) {
    const auto& [name, old_one, new_one] = change;
    table.Add({name, fmt::format("{}", count), old_one, new_one});
  }
  return table;
}

absl::Status RunDiff(const DiffFlags& flags) {
  ASSIGN_OR_RETURN(const PlanOfStep before, ReadPlan(flags.before, flags.module));
  ASSIGN_OR_RETURN(const PlanOfStep after, ReadPlan(flags.after, flags.module));
  std::string text;
  if (before.plan.module_hash != after.plan.module_hash) {
    text += fmt::format("The plans are of different modules ({} and {}).\n\n",
                        before.plan.module_hash, after.plan.module_hash);
  }
  const auto row = [](const std::string& path, const PlanOfStep& loaded) {
    return ComparisonRow{.method = fmt::format("{} ({})", path, loaded.plan.method),
                         .mesh = loaded.plan.stage.mesh.ToString(),
                         .plan = &loaded.plan};
  };
  text += ComparisonTable({row(flags.before, before), row(flags.after, after)}) + "\n";
  const Table changes = ShardingChanges(before, after);
  text += changes.empty() ? "All parameters, inputs and outputs lie alike.\n" : changes.ToString();
  return Print(text);
}

}  // namespace

void AddDiffCommand(CLI::App& app, CommandLine& line) {
  const auto flags = std::make_shared<DiffFlags>();
  CLI::App* const command =
      app.add_subcommand("diff", "Compare two plans: times, memory, and what lies differently");
  command->add_option("before", flags->before, "A plan.json")->required();
  command->add_option("after", flags->after, "Another one")->required();
  command->add_option(
      "--module", flags->module,
      "The module or model that the plans are of. Default: the ones that they name");
  command->callback([flags, &line] { Finish(RunDiff(*flags), line); });
}

}  // namespace minka
