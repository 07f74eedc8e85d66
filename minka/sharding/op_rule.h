// The one table of how operations can be split. Enumeration, cost, lowering and the document of
// supported operations all read it; nothing else knows how an operation can be split.
//
// A rule names the operation's factors (independent loops), maps the dimensions of operands and
// results to factors, lists its linear groups, and says how the local program differs from running
// the operation on local shapes.
//
//   dot f32[8,16] x f32[16,32]:  factors 0 (size 8, parallel), 1 (size 32, parallel), 2 (size 16,
//   sum)
//     operand 0: dims -> {0, 2}   operand 1: dims -> {2, 1}   result: dims -> {0, 1}
//     linear groups {0}, {1}: one operand partial makes the result partial (the other then whole
//     over that axis)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "minka/ir/module.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

enum class FactorKind : uint8_t {
  kParallel,  // indexes the results: splitting it splits them
  kSum,       // summed over: splitting it leaves the results partial
  kCombine,  // reduced with something else than add: results are completed at once by an all-reduce
             // with `combiner`
};

struct Factor {
  FactorKind kind = FactorKind::kParallel;
  int64_t size = 1;
  Opcode combiner = Opcode::kAdd;  // kCombine: maximum, minimum, and, or, multiply
  std::string name;                // "batch", "row", "column", "contraction", "dim 2": for people
};

// The dimension is in no factor: it must be whole.
inline constexpr int kWholeDim = -1;

// What the local program does besides running the operation on the local shapes.
enum class LocalForm : uint8_t {
  kPlain,        // nothing else; shapes in attributes are made local
  kIotaOffset,   // add coordinate * local size along the split iota dimension
  kIndexOffset,  // gather / scatter over a split table dimension: subtract the offset, mask what is
                 // outside
  kInitOnFirst,  // reduce, scatter ... with a sum split: the init value counts once (coordinate 0),
                 // neutral elsewhere
};

struct OpRule {
  std::vector<Factor> factors;
  // [operand][dim] -> factor or kWholeDim; the same for results.
  std::vector<std::vector<int>> operand_dims;
  std::vector<std::vector<int>> result_dims;
  // Sets of operands in which the operation is jointly linear: all partial together over an axis,
  // or none. Operands not in the group are whole over that axis. Empty: no operand may be partial.
  std::vector<std::vector<int>> linear_groups;
  LocalForm local_form = LocalForm::kPlain;
  // False: the operation has no rule; it runs replicated and is named in the plan's unsupported
  // operations.
  bool supported = true;
  // Constants, iota and what depends only on them or on random keys: any sharding costs nothing to
  // produce.
  bool free_to_produce = false;
};

OpRule RuleFor(const Module& module, const Computation& computation, InstructionId id);

// What one mesh axis does in an operation.
struct AxisUse {
  enum class Kind : uint8_t { kIdle, kFactor, kLinear };
  Kind kind = Kind::kIdle;
  int index = 0;  // kFactor: the factor; kLinear: the linear group whose operands (and the results)
                  // are partial
  auto operator<=>(const AxisUse&) const = default;
};

// One way to run an operation on a mesh: what each axis does. Two axes on one factor: `major_first`
// order is mesh order.
struct Strategy {
  std::vector<AxisUse> axes;  // by mesh axis
  auto operator<=>(const Strategy&) const = default;
};

// Shardings that a strategy asks of operands and gives to results.
Sharding OperandSharding(const OpRule& rule, const Strategy& strategy, int operand);
Sharding ResultSharding(const OpRule& rule, const Strategy& strategy, int result);
// Axes over which results must be completed at once (split kCombine factors), with their combiner.
AxisSet CombineAxes(const OpRule& rule, const Strategy& strategy);

// Every strategy whose axis sizes divide the dimensions they split, in a fixed order (all idle
// first). Mesh axes of size 1 stay idle. At most one axis linear or summing per ... no limit here:
// the planner prunes.
std::vector<Strategy> EnumerateStrategies(const OpRule& rule, const Module& module,
                                          const Computation& computation, InstructionId id,
                                          const Mesh& mesh);

// "data: batch, model: contraction", "idle".
std::string ToString(const Strategy& strategy, const OpRule& rule, const Mesh& mesh);

}  // namespace minka
