// The intermediate representation: one step on one device, with HLO's opcodes, attributes and
// meaning.
//
// Storage is ids into vectors. A computation's instructions are in topological order (operands
// before users) and an InstructionId is a position in that vector, so side tables are vectors
// indexed by id. There are no tuples: an instruction has a list of results, a value names one of
// them, and tuple / get-tuple-element of HLO are dissolved at import and written again at export
// (nested tuples in depth-first order). Modules are built (builder.h) and replaced, not edited in
// place.
//
//   while: operands = initial carried values; called = {body, condition}; both take all carried
//   values as parameters,
//          the body's results are the next carried values, the condition has one pred[] result.
//   reduce: operands = inputs then init values; called = {reducer}.   scatter: operands, indices,
//   updates; called = {update}.   reduce-window: as reduce.   select-and-scatter: operands =
//   operand, source, init value; called = {select, scatter}. conditional: operands = predicate or
//   index, then each branch's arguments; called = branches.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "minka/ir/literal.h"
#include "minka/ir/opcode.h"
#include "minka/ir/shape.h"

namespace minka {

using InstructionId = int32_t;
using ComputationId = int32_t;

// Result `result` of an instruction.
struct Value {
  InstructionId instruction = -1;
  int32_t result = 0;
  auto operator<=>(const Value&) const = default;
};

struct ParameterAttributes {
  int64_t number = 0;
  bool operator==(const ParameterAttributes&) const = default;
};
struct ConstantAttributes {
  Literal literal;
  bool operator==(const ConstantAttributes&) const = default;
};
// broadcast: where each operand dimension goes; transpose: the permutation (result dim i is operand
// dim dims[i]); reduce: the reduced dimensions; concatenate, iota, sort: one entry; reverse, map:
// the dimensions.
struct DimensionsAttributes {
  std::vector<int64_t> dims;
  bool is_stable = false;  // sort only
  bool operator==(const DimensionsAttributes&) const = default;
};
struct SliceAttributes {
  std::vector<int64_t> starts, limits, strides;
  bool operator==(const SliceAttributes&) const = default;
};
struct DynamicSliceAttributes {
  std::vector<int64_t> sizes;
  bool operator==(const DynamicSliceAttributes&) const = default;
};
struct PadAttributes {
  std::vector<int64_t> low, high, interior;  // one per dimension; low and high may be negative
  bool operator==(const PadAttributes&) const = default;
};
// Result dims: batch dims in order, then lhs free dims, then rhs free dims.
struct DotAttributes {
  std::vector<int64_t> lhs_contracting, rhs_contracting, lhs_batch, rhs_batch;
  bool operator==(const DotAttributes&) const = default;
};
// One dimension of a sliding window. The base is dilated (base_dilation - 1 holes between
// neighbours), padded (cropped where negative), and the window, dilated as well, is laid on it
// every `stride` elements. Reversal: window element i meets what element size - 1 - i would.
struct WindowDim {
  int64_t size = 1, stride = 1;
  int64_t padding_low = 0, padding_high = 0;
  int64_t window_dilation = 1, base_dilation = 1;
  bool reversal = false;
  bool operator==(const WindowDim&) const = default;
};
// reduce-window, select-and-scatter: one entry per dimension.
struct WindowAttributes {
  std::vector<WindowDim> dims;
  bool operator==(const WindowAttributes&) const = default;
};
// Which dimension of input, kernel and output is what; spatial ones in the order of the window's
// entries. Input features lie group-major where feature_group_count > 1, batches where
// batch_group_count > 1, and output features follow the groups.
struct ConvolutionAttributes {
  std::vector<WindowDim> window;
  int64_t input_batch = 0, input_feature = 1;
  int64_t kernel_input_feature = 0, kernel_output_feature = 1;
  int64_t output_batch = 0, output_feature = 1;
  std::vector<int64_t> input_spatial, kernel_spatial, output_spatial;
  int64_t feature_group_count = 1, batch_group_count = 1;
  bool operator==(const ConvolutionAttributes&) const = default;
};
struct BatchNormAttributes {
  float epsilon = 0;
  int64_t feature_index = 0;
  bool operator==(const BatchNormAttributes&) const = default;
};
struct GatherAttributes {
  std::vector<int64_t> offset_dims, collapsed_slice_dims, start_index_map, operand_batching_dims,
      start_indices_batching_dims, slice_sizes;
  int64_t index_vector_dim = 0;
  bool indices_are_sorted = false;
  bool operator==(const GatherAttributes&) const = default;
};
struct ScatterAttributes {
  std::vector<int64_t> update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims,
      input_batching_dims, scatter_indices_batching_dims;
  int64_t index_vector_dim = 0;
  bool indices_are_sorted = false;
  bool unique_indices = false;
  bool operator==(const ScatterAttributes&) const = default;
};
struct CompareAttributes {
  enum class Direction : uint8_t { kEq, kNe, kGe, kGt, kLe, kLt };
  Direction direction = Direction::kEq;
  bool total_order = false;  // floats only; signedness follows from the operand type
  bool operator==(const CompareAttributes&) const = default;
};
struct ReducePrecisionAttributes {
  int32_t exponent_bits = 0, mantissa_bits = 0;
  bool operator==(const ReducePrecisionAttributes&) const = default;
};
// Along the last dimension; two results: the values in order and their places.
struct TopKAttributes {
  int64_t k = 0;
  bool largest = true;
  bool operator==(const TopKAttributes&) const = default;
};
struct RngAttributes {
  int32_t distribution =
      0;  // rng: 1 uniform, 2 normal; rng-bit-generator: 0 default, 1 three-fry, 2 philox
  bool operator==(const RngAttributes&) const = default;
};
// all-reduce, all-gather, reduce-scatter, all-to-all. Empty groups: all replicas in one group.
// all-reduce may have several operands and results. all-to-all with dimension -1 is the tuple form.
struct CollectiveAttributes {
  std::vector<std::vector<int64_t>> groups;  // replica ids
  int64_t dimension = -1;
  std::optional<int64_t> channel_id;
  bool use_global_device_ids = false;
  bool operator==(const CollectiveAttributes&) const = default;
};
struct PermuteAttributes {
  std::vector<std::pair<int64_t, int64_t>> source_target_pairs;
  std::optional<int64_t> channel_id;
  bool operator==(const PermuteAttributes&) const = default;
};
// custom-call and every opcode without attributes of its own here: the name, and the tuple
// structure that operands had.
struct OpaqueAttributes {
  std::string name;               // opcode text for kOther, custom_call_target for custom-call
  std::string operand_structure;  // empty: every operand is an array; else serialised for export
  std::string result_structure;
  bool operator==(const OpaqueAttributes&) const = default;
};

using Attributes =
    std::variant<std::monostate, ParameterAttributes, ConstantAttributes, DimensionsAttributes,
                 SliceAttributes, DynamicSliceAttributes, PadAttributes, DotAttributes,
                 WindowAttributes, ConvolutionAttributes, BatchNormAttributes, GatherAttributes,
                 ScatterAttributes, CompareAttributes, ReducePrecisionAttributes, TopKAttributes,
                 RngAttributes, CollectiveAttributes, PermuteAttributes, OpaqueAttributes>;

// What part of a step an operation belongs to: from the inputs to the loss, from there to the
// gradients, from the gradients to the new state.
enum class Phase : uint8_t { kForward, kBackward, kApply };

// What an operation is to the loop over micro-batches (micro_loop.h): not part of it, the number of
// the micro-batch, an operation of the body, or one whose value is accumulated.
enum class LoopRole : uint8_t { kOutside, kIndex, kBody, kSum, kStack };

// Where an operation stands in a step: phase and layer are found once, on the simplified step
// (analysis/structure.h), the loop is written by lowering/micro_batches.h, the program by
// lowering/stages.h. Kept by whatever copies or rewrites it.
struct StepPart {
  Phase phase = Phase::kForward;
  int32_t layer = -1;  // -1: none, see analysis/structure.h
  LoopRole loop = LoopRole::kOutside;
  int8_t program = 0;  // of those that run the step, by number; 0 where it is one
  bool operator==(const StepPart&) const = default;
};

struct Instruction {
  Opcode opcode = Opcode::kOther;
  std::string name;  // unique within the computation; may be empty while building
  std::vector<Value> operands;
  std::vector<Shape> results;
  Attributes attributes;
  std::vector<ComputationId> called;
  std::string op_name;  // the frontend's name of the operation (metadata)
  // Where the user wrote it, "model.py:12"; empty: unknown. Read with the module, for people; not
  // exported, and no part of what operations are compared by.
  std::string source_line;
  std::map<std::string, std::string> frontend_attributes;
  StepPart part;  // of the entry computation's
  // Fields of the HLO proto that nothing here decodes (precision, layouts of custom calls ...),
  // serialised; null: none.
  std::shared_ptr<const std::string> undecoded;

  const Shape& shape() const { return results.front(); }
  template <typename T>
  const T& As() const {
    return std::get<T>(attributes);
  }
};

struct Computation {
  std::string name;
  std::vector<Instruction> instructions;
  std::vector<InstructionId> parameters;  // by parameter number
  std::vector<Value> results;

  const Instruction& instruction(Value value) const { return instructions[value.instruction]; }
  const Shape& shape(Value value) const {
    return instructions[value.instruction].results[value.result];
  }
  int num_instructions() const { return static_cast<int>(instructions.size()); }
};

// Result `result` may reuse the buffer of parameter `parameter`.
struct Alias {
  int result = 0;
  int parameter = 0;
  bool operator==(const Alias&) const = default;
};

struct Module {
  std::string name;
  std::vector<Computation> computations;  // callees before callers
  ComputationId entry = -1;
  std::vector<Alias> aliases;
  int64_t num_micro_batches = 1;  // how often the loop's body runs (micro_loop.h)
  std::map<std::string, std::string> frontend_attributes;
  std::shared_ptr<const std::string> undecoded;

  Computation& entry_computation() { return computations[entry]; }
  const Computation& entry_computation() const { return computations[entry]; }
};

// The module with this instead of its entry computation.
Module WithEntry(const Module& module, Computation entry);

// For each value, in instruction order, who reads it. Computed once, indexed by Value.
struct Use {
  InstructionId user = -1;
  int operand = 0;
  auto operator<=>(const Use&) const = default;
};
class UseTable {
 public:
  explicit UseTable(const Computation& computation);
  std::span<const Use> uses(Value value) const {
    const int32_t number = offsets_[value.instruction] + value.result;
    return {uses_.data() + first_use_[number], uses_.data() + first_use_[number + 1]};
  }
  bool is_result(Value value) const {
    return is_result_[offsets_[value.instruction] + value.result];
  }

 private:
  std::vector<int32_t> offsets_;    // by instruction: the number of its first value
  std::vector<int32_t> first_use_;  // by value, and one more
  std::vector<Use> uses_;
  std::vector<bool> is_result_;
};

// A hash that is equal for modules that compute the same by the same instructions: names and
// metadata left out.
uint64_t ModuleHash(const Module& module);

}  // namespace minka
