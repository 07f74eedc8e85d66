#include "minka/sharding/cross_mesh.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/ir/text_cursor.h"
#include "minka/sharding/held_parts.h"

namespace minka {
namespace {

// Into so many boxes of equal size, or as many of that as the dimensions' divisors allow.
std::vector<Box> CutBox(const Box& box, int64_t num_pieces) {
  std::vector<Box> pieces = {box};
  for (int dim = 0; dim < box.rank() && num_pieces > 1; ++dim) {
    const int64_t cuts = std::gcd(num_pieces, box.size(dim));
    num_pieces /= cuts;
    std::vector<Box> finer;
    for (const Box& piece : pieces) {
      const int64_t size = piece.size(dim) / cuts;
      for (int64_t i = 0; i < cuts; ++i) {
        Box& cut = finer.emplace_back(piece);
        cut.begin[dim] += i * size;
        cut.end[dim] = cut.begin[dim] + size;
      }
    }
    pieces = std::move(finer);
  }
  return pieces;
}

class CrossMeshPlanner {
 public:
  CrossMeshPlanner(const Shape& shape, const ArrayOnMesh& from, const ArrayOnMesh& to,
                   const CrossMeshOptions& options)
      : shape_(shape),
        from_(from),
        to_(to),
        options_(options),
        sent_(options.sent_bytes),
        relayed_(to.hosts.size()),
        received_(to.hosts.size()) {
    sent_.resize(from.hosts.size());
  }

  std::vector<TileTransfer> Run() && {
    const std::vector<HeldPart> held = HeldParts(shape_, from_.sharding, from_.mesh);
    for (const HeldPart& wanted : HeldParts(shape_, to_.sharding, to_.mesh)) {
      for (const HeldPart& owned : held) {
        const std::optional<Box> common = Overlap(owned.box, wanted.box);
        if (!common) continue;
        for (const Box& piece : CutBox(*common, NumPieces(*common, wanted.devices.size()))) {
          Bring(piece, owned.devices, wanted.devices);
        }
      }
    }
    return std::move(out_);
  }

 private:
  struct Sender {
    bool is_relayed = false;
    int64_t device = 0;
  };

  int64_t BytesOf(const Box& box) const { return box.num_elements() * ElementBytes(shape_.type); }

  int64_t NumPieces(const Box& box, size_t num_wanting) const {
    const auto num_pieces = static_cast<int64_t>(num_wanting);
    return BytesOf(box) / num_pieces >= options_.min_piece_bytes ? num_pieces : 1;
  }

  int HostOf(const Sender& sender) const {
    return (sender.is_relayed ? to_ : from_).hosts[sender.device];
  }
  int64_t& SentBy(const Sender& sender) {
    return (sender.is_relayed ? relayed_ : sent_)[sender.device];
  }

  void Bring(const Box& box, const std::vector<int64_t>& owners,
             const std::vector<int64_t>& wanting) {
    std::vector<Sender> senders;
    for (const int64_t device : owners) senders.push_back({false, device});
    std::map<int, std::vector<int64_t>> by_host;
    for (const int64_t device : wanting) by_host[to_.hosts[device]].push_back(device);
    while (!by_host.empty()) {
      const auto [sender, host] = NextOf(senders, by_host);
      std::vector<int64_t> destinations = std::move(by_host.extract(host).mapped());
      PutReceiverFirst(destinations);
      const int64_t bytes = BytesOf(box);
      SentBy(sender) += bytes;
      received_[destinations.front()] += bytes;
      if (HostOf(sender) != host) left_host_[HostOf(sender)] += bytes;
      if (bytes >= options_.min_relay_bytes) {
        for (const int64_t device : destinations) senders.push_back({true, device});
      }
      out_.push_back({sender.device, sender.is_relayed, box, std::move(destinations)});
    }
  }

  // Who sends to which host next: without the network where that is possible; then the least used
  // host, and to that of the others which has passed on least, so that it may do so.
  std::pair<Sender, int> NextOf(const std::vector<Sender>& senders,
                                const std::map<int, std::vector<int64_t>>& by_host) {
    using Key = std::tuple<bool, int64_t, int64_t, int64_t, int>;
    std::optional<Key> best_key;
    std::pair<Sender, int> best;
    for (const auto& [host, devices] : by_host) {
      for (const Sender& sender : senders) {
        const int from_host = HostOf(sender);
        const bool leaves_host = from_host != host;
        const Key key = {leaves_host, leaves_host ? left_host_[from_host] : 0, SentBy(sender),
                         left_host_[host], host};
        if (best_key && *best_key <= key) continue;
        best_key = key;
        best = {sender, host};
      }
    }
    return best;
  }

  void PutReceiverFirst(std::vector<int64_t>& destinations) const {
    const auto least = std::ranges::min_element(destinations, {},
                                                [&](int64_t device) { return received_[device]; });
    std::rotate(destinations.begin(), least, least + 1);
  }

  const Shape& shape_;
  const ArrayOnMesh& from_;
  const ArrayOnMesh& to_;
  const CrossMeshOptions& options_;
  std::vector<int64_t> sent_;         // bytes, by device of the first mesh
  std::vector<int64_t> relayed_;      // by device of the second
  std::vector<int64_t> received_;     // by device of the second, not copied from others
  std::map<int, int64_t> left_host_;  // by host: what its devices sent to others
  std::vector<TileTransfer> out_;
};

absl::StatusOr<std::vector<int64_t>> ReadDevices(TextCursor& cursor) {
  std::vector<int64_t> devices;
  do {
    ASSIGN_OR_RETURN(devices.emplace_back(), cursor.Integer());
  } while (cursor.Consume(","));
  return devices;
}

absl::StatusOr<Box> ReadBox(TextCursor& cursor) {
  Box box;
  RETURN_IF_ERROR(cursor.Expect("["));
  if (cursor.Consume("]")) return box;
  do {
    ASSIGN_OR_RETURN(box.begin.emplace_back(), cursor.Integer());
    RETURN_IF_ERROR(cursor.Expect(":"));
    ASSIGN_OR_RETURN(box.end.emplace_back(), cursor.Integer());
  } while (cursor.Consume(","));
  RETURN_IF_ERROR(cursor.Expect("]"));
  return box;
}

}  // namespace

std::vector<TileTransfer> PlanCrossMesh(const Shape& shape, const ArrayOnMesh& from,
                                        const ArrayOnMesh& to, const CrossMeshOptions& options) {
  for (const ArrayOnMesh* side : {&from, &to}) {
    MINKA_CHECK(static_cast<int64_t>(side->hosts.size()) == side->mesh.num_devices(),
                "{} hosts for the mesh {}", side->hosts.size(), side->mesh.ToString());
    MINKA_CHECK(side->sharding.partial.empty(), "{}", ToString(side->sharding, side->mesh));
  }
  return CrossMeshPlanner(shape, from, to, options).Run();
}

int64_t NeededBytes(const Shape& shape, const ArrayOnMesh& to) {
  int64_t elements = 0;
  for (const HeldPart& part : HeldParts(shape, to.sharding, to.mesh)) {
    std::vector<int> hosts;
    for (const int64_t device : part.devices) hosts.push_back(to.hosts[device]);
    std::ranges::sort(hosts);
    const auto repeated = std::ranges::unique(hosts);
    elements += part.box.num_elements() * (repeated.begin() - hosts.begin());
  }
  return elements * ElementBytes(shape.type);
}

std::string ToString(std::span<const TileTransfer> transfers) {
  std::string text;
  for (const TileTransfer& transfer : transfers) {
    text += fmt::format("{}{} -> {}: {}\n", transfer.is_relayed ? "relay " : "", transfer.source,
                        fmt::join(transfer.destinations, ","), ToString(transfer.box));
  }
  return text;
}

absl::StatusOr<std::vector<TileTransfer>> ParseTileTransfers(std::string_view text) {
  std::vector<TileTransfer> transfers;
  for (TextCursor cursor(text); !cursor.AtEnd();) {
    TileTransfer& transfer = transfers.emplace_back();
    transfer.is_relayed = cursor.Consume("relay");
    ASSIGN_OR_RETURN(transfer.source, cursor.Integer());
    RETURN_IF_ERROR(cursor.Expect("->"));
    ASSIGN_OR_RETURN(transfer.destinations, ReadDevices(cursor));
    RETURN_IF_ERROR(cursor.Expect(":"));
    ASSIGN_OR_RETURN(transfer.box, ReadBox(cursor));
  }
  return transfers;
}

}  // namespace minka
