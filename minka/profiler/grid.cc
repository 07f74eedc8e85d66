#include "minka/profiler/grid.h"

#include <algorithm>
#include <cmath>

#include "minka/analysis/dot_layout.h"
#include "minka/base/check.h"

namespace minka {
namespace {

// The i-th number of the van der Corput sequence of the base, in (0, 1).
double VanDerCorput(int base, int i) {
  double value = 0, digit = 1.0 / base;
  for (; i > 0; i /= base, digit /= base) value += digit * (i % base);
  return value;
}

// From `least` to `most`, evenly by its logarithm; as in models from 32 on a multiple of 16, from
// 200 on of 128.
int64_t SizeAt(double share, double least, double most) {
  const double size = least * std::pow(most / least, share);
  const int64_t step = size < 32 ? 1 : size < 200 ? 16 : 128;
  return step * std::llround(size / static_cast<double>(step));
}

// The product of the form in a layer with so many inputs and outputs.
DotShape OfForm(DotForm form, int64_t tokens, int64_t inputs, int64_t outputs) {
  if (form == DotForm::kTN) return {form, 1, inputs, outputs, tokens};
  const bool is_exchanged = form == DotForm::kNT && IsFasterExchanged(tokens, outputs);
  if (is_exchanged) return {form, 1, outputs, tokens, inputs};  // as the lowering writes it
  return {form, 1, tokens, outputs, inputs};
}

// Least and most of what dense layers multiply.
struct DenseSizes {
  double least_tokens, most_tokens;
  double least_features, most_features;  // inputs and outputs
  double most_flops;                     // one measurement takes milliseconds
};

// Products of the form as dense layers have them, spread evenly over the logarithms of sizes
// (Halton 1960).
void AddDense(DotForm form, const DenseSizes& sizes, int count, std::vector<DotShape>& grid) {
  for (int i = 1, found = 0; found < count; ++i) {
    // Few tokens or many; the two sizes of a weight.
    const int64_t tokens = SizeAt(VanDerCorput(2, i), sizes.least_tokens, sizes.most_tokens);
    const int64_t inputs = SizeAt(VanDerCorput(3, i), sizes.least_features, sizes.most_features);
    const int64_t outputs = SizeAt(VanDerCorput(5, i), sizes.least_features, sizes.most_features);
    if (2.0 * static_cast<double>(tokens * inputs * outputs) > sizes.most_flops) continue;
    grid.push_back(OfForm(form, tokens, inputs, outputs));
    ++found;
  }
}

// Products of layers with rows that share places in a core's first cache (DotModel).
void AddWithSharedPlaces(DotForm form, ProfileGrid& grid) {
  grid.dots.push_back(OfForm(form, /*tokens=*/24, /*inputs=*/1024, /*outputs=*/512));
  grid.dots.push_back(OfForm(form, 48, 512, 1024));
  grid.dots.push_back(OfForm(form, 96, 1024, 1024));
  grid.dots.push_back(OfForm(form, 160, 2048, 512));
  grid.dots.push_back(OfForm(form, 320, 512, 512));
  grid.cached_dots.push_back(OfForm(form, 16, 512, 512));
  grid.cached_dots.push_back(OfForm(form, 40, 256, 1024));
  grid.cached_dots.push_back(OfForm(form, 80, 1024, 256));
}

// The products of an attention of the form: of queries and keys, and of these with values.
void AddAttention(DotForm form, int64_t heads, int64_t tokens, int64_t features,
                  std::vector<DotShape>& grid) {
  const bool is_weight_gradient = form == DotForm::kTN;
  grid.push_back({form, heads, tokens, is_weight_gradient ? features : tokens,
                  is_weight_gradient ? tokens : features});
  if (form == DotForm::kNN) grid.push_back({form, heads, tokens, features, tokens});
}

// What so many devices touch is out of the caches, as what a step touches is: streams of 256
// MiB and more. Fewer have as many more arrays.
constexpr int kUsualDevices = 8;

// Down to the few rows of recurrent networks. Devices that share cores wait for the last one where
// a program ends, which counts for as much as the program is short: of products on eight devices of
// two cores, one or two to a program took 7 to 12 % longer than eight and more (docs/design/0012).
// So programs take 10 ms and more, those of the largest products 100.
ProfileGrid GridForCpu(int num_devices) {
  constexpr double kMostFlops = 0.5e9;
  const int more = std::max(1, (kUsualDevices + num_devices - 1) / num_devices);
  // So many for eight devices, in proportion for more; fewer hardly share cores.
  const auto shared = [&](int count, int least) {
    if (num_devices < kUsualDevices) return least;
    return std::max(least, count * kUsualDevices / num_devices);
  };
  ProfileGrid grid{
      .dot_flops = 0.1e9 * more,
      .fewest_dots = shared(8, 2),
      .most_dots = 40 * more,
      .dot_bytes = int64_t{1} << 40,
      // Layers of convolution networks, the first one's few inputs among them, and depthwise ones;
      // of features that fill the registers of their last columns to all degrees.
      .convolutions = {{4, 32, 3, 24},
                       {8, 12, 24, 56},
                       {8, 12, 56, 24},
                       {4, 20, 24, 40},
                       {2, 28, 48, 48},
                       {8, 8, 48, 112},
                       {8, 8, 112, 80},
                       {2, 14, 96, 96},
                       {4, 6, 208, 208},
                       {4, 12, 24, 24, 24},
                       {2, 20, 48, 48, 48},
                       {4, 8, 160, 160, 160}},
      .num_convolutions = shared(16, 6) * more,
      .streamed_elements = 1 << 20,
      .num_streamed = shared(24, 8) * more,
      .looped_elements = 1 << 16,
      .num_operations = 16,
      // A processor begins the next elements before the exponentials of the last are there, which a
      // chain of them would keep it from; loops of steps have one or two.
      .num_exponentials = 1,
      .num_loops = shared(96, 16),
      .transposed_elements = 1 << 18,
      .reductions = {.rows = 160, .columns = 256, .images = 4, .size = 20, .features = 48},
      .num_reductions = shared(96, 24) * more,
      .has_caches = true,
      .num_rounds = 5};
  for (const DotForm form : kDotForms) {
    AddDense(form, {4, 800, 32, 2400, kMostFlops}, /*count=*/45, grid.dots);
    for (const int64_t heads : {6, 24}) {
      for (const int64_t tokens : {48, 144}) AddAttention(form, heads, tokens, 48, grid.dots);
    }
    AddDense(form, {4, 200, 64, 1600, kMostFlops / 5}, /*count=*/18, grid.cached_dots);
    AddWithSharedPlaces(form, grid);
  }
  // For what it takes to widen operands, in which processors without units for bf16 multiply.
  constexpr size_t kDotsPerHalfDot = 5;
  for (size_t i = 0; i < grid.dots.size(); i += kDotsPerHalfDot) {
    grid.half_dots.push_back(grid.dots[i]);
  }
  return grid;
}

// Up to the layers of large language models, and the products of their vocabularies.
ProfileGrid GridForCuda() {
  ProfileGrid grid{
      .has_half_units = true,
      .dot_flops = 1e12,
      .most_dots = 20,
      .dot_bytes = int64_t{1} << 29,  // which are copied to the device
      .convolutions = {{64, 56, 64, 64},
                       {64, 28, 128, 256},
                       {32, 28, 256, 256},
                       {32, 14, 512, 512},
                       {128, 14, 256, 512},
                       {64, 28, 128, 128, 128}},
      .num_convolutions = 6,
      .streamed_elements = 1 << 25,
      .num_streamed = 4,
      .looped_elements = 1 << 24,
      .num_operations = 48,
      .num_exponentials = 48,
      .num_loops = 4,
      .transposed_elements = 1 << 24,
      .reductions = {.rows = 16384, .columns = 2048, .images = 128, .size = 56, .features = 64},
      .num_reductions = 4,
      .draws_values = true,
      .num_rounds = 1};
  for (const DotForm form : kDotForms) {
    AddDense(form, {512, 8192, 256, 8192, 0.25e12}, /*count=*/6, grid.dots);
    AddAttention(form, 64, 512, 64, grid.dots);
    AddAttention(form, 128, 1024, 64, grid.dots);
    AddDense(form, {512, 32768, 512, 16384, 1e12}, /*count=*/10, grid.half_dots);
    AddAttention(form, 384, 512, 64, grid.half_dots);
    AddAttention(form, 128, 1024, 64, grid.half_dots);
    AddAttention(form, 256, 1024, 128, grid.half_dots);
    AddAttention(form, 32, 2048, 128, grid.half_dots);
    constexpr int64_t kVocabulary = 51200;
    grid.half_dots.push_back(form == DotForm::kNT ? OfForm(form, 8192, kVocabulary, 1024)
                                                  : OfForm(form, 8192, 1024, kVocabulary));
  }
  return grid;
}

}  // namespace

ProfileGrid GridFor(Platform platform, int num_devices) {
  switch (platform) {
    case Platform::kCpu:
      return GridForCpu(num_devices);
    case Platform::kCuda:
      return GridForCuda();
  }
  MINKA_CHECK(false);
}

}  // namespace minka
