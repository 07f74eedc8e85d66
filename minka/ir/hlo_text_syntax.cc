#include "minka/ir/hlo_text_syntax.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "absl/strings/numbers.h"
#include "fmt/ranges.h"
#include "minka/ir/hlo_shape.h"

namespace minka {
namespace {

using Proto = hlo::HloInstructionProto;
using Int64s = google::protobuf::RepeatedField<int64_t>;

constexpr std::string_view kPrecisions[] = {"default", "high", "highest"};

std::optional<std::string> PrintIotaDimension(Proto& proto) {
  if (proto.dimensions_size() != 1) return std::nullopt;
  const int64_t dimension = proto.dimensions(0);
  proto.clear_dimensions();
  return fmt::format("{}", dimension);
}
absl::Status ParseIotaDimension(TextCursor& cursor, Proto& proto) {
  ASSIGN_OR_RETURN(const int64_t dimension, cursor.Integer());
  proto.add_dimensions(dimension);
  return absl::OkStatus();
}

// slice={[0:8:2], [1:3]}
std::optional<std::string> PrintSlice(Proto& proto) {
  std::vector<std::string> dims;
  for (const auto& dim : proto.slice_dimensions()) {
    dims.push_back(dim.stride() == 1
                       ? fmt::format("[{}:{}]", dim.start(), dim.limit())
                       : fmt::format("[{}:{}:{}]", dim.start(), dim.limit(), dim.stride()));
  }
  proto.clear_slice_dimensions();
  return fmt::format("{{{}}}", fmt::join(dims, ", "));
}
absl::Status ParseSlice(TextCursor& cursor, Proto& proto) {
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    auto* dim = proto.add_slice_dimensions();
    RETURN_IF_ERROR(cursor.Expect("["));
    ASSIGN_OR_RETURN(const int64_t start, cursor.Integer());
    RETURN_IF_ERROR(cursor.Expect(":"));
    ASSIGN_OR_RETURN(const int64_t limit, cursor.Integer());
    dim->set_start(start);
    dim->set_limit(limit);
    dim->set_stride(1);
    if (cursor.Consume(":")) {
      ASSIGN_OR_RETURN(const int64_t stride, cursor.Integer());
      dim->set_stride(stride);
    }
    RETURN_IF_ERROR(cursor.Expect("]"));
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

// "1_-1x0_0" -> {{1,-1},{0,0}}: numbers joined by '_', groups by 'x'. The cursor's Integer reads
// the sign and stops at both.
absl::StatusOr<std::vector<std::vector<int64_t>>> ParseGroupedNumbers(TextCursor& cursor) {
  std::vector<std::vector<int64_t>> groups;
  do {
    std::vector<int64_t>& group = groups.emplace_back();
    do {
      ASSIGN_OR_RETURN(const int64_t number, cursor.Integer());
      group.push_back(number);
    } while (cursor.Consume("_"));
  } while (cursor.Consume("x"));
  return groups;
}

// padding=low_high_interior x ..., interior only where one is not zero.
std::optional<std::string> PrintPadding(Proto& proto) {
  std::vector<std::string> dims;
  const auto& config = proto.padding_config().dimensions();
  const bool interior =
      std::ranges::any_of(config, [](const auto& dim) { return dim.interior_padding() != 0; });
  for (const auto& dim : config) {
    dims.push_back(fmt::format("{}_{}", dim.edge_padding_low(), dim.edge_padding_high()));
    if (interior) dims.back() += fmt::format("_{}", dim.interior_padding());
  }
  proto.clear_padding_config();
  if (dims.empty()) return std::nullopt;
  return fmt::format("{}", fmt::join(dims, "x"));
}
absl::Status ParsePadding(TextCursor& cursor, Proto& proto) {
  ASSIGN_OR_RETURN(const auto groups, ParseGroupedNumbers(cursor));
  for (const std::vector<int64_t>& group : groups) {
    if (group.size() != 2 && group.size() != 3) return cursor.Error("low_high_interior expected");
    auto* dim = proto.mutable_padding_config()->add_dimensions();
    dim->set_edge_padding_low(group[0]);
    dim->set_edge_padding_high(group[1]);
    if (group.size() == 3) dim->set_interior_padding(group[2]);
  }
  return absl::OkStatus();
}

// window={size=3x3 stride=2x1 pad=0_1x1_1 lhs_dilate=1x2 rhs_dilate=1x1 rhs_reversal=0x1}
std::optional<std::string> PrintWindow(Proto& proto) {
  const auto& dims = proto.window().dimensions();
  if (!proto.has_window()) return std::nullopt;
  std::string text;
  const auto add = [&](std::string_view name, int64_t usual, auto get) {
    if (std::ranges::all_of(dims, [&](const auto& dim) { return get(dim) == usual; })) return;
    std::vector<int64_t> numbers;
    for (const auto& dim : dims) numbers.push_back(get(dim));
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, fmt::join(numbers, "x"));
  };
  using Dim = hlo::Window::Dimension;
  add("size", std::numeric_limits<int64_t>::min(), [](const Dim& dim) { return dim.size(); });
  add("stride", 1, [](const Dim& dim) { return dim.stride(); });
  const bool padded = std::ranges::any_of(
      dims, [](const Dim& dim) { return dim.padding_low() != 0 || dim.padding_high() != 0; });
  if (padded) {
    std::vector<std::string> pads;
    for (const Dim& dim : dims) {
      pads.push_back(fmt::format("{}_{}", dim.padding_low(), dim.padding_high()));
    }
    text += fmt::format(" pad={}", fmt::join(pads, "x"));
  }
  add("lhs_dilate", 1, [](const Dim& dim) { return dim.base_dilation(); });
  add("rhs_dilate", 1, [](const Dim& dim) { return dim.window_dilation(); });
  add("rhs_reversal", 0, [](const Dim& dim) { return int64_t{dim.window_reversal()}; });
  proto.clear_window();
  return "{" + text + "}";
}

absl::Status SetWindowPart(const std::string& name, TextCursor& cursor,
                           const std::vector<std::vector<int64_t>>& groups, hlo::Window& window) {
  while (window.dimensions_size() < static_cast<int>(groups.size())) {
    auto* dim = window.add_dimensions();
    dim->set_stride(1);
    dim->set_window_dilation(1);
    dim->set_base_dilation(1);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    auto* dim = window.mutable_dimensions(static_cast<int>(i));
    if (groups[i].size() != (name == "pad" ? 2 : 1)) return cursor.Error("wrong '{}'", name);
    const int64_t value = groups[i][0];
    if (name == "size") {
      dim->set_size(value);
    } else if (name == "stride") {
      dim->set_stride(value);
    } else if (name == "pad") {
      dim->set_padding_low(value);
      dim->set_padding_high(groups[i][1]);
    } else if (name == "lhs_dilate") {
      dim->set_base_dilation(value);
    } else if (name == "rhs_dilate") {
      dim->set_window_dilation(value);
    } else if (name == "rhs_reversal") {
      dim->set_window_reversal(value != 0);
    } else {
      return cursor.Error("a window has no '{}'", name);
    }
  }
  return absl::OkStatus();
}

absl::Status ParseWindow(TextCursor& cursor, Proto& proto) {
  hlo::Window& window = *proto.mutable_window();
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    ASSIGN_OR_RETURN(const std::string name, cursor.Name());
    RETURN_IF_ERROR(cursor.Expect("="));
    ASSIGN_OR_RETURN(const auto groups, ParseGroupedNumbers(cursor));
    RETURN_IF_ERROR(SetWindowPart(name, cursor, groups, window));
  }
  return absl::OkStatus();
}

// One part of dim_labels: a letter or spatial number for each dimension; empty where the numbers
// are not each dimension once.
std::string LabelsOf(int64_t first, char first_label, int64_t second, char second_label,
                     const Int64s& spatial) {
  const int64_t rank = spatial.size() + 2;
  constexpr int64_t kMaxRank = 12;  // one digit per spatial dimension
  if (rank > kMaxRank) return "";
  std::string labels(rank, '?');
  const auto set = [&](int64_t dim, char label) {
    if (dim >= 0 && dim < rank) labels[dim] = label;
  };
  set(first, first_label);
  set(second, second_label);
  for (int i = 0; i < spatial.size(); ++i) set(spatial[i], static_cast<char>('0' + i));
  const bool complete = labels.find('?') == std::string::npos;
  return complete ? labels : "";
}

// dim_labels=b01f_01io->b01f: input, kernel, output.
std::optional<std::string> PrintDimLabels(Proto& proto) {
  if (!proto.has_convolution_dimension_numbers()) return std::nullopt;
  const auto& n = proto.convolution_dimension_numbers();
  const std::string input = LabelsOf(n.input_batch_dimension(), 'b', n.input_feature_dimension(),
                                     'f', n.input_spatial_dimensions());
  const std::string kernel =
      LabelsOf(n.kernel_input_feature_dimension(), 'i', n.kernel_output_feature_dimension(), 'o',
               n.kernel_spatial_dimensions());
  const std::string output = LabelsOf(n.output_batch_dimension(), 'b', n.output_feature_dimension(),
                                      'f', n.output_spatial_dimensions());
  if (input.empty() || kernel.empty() || output.empty()) return std::nullopt;
  proto.clear_convolution_dimension_numbers();
  return fmt::format("{}_{}->{}", input, kernel, output);
}

struct Labels {
  int64_t first = -1, second = -1;
  std::map<char, int64_t> spatial;
};

absl::StatusOr<Labels> ReadLabels(TextCursor& cursor, std::string_view text, char first,
                                  char second) {
  Labels labels;
  for (size_t dim = 0; dim < text.size(); ++dim) {
    const char label = text[dim];
    bool fresh = true;
    if (label == first || label == second) {
      int64_t& field = label == first ? labels.first : labels.second;
      fresh = field == -1;
      field = static_cast<int64_t>(dim);
    } else {
      fresh = label >= '0' && label <= '9' &&
              labels.spatial.emplace(label, static_cast<int64_t>(dim)).second;
    }
    if (!fresh) return cursor.Error("dim_labels '{}': '{}' is unknown or twice", text, label);
  }
  const bool dense =
      labels.spatial.empty() ||
      labels.spatial.rbegin()->first == static_cast<char>('0' + labels.spatial.size() - 1);
  if (labels.first < 0 || labels.second < 0 || !dense) {
    return cursor.Error("dim_labels '{}' are not complete", text);
  }
  return labels;
}

absl::Status ParseDimLabels(TextCursor& cursor, Proto& proto) {
  ASSIGN_OR_RETURN(const std::string operands, cursor.Name());
  RETURN_IF_ERROR(cursor.Expect("->"));
  ASSIGN_OR_RETURN(const std::string result, cursor.Name());
  const size_t split = operands.find('_');
  if (split == std::string::npos) return cursor.Error("'_' expected in '{}'", operands);
  ASSIGN_OR_RETURN(const Labels input, ReadLabels(cursor, operands.substr(0, split), 'b', 'f'));
  ASSIGN_OR_RETURN(const Labels kernel, ReadLabels(cursor, operands.substr(split + 1), 'i', 'o'));
  ASSIGN_OR_RETURN(const Labels output, ReadLabels(cursor, result, 'b', 'f'));
  auto& n = *proto.mutable_convolution_dimension_numbers();
  n.set_input_batch_dimension(input.first);
  n.set_input_feature_dimension(input.second);
  n.set_kernel_input_feature_dimension(kernel.first);
  n.set_kernel_output_feature_dimension(kernel.second);
  n.set_output_batch_dimension(output.first);
  n.set_output_feature_dimension(output.second);
  for (const auto& [label, dim] : input.spatial) n.add_input_spatial_dimensions(dim);
  for (const auto& [label, dim] : kernel.spatial) n.add_kernel_spatial_dimensions(dim);
  for (const auto& [label, dim] : output.spatial) n.add_output_spatial_dimensions(dim);
  return absl::OkStatus();
}

// replica_groups={{0,1},{2,3}}; the iota form [2,2]<=[4] and [2,2]<=[2,2]T(1,0) is read, too.
std::optional<std::string> PrintGroups(Proto& proto) {
  if (proto.collective_device_list().replica_groups_size() == 0) return std::nullopt;
  std::vector<std::string> groups;
  for (const auto& group : proto.collective_device_list().replica_groups()) {
    groups.push_back(fmt::format("{{{}}}", fmt::join(group.replica_ids(), ",")));
  }
  proto.mutable_collective_device_list()->clear_replica_groups();
  if (proto.collective_device_list().ByteSizeLong() == 0) proto.clear_collective_device_list();
  return fmt::format("{{{}}}", fmt::join(groups, ","));
}

absl::Status ParseBracketed(TextCursor& cursor, std::string_view open, std::string_view close,
                            std::vector<int64_t>& numbers) {
  RETURN_IF_ERROR(cursor.Expect(open));
  while (!cursor.Consume(close)) {
    ASSIGN_OR_RETURN(const int64_t number, cursor.Integer());
    numbers.push_back(number);
    if (!cursor.LooksAt(close)) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

absl::Status ParseIotaGroups(TextCursor& cursor, Proto& proto) {
  std::vector<int64_t> sizes;
  std::vector<int64_t> reshape;
  std::vector<int64_t> permutation;
  RETURN_IF_ERROR(ParseBracketed(cursor, "[", "]", sizes));
  RETURN_IF_ERROR(cursor.Expect("<="));
  RETURN_IF_ERROR(ParseBracketed(cursor, "[", "]", reshape));
  if (cursor.Consume("T")) RETURN_IF_ERROR(ParseBracketed(cursor, "(", ")", permutation));
  if (sizes.size() != 2) return cursor.Error("[groups,members] expected");
  auto* iota = proto.mutable_collective_device_list()->mutable_iota_replica_group_list();
  iota->set_num_replica_groups(sizes[0]);
  iota->set_num_devices_per_group(sizes[1]);
  for (const int64_t size : reshape) iota->add_iota_reshape_dims(size);
  for (const int64_t dim : permutation) {
    iota->add_iota_transpose_perm(static_cast<int32_t>(std::clamp<int64_t>(dim, -1, 1 << 20)));
  }
  return absl::OkStatus();
}

absl::Status ParseGroups(TextCursor& cursor, Proto& proto) {
  if (cursor.LooksAt("[")) return ParseIotaGroups(cursor, proto);
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    auto* group = proto.mutable_collective_device_list()->add_replica_groups();
    ASSIGN_OR_RETURN(const auto ids, ParseIntegerList(cursor));
    group->mutable_replica_ids()->Assign(ids.begin(), ids.end());
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

std::optional<std::string> PrintPairs(Proto& proto) {
  std::vector<std::string> pairs;
  for (const auto& pair : proto.source_target_pairs()) {
    pairs.push_back(fmt::format("{{{},{}}}", pair.source(), pair.target()));
  }
  proto.clear_source_target_pairs();
  return fmt::format("{{{}}}", fmt::join(pairs, ","));
}
absl::Status ParsePairs(TextCursor& cursor, Proto& proto) {
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    ASSIGN_OR_RETURN(const auto pair, ParseIntegerList(cursor));
    if (pair.size() != 2) return cursor.Error("{{source,target}} expected");
    auto* out = proto.add_source_target_pairs();
    out->set_source(pair[0]);
    out->set_target(pair[1]);
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

std::optional<std::string> PrintPrecision(Proto& proto) {
  const auto& levels = proto.precision_config().operand_precision();
  if (levels.empty()) return std::nullopt;
  std::vector<std::string_view> names;
  for (const int32_t level : levels) {
    if (level < 0 || level >= static_cast<int32_t>(std::size(kPrecisions))) return std::nullopt;
    names.push_back(kPrecisions[level]);
  }
  proto.mutable_precision_config()->clear_operand_precision();
  return fmt::format("{{{}}}", fmt::join(names, ","));
}
absl::Status ParsePrecision(TextCursor& cursor, Proto& proto) {
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    const std::string_view word = cursor.Word();
    const auto found = std::ranges::find(kPrecisions, word);
    if (found == std::end(kPrecisions)) return cursor.Error("'{}' is no precision", word);
    proto.mutable_precision_config()->add_operand_precision(
        static_cast<int32_t>(found - std::begin(kPrecisions)));
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

std::optional<std::string> PrintLayoutConstraints(Proto& proto) {
  if (!proto.constrain_layout()) return std::nullopt;
  std::vector<std::string> shapes;
  for (const hlo::ShapeProto& shape : proto.operand_shapes_with_layout()) {
    // Only shapes that the text says completely.
    const std::string& text = shapes.emplace_back(ShapeText(shape));
    TextCursor cursor(text);
    const auto parsed = ParseShape(cursor);
    if (!parsed.ok() || parsed->SerializeAsString() != shape.SerializeAsString()) {
      return std::nullopt;
    }
  }
  proto.clear_operand_shapes_with_layout();
  proto.clear_constrain_layout();
  return fmt::format("{{{}}}", fmt::join(shapes, ", "));
}
absl::Status ParseLayoutConstraints(TextCursor& cursor, Proto& proto) {
  proto.set_constrain_layout(true);
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    ASSIGN_OR_RETURN(*proto.add_operand_shapes_with_layout(), ParseShape(cursor));
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

std::optional<std::string> PrintEpsilon(Proto& proto) {
  const float epsilon = proto.epsilon();
  proto.clear_epsilon();
  return fmt::format("{}", epsilon);
}
absl::Status ParseEpsilon(TextCursor& cursor, Proto& proto) {
  const std::string word(cursor.Word());
  char* end = nullptr;
  proto.set_epsilon(std::strtof(word.c_str(), &end));
  if (word.empty() || *end != '\0') return cursor.Error("a number expected");
  return absl::OkStatus();
}

// metadata={op_name="..." source_file="..." source_line=1}; other keys are read and dropped. The
// line is read but not written.
std::optional<std::string> PrintMetadata(Proto& proto) {
  const std::string op_name = proto.metadata().op_name();
  if (op_name.empty()) return std::nullopt;
  proto.mutable_metadata()->clear_op_name();
  if (proto.metadata().ByteSizeLong() == 0) proto.clear_metadata();
  return fmt::format("{{op_name={}}}", Quoted(op_name));
}
absl::Status ParseMetadata(TextCursor& cursor, Proto& proto) {
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    ASSIGN_OR_RETURN(const std::string key, cursor.Name());
    RETURN_IF_ERROR(cursor.Expect("="));
    if (cursor.LooksAt("\"")) {
      ASSIGN_OR_RETURN(const std::string value, cursor.String());
      if (key == "op_name") proto.mutable_metadata()->set_op_name(value);
      if (key == "source_file") proto.mutable_metadata()->set_source_file(value);
    } else if (cursor.LooksAt("{")) {
      RETURN_IF_ERROR(cursor.Braced().status());
    } else {
      ASSIGN_OR_RETURN(const std::string value, cursor.Name());
      int32_t line = 0;
      if (key == "source_line" && absl::SimpleAtoi(value, &line)) {
        proto.mutable_metadata()->set_source_line(line);
      }
    }
  }
  return absl::OkStatus();
}

std::optional<std::string> PrintFrontend(Proto& proto) {
  if (proto.frontend_attributes().map().empty()) return std::nullopt;
  std::string text = FrontendAttributesText(proto.frontend_attributes());
  proto.clear_frontend_attributes();
  return text;
}
absl::Status ParseFrontend(TextCursor& cursor, Proto& proto) {
  return ParseFrontendAttributes(cursor, *proto.mutable_frontend_attributes());
}

constexpr SpecialField kSpecials[] = {
    {"iota", "iota_dimension", PrintIotaDimension, ParseIotaDimension},
    {"slice", "slice", PrintSlice, ParseSlice},
    {"pad", "padding", PrintPadding, ParsePadding},
    {"collective-permute", "source_target_pairs", PrintPairs, ParsePairs},
    {"collective-permute-start", "source_target_pairs", PrintPairs, ParsePairs},
    {"batch-norm-training", "epsilon", PrintEpsilon, ParseEpsilon},
    {"batch-norm-inference", "epsilon", PrintEpsilon, ParseEpsilon},
    {"batch-norm-grad", "epsilon", PrintEpsilon, ParseEpsilon},
    {"custom-call", "operand_layout_constraints", PrintLayoutConstraints, ParseLayoutConstraints},
    {kAnyOpcode, "window", PrintWindow, ParseWindow},
    {"convolution", "dim_labels", PrintDimLabels, ParseDimLabels},
    {kAnyOpcode, "replica_groups", PrintGroups, ParseGroups},
    {kAnyOpcode, "operand_precision", PrintPrecision, ParsePrecision},
};

constexpr SpecialField kTrailers[] = {
    {kAnyOpcode, "frontend_attributes", PrintFrontend, ParseFrontend},
    {kAnyOpcode, "metadata", PrintMetadata, ParseMetadata},
};

}  // namespace

std::span<const SpecialField> SpecialFields() { return kSpecials; }
std::span<const SpecialField> TrailingFields() { return kTrailers; }

absl::StatusOr<std::vector<int64_t>> ParseIntegerList(TextCursor& cursor) {
  std::vector<int64_t> list;
  RETURN_IF_ERROR(ParseBracketed(cursor, "{", "}", list));
  return list;
}

std::string FrontendAttributesText(const hlo::FrontendAttributes& attributes) {
  std::vector<std::string> entries;
  for (const auto& entry : attributes.map()) {
    const std::string key = IsWord(entry.key()) ? entry.key() : Quoted(entry.key());
    entries.push_back(fmt::format("{}={}", key, Quoted(entry.value())));
  }
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

absl::Status ParseFrontendAttributes(TextCursor& cursor, hlo::FrontendAttributes& attributes) {
  RETURN_IF_ERROR(cursor.Expect("{"));
  while (!cursor.Consume("}")) {
    ASSIGN_OR_RETURN(const std::string key, cursor.LooksAt("\"") ? cursor.String() : cursor.Name());
    RETURN_IF_ERROR(cursor.Expect("="));
    auto* entry = attributes.add_map();
    entry->set_key(key);
    std::string& value = *entry->mutable_value();
    if (cursor.LooksAt("{")) {
      ASSIGN_OR_RETURN(const std::string_view json, cursor.Braced());
      value = std::string(json);
    } else {
      ASSIGN_OR_RETURN(value, cursor.String());
    }
    if (!cursor.LooksAt("}")) RETURN_IF_ERROR(cursor.Expect(","));
  }
  return absl::OkStatus();
}

bool IsWord(const std::string& text) {
  TextCursor cursor(text);
  return !text.empty() && cursor.Word() == text;
}

}  // namespace minka
