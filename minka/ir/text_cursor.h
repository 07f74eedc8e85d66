// A position in a text, for hand-written parsers: skips blanks and comments, and its errors name
// line and column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "minka/base/status.h"

namespace minka {

// Functions first skip blanks, // and /* */ comments.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  bool AtEnd();
  char Peek();  // '\0' at the end
  bool LooksAt(std::string_view token);
  // The same without skipping blanks.
  bool Touches(std::string_view token) const { return text_.substr(position_).starts_with(token); }
  // Steps over `token` where it is next.
  bool Consume(std::string_view token);
  absl::Status Expect(std::string_view token);

  // Letters, digits, '_', '.', '-'; empty where none is next.
  std::string_view Word();
  absl::StatusOr<std::string> Name();    // a word that is not empty
  absl::StatusOr<int64_t> Integer();     // decimal, with sign
  absl::StatusOr<bool> Boolean();        // true or false
  absl::StatusOr<std::string> String();  // in double quotes with C escapes; must be UTF-8
  // From '{' to the brace that closes it, both included; braces in strings do not count.
  absl::StatusOr<std::string_view> Braced();

  size_t position() const { return position_; }
  void set_position(size_t position) { position_ = position; }

  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return WithPlace(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void SkipBlanks();
  absl::Status WithPlace(const std::string& message) const;
  absl::Status AppendEscape(std::string& bytes);
  std::string_view text_;
  size_t position_ = 0;
};

bool IsUtf8(std::string_view text);

// `text` in double quotes with C escapes; what String() reads back.
std::string Quoted(std::string_view text);

}  // namespace minka
