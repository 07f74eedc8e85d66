#include "tests/acceptance/rows.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/cost/cost_model.h"
#include "minka/driver/prepare.h"
#include "minka/ir/verifier.h"
#include "minka/plan/combine.h"
#include "minka/planner/intra_op/describe.h"
#include "tests/acceptance/programs.h"
#include "tests/support/collectives.h"

namespace minka {
namespace {

// A cost model whose all-gathers are too dear to use.
class WithoutGathers final : public CostModel {
 public:
  explicit WithoutGathers(std::unique_ptr<CostModel> base) : base_(std::move(base)) {}
  Platform platform() const override { return base_->platform(); }
  std::string name() const override { return base_->name(); }
  double Collective(const StepWork& work, ElementType type) const override {
    const double gather = work.kind == ReshardKind::kAllGather ? 1e8 : 0;
    return gather + base_->Collective(work, type);
  }
  double Latency(ReshardKind kind, AxisSet axes) const override {
    return base_->Latency(kind, axes);
  }
  double Operation(const LocalWork& work) const override { return base_->Operation(work); }
  bool shares_latency() const override { return false; }
  bool forbids_replicated_dots() const override { return base_->forbids_replicated_dots(); }

 private:
  const std::unique_ptr<CostModel> base_;
};

absl::StatusOr<std::unique_ptr<CostModel>> CostModelOf(const AcceptanceRow& row, const Mesh& mesh) {
  ASSIGN_OR_RETURN(std::unique_ptr<CostModel> cost,
                   MakeAlpaCostModel(mesh, row.alpha, row.beta, /*allow_replicated_dots=*/false));
  if (!row.forbids_gathers) return cost;
  return std::unique_ptr<CostModel>(std::make_unique<WithoutGathers>(std::move(cost)));
}

// One step of a reshard by the row's formulas.
double StepCost(const AcceptanceRow& row, const Mesh& mesh, const CostModel& cost,
                const StepWork& work) {
  if (row.flattens_mesh && work.kind == ReshardKind::kAllReduce &&
      mesh.size(work.axes) == mesh.num_devices()) {
    const auto n = static_cast<double>(mesh.num_devices());
    return row.alpha[0] + 2 * row.beta[0] * (n - 1) / n * static_cast<double>(work.local_bytes);
  }
  const double exact = cost.Collective(work, ElementType::kF32);
  return row.truncates_costs ? std::floor(exact) : exact;
}

double ObjectiveOf(const AcceptanceRow& row, const Module& module, const StagePlan& stage,
                   const CostModel& cost) {
  double objective = 0;
  for (const OpPlan& op : stage.ops) objective += op.cost_us;
  const std::vector<bool> live = LiveReshards(module, stage);
  for (size_t i = 0; i < stage.reshards.size(); ++i) {
    if (!live[i]) continue;
    const Reshard& reshard = stage.reshards[i];
    const Shape& shape = module.entry_computation().shape(reshard.value);
    const Sharding* before = &reshard.from;
    for (const ReshardStep& step : reshard.steps) {
      objective += StepCost(row, stage.mesh, cost, WorkOfStep(shape, *before, step, stage.mesh));
      before = &step.result;
    }
  }
  return objective;
}

using Shardings = std::map<std::string, std::string>;
using Counts = std::map<std::string, int>;

AcceptanceRow JaxRow(const std::string& name, const std::string& module, const std::string& mesh,
                     double alpa_objective, double bound, Counts counts) {
  return {.name = name,
          .mesh = mesh,
          .program = [module] { return JaxStep(module); },
          .alpa_objective = alpa_objective,
          .bound = bound,
          .max_collectives = std::move(counts)};
}

// Names of JAX's parameters are like "state['params']['dense_0']['kernel']".
Shardings AlternatingKernels(int num_layers, const std::string& axis) {
  Shardings shardings;
  for (int i = 0; i < num_layers; ++i) {
    shardings[fmt::format("*params*dense_{}*kernel*", i)] =
        i % 2 == 0 ? fmt::format("[-,{}]", axis) : fmt::format("[{},-]", axis);
  }
  return shardings;
}

Shardings BertKernels(const std::string& axis) {
  const std::string column = fmt::format("[-,{}]", axis), row = fmt::format("[{},-]", axis);
  return {{"*params*qvk*kernel*", column},
          {"*params*attention_output*kernel*", row},
          {"*params*intermediate*kernel*", column},
          {"*params*'output'*kernel*", row}};
}

// On both orientations of four devices in a row.
void AddJaxRows(std::vector<AcceptanceRow>& rows) {
  const Counts one = {{"all-reduce", 1}};
  for (const bool second : {false, true}) {
    const std::string mesh = second ? "a=1,b=4" : "a=4,b=1";
    const std::string axis = second ? "b" : "a";
    const Shardings whole = {{"*params*", "replicated"}};
    const size_t first = rows.size();
    rows.push_back(
        JaxRow("mlp/data_parallel", "mlp_batch256_hidden32", mesh, 38139.12, 38028, one));
    rows.back().shardings = whole;
    rows.push_back(JaxRow("mlp/model_parallel", "mlp_batch32_hidden256", mesh, 245765.05, 245765,
                          {{"all-reduce", 5}}));
    rows.back().shardings = AlternatingKernels(6, axis);
    rows.push_back(JaxRow("bert/layer_data_parallel", "bert_layers_batch64_hidden32", mesh,
                          152691.24, 152472, one));
    rows.back().shardings = whole;
    rows.push_back(JaxRow("bert/layer_model_parallel", "bert_layers_batch8_hidden128", mesh,
                          344071.07, 344071, {{"all-reduce", 7}}));
    rows.back().shardings = BertKernels(axis);
    rows.push_back(JaxRow("bert/layer_model_parallel_remat", "bert_layers_batch8_hidden128_remat",
                          mesh, 540683.11, 540683, {{"all-reduce", 11}}));
    rows.back().why_cheaper =
        "the sequence stays split where LayerNorms alone read: 4 reduce-scatters, 2 gathered again";
    rows.push_back(
        JaxRow("bert/mlm_data_parallel", "bert_mlm_batch32_hidden16", mesh, 58039.34, 57730, one));
    rows.back().shardings = whole;
    for (size_t i = first; i < rows.size(); ++i) rows[i].compiles = !second;
  }
  for (const std::string mesh : {"a=4,b=1", "a=2,b=2"}) {
    rows.push_back(
        JaxRow("mlp/force_data_parallel", "mlp_batch32_hidden256", mesh, 2368635.12, 2368524, one));
    rows.back().method = Method::kData;
    rows.back().flattens_mesh = true;
    rows.back().compiles = true;
    rows.back().shardings = {{"*params*", "replicated"}};
  }
}

// The rows whose plans methods and limits restrict.
// Gradients are reduce-scattered, by method or limit; the axis `used` has all four devices.
void AddScatteredRows(const std::string& mesh, const std::string& used,
                      std::vector<AcceptanceRow>& rows) {
  const auto add = [&](const std::string& name, const std::string& module, double alpa_objective,
                       double bound) -> AcceptanceRow& {
    rows.push_back(JaxRow(name, module, mesh, alpa_objective, bound, {}));
    rows.back().compiles = used == "a";
    return rows.back();
  };
  const std::string small = "mlp_batch256_hidden32", large = "mlp_batch32_hidden256";
  const std::string bert = "bert_layers_batch64_hidden32";
  // A reduce-scatter and an all-gather cost one alpha more than the all-reduce that Alpa charges.
  const Counts pair = {{"reduce-scatter", 1}, {"all-gather", 1}};
  AcceptanceRow& zero2 = add("mlp/data_parallel_reduce_scatter", small, 38139.12, 38028 + 12);
  zero2.method = Method::kZero2;
  zero2.max_collectives = pair;
  zero2.split_state = "*optimizer*";
  AcceptanceRow& bert_zero2 =
      add("bert/layer_data_parallel_reduce_scatter", bert, 152691.24, 152472 + 24);
  bert_zero2.method = Method::kZero2;
  bert_zero2.max_collectives = pair;
  bert_zero2.split_state = "*optimizer*";
  AcceptanceRow& zero3 = add("mlp/data_parallel_zero3", small, 38139.12, 57060);
  zero3.method = Method::kZero3;
  zero3.limits.combine_gathers_bytes = int64_t{(32 * 32 + 32) * 6 * 4};
  zero3.max_collectives = {{"reduce-scatter", 1}, {"all-gather", 2}};
  zero3.split_state = "*";
  zero3.split_rank = 2;
  zero3.why_cheaper = "each weight is gathered once and kept for the backward pass";
  AcceptanceRow& model = add("mlp/model_parallel_reduce_scatter", large, 245765.05, 245765);
  model.limits.prefer_reduce_scatter = true;
  model.max_collectives = {{"all-reduce", 5}};
  model.shardings = AlternatingKernels(6, used);
  AcceptanceRow& bert_model = add("bert/layer_model_parallel_reduce_scatter",
                                  "bert_layers_batch8_hidden128", 344071.07, 344071);
  bert_model.limits.prefer_reduce_scatter = true;
  bert_model.max_collectives = {{"all-reduce", 7}};
  bert_model.shardings = BertKernels(used);
  // Its state is split where gradients are scattered: the means of a scattered kernel gradient
  // would move more bytes.
  AcceptanceRow& adafactor =
      add("mlp/data_parallel_adafactor", "mlp_batch256_hidden32_adafactor", 38028.12, 38028 + 6);
  adafactor.limits.prefer_reduce_scatter = true;
  adafactor.max_collectives = {{"all-reduce", 2}, {"reduce-scatter", 1}, {"all-gather", 2}};
}

void AddRestrictedRows(std::vector<AcceptanceRow>& rows) {
  const auto add = [&](const std::string& name, const std::string& module, const std::string& mesh,
                       double alpa_objective, double bound) -> AcceptanceRow& {
    rows.push_back(JaxRow(name, module, mesh, alpa_objective, bound, {{"all-reduce", 1}}));
    rows.back().compiles = true;
    return rows.back();
  };
  const std::string small = "mlp_batch256_hidden32", large = "mlp_batch32_hidden256";
  const std::string bert = "bert_layers_batch64_hidden32";
  AcceptanceRow& grid = add("mlp/2d_mesh", small, "a=2,b=2", 21265.17, 21265);
  grid.beta = {1, 0.1};
  grid.limits.batch_axis = "a";
  grid.why_cheaper = "3 of the all-reduces are reduce-scatters, 3 of them gathered again";
  add("mlp/force_batch_dim", large, "a=4,b=1", 2368635.12, 2368524).limits.batch_axis = "a";
  add("bert/layer_force_batch_dim", bert, "a=4,b=1", 152691.24, 152472).limits.batch_axis = "a";
  // The batch is not split: the axis has one device.
  AcceptanceRow& whole = add("mlp/force_batch_dim", large, "a=1,b=4", 245765.05, 245765);
  whole.limits.batch_axis = "a";
  whole.max_collectives = {{"all-reduce", 5}};
  AcceptanceRow& bert_whole =
      add("bert/layer_force_batch_dim", bert, "a=1,b=4", 5505031.07, 5505031);
  bert_whole.limits.batch_axis = "a";
  bert_whole.max_collectives = {{"all-reduce", 7}};
  bert_whole.why_cheaper = "the sequence is split, not the features";
  AcceptanceRow& bert_one = add("bert/layer_force_batch_dim_batch1", "bert_layers_batch1_hidden32",
                                "a=1,b=4", 86023.07, 86023);
  bert_one.limits.batch_axis = "a";
  bert_one.max_collectives = {{"all-reduce", 7}};

  AddScatteredRows("a=4,b=1", "a", rows);
  AddScatteredRows("a=1,b=4", "b", rows);
  AcceptanceRow& grid_scattered =
      add("mlp/2d_mesh_reduce_scatter", small, "a=2,b=2", 21265.17, 21265 + 12);
  grid_scattered.beta = {1, 0.1};
  grid_scattered.limits = {.batch_axis = "a", .prefer_reduce_scatter = true};
  grid_scattered.max_collectives = {{"all-reduce", 5}, {"reduce-scatter", 2}, {"all-gather", 2}};
  grid_scattered.split_state = "*optimizer*";
  grid_scattered.split_rank = 2;
  grid_scattered.why_cheaper = "as mlp/2d_mesh, and gradients are reduce-scattered";
}

AcceptanceRow ChainRow(const std::string& name, const std::string& mesh, const DenseChain& chain,
                       double alpa_objective, double bound) {
  return {.name = "solver/" + name,
          .mesh = mesh,
          .program = [chain] { return DenseChainStep(chain); },
          .alpa_objective = alpa_objective,
          .bound = bound,
          .truncates_costs = true};
}

void AddChainRows(std::vector<AcceptanceRow>& rows) {
  const DenseChain wide_batch = {.num_layers = 2, .batch = 1024, .dim = 128};
  const DenseChain wide_layer = {.num_layers = 2, .batch = 128, .dim = 1024};
  const auto layers = [](DenseChain chain, int num_layers) {
    chain.num_layers = num_layers;
    return chain;
  };
  const auto biases = [](DenseChain chain) {
    chain.has_biases = true;
    return chain;
  };
  for (const std::string mesh : {"a=4,b=1", "a=1,b=4"}) {
    const size_t first = rows.size();
    rows.push_back(ChainRow("2_layers_data", mesh, wide_batch, 196610.02, 196610));
    rows.push_back(ChainRow("2_layers_model", mesh, wide_layer, 786433.01, 786433));
    rows.push_back(ChainRow("12_layers_data", mesh, layers(wide_batch, 12), 1179660.12, 1179660));
    rows.push_back(ChainRow("12_layers_model", mesh, layers(wide_layer, 12), 8650763.11, 8650763));
    rows.push_back(ChainRow("2_layers_bias_data", mesh, biases(wide_batch), 198148.04, 198148));
    rows.back().why_cheaper = "new biases stay split: reduce-scatter";
    rows.push_back(ChainRow("2_layers_bias_model", mesh, biases(wide_layer), 786433.01, 786433));
    for (size_t i = first; i < rows.size(); ++i) rows[i].compiles = mesh == "a=4,b=1";
  }
  rows.push_back(ChainRow("2_layers_2d", "a=4,b=8", wide_batch, 26872.03, 26872));
  rows.push_back(ChainRow("2_layers_2d", "a=8,b=4", wide_batch, 58330.03, 58330));
  rows.push_back(ChainRow("2_layers_2d", "a=3,b=4", wide_batch, 46314.03, 46314));
  rows.back().why_cheaper = "not comparable: 3 divides no dimension, so all work is repeated on a";
  for (size_t i = rows.size() - 3; i < rows.size(); ++i) rows[i].beta = {1, 0.01};
  rows.push_back(ChainRow("2_layers_forced_data", "a=4,b=1", wide_layer, 12582914.02, 12582914));
  rows.back().method = Method::kData;
}

void AddPlacedRows(std::vector<AcceptanceRow>& rows) {
  const auto add = [&](const std::string& name, const std::string& mesh,
                       std::function<absl::StatusOr<Step>()> program, int rank,
                       double alpa_objective, double bound) {
    rows.push_back({.name = "solver/" + name,
                    .mesh = mesh,
                    .program = std::move(program),
                    .alpa_objective = alpa_objective,
                    .bound = bound,
                    .pins = {rank == 2 ? "result=[-,-]" : "result=[-,-,-]"},
                    .forbids_gathers = true,
                    .truncates_costs = true,
                    .compiles = true});
  };
  add("transposed_dot", "a=1,b=4", [] { return TransposedDot(1); }, 2, 98305.01, 98305);
  add("transposed_dot_thrice", "a=4,b=1", [] { return TransposedDot(3); }, 2, 98305.01, 98305);
  add("reshaped_dot", "a=1,b=4", [] { return ReshapedDot(false); }, 2, 98305.01, 98305);
  add("reshaped_dot_again", "a=4,b=1", [] { return ReshapedDot(true); }, 3, 98305.01, 98305);
  add("sum_of_two_dots", "a=1,b=4", SumOfTwoDots, 2, 196610.02, 196610);
  rows.back().why_cheaper = "partial sums are added before the all-reduce";
  add("exp_of_three_dots", "a=1,b=4", ExpOfThreeDots, 3, 294915.03, 294915);
  rows.back().why_cheaper = "partial sums are added before the all-reduce";
}

}  // namespace

std::vector<AcceptanceRow> AcceptanceRows() {
  std::vector<AcceptanceRow> rows;
  AddJaxRows(rows);
  AddRestrictedRows(rows);
  AddChainRows(rows);
  AddPlacedRows(rows);
  return rows;
}

absl::StatusOr<AcceptanceResult> PlanAndLower(const AcceptanceRow& row) {
  AcceptanceResult out;
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(row.mesh));
  ASSIGN_OR_RETURN(const auto cost, CostModelOf(row, mesh));
  ASSIGN_OR_RETURN(const Step step, row.program());
  ASSIGN_OR_RETURN(out.prepared, Prepare(step));
  ASSIGN_OR_RETURN(IntraOpResult planned,
                   PlanMesh(out.prepared, mesh, *cost,
                            {.method = row.method,
                             .search = {.pins = row.pins, .limits = row.limits, .gap = 0}}));
  if (planned.stop_reason != "optimal") {
    return InternalError("the plan is not known to be the best: {}", planned.stop_reason);
  }
  const Module& module = out.prepared.module;
  out.plan.module_hash = HashText(ModuleHash(module));
  out.plan.stage = std::move(planned.stage);
  Describe(out.prepared, out.plan);
  RETURN_IF_ERROR(CheckPlan(out.plan, module));
  ASSIGN_OR_RETURN(out.program, LowerSpmd(module, out.plan.stage, Platform::kCpu));
  RETURN_IF_ERROR(Verify(out.program.module));
  out.objective = ObjectiveOf(row, module, out.plan.stage, *cost);
  for (const CollectiveInstruction& collective : CollectivesOf(out.program.module)) {
    if (collective.bytes > ElementBytes(collective.type)) ++out.collectives[collective.kind];
  }
  return out;
}

}  // namespace minka
