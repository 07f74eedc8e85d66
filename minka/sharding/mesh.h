// A mesh: the logical view of a block of devices as named axes with sizes, and sets of its axes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace minka {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

inline constexpr int kMaxMeshAxes = 8;

// A set of mesh axes, as bits.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  static constexpr AxisSet Of(int axis) { return AxisSet(uint8_t(1u << axis)); }
  constexpr bool contains(int axis) const { return bits_ >> axis & 1; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr void Insert(int axis) { bits_ |= uint8_t(1u << axis); }
  constexpr void Remove(int axis) { bits_ &= uint8_t(~(1u << axis)); }
  constexpr AxisSet Union(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr AxisSet Minus(AxisSet other) const { return AxisSet(uint8_t(bits_ & ~other.bits_)); }
  constexpr uint8_t bits() const { return bits_; }
  auto operator<=>(const AxisSet&) const = default;

 private:
  explicit constexpr AxisSet(uint8_t bits) : bits_(bits) {}
  uint8_t bits_ = 0;
};

// Axis 0 is the major one: device number = row-major index of its coordinates. At most 8 axes.
class Mesh {
 public:
  Mesh() = default;
  explicit Mesh(std::vector<MeshAxis> axes);

  // "data=2,model=4", or "2x4" with axes named x, y, z, w ...; "8" is one axis x. Sizes are
  // positive, names unique.
  static absl::StatusOr<Mesh> Parse(std::string_view text);

  int num_axes() const { return static_cast<int>(axes_.size()); }
  const MeshAxis& axis(int index) const { return axes_[index]; }
  int64_t size(int axis) const { return axes_[axis].size; }
  // Product of the sizes of the axes.
  int64_t size(AxisSet axes) const;
  int64_t num_devices() const;
  // -1 if there is none of the name.
  int FindAxis(std::string_view name) const;
  // Distance in device numbers between neighbours along the axis.
  int64_t stride(int axis) const;
  // Position of the device along the axis.
  int64_t Coordinate(int64_t device, int axis) const { return device / stride(axis) % size(axis); }
  // The groups of devices that differ only along `axes` (major to minor in the order given);
  // members in that order.
  std::vector<std::vector<int64_t>> Groups(std::span<const int> axes) const;
  // "data=2,model=4"; parses back.
  std::string ToString() const;
  bool operator==(const Mesh&) const = default;

 private:
  std::vector<MeshAxis> axes_;
};

}  // namespace minka
