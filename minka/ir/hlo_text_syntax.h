// Attributes of HLO text that have a syntax of their own: windows, slices, groups, metadata.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/text_cursor.h"

namespace minka {

constexpr std::string_view kAnyOpcode;

// The field that an attribute of an opcode (or of kAnyOpcode) stands for. `print` returns nullopt
// where the field is not set or cannot be written in text, else clears the field.
struct SpecialField {
  std::string_view opcode, name;
  std::optional<std::string> (*print)(hlo::HloInstructionProto&);
  absl::Status (*parse)(TextCursor&, hlo::HloInstructionProto&);
};

// To be looked up before other fields: iota has its dimension under another name.
std::span<const SpecialField> SpecialFields();
// Last in the line, as XLA prints them.
std::span<const SpecialField> TrailingFields();

// {key="value"}; a value that XLA printed as {JSON} is read, too.
std::string FrontendAttributesText(const hlo::FrontendAttributes& attributes);
absl::Status ParseFrontendAttributes(TextCursor& cursor, hlo::FrontendAttributes& attributes);

// "{1,2}".
absl::StatusOr<std::vector<int64_t>> ParseIntegerList(TextCursor& cursor);

// May the text stand without quotes?
bool IsWord(const std::string& text);

}  // namespace minka
