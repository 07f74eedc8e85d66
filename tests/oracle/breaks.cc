#include "tests/oracle/breaks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "minka/base/check.h"
#include "tests/oracle/rewrite.h"

namespace minka {
namespace {

using Direction = CompareAttributes::Direction;
using Predicate = std::function<bool(const Computation&, const Instruction&)>;

constexpr char kMicroBody[] = "micro_batch";

const Instruction& At(const Module& module, Site site) {
  return module.computations[site.computation].instructions[site.instruction];
}

// Of all instructions that `wanted` accepts, the one with the largest result; the first of equals.
std::optional<Site> Largest(const Module& module, const Predicate& wanted) {
  std::optional<Site> best;
  int64_t most = -1;
  for (ComputationId id = 0; id < static_cast<ComputationId>(module.computations.size()); ++id) {
    const Computation& computation = module.computations[id];
    for (InstructionId i = 0; i < computation.num_instructions(); ++i) {
      if (!wanted(computation, computation.instructions[i])) continue;
      const int64_t bytes = computation.instructions[i].shape().num_bytes();
      if (bytes <= most) continue;
      most = bytes;
      best = Site{id, i};
    }
  }
  return best;
}

Predicate Is(Opcode opcode) {
  return [opcode](const Computation&, const Instruction& x) { return x.opcode == opcode; };
}

std::optional<Module> Replace(const Module& module, const Predicate& wanted,
                              const ReplaceInstruction& replace) {
  const std::optional<Site> site = Largest(module, wanted);
  if (!site) return std::nullopt;
  return RewriteAt(module, *site, replace);
}

bool IsSum(const Computation&, const Instruction& x) {
  return (x.opcode == Opcode::kAllReduce || x.opcode == Opcode::kReduceScatter) &&
         IsFloat(x.shape().type);
}

Value IsDevice(ComputationBuilder& b, int64_t device) {
  const Value replica = b.ReplicaId();
  return b.Compare(Direction::kEq, replica,
                   b.Scalar(b.shape(replica).type, static_cast<double>(device)));
}

Value SelectLike(ComputationBuilder& b, Value predicate, Value on_true, Value on_false) {
  const Shape& shape = b.shape(on_true);
  if (shape.rank() > 0) predicate = b.Broadcast(predicate, shape.dims, {});
  return b.Select(predicate, on_true, on_false);
}

Value Zeros(ComputationBuilder& b, Value like) { return b.FullLike(like, 0); }

std::vector<std::vector<int64_t>> Rotated(std::vector<std::vector<int64_t>> groups) {
  for (auto& group : groups) std::ranges::rotate(group, group.begin() + 1);
  return groups;
}

// Groups of as many devices that differ along other axes; {} where there are none.
std::vector<std::vector<int64_t>> OtherGroups(const Mesh& mesh,
                                              const std::vector<std::vector<int64_t>>& groups) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const int axes[] = {axis};
    auto other = mesh.Groups(axes);
    if (other != groups && other[0].size() == groups[0].size()) return other;
  }
  return {};
}

std::vector<Value> StartsAt0(ComputationBuilder& b, const Shape& shape) {
  return std::vector<Value>(shape.rank(), b.Scalar(ElementType::kS32, 0));
}

// A reduce-scatter without its sum: the first part on every device.
std::vector<Value> WithoutSum(ComputationBuilder& b, const Instruction& x) {
  if (x.opcode == Opcode::kAllReduce) return x.operands;
  std::vector<Value> parts;
  for (size_t i = 0; i < x.operands.size(); ++i) {
    parts.push_back(b.DynamicSlice(x.operands[i], StartsAt0(b, x.results[i]), x.results[i].dims));
  }
  return parts;
}

std::optional<Module> DropSum(const CompiledStep& compiled) {
  return Replace(compiled.program.module, IsSum, WithoutSum);
}

std::optional<Module> SumOverOtherAxis(const CompiledStep& compiled) {
  const Mesh& mesh = compiled.mesh();
  const Predicate wanted = [&](const Computation& c, const Instruction& x) {
    return IsSum(c, x) && mesh.num_axes() > 1 && !x.As<CollectiveAttributes>().groups.empty();
  };
  return Replace(compiled.program.module, wanted, [&](ComputationBuilder& b, const Instruction& x) {
    Instruction other = x;
    auto attributes = x.As<CollectiveAttributes>();
    attributes.groups = OtherGroups(mesh, attributes.groups);
    const int first_axis[] = {0};
    if (attributes.groups.empty() && x.opcode == Opcode::kAllReduce) {
      attributes.groups = mesh.Groups(first_axis);
    } else if (attributes.groups.empty()) {
      attributes.groups = Rotated(x.As<CollectiveAttributes>().groups);
    }
    other.attributes = attributes;
    return AppendAsItIs(b, other);
  });
}

std::optional<Module> OnSumResult(const CompiledStep& compiled,
                                  const std::function<Value(ComputationBuilder&, Value)>& change) {
  return Replace(compiled.program.module, IsSum, [&](ComputationBuilder& b, const Instruction& x) {
    std::vector<Value> results = AppendAsItIs(b, x);
    for (Value& result : results) result = change(b, result);
    return results;
  });
}

std::optional<Module> OnSumOperand(const CompiledStep& compiled,
                                   const std::function<Value(ComputationBuilder&, Value)>& change) {
  return Replace(compiled.program.module, IsSum, [&](ComputationBuilder& b, Instruction x) {
    for (Value& operand : x.operands) operand = change(b, operand);
    return AppendAsItIs(b, x);
  });
}

std::optional<Module> SumTwice(const CompiledStep& compiled) {
  return OnSumResult(compiled,
                     [](ComputationBuilder& b, Value x) { return b.Binary(Opcode::kAdd, x, x); });
}

std::optional<Module> SumWithoutOneDevice(const CompiledStep& compiled) {
  const int64_t last = compiled.mesh().num_devices() - 1;
  return OnSumOperand(compiled, [last](ComputationBuilder& b, Value x) {
    return SelectLike(b, IsDevice(b, last), Zeros(b, x), x);
  });
}

std::optional<Module> SumOfNarrowParts(const CompiledStep& compiled) {
  const Predicate wanted = [](const Computation& c, const Instruction& x) {
    return IsSum(c, x) && x.shape().type == ElementType::kF32;
  };
  const auto site = Largest(compiled.program.module, wanted);
  if (!site) return std::nullopt;
  return RewriteAt(compiled.program.module, *site, [](ComputationBuilder& b, Instruction x) {
    const auto narrow = [&](Value v) {
      return b.Convert(b.Convert(v, ElementType::kBF16), ElementType::kF32);
    };
    for (Value& operand : x.operands) operand = narrow(operand);
    std::vector<Value> results = AppendAsItIs(b, x);
    for (Value& result : results) result = narrow(result);
    return results;
  });
}

std::optional<Module> MaximumForSum(const CompiledStep& compiled) {
  return Replace(compiled.program.module, IsSum, [](ComputationBuilder& b, Instruction x) {
    x.called = {b.module().ScalarReducer(Opcode::kMaximum, x.shape().type)};
    return AppendAsItIs(b, x);
  });
}

bool IsGather(const Computation&, const Instruction& x) {
  return x.opcode == Opcode::kAllGather || x.opcode == Opcode::kAllToAll;
}

std::optional<Module> GatherRotated(const CompiledStep& compiled) {
  return Replace(compiled.program.module, IsGather, [](ComputationBuilder& b, Instruction x) {
    auto attributes = x.As<CollectiveAttributes>();
    attributes.groups = Rotated(attributes.groups);
    x.attributes = attributes;
    return AppendAsItIs(b, x);
  });
}

std::optional<Module> GatherOfOwnPart(const CompiledStep& compiled) {
  return Replace(compiled.program.module, Is(Opcode::kAllGather),
                 [](ComputationBuilder& b, const Instruction& x) {
                   const auto& attributes = x.As<CollectiveAttributes>();
                   const std::vector<Value> parts(attributes.groups[0].size(), x.operands[0]);
                   return std::vector<Value>{b.Concatenate(parts, attributes.dimension)};
                 });
}

std::optional<Module> GatherOverOtherAxis(const CompiledStep& compiled) {
  const Mesh& mesh = compiled.mesh();
  const Predicate wanted = [&](const Computation& c, const Instruction& x) {
    return IsGather(c, x) && !x.As<CollectiveAttributes>().groups.empty() &&
           !OtherGroups(mesh, x.As<CollectiveAttributes>().groups).empty();
  };
  return Replace(compiled.program.module, wanted, [&](ComputationBuilder& b, Instruction x) {
    auto attributes = x.As<CollectiveAttributes>();
    attributes.groups = OtherGroups(mesh, attributes.groups);
    x.attributes = attributes;
    return AppendAsItIs(b, x);
  });
}

// By computation and instruction: does it depend on the device's number, as a scalar?
std::vector<std::vector<bool>> DependOnDevice(const Module& module) {
  std::vector<std::vector<bool>> depends;
  for (const Computation& computation : module.computations) {
    std::vector<bool>& of = depends.emplace_back();
    for (const Instruction& x : computation.instructions) {
      bool is = x.opcode == Opcode::kReplicaId;
      for (const Value operand : x.operands) {
        is = is || (of[operand.instruction] && (x.shape().rank() == 0 || !IsFloat(x.shape().type)));
      }
      of.push_back(is);
    }
  }
  return depends;
}

std::optional<Module> OffsetOff(const CompiledStep& compiled, bool by_part) {
  const Module& module = compiled.program.module;
  const auto depends = DependOnDevice(module);
  const Predicate wanted = [&](const Computation& c, const Instruction& x) {
    const auto& of = depends[&c - module.computations.data()];
    return x.opcode == Opcode::kDynamicSlice &&
           std::any_of(x.operands.begin() + 1, x.operands.end(),
                       [&](Value start) { return of[start.instruction]; });
  };
  const std::optional<Site> site = Largest(module, wanted);
  if (!site) return std::nullopt;
  const Instruction& source = At(module, *site);
  size_t dim = 1;
  while (!depends[site->computation][source.operands[dim].instruction]) ++dim;
  const Shape& whole = module.computations[site->computation].shape(source.operands[0]);
  const int64_t size = source.shape().dims[dim - 1];
  return RewriteAt(module, *site, [&](ComputationBuilder& b, Instruction x) {
    const ElementType type = b.shape(x.operands[dim]).type;
    const Value moved = b.Binary(Opcode::kAdd, x.operands[dim],
                                 b.Scalar(type, by_part ? static_cast<double>(size) : 1));
    x.operands[dim] = by_part ? b.Binary(Opcode::kRemainder, moved,
                                         b.Scalar(type, static_cast<double>(whole.dims[dim - 1])))
                              : moved;
    return AppendAsItIs(b, x);
  });
}

std::optional<Module> MaskInverted(const CompiledStep& compiled) {
  const Module& module = compiled.program.module;
  const auto depends = DependOnDevice(module);
  const Predicate wanted = [&](const Computation& c, const Instruction& x) {
    return x.opcode == Opcode::kSelect && IsFloat(x.shape().type) &&
           depends[&c - module.computations.data()][x.operands[0].instruction];
  };
  return Replace(module, wanted, [](ComputationBuilder& b, Instruction x) {
    std::swap(x.operands[1], x.operands[2]);
    return AppendAsItIs(b, x);
  });
}

// State results whose name begins so, with the parameters that they replace.
struct StatePair {
  int parameter = 0, result = 0;
};
std::vector<StatePair> StateOf(const CompiledStep& compiled, const std::string& prefix = "") {
  std::vector<StatePair> pairs;
  const auto& parameters = compiled.prepared.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int result = parameters[i].state_result;
    if (parameters[i].role != ParameterRole::kState || result < 0) continue;
    if (!parameters[i].name.starts_with(prefix)) continue;
    if (compiled.program.parameters[i] != compiled.program.results[result]) continue;
    pairs.push_back({static_cast<int>(i), result});
  }
  return pairs;
}

using ChangeState = std::function<Value(ComputationBuilder&, Value before, Value after)>;
std::optional<Module> OnState(const CompiledStep& compiled, const std::vector<StatePair>& state,
                              const ChangeState& change) {
  if (state.empty()) return std::nullopt;
  return RewriteResults(compiled.program.module, [&](ComputationBuilder& b, const auto& parameters,
                                                     std::vector<Value> results) {
    for (const auto [parameter, result] : state) {
      results[result] = change(b, parameters[parameter], results[result]);
    }
    return results;
  });
}

// Of weights that are split over the devices, so that no other device holds that part, or of those
// that are not.
std::optional<Module> SkipUpdateOnOneDevice(const CompiledStep& compiled, bool is_split) {
  const int64_t last = compiled.mesh().num_devices() - 1;
  std::vector<StatePair> state = StateOf(compiled, "params/");
  std::erase_if(state, [&](const StatePair& pair) {
    const AxisSet axes = compiled.program.results[pair.result].split_axes();
    return (compiled.mesh().size(axes) == compiled.mesh().num_devices()) != is_split;
  });
  return OnState(compiled, state, [last](ComputationBuilder& b, Value before, Value after) {
    return SelectLike(b, IsDevice(b, last), before, after);
  });
}

std::optional<Module> SkipUpdate(const CompiledStep& compiled, bool of_one_parameter) {
  std::vector<StatePair> state = StateOf(compiled, "params/");
  if (of_one_parameter && !state.empty()) state.resize(1);
  return OnState(compiled, state, [](ComputationBuilder&, Value before, Value) { return before; });
}

// The second step does not see what the first one did to the weights.
std::optional<Module> LastStepsWeights(const CompiledStep& compiled) {
  int counter = -1;
  for (const StatePair& pair : StateOf(compiled, "optimizer/count")) counter = pair.parameter;
  if (counter < 0) return std::nullopt;
  const std::vector<StatePair> state = StateOf(compiled, "params/");
  return RewriteResults(compiled.program.module, [&](ComputationBuilder& b, const auto& parameters,
                                                     std::vector<Value> results) {
    const Value count = parameters[counter];
    const Value is_first = b.Compare(Direction::kEq, count, b.Scalar(b.shape(count).type, 0));
    for (const auto [parameter, result] : state) {
      results[result] = SelectLike(b, is_first, parameters[parameter], results[result]);
    }
    return results;
  });
}

// before + factor * (after - before).
std::optional<Module> ScaleUpdate(const CompiledStep& compiled, double factor) {
  return OnState(compiled, StateOf(compiled, "params/"),
                 [factor](ComputationBuilder& b, Value before, Value after) {
                   const Value change = b.Binary(Opcode::kSubtract, after, before);
                   return b.Binary(Opcode::kAdd, before,
                                   b.Binary(Opcode::kMultiply, change, b.FullLike(change, factor)));
                 });
}

// Float results of which several devices hold the same part.
std::vector<int> ReplicatedResults(const CompiledStep& compiled) {
  std::vector<int> found;
  const Computation& entry = compiled.program.module.entry_computation();
  for (size_t i = 0; i < entry.results.size(); ++i) {
    const AxisSet split = compiled.program.results[i].split_axes();
    if (!IsFloat(entry.shape(entry.results[i]).type)) continue;
    if (compiled.mesh().size(split) < compiled.mesh().num_devices()) {
      found.push_back(static_cast<int>(i));
    }
  }
  return found;
}

std::optional<Module> OtherReplica(const CompiledStep& compiled, double factor_minus_1) {
  const std::vector<int> replicated = ReplicatedResults(compiled);
  if (replicated.empty()) return std::nullopt;
  const int64_t last = compiled.mesh().num_devices() - 1;
  return RewriteResults(compiled.program.module, [&](ComputationBuilder& b, const auto&,
                                                     std::vector<Value> results) {
    Value& result = results[replicated.front()];
    const double epsilon = factor_minus_1 > 0 ? factor_minus_1 : 2 * Epsilon(b.shape(result).type);
    const Value other = b.Binary(Opcode::kMultiply, result, b.FullLike(result, 1 + epsilon));
    result = SelectLike(b, IsDevice(b, last), other, result);
    return results;
  });
}

std::optional<Module> AllBecome(const CompiledStep& compiled, double value) {
  return RewriteResults(compiled.program.module,
                        [&](ComputationBuilder& b, const auto&, std::vector<Value> results) {
                          for (Value& result : results) {
                            if (IsFloat(b.shape(result).type)) result = b.FullLike(result, value);
                          }
                          return results;
                        });
}

// The first element of the last device's part of the largest state.
std::optional<Module> OneElementBecomes(const CompiledStep& compiled, double value) {
  const std::vector<StatePair> state = StateOf(compiled, "optimizer/m");
  if (state.empty()) return std::nullopt;
  const int64_t last = compiled.mesh().num_devices() - 1;
  return OnState(compiled, {state.front()}, [&](ComputationBuilder& b, Value, Value after) {
    const Shape shape = b.shape(after);
    std::vector<int64_t> ones(shape.rank(), 1);
    const Value element = b.Broadcast(b.Scalar(shape.type, value), ones, {});
    const Value changed = b.DynamicUpdateSlice(after, element, StartsAt0(b, shape));
    return SelectLike(b, IsDevice(b, last), changed, after);
  });
}

Value FromNeighbour(ComputationBuilder& b, Value x, int64_t num_devices) {
  PermuteAttributes permute;
  for (int64_t i = 0; i < num_devices; ++i) {
    permute.source_target_pairs.emplace_back(i, (i + 1) % num_devices);
  }
  return b.Append({.opcode = Opcode::kCollectivePermute,
                   .operands = {x},
                   .results = {b.shape(x)},
                   .attributes = permute});
}

std::optional<Module> NeighboursState(const CompiledStep& compiled) {
  std::vector<StatePair> split;
  for (const StatePair& pair : StateOf(compiled)) {
    if (!compiled.program.results[pair.result].is_replicated()) split.push_back(pair);
  }
  return OnState(compiled, split, [&](ComputationBuilder& b, Value, Value after) {
    return FromNeighbour(b, after, compiled.mesh().num_devices());
  });
}

std::optional<Module> StateExchanged(const CompiledStep& compiled) {
  const Computation& entry = compiled.program.module.entry_computation();
  const auto first = StateOf(compiled, "optimizer/m"), second = StateOf(compiled, "optimizer/v");
  for (const StatePair& x : first) {
    for (const StatePair& y : second) {
      if (entry.shape(entry.results[x.result]) != entry.shape(entry.results[y.result])) continue;
      return RewriteResults(compiled.program.module,
                            [&](ComputationBuilder&, const auto&, std::vector<Value> results) {
                              std::swap(results[x.result], results[y.result]);
                              return results;
                            });
    }
  }
  return std::nullopt;
}

// The first batch input that is split over devices; labels stay where they are.
std::optional<Site> SplitBatch(const CompiledStep& compiled) {
  const auto& parameters = compiled.prepared.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].role != ParameterRole::kBatch) continue;
    if (compiled.program.parameters[i].is_replicated()) continue;
    const Module& module = compiled.program.module;
    return Site{module.entry, module.entry_computation().parameters[i]};
  }
  return std::nullopt;
}

std::optional<Module> NeighboursBatch(const CompiledStep& compiled) {
  const auto site = SplitBatch(compiled);
  if (!site) return std::nullopt;
  return RewriteAt(
      compiled.program.module, *site, [&](ComputationBuilder& b, const Instruction& x) {
        const Value batch = AppendAsItIs(b, x)[0];
        return std::vector<Value>{FromNeighbour(b, batch, compiled.mesh().num_devices())};
      });
}

std::optional<Module> FirstBatchOnAll(const CompiledStep& compiled) {
  const auto site = SplitBatch(compiled);
  if (!site) return std::nullopt;
  return RewriteAt(compiled.program.module, *site,
                   [&](ComputationBuilder& b, const Instruction& x) {
                     const Value batch = AppendAsItIs(b, x)[0];
                     std::vector<int64_t> all(compiled.mesh().num_devices());
                     std::iota(all.begin(), all.end(), 0);
                     const Value gathered = b.AllGather(batch, 0, {all});
                     return std::vector<Value>{
                         b.DynamicSlice(gathered, StartsAt0(b, x.shape()), x.shape().dims)};
                   });
}

// The loop over micro-batches, its body and condition.
struct MicroLoopSites {
  Site loop;
  ComputationId body = -1, condition = -1;
};
std::optional<MicroLoopSites> LoopOf(const Module& module) {
  const auto loop = Largest(module, [&](const Computation&, const Instruction& x) {
    return x.opcode == Opcode::kWhile && module.computations[x.called[0]].name == kMicroBody;
  });
  if (!loop) return std::nullopt;
  const Instruction& instruction = At(module, *loop);
  return MicroLoopSites{*loop, instruction.called[0], instruction.called[1]};
}

std::optional<Module> FirstMicroBatchLeftOut(const CompiledStep& compiled) {
  const auto sites = LoopOf(compiled.program.module);
  if (!sites) return std::nullopt;
  return RewriteAt(compiled.program.module, sites->loop, [](ComputationBuilder& b, Instruction x) {
    x.operands[0] = b.Scalar(ElementType::kS32, 1);
    return AppendAsItIs(b, x);
  });
}

std::optional<Module> MoreMicroBatches(const CompiledStep& compiled, int64_t more) {
  const Module& module = compiled.program.module;
  const auto sites = LoopOf(module);
  if (!sites) return std::nullopt;
  const Computation& condition = module.computations[sites->condition];
  const InstructionId compare = condition.results[0].instruction;
  return RewriteAt(module, {sites->condition, compare}, [&](ComputationBuilder& b, Instruction x) {
    x.operands[1] = b.Binary(Opcode::kAdd, x.operands[1],
                             b.Scalar(ElementType::kS32, static_cast<double>(more)));
    return AppendAsItIs(b, x);
  });
}

// Other numbers of micro-batches for the operations of the body that `wanted` accepts.
std::optional<Module> OtherIndex(const CompiledStep& compiled, const Predicate& wanted,
                                 const std::function<Value(ComputationBuilder&, Value)>& other) {
  const Module& module = compiled.program.module;
  const auto sites = LoopOf(module);
  if (!sites) return std::nullopt;
  const Computation& body = module.computations[sites->body];
  const Value index{body.parameters[0], 0};
  std::vector<Site> users;
  for (InstructionId i = 0; i < body.num_instructions(); ++i) {
    const Instruction& x = body.instructions[i];
    if (Value{i, 0} == body.results[0] || std::ranges::count(x.operands, index) == 0) continue;
    if (wanted(body, x)) users.push_back({sites->body, i});
  }
  if (users.empty()) return std::nullopt;
  Module broken = module;
  // From the last one back, so that what is added moves no user that is still to come.
  for (auto user = users.rbegin(); user != users.rend(); ++user) {
    broken = RewriteAt(broken, *user, [&](ComputationBuilder& b, Instruction x) {
      const Value was{b.computation().parameters[0], 0};
      for (Value& operand : x.operands) {
        if (operand == was) operand = other(b, operand);
      }
      return AppendAsItIs(b, x);
    });
  }
  return broken;
}

// Does the operation clamp the number for a slice of the batch, or take one?
bool TakesSlice(const Computation&, const Instruction& x) {
  return x.opcode == Opcode::kDynamicSlice || x.opcode == Opcode::kMaximum;
}

std::optional<Module> AlwaysFirstMicroBatch(const CompiledStep& compiled) {
  return OtherIndex(compiled, TakesSlice,
                    [](ComputationBuilder& b, Value) { return b.Scalar(ElementType::kS32, 0); });
}

std::optional<Module> SecondMicroBatchTwice(const CompiledStep& compiled) {
  return OtherIndex(compiled, TakesSlice, [](ComputationBuilder& b, Value index) {
    return b.Binary(Opcode::kMaximum, index, b.Scalar(ElementType::kS32, 1));
  });
}

std::optional<Module> KeysShared(const CompiledStep& compiled) {
  const bool has_key = std::ranges::any_of(compiled.prepared.parameters, [](const auto& info) {
    return info.role == ParameterRole::kKey;
  });
  if (!has_key) return std::nullopt;
  return OtherIndex(
      compiled,
      [](const Computation& c, const Instruction& x) {
        return !TakesSlice(c, x) && x.opcode != Opcode::kDynamicUpdateSlice;
      },
      [](ComputationBuilder& b, Value) { return b.Scalar(ElementType::kS32, 0); });
}

std::optional<Module> AccumulatorOverwritten(const CompiledStep& compiled) {
  const Module& module = compiled.program.module;
  const auto sites = LoopOf(module);
  if (!sites) return std::nullopt;
  const Computation& body = module.computations[sites->body];
  const Predicate wanted = [&](const Computation& c, const Instruction& x) {
    if (&c != &body || x.opcode != Opcode::kAdd || !IsFloat(x.shape().type)) return false;
    return std::ranges::any_of(
        body.results, [&](Value result) { return &body.instructions[result.instruction] == &x; });
  };
  return Replace(module, wanted, [](ComputationBuilder&, const Instruction& x) {
    return std::vector<Value>{x.operands[1]};
  });
}

// A scalar constant or its broadcast; nullopt for other values.
std::optional<double> ConstantOf(const Computation& computation, Value value) {
  const Instruction* x = &computation.instruction(value);
  if (x->opcode == Opcode::kBroadcast) x = &computation.instruction(x->operands[0]);
  if (x->opcode != Opcode::kConstant || x->shape().num_elements() != 1) return std::nullopt;
  return ScalarValue(x->As<ConstantAttributes>().literal);
}

std::optional<Module> MeanNotDivided(const CompiledStep& compiled) {
  const Module& module = compiled.program.module;
  const Predicate wanted = [](const Computation& c, const Instruction& x) {
    if (x.opcode != Opcode::kMultiply || !IsFloat(x.shape().type)) return false;
    const auto factor = ConstantOf(c, x.operands[1]);
    if (!factor || *factor <= 0 || *factor > 0.5) return false;
    return c.instruction(x.operands[0]).opcode == Opcode::kReduce &&
           std::abs(1 / *factor - std::round(1 / *factor)) < 1e-3;
  };
  return Replace(module, wanted, [](ComputationBuilder&, const Instruction& x) {
    return std::vector<Value>{x.operands[0]};
  });
}

std::optional<Module> NarrowDot(const CompiledStep& compiled) {
  const Predicate wanted = [](const Computation& c, const Instruction& x) {
    return (x.opcode == Opcode::kDot || x.opcode == Opcode::kConvolution) &&
           x.shape().type == ElementType::kF32 && c.shape(x.operands[0]).type == ElementType::kF32;
  };
  return Replace(compiled.program.module, wanted, [](ComputationBuilder& b, Instruction x) {
    for (Value& operand : x.operands) {
      operand = b.Convert(b.Convert(operand, ElementType::kBF16), ElementType::kF32);
    }
    return AppendAsItIs(b, x);
  });
}

std::vector<Break> MakeBreaks() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto with = [](const auto& function, auto argument) {
    return [=](const CompiledStep& compiled) { return function(compiled, argument); };
  };
  return {
      {"sum dropped", DropSum},
      {"sum over the wrong axis", SumOverOtherAxis},
      {"sum counted twice", SumTwice},
      {"sum without one device", SumWithoutOneDevice},
      {"sum in bf16", SumOfNarrowParts},
      {"maximum instead of a sum", MaximumForSum},
      {"gathered parts rotated", GatherRotated},
      {"own part gathered", GatherOfOwnPart},
      {"gathered over the wrong axis", GatherOverOtherAxis},
      {"offset off by one element", with(OffsetOff, false)},
      {"offset off by one part", with(OffsetOff, true)},
      {"mask inverted", MaskInverted},
      {"update of split weights skipped on one device", with(SkipUpdateOnOneDevice, true)},
      {"update of whole weights skipped on one device", with(SkipUpdateOnOneDevice, false)},
      {"update of one weight skipped", with(SkipUpdate, true)},
      {"all updates skipped", with(SkipUpdate, false)},
      {"last step's weights", LastStepsWeights},
      {"update applied twice", with(ScaleUpdate, 2.0)},
      {"update with the wrong sign", with(ScaleUpdate, -1.0)},
      {"one replica 1/64 larger", with(OtherReplica, 1.0 / 64)},
      {"one replica a rounding larger", with(OtherReplica, 0.0)},
      {"all NaN", with(AllBecome, nan)},
      {"all zero", with(AllBecome, 0.0)},
      {"one element NaN", with(OneElementBecomes, nan)},
      {"one element infinite", with(OneElementBecomes, infinity)},
      {"neighbour's state", NeighboursState},
      {"two states exchanged", StateExchanged},
      {"neighbour's examples for own labels", NeighboursBatch},
      {"first device's examples on all", FirstBatchOnAll},
      {"first micro-batch left out", FirstMicroBatchLeftOut},
      {"last micro-batch left out", with(MoreMicroBatches, int64_t{-1})},
      {"last micro-batch doubled", with(MoreMicroBatches, int64_t{1})},
      {"always the first micro-batch", AlwaysFirstMicroBatch},
      {"second micro-batch for the first", SecondMicroBatchTwice},
      {"random bits shared by micro-batches", KeysShared},
      {"accumulator overwritten", AccumulatorOverwritten},
      {"mean not divided", MeanNotDivided},
      {"dot of bf16", NarrowDot},
  };
}

}  // namespace

std::span<const Break> AllBreaks() {
  static const std::vector<Break> breaks = MakeBreaks();
  return breaks;
}

}  // namespace minka
