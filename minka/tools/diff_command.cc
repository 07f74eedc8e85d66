// `minka diff`: two plans side by side, of one mesh or of pipelines.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/pipeline_table.h"
#include "minka/report/table.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/tools/command.h"
#include "minka/tools/step_source.h"

namespace minka {
namespace {

struct DiffFlags {
  std::string before, after, module;
};

// Where state, an input or an output lies.
struct Place {
  std::vector<size_t> stages;  // of a pipeline
  std::string sharding;        // those of its stages, where they differ
};

// What of a plan is compared.
struct PlanFacts {
  std::string module_hash;
  std::map<std::string, std::string> figures;  // by kFigures
  std::map<std::string, Place> places;         // by kind and name
};

// In the order of the table.
constexpr const char* kFigures[] = {
    "method", "mesh",          "layers",      "schedule",   "micro-batches", "step time",
    "bubble", "memory/device", "of it state", "recomputed", "collectives",   "sent between meshes",
    "gap"};

std::string CountAndBytes(int64_t count, int64_t bytes) {
  return count == 0 ? "none" : fmt::format("{}, {}", count, FormatBytes(bytes));
}

// Adds up those of a plan of one mesh.
void AddCollectives(const Plan& plan, int64_t& count, int64_t& bytes) {
  for (const auto& [kind, number] : plan.collectives) count += number;
  for (const auto& [kind, number] : plan.collective_bytes) bytes += number;
}

// `stage`: nullopt: it is the plan of one mesh. `names`: of what is compared, and by which name.
void AddPlaces(const Step& prepared, const Plan& plan, std::optional<size_t> stage,
               const std::map<std::string, std::string>& names, PlanFacts& facts) {
  for (const TensorOnMesh& tensor : TensorsOfPlan(prepared, plan)) {
    // Operations have numbers for names, which mean nothing across modules.
    const auto name = names.find(tensor.name);
    if (tensor.kind == TensorKind::kActivation || name == names.end()) continue;
    Place& place = facts.places[fmt::format("{} {}", TensorKindName(tensor.kind), name->second)];
    if (stage && (place.stages.empty() || place.stages.back() != *stage)) {
      place.stages.push_back(*stage);
    }
    const std::string sharding = ToString(tensor.sharding, plan.stage.mesh);
    if (place.sharding.find(sharding) != std::string::npos) continue;
    place.sharding += (place.sharding.empty() ? "" : ", ") + sharding;
  }
}

// Rows go by the name of what they are rows of.
std::map<std::string, std::string> NamesOf(const Step& given, const Step& step,
                                           const StepRows& rows) {
  std::map<std::string, std::string> names;
  for (size_t i = 0; i < given.parameters.size(); ++i) {
    for (const int row : rows.parameters[i]) {
      names[step.parameters[row].name] = given.parameters[i].name;
    }
  }
  for (size_t i = 0; i < given.results.size(); ++i) {
    for (const int row : rows.results[i]) {
      names[step.results[row].name] = given.results[i].name;
    }
  }
  return names;
}

PlanFacts FactsOf(const PlanOfStep& loaded) {
  const Plan& plan = loaded.plan;
  int64_t count = 0, bytes = 0;
  AddCollectives(plan, count, bytes);
  PlanFacts facts{.module_hash = HashText(ModuleHash(loaded.step.module)),
                  .figures = {{"method", plan.method},
                              {"mesh", plan.stage.mesh.ToString()},
                              {"micro-batches", fmt::to_string(plan.num_micro_batches)},
                              {"step time", FormatTime(plan.step_time_us)},
                              {"memory/device", FormatBytes(plan.peak_memory_bytes)},
                              {"of it state", FormatBytes(plan.state_bytes_per_device)},
                              {"recomputed", plan.remat.empty() ? "" : FormatRemat(plan.remat)},
                              {"collectives", CountAndBytes(count, bytes)},
                              {"gap", plan.gap ? FormatPercent(*plan.gap) : "-"}}};
  AddPlaces(loaded.prepared, plan, std::nullopt,
            NamesOf(loaded.step, loaded.step, WholeRows(loaded.step)), facts);
  return facts;
}

PlanFacts FactsOf(const PipelineOfStep& loaded) {
  const PipelinePlan& plan = loaded.planned.plan;
  const PipelineFigures figures = FiguresOf(plan);
  int64_t count = 0, bytes = 0, messages = 0, sent_bytes = 0, state = 0;
  for (const PipelineStagePlan& stage : plan.stages) {
    AddCollectives(stage.plan, count, bytes);
    state = std::max(state, stage.plan.state_bytes_per_device);
  }
  for (const PlannedTransfers& transfers : plan.transfers) {
    messages += transfers.num_messages;
    sent_bytes += transfers.bytes;
  }
  PlanFacts facts{.module_hash = HashText(ModuleHash(loaded.step.module)),
                  .figures = {{"method", std::string(kPipelineMethod)},
                              {"mesh", MeshesText(figures.meshes)},
                              {"layers", fmt::format("{}", fmt::join(figures.num_layers, ","))},
                              {"schedule", plan.schedule},
                              {"micro-batches", fmt::to_string(plan.num_micro_batches)},
                              {"step time", FormatTime(plan.step_time_us)},
                              {"bubble", FormatPercent(plan.bubble)},
                              {"gap", plan.gap ? FormatPercent(*plan.gap) : "-"},
                              {"memory/device", FormatBytes(plan.peak_memory_bytes)},
                              {"of it state", FormatBytes(state)},
                              {"recomputed", plan.remat.empty() ? "" : FormatRemat(plan.remat)},
                              {"collectives", CountAndBytes(count, bytes)},
                              {"sent between meshes", CountAndBytes(messages, sent_bytes)}}};
  const SplitStep& split = loaded.planned.split;
  const std::map<std::string, std::string> names = NamesOf(loaded.step, split.step, split.rows);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    AddPlaces(loaded.planned.staged.stages[i].step, plan.stages[i].plan, i, names, facts);
  }
  return facts;
}

PlanFacts FactsOf(const PlanFile& file) {
  return std::visit([](const auto& loaded) { return FactsOf(loaded); }, file);
}

Table FiguresTable(const DiffFlags& flags, const PlanFacts& before, const PlanFacts& after) {
  Table table({{""}, {flags.before}, {flags.after}});
  const auto find = [](const PlanFacts& facts, const char* figure) {
    const auto found = facts.figures.find(figure);
    return found == facts.figures.end() || found->second.empty() ? std::string("-") : found->second;
  };
  for (const char* const figure : kFigures) {
    const std::string old_one = find(before, figure), new_one = find(after, figure);
    if (old_one != "-" || new_one != "-") table.Add({figure, old_one, new_one});
  }
  return table;
}

// Stage by stage what differs: "0-2 -> 0-1".
Table StageChanges(const PipelinePlan& before, const PipelinePlan& after) {
  Table table({{"stage", Align::kRight},
               {"layers"},
               {"mesh"},
               {"forward"},
               {"backward"},
               {"apply"},
               {"memory/device"}});
  const auto cells_of = [](const PipelinePlan& plan, size_t stage) -> std::vector<std::string> {
    if (stage >= plan.stages.size()) return std::vector<std::string>(6, "none");
    const PipelineStagePlan& of_stage = plan.stages[stage];
    return {LayersText(of_stage.plan.stage.layers),
            of_stage.plan.stage.mesh.ToString(),
            FormatTime(of_stage.forward_us),
            FormatTime(of_stage.backward_us + of_stage.weight_gradient_us),
            FormatTime(of_stage.apply_us),
            FormatBytes(of_stage.plan.peak_memory_bytes)};
  };
  for (size_t stage = 0; stage < std::max(before.stages.size(), after.stages.size()); ++stage) {
    const std::vector<std::string> old_cells = cells_of(before, stage),
                                   new_cells = cells_of(after, stage);
    std::vector<std::string> row = {fmt::to_string(stage)};
    for (size_t i = 0; i < old_cells.size(); ++i) {
      row.push_back(old_cells[i] == new_cells[i]
                        ? old_cells[i]
                        : fmt::format("{} -> {}", old_cells[i], new_cells[i]));
    }
    table.Add(std::move(row));
  }
  return table;
}

// Tensors whose sharding differs, equal layers once; how many others lie on other stages.
std::string PlaceChanges(const PlanFacts& before, const PlanFacts& after) {
  std::set<std::string> names;
  for (const auto& [name, place] : before.places) names.insert(name);
  for (const auto& [name, place] : after.places) names.insert(name);
  const auto find = [](const PlanFacts& facts, const std::string& name) {
    const auto found = facts.places.find(name);
    return found == facts.places.end() ? Place{.sharding = "none"} : found->second;
  };
  std::map<std::tuple<std::string, std::string, std::string>, int> counts;
  int num_moved = 0;
  for (const std::string& name : names) {
    const Place old_one = find(before, name), new_one = find(after, name);
    if (old_one.sharding != new_one.sharding) {
      ++counts[{FoldLayers(name).pattern, old_one.sharding, new_one.sharding}];
    } else if (old_one.stages != new_one.stages) {
      ++num_moved;
    }
  }
  if (counts.empty() && num_moved == 0) return "All parameters, inputs and outputs lie alike.\n";
  Table table({{"changed"}, {"count", Align::kRight}, {"before"}, {"after"}});
  for (const auto& [change, count] : counts) {
    const auto& [name, old_one, new_one] = change;
    table.Add({name, fmt::format("{}", count), old_one, new_one});
  }
  std::string text = counts.empty() ? "" : table.ToString();
  if (num_moved > 0) text += fmt::format("{} others lie alike, on other stages\n", num_moved);
  return text;
}

absl::Status RunDiff(const DiffFlags& flags) {
  ASSIGN_OR_RETURN(const PlanFile before, ReadPlanFile(flags.before, flags.module));
  ASSIGN_OR_RETURN(const PlanFile after, ReadPlanFile(flags.after, flags.module));
  const PlanFacts old_facts = FactsOf(before), new_facts = FactsOf(after);
  std::string text;
  if (before.index() == after.index() && old_facts.module_hash != new_facts.module_hash) {
    text += fmt::format("The plans are of different modules ({} and {}).\n\n",
                        old_facts.module_hash, new_facts.module_hash);
  }
  text += FiguresTable(flags, old_facts, new_facts).ToString() + "\n";
  const auto* const old_pipeline = std::get_if<PipelineOfStep>(&before);
  const auto* const new_pipeline = std::get_if<PipelineOfStep>(&after);
  if (old_pipeline && new_pipeline) {
    text += StageChanges(old_pipeline->planned.plan, new_pipeline->planned.plan).ToString() + "\n";
  }
  return Print(text + PlaceChanges(old_facts, new_facts));
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
