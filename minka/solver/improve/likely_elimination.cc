#include "minka/solver/improve/likely_elimination.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "minka/solver/improve/decode.h"
#include "minka/solver/improve/variable_elimination.h"
#include "minka/solver/reduce/reduce.h"

namespace minka {
namespace {

constexpr double kFirstPerNode = 6;
constexpr double kGrowth = 1.1;
constexpr double kShrinkage = 1.4;
constexpr int kTries = 3;
constexpr double kFocus = 2;  // the farthest choices count as less likely by that power of two
constexpr int kPlainRun = 4;  // of so many in vain, one is without focus
constexpr int kDecodedFromAnywhere = 2;  // choices, when in vain before
constexpr int64_t kWorkPerCell = 4;

// Adds an answer's choices to those given.
void Include(std::span<const int32_t> answer, std::vector<std::vector<int64_t>>& choices) {
  for (size_t node = 0; node < answer.size(); ++node) {
    const auto at = std::ranges::lower_bound(choices[node], answer[node]);
    if (at == choices[node].end() || *at != answer[node]) choices[node].insert(at, answer[node]);
  }
}

}  // namespace

std::vector<int32_t> LikelyElimination::DrawOrder() {
  return BreadthFirst(graph_, random_.Below(graph_.num_nodes()));
}

// Around a node chosen at random more choices count as likely than far from it.
std::vector<double> LikelyElimination::DrawFocus() {
  const std::vector<int32_t> order = DrawOrder();
  std::vector<double> focus(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const double distance = static_cast<double>(i) / static_cast<double>(order.size());
    focus[order[i]] = std::exp2(kFocus * (2 * distance - 1));
  }
  return focus;
}

// Choices that messages lead to from nodes chosen at random. They are not good, but parts of them
// are other than the answer's.
std::vector<std::vector<int32_t>> LikelyElimination::DecodeFromAnywhere(
    const MessagePassing& messages) {
  std::vector<std::vector<int32_t>> choices;
  for (int i = 0; i < kDecodedFromAnywhere; ++i) {
    Decoded decoded = Decode(messages, {.order = DrawOrder()}, random_);
    work_ += decoded.work;
    if (decoded.failed.empty()) choices.push_back(std::move(decoded.choice));
  }
  return choices;
}

void LikelyElimination::Run(const Known& known, int64_t work, const std::function<bool()>&) {
  const Core& core = graph_.core();
  const ChoiceExcess& excess = excess_.Of(known, work_);
  const bool focused = in_vain_ > 0 && in_vain_ % kPlainRun != 0;
  const std::vector<double> focus = focused ? DrawFocus() : std::vector<double>();
  double& per_node = per_node_[focused ? 1 : 0];
  if (per_node == 0) per_node = focused ? per_node_[0] : kFirstPerNode;
  const std::vector<std::vector<int32_t>> decoded =
      in_vain_ > 0 ? DecodeFromAnywhere(known.messages) : std::vector<std::vector<int32_t>>();
  // They let the work explode where messages still change, and are needed least there.
  bool with_others = in_vain_++ > 0;
  const auto best =
      known.best ? std::span<const int32_t>(known.best->choice) : std::span<const int32_t>();
  for (int i = 0; i < kTries; ++i) {
    const double count = std::min<double>(graph_.total_choices(), per_node * graph_.num_nodes());
    std::vector<std::vector<int64_t>> choices =
        excess.Likely(static_cast<int64_t>(count), best, focus);
    if (with_others) {
      for (const std::vector<int32_t>& other : known.decoded) Include(other, choices);
      for (const std::vector<int32_t>& other : decoded) Include(other, choices);
    }
    const Reduction reduction = ReduceFurther(core, choices);
    work_ += reduction.core.algebra.work() + CountChoices(choices);
    if (reduction.core.infeasible) {
      per_node *= kGrowth;
      continue;
    }
    const Eliminated eliminated = SolveByElimination(reduction.core, work / kWorkPerCell);
    work_ += kWorkPerCell * eliminated.work;
    if (!eliminated.complete) {
      if (!std::exchange(with_others, false)) per_node /= kShrinkage;
      continue;
    }
    per_node *= kGrowth;
    if (!eliminated.answer) continue;
    const CoreAnswer answer = ExpandAnswer(core, reduction, eliminated.answer->choice);
    if (!known.best || answer.cost < known.best->cost) in_vain_ = 0;
    Take(answer);
    return;
  }
}

}  // namespace minka
