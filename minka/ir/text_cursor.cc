#include "minka/ir/text_cursor.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace minka {
namespace {

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
}

// Length of the UTF-8 sequence that `text` starts with; 0 where it is none (RFC 3629).
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return 1;
  size_t length = 0;
  uint32_t code = 0;
  uint32_t smallest = 0;
  if ((byte(0) & 0xe0) == 0xc0) {
    length = 2, code = byte(0) & 0x1f, smallest = 0x80;
  } else if ((byte(0) & 0xf0) == 0xe0) {
    length = 3, code = byte(0) & 0x0f, smallest = 0x800;
  } else if ((byte(0) & 0xf8) == 0xf0) {
    length = 4, code = byte(0) & 0x07, smallest = 0x10000;
  }
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < smallest || code > 0x10ffff || surrogate ? 0 : length;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void TextCursor::SkipBlanks() {
  while (position_ < text_.size()) {
    const std::string_view rest = text_.substr(position_);
    if (std::isspace(static_cast<unsigned char>(rest[0])) != 0) {
      ++position_;
    } else if (rest.starts_with("/*")) {
      const size_t end = rest.find("*/", 2);
      position_ = end == std::string_view::npos ? text_.size() : position_ + end + 2;
    } else if (rest.starts_with("//")) {
      const size_t end = rest.find('\n');
      position_ = end == std::string_view::npos ? text_.size() : position_ + end;
    } else {
      return;
    }
  }
}

bool TextCursor::AtEnd() {
  SkipBlanks();
  return position_ == text_.size();
}

char TextCursor::Peek() { return AtEnd() ? '\0' : text_[position_]; }

bool TextCursor::LooksAt(std::string_view token) {
  SkipBlanks();
  return text_.substr(position_).starts_with(token);
}

bool TextCursor::Consume(std::string_view token) {
  if (!LooksAt(token)) return false;
  position_ += token.size();
  return true;
}

absl::Status TextCursor::Expect(std::string_view token) {
  if (Consume(token)) return absl::OkStatus();
  return Error("'{}' expected", token);
}

std::string_view TextCursor::Word() {
  SkipBlanks();
  const size_t start = position_;
  while (position_ < text_.size() && IsWordCharacter(text_[position_])) {
    // "->" after a word is the arrow of a signature.
    if (text_.substr(position_).starts_with("->")) break;
    ++position_;
  }
  return text_.substr(start, position_ - start);
}

absl::StatusOr<std::string> TextCursor::Name() {
  const std::string_view word = Word();
  if (word.empty()) return Error("a name expected");
  return std::string(word);
}

absl::StatusOr<int64_t> TextCursor::Integer() {
  SkipBlanks();
  const std::string_view rest = text_.substr(position_);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc()) return Error("an integer of 64 bits expected");
  position_ += end - rest.data();
  return value;
}

absl::StatusOr<bool> TextCursor::Boolean() {
  if (Consume("true")) return true;
  if (Consume("false")) return false;
  return Error("true or false expected");
}

absl::Status TextCursor::AppendEscape(std::string& bytes) {
  if (position_ >= text_.size()) return Error("the string has no end");
  const char c = text_[position_++];
  constexpr std::string_view kLetters = "nrtabfv";
  constexpr std::string_view kMeanings = "\n\r\t\a\b\f\v";
  const bool octal = c >= '0' && c <= '7';
  if (octal) {
    int value = c - '0';
    for (int i = 0; i < 2 && position_ < text_.size(); ++i) {
      if (text_[position_] < '0' || text_[position_] > '7') break;
      value = value * 8 + (text_[position_++] - '0');
    }
    if (value > 0xff) return Error("the escape is no byte");
    bytes.push_back(static_cast<char>(value));
  } else if (c == 'x') {
    if (position_ + 2 > text_.size()) return Error("the string has no end");
    const int high = HexDigit(text_[position_]);
    const int low = HexDigit(text_[position_ + 1]);
    if (high < 0 || low < 0) return Error("two hexadecimal digits expected");
    bytes.push_back(static_cast<char>(high * 16 + low));
    position_ += 2;
  } else if (const size_t letter = kLetters.find(c); letter != std::string_view::npos) {
    bytes.push_back(kMeanings[letter]);
  } else {
    bytes.push_back(c);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextCursor::String() {
  RETURN_IF_ERROR(Expect("\""));
  std::string bytes;
  while (position_ < text_.size() && text_[position_] != '"') {
    const char c = text_[position_++];
    if (c != '\\') {
      bytes.push_back(c);
      continue;
    }
    RETURN_IF_ERROR(AppendEscape(bytes));
  }
  if (position_ == text_.size()) return Error("the string has no end");
  ++position_;
  if (!IsUtf8(bytes)) return Error("the string is not UTF-8");
  return bytes;
}

absl::StatusOr<std::string_view> TextCursor::Braced() {
  SkipBlanks();
  const size_t start = position_;
  int depth = 0;
  bool in_string = false;
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (in_string) {
      if (c == '\\') ++position_;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth > 0) continue;
    if (c != '}') break;
    ++position_;
    return text_.substr(start, position_ - start);
  }
  position_ = start;
  return Error("'{{' and its '}}' expected");
}

absl::Status TextCursor::WithPlace(const std::string& message) const {
  const std::string_view before = text_.substr(0, std::min(position_, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return InvalidArgument("line {}, column {}: {}", line, before.size() - line_start + 1, message);
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '"':
      case '\\':
      case '\'':
        quoted += '\\';
        quoted += c;
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20 || static_cast<uint8_t>(c) >= 0x7f) {
          quoted += fmt::format("\\{:03o}", static_cast<uint8_t>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + '"';
}

}  // namespace minka
