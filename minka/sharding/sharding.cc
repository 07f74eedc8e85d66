#include "minka/sharding/sharding.h"

#include <algorithm>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

std::string AxisNames(const AxisList& axes, const Mesh& mesh) {
  if (axes.empty()) return "-";
  std::string text;
  for (int i = 0; i < axes.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : "+", mesh.axis(axes[i]).name);
  }
  return text;
}

// Reads `text` from the left.
class Reader {
 public:
  Reader(std::string_view text, const Mesh& mesh) : text_(text), rest_(text), mesh_(mesh) {}

  bool Consume(std::string_view token) {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  absl::Status Expect(std::string_view token) {
    if (Consume(token)) return absl::OkStatus();
    return InvalidArgument(
        "sharding '{}': expected '{}' before '{}'; the form is [data,-]{{partial: model}}", text_,
        token, rest_);
  }

  // The next axis name; each axis may appear once.
  absl::StatusOr<int> Axis() {
    Consume("");
    const size_t length = std::min(rest_.find_first_of(",+[]{}: "), rest_.size());
    const std::string_view name = rest_.substr(0, length);
    const int axis = mesh_.FindAxis(name);
    if (axis < 0) {
      return InvalidArgument("sharding '{}': the mesh {} has no axis '{}'", text_, mesh_.ToString(),
                             name);
    }
    if (used_.contains(axis)) {
      return InvalidArgument("sharding '{}' uses the axis {} twice", text_, name);
    }
    used_.Insert(axis);
    rest_.remove_prefix(length);
    return axis;
  }

  absl::StatusOr<AxisList> Axes() {
    AxisList axes;
    if (Consume("-")) return axes;
    do {
      ASSIGN_OR_RETURN(const int axis, Axis());
      axes.PushMinor(axis);
    } while (Consume("+"));
    return axes;
  }

  bool AtEnd() {
    Consume("");
    return rest_.empty();
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view text_;
  std::string_view rest_;
  const Mesh& mesh_;
  AxisSet used_;
};

}  // namespace

AxisSet AxisList::axes() const {
  AxisSet set;
  for (int i = 0; i < size(); ++i) set.Insert((*this)[i]);
  return set;
}

Sharding Sharding::Replicated(int rank) {
  Sharding sharding;
  sharding.dims.resize(rank);
  return sharding;
}

AxisSet Sharding::split_axes() const {
  AxisSet set;
  for (const AxisList& axes : dims) set = set.Union(axes.axes());
  return set;
}

int64_t NumParts(const AxisList& axes, const Mesh& mesh) {
  int64_t parts = 1;
  for (int i = 0; i < axes.size(); ++i) parts *= mesh.size(axes[i]);
  return parts;
}

absl::Status Validate(const Sharding& sharding, const Shape& shape, const Mesh& mesh) {
  if (static_cast<int>(sharding.dims.size()) != shape.rank()) {
    return InvalidArgument("the sharding has {} dimensions, but {} has {}", sharding.dims.size(),
                           ToString(shape), shape.rank());
  }
  AxisSet used;
  const auto use = [&](int axis) -> absl::Status {
    if (axis >= mesh.num_axes()) {
      return InvalidArgument("the sharding uses axis {}, but the mesh {} has {} axes", axis,
                             mesh.ToString(), mesh.num_axes());
    }
    if (used.contains(axis)) {
      return InvalidArgument("the sharding uses the axis {} twice", mesh.axis(axis).name);
    }
    used.Insert(axis);
    return absl::OkStatus();
  };
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    if (sharding.partial.contains(axis)) RETURN_IF_ERROR(use(axis));
  }
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const AxisList& axes = sharding.dims[dim];
    for (int i = 0; i < axes.size(); ++i) RETURN_IF_ERROR(use(axes[i]));
    if (shape.dims[dim] % NumParts(axes, mesh) != 0) {
      return InvalidArgument("dimension {} of {} is not divided by its axes {} of the mesh {}", dim,
                             ToString(shape), AxisNames(axes, mesh), mesh.ToString());
    }
  }
  return absl::OkStatus();
}

Shape LocalShape(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  MINKA_CHECK(static_cast<int>(sharding.dims.size()) == shape.rank(), "{} of {}",
              ToString(sharding, mesh), ToString(shape));
  Shape local = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const int64_t parts = NumParts(sharding.dims[dim], mesh);
    MINKA_CHECK(shape.dims[dim] % parts == 0, "{} of {} on {}", ToString(sharding, mesh),
                ToString(shape), mesh.ToString());
    local.dims[dim] /= parts;
  }
  return local;
}

int64_t LocalBytes(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  int64_t elements = 1;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    elements *= shape.dims[dim] / NumParts(sharding.dims[dim], mesh);
  }
  return elements * ElementBytes(shape.type);
}

std::string ToString(const Sharding& sharding, const Mesh& mesh) {
  std::string text = "[";
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    text += fmt::format("{}{}", dim == 0 ? "" : ",", AxisNames(sharding.dims[dim], mesh));
  }
  text += "]";
  if (sharding.partial.empty()) return text;
  std::string partial;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!sharding.partial.contains(axis)) continue;
    partial += fmt::format("{}{}", partial.empty() ? "" : ",", mesh.axis(axis).name);
  }
  return fmt::format("{}{{partial: {}}}", text, partial);
}

absl::StatusOr<Sharding> ParseSharding(std::string_view text, const Mesh& mesh) {
  Reader reader(text, mesh);
  Sharding sharding;
  RETURN_IF_ERROR(reader.Expect("["));
  if (!reader.Consume("]")) {
    do {
      ASSIGN_OR_RETURN(const AxisList axes, reader.Axes());
      sharding.dims.push_back(axes);
    } while (reader.Consume(","));
    RETURN_IF_ERROR(reader.Expect("]"));
  }
  if (reader.Consume("{")) {
    RETURN_IF_ERROR(reader.Expect("partial"));
    RETURN_IF_ERROR(reader.Expect(":"));
    do {
      ASSIGN_OR_RETURN(const int axis, reader.Axis());
      sharding.partial.Insert(axis);
    } while (reader.Consume(","));
    RETURN_IF_ERROR(reader.Expect("}"));
  }
  if (!reader.AtEnd()) {
    return InvalidArgument("sharding '{}': '{}' after its end", text, reader.rest());
  }
  return sharding;
}

}  // namespace minka
