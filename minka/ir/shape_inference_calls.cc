#include <algorithm>

#include "minka/ir/shape_inference_rules.h"

namespace minka {
namespace {

std::string ShapesText(std::span<const Shape> shapes) {
  std::string text = "(";
  for (const Shape& shape : shapes) {
    if (text.size() > 1) text += ", ";
    text += ToString(shape);
  }
  return text + ")";
}

std::vector<Shape> ParameterShapes(const Computation& computation) {
  std::vector<Shape> shapes;
  shapes.reserve(computation.parameters.size());
  for (const InstructionId id : computation.parameters) {
    shapes.push_back(computation.instructions[id].shape());
  }
  return shapes;
}

std::vector<Shape> ResultShapes(const Computation& computation) {
  std::vector<Shape> shapes;
  shapes.reserve(computation.results.size());
  for (const Value value : computation.results) shapes.push_back(computation.shape(value));
  return shapes;
}

const Computation& Called(const ShapeContext& context, size_t index) {
  return context.module.computations[context.instruction.called[index]];
}

absl::Status CheckNumCalled(const ShapeContext& context, size_t expected) {
  const size_t called = context.instruction.called.size();
  if (called == expected) return absl::OkStatus();
  return DoesNotFit(context, "calls {} computations, needs {}", called, expected);
}

absl::Status CheckArguments(const ShapeContext& context, const Computation& callee,
                            std::span<const Shape> arguments) {
  const std::vector<Shape> parameters = ParameterShapes(callee);
  if (std::ranges::equal(parameters, arguments)) return absl::OkStatus();
  return DoesNotFit(context, "passes {} to '{}', which takes {}", ShapesText(arguments),
                    callee.name, ShapesText(parameters));
}

absl::Status CheckResults(const ShapeContext& context, const Computation& callee,
                          std::span<const Shape> expected) {
  const std::vector<Shape> results = ResultShapes(callee);
  if (std::ranges::equal(results, expected)) return absl::OkStatus();
  return DoesNotFit(context, "'{}' returns {}, needs {}", callee.name, ShapesText(results),
                    ShapesText(expected));
}

}  // namespace

// A reducer of n values takes 2n scalars (accumulators, then elements) and returns n.
absl::Status CheckReducer(const ShapeContext& context, std::span<const ElementType> types) {
  RETURN_IF_ERROR(CheckNumCalled(context, 1));
  const Computation& reducer = Called(context, 0);
  const std::vector<Shape> parameters = ParameterShapes(reducer);
  const std::vector<Shape> results = ResultShapes(reducer);
  bool fits = parameters.size() == 2 * types.size() && results.size() == types.size();
  for (size_t i = 0; fits && i < parameters.size(); ++i) {
    fits = parameters[i].rank() == 0 &&
           SameTypeUpToPrecision(parameters[i].type, types[i % types.size()]);
  }
  for (size_t i = 0; fits && i < results.size(); ++i) {
    fits = results[i].rank() == 0 && SameTypeUpToPrecision(results[i].type, types[i]);
  }
  if (fits) return absl::OkStatus();
  return DoesNotFit(context, "reducer '{}' {} -> {} does not reduce {} values of type {}",
                    reducer.name, ShapesText(parameters), ShapesText(results), types.size(),
                    types.empty() ? "none" : TypeName(types[0]));
}

absl::Status CheckBinaryCallee(const ShapeContext& context, size_t index, ElementType operand,
                               ElementType result) {
  const Computation& callee = Called(context, index);
  const std::vector<Shape> parameters = ParameterShapes(callee);
  const std::vector<Shape> results = ResultShapes(callee);
  const auto is_scalar = [](const Shape& shape, ElementType type) {
    return shape.rank() == 0 && SameTypeUpToPrecision(shape.type, type);
  };
  if (parameters.size() == 2 && is_scalar(parameters[0], operand) &&
      is_scalar(parameters[1], operand) && results.size() == 1 && is_scalar(results[0], result)) {
    return absl::OkStatus();
  }
  return DoesNotFit(context, "'{}' {} -> {} does not make one scalar {} of two {}", callee.name,
                    ShapesText(parameters), ShapesText(results), TypeName(result),
                    TypeName(operand));
}

InferredShapes InferCall(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumCalled(context, 1));
  RETURN_IF_ERROR(CheckArguments(context, Called(context, 0), context.operands));
  return ResultShapes(Called(context, 0));
}

InferredShapes InferWhile(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumCalled(context, 2));
  const Computation& body = Called(context, 0);
  const Computation& condition = Called(context, 1);
  RETURN_IF_ERROR(CheckArguments(context, body, context.operands));
  RETURN_IF_ERROR(CheckArguments(context, condition, context.operands));
  RETURN_IF_ERROR(CheckResults(context, body, context.operands));
  RETURN_IF_ERROR(CheckResults(context, condition, std::vector<Shape>{{ElementType::kPred, {}}}));
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

InferredShapes InferConditional(const ShapeContext& context) {
  const size_t num_branches = context.instruction.called.size();
  if (num_branches == 0) return DoesNotFit(context, "has no branches");
  if (context.num_operands() == 0) return DoesNotFit(context, "has no predicate");
  const Shape& predicate = context.operand(0);
  const bool by_predicate = predicate == Shape{ElementType::kPred, {}} && num_branches == 2;
  if (!by_predicate && predicate != Shape{ElementType::kS32, {}}) {
    return DoesNotFit(context, "chooses one of {} branches by {}; takes pred[] for two, s32[]",
                      num_branches, ToString(predicate));
  }
  std::span<const Shape> arguments = context.operands.subspan(1);
  for (size_t i = 0; i < num_branches; ++i) {
    const Computation& branch = Called(context, i);
    const size_t num_parameters = std::min(branch.parameters.size(), arguments.size());
    RETURN_IF_ERROR(CheckArguments(context, branch, arguments.first(num_parameters)));
    RETURN_IF_ERROR(CheckResults(context, branch, ResultShapes(Called(context, 0))));
    arguments = arguments.subspan(num_parameters);
  }
  if (!arguments.empty()) {
    return DoesNotFit(context, "has {} operands that no branch takes", arguments.size());
  }
  return ResultShapes(Called(context, 0));
}

absl::StatusOr<std::vector<ElementType>> CheckReduction(const ShapeContext& context) {
  const int num_inputs = context.num_operands() / 2;
  if (num_inputs < 1 || context.num_operands() != 2 * num_inputs) {
    return DoesNotFit(context, "has {} operands, needs inputs and as many initial values",
                      context.num_operands());
  }
  const Shape& first = context.operand(0);
  std::vector<ElementType> types;
  for (int i = 0; i < num_inputs; ++i) {
    const Shape& input = context.operand(i);
    const Shape& init = context.operand(num_inputs + i);
    if (input.dims != first.dims) {
      return DoesNotFit(context, "inputs {} and {} differ", ToString(first), ToString(input));
    }
    if (init.rank() != 0 || !SameTypeUpToPrecision(init.type, input.type)) {
      return DoesNotFit(context, "initial value {} is not a scalar of {}", ToString(init),
                        ToString(input));
    }
    types.push_back(input.type);
  }
  RETURN_IF_ERROR(CheckReducer(context, types));
  std::vector<ElementType> reduced_types;
  for (const Shape& result : ResultShapes(Called(context, 0))) {
    reduced_types.push_back(result.type);
  }
  return reduced_types;
}

InferredShapes InferReduce(const ShapeContext& context) {
  ASSIGN_OR_RETURN(const std::vector<ElementType> types, CheckReduction(context));
  const Shape& first = context.operand(0);
  const std::vector<int64_t>& reduced = context.instruction.As<DimensionsAttributes>().dims;
  RETURN_IF_ERROR(CheckDimensions(context, reduced, first.rank(), "dimensions"));
  std::vector<int64_t> kept;
  for (int i = 0; i < first.rank(); ++i) {
    if (std::ranges::find(reduced, i) == reduced.end()) kept.push_back(first.dims[i]);
  }
  std::vector<Shape> results;
  results.reserve(types.size());
  for (const ElementType type : types) results.push_back({type, kept});
  return results;
}

InferredShapes InferSort(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  const Shape& first = context.operand(0);
  const std::vector<int64_t>& dims = context.instruction.As<DimensionsAttributes>().dims;
  if (dims.size() != 1) return DoesNotFit(context, "{} dimensions, needs one", dims.size());
  RETURN_IF_ERROR(CheckDimensions(context, dims, first.rank(), "dimension"));
  RETURN_IF_ERROR(CheckNumCalled(context, 1));
  std::vector<Shape> compared;
  for (const Shape& operand : context.operands) {
    if (operand.dims != first.dims) {
      return DoesNotFit(context, "operands {} and {} differ", ToString(first), ToString(operand));
    }
    compared.insert(compared.end(), 2, Shape{operand.type, {}});
  }
  RETURN_IF_ERROR(CheckArguments(context, Called(context, 0), compared));
  RETURN_IF_ERROR(
      CheckResults(context, Called(context, 0), std::vector<Shape>{{ElementType::kPred, {}}}));
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

InferredShapes InferTopK(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 1));
  const Shape& x = context.operand(0);
  const int64_t k = context.instruction.As<TopKAttributes>().k;
  if (x.rank() == 0 || k < 0 || k > x.dims.back()) {
    return DoesNotFit(context, "does not find {} elements along the last dimension of {}", k,
                      ToString(x));
  }
  Shape values = x;
  values.dims.back() = k;
  return std::vector<Shape>{values, {ElementType::kS32, values.dims}};
}

InferredShapes InferMap(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  RETURN_IF_ERROR(CheckNumCalled(context, 1));
  std::vector<Shape> elements;
  for (const Shape& operand : context.operands) {
    if (operand.dims != context.operand(0).dims) {
      return DoesNotFit(context, "operands {} and {} differ", ToString(context.operand(0)),
                        ToString(operand));
    }
    elements.push_back({operand.type, {}});
  }
  RETURN_IF_ERROR(CheckArguments(context, Called(context, 0), elements));
  std::vector<Shape> results = ResultShapes(Called(context, 0));
  for (Shape& result : results) result.dims = context.operand(0).dims;
  return results;
}

namespace {

absl::Status CheckPairs(const ShapeContext& context, std::span<const int64_t> lhs_dims,
                        std::span<const int64_t> rhs_dims, std::string_view what) {
  const Shape& lhs = context.operand(0);
  const Shape& rhs = context.operand(1);
  if (lhs_dims.size() != rhs_dims.size()) {
    return DoesNotFit(context, "{} {} dimensions of lhs, {} of rhs", lhs_dims.size(), what,
                      rhs_dims.size());
  }
  for (size_t i = 0; i < lhs_dims.size(); ++i) {
    if (lhs.dims[lhs_dims[i]] != rhs.dims[rhs_dims[i]]) {
      return DoesNotFit(context, "{} dimension {} of lhs has size {}, {} of rhs {}", what,
                        lhs_dims[i], lhs.dims[lhs_dims[i]], rhs_dims[i], rhs.dims[rhs_dims[i]]);
    }
  }
  return absl::OkStatus();
}

void AppendFreeDims(const Shape& shape, std::span<const int64_t> used, std::vector<int64_t>& dims) {
  for (int i = 0; i < shape.rank(); ++i) {
    if (std::ranges::find(used, i) == used.end()) dims.push_back(shape.dims[i]);
  }
}

std::vector<int64_t> Joined(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

}  // namespace

InferredShapes InferDot(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckNumOperands(context, 2));
  const Shape& lhs = context.operand(0);
  const Shape& rhs = context.operand(1);
  const auto& a = context.instruction.As<DotAttributes>();
  if (!SameTypeUpToPrecision(lhs.type, rhs.type) && !(IsInteger(lhs.type) && IsInteger(rhs.type))) {
    return DoesNotFit(context, "operand types {} and {} differ", TypeName(lhs.type),
                      TypeName(rhs.type));
  }
  const std::vector<int64_t> lhs_used = Joined(a.lhs_batch, a.lhs_contracting);
  const std::vector<int64_t> rhs_used = Joined(a.rhs_batch, a.rhs_contracting);
  RETURN_IF_ERROR(CheckDimensions(context, lhs_used, lhs.rank(), "batch and contracting of lhs"));
  RETURN_IF_ERROR(CheckDimensions(context, rhs_used, rhs.rank(), "batch and contracting of rhs"));
  RETURN_IF_ERROR(CheckPairs(context, a.lhs_batch, a.rhs_batch, "batch"));
  RETURN_IF_ERROR(CheckPairs(context, a.lhs_contracting, a.rhs_contracting, "contracting"));
  Shape result;
  result.type = context.instruction.results.empty() ? lhs.type : context.instruction.shape().type;
  for (const int64_t dim : a.lhs_batch) result.dims.push_back(lhs.dims[dim]);
  AppendFreeDims(lhs, lhs_used, result.dims);
  AppendFreeDims(rhs, rhs_used, result.dims);
  return std::vector<Shape>{std::move(result)};
}

namespace {

// No id twice, none negative, no empty group.
absl::Status CheckGroups(const ShapeContext& context) {
  std::vector<int64_t> members;
  for (const std::vector<int64_t>& group : context.instruction.As<CollectiveAttributes>().groups) {
    if (group.empty()) return DoesNotFit(context, "has an empty group");
    members.insert(members.end(), group.begin(), group.end());
  }
  std::ranges::sort(members);
  if (!members.empty() && members[0] < 0) {
    return DoesNotFit(context, "has a negative member {}", members[0]);
  }
  const auto twice = std::ranges::adjacent_find(members);
  if (twice != members.end()) return DoesNotFit(context, "has member {} in two places", *twice);
  return absl::OkStatus();
}

// The common size of the groups; 0 where they are left out (the number of replicas).
absl::StatusOr<int64_t> GroupSize(const ShapeContext& context) {
  const auto& groups = context.instruction.As<CollectiveAttributes>().groups;
  if (groups.empty()) return 0;
  for (const std::vector<int64_t>& group : groups) {
    if (group.size() != groups[0].size()) {
      return DoesNotFit(context, "has groups of {} and {} members", groups[0].size(), group.size());
    }
  }
  return static_cast<int64_t>(groups[0].size());
}

absl::Status CheckCollective(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  return CheckGroups(context);
}

absl::Status CheckReducersOfAll(const ShapeContext& context) {
  for (const Shape& operand : context.operands) {
    RETURN_IF_ERROR(CheckReducer(context, std::vector<ElementType>{operand.type}));
  }
  return absl::OkStatus();
}

absl::Status CheckCollectiveDimension(const ShapeContext& context) {
  const int64_t dimension = context.instruction.As<CollectiveAttributes>().dimension;
  for (const Shape& operand : context.operands) {
    RETURN_IF_ERROR(
        CheckDimensions(context, std::span(&dimension, 1), operand.rank(), "dimension"));
  }
  return absl::OkStatus();
}

// Without groups the declared result says how many members there are.
absl::StatusOr<int64_t> GroupSizeOrDeclared(const ShapeContext& context, bool grows) {
  ASSIGN_OR_RETURN(const int64_t size, GroupSize(context));
  if (size > 0) return size;
  if (context.instruction.results.empty()) {
    return DoesNotFit(context, "without groups the result must be declared");
  }
  const int64_t dimension = context.instruction.As<CollectiveAttributes>().dimension;
  const Shape& declared = context.instruction.shape();
  if (declared.rank() != context.operand(0).rank()) {
    return DoesNotFit(context, "{} does not become {}", ToString(context.operand(0)),
                      ToString(declared));
  }
  const int64_t before = context.operand(0).dims[dimension];
  const int64_t after = declared.dims[dimension];
  const int64_t small = grows ? before : after;
  const int64_t large = grows ? after : before;
  if (small <= 0 || large % small != 0) {
    return DoesNotFit(context, "{} does not become {} in dimension {}",
                      ToString(context.operand(0)), ToString(declared), dimension);
  }
  return large / small;
}

}  // namespace

InferredShapes InferAllReduce(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckCollective(context));
  RETURN_IF_ERROR(CheckReducersOfAll(context));
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

InferredShapes InferAllGather(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckCollective(context));
  RETURN_IF_ERROR(CheckCollectiveDimension(context));
  ASSIGN_OR_RETURN(const int64_t size, GroupSizeOrDeclared(context, /*grows=*/true));
  std::vector<Shape> results(context.operands.begin(), context.operands.end());
  for (Shape& result : results) {
    result.dims[context.instruction.As<CollectiveAttributes>().dimension] *= size;
  }
  return results;
}

InferredShapes InferReduceScatter(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckCollective(context));
  RETURN_IF_ERROR(CheckReducersOfAll(context));
  RETURN_IF_ERROR(CheckCollectiveDimension(context));
  ASSIGN_OR_RETURN(const int64_t size, GroupSizeOrDeclared(context, /*grows=*/false));
  std::vector<Shape> results(context.operands.begin(), context.operands.end());
  for (Shape& result : results) {
    const int64_t dimension = context.instruction.As<CollectiveAttributes>().dimension;
    if (result.dims[dimension] % size != 0) {
      return DoesNotFit(context, "{} members do not divide dimension {} of {}", size, dimension,
                        ToString(result));
    }
    result.dims[dimension] /= size;
  }
  return results;
}

InferredShapes InferAllToAll(const ShapeContext& context) {
  RETURN_IF_ERROR(CheckCollective(context));
  ASSIGN_OR_RETURN(const int64_t size, GroupSize(context));
  const int64_t dimension = context.instruction.As<CollectiveAttributes>().dimension;
  if (dimension == -1) {
    if (size != 0 && size != context.num_operands()) {
      return DoesNotFit(context, "{} operands for groups of {}", context.num_operands(), size);
    }
    for (const Shape& operand : context.operands) {
      if (operand == context.operand(0)) continue;
      return DoesNotFit(context, "operands {} and {} differ", ToString(context.operand(0)),
                        ToString(operand));
    }
  } else {
    RETURN_IF_ERROR(CheckNumOperands(context, 1));
    RETURN_IF_ERROR(CheckCollectiveDimension(context));
    if (size != 0 && context.operand(0).dims[dimension] % size != 0) {
      return DoesNotFit(context, "{} members do not divide dimension {} of {}", size, dimension,
                        ToString(context.operand(0)));
    }
  }
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

InferredShapes InferCollectivePermute(const ShapeContext& context) {
  if (context.num_operands() == 0) return DoesNotFit(context, "has no operands");
  std::vector<int64_t> sources;
  std::vector<int64_t> targets;
  for (const auto& [source, target] :
       context.instruction.As<PermuteAttributes>().source_target_pairs) {
    sources.push_back(source);
    targets.push_back(target);
  }
  for (std::vector<int64_t>* ends : {&sources, &targets}) {
    std::ranges::sort(*ends);
    const auto twice = std::ranges::adjacent_find(*ends);
    if (twice != ends->end()) {
      return DoesNotFit(context, "{} is {} of two pairs", *twice,
                        ends == &sources ? "source" : "target");
    }
  }
  return std::vector<Shape>(context.operands.begin(), context.operands.end());
}

}  // namespace minka
