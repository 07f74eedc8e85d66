#include "minka/ir/structure_key.h"

#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>

#include "minka/base/hash.h"

namespace minka {
namespace {

constexpr size_t kUsualBytes = 256;

// Every field is written with fixed width or with its length, so that keys never run together.
class KeyWriter {
 public:
  KeyWriter() { key_.reserve(kUsualBytes); }

  template <typename T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
  void Add(T number) {
    const auto wide = static_cast<uint64_t>(number);
    std::array<char, 8> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(wide >> (8 * i));
    key_.append(bytes.data(), bytes.size());
  }
  void Add(const std::string& text) {
    Add(text.size());
    key_ += text;
  }
  template <typename T>
  void Add(const std::vector<T>& list) {
    Add(list.size());
    for (const T& element : list) Add(element);
  }
  void Add(float number) { Add(std::bit_cast<uint32_t>(number)); }
  template <typename A, typename B>
  void Add(const std::pair<A, B>& pair) {
    Add(pair.first);
    Add(pair.second);
  }
  template <typename T>
  void Add(const std::optional<T>& optional) {
    Add(optional.has_value());
    if (optional) Add(*optional);
  }
  void Add(const Shape& shape) {
    Add(shape.type);
    Add(shape.dims);
  }
  template <typename... Fields>
  void AddAll(const Fields&... fields) {
    (Add(fields), ...);
  }

  void Add(const std::monostate&) {}
  void Add(const ParameterAttributes& a) { Add(a.number); }
  void Add(const ConstantAttributes& a) {
    Add(a.literal.shape);
    if (a.literal.bytes) Add(*a.literal.bytes);
  }
  void Add(const DimensionsAttributes& a) { AddAll(a.dims, a.is_stable); }
  void Add(const SliceAttributes& a) { AddAll(a.starts, a.limits, a.strides); }
  void Add(const DynamicSliceAttributes& a) { Add(a.sizes); }
  void Add(const PadAttributes& a) { AddAll(a.low, a.high, a.interior); }
  void Add(const DotAttributes& a) {
    AddAll(a.lhs_contracting, a.rhs_contracting, a.lhs_batch, a.rhs_batch);
  }
  void Add(const WindowDim& dim) {
    AddAll(dim.size, dim.stride, dim.padding_low, dim.padding_high, dim.window_dilation,
           dim.base_dilation, dim.reversal);
  }
  void Add(const WindowAttributes& a) { Add(a.dims); }
  void Add(const ConvolutionAttributes& a) {
    AddAll(a.window, a.input_batch, a.input_feature, a.kernel_input_feature,
           a.kernel_output_feature, a.output_batch, a.output_feature, a.input_spatial,
           a.kernel_spatial, a.output_spatial, a.feature_group_count, a.batch_group_count);
  }
  void Add(const BatchNormAttributes& a) { AddAll(a.epsilon, a.feature_index); }
  void Add(const GatherAttributes& a) {
    AddAll(a.offset_dims, a.collapsed_slice_dims, a.start_index_map, a.operand_batching_dims,
           a.start_indices_batching_dims, a.slice_sizes, a.index_vector_dim, a.indices_are_sorted);
  }
  void Add(const ScatterAttributes& a) {
    AddAll(a.update_window_dims, a.inserted_window_dims, a.scatter_dims_to_operand_dims,
           a.input_batching_dims, a.scatter_indices_batching_dims, a.index_vector_dim,
           a.indices_are_sorted, a.unique_indices);
  }
  void Add(const CompareAttributes& a) { AddAll(a.direction, a.total_order); }
  void Add(const TopKAttributes& a) { AddAll(a.k, a.largest); }
  void Add(const ReducePrecisionAttributes& a) { AddAll(a.exponent_bits, a.mantissa_bits); }
  void Add(const RngAttributes& a) { Add(a.distribution); }
  void Add(const CollectiveAttributes& a) {
    AddAll(a.groups, a.dimension, a.channel_id, a.use_global_device_ids);
  }
  void Add(const PermuteAttributes& a) { AddAll(a.source_target_pairs, a.channel_id); }
  void Add(const OpaqueAttributes& a) { AddAll(a.name, a.operand_structure, a.result_structure); }

  std::string Take() && { return std::move(key_); }

 private:
  std::string key_;
};

}  // namespace

std::string StructureKey(const Instruction& instruction, const OperandKey& operand_key,
                         const ComputationKey& computation_key) {
  KeyWriter key;
  // By name: hashes of modules are stored in plans, and numbers change when an opcode is added.
  key.Add(std::string(OpcodeName(instruction.opcode)));
  key.Add(instruction.operands.size());
  for (const Value operand : instruction.operands) key.Add(operand_key(operand));
  key.Add(instruction.results);
  std::visit([&key](const auto& attributes) { key.Add(attributes); }, instruction.attributes);
  key.Add(instruction.called.size());
  for (const ComputationId called : instruction.called) key.Add(computation_key(called));
  key.Add(instruction.undecoded ? *instruction.undecoded : std::string());
  return std::move(key).Take();
}

uint64_t PackValue(Value value) {
  return (static_cast<uint64_t>(value.instruction) << 32) | static_cast<uint32_t>(value.result);
}

std::vector<uint64_t> ComputationHashes(const Module& module) {
  std::vector<uint64_t> hashes;
  hashes.reserve(module.computations.size());
  for (const Computation& computation : module.computations) {
    KeyWriter key;
    for (const Instruction& instruction : computation.instructions) {
      key.Add(StableHash(StructureKey(instruction, PackValue,
                                      [&hashes](ComputationId called) { return hashes[called]; })));
    }
    for (const Value result : computation.results) key.Add(PackValue(result));
    hashes.push_back(StableHash(std::move(key).Take()));
  }
  return hashes;
}

}  // namespace minka
