#include "minka/solver/improve/local_search.h"

#include <algorithm>
#include <cmath>

namespace minka {
namespace {

// What one forbidden entry weighs while a choice still uses some: more than any sum of costs.
constexpr double kForbiddenWeight = 1e19;

double Weigh(double cost) { return std::min(cost, kForbiddenWeight); }

}  // namespace

LocalSearch::LocalSearch(const CoreGraph& graph, uint64_t seed)
    : graph_(graph),
      random_(seed),
      usage_(graph.core().limit_bytes),
      prices_(graph.core().limit_bytes.size(), 0),
      price_sums_(PriceSums(prices_)),
      memory_price_(graph.total_choices(), 0),
      price_stamp_(graph.num_nodes(), -1),
      tree_position_(graph.num_nodes(), -1),
      ties_to_tree_(graph.num_nodes(), 0) {}

void LocalSearch::Start(std::span<const int32_t> choice) {
  choice_.assign(choice.begin(), choice.end());
  usage_ = UsageProfile(graph_.core().limit_bytes);
  for (int32_t node = 0; node < graph_.num_nodes(); ++node)
    usage_.Move(graph_.core(), node, -1, choice_[node]);
  num_forbidden_ = CountForbidden();
  RecordIfBest();
}

void LocalSearch::SetPrices(std::span<const double> prices) {
  prices_.assign(prices.begin(), prices.end());
  price_sums_ = PriceSums(prices_);
  ++current_stamp_;
  price_step_ = 0;
  last_worst_ = -1;
}

void LocalSearch::RecordIfBest() {
  if (!feasible()) return;
  const std::optional<int64_t> cost = CoreCost(graph_.core(), choice_);
  work_ += static_cast<int64_t>(graph_.core().edges.size());
  if (cost && (!best_ || *cost < best_->cost)) best_ = {choice_, *cost};
}

int64_t LocalSearch::CountForbidden() const {
  int64_t count = 0;
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    count += graph_.costs(node)[choice_[node]] >= kHugeCost ? 1 : 0;
    for (const CoreGraph::Arc& arc : graph_.arcs(node).first(graph_.num_backward_arcs(node)))
      count += arc.to_here[static_cast<size_t>(choice_[arc.other]) * graph_.num_choices(node) +
                           choice_[node]] >= kHugeCost;
  }
  return count;
}

void LocalSearch::RefreshPrice(int32_t node) {
  if (price_stamp_[node] == current_stamp_) return;
  price_stamp_[node] = current_stamp_;
  const std::span<double> prices(memory_price_.data() + graph_.first_choice(node),
                                 static_cast<size_t>(graph_.num_choices(node)));
  std::ranges::fill(prices, 0.0);
  work_ += graph_.move_work(node) / 10;
  AddMemoryPrice(graph_.core(), node, price_sums_, prices);
}

void LocalSearch::AddTreeNode(int32_t node, int32_t parent, const CoreGraph::Arc* from_parent) {
  TreeNode added = {.node = node, .parent = parent, .from_parent = from_parent};
  if (parent >= 0) {
    for (const CoreGraph::Arc& arc : graph_.arcs(node))
      if (arc.other == tree_[parent].node) added.to_parent = &arc;
  }
  tree_position_[node] = static_cast<int32_t>(tree_.size());
  tree_.push_back(added);
  for (const CoreGraph::Arc& arc : graph_.arcs(node)) {
    if (ties_to_tree_[arc.other]++ == 0) touched_.push_back(arc.other);
  }
}

// An induced tree around the seed: a node joins while it has exactly one neighbour inside.
void LocalSearch::GrowTree(int32_t seed, int32_t max_nodes) {
  for (const int32_t node : touched_) ties_to_tree_[node] = 0;
  for (const TreeNode& old : tree_) tree_position_[old.node] = -1;
  touched_.clear();
  tree_.clear();
  AddTreeNode(seed, -1, nullptr);
  constexpr int kTriesPerNode = 4;
  for (int tries = kTriesPerNode * max_nodes;
       tries > 0 && static_cast<int32_t>(tree_.size()) < max_nodes; --tries) {
    const int32_t parent = random_.Below(static_cast<int32_t>(tree_.size()));
    const std::span<const CoreGraph::Arc> arcs = graph_.arcs(tree_[parent].node);
    if (arcs.empty()) return;
    const CoreGraph::Arc& arc = arcs[random_.Below(static_cast<int32_t>(arcs.size()))];
    if (tree_position_[arc.other] < 0 && ties_to_tree_[arc.other] == 1)
      AddTreeNode(arc.other, parent, &arc);
  }
}

// Costs of the tree's choices given everything outside; returns what the present choice pays.
double LocalSearch::TreeCosts(double price_weight, double temperature) {
  entries_.clear();
  double present = 0;
  for (TreeNode& t : tree_) {
    const int32_t count = graph_.num_choices(t.node);
    t.first_entry = static_cast<int32_t>(entries_.size());
    RefreshPrice(t.node);
    const double* const price = memory_price_.data() + graph_.first_choice(t.node);
    for (int32_t k = 0; k < count; ++k)
      entries_.push_back(Weigh(graph_.costs(t.node)[k]) + price_weight * price[k]);
    double* const out = entries_.data() + t.first_entry;
    for (const CoreGraph::Arc& arc : graph_.arcs(t.node)) {
      const double* const row = arc.to_here + static_cast<size_t>(choice_[arc.other]) * count;
      if (tree_position_[arc.other] >= 0) {
        if (tree_position_[arc.other] < tree_position_[t.node])
          present += Weigh(row[choice_[t.node]]);
        continue;
      }
      for (int32_t k = 0; k < count; ++k) out[k] += Weigh(row[k]);
    }
    work_ += count * static_cast<int64_t>(graph_.arcs(t.node).size() + 1);
    present += out[choice_[t.node]];
  }
  own_costs_ = entries_;
  if (temperature > 0)
    for (double& cost : entries_)
      cost -= temperature * -std::log(-std::log(random_.Unit() + 1e-300) + 1e-300);
  return present;
}

// Children come after parents, so a walk back collects subtrees and a walk forth decides.
void LocalSearch::SolveTree() {
  for (size_t i = tree_.size() - 1; i > 0; --i) {
    const TreeNode& t = tree_[i];
    const int32_t count = graph_.num_choices(t.node);
    const int32_t columns = graph_.num_choices(tree_[t.parent].node);
    message_.resize(columns);
    MinPlus(entries_.data() + t.first_entry, t.to_parent->from_here, count, columns,
            message_.data());
    double* const out = entries_.data() + tree_[t.parent].first_entry;
    for (int32_t k = 0; k < columns; ++k) out[k] += Weigh(message_[k]);
    work_ += static_cast<int64_t>(count) * columns;
  }
  for (TreeNode& t : tree_) {
    const int32_t count = graph_.num_choices(t.node);
    const double* const costs = entries_.data() + t.first_entry;
    // The arc's cells with the parent's choice as row are the costs of this node's choices.
    const double* const row =
        t.parent < 0
            ? nullptr
            : t.from_parent->from_here + static_cast<size_t>(tree_[t.parent].chosen) * count;
    double least = HUGE_VAL;
    for (int32_t k = 0; k < count; ++k) {
      const double cost = costs[k] + (row == nullptr ? 0 : Weigh(row[k]));
      if (cost < least) {
        least = cost;
        t.chosen = k;
      }
    }
  }
}

double LocalSearch::CostOfTree() {
  double cost = 0;
  for (const TreeNode& t : tree_) {
    cost += own_costs_[t.first_entry + t.chosen];
    if (t.parent >= 0)
      cost += Weigh(t.from_parent->from_here[static_cast<size_t>(tree_[t.parent].chosen) *
                                                 graph_.num_choices(t.node) +
                                             t.chosen]);
  }
  return cost;
}

// Takes the tree's decisions; false and nothing changed if that breaks a limit that holds now.
bool LocalSearch::ApplyTree(bool keep_limit) {
  for (const TreeNode& t : tree_)
    if (choice_[t.node] != t.chosen) work_ += graph_.move_work(t.node);
  for (const TreeNode& t : tree_) usage_.Move(graph_.core(), t.node, choice_[t.node], t.chosen);
  if (keep_limit && usage_.Excess() > 0) {
    for (const TreeNode& t : tree_) usage_.Move(graph_.core(), t.node, t.chosen, choice_[t.node]);
    return false;
  }
  for (const TreeNode& t : tree_) choice_[t.node] = t.chosen;
  return true;
}

void LocalSearch::Improve(const ImproveOptions& options) {
  const int64_t end = work_ + options.work;
  const bool had_forbidden = num_forbidden_ > 0;
  double gained = 0;
  while (work_ < end) {
    work_ += 50;
    GrowTree(random_.Below(graph_.num_nodes()), 1 + random_.Below(options.max_tree));
    const double before = TreeCosts(options.price_weight, options.temperature);
    SolveTree();
    const double change = CostOfTree() - before;
    if (options.temperature == 0 && change > 0) continue;
    if (ApplyTree(/*keep_limit=*/true)) {
      gained -= change;
      if (gained > 0.5 && options.price_weight == 0) {
        RecordIfBest();
        gained = 0;
      }
    }
  }
  if (had_forbidden) num_forbidden_ = CountForbidden();
  RecordIfBest();
}

std::vector<int32_t> LocalSearch::NodesAt(int32_t time) const {
  std::vector<int32_t> nodes;
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    const bool live = std::ranges::any_of(graph_.core().usages[node], [&](const CoreUsage& usage) {
      return std::ranges::any_of(usage.ranges, [&](const TimeRange& range) {
        return range.begin <= time && time < range.end;
      });
    });
    if (live) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int32_t> LocalSearch::NodesWithForbidden() const {
  std::vector<int32_t> nodes;
  for (int32_t node = 0; node < graph_.num_nodes(); ++node) {
    bool forbidden = graph_.costs(node)[choice_[node]] >= kHugeCost;
    for (const CoreGraph::Arc& arc : graph_.arcs(node))
      forbidden |= arc.to_here[static_cast<size_t>(choice_[arc.other]) * graph_.num_choices(node) +
                               choice_[node]] >= kHugeCost;
    if (forbidden) nodes.push_back(node);
  }
  return nodes;
}

// False if memory is within the limit. The step doubles while the same time stays worst.
bool LocalSearch::RaisePriceAtWorst() {
  if (usage_.Excess() <= 0) return false;
  const int32_t worst = usage_.WorstTime();
  if (price_step_ == 0) {
    const double most = *std::ranges::max_element(prices_);
    const double limit = std::max<double>(1, *std::ranges::max_element(graph_.core().limit_bytes));
    price_step_ = most > 0 ? 0.02 * most : 1e-3 * graph_.largest_sum() / limit / graph_.num_nodes();
  } else if (worst == last_worst_) {
    price_step_ *= 1.5;
  }
  last_worst_ = worst;
  prices_[worst] += price_step_;
  price_sums_ = PriceSums(prices_);
  ++current_stamp_;
  return true;
}

void LocalSearch::RecordExcess() {
  if (num_forbidden_ > 0 || (least_excess_ && usage_.Excess() >= least_excess_bytes_)) return;
  least_excess_ = choice_;
  least_excess_bytes_ = usage_.Excess();
}

bool LocalSearch::Repair(int64_t work) {
  const int64_t end = work_ + work;
  RecordExcess();
  while (work_ < end) {
    const bool over = RaisePriceAtWorst();
    std::vector<int32_t> seeds = over ? NodesAt(last_worst_) : std::vector<int32_t>{};
    if (num_forbidden_ > 0) {
      const std::vector<int32_t> more = NodesWithForbidden();
      seeds.insert(seeds.end(), more.begin(), more.end());
    }
    if (seeds.empty()) break;
    random_.Shuffle(seeds);
    for (const int32_t seed : seeds) {
      GrowTree(seed, 1 + random_.Below(40));
      const double before = TreeCosts(1, 0);
      SolveTree();
      if (CostOfTree() - before < 0) ApplyTree(/*keep_limit=*/false);
      if (num_forbidden_ == 0 && over && usage_.Excess() <= 0) break;
    }
    work_ += graph_.num_nodes();
    if (num_forbidden_ > 0) num_forbidden_ = CountForbidden();
    RecordExcess();
  }
  RecordIfBest();
  return feasible();
}

}  // namespace minka
