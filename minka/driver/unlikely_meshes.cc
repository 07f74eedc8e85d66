#include "minka/driver/unlikely_meshes.h"

#include <algorithm>
#include <span>

#include "fmt/format.h"
#include "minka/base/status.h"
#include "minka/driver/mesh_shapes.h"
#include "minka/planner/inter_op/stage_search.h"
#include "minka/report/format.h"

namespace minka {
namespace {

constexpr int kUsualAxes = 2;
// A likely shape of more axes is faster than all usual ones by so much, or needs so little of the
// least memory of these. Of gpt-1.3b, 6.7b, 39b and four mixtures of experts on 8 to 64 V100s,
// gpt-6.7b on 64 H100s and bert-large none was the fastest; of the sixth that needs least memory
// none was taken.
constexpr double kFaster = 1.002, kSmaller = 0.8;
// So many are looked at first.
constexpr size_t kLookedAtFirst = 4;

// What is least on any.
std::optional<RepeatedLayers> LeastOf(std::span<const std::optional<RepeatedLayers>> all) {
  std::optional<RepeatedLayers> least;
  for (const std::optional<RepeatedLayers>& one : all) {
    if (!one) continue;
    if (!least) least = one;
    least->us = std::min(least->us, one->us);
    least->bytes = std::min(least->bytes, one->bytes);
  }
  return least;
}

}  // namespace

void UnlikelyMeshes::Find(const std::vector<MeshOfKind>& meshes, const FindRepeatedLayers& find) {
  std::map<Submesh, std::vector<MeshOfKind>> usual, unusual;
  for (const MeshOfKind& mesh : meshes) {
    const Submesh submesh{mesh.kind, static_cast<int>(mesh.mesh.num_devices())};
    if (NumAxesThatSplit(mesh.mesh) <= kUsualAxes) {
      usual[submesh].push_back(mesh);
    } else if (!why_not_.contains(KeyOf(mesh))) {
      unusual[submesh].push_back(mesh);
    }
  }
  for (const auto& [submesh, shapes] : unusual) {
    if (usual.contains(submesh)) Compare(usual[submesh], shapes, find);
  }
}

void UnlikelyMeshes::Compare(const std::vector<MeshOfKind>& usual,
                             const std::vector<MeshOfKind>& unusual,
                             const FindRepeatedLayers& find) {
  const std::optional<RepeatedLayers> least = LeastOf(find(usual));
  const auto why_not = [&](const std::optional<RepeatedLayers>& there) -> absl::Status {
    const bool is_likely = !least || !there || there->us * kFaster < least->us ||
                           there->bytes < kSmaller * least->bytes;
    if (is_likely) return absl::OkStatus();
    return MakeError(absl::StatusCode::kAborted,
                     fmt::format("not searched: layers that repeat take {} there, {} on fewer axes",
                                 FormatTime(there->us), FormatTime(least->us)));
  };
  const auto first_others =
      unusual.begin() + static_cast<ptrdiff_t>(std::min(kLookedAtFirst, unusual.size()));
  bool any_likely = false;
  const auto look_at = [&](const std::vector<MeshOfKind>& shapes) {
    const std::vector<std::optional<RepeatedLayers>> there = find(shapes);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const absl::Status why = why_not_[KeyOf(shapes[i])] = why_not(there[i]);
      any_likely = any_likely || why.ok();
    }
  };
  look_at({unusual.begin(), first_others});
  const std::vector<MeshOfKind> others(first_others, unusual.end());
  if (any_likely && !others.empty()) return look_at(others);
  for (const MeshOfKind& shape : others) {
    why_not_[KeyOf(shape)] = MakeError(
        absl::StatusCode::kAborted,
        "not searched: layers that repeat gain nothing on likelier shapes of as many axes");
  }
}

absl::Status UnlikelyMeshes::WhyNot(const MeshOfKind& mesh) const {
  const auto known = why_not_.find(KeyOf(mesh));
  return known == why_not_.end() ? absl::OkStatus() : known->second;
}

}  // namespace minka
