#include "tests/support/mutation.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

namespace minka {
namespace {

constexpr const char* kOpcodes[] = {"add",     "dot",       "reduce",  "reshape",     "broadcast",
                                    "while",   "sort",      "gather",  "transpose",   "slice",
                                    "tuple",   "parameter", "topk",    "constant",    "convert",
                                    "compare", "select",    "scatter", "conditional", "unheard-of",
                                    "iota",    "map",       "call",    "concatenate"};

// One field of a message in protobuf's wire format.
struct WireField {
  uint64_t tag = 0;
  uint64_t number = 0;  // varints
  std::string bytes;    // everything else
  int wire_type() const { return static_cast<int>(tag & 7); }
};

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

std::optional<uint64_t> TakeVarint(const std::string& bytes, size_t& at) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes[at++]);
    number |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

void AppendVarint(uint64_t number, std::string& bytes) {
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  bytes += static_cast<char>(number);
}

// nullopt: the bytes are no message.
std::optional<std::vector<WireField>> Parse(const std::string& bytes) {
  std::vector<WireField> fields;
  for (size_t at = 0; at < bytes.size();) {
    WireField field;
    const auto tag = TakeVarint(bytes, at);
    if (!tag || *tag < 8) return std::nullopt;
    field.tag = *tag;
    uint64_t size = field.wire_type() == kFixed64 ? 8 : field.wire_type() == kFixed32 ? 4 : 0;
    if (field.wire_type() == kVarint || field.wire_type() == kBytes) {
      const auto number = TakeVarint(bytes, at);
      if (!number) return std::nullopt;
      (field.wire_type() == kVarint ? field.number : size) = *number;
    } else if (size == 0) {
      return std::nullopt;
    }
    if (size > bytes.size() - at) return std::nullopt;
    field.bytes = bytes.substr(at, size);
    at += size;
    fields.push_back(std::move(field));
  }
  return fields;
}

std::string Serialise(const std::vector<WireField>& fields) {
  std::string bytes;
  for (const WireField& field : fields) {
    AppendVarint(field.tag, bytes);
    if (field.wire_type() == kVarint) AppendVarint(field.number, bytes);
    if (field.wire_type() == kBytes) AppendVarint(field.bytes.size(), bytes);
    bytes += field.bytes;
  }
  return bytes;
}

uint64_t OtherNumber(std::mt19937_64& random, uint64_t number) {
  switch (random() % 6) {
    case 0:
      return number + 1;
    case 1:
      return number - 1;
    case 2:
      return number * 2;
    case 3:
      return random() % 36;
    case 4:
      return ~number + 1;
    default:
      return random() >> (random() % 60);
  }
}

// Bytes of a repeated field of numbers.
bool MutatePacked(std::mt19937_64& random, std::string& bytes) {
  std::vector<uint64_t> numbers;
  for (size_t at = 0; at < bytes.size();) {
    const auto number = TakeVarint(bytes, at);
    if (!number) return false;
    numbers.push_back(*number);
  }
  if (numbers.empty()) return false;
  uint64_t& chosen = numbers[random() % numbers.size()];
  chosen = OtherNumber(random, chosen);
  bytes.clear();
  for (const uint64_t number : numbers) AppendVarint(number, bytes);
  return true;
}

bool LooksLikeText(const std::string& bytes) {
  for (const char byte : bytes) {
    if (byte < 0x20) return false;
  }
  return bytes.size() > 1;
}

void MutateMessage(std::mt19937_64& random, std::string& bytes) {
  auto fields = Parse(bytes);
  if (!fields || fields->empty()) return MutateBytes(random, bytes);
  const size_t index = random() % fields->size();
  WireField& field = (*fields)[index];
  const auto kind = random() % 32;
  if (kind == 0) {
    fields->erase(fields->begin() + static_cast<std::ptrdiff_t>(index));
  } else if (kind == 1) {
    const WireField copy = field;
    fields->push_back(copy);
  } else if (field.wire_type() == kVarint) {
    field.number = OtherNumber(random, field.number);
  } else if (field.wire_type() == kBytes && LooksLikeText(field.bytes)) {
    if (random() % 2 == 0) {
      field.bytes = kOpcodes[random() % std::size(kOpcodes)];
    } else {
      MutateBytes(random, field.bytes);
    }
  } else if (field.wire_type() == kBytes && Parse(field.bytes)) {
    MutateMessage(random, field.bytes);
  } else if (!MutatePacked(random, field.bytes)) {
    MutateBytes(random, field.bytes);
  }
  bytes = Serialise(*fields);
}

}  // namespace

void MutateBytes(std::mt19937_64& random, std::string& bytes) {
  if (bytes.empty()) return;
  const size_t position = random() % bytes.size();
  switch (random() % 5) {
    case 0:  // flip a bit
      bytes[position] = static_cast<char>(bytes[position] ^ (1 << random() % 8));
      break;
    case 1:  // a small or an extreme number
      bytes[position] = static_cast<char>(random() % 2 == 0 ? random() % 20 : 255);
      break;
    case 2:  // copy a piece elsewhere, over what is there
      for (size_t i = 0, from = random() % bytes.size(); i < 1 + random() % 16; ++i) {
        if (position + i < bytes.size() && from + i < bytes.size()) {
          bytes[position + i] = bytes[from + i];
        }
      }
      break;
    case 3:  // insert a piece
      bytes.insert(position, bytes.substr(random() % bytes.size(), random() % 16));
      break;
    default:  // remove a piece
      bytes.erase(position, random() % 4);
      break;
  }
}

void MutateFields(std::mt19937_64& random, std::string& bytes) { MutateMessage(random, bytes); }

}  // namespace minka
