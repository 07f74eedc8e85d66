#include "minka/ir/hlo_attributes.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_literal.h"

namespace minka {
namespace {

using Int64s = google::protobuf::RepeatedField<int64_t>;

constexpr int64_t kMaxGroupMembers = int64_t{1} << 20;

std::vector<int64_t> List(const Int64s& field) { return {field.begin(), field.end()}; }
void SetList(const std::vector<int64_t>& list, Int64s* field) {
  field->Assign(list.begin(), list.end());
}

Attributes DecodeDimensions(hlo::HloInstructionProto& proto) {
  DimensionsAttributes a{.dims = List(proto.dimensions()), .is_stable = proto.is_stable()};
  proto.clear_dimensions();
  proto.clear_is_stable();
  return a;
}

Attributes DecodeSlice(hlo::HloInstructionProto& proto) {
  SliceAttributes a;
  for (const auto& dim : proto.slice_dimensions()) {
    a.starts.push_back(dim.start());
    a.limits.push_back(dim.limit());
    a.strides.push_back(dim.stride());
  }
  proto.clear_slice_dimensions();
  return a;
}

Attributes DecodePad(hlo::HloInstructionProto& proto) {
  PadAttributes a;
  for (const auto& dim : proto.padding_config().dimensions()) {
    a.low.push_back(dim.edge_padding_low());
    a.high.push_back(dim.edge_padding_high());
    a.interior.push_back(dim.interior_padding());
  }
  proto.clear_padding_config();
  return a;
}

Attributes DecodeDot(hlo::HloInstructionProto& proto) {
  const auto& numbers = proto.dot_dimension_numbers();
  DotAttributes a{.lhs_contracting = List(numbers.lhs_contracting_dimensions()),
                  .rhs_contracting = List(numbers.rhs_contracting_dimensions()),
                  .lhs_batch = List(numbers.lhs_batch_dimensions()),
                  .rhs_batch = List(numbers.rhs_batch_dimensions())};
  proto.clear_dot_dimension_numbers();
  return a;
}

std::vector<WindowDim> DecodeWindow(hlo::HloInstructionProto& proto) {
  std::vector<WindowDim> window;
  for (const auto& dim : proto.window().dimensions()) {
    window.push_back({.size = dim.size(),
                      .stride = dim.stride(),
                      .padding_low = dim.padding_low(),
                      .padding_high = dim.padding_high(),
                      .window_dilation = dim.window_dilation(),
                      .base_dilation = dim.base_dilation(),
                      .reversal = dim.window_reversal()});
  }
  proto.clear_window();
  return window;
}

void SetWindow(const std::vector<WindowDim>& window, hlo::HloInstructionProto& proto) {
  proto.mutable_window();
  for (const WindowDim& dim : window) {
    auto* entry = proto.mutable_window()->add_dimensions();
    entry->set_size(dim.size);
    entry->set_stride(dim.stride);
    entry->set_padding_low(dim.padding_low);
    entry->set_padding_high(dim.padding_high);
    entry->set_window_dilation(dim.window_dilation);
    entry->set_base_dilation(dim.base_dilation);
    entry->set_window_reversal(dim.reversal);
  }
}

Attributes DecodeConvolution(hlo::HloInstructionProto& proto) {
  const auto& numbers = proto.convolution_dimension_numbers();
  ConvolutionAttributes a{.input_batch = numbers.input_batch_dimension(),
                          .input_feature = numbers.input_feature_dimension(),
                          .kernel_input_feature = numbers.kernel_input_feature_dimension(),
                          .kernel_output_feature = numbers.kernel_output_feature_dimension(),
                          .output_batch = numbers.output_batch_dimension(),
                          .output_feature = numbers.output_feature_dimension(),
                          .input_spatial = List(numbers.input_spatial_dimensions()),
                          .kernel_spatial = List(numbers.kernel_spatial_dimensions()),
                          .output_spatial = List(numbers.output_spatial_dimensions()),
                          // XLA reads counts that are left out as 1, too.
                          .feature_group_count = std::max<int64_t>(proto.feature_group_count(), 1),
                          .batch_group_count = std::max<int64_t>(proto.batch_group_count(), 1)};
  a.window = DecodeWindow(proto);
  proto.clear_convolution_dimension_numbers();
  proto.clear_feature_group_count();
  proto.clear_batch_group_count();
  return a;
}

Attributes DecodeBatchNorm(hlo::HloInstructionProto& proto) {
  const BatchNormAttributes a{.epsilon = proto.epsilon(), .feature_index = proto.feature_index()};
  proto.clear_epsilon();
  proto.clear_feature_index();
  return a;
}

Attributes DecodeGather(hlo::HloInstructionProto& proto) {
  const auto& numbers = proto.gather_dimension_numbers();
  GatherAttributes a{.offset_dims = List(numbers.offset_dims()),
                     .collapsed_slice_dims = List(numbers.collapsed_slice_dims()),
                     .start_index_map = List(numbers.start_index_map()),
                     .operand_batching_dims = List(numbers.operand_batching_dims()),
                     .start_indices_batching_dims = List(numbers.start_indices_batching_dims()),
                     .slice_sizes = List(proto.gather_slice_sizes()),
                     .index_vector_dim = numbers.index_vector_dim(),
                     .indices_are_sorted = proto.indices_are_sorted()};
  proto.clear_gather_dimension_numbers();
  proto.clear_gather_slice_sizes();
  proto.clear_indices_are_sorted();
  return a;
}

Attributes DecodeScatter(hlo::HloInstructionProto& proto) {
  const auto& numbers = proto.scatter_dimension_numbers();
  ScatterAttributes a{
      .update_window_dims = List(numbers.update_window_dims()),
      .inserted_window_dims = List(numbers.inserted_window_dims()),
      .scatter_dims_to_operand_dims = List(numbers.scatter_dims_to_operand_dims()),
      .input_batching_dims = List(numbers.input_batching_dims()),
      .scatter_indices_batching_dims = List(numbers.scatter_indices_batching_dims()),
      .index_vector_dim = numbers.index_vector_dim(),
      .indices_are_sorted = proto.indices_are_sorted(),
      .unique_indices = proto.unique_indices()};
  proto.clear_scatter_dimension_numbers();
  proto.clear_indices_are_sorted();
  proto.clear_unique_indices();
  return a;
}

constexpr std::array<std::string_view, 6> kDirections = {"EQ", "NE", "GE", "GT", "LE", "LT"};

absl::StatusOr<Attributes> DecodeCompare(hlo::HloInstructionProto& proto) {
  const auto direction = std::ranges::find(kDirections, proto.comparison_direction());
  if (direction == kDirections.end()) {
    return InvalidArgument("'{}' is no direction of a comparison", proto.comparison_direction());
  }
  CompareAttributes a{
      .direction = static_cast<CompareAttributes::Direction>(direction - kDirections.begin()),
      .total_order = proto.comparison_type() == "TOTALORDER"};
  proto.clear_comparison_direction();
  proto.clear_comparison_type();
  return a;
}

std::string ComparisonType(const CompareAttributes& a, ElementType operand) {
  if (a.total_order) return "TOTALORDER";
  if (IsFloat(operand) || IsComplex(operand)) return "FLOAT";
  return IsSigned(operand) ? "SIGNED" : "UNSIGNED";
}

using Groups = std::vector<std::vector<int64_t>>;

// The ids 0 .. n-1 in the iota form: reshaped to reshape_dims, transposed by transpose_perm, cut
// into groups.
absl::StatusOr<Groups> IotaGroups(const hlo::IotaReplicaGroupList& iota) {
  const int64_t num_groups = iota.num_replica_groups();
  const int64_t group_size = iota.num_devices_per_group();
  const auto& sizes = iota.iota_reshape_dims();
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size <= 0 || product > kMaxGroupMembers / size) {
      return InvalidArgument("iota replica groups over [{}] are not possible",
                             fmt::join(sizes, ","));
    }
    product *= size;
  }
  if (num_groups <= 0 || group_size <= 0 || num_groups > kMaxGroupMembers ||
      group_size > kMaxGroupMembers || num_groups * group_size != product) {
    return InvalidArgument("{} replica groups of {} do not hold the ids of [{}]", num_groups,
                           group_size, fmt::join(sizes, ","));
  }
  const int rank = sizes.size();
  std::vector<int32_t> permutation(iota.iota_transpose_perm().begin(),
                                   iota.iota_transpose_perm().end());
  if (permutation.empty()) {
    permutation.resize(rank);
    std::iota(permutation.begin(), permutation.end(), 0);
  }
  std::vector<int32_t> identity(rank);
  std::iota(identity.begin(), identity.end(), 0);
  if (!std::ranges::is_permutation(permutation, identity)) {
    return InvalidArgument("T({}) is no permutation of [{}]", fmt::join(permutation, ","),
                           fmt::join(sizes, ","));
  }
  std::vector<int64_t> strides(rank, 1);
  for (int dim = rank - 2; dim >= 0; --dim) strides[dim] = strides[dim + 1] * sizes[dim + 1];
  Groups groups(num_groups);
  for (int64_t position = 0; position < product; ++position) {
    int64_t rest = position;
    int64_t id = 0;
    for (int dim = rank - 1; dim >= 0; --dim) {
      const int source = permutation[dim];
      id += rest % sizes[source] * strides[source];
      rest /= sizes[source];
    }
    groups[position / group_size].push_back(id);
  }
  return groups;
}

Groups ListedGroups(const google::protobuf::RepeatedPtrField<hlo::ReplicaGroup>& field) {
  Groups groups;
  for (const hlo::ReplicaGroup& group : field) groups.push_back(List(group.replica_ids()));
  // XLA reads one empty group as all replicas, too.
  if (groups.size() == 1 && groups[0].empty()) groups.clear();
  return groups;
}

absl::StatusOr<Groups> DecodeGroups(hlo::HloInstructionProto& proto) {
  if (!proto.mesh_axes_replica_group_list().empty()) {
    return InvalidArgument(
        "replica groups by mesh axes (field 93) are not supported; write them as lists of ids");
  }
  Groups groups;
  if (proto.has_iota_collective_device_list()) {
    ASSIGN_OR_RETURN(groups, IotaGroups(proto.iota_collective_device_list()));
  } else if (proto.collective_device_list().has_iota_replica_group_list()) {
    ASSIGN_OR_RETURN(groups, IotaGroups(proto.collective_device_list().iota_replica_group_list()));
  } else if (proto.collective_device_list().replica_groups_size() > 0) {
    groups = ListedGroups(proto.collective_device_list().replica_groups());
  } else {
    groups = ListedGroups(proto.replica_groups());
  }
  proto.clear_iota_collective_device_list();
  proto.clear_collective_device_list();
  proto.clear_replica_groups();
  return groups;
}

std::optional<int64_t> DecodeChannel(hlo::HloInstructionProto& proto) {
  std::optional<int64_t> channel;
  if (proto.channel_id() != 0) channel = proto.channel_id();
  proto.clear_channel_id();
  return channel;
}

absl::StatusOr<Attributes> DecodeCollective(hlo::HloInstructionProto& proto) {
  CollectiveAttributes a;
  ASSIGN_OR_RETURN(a.groups, DecodeGroups(proto));
  if (proto.dimensions_size() > 1) {
    return InvalidArgument("works along {} dimensions, not one", proto.dimensions_size());
  }
  if (proto.dimensions_size() == 1) a.dimension = proto.dimensions(0);
  a.channel_id = DecodeChannel(proto);
  a.use_global_device_ids = proto.use_global_device_ids();
  proto.clear_dimensions();
  proto.clear_use_global_device_ids();
  return a;
}

Attributes DecodePermute(hlo::HloInstructionProto& proto) {
  PermuteAttributes a;
  for (const hlo::SourceTarget& pair : proto.source_target_pairs()) {
    a.source_target_pairs.emplace_back(pair.source(), pair.target());
  }
  proto.clear_source_target_pairs();
  a.channel_id = DecodeChannel(proto);
  return a;
}

Attributes DecodeRng(Opcode opcode, hlo::HloInstructionProto& proto) {
  if (opcode == Opcode::kRng) {
    const RngAttributes a{.distribution = proto.distribution()};
    proto.clear_distribution();
    return a;
  }
  const RngAttributes a{.distribution = proto.rng_algorithm()};
  proto.clear_rng_algorithm();
  return a;
}

Attributes DecodeTopK(hlo::HloInstructionProto& proto) {
  const TopKAttributes a{.k = proto.k(), .largest = proto.largest()};
  proto.clear_k();
  proto.clear_largest();
  return a;
}

Attributes DecodeReducePrecision(hlo::HloInstructionProto& proto) {
  const ReducePrecisionAttributes a{proto.exponent_bits(), proto.mantissa_bits()};
  proto.clear_exponent_bits();
  proto.clear_mantissa_bits();
  return a;
}

}  // namespace

absl::StatusOr<Attributes> DecodeAttributes(Opcode opcode, hlo::HloInstructionProto& proto) {
  switch (opcode) {
    case Opcode::kBroadcast:
    case Opcode::kConcatenate:
    case Opcode::kIota:
    case Opcode::kMap:
    case Opcode::kReduce:
    case Opcode::kReverse:
    case Opcode::kSort:
    case Opcode::kTranspose:
      return DecodeDimensions(proto);
    case Opcode::kSlice:
      return DecodeSlice(proto);
    case Opcode::kDynamicSlice: {
      DynamicSliceAttributes a{.sizes = List(proto.dynamic_slice_sizes())};
      proto.clear_dynamic_slice_sizes();
      return Attributes(std::move(a));
    }
    case Opcode::kPad:
      return DecodePad(proto);
    case Opcode::kDot:
      return DecodeDot(proto);
    case Opcode::kReduceWindow:
    case Opcode::kSelectAndScatter:
      return WindowAttributes{DecodeWindow(proto)};
    case Opcode::kConvolution:
      return DecodeConvolution(proto);
    case Opcode::kBatchNormGrad:
    case Opcode::kBatchNormInference:
    case Opcode::kBatchNormTraining:
      return DecodeBatchNorm(proto);
    case Opcode::kGather:
      return DecodeGather(proto);
    case Opcode::kScatter:
      return DecodeScatter(proto);
    case Opcode::kCompare:
      return DecodeCompare(proto);
    case Opcode::kReducePrecision:
      return DecodeReducePrecision(proto);
    case Opcode::kTopK:
      return DecodeTopK(proto);
    case Opcode::kRng:
    case Opcode::kRngBitGenerator:
      return DecodeRng(opcode, proto);
    case Opcode::kAllReduce:
    case Opcode::kAllGather:
    case Opcode::kReduceScatter:
    case Opcode::kAllToAll:
      return DecodeCollective(proto);
    case Opcode::kCollectivePermute:
      return DecodePermute(proto);
    default:
      return Attributes();
  }
}

namespace {

// One overload per alternative of Attributes.
struct Encoder {
  const Instruction& instruction;
  std::span<const Shape> operands;
  hlo::HloInstructionProto& proto;

  void operator()(const std::monostate&) const {}
  // Its number depends on the signature that the exporter chooses.
  void operator()(const ParameterAttributes&) const {}
  void operator()(const ConstantAttributes& a) const {
    *proto.mutable_literal() = LiteralToProto(a.literal);
  }
  void operator()(const DimensionsAttributes& a) const {
    SetList(a.dims, proto.mutable_dimensions());
    proto.set_is_stable(a.is_stable);
  }
  void operator()(const SliceAttributes& a) const {
    for (size_t i = 0; i < a.starts.size(); ++i) {
      auto* dim = proto.add_slice_dimensions();
      dim->set_start(a.starts[i]);
      dim->set_limit(a.limits[i]);
      dim->set_stride(a.strides[i]);
    }
  }
  void operator()(const DynamicSliceAttributes& a) const {
    SetList(a.sizes, proto.mutable_dynamic_slice_sizes());
  }
  void operator()(const PadAttributes& a) const {
    proto.mutable_padding_config();
    for (size_t i = 0; i < a.low.size(); ++i) {
      auto* dim = proto.mutable_padding_config()->add_dimensions();
      dim->set_edge_padding_low(a.low[i]);
      dim->set_edge_padding_high(a.high[i]);
      dim->set_interior_padding(a.interior[i]);
    }
  }
  void operator()(const DotAttributes& a) const {
    auto* numbers = proto.mutable_dot_dimension_numbers();
    SetList(a.lhs_contracting, numbers->mutable_lhs_contracting_dimensions());
    SetList(a.rhs_contracting, numbers->mutable_rhs_contracting_dimensions());
    SetList(a.lhs_batch, numbers->mutable_lhs_batch_dimensions());
    SetList(a.rhs_batch, numbers->mutable_rhs_batch_dimensions());
  }
  void operator()(const WindowAttributes& a) const { SetWindow(a.dims, proto); }
  void operator()(const ConvolutionAttributes& a) const {
    SetWindow(a.window, proto);
    auto* numbers = proto.mutable_convolution_dimension_numbers();
    numbers->set_input_batch_dimension(a.input_batch);
    numbers->set_input_feature_dimension(a.input_feature);
    numbers->set_kernel_input_feature_dimension(a.kernel_input_feature);
    numbers->set_kernel_output_feature_dimension(a.kernel_output_feature);
    numbers->set_output_batch_dimension(a.output_batch);
    numbers->set_output_feature_dimension(a.output_feature);
    SetList(a.input_spatial, numbers->mutable_input_spatial_dimensions());
    SetList(a.kernel_spatial, numbers->mutable_kernel_spatial_dimensions());
    SetList(a.output_spatial, numbers->mutable_output_spatial_dimensions());
    // XLA's text leaves a count of 1 out.
    if (a.feature_group_count != 1) proto.set_feature_group_count(a.feature_group_count);
    if (a.batch_group_count != 1) proto.set_batch_group_count(a.batch_group_count);
  }
  void operator()(const BatchNormAttributes& a) const {
    proto.set_epsilon(a.epsilon);
    proto.set_feature_index(a.feature_index);
  }
  void operator()(const GatherAttributes& a) const {
    auto* numbers = proto.mutable_gather_dimension_numbers();
    SetList(a.offset_dims, numbers->mutable_offset_dims());
    SetList(a.collapsed_slice_dims, numbers->mutable_collapsed_slice_dims());
    SetList(a.start_index_map, numbers->mutable_start_index_map());
    SetList(a.operand_batching_dims, numbers->mutable_operand_batching_dims());
    SetList(a.start_indices_batching_dims, numbers->mutable_start_indices_batching_dims());
    numbers->set_index_vector_dim(a.index_vector_dim);
    SetList(a.slice_sizes, proto.mutable_gather_slice_sizes());
    proto.set_indices_are_sorted(a.indices_are_sorted);
  }
  void operator()(const ScatterAttributes& a) const {
    auto* numbers = proto.mutable_scatter_dimension_numbers();
    SetList(a.update_window_dims, numbers->mutable_update_window_dims());
    SetList(a.inserted_window_dims, numbers->mutable_inserted_window_dims());
    SetList(a.scatter_dims_to_operand_dims, numbers->mutable_scatter_dims_to_operand_dims());
    SetList(a.input_batching_dims, numbers->mutable_input_batching_dims());
    SetList(a.scatter_indices_batching_dims, numbers->mutable_scatter_indices_batching_dims());
    numbers->set_index_vector_dim(a.index_vector_dim);
    proto.set_indices_are_sorted(a.indices_are_sorted);
    proto.set_unique_indices(a.unique_indices);
  }
  void operator()(const CompareAttributes& a) const {
    proto.set_comparison_direction(std::string(kDirections[static_cast<size_t>(a.direction)]));
    proto.set_comparison_type(ComparisonType(a, operands[0].type));
  }
  void operator()(const ReducePrecisionAttributes& a) const {
    proto.set_exponent_bits(a.exponent_bits);
    proto.set_mantissa_bits(a.mantissa_bits);
  }
  void operator()(const TopKAttributes& a) const {
    proto.set_k(a.k);
    proto.set_largest(a.largest);
  }
  void operator()(const RngAttributes& a) const {
    if (instruction.opcode == Opcode::kRng) {
      proto.set_distribution(a.distribution);
    } else {
      proto.set_rng_algorithm(a.distribution);
    }
  }
  void operator()(const CollectiveAttributes& a) const {
    for (const std::vector<int64_t>& group : a.groups) {
      SetList(group,
              proto.mutable_collective_device_list()->add_replica_groups()->mutable_replica_ids());
    }
    if (a.dimension >= 0) proto.add_dimensions(a.dimension);
    proto.set_channel_id(a.channel_id.value_or(0));
    proto.set_use_global_device_ids(a.use_global_device_ids);
  }
  void operator()(const PermuteAttributes& a) const {
    for (const auto& [source, target] : a.source_target_pairs) {
      auto* pair = proto.add_source_target_pairs();
      pair->set_source(source);
      pair->set_target(target);
    }
    proto.set_channel_id(a.channel_id.value_or(0));
  }
  void operator()(const OpaqueAttributes& a) const {
    if (instruction.opcode == Opcode::kCustomCall) proto.set_custom_call_target(a.name);
  }
};

}  // namespace

void EncodeAttributes(const Instruction& instruction, std::span<const Shape> operands,
                      hlo::HloInstructionProto& proto) {
  std::visit(Encoder{instruction, operands, proto}, instruction.attributes);
}

}  // namespace minka
