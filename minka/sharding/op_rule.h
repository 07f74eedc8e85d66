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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
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

// What the local program does, when a factor is split, besides running the operation on the local
// shapes (shapes in attributes are always made local).
enum class LocalForm : uint8_t {
  kPlain,        // nothing
  kIotaOffset,   // iota dimension: add coordinate * local size
  kOwnSlice,     // constant whose elements differ: every device holds its slice of the literal
  kIndexOffset,  // table dimension of a gather: clamp the index globally, subtract the offset of
                 // the slice, zero what is not in it; of a scatter: subtract, what is outside is
                 // dropped
  kGatherAndReduce,  // kCombine of a reducer that picks one of its operands: the parts' results are
                     // gathered and reduced once more
  kWindowOffset,     // dimension of which a dynamic-slice, dynamic-update-slice, gather or scatter
                  // takes or replaces windows: starts less the offset of the part, in a part that
                  // is padded by the window's size, so that what lies in other parts is zero or
                  // dropped
  kCollectivesInside,  // while, conditional: the called computations communicate (called_plan.h)
  kInitOnFirst,  // the value that starts the accumulation (init of a reduce, operand of a scatter)
                 // counts on coordinate 0 of every axis over which the result is partial and it is
                 // not (a multiply: of every split axis); it is the neutral element elsewhere
};

struct Factor {
  FactorKind kind = FactorKind::kParallel;
  int64_t size = 1;                // divides every dimension that maps to the factor
  Opcode combiner = Opcode::kAdd;  // kCombine: maximum, minimum, and, or, multiply
  LocalForm local_form = LocalForm::kPlain;
  std::string
      name;  // "batch", "row", "column", "contraction", "dim 2": for people; unique in a lane
  // while, conditional: operands and results that are sums owed over the axes that split the
  // factor.
  std::vector<int> partial_operands, partial_results;
  bool operator==(const Factor&) const = default;
};

// The dimension is in no factor: it must be whole.
inline constexpr int kWholeDim = -1;

struct OpRule {
  std::vector<Factor> factors;
  // [operand][dim] -> factor or kWholeDim; the same for results.
  std::vector<std::vector<int>> operand_dims;
  std::vector<std::vector<int>> result_dims;
  // Sets of operands in which the operation is jointly linear: all partial together over an axis
  // (then all results are partial over it), or none. Operands not in the group are whole over that
  // axis. Empty: no operand may be partial. Reduce-add: the inits follow LocalForm::kInitOnFirst.
  std::vector<std::vector<int>> linear_groups;
  // More than 1 for an opt-barrier: operand i and result i are an operation of their own (lane i),
  // split independently of the others; LaneRule(rule, i) is its rule, and a Strategy of the whole
  // is the lanes' strategies one after another, indices as in the lanes' rules.
  int num_lanes = 1;
  // False: the operation has no rule; it runs replicated and is named in the plan's unsupported
  // operations.
  bool supported = true;
  bool operator==(const OpRule&) const = default;
};

OpRule RuleFor(const Module& module, const Computation& computation, InstructionId id);
// The rule of one lane, with one operand and one result.
OpRule LaneRule(const OpRule& rule, int lane);

// Per instruction of the computation: does it depend only on constants, iotas and the parameters
// listed (random keys), by cheap operations? Any sharding of its results costs nothing to produce.
std::vector<bool> FreeToProduce(const Module& module, const Computation& computation,
                                std::span<const int> key_parameters = {});

// Is every element surely zero (constants, through broadcast, reshape, convert, copy, transpose)?
bool IsZero(const Computation& computation, Value value);

// Equal keys: equal rules (names of factors aside) and equal shapes and types of operands and
// results, so that strategies and reshard costs are the same. Opcode and attributes are not part.
std::string RuleKey(const OpRule& rule, const Computation& computation, InstructionId id);

// What one mesh axis does in an operation.
struct AxisUse {
  enum class Kind : uint8_t { kIdle, kFactor, kLinear };
  Kind kind = Kind::kIdle;
  int index = 0;  // kFactor: the factor; kLinear: the linear group whose operands (and the results)
                  // are partial
  auto operator<=>(const AxisUse&) const = default;
};

// One way to run an operation on a mesh: what each axis does. Several axes on one factor: major to
// minor in mesh order.
struct Strategy {
  std::vector<AxisUse> axes;  // by mesh axis; with lanes: [lane * num_axes + axis]
  auto operator<=>(const Strategy&) const = default;
};

// Shardings that a strategy asks of operands and gives to results.
Sharding OperandSharding(const OpRule& rule, const Strategy& strategy, int operand);
Sharding ResultSharding(const OpRule& rule, const Strategy& strategy, int result);
// Axes over which results must be completed at once (split kCombine factors), with their combiner;
// all split kCombine factors of an operation have the same.
AxisSet CombineAxes(const OpRule& rule, const Strategy& strategy);

struct StrategyLimits {
  int max_axes_per_factor = kMaxMeshAxes;
  int max_partial_axes = kMaxMeshAxes;  // axes linear or on kSum factors
};

// Every strategy within the limits whose axes divide the factors they split, in a fixed order (all
// idle first). Mesh axes of size 1 stay idle. Precondition: one lane.
std::vector<Strategy> EnumerateStrategies(const OpRule& rule, const Mesh& mesh,
                                          const StrategyLimits& limits = {});

// "data: batch, model: contraction", "idle", "model: partial(0,1)" for a linear group; lanes joined
// by " | ". Parses back.
std::string ToString(const Strategy& strategy, const OpRule& rule, const Mesh& mesh);
absl::StatusOr<Strategy> ParseStrategy(std::string_view text, const OpRule& rule, const Mesh& mesh);

}  // namespace minka
