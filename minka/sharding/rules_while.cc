// The rule of while: a dimension of a carried value can be split if nothing in the body looks
// across it, that is if it goes through the body by parallel factors and comes out at the same
// place.
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/sharding/rule_builder.h"

namespace minka {
namespace {

// Classes of dimensions of the body's values that must be split alike.
class DimClasses {
 public:
  explicit DimClasses(const Computation& computation) {
    int next = 0;
    for (const Instruction& instruction : computation.instructions) {
      std::vector<int>& first = first_.emplace_back();
      for (const Shape& result : instruction.results) {
        first.push_back(next);
        next += result.rank();
        for (const int64_t size : result.dims) {
          common_size_.push_back(size);
        }
      }
    }
    parent_.resize(next);
    std::iota(parent_.begin(), parent_.end(), 0);
    is_whole_.resize(next, false);
  }

  int Find(Value value, int dim) { return Find(first_[value.instruction][value.result] + dim); }
  void Join(int a, int b) {
    a = Find(a);
    b = Find(b);
    if (a == b) return;
    parent_[b] = a;
    is_whole_[a] = is_whole_[a] || is_whole_[b];
    LimitSize(a, common_size_[b]);
  }
  void SetWhole(int element) { is_whole_[Find(element)] = true; }
  // What splits the class must divide `size` too.
  void LimitSize(int element, int64_t size) {
    element = Find(element);
    common_size_[element] = std::gcd(common_size_[element], size);
  }
  bool is_whole(int element) { return is_whole_[Find(element)]; }
  int64_t common_size(int element) { return common_size_[Find(element)]; }

 private:
  int Find(int element) {
    while (parent_[element] != element) {
      parent_[element] = parent_[parent_[element]];
      element = parent_[element];
    }
    return element;
  }

  std::vector<std::vector<int>> first_;  // [instruction][result] -> element of its dimension 0
  std::vector<int> parent_;
  std::vector<bool> is_whole_;
  std::vector<int64_t> common_size_;
};

bool IsSplittable(const Factor& factor) {
  return factor.kind == FactorKind::kParallel && factor.local_form == LocalForm::kPlain;
}

// Joins the dimensions that the factors of one operation tie together.
void JoinByRule(const OpRule& rule, const Instruction& instruction, InstructionId id,
                DimClasses& classes) {
  std::vector<int> representative(rule.factors.size(), -1);
  const auto visit = [&](Value value, const std::vector<int>& dims) {
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const int element = classes.Find(value, static_cast<int>(dim));
      const int factor = dims[dim];
      if (factor == kWholeDim || !IsSplittable(rule.factors[factor])) {
        classes.SetWhole(element);
        continue;
      }
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

// What the condition reads, and two dimensions of one value in one class, must be whole.
void SetForcedWhole(const Computation& body, const Computation& condition, DimClasses& classes) {
  for (const Instruction& instruction : condition.instructions) {
    for (const Value operand : instruction.operands) {
      const Instruction& source = condition.instruction(operand);
      if (source.opcode != Opcode::kParameter) continue;
      const int64_t number = source.As<ParameterAttributes>().number;
      for (int dim = 0; dim < condition.shape(operand).rank(); ++dim) {
        classes.SetWhole(classes.Find({body.parameters[number], 0}, dim));
      }
    }
  }
  for (InstructionId id = 0; id < body.num_instructions(); ++id) {
    const std::vector<Shape>& results = body.instructions[id].results;
    for (int32_t i = 0; i < static_cast<int32_t>(results.size()); ++i) {
      for (int dim = 0; dim < results[i].rank(); ++dim) {
        for (int other = 0; other < dim; ++other) {
          const int element = classes.Find({id, i}, dim);
          if (element == classes.Find({id, i}, other)) classes.SetWhole(element);
        }
      }
    }
  }
}

DimClasses Analyse(const Module& module, const Instruction& loop) {
  const Computation& body = module.computations[loop.called[0]];
  DimClasses classes(body);
  for (InstructionId id = 0; id < body.num_instructions(); ++id) {
    JoinByRule(RuleFor(module, body, id), body.instructions[id], id, classes);
  }
  for (size_t i = 0; i < body.results.size(); ++i) {
    for (int dim = 0; dim < body.shape(body.results[i]).rank(); ++dim) {
      classes.Join(classes.Find(body.results[i], dim), classes.Find({body.parameters[i], 0}, dim));
    }
  }
  SetForcedWhole(body, module.computations[loop.called[1]], classes);
  return classes;
}

// The classes that carried values give factors to, in the order of carried values and dimensions.
struct LoopFactor {
  int element = 0;
  int value = 0;
  int dim = 0;
};
std::vector<LoopFactor> LoopFactors(const Computation& body, DimClasses& classes) {
  std::vector<LoopFactor> factors;
  for (int i = 0; i < static_cast<int>(body.parameters.size()); ++i) {
    const Value parameter{body.parameters[i], 0};
    for (int dim = 0; dim < body.shape(parameter).rank(); ++dim) {
      const int element = classes.Find(parameter, dim);
      bool is_known = classes.is_whole(element) || classes.common_size(element) <= 1;
      for (const LoopFactor& factor : factors) is_known |= factor.element == element;
      if (!is_known) factors.push_back({element, i, dim});
    }
  }
  return factors;
}

bool AllSupported(const Module& module, const Computation& body) {
  for (InstructionId id = 0; id < body.num_instructions(); ++id) {
    if (!RuleFor(module, body, id).supported) return false;
  }
  return true;
}

int FactorOf(const std::vector<LoopFactor>& factors, int element) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i].element == element) return static_cast<int>(i);
  }
  return kWholeDim;
}

}  // namespace

OpRule WhileRule(RuleBuilder rule, const Module& module) {
  const Computation& body = module.computations[rule.instruction().called[0]];
  DimClasses classes = Analyse(module, rule.instruction());
  const std::vector<LoopFactor> factors = LoopFactors(body, classes);
  for (const LoopFactor& factor : factors) {
    const bool from_first = factor.value == factors[0].value;
    rule.AddParallel(classes.common_size(factor.element),
                     from_first ? fmt::format("dim {}", factor.dim)
                                : fmt::format("value {} dim {}", factor.value, factor.dim));
  }
  for (int i = 0; i < rule.num_operands(); ++i) {
    for (int dim = 0; dim < rule.operand(i).rank(); ++dim) {
      const int factor = FactorOf(factors, classes.Find({body.parameters[i], 0}, dim));
      rule.MapOperand(i, dim, factor);
      rule.MapResult(i, dim, factor);
    }
  }
  OpRule result = rule.Build();
  result.supported = AllSupported(module, body);
  return result;
}

std::vector<std::vector<std::vector<int>>> WhileBodyDims(const Module& module,
                                                         const Computation& computation,
                                                         InstructionId id) {
  const Instruction& loop = computation.instructions[id];
  MINKA_CHECK(loop.opcode == Opcode::kWhile, "{} is no while", loop.name);
  const Computation& body = module.computations[loop.called[0]];
  DimClasses classes = Analyse(module, loop);
  const std::vector<LoopFactor> factors = LoopFactors(body, classes);
  std::vector<std::vector<std::vector<int>>> dims;
  for (InstructionId i = 0; i < body.num_instructions(); ++i) {
    std::vector<std::vector<int>>& results = dims.emplace_back();
    for (int32_t j = 0; j < static_cast<int32_t>(body.instructions[i].results.size()); ++j) {
      std::vector<int>& result = results.emplace_back();
      for (int dim = 0; dim < body.shape({i, j}).rank(); ++dim) {
        result.push_back(FactorOf(factors, classes.Find({i, j}, dim)));
      }
    }
  }
  return dims;
}

}  // namespace minka
