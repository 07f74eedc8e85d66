// What the operations of a program for one device are predicted to take, for
// operation_times.py, which lays them beside what they take.
#include <string>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/cost/cost_model.h"
#include "minka/ir/hlo_proto.h"
#include "minka/planner/intra_op/op_costs.h"
#include "minka/sharding/called_plan.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string module, profile;
  bool is_gpu = false;
};

// By instruction of the entry, in its order; control flow as a whole.
Json PricesOf(const Module& module, const CostModel& cost, const Mesh& mesh) {
  const Computation& entry = module.entry_computation();
  const std::vector<OpRule> rules = RulesOf(module, entry);
  const PricedComputation priced(module, entry, cost);
  OperationPrices prices(module, mesh, cost);
  Strategy idle;
  Json rows = Json::array();
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& instruction = entry.instructions[id];
    idle.axes.assign(rules[id].num_lanes * mesh.num_axes(), {});
    const std::vector<CalledPlan> called =
        PlanCalledBy(module, entry, id, rules[id], idle, mesh, cost.called_prices());
    rows.push_back({{"name", instruction.name},
                    {"opcode", OpcodeName(instruction.opcode)},
                    {"group", priced.fusions.group[id]},
                    {"us", prices.Price(priced, id, rules[id], idle, called)}});
  }
  return rows;
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(options.module));
  ASSIGN_OR_RETURN(const Module module, ParseHloText(text));
  ASSIGN_OR_RETURN(const std::string profile, ReadFile(options.profile));
  ASSIGN_OR_RETURN(const Calibration calibration, Calibration::FromJson(profile));
  Cluster cluster = options.is_gpu ? Cluster::LocalCuda(1) : Cluster::Local(1);
  if (options.is_gpu) cluster.SetGpu(calibration.processor, 0);
  const Mesh mesh({{"x", 1}});
  const auto cost = MakeRooflineCostModel(cluster, mesh, &calibration);
  fmt::print("{}\n", PricesOf(module, *cost, mesh).dump());
  return absl::OkStatus();
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  CLI::App app("What the operations of a program for one device are predicted to take, as JSON");
  minka::Options options;
  app.add_option("module", options.module, "HLO text, such as 04-local.hlo.txt of --dump-to")
      ->required();
  app.add_option("--profile", options.profile, "of minka profile")->required();
  app.add_flag("--gpu", options.is_gpu, "the program is compiled for the GPU of the profile");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = minka::Run(options);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
