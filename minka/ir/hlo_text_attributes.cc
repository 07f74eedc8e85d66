#include "minka/ir/hlo_text_attributes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "fmt/ranges.h"
#include "minka/ir/hlo_text_syntax.h"

namespace minka {
namespace {

using Proto = hlo::HloInstructionProto;
using Int64s = google::protobuf::RepeatedField<int64_t>;

bool OpcodeFits(std::string_view wanted, const Proto& proto) {
  return wanted == kAnyOpcode || wanted == proto.opcode();
}

// Lists of integers, "{1,2}". `always`: printed when empty, too, since XLA's parser asks for them.
struct ListField {
  std::string_view opcode, name;
  bool always;
  Int64s* (*get)(Proto&);
};

constexpr ListField kLists[] = {
    {"broadcast", "dimensions", true, [](Proto& p) { return p.mutable_dimensions(); }},
    {"reduce", "dimensions", true, [](Proto& p) { return p.mutable_dimensions(); }},
    {"transpose", "dimensions", true, [](Proto& p) { return p.mutable_dimensions(); }},
    {"reverse", "dimensions", true, [](Proto& p) { return p.mutable_dimensions(); }},
    {"dynamic-slice", "dynamic_slice_sizes", true,
     [](Proto& p) { return p.mutable_dynamic_slice_sizes(); }},
    {"gather", "offset_dims", true,
     [](Proto& p) { return p.mutable_gather_dimension_numbers()->mutable_offset_dims(); }},
    {"gather", "collapsed_slice_dims", true,
     [](Proto& p) { return p.mutable_gather_dimension_numbers()->mutable_collapsed_slice_dims(); }},
    {"gather", "start_index_map", true,
     [](Proto& p) { return p.mutable_gather_dimension_numbers()->mutable_start_index_map(); }},
    {"gather", "operand_batching_dims", false,
     [](Proto& p) {
       return p.mutable_gather_dimension_numbers()->mutable_operand_batching_dims();
     }},
    {"gather", "start_indices_batching_dims", false,
     [](Proto& p) {
       return p.mutable_gather_dimension_numbers()->mutable_start_indices_batching_dims();
     }},
    {"gather", "slice_sizes", true, [](Proto& p) { return p.mutable_gather_slice_sizes(); }},
    {"scatter", "update_window_dims", true,
     [](Proto& p) { return p.mutable_scatter_dimension_numbers()->mutable_update_window_dims(); }},
    {"scatter", "inserted_window_dims", true,
     [](Proto& p) {
       return p.mutable_scatter_dimension_numbers()->mutable_inserted_window_dims();
     }},
    {"scatter", "scatter_dims_to_operand_dims", true,
     [](Proto& p) {
       return p.mutable_scatter_dimension_numbers()->mutable_scatter_dims_to_operand_dims();
     }},
    {"scatter", "input_batching_dims", false,
     [](Proto& p) { return p.mutable_scatter_dimension_numbers()->mutable_input_batching_dims(); }},
    {"scatter", "scatter_indices_batching_dims", false,
     [](Proto& p) {
       return p.mutable_scatter_dimension_numbers()->mutable_scatter_indices_batching_dims();
     }},
    {"dot", "lhs_batch_dims", false,
     [](Proto& p) { return p.mutable_dot_dimension_numbers()->mutable_lhs_batch_dimensions(); }},
    {"dot", "lhs_contracting_dims", false,
     [](Proto& p) {
       return p.mutable_dot_dimension_numbers()->mutable_lhs_contracting_dimensions();
     }},
    {"dot", "rhs_batch_dims", false,
     [](Proto& p) { return p.mutable_dot_dimension_numbers()->mutable_rhs_batch_dimensions(); }},
    {"dot", "rhs_contracting_dims", false,
     [](Proto& p) {
       return p.mutable_dot_dimension_numbers()->mutable_rhs_contracting_dimensions();
     }},
    {"fft", "fft_length", true, [](Proto& p) { return p.mutable_fft_length(); }},
    {kAnyOpcode, "dimensions", false, [](Proto& p) { return p.mutable_dimensions(); }},
};

// Integers. `always`: printed when zero, too.
struct IntegerField {
  std::string_view opcode, name;
  bool always;
  int64_t (*get)(const Proto&);
  void (*set)(Proto&, int64_t);
};

constexpr IntegerField kIntegers[] = {
    {"get-tuple-element", "index", true, [](const Proto& p) { return p.tuple_index(); },
     [](Proto& p, int64_t value) { p.set_tuple_index(value); }},
    {"gather", "index_vector_dim", true,
     [](const Proto& p) { return p.gather_dimension_numbers().index_vector_dim(); },
     [](Proto& p, int64_t value) {
       p.mutable_gather_dimension_numbers()->set_index_vector_dim(value);
     }},
    {"scatter", "index_vector_dim", true,
     [](const Proto& p) { return p.scatter_dimension_numbers().index_vector_dim(); },
     [](Proto& p, int64_t value) {
       p.mutable_scatter_dimension_numbers()->set_index_vector_dim(value);
     }},
    {"reduce-precision", "exponent_bits", true,
     [](const Proto& p) -> int64_t { return p.exponent_bits(); },
     [](Proto& p, int64_t value) { p.set_exponent_bits(static_cast<int32_t>(value)); }},
    {"reduce-precision", "mantissa_bits", true,
     [](const Proto& p) -> int64_t { return p.mantissa_bits(); },
     [](Proto& p, int64_t value) { p.set_mantissa_bits(static_cast<int32_t>(value)); }},
    {"topk", "k", true, [](const Proto& p) { return p.k(); },
     [](Proto& p, int64_t value) { p.set_k(value); }},
    {"batch-norm-training", "feature_index", true, [](const Proto& p) { return p.feature_index(); },
     [](Proto& p, int64_t value) { p.set_feature_index(value); }},
    {"batch-norm-inference", "feature_index", true,
     [](const Proto& p) { return p.feature_index(); },
     [](Proto& p, int64_t value) { p.set_feature_index(value); }},
    {"batch-norm-grad", "feature_index", true, [](const Proto& p) { return p.feature_index(); },
     [](Proto& p, int64_t value) { p.set_feature_index(value); }},
    {kAnyOpcode, "channel_id", false, [](const Proto& p) { return p.channel_id(); },
     [](Proto& p, int64_t value) { p.set_channel_id(value); }},
    {kAnyOpcode, "feature_group_count", false,
     [](const Proto& p) { return p.feature_group_count(); },
     [](Proto& p, int64_t value) { p.set_feature_group_count(value); }},
    {kAnyOpcode, "batch_group_count", false, [](const Proto& p) { return p.batch_group_count(); },
     [](Proto& p, int64_t value) { p.set_batch_group_count(value); }},
};

struct FlagField {
  std::string_view opcode, name;
  bool always;
  bool (*get)(const Proto&);
  void (*set)(Proto&, bool);
};

constexpr FlagField kFlags[] = {
    {"topk", "largest", true, [](const Proto& p) { return p.largest(); },
     [](Proto& p, bool value) { p.set_largest(value); }},
    {"cholesky", "lower", false, [](const Proto& p) { return p.cholesky_options().lower(); },
     [](Proto& p, bool value) { p.mutable_cholesky_options()->set_lower(value); }},
    {"triangular-solve", "left_side", false,
     [](const Proto& p) { return p.triangular_solve_options().left_side(); },
     [](Proto& p, bool value) { p.mutable_triangular_solve_options()->set_left_side(value); }},
    {"triangular-solve", "lower", false,
     [](const Proto& p) { return p.triangular_solve_options().lower(); },
     [](Proto& p, bool value) { p.mutable_triangular_solve_options()->set_lower(value); }},
    {"triangular-solve", "unit_diagonal", false,
     [](const Proto& p) { return p.triangular_solve_options().unit_diagonal(); },
     [](Proto& p, bool value) { p.mutable_triangular_solve_options()->set_unit_diagonal(value); }},
    {kAnyOpcode, "is_stable", false, [](const Proto& p) { return p.is_stable(); },
     [](Proto& p, bool value) { p.set_is_stable(value); }},
    {kAnyOpcode, "indices_are_sorted", false, [](const Proto& p) { return p.indices_are_sorted(); },
     [](Proto& p, bool value) { p.set_indices_are_sorted(value); }},
    {kAnyOpcode, "unique_indices", false, [](const Proto& p) { return p.unique_indices(); },
     [](Proto& p, bool value) { p.set_unique_indices(value); }},
    {kAnyOpcode, "constrain_layout", false, [](const Proto& p) { return p.constrain_layout(); },
     [](Proto& p, bool value) { p.set_constrain_layout(value); }},
    {kAnyOpcode, "use_global_device_ids", false,
     [](const Proto& p) { return p.use_global_device_ids(); },
     [](Proto& p, bool value) { p.set_use_global_device_ids(value); }},
    {kAnyOpcode, "custom_call_has_side_effect", false,
     [](const Proto& p) { return p.custom_call_has_side_effect(); },
     [](Proto& p, bool value) { p.set_custom_call_has_side_effect(value); }},
};

// Enumerations by the names of their values; the number is the position.
struct EnumField {
  std::string_view opcode, name;
  std::span<const std::string_view> values;
  bool always;
  int32_t (*get)(const Proto&);
  void (*set)(Proto&, int32_t);
};

constexpr std::string_view kDistributions[] = {"rng_invalid", "rng_uniform", "rng_normal"};
constexpr std::string_view kRngAlgorithms[] = {"rng_default", "rng_three_fry", "rng_philox"};
constexpr std::string_view kFftTypes[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
constexpr std::string_view kTransposes[] = {"TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE",
                                            "ADJOINT"};
constexpr std::string_view kApiVersions[] = {
    "API_VERSION_UNSPECIFIED", "API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING",
    "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI"};
constexpr std::string_view kAlgorithms[] = {"unset",
                                            "dot_any_f8_any_f8_f32",
                                            "dot_any_f8_any_f8_f32_fast_accum",
                                            "dot_f16_f16_f16",
                                            "dot_f16_f16_f32",
                                            "dot_bf16_bf16_bf16",
                                            "dot_bf16_bf16_f32",
                                            "dot_bf16_bf16_f32_x3",
                                            "dot_bf16_bf16_f32_x6",
                                            "dot_tf32_tf32_f32",
                                            "dot_tf32_tf32_f32_x3",
                                            "dot_f32_f32_f32",
                                            "dot_f64_f64_f64",
                                            "dot_bf16_bf16_f32_x9"};

constexpr EnumField kEnums[] = {
    {"rng", "distribution", kDistributions, true, [](const Proto& p) { return p.distribution(); },
     [](Proto& p, int32_t value) { p.set_distribution(value); }},
    {"rng-bit-generator", "algorithm", kRngAlgorithms, true,
     [](const Proto& p) { return p.rng_algorithm(); },
     [](Proto& p, int32_t value) { p.set_rng_algorithm(value); }},
    {"fft", "fft_type", kFftTypes, true, [](const Proto& p) { return p.fft_type(); },
     [](Proto& p, int32_t value) { p.set_fft_type(value); }},
    {"triangular-solve", "transpose_a", kTransposes, false,
     [](const Proto& p) { return p.triangular_solve_options().transpose_a(); },
     [](Proto& p, int32_t value) { p.mutable_triangular_solve_options()->set_transpose_a(value); }},
    {"custom-call", "api_version", kApiVersions, false,
     [](const Proto& p) { return p.custom_call_api_version(); },
     [](Proto& p, int32_t value) { p.set_custom_call_api_version(value); }},
    {"dot", "algorithm", kAlgorithms, false,
     [](const Proto& p) { return p.precision_config().algorithm(); },
     [](Proto& p, int32_t value) { p.mutable_precision_config()->set_algorithm(value); }},
};

// Strings; printed as words or in quotes.
struct StringField {
  std::string_view opcode, name;
  bool quoted;
  std::string* (*get)(Proto&);
};

constexpr StringField kStrings[] = {
    {"compare", "direction", false, [](Proto& p) { return p.mutable_comparison_direction(); }},
    {"compare", "type", false, [](Proto& p) { return p.mutable_comparison_type(); }},
    {"fusion", "kind", false, [](Proto& p) { return p.mutable_fusion_kind(); }},
    {"custom-call", "custom_call_target", true,
     [](Proto& p) { return p.mutable_custom_call_target(); }},
    {kAnyOpcode, "backend_config", true, [](Proto& p) { return p.mutable_backend_config(); }},
};

void TakeSpecials(std::span<const SpecialField> fields, Proto& proto,
                  std::vector<TextAttribute>& taken) {
  for (const SpecialField& field : fields) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    if (auto text = field.print(proto)) taken.push_back({std::string(field.name), *text});
  }
}

void TakeLists(Proto& proto, std::vector<TextAttribute>& taken) {
  for (const ListField& field : kLists) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    Int64s& list = *field.get(proto);
    if (list.empty() && !field.always) continue;
    // The entry for any opcode comes after the one of this opcode and finds its list empty.
    taken.push_back({std::string(field.name), fmt::format("{{{}}}", fmt::join(list, ","))});
    list.Clear();
  }
}

void TakeScalars(Proto& proto, std::vector<TextAttribute>& taken) {
  for (const IntegerField& field : kIntegers) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    const int64_t value = field.get(proto);
    if (value == 0 && !field.always) continue;
    taken.push_back({std::string(field.name), fmt::format("{}", value)});
    field.set(proto, 0);
  }
  for (const FlagField& field : kFlags) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    const bool value = field.get(proto);
    if (!value && !field.always) continue;
    taken.push_back({std::string(field.name), value ? "true" : "false"});
    field.set(proto, false);
  }
  for (const EnumField& field : kEnums) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    const int32_t value = field.get(proto);
    const bool named = value >= 0 && value < static_cast<int32_t>(field.values.size());
    if ((value == 0 && !field.always) || !named) continue;
    taken.push_back({std::string(field.name), std::string(field.values[value])});
    field.set(proto, 0);
  }
  for (const StringField& field : kStrings) {
    if (!OpcodeFits(field.opcode, proto)) continue;
    std::string& value = *field.get(proto);
    if (value.empty() || (!field.quoted && !IsWord(value))) continue;
    taken.push_back({std::string(field.name), field.quoted ? Quoted(value) : value});
    value.clear();
  }
}

// Messages whose fields were all taken must not stay as empty ones.
void ClearEmptyMessages(Proto& proto) {
  if (proto.dot_dimension_numbers().ByteSizeLong() == 0) proto.clear_dot_dimension_numbers();
  if (proto.gather_dimension_numbers().ByteSizeLong() == 0) {
    proto.clear_gather_dimension_numbers();
  }
  if (proto.scatter_dimension_numbers().ByteSizeLong() == 0) {
    proto.clear_scatter_dimension_numbers();
  }
  if (proto.precision_config().ByteSizeLong() == 0) proto.clear_precision_config();
  if (proto.cholesky_options().ByteSizeLong() == 0) proto.clear_cholesky_options();
  if (proto.triangular_solve_options().ByteSizeLong() == 0) {
    proto.clear_triangular_solve_options();
  }
}

template <typename Field>
const Field* FindField(std::span<const Field> fields, std::string_view name, const Proto& proto) {
  for (const Field& field : fields) {
    if (field.name == name && OpcodeFits(field.opcode, proto)) return &field;
  }
  return nullptr;
}

absl::Status ParseEnum(const EnumField& field, TextCursor& cursor, Proto& proto) {
  const std::string_view word = cursor.Word();
  const auto found = std::ranges::find(field.values, word);
  if (found == field.values.end()) return cursor.Error("'{}' is no {}", word, field.name);
  field.set(proto, static_cast<int32_t>(found - field.values.begin()));
  return absl::OkStatus();
}

absl::Status ParseStringField(const StringField& field, TextCursor& cursor, Proto& proto) {
  if (!field.quoted) {
    ASSIGN_OR_RETURN(*field.get(proto), cursor.Name());
  } else if (cursor.LooksAt("{")) {  // backend_config as JSON
    ASSIGN_OR_RETURN(const std::string_view json, cursor.Braced());
    *field.get(proto) = std::string(json);
  } else {
    ASSIGN_OR_RETURN(*field.get(proto), cursor.String());
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TextAttribute> TakeTextAttributes(Proto& proto) {
  std::vector<TextAttribute> taken;
  TakeSpecials(SpecialFields(), proto, taken);
  TakeLists(proto, taken);
  TakeScalars(proto, taken);
  TakeSpecials(TrailingFields(), proto, taken);
  ClearEmptyMessages(proto);
  return taken;
}

absl::StatusOr<bool> ParseTextAttribute(std::string_view name, TextCursor& cursor, Proto& proto) {
  for (const std::span<const SpecialField> fields : {SpecialFields(), TrailingFields()}) {
    if (const auto* field = FindField(fields, name, proto)) {
      RETURN_IF_ERROR(field->parse(cursor, proto));
      return true;
    }
  }
  if (const auto* field = FindField(std::span<const ListField>(kLists), name, proto)) {
    ASSIGN_OR_RETURN(const auto list, ParseIntegerList(cursor));
    field->get(proto)->Assign(list.begin(), list.end());
  } else if (const auto* field = FindField(std::span<const IntegerField>(kIntegers), name, proto)) {
    ASSIGN_OR_RETURN(const int64_t value, cursor.Integer());
    field->set(proto, value);
  } else if (const auto* field = FindField(std::span<const FlagField>(kFlags), name, proto)) {
    ASSIGN_OR_RETURN(const bool value, cursor.Boolean());
    field->set(proto, value);
  } else if (const auto* field = FindField(std::span<const EnumField>(kEnums), name, proto)) {
    RETURN_IF_ERROR(ParseEnum(*field, cursor, proto));
  } else if (const auto* field = FindField(std::span<const StringField>(kStrings), name, proto)) {
    RETURN_IF_ERROR(ParseStringField(*field, cursor, proto));
  } else {
    return false;
  }
  return true;
}

CalledAttributes CalledAttributesOf(const std::string& opcode, int num_called, bool by_predicate) {
  if (num_called == 2) {
    if (opcode == "while") return {.names = {"body", "condition"}};
    if (opcode == "select-and-scatter") return {.names = {"select", "scatter"}};
    if (opcode == "conditional" && by_predicate) {
      return {.names = {"true_computation", "false_computation"}};
    }
  }
  if (opcode == "conditional") return {.names = {"branch_computations"}, .is_list = true};
  if (num_called == 1 && opcode == "fusion") return {.names = {"calls"}};
  if (num_called == 1 && opcode != "custom-call") return {.names = {"to_apply"}};
  return {.names = {"called_computations"}, .is_list = true};
}

std::optional<int> CalledPosition(std::string_view name) {
  for (const std::string_view first : {"body", "select", "true_computation", "calls", "to_apply"}) {
    if (name == first) return 0;
  }
  for (const std::string_view second : {"condition", "scatter", "false_computation"}) {
    if (name == second) return 1;
  }
  return std::nullopt;
}

}  // namespace minka
