#include "minka/frontend/random.h"

#include <cmath>
#include <memory>
#include <string>

#include "minka/base/hash.h"

namespace minka {
namespace {

// Of splitmix64; without it key 0 would stay 0.
constexpr uint64_t kMixIncrement = 0x9e3779b97f4a7c15;

Tensor ConstantU64(Graph& graph, uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return graph.Constant(
      {{ElementType::kU64, {}}, std::make_shared<const std::string>(std::move(bytes))});
}

Tensor ShiftRight(Tensor x, int bits) {
  return Binary(Opcode::kShiftRightLogical, x, static_cast<double>(bits));
}

Tensor SwapHalves(Tensor x) { return Or(ShiftRight(x, 32), Binary(Opcode::kShiftLeft, x, 32.0)); }

// The row-major index of each element.
Tensor LinearIndex(Graph& graph, const std::vector<int64_t>& dims) {
  const Shape shape{ElementType::kU64, dims};
  if (dims.empty()) return graph.Scalar(ElementType::kU64, 0);
  Tensor index = graph.Iota(shape, 0);
  for (int i = 1; i < shape.rank(); ++i) {
    index = index * static_cast<double>(dims[i]) + graph.Iota(shape, i);
  }
  return index;
}

}  // namespace

uint32_t SquaresBits(uint64_t counter, uint64_t key) {
  const uint64_t y = counter * key, z = y + key;
  const auto swap = [](uint64_t x) { return (x >> 32) | (x << 32); };
  uint64_t x = swap(y * y + y);
  x = swap(x * x + z);
  x = swap(x * x + y);
  return static_cast<uint32_t>((x * x + z) >> 32);
}

uint64_t MixKey(uint64_t key) {
  key += kMixIncrement;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

uint64_t SiteConstant(std::string_view name) { return StableHash(name) | 1; }

Tensor MixKey(Tensor key) {
  if (!key.valid()) return key;
  Graph& graph = key.graph();
  const auto word = [&](int64_t i) {
    return Convert(Reshape(Slice(key, {i}, {i + 1}), {}), ElementType::kU64);
  };
  Tensor x = word(0);
  x = Or(x, Binary(Opcode::kShiftLeft, word(1), 32.0)) + ConstantU64(graph, kMixIncrement);
  x = Xor(x, ShiftRight(x, 30)) * ConstantU64(graph, 0xbf58476d1ce4e5b9);
  x = Xor(x, ShiftRight(x, 27)) * ConstantU64(graph, 0x94d049bb133111eb);
  return Xor(x, ShiftRight(x, 31));
}

Tensor RandomBits(Tensor mixed_key, uint64_t site, const std::vector<int64_t>& dims, int64_t stride,
                  int64_t offset) {
  if (!mixed_key.valid()) return mixed_key;
  Graph& graph = mixed_key.graph();
  const Tensor site_key =
      Or(mixed_key * ConstantU64(graph, site), graph.Scalar(mixed_key.type(), 1));
  const Tensor key = Broadcast(site_key, dims, {});
  Tensor counter = LinearIndex(graph, dims);
  if (stride != 1) counter = counter * static_cast<double>(stride);
  if (offset != 0) counter = counter + static_cast<double>(offset);
  const Tensor y = counter * key;
  const Tensor z = y + key;
  Tensor x = SwapHalves(y * y + y);
  x = SwapHalves(x * x + z);
  x = SwapHalves(x * x + y);
  return x * x + z;
}

Tensor RandomMask(Tensor mixed_key, uint64_t site, const std::vector<int64_t>& dims,
                  double probability) {
  if (!mixed_key.valid()) return mixed_key;
  // The upper half below the threshold, without shifting it down.
  const double threshold = std::floor(std::ldexp(probability, 32)) * 0x1p32;
  return Compare(Comparison::kLt, RandomBits(mixed_key, site, dims, /*stride=*/1, /*offset=*/0),
                 threshold);
}

}  // namespace minka
