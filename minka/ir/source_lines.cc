#include "minka/ir/source_lines.h"

#include <utility>

#include "absl/strings/match.h"
#include "fmt/format.h"
#include "minka/ir/text_cursor.h"

namespace minka {
namespace {

// Frames may call each other in a circle in a file that nobody checked.
constexpr int kMaxDepth = 1000;

template <typename List>
auto* Numbered(const List& list, int number) {
  return number >= 1 && number <= list.size() ? &list[number - 1] : nullptr;
}

std::string LineText(const std::string& file, int line) {
  return file.empty() || !IsUtf8(file) ? "" : fmt::format("{}:{}", file, line);
}

}  // namespace

SourceLines::SourceLines(const std::string& stack_frame_index) {
  if (!index_.ParseFromString(stack_frame_index)) index_.Clear();
}

std::string SourceLines::Of(const hlo::OpMetadata& metadata) const {
  std::string innermost;
  int frame_id = metadata.stack_frame_id();
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const auto* frame = Numbered(index_.stack_frames(), frame_id);
    const auto* location =
        frame ? Numbered(index_.file_locations(), frame->file_location_id()) : nullptr;
    const auto* file = location ? Numbered(index_.file_names(), location->file_name_id()) : nullptr;
    if (!file) break;
    std::string line = LineText(*file, location->line());
    if (!absl::StrContains(*file, "/site-packages/")) return line;
    if (innermost.empty()) innermost = std::move(line);
    frame_id = frame->parent_frame_id();
  }
  return !innermost.empty() ? innermost : LineText(metadata.source_file(), metadata.source_line());
}

}  // namespace minka
