// The ways in which a search improves its answer or its bound: each can be left out, to see what it
// is worth, and says what it did.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string_view>

namespace minka {

enum class Way {
  kSweeps,          // choices that the messages of the bound's sweeps lead to
  kDecoding,        // messages decoded with the limit in mind, repaired where they break it
  kLeastMemory,     // memory alone decides, where nothing else keeps the limit
  kTrees,           // random trees of nodes decided anew
  kNeighbourhoods,  // small regions searched depth first
  kWholeCore,       // all of a small core searched depth first
  kElimination,     // likely choices searched by eliminating nodes
  kRegions,         // large regions searched as cores of their own
  kPruning,         // choices that can beat the answer, searched as a core of their own
  kLikely,          // likely choices alone, searched as a core of their own
  kProbing,         // choices taken for granted one by one
  kBranching,       // bounds by cases
  kShortening,      // a problem of repeated layers solved with few of them first
};
inline constexpr int kNumWays = static_cast<int>(Way::kShortening) + 1;

// "sweeps", "decoding", ...
std::string_view WayName(Way way);
std::optional<Way> WayOfName(std::string_view name);

using WaySet = std::bitset<kNumWays>;

// What a way did in a core and in those pruned from it: pruning and likely hold what the others did
// in these once more. What searches of parts do counts for the way that poses them. Sweeps are
// those of the bound, whose work is no way's.
struct WayRecord {
  int64_t num_runs = 0;
  int64_t work = 0;
  int64_t num_gains = 0;  // runs that found a cheaper answer than the best known
  int64_t gained = 0;     // by how much cheaper, in all
  WayRecord& operator+=(const WayRecord& other);
};

class WayRecords {
 public:
  WayRecord& operator[](Way way) { return records_[static_cast<int>(way)]; }
  const WayRecord& operator[](Way way) const { return records_[static_cast<int>(way)]; }
  WayRecords& operator+=(const WayRecords& other);

 private:
  std::array<WayRecord, kNumWays> records_ = {};
};

}  // namespace minka
