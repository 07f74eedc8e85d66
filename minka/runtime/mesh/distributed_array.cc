#include "minka/runtime/mesh/distributed_array.h"

#include <numeric>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

// Parts may come from another process, which may be wrong about them.
absl::Status CheckParts(const ArrayLayout& layout, size_t num_devices,
                        std::span<const std::string> parts) {
  const auto size = static_cast<size_t>(LocalBytes(layout.shape, layout.sharding, layout.mesh));
  for (const std::string& part : parts) {
    if (part.size() != size) {
      return InternalError("a part has {} bytes instead of {}", part.size(), size);
    }
  }
  if (parts.size() == num_devices) return absl::OkStatus();
  return InternalError("{} parts came instead of {}", parts.size(), num_devices);
}

}  // namespace

absl::StatusOr<Literal> DistributedArray::ToHost() const {
  const DistributedArray* const self = this;
  ASSIGN_OR_RETURN(std::vector<Literal> values, minka::ToHost({&self, 1}));
  return std::move(values.front());
}

std::function<absl::StatusOr<Literal>()> DistributedArray::StartToHost() const {
  std::vector<int64_t> devices = CoveringDevices(layout_->sharding, layout_->mesh);
  PendingParts pending = storage_->Fetch(devices);
  return [layout = *layout_, devices = std::move(devices),
          pending = std::move(pending)]() -> absl::StatusOr<Literal> {
    ASSIGN_OR_RETURN(std::vector<std::string> parts, pending());
    RETURN_IF_ERROR(CheckParts(layout, devices.size(), parts));
    return WholeOf(layout, devices, std::move(parts));
  };
}

absl::StatusOr<std::vector<std::string>> DistributedArray::PartsToHost() const {
  std::vector<int64_t> devices(layout_->mesh.num_devices());
  std::iota(devices.begin(), devices.end(), 0);
  const size_t num_devices = devices.size();
  ASSIGN_OR_RETURN(std::vector<std::string> parts, storage_->Fetch(std::move(devices))());
  RETURN_IF_ERROR(CheckParts(*layout_, num_devices, parts));
  return parts;
}

std::string DistributedArray::ToString() const {
  return fmt::format("{} {} on {}", minka::ToString(layout_->shape),
                     minka::ToString(layout_->sharding, layout_->mesh), layout_->mesh.ToString());
}

absl::StatusOr<std::vector<Literal>> ToHost(std::span<const DistributedArray* const> arrays) {
  std::vector<std::function<absl::StatusOr<Literal>()>> pending;
  for (const DistributedArray* array : arrays) pending.push_back(array->StartToHost());
  std::vector<Literal> values;
  for (const auto& wait : pending) {
    ASSIGN_OR_RETURN(values.emplace_back(), wait());
  }
  return values;
}

PendingParts LocalStorage::Fetch(std::vector<int64_t> devices) const {
  return [array = places.front(), devices = std::move(devices)]() {
    std::vector<std::string> parts;
    for (const int64_t device : devices) {
      absl::StatusOr<std::string> part = array->parts[device].ToHost();
      if (!part.ok()) return absl::StatusOr<std::vector<std::string>>(part.status());
      parts.push_back(*std::move(part));
    }
    return absl::StatusOr<std::vector<std::string>>(std::move(parts));
  };
}

DistributedArray MakeLocalArray(ArrayLayout layout, MeshArray array) {
  auto storage = std::make_shared<LocalStorage>();
  storage->places.push_back(std::make_shared<MeshArray>(std::move(array)));
  return {std::move(layout), std::move(storage)};
}

const LocalStorage& LocalStorageOf(const DistributedArray& array) {
  const auto* const storage = dynamic_cast<const LocalStorage*>(&array.storage());
  MINKA_CHECK(storage != nullptr, "{} lies in another process", array.ToString());
  return *storage;
}

MeshArray& LocalArrayOf(const DistributedArray& array) {
  const LocalStorage& storage = LocalStorageOf(array);
  MINKA_CHECK(storage.places.size() == 1, "{} lies on {} meshes", array.ToString(),
              storage.places.size());
  return *storage.places.front();
}

}  // namespace minka
