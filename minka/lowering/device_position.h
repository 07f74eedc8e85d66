// What, inside a local program, depends on the place of the device on the mesh: coordinates from
// the replica id, offsets of parts, and what only one device of a row keeps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "minka/ir/builder.h"
#include "minka/lowering/departures.h"
#include "minka/sharding/mesh.h"
#include "minka/sharding/sharding.h"

namespace minka {

// Writes into one computation; every scalar is written once, where it is first needed.
class DevicePosition {
 public:
  DevicePosition(ComputationBuilder builder, const Mesh& mesh, Departures departures)
      : builder_(builder), mesh_(mesh), departures_(departures) {}

  ComputationBuilder& builder() { return builder_; }
  const Mesh& mesh() const { return mesh_; }
  // Of the program that is written.
  Departures departures() const { return departures_; }
  bool Takes(Departure departure) const { return departures_.contains(departure); }

  // All s32[].
  Value Number(int64_t value);
  Value Coordinate(int axis);
  // What Coordinate gives from now on: for axes that are no devices.
  void SetCoordinate(int axis, Value coordinate) {
    coordinates_[axis] = coordinate;
    given_[axis] = coordinate;
  }
  // Coordinates that were set, by axis: a computation that is called has to be handed them.
  const std::map<int, Value>& given() const { return given_; }
  // Which of the parts along the axes (major to minor) the device holds.
  Value Part(const AxisList& axes);
  // Part times the size of a part.
  Value Offset(const AxisList& axes, int64_t part_size);

  // pred[]: coordinate 0 along every one of the axes (at least one).
  Value IsFirst(AxisSet axes);

 private:
  ComputationBuilder builder_;
  const Mesh& mesh_;
  const Departures departures_;
  Value replica_;
  std::map<int64_t, Value> numbers_;
  std::map<int, Value> coordinates_, given_;
  std::map<AxisSet, Value> is_first_;
};

// `x` on coordinate 0 of the axes, `neutral` in every element elsewhere.
Value KeepOnFirst(DevicePosition& position, Value x, AxisSet axes, double neutral = 0);

// The device's part of a value that every device holds whole along the dimensions that `sharding`
// splits.
Value OwnPart(DevicePosition& position, Value whole, const Sharding& sharding);

// The axes of a set, ascending.
std::vector<int> AxesOf(AxisSet axes);

}  // namespace minka
