#include "minka/runtime/mesh/distributed_array.h"

#include <numeric>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/mesh/split_array.h"

namespace minka {
namespace {

size_t PartBytes(const ArrayLayout& layout) {
  return static_cast<size_t>(LocalBytes(layout.shape, layout.sharding, layout.mesh));
}

absl::Status CheckParts(const ArrayLayout& layout, size_t num_devices,
                        std::span<const pjrt::LentContents> parts) {
  const size_t size = PartBytes(layout);
  for (const pjrt::LentContents& part : parts) {
    if (part.bytes.size() != size) {
      return InternalError("a part has {} bytes instead of {}", part.bytes.size(), size);
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

PendingParts DistributedArray::StartCovering() const {
  std::vector<int64_t> devices = CoveringDevices(layout_->sharding, layout_->mesh);
  const size_t num_devices = devices.size();
  return [layout = *layout_, num_devices,
          pending = storage_->Fetch(std::move(devices), PartBytes(*layout_))]()
             -> absl::StatusOr<std::vector<pjrt::LentContents>> {
    ASSIGN_OR_RETURN(std::vector<pjrt::LentContents> parts, pending());
    RETURN_IF_ERROR(CheckParts(layout, num_devices, parts));
    return parts;
  };
}

std::function<absl::StatusOr<Literal>()> DistributedArray::StartToHost() const {
  return [layout = *layout_, pending = StartCovering()]() -> absl::StatusOr<Literal> {
    ASSIGN_OR_RETURN(const std::vector<pjrt::LentContents> parts, pending());
    return WholeOf(layout, parts);
  };
}

std::function<absl::StatusOr<HostArray>()> DistributedArray::StartToLend() const {
  return [layout = *layout_, pending = StartCovering()]() -> absl::StatusOr<HostArray> {
    ASSIGN_OR_RETURN(std::vector<pjrt::LentContents> parts, pending());
    if (parts.size() == 1) return HostArray(layout.shape, std::move(parts.front()));
    return HostArray(WholeOf(layout, parts));
  };
}

absl::StatusOr<std::vector<std::string>> DistributedArray::PartsToHost() const {
  std::vector<int64_t> devices(layout_->mesh.num_devices());
  std::iota(devices.begin(), devices.end(), 0);
  const size_t num_devices = devices.size();
  ASSIGN_OR_RETURN(const std::vector<pjrt::LentContents> parts,
                   storage_->Fetch(std::move(devices), PartBytes(*layout_))());
  RETURN_IF_ERROR(CheckParts(*layout_, num_devices, parts));
  std::vector<std::string> copies;
  for (const auto& [bytes, owner] : parts) copies.emplace_back(bytes.data(), bytes.size());
  return copies;
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

PendingParts LocalStorage::Fetch(std::vector<int64_t> devices, size_t /*part_bytes*/) const {
  return
      [array = places.front(), devices = std::move(devices)] { return LendParts(*array, devices); };
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
