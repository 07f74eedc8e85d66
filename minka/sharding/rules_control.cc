// The rules of while and conditional. A factor is a class of dimensions, of carried values and of
// what the called computations make of them, that operations tie together: split one, and the
// others follow without communication wherever the operations between them allow it. What else the
// called computations need they do themselves (called_plan.h): a factor may bring collectives into
// them, and leave carried values as sums owed (gradients that a loop accumulates).
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/sharding/called_plan.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// A factor that divides less of the work and costs collectives, or leaves sums owed, is not
// offered.
constexpr double kLeastDividedWork = 0.25;
constexpr double kLeastDividedWorkOwing = 0.1;
// The factors that divide most are.
constexpr size_t kMaxFactors = 6;

// A called computation with the operands that its parameters are and the results that it gives.
struct Called {
  const Computation& computation;
  std::vector<OpRule> rules;
  int first_operand = 0;
};

// Classes of dimensions that are split alike, over the values of several computations.
class DimClasses {
 public:
  explicit DimClasses(const std::vector<Called>& called) {
    int next = 0;
    for (const Called& part : called) {
      auto& first = first_.emplace_back();
      for (const Instruction& instruction : part.computation.instructions) {
        std::vector<int>& results = first.emplace_back();
        for (const Shape& result : instruction.results) {
          results.push_back(next);
          next += result.rank();
          for (const int64_t size : result.dims) common_size_.push_back(size);
        }
      }
    }
    parent_.resize(next);
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int Find(int called, Value value, int dim) {
    return Find(first_[called][value.instruction][value.result] + dim);
  }
  void Join(int a, int b) {
    a = Find(a);
    b = Find(b);
    if (a == b) return;
    parent_[std::max(a, b)] = std::min(a, b);
    LimitSize(a, common_size_[std::max(a, b)]);
    LimitSize(a, common_size_[std::min(a, b)]);
  }
  // What splits the class must divide `size` too.
  void LimitSize(int element, int64_t size) {
    element = Find(element);
    common_size_[element] = std::gcd(common_size_[element], size);
  }
  int64_t common_size(int element) { return common_size_[Find(element)]; }

 private:
  int Find(int element) {
    while (parent_[element] != element) {
      parent_[element] = parent_[parent_[element]];
      element = parent_[element];
    }
    return element;
  }

  std::vector<std::vector<std::vector<int>>> first_;  // [called][instruction][result] -> element
  std::vector<int> parent_;
  std::vector<int64_t> common_size_;
};

// Splitting it needs nothing but local shapes.
bool IsPlain(const Factor& factor) {
  return factor.local_form == LocalForm::kPlain || factor.local_form == LocalForm::kIotaOffset ||
         factor.local_form == LocalForm::kOwnSlice || factor.local_form == LocalForm::kInitOnFirst;
}

// Joins the dimensions that the factors of one operation tie together.
void JoinByRule(const OpRule& rule, const Instruction& instruction, InstructionId id, int called,
                DimClasses& classes) {
  std::vector<int> representative(rule.factors.size(), -1);
  const auto visit = [&](Value value, const std::vector<int>& dims) {
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const int factor = dims[dim];
      if (factor == kWholeDim || !IsPlain(rule.factors[factor])) continue;
      const int element = classes.Find(called, value, static_cast<int>(dim));
      classes.LimitSize(element, rule.factors[factor].size);
      if (representative[factor] < 0) representative[factor] = element;
      classes.Join(representative[factor], element);
    }
  };
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    visit(instruction.operands[i], rule.operand_dims[i]);
  }
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    visit({id, static_cast<int32_t>(i)}, rule.result_dims[i]);
  }
}

DimClasses Analyse(const std::vector<Called>& called, bool is_loop) {
  DimClasses classes(called);
  const auto join = [&](int a, Value x, int b, Value y) {
    for (int dim = 0; dim < called[a].computation.shape(x).rank(); ++dim) {
      classes.Join(classes.Find(a, x, dim), classes.Find(b, y, dim));
    }
  };
  for (int part = 0; part < static_cast<int>(called.size()); ++part) {
    const Computation& computation = called[part].computation;
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      JoinByRule(called[part].rules[id], computation.instructions[id], id, part, classes);
    }
    for (size_t i = 0; i < computation.results.size(); ++i) {
      if (is_loop) join(part, computation.results[i], part, {computation.parameters[i], 0});
      join(part, computation.results[i], 0, called[0].computation.results[i]);
    }
  }
  return classes;
}

// One factor: what it splits, by operand and result (-1: nothing), and what it leaves owed.
struct ControlFactor {
  int64_t size = 1;
  std::vector<int> operand_dims, result_dims;
  std::vector<int> partial_operands, partial_results;
  bool has_collectives = false;
};

// Tries a factor on a mesh of one axis.
class Trial {
 public:
  Trial(const std::vector<Called>& called, ControlFactor factor)
      : called_(called), factor_(std::move(factor)), mesh_({{"x", SmallestPrime(factor_.size)}}) {}

  static int64_t SmallestPrime(int64_t size) {
    int64_t prime = 2;
    while (size % prime != 0) ++prime;
    return prime;
  }

  Sharding Place(const Shape& shape, int dim, bool owed) const {
    Sharding sharding = Sharding::Replicated(shape.rank());
    if (dim >= 0) sharding.dims[dim].PushMinor(0);
    if (owed) sharding.partial.Insert(0);
    return sharding;
  }
  bool IsPartial(const std::vector<int>& list, int index) const {
    return std::find(list.begin(), list.end(), index) != list.end();
  }

  CalledPlan PlanOf(const Called& called, bool as_made) const {
    const Computation& computation = called.computation;
    std::vector<Sharding> parameters, results;
    for (int i = 0; i < static_cast<int>(computation.parameters.size()); ++i) {
      const int operand = called.first_operand + i;
      parameters.push_back(Place(computation.shape({computation.parameters[i], 0}),
                                 factor_.operand_dims[operand],
                                 IsPartial(factor_.partial_operands, operand)));
    }
    for (int i = 0; i < static_cast<int>(computation.results.size()); ++i) {
      results.push_back(Place(computation.shape(computation.results[i]), factor_.result_dims[i],
                              IsPartial(factor_.partial_results, i)));
    }
    return PlanCalled(called.rules, computation, parameters,
                      as_made ? std::nullopt : std::optional<std::span<const Sharding>>(results),
                      mesh_, kTrialPrices);
  }

  ControlFactor& factor() { return factor_; }

  // Collectives, and which part of the work is divided.
  double DividedWork() {
    double all = 0, divided = 0;
    factor_.has_collectives = false;
    for (const Called& called : called_) {
      const CalledPlan plan = PlanOf(called, /*as_made=*/false);
      for (const CalledReshard& reshard : plan.reshards) {
        factor_.has_collectives |= std::ranges::any_of(
            reshard.steps, [](const ReshardStep& step) { return IsCollective(step.kind); });
      }
      for (InstructionId id = 0; id < called.computation.num_instructions(); ++id) {
        const double work = RoughWork(called.computation, id);
        const AxisUse use = plan.operations[id].strategy.axes[0];
        all += work;
        if (use.kind == AxisUse::Kind::kFactor) divided += work;
        factor_.has_collectives |= use.kind == AxisUse::Kind::kFactor &&
                                   BringsCollectives(called.rules[id].factors[use.index]);
      }
    }
    return all == 0 ? 0 : divided / all;
  }

 private:
  static bool BringsCollectives(const Factor& factor) {
    return factor.kind == FactorKind::kCombine ||
           factor.local_form == LocalForm::kCollectivesInside;
  }

  const std::vector<Called>& called_;
  ControlFactor factor_;
  Mesh mesh_;
};

// Which instructions' results are owed because a contraction on the way was split; not only
// because what they read from the loop's parameters was.
std::vector<bool> OwedByWork(const CalledPlan& plan, const Called& called) {
  const Computation& computation = called.computation;
  std::vector<bool> owed(computation.instructions.size());
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const OpRule& rule = called.rules[id];
    if (rule.num_lanes > 1) continue;
    const AxisUse use = plan.operations[id].strategy.axes[0];
    if (use.kind == AxisUse::Kind::kFactor) {
      const Factor& factor = rule.factors[use.index];
      owed[id] = factor.kind == FactorKind::kSum || !factor.partial_results.empty();
    } else if (use.kind == AxisUse::Kind::kLinear) {
      for (const int operand : rule.linear_groups[use.index]) {
        owed[id] = owed[id] || owed[computation.instructions[id].operands[operand].instruction];
      }
    }
  }
  return owed;
}

// Carried values of a loop that may stay owed: the largest set in which every one comes out of the
// body owed if it goes in so, and nothing in the body needs it complete.
void FindOwedInLoop(const Called& body, const std::vector<bool>& never, Trial& trial) {
  ControlFactor& factor = trial.factor();
  const Computation& computation = body.computation;
  for (int i = 0; i < static_cast<int>(computation.parameters.size()); ++i) {
    const Value parameter{computation.parameters[i], 0};
    if (factor.operand_dims[i] >= 0 || never[i] || computation.results[i] == parameter) continue;
    if (IsSummable(computation.shape(parameter).type)) factor.partial_operands.push_back(i);
  }
  while (!factor.partial_operands.empty()) {
    factor.partial_results = factor.partial_operands;
    const CalledPlan plan = trial.PlanOf(body, /*as_made=*/false);
    const std::vector<bool> owed = OwedByWork(plan, body);
    std::vector<int> kept;
    for (const int i : factor.partial_operands) {
      const Value result = computation.results[i];
      bool stays = owed[result.instruction];
      for (const CalledReshard& reshard : plan.reshards) {
        stays &= reshard.value != Value{computation.parameters[i], 0};
      }
      if (stays) kept.push_back(i);
    }
    if (kept.size() == factor.partial_operands.size()) break;
    factor.partial_operands = std::move(kept);
  }
  factor.partial_results = factor.partial_operands;
}

// A branch's result is split or owed if every branch makes it so.
void FindResultsOfBranches(const std::vector<Called>& branches, Trial& trial) {
  ControlFactor& factor = trial.factor();
  const size_t num_results = branches[0].computation.results.size();
  std::vector<CalledPlan> plans;
  for (const Called& branch : branches) plans.push_back(trial.PlanOf(branch, /*as_made=*/true));
  for (size_t i = 0; i < num_results; ++i) {
    bool all_owed = true;
    for (size_t b = 0; b < branches.size(); ++b) {
      const Sharding made =
          VersionSharding(branches[b].computation, branches[b].rules, plans[b],
                          branches[b].computation.results[i], plans[b].result_versions[i]);
      all_owed &= made.partial.contains(0);
    }
    if (all_owed && factor.result_dims[i] < 0) {
      factor.partial_results.push_back(static_cast<int>(i));
    }
  }
}

// The first dimension of each value in the class; values in `never` stay whole.
std::vector<int> MappedDims(const std::vector<Value>& values, const Computation& computation,
                            int called, int element, DimClasses& classes,
                            const std::vector<bool>& never) {
  std::vector<int> mapped;
  for (size_t i = 0; i < values.size(); ++i) {
    int found = -1;
    for (int dim = computation.shape(values[i]).rank() - 1; dim >= 0 && !never[i]; --dim) {
      if (classes.Find(called, values[i], dim) == element) found = dim;
    }
    mapped.push_back(found);
  }
  return mapped;
}

std::vector<Value> ParameterValues(const Computation& computation) {
  std::vector<Value> values;
  for (const InstructionId id : computation.parameters) values.push_back({id, 0});
  return values;
}

// Carried values that the condition reads.
std::vector<bool> ReadByCondition(const Computation& condition) {
  const UseTable uses(condition);
  std::vector<bool> read;
  for (const InstructionId id : condition.parameters) {
    read.push_back(!uses.uses({id, 0}).empty() || uses.is_result({id, 0}));
  }
  return read;
}

struct FactorCandidate {
  int element = 0;
  std::string name;
};

void AddCandidates(const std::vector<Called>& called, int part, const std::vector<Value>& values,
                   std::string_view what, int first, DimClasses& classes,
                   std::vector<FactorCandidate>& candidates) {
  for (size_t i = 0; i < values.size(); ++i) {
    for (int dim = 0; dim < called[part].computation.shape(values[i]).rank(); ++dim) {
      const int element = classes.Find(part, values[i], dim);
      bool is_known = classes.common_size(element) <= 1;
      for (const FactorCandidate& other : candidates) is_known |= other.element == element;
      if (!is_known) {
        candidates.push_back({element, fmt::format("{} {} dim {}", what, first + i, dim)});
      }
    }
  }
}

void AddFactor(RuleBuilder& rule, const ControlFactor& factor, const std::string& name) {
  const int index =
      rule.AddParallel(factor.size, name,
                       factor.has_collectives ? LocalForm::kCollectivesInside : LocalForm::kPlain);
  rule.factor(index).partial_operands = factor.partial_operands;
  rule.factor(index).partial_results = factor.partial_results;
  for (size_t i = 0; i < factor.operand_dims.size(); ++i) {
    if (factor.operand_dims[i] >= 0) {
      rule.MapOperand(static_cast<int>(i), factor.operand_dims[i], index);
    }
  }
  for (size_t i = 0; i < factor.result_dims.size(); ++i) {
    if (factor.result_dims[i] >= 0) {
      rule.MapResult(static_cast<int>(i), factor.result_dims[i], index);
    }
  }
}

struct Offer {
  ControlFactor factor;
  std::string name;
  double divided_work = 0;
};

void AppendIfWorth(Trial& trial, const std::string& name, std::vector<Offer>& offers) {
  const double divided = trial.DividedWork();
  const ControlFactor& factor = trial.factor();
  const bool owes = !factor.partial_results.empty();
  const double least = factor.has_collectives ? kLeastDividedWork
                       : owes                 ? kLeastDividedWorkOwing
                                              : 0;
  if (divided >= least) offers.push_back({factor, name, divided});
}

// The ones that divide most, in the order in which they were found.
void AddBest(std::vector<Offer> offers, RuleBuilder& rule) {
  while (offers.size() > kMaxFactors) {
    const auto least = std::min_element(
        offers.rbegin(), offers.rend(),
        [](const Offer& a, const Offer& b) { return a.divided_work < b.divided_work; });
    offers.erase(std::next(least).base());
  }
  for (const Offer& offer : offers) AddFactor(rule, offer.factor, offer.name);
}

}  // namespace

OpRule WhileRule(RuleBuilder rule, const Module& module) {
  const Computation& body = module.computations[rule.instruction().called[0]];
  const std::vector<bool> never =
      ReadByCondition(module.computations[rule.instruction().called[1]]);
  const std::vector<Called> called = {{body, RulesOf(module, body), 0}};
  DimClasses classes = Analyse(called, /*is_loop=*/true);
  const std::vector<Value> carried = ParameterValues(body);
  std::vector<FactorCandidate> candidates;
  AddCandidates(called, 0, carried, "value", 0, classes, candidates);
  std::vector<Offer> offers;
  for (const FactorCandidate& candidate : candidates) {
    const std::vector<int> dims = MappedDims(carried, body, 0, candidate.element, classes, never);
    Trial trial(called, {.size = classes.common_size(candidate.element),
                         .operand_dims = dims,
                         .result_dims = dims});
    FindOwedInLoop(called[0], never, trial);
    AppendIfWorth(trial, candidate.name, offers);
  }
  AddBest(std::move(offers), rule);
  return rule.Build();
}

OpRule ConditionalRule(RuleBuilder rule, const Module& module) {
  std::vector<Called> branches;
  int first_operand = 1;
  for (const ComputationId id : rule.instruction().called) {
    const Computation& branch = module.computations[id];
    branches.push_back({branch, RulesOf(module, branch), first_operand});
    first_operand += static_cast<int>(branch.parameters.size());
  }
  DimClasses classes = Analyse(branches, /*is_loop=*/false);
  std::vector<FactorCandidate> candidates;
  for (int part = 0; part < static_cast<int>(branches.size()); ++part) {
    AddCandidates(branches, part, ParameterValues(branches[part].computation), "operand",
                  branches[part].first_operand, classes, candidates);
  }
  std::vector<Offer> offers;
  for (const FactorCandidate& candidate : candidates) {
    ControlFactor factor{.size = classes.common_size(candidate.element), .operand_dims = {-1}};
    for (int part = 0; part < static_cast<int>(branches.size()); ++part) {
      const std::vector<Value> parameters = ParameterValues(branches[part].computation);
      const std::vector<int> dims =
          MappedDims(parameters, branches[part].computation, part, candidate.element, classes,
                     std::vector<bool>(parameters.size()));
      factor.operand_dims.insert(factor.operand_dims.end(), dims.begin(), dims.end());
    }
    const std::vector<Value>& results = branches[0].computation.results;
    factor.result_dims = MappedDims(results, branches[0].computation, 0, candidate.element, classes,
                                    std::vector<bool>(results.size()));
    Trial trial(branches, std::move(factor));
    FindResultsOfBranches(branches, trial);
    AppendIfWorth(trial, candidate.name, offers);
  }
  AddBest(std::move(offers), rule);
  return rule.Build();
}

}  // namespace minka
