#include "minka/data/digits_data.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>

#include "minka/base/file.h"
#include "minka/base/gzip.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/frontend/random.h"

namespace minka {
namespace {

constexpr int64_t kImagePixels = kDigitPixels * kDigitPixels;
constexpr int kMaxPixel = 16;
constexpr int64_t kMinImages = 100;
constexpr double kNumNoiseSteps = 1000;
constexpr const char* kPathInPackages = "sklearn/datasets/data/digits.csv.gz";

std::string FileInVenv() {
  std::error_code error;
  for (std::filesystem::directory_iterator python(std::string(MINKA_VENV) + "/lib", error), end;
       !error && python != end; python.increment(error)) {
    const auto file = python->path() / "site-packages" / kPathInPackages;
    if (std::filesystem::exists(file, error)) return file.string();
  }
  return {};
}

// One line: 64 pixels and the label.
bool ReadLine(std::string_view line, DigitsData& data) {
  const char* next = line.data();
  const char* const end = line.data() + line.size();
  for (int64_t i = 0; i <= kImagePixels; ++i) {
    int value = 0;
    const auto [stop, error] = std::from_chars(next, end, value);
    const bool is_label = i == kImagePixels;
    if (error != std::errc() || value < 0 || value > (is_label ? kNumDigits - 1 : kMaxPixel)) {
      return false;
    }
    if (is_label ? stop != end : stop == end || *stop != ',') return false;
    if (is_label) {
      data.labels.push_back(value);
    } else {
      data.pixels.push_back(static_cast<float>(value) * 2 / kMaxPixel - 1);
      next = stop + 1;
    }
  }
  return true;
}

// Random numbers of one batch.
class Noise {
 public:
  explicit Noise(uint64_t seed) : key_(SiteKey(MixKey(seed), SiteConstant("digits"))) {}

  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(Bits() * static_cast<uint64_t>(limit) >> 32);
  }
  float Normal() {
    const double radius = std::sqrt(-2 * std::log(Unit()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * Unit()));
  }

 private:
  uint64_t Bits() { return SquaresBits(counter_++, key_); }
  double Unit() { return (static_cast<double>(Bits()) + 0.5) * 0x1p-32; }

  uint64_t key_;
  uint64_t counter_ = 0;
};

template <typename T>
Literal ToLiteral(const Shape& shape, const std::vector<T>& values) {
  return {shape, std::make_shared<const std::string>(reinterpret_cast<const char*>(values.data()),
                                                     values.size() * sizeof(T))};
}

// Pixel of an image enlarged to the size of `dims`, [batch, rows, columns, channels].
float PixelOf(const DigitsData& data, int64_t image, const std::vector<int64_t>& dims, int64_t row,
              int64_t column) {
  const int64_t y = row * kDigitPixels / dims[1], x = column * kDigitPixels / dims[2];
  return data.pixels[image * kImagePixels + y * kDigitPixels + x];
}

std::vector<Literal> ClassificationBatch(const DigitsData& data,
                                         const std::vector<BatchInput>& inputs,
                                         const std::vector<int64_t>& chosen) {
  const std::vector<int64_t>& dims = inputs[0].shape.dims;
  std::vector<float> images;
  std::vector<int32_t> labels;
  for (const int64_t image : chosen) {
    labels.push_back(data.labels[image]);
    for (int64_t row = 0; row < dims[1]; ++row) {
      for (int64_t column = 0; column < dims[2]; ++column)
        images.insert(images.end(), dims[3], PixelOf(data, image, dims, row, column));
    }
  }
  return {ToLiteral(inputs[0].shape, images), ToLiteral(inputs[1].shape, labels)};
}

// The part of the image's power that is left at a time step.
double SignalPower(int64_t timestep) {
  constexpr double kOffset = 0.008;
  const double time = (static_cast<double>(timestep) / kNumNoiseSteps + kOffset) / (1 + kOffset);
  const double wave = std::cos(time * std::numbers::pi / 2);
  return wave * wave;
}

std::vector<Literal> DenoisingBatch(const DigitsData& data, const std::vector<BatchInput>& inputs,
                                    const std::vector<int64_t>& chosen, Noise& noise) {
  const std::vector<int64_t>&image_dims = inputs[0].shape.dims,
        &condition_dims = inputs[2].shape.dims;
  const int64_t channels = image_dims[3], target_channels = inputs[3].shape.dims[3];
  std::vector<float> images, condition, targets;
  std::vector<int32_t> timesteps;
  for (const int64_t image : chosen) {
    const int64_t timestep = noise.Below(static_cast<int64_t>(kNumNoiseSteps));
    const double power = SignalPower(timestep);
    const auto signal = static_cast<float>(std::sqrt(power));
    const auto disturbance = static_cast<float>(std::sqrt(1 - power));
    timesteps.push_back(static_cast<int32_t>(timestep));
    for (int64_t i = 0; i < image_dims[1] * image_dims[2]; ++i) {
      const float pixel = PixelOf(data, image, image_dims, i / image_dims[2], i % image_dims[2]);
      std::vector<float> noises(channels);
      for (float& value : noises) {
        value = noise.Normal();
        images.push_back(signal * pixel + disturbance * value);
      }
      for (int64_t c = 0; c < target_channels; ++c) targets.push_back(noises[c % channels]);
    }
    for (int64_t i = 0; i < condition_dims[1] * condition_dims[2]; ++i)
      condition.push_back(i % condition_dims[2] % kNumDigits == data.labels[image] ? 1.0F : 0.0F);
  }
  return {ToLiteral(inputs[0].shape, images), ToLiteral(inputs[1].shape, timesteps),
          ToLiteral(inputs[2].shape, condition), ToLiteral(inputs[3].shape, targets)};
}

std::vector<Literal> BatchOf(const DigitsData& data, const std::vector<BatchInput>& inputs,
                             const std::vector<int64_t>& chosen, Noise& noise) {
  return inputs.size() == 2 ? ClassificationBatch(data, inputs, chosen)
                            : DenoisingBatch(data, inputs, chosen, noise);
}

bool AreImages(const BatchInput& input) {
  const Shape& shape = input.shape;
  return shape.type == ElementType::kF32 && shape.rank() == 4 &&
         shape.dims[1] % kDigitPixels == 0 && shape.dims[2] % kDigitPixels == 0;
}

}  // namespace

absl::StatusOr<DigitsData> LoadDigits(const std::string& path) {
  const std::string file = path.empty() ? FileInVenv() : path;
  if (file.empty()) {
    return NotFound(
        "the digits to train on come from the Python package scikit-learn, which is not in {}: run "
        "`make deps`, or name a file with --data",
        MINKA_VENV);
  }
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(file));
  auto text = Gunzip(std::move(bytes));
  if (!text.ok()) return WithContext(text.status(), file);
  DigitsData data{.source = path.empty() ? "the digits of scikit-learn" : path,
                  .hash = HashText(StableHash(*text))};
  int64_t number = 0;
  for (std::string_view rest = *text; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (!ReadLine(rest.substr(0, end), data)) {
      return InvalidArgument("{}, line {}: not 64 numbers up to {} and a digit", file, number + 1,
                             kMaxPixel);
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (number < kMinImages) {
    return InvalidArgument("{} has {} images; training needs {} at least", file, number,
                           kMinImages);
  }
  data.num_training = number - number / 10;
  return data;
}

bool ReadsDigits(const std::vector<BatchInput>& inputs) {
  if (inputs.empty() || inputs[0].name != "images" || !AreImages(inputs[0])) return false;
  if (inputs.size() == 2) return inputs[1].name == "labels" && inputs[1].num_values >= kNumDigits;
  return inputs.size() == 4 && inputs[1].name == "timesteps" && inputs[2].name == "condition" &&
         inputs[3].name == "targets";
}

std::vector<Literal> DrawDigitsBatch(const DigitsData& data, const std::vector<BatchInput>& inputs,
                                     uint64_t seed) {
  Noise noise(seed);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < inputs[0].shape.dims[0]; ++i)
    chosen.push_back(noise.Below(data.num_training));
  return BatchOf(data, inputs, chosen, noise);
}

std::vector<Literal> HeldOutDigitsBatch(const DigitsData& data,
                                        const std::vector<BatchInput>& inputs, int64_t index,
                                        int64_t num_batches) {
  const int64_t batch = inputs[0].shape.dims[0];
  const auto num_held_out = static_cast<int64_t>(data.labels.size()) - data.num_training;
  Noise noise(static_cast<uint64_t>(index));
  std::vector<int64_t> chosen;
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t place = (index * batch + row) * num_held_out / (num_batches * batch);
    chosen.push_back(data.num_training + place);
  }
  return BatchOf(data, inputs, chosen, noise);
}

}  // namespace minka
