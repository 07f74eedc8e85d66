// Counts refusals of right plans: every line of output is a plan with the number of inputs that it
// was run on and how many runs the oracle refused.
//
//   right_runs FIRST_SEED NUM_SEEDS [part i of n: I N] [norms file]
//
// The norms file gets one line per compared part, from which the constants of
// docs/design/0005-rounding-in-the-oracle.md were set.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/oracle/subjects.h"

namespace minka {
namespace {

constexpr int kSteps = 3;

template <typename T>
T Must(absl::StatusOr<T> result) {
  MINKA_CHECK(result.ok(), "{}", Message(result.status()));
  return *std::move(result);
}

struct Range {
  uint64_t first_seed = 1, num_seeds = 1;
  int part = 0, num_parts = 1;
};

class RightRuns {
 public:
  RightRuns(const Range& range, const std::string& norms_file)
      : range_(range), devices_(Must(OpenLocalDevices({.num_devices = 8}))) {
    if (!norms_file.empty()) norms_.open(norms_file);
  }

  void Run() {
    for (const std::string_view type : kSubjectTypes) {
      for (const std::string_view model : kSubjectModels) {
        for (const char* optimizer : {"adamw", "sgd", "lion"}) {
          RunSubject({std::string(model), std::string(type), optimizer});
        }
      }
    }
    fmt::print("{} runs of {} plans, {} refused\n", num_runs_, num_plans_, num_refused_);
  }

 private:
  // What one device makes of a subject, by seed and number of equal slices.
  struct Reference {
    TracedStep traced;
    std::optional<OneDevice> one_device;
    std::map<std::pair<uint64_t, int>, OneDeviceResults> results;
  };

  void RunSubject(const Subject& subject) {
    Reference reference;
    for (const char* method : {"data", "zero2", "zero3", "shard"}) {
      for (const char* mesh : {"4", "2x2", "2x4"}) {
        const int devices = std::string(mesh) == "2x4" ? 8 : 4;
        for (const int micro_batches : {1, 16 / devices}) {
          if (number_++ % range_.num_parts != range_.part) continue;
          RunPlan(subject, {.method = method, .mesh = mesh, .num_micro_batches = micro_batches},
                  devices, reference);
        }
      }
    }
  }

  void RunPlan(const Subject& subject, const SubjectPlan& plan, int devices, Reference& reference) {
    if (!reference.one_device) {
      reference.traced = TraceSubject(subject);
      reference.one_device = Must(OneDevice::Compile(reference.traced.step, devices_.client));
    }
    const TracedStep& traced = reference.traced;
    const std::vector<double> ones(Must(Mesh::Parse(plan.mesh)).num_axes(), 1);
    CostModelChoice costs;
    if (num_plans_ % 2 == 1) costs = {.kind = CostModelKind::kAlpa, .alpha = ones, .beta = ones};
    Parallelized run = Must(Parallelize(traced, Cluster::Local(devices), MethodOf(subject, plan),
                                        {.cost_model = costs, .devices = devices_}));
    const std::string name =
        fmt::format("{} {} {} {} {} {}", subject.model, subject.type, subject.optimizer,
                    plan.method, plan.mesh, plan.num_micro_batches);
    int refused = 0;
    for (uint64_t seed = range_.first_seed; seed < range_.first_seed + range_.num_seeds; ++seed) {
      const int slices = NumEqualSlices(subject, plan);
      const StepInputs inputs = InputsOf(traced, seed, slices);
      auto [one, is_new] = reference.results.try_emplace({seed, slices});
      if (is_new) one->second = Must(reference.one_device->Run(inputs, kSteps));
      const OracleReport report =
          Must(CompareWithOneDevice(traced.step, run.runner(), inputs, kSteps, one->second));
      if (!report.ok()) {
        ++refused;
        fmt::print("REFUSED {}, seed {}:\n{}", name, seed, report.Failures());
      }
      WriteNorms(fmt::format("{} {}", name, seed), report);
      ++num_runs_;
    }
    ++num_plans_;
    num_refused_ += refused;
    fmt::print("{}: {} runs, {} refused\n", name, range_.num_seeds, refused);
    std::fflush(stdout);
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

  const Range range_;
  LocalDevices devices_;
  std::ofstream norms_;
  int number_ = 0, num_plans_ = 0, num_runs_ = 0, num_refused_ = 0;
};

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Range range;
  if (argc > 1) range.first_seed = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) range.num_seeds = std::strtoull(argv[2], nullptr, 10);
  if (argc > 4) {
    range.part = std::atoi(argv[3]);
    range.num_parts = std::atoi(argv[4]);
  }
  minka::RightRuns(range, argc > 5 ? argv[5] : "").Run();
  return 0;
}
