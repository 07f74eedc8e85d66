#include "minka/sharding/mesh.h"

#include <charconv>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

constexpr std::string_view kDefaultNames[kMaxMeshAxes] = {"x", "y", "z", "w", "v", "u", "t", "s"};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// 0 where the text is no positive number.
int64_t PositiveNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

// Letters, digits and underscores, so that names stand apart from the signs of the text forms.
bool IsName(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (const char c : text) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!fits && c != '_') return false;
  }
  return true;
}

absl::StatusOr<MeshAxis> ParseAxis(std::string_view text, std::string_view default_name) {
  const size_t equals = text.find('=');
  const bool named = equals != std::string_view::npos;
  const std::string_view name = named ? text.substr(0, equals) : default_name;
  const std::string_view size = named ? text.substr(equals + 1) : text;
  if (!IsName(name)) {
    return InvalidArgument("mesh axis '{}' needs a name of letters, digits and _", text);
  }
  const int64_t number = PositiveNumber(size);
  if (number == 0) {
    return InvalidArgument("mesh axis '{}' needs a positive size, for example data=2", text);
  }
  return MeshAxis{std::string(name), number};
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  MINKA_CHECK(axes_.size() <= kMaxMeshAxes, "{} mesh axes", axes_.size());
}

absl::StatusOr<Mesh> Mesh::Parse(std::string_view text) {
  const bool named = text.find('=') != std::string_view::npos;
  const std::vector<std::string_view> parts = Split(text, named ? ',' : 'x');
  if (parts.size() > kMaxMeshAxes) {
    return InvalidArgument("mesh '{}' has {} axes; at most {} are possible", text, parts.size(),
                           kMaxMeshAxes);
  }
  std::vector<MeshAxis> axes;
  int64_t devices = 1;
  for (size_t i = 0; i < parts.size(); ++i) {
    ASSIGN_OR_RETURN(MeshAxis axis, ParseAxis(parts[i], named ? "" : kDefaultNames[i]));
    for (const MeshAxis& other : axes) {
      if (other.name == axis.name) {
        return InvalidArgument("mesh '{}' names the axis {} twice", text, axis.name);
      }
    }
    if (axis.size > (int64_t{1} << 32) / devices) {
      return InvalidArgument("mesh '{}' has more than 2^32 devices", text);
    }
    devices *= axis.size;
    axes.push_back(std::move(axis));
  }
  return Mesh(std::move(axes));
}

int64_t Mesh::size(AxisSet axes) const {
  int64_t product = 1;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (axes.contains(axis)) product *= size(axis);
  }
  return product;
}

int64_t Mesh::num_devices() const {
  int64_t product = 1;
  for (const MeshAxis& axis : axes_) product *= axis.size;
  return product;
}

int Mesh::FindAxis(std::string_view name) const {
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (axes_[axis].name == name) return axis;
  }
  return -1;
}

int64_t Mesh::stride(int axis) const {
  int64_t product = 1;
  for (int other = axis + 1; other < num_axes(); ++other) product *= size(other);
  return product;
}

std::vector<std::vector<int64_t>> Mesh::Groups(std::span<const int> axes) const {
  std::vector<int64_t> offsets = {0};
  for (const int axis : axes) {
    std::vector<int64_t> finer;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < size(axis); ++i) finer.push_back(offset + i * stride(axis));
    }
    offsets = std::move(finer);
  }
  std::vector<std::vector<int64_t>> groups;
  const int64_t devices = num_devices();
  for (int64_t device = 0; device < devices; ++device) {
    bool is_first = true;
    for (const int axis : axes) is_first &= Coordinate(device, axis) == 0;
    if (!is_first) continue;
    std::vector<int64_t>& group = groups.emplace_back();
    for (const int64_t offset : offsets) group.push_back(device + offset);
  }
  return groups;
}

std::string Mesh::ToString() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  }
  return text;
}

}  // namespace minka
