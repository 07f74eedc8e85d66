// Counts refusals of right plans: every line of output is a plan with the number of inputs that it
// was run on and how many of these runs the oracle refused.
//
//   right_runs [--seeds FIRST:COUNT] [--part I:N] [--models GLOB] [--types GLOB] [--norms FILE]
//              [--update]
//
// --update adds the counts to right_runs.md. The norms file gets one line per compared part, from
// which the constants of docs/design/0005-rounding-in-the-oracle.md were set.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/check.h"
#include "minka/profiler/profile.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/oracle/subjects.h"
#include "tests/support/must.h"

namespace minka {
namespace {

constexpr int kSteps = 3;
constexpr std::array<std::string_view, 3> kCosts = {"roofline", "measured", "alpha-beta"};

struct Options {
  uint64_t first_seed = 1, num_seeds = 1;
  int part = 0, num_parts = 1;
  std::string models = "*", types = "*", norms_file;
  bool updates_table = false;
};

// Of all plans of a model in a type.
struct Counts {
  int64_t plans = 0;
  std::array<int64_t, kCosts.size()> runs = {};  // by costs
  int64_t turned = 0;                            // accepted once decisions were turned over
  int64_t refused = 0;
};

using Table = std::map<std::pair<std::string, std::string>, Counts>;  // by model and type

Table ReadTable() {
  Table table;
  std::istringstream lines(ReadFile(RIGHT_RUNS_TABLE).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string bar, model, type;
    Counts counts;
    cells >> bar >> model >> bar >> type >> bar >> counts.plans;
    for (int64_t& runs : counts.runs) cells >> bar >> runs;
    cells >> bar >> counts.turned >> bar >> counts.refused;
    if (cells) table[{model, type}] = counts;
  }
  return table;
}

void WriteTable(const Table& table) {
  std::string text =
      "# Right plans that the oracle was shown\n\n"
      "Made by `right_runs --update`, which adds to it. Runs of three steps from random inputs, "
      "by\n"
      "model, type and the costs that the plan was made by: data, zero2, zero3 and shard on 4, 2x2 "
      "and\n2x4, with and without micro-batches, three optimizers for models that are not JAX's.\n"
      "Turned over: refused at first, and accepted once decisions within rounding (a relu, an "
      "arg-max)\nwere made on one device as the plan made them.\n\n"
      "| model | type | plans | roofline | measured | alpha-beta | turned over | refused |\n"
      "|---|---|---|---|---|---|---|---|\n";
  Counts all;
  int64_t num_runs = 0;
  for (const auto& [name, counts] : table) {
    text += fmt::format("| {} | {} | {} |", name.first, name.second, counts.plans);
    for (const int64_t runs : counts.runs) {
      text += fmt::format(" {} |", runs);
      num_runs += runs;
    }
    text += fmt::format(" {} | {} |\n", counts.turned, counts.refused);
    all.turned += counts.turned;
    all.refused += counts.refused;
  }
  text += fmt::format("\n{} runs, {} with decisions turned over, {} refused.\n", num_runs,
                      all.turned, all.refused);
  const absl::Status written = WriteFile(RIGHT_RUNS_TABLE, text);
  MINKA_CHECK(written.ok(), "{}", Message(written));
}

class RightRuns {
 public:
  explicit RightRuns(Options options)
      : options_(std::move(options)),
        devices_(Must(OpenLocalDevices({.num_devices = 8}))),
        calibration_(Must(LoadOrProfile(devices_, {}))) {
    if (!options_.norms_file.empty()) norms_.open(options_.norms_file);
  }

  void Run() {
    for (const std::string_view type : kSubjectTypes) {
      for (const std::string_view model : kSubjectModels) {
        for (const char* optimizer : {"adamw", "sgd", "lion"}) {
          RunSubject({std::string(model), std::string(type), optimizer});
        }
      }
    }
    for (const std::string_view module : kJaxModules) {
      RunSubject({fmt::format("jax/{}", module), "f32", "-"});
    }
    fmt::print("{} runs, {} turned over, {} refused\n", num_runs_, num_turned_, num_refused_);
  }

 private:
  // What one device makes of a subject, by seed and number of equal slices.
  struct Reference {
    TracedStep traced;
    std::optional<OneDevice> one_device;
    std::map<std::pair<uint64_t, int>, OneDeviceResults> results;
  };

  void RunSubject(const Subject& subject) {
    if (!MatchesGlob(options_.models, subject.model)) return;
    if (!MatchesGlob(options_.types, subject.type)) return;
    Reference reference;
    Counts counts;
    for (const char* method : {"data", "zero2", "zero3", "shard"}) {
      for (const char* mesh : {"4", "2x2", "2x4"}) {
        const int devices = std::string(mesh) == "2x4" ? 8 : 4;
        for (const int micro_batches : {1, 16 / devices}) {
          if (number_++ % options_.num_parts != options_.part) continue;
          RunPlan(subject, {.method = method, .mesh = mesh, .num_micro_batches = micro_batches},
                  devices, reference, counts);
        }
      }
    }
    if (options_.updates_table && counts.plans > 0) AddToTable(subject, counts);
  }

  static void AddToTable(const Subject& subject, const Counts& counts) {
    Table table = ReadTable();
    Counts& known = table[{subject.model, subject.type}];
    known.plans += counts.plans;
    for (size_t i = 0; i < known.runs.size(); ++i) known.runs[i] += counts.runs[i];
    known.turned += counts.turned;
    known.refused += counts.refused;
    WriteTable(table);
  }

  CostModelChoice CostsOf(size_t costs, const SubjectPlan& plan) const {
    const std::vector<double> ones(Must(Mesh::Parse(plan.mesh)).num_axes(), 1);
    switch (costs) {
      case 0:
        return {};
      case 1:
        return {.kind = CostModelKind::kMeasured, .calibration = calibration_};
      default:
        return {.kind = CostModelKind::kAlpa, .alpha = ones, .beta = ones};
    }
  }

  void RunPlan(const Subject& subject, const SubjectPlan& plan, int devices, Reference& reference,
               Counts& counts) {
    if (!reference.one_device) {
      reference.traced = TraceSubject(subject);
      reference.one_device = Must(OneDevice::Compile(reference.traced.step, devices_.client));
    }
    const TracedStep& traced = reference.traced;
    const std::string name =
        fmt::format("{} {} {} {} {} {}", subject.model, subject.type, subject.optimizer,
                    plan.method, plan.mesh, plan.num_micro_batches);
    const size_t costs = num_plans_++ % kCosts.size();
    absl::StatusOr<Parallelized> planned =
        Parallelize(traced, Cluster::Local(devices), MethodOf(subject, plan),
                    {.cost_model = CostsOf(costs, plan), .devices = devices_});
    const bool has_batch = std::ranges::any_of(traced.step.parameters, [](const auto& parameter) {
      return parameter.role == ParameterRole::kBatch;
    });
    if (!planned.ok() && IsJax(subject) && (plan.num_micro_batches > 1 || !has_batch)) {
      fmt::print("{}: no plan: {}\n", name, Message(planned.status()));
      return;
    }
    Parallelized run = Must(std::move(planned));
    int turned = 0, refused = 0;
    for (uint64_t seed = options_.first_seed; seed < options_.first_seed + options_.num_seeds;
         ++seed) {
      const int slices = NumEqualSlices(subject, plan);
      const StepInputs inputs = InputsOf(traced, seed, slices);
      auto [one, is_new] = reference.results.try_emplace({seed, slices});
      if (is_new) one->second = Must(reference.one_device->Run(inputs, kSteps));
      OracleReport report =
          Must(CompareWithOneDevice(traced.step, run.runner(), inputs, kSteps, one->second));
      WriteNorms(fmt::format("{} {}", name, seed), report);
      if (report.ok()) continue;
      const std::string first = report.Failures();
      report = Must(CheckAgainstOneDevice(run, inputs, kSteps));
      turned += report.ok() ? 1 : 0;
      refused += report.ok() ? 0 : 1;
      fmt::print("{} {}, seed {}:\n{}", report.ok() ? "TURNED" : "REFUSED", name, seed,
                 report.ok() ? first : report.Failures());
      for (const std::string& decision : report.turned) fmt::print("{}\n", decision);
    }
    fmt::print("{} {}: {} runs, {} turned over, {} refused\n", name, kCosts[costs],
               options_.num_seeds, turned, refused);
    std::fflush(stdout);
    ++counts.plans;
    counts.runs[costs] += static_cast<int64_t>(options_.num_seeds);
    counts.turned += turned;
    counts.refused += refused;
    num_runs_ += static_cast<int64_t>(options_.num_seeds);
    num_turned_ += turned;
    num_refused_ += refused;
  }

  void WriteNorms(const std::string& name, const OracleReport& report) {
    if (!norms_.is_open()) return;
    for (const OutputComparison& output : report.outputs) {
      bool is_whole = true;
      for (const Norms& norms : output.parts) {
        norms_ << fmt::format("{} {} {} {} {} {:.4g} {:.4g} {:.4g} {:.4g} {:.4g} {:.4g}\n", name,
                              output.name, TypeName(output.shape.type), is_whole ? "whole" : "part",
                              norms.num_elements, norms.error, norms.single_error,
                              norms.nudged_error, norms.reference, norms.change,
                              norms.allowed_error);
        is_whole = false;
      }
    }
  }

  const Options options_;
  LocalDevices devices_;
  const Calibration calibration_;
  std::ofstream norms_;
  int number_ = 0;
  size_t num_plans_ = 0;
  int64_t num_runs_ = 0, num_turned_ = 0, num_refused_ = 0;
};

// "3:20" -> 3 and 20.
template <typename T>
void ReadPair(const char* text, T& first, T& second) {
  char* end = nullptr;
  first = static_cast<T>(std::strtoll(text, &end, 10));
  if (*end == ':') second = static_cast<T>(std::strtoll(end + 1, nullptr, 10));
}

Options ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--update") {
      options.updates_table = true;
      continue;
    }
    MINKA_CHECK(i + 1 < argc, "{} wants a value", flag);
    const char* const value = argv[++i];
    if (flag == "--seeds") {
      ReadPair(value, options.first_seed, options.num_seeds);
    } else if (flag == "--part") {
      ReadPair(value, options.part, options.num_parts);
    } else if (flag == "--models") {
      options.models = value;
    } else if (flag == "--types") {
      options.types = value;
    } else {
      MINKA_CHECK(flag == "--norms", "no flag {}", flag);
      options.norms_file = value;
    }
  }
  return options;
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::RightRuns(minka::ReadOptions(argc, argv)).Run();
  return 0;
}
