// The handwritten digits of scikit-learn's package (1797 images of 8x8 pixels, from E. Alpaydin and
// C. Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998), to train image networks on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/frontend/trace.h"
#include "minka/ir/literal.h"

namespace minka {

inline constexpr int64_t kDigitPixels = 8;  // per row and column
inline constexpr int64_t kNumDigits = 10;

struct DigitsData {
  std::string source;           // a file
  std::string hash;             // of its contents
  std::vector<float> pixels;    // image by image, row by row, in [-1, 1]
  std::vector<int32_t> labels;  // per image
  int64_t num_training = 0;     // the rest, a tenth, is held out
};

// A file of lines with 64 numbers in [0, 16] and a label, gzipped or not; for an empty path
// sklearn/datasets/data/digits.csv.gz of the build tree's virtual environment. Errors name the
// line, or say how to get the file.
absl::StatusOr<DigitsData> LoadDigits(const std::string& path);

// Can batches for these inputs be made of digits?
//   images, labels                           classification
//   images, timesteps, condition, targets    denoising (Ho et al. 2020, arXiv:2006.11239, with the
//     cosine schedule of Nichol and Dhariwal 2021, arXiv:2102.09672, of 1000 steps): images are
//     digits with noise, targets the noise, every vector of the condition marks the label
// The images' sizes are multiples of 8: pixels are repeated, and channels are equal.
bool ReadsDigits(const std::vector<BatchInput>& inputs);

// Values of the inputs, in their order, from images drawn by the seed; equal for equal arguments.
std::vector<Literal> DrawDigitsBatch(const DigitsData& data, const std::vector<BatchInput>& inputs,
                                     uint64_t seed);
// The same from held-out images, evenly spread over `num_batches` batches.
std::vector<Literal> HeldOutDigitsBatch(const DigitsData& data,
                                        const std::vector<BatchInput>& inputs, int64_t index,
                                        int64_t num_batches);

}  // namespace minka
