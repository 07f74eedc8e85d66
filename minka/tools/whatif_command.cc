// `minka whatif`: one step planned under several conditions, side by side.
#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/report/format.h"
#include "minka/report/pipeline_comparison.h"
#include "minka/report/table.h"
#include "minka/tools/child_process.h"
#include "minka/tools/command.h"
#include "minka/tools/local_cluster.h"
#include "minka/tools/planning_flags.h"
#include "minka/tools/quantities.h"
#include "minka/tools/step_source.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Flags of `minka plan` that may have several values, joined by commas; those whose values have
// commas inside are given several times.
constexpr std::array<std::string_view, 9> kListed = {
    "--num-devices", "--global-batch", "--sequence",     "--layers",    "--micro-batches",
    "--method",      "--schedule",     "--memory-limit", "--cost-model"};
constexpr std::array<std::string_view, 2> kRepeated = {"--mesh", "--cluster"};

constexpr size_t kMostPlans = 1000;

struct VariedFlag {
  std::string name;  // "--mesh"
  std::vector<std::string> values;
};

// What the command line asks to be planned.
struct Question {
  std::vector<std::string> fixed;  // arguments of every plan
  std::vector<VariedFlag> varied;  // in the order given
  std::string plugin;
  bool json = false;
};

// One plan of them.
struct Case {
  std::vector<std::string> values;  // by varied flag
  std::optional<PipelineFigures> figures;
  std::string method;
  std::optional<double> gap;  // of a plan on one mesh
  double search_seconds = 0;
  double examples = 1;  // that its step time is compared by
  std::string error;    // why there is no plan

  double UsPerExample() const { return figures->step_time_us / examples; }
};

template <size_t n>
bool IsOneOf(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void AddValue(const std::string& flag, const std::string& value, Question& question) {
  auto found = std::ranges::find(question.varied, flag, &VariedFlag::name);
  if (found == question.varied.end()) {
    question.varied.push_back({.name = flag});
    found = std::prev(question.varied.end());
  }
  if (IsOneOf(kRepeated, flag)) {
    found->values.push_back(value);
    return;
  }
  for (std::string& one : SplitAtCommas(value)) found->values.push_back(std::move(one));
}

absl::StatusOr<Question> QuestionOf(const std::vector<std::string>& arguments) {
  Question question;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.starts_with("--") ? argument.find('=') : std::string::npos;
    const std::string flag = argument.substr(0, equals);
    if (flag == "--json") {
      question.json = true;
      continue;
    }
    const bool is_plugin = flag == "--plugin";
    if (!is_plugin && !IsOneOf(kListed, flag) && !IsOneOf(kRepeated, flag)) {
      question.fixed.push_back(argument);
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return InvalidArgument("{} wants a value", flag);
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (is_plugin) {
      question.plugin = value;
    } else {
      AddValue(flag, value, question);
    }
  }
  size_t num_plans = 1;
  for (const VariedFlag& flag : question.varied) num_plans *= flag.values.size();
  if (num_plans > kMostPlans) {
    return InvalidArgument("{} plans are asked for, more than {}; give fewer values", num_plans,
                           kMostPlans);
  }
  return question;
}

// Every value with every value of the others; the last flag changes first.
std::vector<Case> CasesOf(const Question& question) {
  std::vector<Case> cases(1);
  for (const VariedFlag& flag : question.varied) {
    std::vector<Case> more;
    for (const Case& one : cases) {
      for (const std::string& value : flag.values) {
        more.push_back(one);
        more.back().values.push_back(value);
      }
    }
    cases = std::move(more);
  }
  return cases;
}

bool IsVaried(const VariedFlag& flag) { return flag.values.size() > 1; }

// Step times of batches of several sizes are compared per example.
bool VariesBatch(const Question& question) {
  return std::ranges::any_of(question.varied, [](const VariedFlag& flag) {
    return flag.name == "--global-batch" && IsVaried(flag);
  });
}

absl::Status PlanCase(const Question& question, const std::string& progress, Case& one) {
  StepSource source;
  PlanningFlags planning;
  CLI::App command("", "minka plan");
  command.set_help_flag();
  command.add_option("model", source.model)->required();
  AddPlanningFlags(command, planning, "");
  AddModelFlags(command, source);
  AddModuleFlags(command, source);
  std::vector<std::string> arguments = question.fixed;
  for (size_t i = 0; i < question.varied.size(); ++i) {
    arguments.push_back(fmt::format("{}={}", question.varied[i].name, one.values[i]));
  }
  std::ranges::reverse(arguments);  // as CLI11 takes them
  try {
    command.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return InvalidArgument("{}; minka plan --help lists what can be given", error.what());
  }
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(planning));
  ASSIGN_OR_RETURN(const SourceStep step, LoadStep(source));
  RETURN_IF_ERROR(AddLocalDevices(question.plugin, request));
  request.on_progress = [&](const std::string& what, double seconds, double gap) {
    ShowStatus(progress + DescribeProgress(what, seconds, gap));
  };
  if (VariesBatch(question)) one.examples = static_cast<double>(source.global_batch.value_or(1));
  if (request.pipeline) {
    ASSIGN_OR_RETURN(const PlannedPipeline planned, PlanPipeline(step.step, request));
    one.figures = FiguresOf(planned.plan);
    one.method = kPipelineMethod;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const PlanResult result, PlanStep(step.step, request));
  const Plan& plan = result.candidates[result.best].plan;
  one.figures = {.meshes = {plan.stage.mesh},
                 .step_time_us = plan.step_time_us,
                 .peak_memory_bytes = plan.peak_memory_bytes};
  one.method = plan.method;
  one.gap = plan.gap;
  return absl::OkStatus();
}

// The fastest of the cases with a plan; none: nullptr.
const Case* Best(const std::vector<Case>& cases) {
  const Case* best = nullptr;
  for (const Case& one : cases) {
    if (!one.figures) continue;
    if (best == nullptr || one.UsPerExample() < best->UsPerExample()) best = &one;
  }
  return best;
}

std::string DescribeCases(const Question& question, const std::vector<Case>& cases) {
  std::vector<Column> columns = {{""}};
  for (const VariedFlag& flag : question.varied) {
    if (IsVaried(flag)) columns.push_back({flag.name.substr(2)});
  }
  const std::vector<Column> figures = {{"plan"},
                                       {"meshes"},
                                       {"step time", Align::kRight},
                                       {"per example", Align::kRight},
                                       {"bubble", Align::kRight},
                                       {"memory/device", Align::kRight},
                                       {"gap", Align::kRight},
                                       {"search", Align::kRight}};
  const bool per_example = VariesBatch(question);
  std::ranges::copy_if(figures, std::back_inserter(columns), [&](const Column& column) {
    return per_example || column.title != "per example";
  });
  Table table(columns);
  const Case* const best = Best(cases);
  std::vector<std::string> errors;
  for (const Case& one : cases) {
    std::vector<std::string> row = {&one == best ? "*" : ""};
    for (size_t i = 0; i < question.varied.size(); ++i) {
      if (IsVaried(question.varied[i])) row.push_back(one.values[i]);
    }
    if (one.figures) {
      const PipelineFigures& of = *one.figures;
      const bool is_pipeline = !of.num_layers.empty();
      row.push_back(one.method);
      row.push_back(MeshesText(of.meshes));
      row.push_back(FormatTime(of.step_time_us));
      if (per_example) row.push_back(FormatTime(one.UsPerExample()));
      row.push_back(is_pipeline ? FormatPercent(of.bubble) : "-");
      row.push_back(FormatBytes(of.peak_memory_bytes));
      row.push_back(one.gap ? FormatPercent(*one.gap) : "-");
    } else {
      auto found = std::ranges::find(errors, one.error);
      if (found == errors.end()) found = errors.insert(errors.end(), one.error);
      row.push_back(fmt::format("none [{}]", found - errors.begin() + 1));
      row.insert(row.end(), per_example ? 6 : 5, "-");
    }
    row.push_back(fmt::format("{:.1f} s", one.search_seconds));
    table.Add(std::move(row));
  }
  std::string text = table.ToString();
  for (size_t i = 0; i < errors.size(); ++i) text += fmt::format("[{}] {}\n", i + 1, errors[i]);
  return text;
}

Json CasesJson(const Question& question, const std::vector<Case>& cases) {
  const Case* const best = Best(cases);
  Json rows = Json::array();
  for (const Case& one : cases) {
    Json& row = rows.emplace_back(Json{{"flags", Json::object()}});
    for (size_t i = 0; i < question.varied.size(); ++i) {
      row["flags"][question.varied[i].name.substr(2)] = one.values[i];
    }
    row["search_seconds"] = one.search_seconds;
    if (!one.figures) {
      row["error"] = one.error;
      continue;
    }
    const PipelineFigures& of = *one.figures;
    row["best"] = &one == best;
    row["method"] = one.method;
    row["meshes"] = Json::array();
    for (const Mesh& mesh : of.meshes) row["meshes"].push_back(mesh.ToString());
    row["step_time_us"] = of.step_time_us;
    row["peak_memory_bytes"] = of.peak_memory_bytes;
    if (one.gap) row["gap"] = *one.gap;
    if (of.num_layers.empty()) continue;
    row["layers"] = of.num_layers;
    row["bubble"] = of.bubble;
  }
  return Json{{"schema_version", 1}, {"rows", rows}};
}

absl::Status RunWhatIf(const Question& question) {
  std::vector<Case> cases = CasesOf(question);
  if (cases.size() > 1 && std::ranges::find(question.fixed, "-") != question.fixed.end()) {
    return InvalidArgument(
        "standard input can be read for one plan alone; give the module as a file");
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::string progress = fmt::format("{} of {}: ", i + 1, cases.size());
    ShowStatus(progress + "preparing");
    const absl::Status planned = PlanCase(question, progress, cases[i]);
    if (!planned.ok()) cases[i].error = Message(planned);
    cases[i].search_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  ClearStatus();
  const bool all_failed = Best(cases) == nullptr;
  if (all_failed && std::ranges::all_of(
                        cases, [&](const Case& one) { return one.error == cases.front().error; })) {
    return InvalidArgument("{}", cases.front().error);
  }
  RETURN_IF_ERROR(Print(question.json ? CasesJson(question, cases).dump(1) + "\n"
                                      : DescribeCases(question, cases)));
  return all_failed ? InvalidArgument("there is a plan for none of these") : absl::OkStatus();
}

// Does one of the plans take a plugin?
bool AnyNeedsLocalDevices(const Question& question) {
  return std::ranges::any_of(question.varied, [](const VariedFlag& flag) {
    return std::ranges::any_of(flag.values, [&](const std::string& value) {
      return (flag.name == "--cost-model" && NeedsLocalDevices({.cost_model = value})) ||
             (flag.name == "--cluster" && NeedsLocalDevices({.cluster = value}));
    });
  });
}

}  // namespace

void AddWhatIfCommand(CLI::App& app, CommandLine& line) {
  CLI::App* const command = app.add_subcommand(
      "whatif",
      fmt::format(
          "Plan a step under several conditions and show the plans side by side, '*' the "
          "fastest (per example): minka whatif MODEL with the flags of minka plan (--method "
          "is shard unless given), of which {} take "
          "several values, joined by commas, and {} may be given several times; every "
          "value is tried with every one of the others. --json prints the table as JSON",
          fmt::join(kListed, ", "), fmt::join(kRepeated, ", ")));
  command->prefix_command();
  command->callback([command, &line] {
    const absl::StatusOr<Question> question = QuestionOf(command->remaining());
    if (!question.ok()) return Finish(question.status(), line);
    if (AnyNeedsLocalDevices(*question) && !IsChild()) {
      line.exit_code = RunInChildAndReport(line.arguments);
      return;
    }
    Finish(RunWhatIf(*question), line);
  });
}

}  // namespace minka
