#include "minka/report/plan_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

#include "fmt/ranges.h"
#include "minka/report/format.h"
#include "minka/report/table.h"
#include "minka/report/tensors_of_plan.h"

namespace minka {
namespace {

// Tensors of equal layers with equal shape, sharding and labels.
struct TensorGroup {
  const TensorOnMesh* first = nullptr;
  std::string pattern;
  std::vector<std::string> numbers;
  int64_t bytes_per_device = 0;  // of all of them

  int count() const { return static_cast<int>(numbers.size()); }
};

std::string NameOf(const TensorOnMesh& tensor) {
  return tensor.path.empty() ? tensor.name : tensor.path;
}

std::vector<TensorGroup> GroupLayers(const std::vector<const TensorOnMesh*>& tensors,
                                     const Mesh& mesh) {
  std::vector<TensorGroup> groups;
  std::map<std::tuple<std::string, std::string, std::string, std::vector<std::string>>, size_t>
      index;
  for (const TensorOnMesh* const tensor : tensors) {
    const FoldedName folded = FoldLayers(NameOf(*tensor));
    const auto key = std::tuple(folded.pattern, ToString(tensor->shape),
                                ToString(tensor->sharding, mesh), tensor->labels);
    const auto [found, is_new] = index.try_emplace(key, groups.size());
    if (is_new) groups.push_back({.first = tensor, .pattern = folded.pattern});
    groups[found->second].numbers.push_back(folded.numbers);
    groups[found->second].bytes_per_device += tensor->bytes_per_device;
  }
  return groups;
}

Table TensorGroupTable(const std::string& title, const std::vector<TensorGroup>& groups,
                       size_t max_rows, const Mesh& mesh) {
  std::vector<Column> columns = {{title}, {"count", Align::kRight}, {"shape"}, {"sharding"}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) columns.push_back({mesh.axis(axis).name});
  columns.push_back({"bytes/device", Align::kRight});
  Table table(columns);
  std::map<std::string, std::vector<std::string>> numbers;  // by pattern
  for (const TensorGroup& group : groups) {
    std::ranges::copy(group.numbers, std::back_inserter(numbers[group.pattern]));
  }
  int64_t rest_bytes = 0, rest_count = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const TensorGroup& group = groups[i];
    if (i >= max_rows) {
      rest_bytes += group.bytes_per_device;
      rest_count += group.count();
      continue;
    }
    const std::string name =
        group.count() == 1 ? NameOf(*group.first)
                           : NameOfLayers(group.pattern, group.numbers, numbers[group.pattern]);
    std::vector<std::string> cells = {name, fmt::format("{}", group.count()),
                                      ToString(group.first->shape),
                                      ToString(group.first->sharding, mesh)};
    cells.insert(cells.end(), group.first->labels.begin(), group.first->labels.end());
    cells.push_back(FormatBytes(group.bytes_per_device));
    table.Add(std::move(cells));
  }
  if (rest_count > 0) {
    std::vector<std::string> cells = {"smaller ones", fmt::format("{}", rest_count), "", ""};
    cells.resize(columns.size() - 1);
    cells.push_back(FormatBytes(rest_bytes));
    table.Add(std::move(cells));
  }
  return table;
}

bool LiesAsItsParameter(const TensorOnMesh& tensor,
                        const std::map<std::string, const TensorOnMesh*>& parameters) {
  const auto found = parameters.find(tensor.owner);
  return found != parameters.end() && found->second->sharding == tensor.sharding;
}

// Parameters, optimizer state and inputs.
std::string StoredTable(const std::vector<TensorOnMesh>& tensors, const Mesh& mesh) {
  std::map<std::string, const TensorOnMesh*> parameters;
  for (const TensorOnMesh& tensor : tensors) {
    if (tensor.kind == TensorKind::kParameter) parameters[tensor.name] = &tensor;
  }
  std::vector<const TensorOnMesh*> shown;
  int num_alike = 0;
  int64_t bytes_alike = 0;
  for (const TensorOnMesh& tensor : tensors) {
    if (tensor.kind == TensorKind::kActivation || tensor.kind == TensorKind::kOutput) continue;
    if (LiesAsItsParameter(tensor, parameters)) {
      ++num_alike;
      bytes_alike += tensor.bytes_per_device;
    } else {
      shown.push_back(&tensor);
    }
  }
  std::string text =
      TensorGroupTable("parameters", GroupLayers(shown, mesh), SIZE_MAX, mesh).ToString();
  if (num_alike > 0) {
    text += fmt::format("{} tensors of the optimizer, each as its parameter: {} per device\n",
                        num_alike, FormatBytes(bytes_alike));
  }
  return text;
}

std::string AxesText(AxisSet axes, const Mesh& mesh) {
  std::vector<std::string> names;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (axes.contains(axis)) names.push_back(mesh.axis(axis).name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

// What a collective is for: the value that it brings together.
std::string PurposeOf(const PlannedCollective& collective, const Step& step,
                      const StagePlan& stage) {
  const Computation& entry = step.module.entry_computation();
  const InstructionId id = collective.reshards.empty()
                               ? collective.instruction
                               : stage.reshards[collective.reshards.front()].value.instruction;
  const Instruction& instruction = entry.instructions[id];
  if (instruction.opcode == Opcode::kParameter) {
    return step.parameters[instruction.As<ParameterAttributes>().number].name;
  }
  return instruction.op_name.empty() ? instruction.name : instruction.op_name;
}

Phase PhaseOf(const PlannedCollective& collective, const StagePlan& stage) {
  if (collective.reshards.empty()) return stage.ops[collective.instruction].phase;
  const InstructionId before = stage.reshards[collective.reshards.front()].before;
  return before < static_cast<InstructionId>(stage.ops.size()) ? stage.ops[before].phase
                                                               : Phase::kApply;
}

std::string CollectivesTable(const Step& step, const StagePlan& stage) {
  constexpr std::string_view kPhases[] = {"forward", "backward", "apply"};
  struct Row {
    int64_t count = 0, num_values = 0, bytes = 0;
    double us = 0;
    std::string purpose;
  };
  std::map<std::tuple<std::string, Phase, std::string, std::string>, Row> rows;
  for (const PlannedCollective& collective : ListCollectives(step.module, stage)) {
    Row& row =
        rows[{collective.kind, PhaseOf(collective, stage), AxesText(collective.axes, stage.mesh),
              std::string(TypeName(collective.type))}];
    ++row.count;
    row.num_values += collective.num_values;
    row.bytes += collective.bytes;
    row.us += collective.cost_us;
    if (row.purpose.empty()) row.purpose = FoldLayers(PurposeOf(collective, step, stage)).pattern;
  }
  if (rows.empty()) return "no collectives\n";
  Table table({{"collectives per step"},
               {"phase"},
               {"axes"},
               {"type"},
               {"count", Align::kRight},
               {"values", Align::kRight},
               {"bytes/device", Align::kRight},
               {"time", Align::kRight},
               {"such as"}});
  for (const auto& [key, row] : rows) {
    const auto& [kind, phase, axes, type] = key;
    table.Add({kind, std::string(kPhases[static_cast<int>(phase)]), axes, type,
               fmt::format("{}", row.count), fmt::format("{}", row.num_values),
               FormatBytes(row.bytes), FormatTime(row.us), row.purpose});
  }
  return table.ToString();
}

std::string Objective(const Plan& plan, double value) {
  return plan.cost_model == "alpa" ? fmt::format("{:.6g}", value) : FormatTime(value);
}

std::string Headline(const Step& step, const Plan& plan) {
  const StagePlan& stage = plan.stage;
  std::string text =
      fmt::format("{} on mesh {} by {}: {} parameters, {} operations\n", step.module.name,
                  stage.mesh.ToString(), plan.method, FormatCount(plan.num_parameters),
                  step.module.entry_computation().num_instructions());
  text += fmt::format("  step time    {} predicted (cost model {})\n",
                      FormatTime(plan.step_time_us), plan.cost_model);
  text += fmt::format("  peak memory  {} per device ({}), of it state {}\n",
                      FormatBytes(plan.peak_memory_bytes),
                      plan.memory_tier == MemoryTier::kCompiled ? "compiled" : "estimated",
                      FormatBytes(plan.state_bytes_per_device));
  text += fmt::format("  objective    {}, lower bound {}, {} {} ({}, {:.1f} s of search)\n",
                      Objective(plan, plan.objective), Objective(plan, plan.lower_bound),
                      plan.gap ? "gap" : "sharding gap",
                      FormatPercent(plan.gap.value_or(plan.sharding_gap)), plan.stop_reason,
                      plan.search_seconds);
  if (!plan.remat.empty()) text += "  recomputed   " + FormatRemat(plan.remat) + "\n";
  text += fmt::format("  replicated   {} of the flops, for want of a rule\n",
                      FormatPercent(plan.unsupported_flops_share));
  if (plan.memory_price > 0) {
    text += fmt::format("  memory price {} less for every MiB more per device\n",
                        Objective(plan, plan.memory_price * (1 << 20)));
  }
  return text;
}

std::string NotesText(const Plan& plan) {
  std::string text;
  for (const auto& [opcode, count] : plan.unsupported_ops) {
    text += fmt::format("note: {} x {} runs whole on every device, because it has no rule\n", count,
                        opcode);
  }
  for (const std::string& note : plan.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace

std::string PlanTable(const Step& prepared, const Plan& plan, const PlanTableOptions& options) {
  const StagePlan& stage = plan.stage;
  const std::vector<TensorOnMesh> tensors = TensorsOfPlan(prepared, plan);
  std::vector<const TensorOnMesh*> kept;
  for (const TensorOnMesh& tensor : tensors) {
    if (tensor.kind == TensorKind::kActivation && tensor.kept) kept.push_back(&tensor);
  }
  std::string text = Headline(prepared, plan) + "\n" + StoredTable(tensors, stage.mesh);
  if (!kept.empty()) {
    std::vector<TensorGroup> groups = GroupLayers(kept, stage.mesh);
    std::ranges::stable_sort(groups, std::ranges::greater{}, &TensorGroup::bytes_per_device);
    text += "\n" + TensorGroupTable("activations kept for the backward pass", groups,
                                    static_cast<size_t>(options.max_activations), stage.mesh)
                       .ToString();
  }
  text += "\n" + CollectivesTable(prepared, stage);
  const std::string notes = NotesText(plan);
  if (!notes.empty()) text += "\n" + notes;
  return text;
}

std::string StoredAndCollectives(const Step& step, const Plan& plan) {
  return StoredTable(TensorsOfPlan(step, plan), plan.stage.mesh) + "\n" +
         CollectivesTable(step, plan.stage);
}

}  // namespace minka
