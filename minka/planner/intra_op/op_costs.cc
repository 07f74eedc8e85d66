#include "minka/planner/intra_op/op_costs.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "fmt/format.h"
#include "minka/analysis/convolution_form.h"
#include "minka/analysis/dot_layout.h"
#include "minka/analysis/flops.h"
#include "minka/analysis/trip_count.h"
#include "minka/planner/intra_op/formulation.h"

namespace minka {
namespace {

// Into how many equal parts a strategy divides the work of an operation.
int64_t NumWorkParts(const Strategy& strategy, const Mesh& mesh) {
  int64_t parts = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (strategy.axes[axis].kind == AxisUse::Kind::kFactor) parts *= mesh.size(axis);
  }
  return parts;
}

// {batch, m, n, k} of a dot on local shapes.
std::vector<int64_t> DotSizes(const DotAttributes& dot, const Shape& lhs, const Shape& rhs) {
  int64_t batch = 1, k = 1;
  for (int64_t dim : dot.lhs_batch) batch *= lhs.dims[dim];
  for (int64_t dim : dot.lhs_contracting) k *= lhs.dims[dim];
  const int64_t whole = std::max<int64_t>(batch * k, 1);  // empty operands: no work
  return {batch, lhs.num_elements() / whole, rhs.num_elements() / whole, k};
}

// As the lowering's dots of matrices read their operands (lowering/flatten_dims.h); others are
// transposed first so that both contract their last dimension.
DotForm FormOf(const DotLayout& layout) {
  const bool left = layout.lhs.is_matrix && !layout.lhs.contracts_last;
  const bool right = layout.rhs.is_matrix ? layout.rhs.contracts_last : true;
  if (left) return DotForm::kTN;
  return right ? DotForm::kNT : DotForm::kNN;
}

// The gradient of a kernel has a window of all positions, and one position per element of the
// kernel.
bool IsKernelGradient(const ConvolutionAttributes& convolution, const Shape& result) {
  int64_t window = 1, positions = 1;
  for (size_t i = 0; i < convolution.window.size(); ++i) {
    window *= convolution.window[i].size;
    positions *= result.dims[convolution.output_spatial[i]];
  }
  return window > positions;
}

// The same of the matrix multiplication that a convolution on local shapes is: per group, positions
// times features, over as many inputs under the window as `flops` says; of depthwise ones, which
// are written as sums over the window (lowering/convolution_forms.h), over all of it, padding and
// holes too.
std::vector<int64_t> ConvolutionSizes(const ConvolutionAttributes& convolution, const Shape& kernel,
                                      const Shape& result, double flops, bool is_depthwise) {
  const int64_t elements = std::max<int64_t>(result.num_elements(), 1);
  const int64_t features = std::max<int64_t>(result.dims[convolution.output_feature], 1);
  const int64_t groups =
      std::min(features, std::max(convolution.feature_group_count, convolution.batch_group_count));
  auto inputs = static_cast<int64_t>(flops / 2 / static_cast<double>(elements));
  if (is_depthwise) {
    inputs = kernel.num_elements() /
             std::max<int64_t>(kernel.dims[convolution.kernel_output_feature], 1);
  }
  return {groups, elements / features, features / groups, std::max<int64_t>(inputs, 1)};
}

InstructionWork Scaled(InstructionWork work, double factor) {
  work.flops *= factor;
  work.elementwise *= factor;
  work.bytes = static_cast<int64_t>(static_cast<double>(work.bytes) * factor);
  return work;
}

struct Transposition {
  bool moves = false;  // else all elements stay where they are
  bool puts_other_dim_last = false;
};

Transposition TranspositionOf(const Instruction& transpose) {
  const std::vector<int64_t>& permutation = transpose.As<DimensionsAttributes>().dims;
  std::vector<int64_t> order;  // of the operand's dimensions that are longer than 1
  for (size_t dim = 0; dim < permutation.size(); ++dim) {
    if (transpose.results[0].dims[dim] != 1) order.push_back(permutation[dim]);
  }
  if (std::ranges::is_sorted(order)) return {};
  return {.moves = true, .puts_other_dim_last = order.back() != std::ranges::max(order)};
}

// What names the same memory behind reshapes and barriers.
Value Memory(const Computation& computation, Value value) {
  while (true) {
    const Instruction& made_by = computation.instructions[value.instruction];
    if (made_by.opcode != Opcode::kReshape && made_by.opcode != Opcode::kOptBarrier) return value;
    value = made_by.operands[value.result];
  }
}

// Is it there before the computation runs?
bool IsGiven(Opcode opcode) { return opcode == Opcode::kParameter || opcode == Opcode::kConstant; }

// Does it only pass on what is there?
bool IsPassedOn(Opcode opcode) { return IsGiven(opcode) || opcode == Opcode::kOptBarrier; }

// Does the operation only name what is in memory?
bool IsView(Opcode opcode) { return IsPassedOn(opcode) || opcode == Opcode::kReshape; }

// The array of which the operation only touches a part, where it is.
bool IsTable(const Instruction& instruction, int operand) {
  switch (instruction.opcode) {
    case Opcode::kSlice:
    case Opcode::kDynamicSlice:
    case Opcode::kGather:
    case Opcode::kDynamicUpdateSlice:
      return operand == 0;
    case Opcode::kScatter:
      return operand < static_cast<int>(instruction.operands.size()) / 2;
    default:
      return false;
  }
}

// Operand that says how much of a table is written in place; -1: the result is made anew.
int UpdateOperand(const Instruction& instruction, int result) {
  if (instruction.opcode == Opcode::kDynamicUpdateSlice) return 1;
  if (instruction.opcode != Opcode::kScatter) return -1;
  return static_cast<int>(instruction.operands.size()) / 2 + 1 + result;
}

}  // namespace

PricedComputation::PricedComputation(const Module& module, const Computation& computation_in,
                                     const CostModel& cost, bool is_loop)
    : computation(computation_in),
      uses(computation),
      fusions(PartitionIntoFusions(computation,
                                   {.platform = cost.platform(), .keeps_programs = true})) {
  std::vector<bool> seen(fusions.num_groups);
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const bool runs = !IsView(computation.instructions[id].opcode);
    leads_group.push_back(runs && !seen[fusions.group[id]]);
    seen[fusions.group[id]] = seen[fusions.group[id]] || runs;
  }
  is_written_.resize(computation.num_instructions());
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    viewed_.push_back(id);
    if (instruction.results.empty()) continue;
    if (instruction.opcode == Opcode::kReshape) {
      const Value operand = instruction.operands[0];
      if (operand.result == 0 && IsInside(operand, fusions.group[id]))
        viewed_[id] = viewed_[operand.instruction];
    }
    if (fusions.IsMaterialised(uses, {id, 0})) is_written_[viewed_[id]] = true;
  }
  CountReads(cost.platform());
  FindFresh(module, is_loop);
  if (cost.platform() != Platform::kCpu) HideArithmetic(module, cost);
}

// On whole arrays: parts of a kernel are divided alike.
void PricedComputation::HideArithmetic(const Module& module, const CostModel& cost) {
  std::vector<int64_t> bytes(fusions.num_groups);
  std::vector<double> arithmetic_us(fusions.num_groups);
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const Instruction& instruction = computation.instructions[id];
    const int group = fusions.group[id];
    for (int operand = 0; operand < static_cast<int>(instruction.operands.size()); ++operand) {
      bytes[group] +=
          NumReads(id, operand) * computation.shape(instruction.operands[operand]).num_bytes();
    }
    for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
      if (IsWritten({id, result})) bytes[group] += instruction.results[result].num_bytes();
    }
    if (instruction.results.empty() || IsControlFlow(instruction.opcode)) continue;
    arithmetic_us[group] +=
        cost.Operation({.opcode = instruction.opcode,
                        .type = instruction.results[0].type,
                        .elementwise = minka::WorkOf(module, computation, id).elementwise});
  }
  for (int group = 0; group < fusions.num_groups; ++group) {
    const double memory_us = cost.Operation({.bytes = bytes[group]});
    const double arithmetic = arithmetic_us[group];
    // In steps, so that equal operations of kernels that are alike are priced once.
    constexpr double kSteps = 32;
    const double visible = arithmetic > memory_us ? 1 - memory_us / arithmetic : 0;
    visible_.push_back(std::round(kSteps * visible) / kSteps);
  }
}

// What a value is free for is known by when groups run, at their last operation: nobody reads it
// then or behind, it is no result, and it was made where the group runs. What was given is free for
// the result that takes its place anyway.
void PricedComputation::FindFresh(const Module& module, bool is_loop) {
  const int num_instructions = computation.num_instructions();
  std::vector<InstructionId> runs_at(fusions.num_groups, -1);
  std::vector<std::vector<InstructionId>> members(fusions.num_groups);
  for (InstructionId id = 0; id < num_instructions; ++id) {
    members[fusions.group[id]].push_back(id);
    if (!IsView(computation.instructions[id].opcode)) runs_at[fusions.group[id]] = id;
  }
  std::vector<InstructionId> last_read(num_instructions, -1);
  for (InstructionId id = 0; id < num_instructions; ++id) {
    if (IsView(computation.instructions[id].opcode)) continue;
    for (const Value& operand : computation.instructions[id].operands) {
      InstructionId& last = last_read[Memory(computation, operand).instruction];
      last = std::max(last, fusions.repeated[id] ? num_instructions : runs_at[fusions.group[id]]);
    }
  }
  for (const Value& result : computation.results)
    last_read[Memory(computation, result).instruction] = num_instructions;
  std::set<std::pair<InstructionId, InstructionId>> takes_place;  // result, parameter
  const auto takes = [&](size_t result, size_t parameter) {
    takes_place.emplace(Memory(computation, computation.results[result]).instruction,
                        computation.parameters[parameter]);
  };
  if (is_loop) {
    for (size_t i = 0; i < std::min(computation.results.size(), computation.parameters.size()); ++i)
      takes(i, i);
  } else if (&computation == &module.entry_computation()) {
    for (const Alias& alias : module.aliases) takes(alias.result, alias.parameter);
  }
  const auto is_free_for = [&](InstructionId id, Value memory) {
    const Instruction& made_by = computation.instructions[memory.instruction];
    if (last_read[memory.instruction] > runs_at[fusions.group[id]]) return false;
    if (IsGiven(made_by.opcode)) return takes_place.contains({id, memory.instruction});
    return RunAsOne(made_by.part, computation.instructions[id].part);
  };
  is_fresh_.assign(num_instructions, true);
  for (const std::vector<InstructionId>& group : members) {
    std::set<Value> taken;
    for (const InstructionId id : group) {
      const Instruction& result = computation.instructions[id];
      if (!IsElementwise(result.opcode) || !IsWritten({id, 0})) continue;
      if (result.part.loop == LoopRole::kSum) is_fresh_[id] = false;
      for (const Value value : ReadElementByElement(id)) {
        if (!is_fresh_[id]) break;
        const bool is_as_large = computation.shape(value).num_bytes() == result.shape().num_bytes();
        const Value memory = Memory(computation, value);
        if (is_as_large && is_free_for(id, memory)) is_fresh_[id] = !taken.insert(memory).second;
      }
    }
  }
}

std::vector<Value> PricedComputation::ReadElementByElement(InstructionId result) const {
  std::vector<Value> read;
  std::vector<InstructionId> left = {result};
  std::set<InstructionId> seen = {result};
  while (!left.empty()) {
    const InstructionId id = left.back();
    left.pop_back();
    const std::vector<Value>& operands = computation.instructions[id].operands;
    for (size_t operand = 0; operand < operands.size(); ++operand) {
      const InstructionId maker = operands[operand].instruction;
      if (NumReads(id, static_cast<int>(operand)) > 0) {
        read.push_back(operands[operand]);
      } else if (IsElementwise(computation.instructions[maker].opcode) &&
                 seen.insert(maker).second) {
        left.push_back(maker);
      }
    }
  }
  return read;
}

void PricedComputation::CountReads(Platform platform) {
  std::set<std::tuple<int, InstructionId, int>> seen;  // group, value
  for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
    const std::vector<Value>& operands = computation.instructions[id].operands;
    std::vector<int>& reads = num_reads_.emplace_back(operands.size());
    std::vector<int> groups = {fusions.group[id]};
    if (platform != Platform::kCpu && fusions.repeated[id]) groups = fusions.copies[id];
    for (size_t operand = 0; operand < operands.size(); ++operand) {
      const Value value = operands[operand];
      const InstructionId memory =
          value.result == 0 ? viewed_[value.instruction] : value.instruction;
      for (const int group : groups) {
        if (IsInside(value, group)) continue;
        const bool is_read =
            platform == Platform::kCpu || seen.emplace(group, memory, value.result).second;
        if (is_read) ++reads[operand];
      }
    }
  }
}

double OperationPrices::Price(const PricedComputation& in, InstructionId id, const OpRule& rule,
                              const Strategy& strategy, std::span<const CalledPlan> called,
                              double cached_part) {
  if (IsControlFlow(in.computation.instructions[id].opcode)) return ControlPrice(in, id, called);
  LocalWork work = WorkOf(in, id, rule, strategy);
  work.cached_part = cached_part;
  double price = cost_.Operation(work);
  const Trips once = [](const Computation&, InstructionId) { return 1.0; };
  for (const OperationCollective& own :
       CollectivesOf(module_, in.computation, id, rule, strategy, /*called=*/{}, mesh_, once)) {
    price += cost_.Collective(own.work, own.type);
  }
  return price;
}

// Carried values stay where they are; of branches the dearest counts.
double OperationPrices::ControlPrice(const PricedComputation& in, InstructionId id,
                                     std::span<const CalledPlan> called) {
  const Instruction& instruction = in.computation.instructions[id];
  const bool is_loop = instruction.opcode == Opcode::kWhile;
  double sum = 0, dearest = 0;
  for (size_t index = 0; index < instruction.called.size(); ++index) {
    const double price = CalledPrice(instruction.called[index], called[index], /*repeats=*/is_loop);
    sum += price;
    dearest = std::max(dearest, price);
  }
  if (!is_loop) return dearest;
  return sum * static_cast<double>(TripCount(module_, in.computation, id).value_or(1));
}

double OperationPrices::CalledPrice(ComputationId called, const CalledPlan& plan, bool repeats) {
  std::unique_ptr<Called>& known = called_[called];
  if (known == nullptr) {
    const Computation& computation = module_.computations[called];
    known = std::make_unique<Called>(PricedComputation(module_, computation, cost_, repeats),
                                     RulesOf(module_, computation));
  }
  const PricedComputation& in = known->priced;
  const std::vector<OpRule>& rules = known->rules;
  const bool may_cache = repeats && cost_.cache_bytes() > 0;
  const double cached_part = may_cache ? CachedPart(TouchedBytes(in, rules, plan)) : 0;
  double price = 0;
  for (InstructionId id = 0; id < in.computation.num_instructions(); ++id) {
    const CalledPlan::Operation& operation = plan.operations[id];
    price += Price(in, id, rules[id], operation.strategy, operation.called, cached_part);
  }
  for (const CalledReshard& reshard : plan.reshards) {
    const Shape& shape = in.computation.shape(reshard.value);
    const Sharding* before = &reshard.from;
    for (const ReshardStep& step : reshard.steps) {
      price += cost_.Collective(WorkOfStep(shape, *before, step, mesh_), shape.type);
      before = &step.result;
    }
  }
  return price;
}

LocalWork OperationPrices::WorkOf(const PricedComputation& in, InstructionId id, const OpRule& rule,
                                  const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  const InstructionWork work = Scaled(minka::WorkOf(module_, in.computation, id),
                                      1 / static_cast<double>(NumWorkParts(strategy, mesh_)));
  LocalWork local = {
      .opcode = instruction.opcode,
      .type = instruction.results.empty() ? ElementType::kF32 : instruction.results[0].type,
      .flops = work.flops,
      .elementwise = work.elementwise * in.VisibleArithmetic(id) * in.NumCopies(id),
      .bytes = OutsideBytes(in, id, rule, strategy),
      .fresh_bytes = FreshBytes(in, id, rule, strategy),
      .launches = in.leads_group[id]};
  const auto local_operand = [&](int operand) {
    return LocalShape(in.computation.shape(instruction.operands[operand]),
                      OperandSharding(rule, strategy, operand), mesh_);
  };
  switch (instruction.opcode) {
    case Opcode::kDot:
      // In whose type they are multiplied; sums may be wider.
      local.type = in.computation.shape(instruction.operands[0]).type;
      local.dot_sizes =
          DotSizes(instruction.As<DotAttributes>(), local_operand(0), local_operand(1));
      local.dot_form = FormOf(LayoutOf(instruction.As<DotAttributes>(), local_operand(0).rank(),
                                       local_operand(1).rank()));
      if (local.dot_form == DotForm::kNT &&
          IsFasterExchanged(local.dot_sizes[1], local.dot_sizes[2])) {
        std::swap(local.dot_sizes[1], local.dot_sizes[2]);
      }
      local.transposed_bytes = CopiedOperandBytes(in, id, rule, strategy);
      break;
    case Opcode::kTranspose: {
      const Transposition transposition = TranspositionOf(instruction);
      if (transposition.moves) {
        local.transposed_bytes =
            LocalBytes(instruction.shape(), ResultSharding(rule, strategy, 0), mesh_);
      }
      local.puts_other_dim_last = transposition.puts_other_dim_last;
      break;
    }
    case Opcode::kConvolution: {
      const auto& whole = instruction.As<ConvolutionAttributes>();
      const Shape operands[] = {in.computation.shape(instruction.operands[0]),
                                in.computation.shape(instruction.operands[1])};
      const Shape parts[] = {local_operand(0), local_operand(1)};
      const Shape result =
          LocalShape(instruction.shape(), ResultSharding(rule, strategy, 0), mesh_);
      const ConvolutionAttributes part = LocalConvolution(whole, operands, parts);
      const ConvolutionForm form = ConvolutionFormOf(part, parts[0], parts[1], result);
      local.is_depthwise =
          form == ConvolutionForm::kDepthwise || form == ConvolutionForm::kDepthwiseKernelGradient;
      local.dot_sizes = ConvolutionSizes(part, parts[1], result, work.flops, local.is_depthwise);
      if (IsKernelGradient(whole, instruction.shape())) local.dot_form = DotForm::kTN;
      break;
    }
    case Opcode::kReduce:
    case Opcode::kReduceWindow:
    case Opcode::kSelectAndScatter:
      // A GPU's kernel reduces what it has read or made: beside other arithmetic.
      if (cost_.platform() == Platform::kCpu || instruction.opcode != Opcode::kReduce) {
        local.kernel = KernelOf(in.computation, instruction);
      }
      break;
    default:
      break;
  }
  return local;
}

ReductionKernel OperationPrices::KernelOf(const Computation& computation,
                                          const Instruction& instruction) const {
  if (instruction.opcode == Opcode::kSelectAndScatter) return ReductionKernel::kWindowGradient;
  if (instruction.opcode != Opcode::kReduce) return ReductionKernel::kWindow;
  const std::vector<int64_t>& dims = instruction.As<DimensionsAttributes>().dims;
  const int last = computation.shape(instruction.operands[0]).rank() - 1;
  if (std::ranges::find(dims, last) == dims.end()) return ReductionKernel::kColumns;
  const Computation& reducer = module_.computations[instruction.called[0]];
  const bool orders = std::ranges::any_of(reducer.instructions, [](const Instruction& i) {
    return i.opcode == Opcode::kMaximum || i.opcode == Opcode::kMinimum;
  });
  return orders ? ReductionKernel::kMaximumOfRows : ReductionKernel::kRows;
}

int64_t OperationPrices::CopiedOperandBytes(const PricedComputation& in, InstructionId id,
                                            const OpRule& rule, const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  if (instruction.opcode != Opcode::kDot) return 0;
  const auto shape = [&](int operand) -> const Shape& {
    return in.computation.shape(instruction.operands[operand]);
  };
  const DotLayout layout =
      LayoutOf(instruction.As<DotAttributes>(), shape(0).rank(), shape(1).rank());
  int64_t bytes = 0;
  for (const int operand : {0, 1}) {
    if ((operand == 0 ? layout.lhs : layout.rhs).is_matrix) continue;
    bytes += LocalBytes(shape(operand), OperandSharding(rule, strategy, operand), mesh_);
  }
  return bytes;
}

int64_t OperationPrices::TouchedBytes(const PricedComputation& in, const std::vector<OpRule>& rules,
                                      const CalledPlan& plan) const {
  std::set<Value> read;
  int64_t bytes = 0;
  for (InstructionId id = 0; id < in.computation.num_instructions(); ++id) {
    const Instruction& instruction = in.computation.instructions[id];
    if (IsPassedOn(instruction.opcode)) continue;
    const Strategy& strategy = plan.operations[id].strategy;
    bytes += CopiedOperandBytes(in, id, rules[id], strategy);
    for (int operand = 0; operand < static_cast<int>(instruction.operands.size()); ++operand) {
      const Value value = Memory(in.computation, instruction.operands[operand]);
      const bool is_given = IsGiven(in.computation.instructions[value.instruction].opcode);
      if (!is_given || in.NumReads(id, operand) == 0) continue;
      const bool is_table = IsTable(instruction, operand);
      if (is_table && UpdateOperand(instruction, operand) >= 0) continue;  // counts as written
      if (is_table || read.insert(value).second)
        bytes += ReadBytes(in, id, operand, rules[id], strategy);
    }
  }
  std::set<Value> in_place;  // of what is given and read
  const size_t num_carried =
      std::min(in.computation.results.size(), in.computation.parameters.size());
  for (size_t i = 0; i < num_carried; ++i) {
    if (read.contains({in.computation.parameters[i], 0}))
      in_place.insert(Memory(in.computation, in.computation.results[i]));
  }
  for (InstructionId id = 0; id < in.computation.num_instructions(); ++id) {
    const Instruction& instruction = in.computation.instructions[id];
    for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
      const bool is_part = UpdateOperand(instruction, result) >= 0;
      if (is_part || !in_place.contains({id, result}))
        bytes += WrittenBytes(in, id, result, rules[id], plan.operations[id].strategy);
    }
  }
  return bytes;
}

// Of what is used in turn nothing stays in a cache that holds hardly less; where devices take turns
// and caches do not forget in order, some of it does.
double OperationPrices::CachedPart(int64_t bytes) const {
  const double caches = static_cast<double>(bytes) / cost_.cache_bytes();
  return std::clamp(1 - std::log2(caches), 0.0, 1.0);
}

int64_t OperationPrices::ReadBytes(const PricedComputation& in, InstructionId id, int operand,
                                   const OpRule& rule, const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  const int64_t num_reads = in.NumReads(id, operand);
  const auto operand_bytes = [&](int number) {
    return LocalBytes(in.computation.shape(instruction.operands[number]),
                      OperandSharding(rule, strategy, number), mesh_);
  };
  if (num_reads == 0) return 0;
  if (!IsTable(instruction, operand)) return num_reads * operand_bytes(operand);
  const int update = UpdateOperand(instruction, operand);
  if (update < 0)
    return LocalBytes(instruction.results[0], ResultSharding(rule, strategy, 0), mesh_);
  // What an update is added to.
  return instruction.opcode == Opcode::kScatter ? operand_bytes(update) : 0;
}

int64_t OperationPrices::WrittenBytes(const PricedComputation& in, InstructionId id, int result,
                                      const OpRule& rule, const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  if (const int update = UpdateOperand(instruction, result); update >= 0) {
    return LocalBytes(in.computation.shape(instruction.operands[update]),
                      OperandSharding(rule, strategy, update), mesh_);
  }
  if (IsPassedOn(instruction.opcode) || !in.IsWritten({id, result})) return 0;
  return LocalBytes(instruction.results[result], ResultSharding(rule, strategy, result), mesh_);
}

int64_t OperationPrices::OutsideBytes(const PricedComputation& in, InstructionId id,
                                      const OpRule& rule, const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  if (IsPassedOn(instruction.opcode)) return 0;
  int64_t bytes = 2 * CopiedOperandBytes(in, id, rule, strategy);
  // A sum over micro-batches is read before it is added to.
  if (instruction.part.loop == LoopRole::kSum)
    bytes += LocalBytes(instruction.results[0], ResultSharding(rule, strategy, 0), mesh_);
  for (int operand = 0; operand < static_cast<int>(instruction.operands.size()); ++operand)
    bytes += ReadBytes(in, id, operand, rule, strategy);
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result)
    bytes += WrittenBytes(in, id, result, rule, strategy);
  return bytes;
}

int64_t OperationPrices::FreshBytes(const PricedComputation& in, InstructionId id,
                                    const OpRule& rule, const Strategy& strategy) const {
  const Instruction& instruction = in.computation.instructions[id];
  if (IsPassedOn(instruction.opcode)) return 0;
  int64_t bytes = CopiedOperandBytes(in, id, rule, strategy);
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    const bool is_part = UpdateOperand(instruction, result) >= 0;
    if (!is_part && in.IsFresh({id, result})) bytes += WrittenBytes(in, id, result, rule, strategy);
  }
  return bytes;
}

std::vector<std::string> NotesOnTrips(const Module& module) {
  std::vector<std::string> notes;
  for (const Computation& computation : module.computations) {
    for (InstructionId id = 0; id < computation.num_instructions(); ++id) {
      const Instruction& instruction = computation.instructions[id];
      if (instruction.opcode != Opcode::kWhile || TripCount(module, computation, id)) continue;
      notes.push_back(
          fmt::format("how often the loop {} runs is not known; its time is that of one turn",
                      instruction.name));
    }
  }
  return notes;
}

OpCosts::OpCosts(const StepFacts& facts, const ChoiceTables& tables, const Mesh& mesh,
                 const CostModel& cost)
    : facts_(facts),
      tables_(tables),
      mesh_(mesh),
      cost_(cost),
      entry_(facts.step.module, facts.entry, cost),
      prices_(facts.step.module, mesh, cost) {}

const std::vector<double>& OpCosts::Costs(InstructionId id) {
  const Instruction& instruction = facts_.entry.instructions[id];
  const int32_t number = tables_.of_instruction[id];
  std::string key = fmt::format(
      "{} {} {}", number, static_cast<int>(entry_.leads_group[id]) + 2 * facts_.loop.IsInside(id),
      entry_.VisibleArithmetic(id));
  for (int operand = 0; operand < static_cast<int>(instruction.operands.size()); ++operand) {
    key += fmt::format(" {}", entry_.NumReads(id, operand));
  }
  for (int result = 0; result < static_cast<int>(instruction.results.size()); ++result) {
    key += !entry_.IsWritten({id, result}) ? 'f' : entry_.IsFresh({id, result}) ? 'n' : 'w';
  }
  const auto [found, added] = costs_.try_emplace(key);
  if (added) {
    const OpChoices& choices = tables_.op_choices[number];
    for (size_t choice = 0; choice < choices.strategies.size(); ++choice) {
      found->second.push_back(Cost(id, choices, choice));
    }
  }
  return found->second;
}

double OpCosts::Cost(InstructionId id, const OpChoices& choices, size_t choice) {
  const Strategy& strategy = choices.strategies[choice];
  const std::vector<CalledPlan> called = PlanCalledBy(
      facts_.step.module, facts_.entry, id, choices.rule, strategy, mesh_, cost_.called_prices());
  return static_cast<double>(facts_.loop.RunsOf(id)) *
         prices_.Price(entry_, id, choices.rule, strategy, called);
}

}  // namespace minka
