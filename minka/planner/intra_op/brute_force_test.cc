// Small random steps, planned and also priced choice by choice, by code that reads none of the
// solver's tables: shardings from strategies, paths from CheapestReshard, prices from the cost
// model.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "minka/analysis/structure.h"
#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/ir/builder.h"
#include "minka/planner/intra_op/decode.h"
#include "minka/planner/intra_op/formulation.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/planner/intra_op/memory_estimate.h"
#include "minka/planner/intra_op/op_costs.h"
#include "minka/solver/model/evaluate.h"

namespace minka {
namespace {

using ElementType::kF32;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Random = std::mt19937;
int Below(Random& random, size_t limit) { return static_cast<int>(random() % limit); }

// All values are equal in shape, so that any of them fits everywhere. The last is the new `state`;
// one on the way is the loss, so that there is a forward and a backward phase.
Step RandomStep(Random& random, const Shape& shape, int num_operations) {
  ModuleBuilder module("random");
  ComputationBuilder b = module.Entry();
  std::vector<Value> values = {b.Parameter(shape, "state"), b.Parameter(shape, "x")};
  for (int i = 0; i < num_operations; ++i) {
    const Value left = values[Below(random, values.size())];
    const Value right = values.back();
    switch (Below(random, shape.rank() == 2 ? 5 : 3)) {
      case 0:
        values.push_back(b.Unary(Opcode::kExponential, right));
        break;
      case 1:
        values.push_back(b.Binary(Opcode::kMultiply, left, right));
        break;
      case 2:
        values.push_back(b.Binary(Opcode::kAdd, left, right));
        break;
      case 3:
        values.push_back(b.Dot(left, right, {.lhs_contracting = {1}, .rhs_contracting = {0}}));
        break;
      default:
        values.push_back(b.Transpose(right, {1, 0}));
        break;
    }
  }
  b.SetResults({values.back(), values[2 + Below(random, num_operations)]});
  module.AddAlias({.result = 0, .parameter = 0});
  Step step;
  step.module = *std::move(module).Finish();
  step.parameters = {{.role = ParameterRole::kState, .name = "state", .state_result = 0},
                     {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}};
  step.results = {{ResultRole::kState, "state"}, {ResultRole::kLoss, "loss"}};
  return WithStructure(std::move(step));
}

// One step on one mesh as the search sees it.
class Problem {
 public:
  Problem(const Step& step, const Mesh& mesh, const CostModel& cost, const IntraOpOptions& options,
          const ReshardLimits& limits = {})
      : facts_(step),
        mesh_(mesh),
        cost_(cost),
        tables_(*EnumerateChoices(step, mesh, cost.forbids_replicated_dots(), options)),
        reshards_(mesh, cost, tables_.shardings, limits),
        formulation_(Formulate(facts_, tables_, reshards_, mesh, cost, options)),
        op_costs_(facts_, tables_, mesh, cost) {}

  const SolverProblem& solver_problem() const { return formulation_.problem; }

  double NumCombinations() const {
    double count = 1;
    for (NodeId node = 0; node < solver_problem().num_nodes(); ++node) {
      count *= solver_problem().num_choices(node);
    }
    return count;
  }

  // Where views are "as kept" or "fresh", as the search has it under a memory limit, one of them.
  std::vector<int32_t> RandomChoice(Random& random) const {
    std::vector<int32_t> choice;
    for (NodeId node = 0; node < solver_problem().num_nodes(); ++node) {
      choice.push_back(Below(random, solver_problem().num_choices(node)));
    }
    for (const std::vector<ValueLayout>& of_instruction : formulation_.layouts) {
      for (const ValueLayout& layout : of_instruction) {
        for (const NodeId view : layout.views) {
          if (view >= 0 && Below(random, 2) == 0) choice[view] = choice[layout.kept];
        }
      }
    }
    return choice;
  }

  // Operations run whole and values are kept whole, but views are fresh copies in `sharding`, and
  // their readers take them as they are.
  std::vector<int32_t> WholeButFreshViews(const Sharding& sharding) const {
    const Sharding whole = Sharding::Replicated(static_cast<int>(sharding.dims.size()));
    std::vector<int32_t> choice(solver_problem().num_nodes(), 0);
    const auto for_each_layout = [&](const auto& visit) {
      for (InstructionId id = 0; id < facts_.entry.num_instructions(); ++id) {
        visit(id, formulation_.layouts[id][0]);
      }
    };
    for_each_layout([&](InstructionId, const ValueLayout& layout) {
      choice[layout.kept] = LastWith(whole, formulation_.ports[layout.kept]);
    });
    for_each_layout([&](InstructionId id, const ValueLayout& layout) {
      for (const User& user : UsersOf(facts_, {id, 0})) {
        if (user.state_parameter >= 0) continue;
        const NodeId view = layout.views[facts_.ViewGroup(user.instruction)];
        if (view < 0) continue;
        choice[view] = LastWith(sharding, formulation_.ports[view]);
        choice[formulation_.operations[user.instruction]] =
            LastWith(sharding, ChoicesOf(user.instruction).operands[user.operands[0]]);
      }
    });
    return choice;
  }

  StagePlan Decode(const std::vector<int32_t>& choice) const {
    return DecodeChoices(facts_, tables_, formulation_, reshards_, mesh_, cost_, choice, {});
  }

  int64_t PeakMemory(const std::vector<int32_t>& choice) const {
    return EstimateMemory(facts_, Decode(choice)).peak_bytes;
  }

  // Every reader pays for the version it wants; infinite where the search may not do so.
  double Price(const std::vector<int32_t>& choice) {
    double price = 0;
    for (InstructionId id = 0; id < facts_.entry.num_instructions(); ++id) {
      const int32_t chosen = choice[formulation_.operations[id]];
      price += op_costs_.Costs(id)[chosen];
      const Value value = {id, 0};
      const ValueLayout& layout = formulation_.layouts[id][0];
      const Sharding made = Made(id, choice);
      const Sharding kept = SourceOf(made, layout.kept, formulation_.operations[id], choice);
      price += Distance(value, made, kept);
      for (const NodeId view : layout.views) {
        if (view >= 0) price += Distance(value, kept, SourceOf(kept, view, layout.kept, choice));
      }
      for (const User& user : UsersOf(facts_, value)) {
        if (user.state_parameter >= 0) {
          price +=
              Distance(value, kept, Made(facts_.entry.parameters[user.state_parameter], choice));
          continue;
        }
        const NodeId source = layout.SourceFor(facts_.ViewGroup(user.instruction));
        std::set<Sharding> wanted;
        for (const int operand : user.operands) {
          wanted.insert(OperandSharding(ChoicesOf(user.instruction).rule,
                                        StrategyOf(user.instruction, choice), operand));
        }
        for (const Sharding& sharding : wanted) {
          price += Distance(value, SourceOf(kept, source, layout.kept, choice), sharding);
        }
      }
    }
    return price;
  }

  // What the plan takes as the search counts it, by the paths of its reshards.
  double Charged(const std::vector<int32_t>& choice) {
    const ReshardTimes times = ReshardTimesOf(formulation_, tables_, reshards_, choice);
    double price = times.time + times.penalties;
    for (InstructionId id = 0; id < facts_.entry.num_instructions(); ++id) {
      price += op_costs_.Costs(id)[choice[formulation_.operations[id]]];
    }
    return price;
  }
  double units_per_cost() const { return formulation_.units_per_cost; }

  // So often per step as it runs where it stands.
  double TimeWhereItStands(const Reshard& reshard) {
    const double once = Distance(reshard.value, reshard.from, reshard.to);
    const MicroLoop& loop = facts_.loop;
    return PartOf(loop, reshard) == LoopPart::kInside ? once * loop.num_micro_batches : once;
  }

  // What the plan takes by its own steps.
  double PriceOf(const StagePlan& stage) const {
    double price = 0;
    for (const OpPlan& op : stage.ops) price += op.cost_us;
    for (const Reshard& reshard : stage.reshards) {
      const Shape& shape = facts_.entry.shape(reshard.value);
      const Sharding* before = &reshard.from;
      for (const ReshardStep& step : reshard.steps) {
        price += cost_.Collective(WorkOfStep(shape, *before, step, mesh_), shape.type);
        before = &step.result;
      }
    }
    return price;
  }

 private:
  const OpChoices& ChoicesOf(InstructionId id) const {
    return tables_.op_choices[tables_.of_instruction[id]];
  }
  const Strategy& StrategyOf(InstructionId id, const std::vector<int32_t>& choice) const {
    return ChoicesOf(id).strategies[choice[formulation_.operations[id]]];
  }
  Sharding Made(InstructionId id, const std::vector<int32_t>& choice) const {
    return ResultSharding(ChoicesOf(id).rule, StrategyOf(id, choice), 0);
  }
  int32_t LastWith(const Sharding& sharding, PortId id) const {
    const Port& port = tables_.ports[id];
    int32_t last = -1;
    for (size_t i = 0; i < port.size(); ++i) {
      if (tables_.shardings[port[i]] == sharding) last = static_cast<int32_t>(i);
    }
    return last;
  }

  // `parents` where the node is the parent itself.
  Sharding SourceOf(const Sharding& parents, NodeId node, NodeId parent,
                    const std::vector<int32_t>& choice) const {
    if (node == parent) return parents;
    return tables_.shardings[tables_.ports[formulation_.ports[node]][choice[node]]];
  }

  double Distance(Value value, const Sharding& from, const Sharding& to) {
    if (from == to) return 0;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (to.partial.contains(axis) && from.split_axes().contains(axis)) return kInfinite;
    }
    const Shape& shape = facts_.entry.shape(value);  // all are equal
    const auto [found, added] = distances_.try_emplace({from, to}, 0);
    if (added) {
      found->second = CheapestReshard(shape, from, to, mesh_, [&](const StepWork& work) {
                        return cost_.Collective(work, shape.type);
                      }).cost;
    }
    return found->second;
  }

  const StepFacts facts_;
  const Mesh& mesh_;
  const CostModel& cost_;
  ChoiceTables tables_;
  ReshardCosts reshards_;
  const Formulation formulation_;
  OpCosts op_costs_;
  std::map<std::pair<Sharding, Sharding>, double> distances_;
};

// Calls visit(choice) for every combination of choices.
template <typename Visit>
void ForEachCombination(const SolverProblem& problem, const Visit& visit) {
  std::vector<int32_t> choice(problem.num_nodes(), 0);
  while (true) {
    visit(choice);
    NodeId node = 0;
    while (node < problem.num_nodes() && ++choice[node] == problem.num_choices(node)) {
      choice[node++] = 0;
    }
    if (node == problem.num_nodes()) return;
  }
}

std::unique_ptr<CostModel> Roofline(const Mesh& mesh) {
  return MakeRooflineCostModel(*Cluster::Preset("p4de.24xlarge:1"), mesh);
}

IntraOpResult PlanWithGap(const Step& step, const Mesh& mesh, double gap,
                          IntraOpOptions options = {}) {
  options.search.gap = gap;
  options.search.num_threads = 1;
  return *PlanMesh(step, mesh, *Roofline(mesh), options);
}

bool IsCut(const IntraOpResult& result) {
  return std::ranges::any_of(
      result.notes, [](const std::string& note) { return note.starts_with("choices not tried"); });
}

TEST(BruteForce, NoCombinationCostsLessThanTheBound) {
  constexpr int kNumCases = 300;
  constexpr double kMostCombinations = 20'000, kMostDecoded = 1500;
  Random random(3);
  int num_cases = 0, num_on_three_axes = 0, num_cut = 0, num_decoded = 0;
  while (num_cases < kNumCases) {
    const char* const meshes[] = {"2x2", "2x4", "2x2x2"};
    const Mesh mesh = *Mesh::Parse(meshes[Below(random, 3)]);
    const bool is_matrix = Below(random, 3) == 0;
    const int64_t size = int64_t{2} << (Below(random, 2) * (is_matrix ? 1 : 20));
    Shape shape{kF32, {size}};
    if (is_matrix) shape.dims.push_back(1 << Below(random, 2));
    const bool has_dots = shape.rank() == 2 && shape.dims[0] == shape.dims[1];
    if (is_matrix && !has_dots) continue;
    const Step step = RandomStep(random, shape, 1 + Below(random, 3));
    const auto cost = Roofline(mesh);
    // Every other case with the fewest choices that there can be.
    IntraOpOptions options;
    if (num_cases % 2 == 1) options.max_choices = options.max_contraction_choices = 1;
    Problem problem(step, mesh, *cost, options);
    if (problem.NumCombinations() > kMostCombinations) continue;
    SCOPED_TRACE(fmt::format("case {} on {}", num_cases, mesh.ToString()));
    ++num_cases;
    num_on_three_axes += mesh.num_axes() == 3;

    double best = kInfinite;
    std::vector<int32_t> best_choice;
    ForEachCombination(problem.solver_problem(), [&](const std::vector<int32_t>& choice) {
      const double price = problem.Price(choice);
      if (price >= best) return;
      best = price;
      best_choice = choice;
    });
    const double rounding = 1e-9 * best;
    const double units = 1e-5 * (problem.solver_problem().num_nodes() +
                                 static_cast<double>(problem.solver_problem().edges().size()));
    const IntraOpResult exact = PlanWithGap(step, mesh, 0, options);
    EXPECT_LE(exact.lower_bound, best + rounding);
    EXPECT_GE(exact.objective, best - rounding);
    EXPECT_LE(exact.objective, best + units);
    num_cut += IsCut(exact);
    const IntraOpResult rough = PlanWithGap(step, mesh, 0.1, options);
    EXPECT_LE(rough.lower_bound, best + rounding);
    EXPECT_LE(rough.objective * 0.9, best + units);
    // The plan takes what its combination was priced at, or less where readers share a version.
    EXPECT_LE(problem.PriceOf(problem.Decode(best_choice)), best + rounding);
    EXPECT_LE(problem.PriceOf(exact.stage), exact.objective + rounding);
    if (problem.NumCombinations() <= kMostDecoded) {
      ++num_decoded;
      ForEachCombination(problem.solver_problem(), [&](const std::vector<int32_t>& choice) {
        if (std::isinf(problem.Price(choice))) return;
        EXPECT_LE(exact.lower_bound, problem.PriceOf(problem.Decode(choice)) + rounding);
      });
    }
    for (int i = 0; i < 5; ++i) {
      const std::vector<int32_t> choice = problem.RandomChoice(random);
      const double price = problem.Price(choice);
      if (std::isinf(price)) continue;
      EXPECT_LE(problem.PriceOf(problem.Decode(choice)), price * (1 + 1e-9));
    }
  }
  EXPECT_GT(num_on_three_axes, kNumCases / 10);
  EXPECT_GT(num_cut, kNumCases / 20);
  EXPECT_GT(num_decoded, kNumCases / 4);
}

// Every size and kind of its own, as noise makes them.
Calibration NoisyCalibration(Random& random) {
  const auto noise = [&](int most) { return 1e-3 * (1 + Below(random, 1000 * most)); };
  Calibration calibration{.num_devices = 8,
                          .launch_us = noise(5),
                          .arithmetic_per_us = 1,
                          .elementwise_per_us = 1,
                          .bytes_per_us = 10,
                          .waits = {{.phase_us = 1, .us = noise(3)}}};
  for (const ReshardKind kind : {ReshardKind::kAllReduce, ReshardKind::kReduceScatter,
                                 ReshardKind::kAllGather, ReshardKind::kAllToAll}) {
    for (const int64_t group_size : {2, 4}) {
      for (const int64_t bytes : {4, 16, 64}) {
        calibration.collectives.push_back({kind, group_size, bytes, noise(100)});
      }
    }
  }
  return calibration;
}

TEST(BruteForce, AChoiceCostsWhatTheSearchChargesForItHoweverNoisyThePrices) {
  constexpr int kNumCases = 200, kNumDraws = 100;
  Random random(11);
  int num_checked = 0;
  for (int i = 0; i < kNumCases; ++i) {
    const char* const meshes[] = {"2x2", "2x4", "2x2x2"};
    const Mesh mesh = *Mesh::Parse(meshes[Below(random, 3)]);
    const Calibration calibration = NoisyCalibration(random);
    const auto cost = MakeRooflineCostModel(Cluster::Local(8), mesh, &calibration);
    const ReshardLimits limits{.discourages_gathers_of_state = Below(random, 4) == 0,
                               .prefers_scattered_gradients = Below(random, 4) == 0,
                               .num_combinable = 1 + Below(random, 3)};
    const Step step = RandomStep(random, {kF32, {8, 8}}, 1 + Below(random, 4));
    Problem problem(step, mesh, *cost, {}, limits);
    SCOPED_TRACE(fmt::format("case {} on {}", i, mesh.ToString()));
    const double units = 1e-5 * (problem.solver_problem().num_nodes() +
                                 static_cast<double>(problem.solver_problem().edges().size()));
    for (int draw = 0; draw < kNumDraws; ++draw) {
      const std::vector<int32_t> choice = problem.RandomChoice(random);
      const Evaluation searched = *Evaluate(problem.solver_problem(), choice);
      if (!searched.feasible()) continue;
      const double price = static_cast<double>(searched.cost) / problem.units_per_cost();
      const double charged = problem.Charged(choice);
      EXPECT_LE(price, charged * (1 + 1e-12));
      EXPECT_GE(price, charged * (1 - 1e-12) - 2 * units);
      ++num_checked;
    }
  }
  EXPECT_GT(num_checked, 1000);
}

TEST(BruteForce, MemoryInTheSearchIsNeverMoreThanThePlanIsChargedWith) {
  constexpr int kNumSteps = 300, kNumDraws = 100;
  Random random(7);
  int num_checked = 0;
  for (int i = 0; i < kNumSteps; ++i) {
    const Mesh mesh = *Mesh::Parse("2x2");
    const int rank = 1 + Below(random, 2);
    const Step step =
        RandomStep(random, {kF32, std::vector<int64_t>(rank, 4)}, 3 + Below(random, 8));
    const auto cost = Roofline(mesh);
    Problem problem(step, mesh, *cost, {.search = {.memory_limit_bytes = 1 << 30}});
    for (int draw = 0; draw < kNumDraws; ++draw) {
      const std::vector<int32_t> choice = problem.RandomChoice(random);
      const Evaluation searched = *Evaluate(problem.solver_problem(), choice);
      if (!searched.feasible()) continue;
      const int64_t charged = problem.PeakMemory(choice);
      EXPECT_LE(searched.peak_usage_bytes, charged) << "step " << i << " draw " << draw;
      ++num_checked;
    }
  }
  EXPECT_GT(num_checked, 1000);
}

// The loop reads what is made in front of it, just before it begins; under a limit each of its runs
// makes versions anew, but not the one that is kept.
TEST(BruteForce, AVersionCostsWhatItTakesAsOftenAsItRuns) {
  const Shape shape{kF32, {8, 8}};
  ModuleBuilder module("kept_in_front");
  ComputationBuilder b = module.Entry();
  const Value state = b.Parameter(shape, "state"), x = b.Parameter(shape, "x");
  const Value kept = b.Unary(Opcode::kExponential, state);
  const Value index = b.Scalar(ElementType::kS32, 4);
  const Value loss = b.Binary(Opcode::kMultiply, kept, b.Binary(Opcode::kAdd, kept, x));
  const Value sum = b.Unary(Opcode::kCopy, loss);
  b.SetResults({b.Binary(Opcode::kAdd, state, sum), sum});
  module.AddAlias({.result = 0, .parameter = 0});
  Step step = WithStructure(
      {.module = *std::move(module).Finish(),
       .parameters = {{.role = ParameterRole::kState, .name = "state", .state_result = 0},
                      {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0}},
       .results = {{ResultRole::kState, "state"}, {ResultRole::kLoss, "loss"}}});
  step.module.num_micro_batches = 4;
  std::vector<Instruction>& instructions = step.module.entry_computation().instructions;
  instructions[index.instruction].part.loop = LoopRole::kIndex;
  for (InstructionId id = index.instruction + 1; id < sum.instruction; ++id) {
    instructions[id].part.loop = LoopRole::kBody;
  }
  instructions[sum.instruction].part.loop = LoopRole::kSum;
  const Mesh mesh = *Mesh::Parse("2x2");
  const auto cost = Roofline(mesh);
  Problem problem(step, mesh, *cost, {.search = {.memory_limit_bytes = 1 << 30}});
  Random random(3);
  int num_kept = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const StagePlan plan = problem.Decode(problem.RandomChoice(random));
    for (const Reshard& reshard : plan.reshards) {
      const double time = problem.TimeWhereItStands(reshard);
      if (reshard.combine_group >= 0 || time == kInfinite) continue;
      EXPECT_NEAR(reshard.cost_us, time, 1e-9 * time);
      num_kept += reshard.value == kept && reshard.before == kept.instruction + 1;
    }
  }
  EXPECT_GT(num_kept, 10);
}

// h is read by two operations of the backward phase with large values in between, from a copy that
// is split.
TEST(BruteForce, TheKeptValueDiesWhereTheLastPhaseMakesAFreshCopy) {
  ModuleBuilder module("fresh_copy");
  ComputationBuilder b = module.Entry();
  const Shape shape{kF32, {64, 64}};
  const Value w = b.Parameter(shape, "w"), x = b.Parameter(shape, "x");
  const Value v = b.Parameter(shape, "v");
  const auto dot = [&](Value left, Value right) {
    return b.Dot(left, right, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  };
  const Value h = dot(x, w);
  const Value loss = dot(h, h);
  const Value first = dot(h, v);
  const Value second = dot(first, first);
  const Value third = dot(first, second);
  const Value fourth = dot(dot(second, third), first);
  b.SetResults({dot(h, fourth), loss});
  module.AddAlias({.result = 0, .parameter = 0});
  const Step step =
      WithStructure({.module = *std::move(module).Finish(),
                     .parameters = {{.role = ParameterRole::kState, .name = "w", .state_result = 0},
                                    {.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0},
                                    {.name = "v"}},
                     .results = {{ResultRole::kState, "w"}, {ResultRole::kLoss, "loss"}}});
  const Mesh mesh = *Mesh::Parse("2");
  const auto cost = Roofline(mesh);
  const Problem problem(step, mesh, *cost, {.search = {.memory_limit_bytes = 1 << 30}});
  const std::vector<int32_t> choice = problem.WholeButFreshViews(*ParseSharding("[x,-]", mesh));
  const Evaluation searched = *Evaluate(problem.solver_problem(), choice);
  ASSERT_TRUE(searched.feasible());
  EXPECT_LE(searched.peak_usage_bytes, problem.PeakMemory(choice));
}

TEST(BruteForce, AFinerMeshCostsNoMoreThanItsAxesJoinedHoweverMuchIsCut) {
  constexpr double kGap = 0.01;
  Random random(5);
  int num_cut = 0;
  for (int i = 0; i < 30; ++i) {
    const int64_t size = int64_t{64} << Below(random, 5);
    const Step step = RandomStep(random, {kF32, {size, size}}, 3 + Below(random, 5));
    const Mesh mesh = *Mesh::Parse("2x2x2");
    IntraOpOptions options;
    if (i % 2 == 1) options.max_choices = options.max_contraction_choices = 1 + 9 * (i % 12);
    const IntraOpResult fine = PlanWithGap(step, mesh, kGap, options);
    num_cut += IsCut(fine);
    for (const char* joined : {"2x4", "4x2", "8"}) {
      const IntraOpResult coarse = PlanWithGap(step, *Mesh::Parse(joined), kGap);
      EXPECT_LE(fine.lower_bound, coarse.objective * (1 + 1e-9)) << i << " on " << joined;
      EXPECT_LE(fine.objective * (1 - kGap), coarse.objective * (1 + 1e-9))
          << i << " on " << joined;
    }
  }
  EXPECT_GT(num_cut, 10);
}

}  // namespace
}  // namespace minka
