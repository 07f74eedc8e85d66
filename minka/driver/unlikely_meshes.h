// Which shapes of a mesh are left out of a search: those of three axes, on which it takes as long
// as on all others, where the layers that repeat gain nothing there.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "minka/driver/layer_ways.h"

namespace minka {

// What the layers that repeat take, together.
struct RepeatedLayers {
  double us = 0;     // a step
  double bytes = 0;  // per device
};

// By mesh; nullopt: not known.
using FindRepeatedLayers =
    std::function<std::vector<std::optional<RepeatedLayers>>(const std::vector<MeshOfKind>& on)>;

class UnlikelyMeshes {
 public:
  // Looks at the shapes of three axes of which nothing is known yet, beside those of fewer axes of
  // as many devices of the same kind; where there are none of these, none is unlikely. Likelier
  // shapes come first, as in MeshShapes: where the first few are unlikely, so are the others.
  void Find(const std::vector<MeshOfKind>& meshes, const FindRepeatedLayers& find);

  // OK: it is not unlikely, as far as that is known.
  absl::Status WhyNot(const MeshOfKind& mesh) const;

 private:
  using Key = std::pair<int, std::string>;  // kind of hosts, mesh
  static Key KeyOf(const MeshOfKind& mesh) { return {mesh.kind, mesh.mesh.ToString()}; }

  void Compare(const std::vector<MeshOfKind>& usual, const std::vector<MeshOfKind>& unusual,
               const FindRepeatedLayers& find);

  std::map<Key, absl::Status> why_not_;  // of what was looked at
};

}  // namespace minka
