// Attributes in HLO text: tables that the printer and the parser share, so that what one writes
// the other reads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/hlo.pb.h"
#include "minka/ir/text_cursor.h"

namespace minka {

struct TextAttribute {
  std::string name;
  std::string value;
};

// The attributes of an instruction as text; their fields are cleared in `proto`. Called
// computations, names and the literal are the caller's.
std::vector<TextAttribute> TakeTextAttributes(hlo::HloInstructionProto& proto);

// Reads the value of attribute `name` (the cursor is behind its '=') into the instruction, whose
// opcode is set. False: no such attribute, nothing was read.
absl::StatusOr<bool> ParseTextAttribute(std::string_view name, TextCursor& cursor,
                                        hlo::HloInstructionProto& proto);

// The attributes that name the called computations of an opcode, in the order of the proto; or one
// attribute with the list of all.
struct CalledAttributes {
  std::vector<std::string> names;
  bool is_list = false;
};
CalledAttributes CalledAttributesOf(const std::string& opcode, int num_called, bool by_predicate);
// Which called computation the attribute names; nullopt: none, or a list.
std::optional<int> CalledPosition(std::string_view name);

}  // namespace minka
