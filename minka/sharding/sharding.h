// How one tensor lies on a mesh: per dimension an ordered list of mesh axes that split it (major to
// minor), plus the partial axes over which a sum is still owed. A mesh axis occurs at most once.
//
//   mesh data=2,model=4, tensor f32[8,16]:
//   [data,-]                    rows halved over data, whole over model: every device holds
//   f32[4,16] [data+model,-]              rows split over both axes, data major: f32[1,16]
//   [-,-]{partial: model}       the sum over model of what the devices hold is the tensor
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "minka/ir/shape.h"
#include "minka/sharding/mesh.h"

namespace minka {

// The axes of one dimension, major to minor; a packed small vector.
class AxisList {
 public:
  constexpr AxisList() = default;
  constexpr int size() const { return static_cast<int>(packed_ & 0xf); }
  constexpr bool empty() const { return size() == 0; }
  constexpr int operator[](int i) const { return static_cast<int>(packed_ >> (4 * (i + 1)) & 0xf); }
  constexpr int minor() const { return (*this)[size() - 1]; }
  constexpr void PushMinor(int axis) {
    packed_ |= uint64_t(axis) << (4 * (size() + 1));
    ++packed_;
  }
  constexpr void PopMinor() {
    const int last = size();
    packed_ &= ~(uint64_t(0xf) << (4 * last));
    --packed_;
  }
  AxisSet axes() const;
  auto operator<=>(const AxisList&) const = default;

 private:
  uint64_t packed_ = 0;  // low 4 bits: count; then 4 bits per axis
};

struct Sharding {
  std::vector<AxisList> dims;
  AxisSet partial;

  static Sharding Replicated(int rank);
  AxisSet split_axes() const;
  // Split or partial axes.
  AxisSet used_axes() const { return split_axes().Union(partial); }
  bool is_replicated() const { return used_axes().empty(); }
  auto operator<=>(const Sharding&) const = default;
};

// Product of the axis sizes of one dimension.
int64_t NumParts(const AxisList& axes, const Mesh& mesh);
// Rank fits, axes of the mesh, each used once, every dimension divided by its axes. The message
// names the culprit.
absl::Status Validate(const Sharding& sharding, const Shape& shape, const Mesh& mesh);
// The shape that one device holds. Precondition: Validate.
Shape LocalShape(const Shape& shape, const Sharding& sharding, const Mesh& mesh);
int64_t LocalBytes(const Shape& shape, const Sharding& sharding, const Mesh& mesh);

// "[data,-]{partial: model}"; "[]" for a replicated scalar.
std::string ToString(const Sharding& sharding, const Mesh& mesh);
absl::StatusOr<Sharding> ParseSharding(std::string_view text, const Mesh& mesh);

}  // namespace minka
