#include "minka/solver/improve/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "minka/solver/improve/usage_profile.h"

namespace minka {
namespace {

class Decoder {
 public:
  Decoder(const MessagePassing& messages, const DecodeOptions& options, Random& random)
      : messages_(messages),
        graph_(messages.graph()),
        options_(options),
        random_(random),
        allowed_(graph_.total_choices(), 1),
        num_allowed_(graph_.num_nodes()),
        usage_(graph_.core().limit_bytes) {
    decoded_.choice.assign(graph_.num_nodes(), -1);
    for (int32_t n = 0; n < graph_.num_nodes(); ++n) num_allowed_[n] = graph_.num_choices(n);
  }

  Decoded Run() {
    std::vector<int32_t> order = options_.order;
    if (order.empty()) {
      order.resize(graph_.num_nodes());
      std::iota(order.begin(), order.end(), 0);
    }
    for (const int32_t node : order) DecideNode(node);
    return std::move(decoded_);
  }

 private:
  std::vector<double> Scores(int32_t node) {
    const std::span<const double> priced = messages_.PricedCosts(node);
    std::vector<double> scores(priced.begin(), priced.end());
    for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
      const int32_t taken = decoded_.choice[arc.other];
      const double* const add = taken < 0
                                    ? messages_.Incoming(arc)
                                    : arc.to_here + static_cast<size_t>(taken) * scores.size();
      for (size_t k = 0; k < scores.size(); ++k) scores[k] += add[k];
    }
    decoded_.work += static_cast<int64_t>(scores.size() * (graph_.arcs(node).size() + 1));
    if (options_.noise > 0) {
      const double least = *std::ranges::min_element(scores);
      for (double& score : scores)
        score += options_.noise * random_.Unit() * std::max(1.0, std::abs(score - least));
    }
    return scores;
  }

  void DecideNode(int32_t node) {
    const std::vector<double> scores = Scores(node);
    std::vector<int32_t> candidates;
    const char* const allowed = allowed_.data() + graph_.first_choice(node);
    for (int32_t k = 0; k < graph_.num_choices(node); ++k)
      if (allowed[k]) candidates.push_back(k);
    std::ranges::stable_sort(candidates, {}, [&](int32_t k) { return scores[k]; });
    for (const int32_t k : candidates)
      if (scores[k] < kHugeCost && TryTake(node, k)) return;
    decoded_.failed.push_back(node);
    Force(node, candidates, scores);
  }

  // Whether k keeps the limit and leaves every undecided neighbour a choice; takes it if so.
  bool TryTake(int32_t node, int32_t k) {
    usage_.Move(graph_.core(), node, -1, k);
    if (options_.within_limit && !graph_.core().usages[node].empty() && usage_.Excess() > 0) {
      usage_.Move(graph_.core(), node, k, -1);
      return false;
    }
    const size_t mark = trail_.size();
    decoded_.choice[node] = k;
    for (int32_t other = 0; other < graph_.num_choices(node); ++other)
      if (other != k) Forbid(node, other);
    if (Propagate(node)) return true;
    while (trail_.size() > mark) {
      const auto [owner, entry] = trail_.back();
      trail_.pop_back();
      allowed_[entry] = 1;
      ++num_allowed_[owner];
    }
    decoded_.choice[node] = -1;
    usage_.Move(graph_.core(), node, k, -1);
    return false;
  }

  void Forbid(int32_t node, int32_t k) {
    const int32_t entry = graph_.first_choice(node) + k;
    if (!allowed_[entry]) return;
    allowed_[entry] = 0;
    --num_allowed_[node];
    trail_.emplace_back(node, entry);
  }

  bool Propagate(int32_t changed) {
    std::vector<int32_t> queue = {changed};
    while (!queue.empty()) {
      const int32_t node = queue.back();
      queue.pop_back();
      for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
        if (decoded_.choice[arc.other] >= 0) continue;
        const int32_t before = num_allowed_[arc.other];
        Revise(node, arc);
        if (num_allowed_[arc.other] == 0) return false;
        if (num_allowed_[arc.other] < before) queue.push_back(arc.other);
      }
    }
    return true;
  }

  // Forbids choices of the other end without an allowed partner here.
  void Revise(int32_t node, const CoreGraph::Arc& arc) {
    const int32_t count = graph_.num_choices(node);
    const char* const here = allowed_.data() + graph_.first_choice(node);
    const char* const there = allowed_.data() + graph_.first_choice(arc.other);
    for (int32_t j = 0; j < graph_.num_choices(arc.other); ++j) {
      if (!there[j]) continue;
      const double* const row = arc.to_here + static_cast<size_t>(j) * count;
      bool supported = false;
      for (int32_t k = 0; k < count && !supported; ++k) supported = here[k] && row[k] < kHugeCost;
      decoded_.work += count;
      if (!supported) Forbid(arc.other, j);
    }
  }

  // No choice is free of conflicts: the cheapest that no decided neighbour forbids, else the
  // cheapest.
  void Force(int32_t node, const std::vector<int32_t>& candidates,
             const std::vector<double>& scores) {
    int32_t best = candidates.empty() ? 0 : candidates[0];
    if (candidates.empty())
      best = static_cast<int32_t>(std::ranges::min_element(scores) - scores.begin());
    decoded_.choice[node] = best;
    usage_.Move(graph_.core(), node, -1, best);
  }

  const MessagePassing& messages_;
  const CoreGraph& graph_;
  const DecodeOptions& options_;
  Random& random_;
  std::vector<char> allowed_;
  std::vector<int32_t> num_allowed_;
  std::vector<std::pair<int32_t, int32_t>> trail_;  // (node, entry of allowed_)
  UsageProfile usage_;
  Decoded decoded_;
};

}  // namespace

Decoded Decode(const MessagePassing& messages, const DecodeOptions& options, Random& random) {
  return Decoder(messages, options, random).Run();
}

}  // namespace minka
