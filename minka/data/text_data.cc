#include "minka/data/text_data.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/frontend/random.h"

namespace minka {
namespace {

constexpr size_t kMinBytes = 10000;

// Output of a command; empty if it fails.
std::string OutputOf(const char* command) {
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return {};
  std::string output;
  std::array<char, 1 << 16> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  return pclose(pipe) == 0 ? output : std::string();
}

// Every verse is a line that starts with its reference.
std::string WithoutFirstWords(std::string_view lines) {
  std::string text;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size() - 1);
    const std::string_view line = lines.substr(0, end + 1);
    const size_t space = line.find(' ');
    if (space != std::string_view::npos) text += line.substr(space + 1);
    lines.remove_prefix(end + 1);
  }
  return text;
}

absl::StatusOr<std::string> KingJamesText() {
  std::string text = WithoutFirstWords(OutputOf("bible -f 'Gen1:1-Rev22:21' 2>/dev/null"));
  if (text.size() < kMinBytes) {
    return NotFound(
        "the text to train on comes from the command `bible`, which is not here or gave nothing; "
        "install the package bible-kjv, or name a file with --data");
  }
  return text;
}

Literal Tokens(const std::vector<std::string_view>& rows, int64_t sequence) {
  std::vector<int32_t> tokens;
  for (const std::string_view row : rows) {
    for (const char byte : row) tokens.push_back(static_cast<unsigned char>(byte));
  }
  return {{ElementType::kS32, {static_cast<int64_t>(rows.size()), sequence}},
          std::make_shared<const std::string>(reinterpret_cast<const char*>(tokens.data()),
                                              tokens.size() * sizeof(int32_t))};
}

std::vector<Literal> BatchAt(std::string_view text, const std::vector<size_t>& places,
                             int64_t sequence) {
  std::vector<std::string_view> tokens, labels;
  for (const size_t place : places) {
    tokens.push_back(text.substr(place, sequence));
    labels.push_back(text.substr(place + 1, sequence));
  }
  return {Tokens(tokens, sequence), Tokens(labels, sequence)};
}

}  // namespace

absl::StatusOr<TextData> LoadText(const std::string& path) {
  TextData data;
  if (path.empty()) {
    data.source = "King James text of bible-kjv";
    ASSIGN_OR_RETURN(data.text, KingJamesText());
  } else {
    data.source = path;
    ASSIGN_OR_RETURN(data.text, ReadFile(path));
  }
  if (data.text.size() < kMinBytes) {
    return InvalidArgument("{} has {} bytes; training needs {} at least", path, data.text.size(),
                           kMinBytes);
  }
  data.num_training_bytes = data.text.size() - data.text.size() / 10;
  return data;
}

double BigramEntropy(std::string_view text) {
  std::vector<int64_t> pairs(256 * 256), firsts(256);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    ++pairs[first * 256 + static_cast<unsigned char>(text[i + 1])];
    ++firsts[first];
  }
  double entropy = 0;
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    if (pairs[pair] == 0) continue;
    const auto count = static_cast<double>(pairs[pair]);
    entropy -= count * std::log(count / static_cast<double>(firsts[pair / 256]));
  }
  return text.size() < 2 ? 0 : entropy / static_cast<double>(text.size() - 1);
}

std::vector<Literal> DrawTextBatch(std::string_view text, int64_t batch, int64_t sequence,
                                   uint64_t seed) {
  const uint64_t key = SiteKey(MixKey(seed), SiteConstant("text"));
  const uint64_t num_places = text.size() - static_cast<size_t>(sequence);
  std::vector<size_t> places;
  for (int64_t row = 0; row < batch; ++row) {
    const uint64_t bits = SquaresBits(static_cast<uint64_t>(row), key);
    places.push_back(bits * num_places >> 32);
  }
  return BatchAt(text, places, sequence);
}

std::vector<Literal> SpreadTextBatch(std::string_view text, int64_t batch, int64_t sequence,
                                     int64_t index, int64_t num_batches) {
  const size_t num_places = text.size() - static_cast<size_t>(sequence);
  std::vector<size_t> places;
  for (int64_t row = 0; row < batch; ++row) {
    const auto part = static_cast<size_t>(index * batch + row);
    places.push_back(num_places * part / static_cast<size_t>(num_batches * batch));
  }
  return BatchAt(text, places, sequence);
}

}  // namespace minka
