#include "minka/data/digits_data.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

std::vector<float> Floats(const Literal& literal) {
  std::vector<float> values(literal.bytes->size() / sizeof(float));
  std::memcpy(values.data(), literal.bytes->data(), literal.bytes->size());
  return values;
}

std::vector<int32_t> Integers(const Literal& literal) {
  std::vector<int32_t> values(literal.bytes->size() / sizeof(int32_t));
  std::memcpy(values.data(), literal.bytes->data(), literal.bytes->size());
  return values;
}

std::vector<BatchInput> Classification(int64_t batch, int64_t size, int64_t channels) {
  return {{"images", {ElementType::kF32, {batch, size, size, channels}}},
          {"labels", {ElementType::kS32, {batch}}, 10}};
}

std::vector<BatchInput> Denoising(int64_t batch) {
  return {{"images", {ElementType::kF32, {batch, 8, 8, 1}}},
          {"timesteps", {ElementType::kS32, {batch}}, 1000},
          {"condition", {ElementType::kF32, {batch, 4, 20}}},
          {"targets", {ElementType::kF32, {batch, 8, 8, 1}}}};
}

TEST(Digits, ThePackagesFileHas1797Images) {
  const auto data = LoadDigits("");
  ASSERT_TRUE(data.ok()) << Message(data.status());
  EXPECT_EQ(data->labels.size(), 1797u);
  EXPECT_EQ(data->num_training, 1618);
  EXPECT_EQ(data->labels[0], 0);
  EXPECT_EQ(data->labels[1], 1);
  EXPECT_EQ(data->pixels[2], 5 / 8.0F - 1);
  for (int32_t digit = 0; digit < 10; ++digit)
    EXPECT_GT(std::ranges::count(data->labels, digit), 170) << digit;
}

TEST(Digits, BatchesDependOnTheSeedAndEnlargeImages) {
  const DigitsData data = LoadDigits("").value();
  const auto inputs = Classification(4, 16, 3);
  ASSERT_TRUE(ReadsDigits(inputs));
  const auto batch = DrawDigitsBatch(data, inputs, 1);
  EXPECT_EQ(*batch[0].bytes, *DrawDigitsBatch(data, inputs, 1)[0].bytes);
  EXPECT_NE(*batch[0].bytes, *DrawDigitsBatch(data, inputs, 2)[0].bytes);
  const auto small = DrawDigitsBatch(data, Classification(4, 8, 1), 1);
  EXPECT_EQ(Integers(batch[1]), Integers(small[1]));
  const std::vector<float> large = Floats(batch[0]), pixels = Floats(small[0]);
  for (int64_t i = 0; i < 4 * 16 * 16 * 3; ++i) {
    const int64_t column = i / 3 % 16, row = i / 48 % 16, image = i / 768;
    ASSERT_EQ(large[i], pixels[image * 64 + row / 2 * 8 + column / 2]) << i;
  }
}

TEST(Digits, NoiseAndSignalAddUpToTheImage) {
  const DigitsData data = LoadDigits("").value();
  const auto inputs = Denoising(64);
  ASSERT_TRUE(ReadsDigits(inputs));
  const auto batch = DrawDigitsBatch(data, inputs, 3);
  const std::vector<float> images = Floats(batch[0]), targets = Floats(batch[3]);
  const std::vector<int32_t> timesteps = Integers(batch[1]);
  double squares = 0;
  for (const float noise : targets) squares += noise * noise;
  EXPECT_NEAR(squares / static_cast<double>(targets.size()), 1, 0.05);
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const double wave = std::cos((timesteps[i] / 1000.0 + 0.008) / 1.008 * 1.5707963267948966);
    for (size_t pixel = 64 * i; pixel < 64 * (i + 1); ++pixel) {
      const double signal = images[pixel] - std::sqrt(1 - wave * wave) * targets[pixel];
      // A pixel is a multiple of an eighth.
      if (wave > 0.1) {
        EXPECT_NEAR(std::remainder(8 * signal / wave, 1), 0, 1e-3);
      }
    }
  }
  const std::vector<float> condition = Floats(batch[2]);
  EXPECT_EQ(std::ranges::count(condition, 1.0F), 64 * 4 * 2);
}

TEST(Digits, OtherFilesAreRefusedByLine) {
  const std::string path = TemporaryPath("digits.csv");
  std::string line;
  for (int i = 0; i < 64; ++i) line += "16,";
  ASSERT_TRUE(WriteFile(path, line + "9\n" + line + "10\n").ok());
  EXPECT_EQ(Message(LoadDigits(path).status()),
            path + ", line 2: not 64 numbers up to 16 and a digit");
  ASSERT_TRUE(WriteFile(path, line + "9\n" + line + "0").ok());
  EXPECT_EQ(Message(LoadDigits(path).status()),
            path + " has 2 images; training needs 100 at least");
  EXPECT_FALSE(ReadsDigits(Classification(4, 12, 1)));
}

}  // namespace
}  // namespace minka
