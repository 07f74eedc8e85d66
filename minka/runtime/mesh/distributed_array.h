// Arrays on devices as those see them who own but do not run them: in this process or in another.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/literal.h"
#include "minka/runtime/mesh/host_array.h"
#include "minka/runtime/mesh/mesh_array.h"

namespace minka {

// Parts of an array on the way to the host, by device asked for; calling it waits for them, once.
using PendingParts = std::function<absl::StatusOr<std::vector<pjrt::LentContents>>()>;

// What holds an array's memory, which it frees in the end.
class ArrayStorage {
 public:
  virtual ~ArrayStorage() = default;
  // Starts to fetch what devices of the (first) mesh hold, so many bytes each; without waiting. The
  // parts may come from another process, which may be wrong about them.
  virtual PendingParts Fetch(std::vector<int64_t> devices, size_t part_bytes) const = 0;
  // The worker that holds the (first) mesh; 0: this process, too.
  virtual int worker() const { return 0; }

 protected:
  ArrayStorage() = default;
  ArrayStorage(const ArrayStorage&) = default;
  ArrayStorage& operator=(const ArrayStorage&) = default;
};

// Owns an array on the devices of a mesh, or of several meshes that each hold all of it; move-only.
// It may still be computed: whoever reads it waits, and is told then what went wrong. Reading is
// thread-safe.
class DistributedArray {
 public:
  // None.
  DistributedArray() = default;
  // `layout`: on the first mesh.
  DistributedArray(ArrayLayout layout, std::shared_ptr<ArrayStorage> storage)
      : layout_(std::make_unique<const ArrayLayout>(std::move(layout))),
        storage_(std::move(storage)) {}
  DistributedArray(DistributedArray&&) = default;
  DistributedArray& operator=(DistributedArray&&) = default;

  bool empty() const { return storage_ == nullptr; }
  // Precondition of all that follow: it is not empty.
  const ArrayLayout& layout() const { return *layout_; }
  ArrayStorage& storage() const { return *storage_; }

  // The whole array.
  absl::StatusOr<Literal> ToHost() const;
  // Starts that, without waiting; what is returned outlives this and waits, once.
  std::function<absl::StatusOr<Literal>()> StartToHost() const;
  // The same, in place where one device holds it all. Whoever drops the contents lets their memory
  // go.
  std::function<absl::StatusOr<HostArray>()> StartToLend() const;
  // What every device of the first mesh holds.
  absl::StatusOr<std::vector<std::string>> PartsToHost() const;

  // "f32[64,128] [data,-] on data=2,model=4"; fetches nothing.
  std::string ToString() const;

 private:
  // By covering device, checked.
  PendingParts StartCovering() const;

  std::unique_ptr<const ArrayLayout> layout_;
  std::shared_ptr<ArrayStorage> storage_;
};

// Whole arrays, fetched together.
absl::StatusOr<std::vector<Literal>> ToHost(std::span<const DistributedArray* const> arrays);

// Memory in this process: the array on each of its meshes.
struct LocalStorage : ArrayStorage {
  PendingParts Fetch(std::vector<int64_t> devices, size_t part_bytes) const override;

  std::vector<std::shared_ptr<MeshArray>> places;
};

// On one mesh of this process.
DistributedArray MakeLocalArray(ArrayLayout layout, MeshArray array);
// Precondition: it lies in this process.
const LocalStorage& LocalStorageOf(const DistributedArray& array);
// Precondition: and on one mesh.
MeshArray& LocalArrayOf(const DistributedArray& array);

}  // namespace minka
