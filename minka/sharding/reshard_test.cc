#include "minka/sharding/reshard.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <random>
#include <tuple>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace minka {
namespace {

using ElementType::kF32;

// Alpha 1 and beta 1 on every axis, with an epsilon for local steps.
double AlphaBeta(const Mesh& mesh, ReshardKind kind, int64_t bytes, AxisSet axes) {
  const double n = static_cast<double>(mesh.size(axes));
  const double moved = (n - 1) / n * static_cast<double>(bytes);
  switch (kind) {
    case ReshardKind::kAllReduce:
      return 1 + 2 * moved;
    case ReshardKind::kReduceScatter:
    case ReshardKind::kAllGather:
      return 1 + moved;
    case ReshardKind::kAllToAll:
      return 1 + moved / n;
    case ReshardKind::kSlice:
    case ReshardKind::kMakePartial:
      return 1e-3;
  }
  return 0;
}

ReshardPrice AlphaBetaOn(const Mesh& mesh) {
  return [&mesh](const StepWork& work) {
    return AlphaBeta(mesh, work.kind, work.local_bytes, work.axes);
  };
}

std::string Describe(const ReshardPath& path, const Mesh& mesh) {
  std::string text;
  for (const ReshardStep& step : path.steps) {
    text += (text.empty() ? "" : ", ") + std::string(ToString(step.kind)) + " " +
            ToString(step.result, mesh);
  }
  return text;
}

struct Question {
  const char* mesh;
  std::vector<int64_t> dims;
  const char* from;
  const char* to;
};

std::string Answer(const Question& question) {
  const Mesh mesh = *Mesh::Parse(question.mesh);
  const ReshardPath path =
      CheapestReshard({kF32, question.dims}, *ParseSharding(question.from, mesh),
                      *ParseSharding(question.to, mesh), mesh, AlphaBetaOn(mesh));
  return Describe(path, mesh);
}

double Cost(const Question& question) {
  const Mesh mesh = *Mesh::Parse(question.mesh);
  return CheapestReshard({kF32, question.dims}, *ParseSharding(question.from, mesh),
                         *ParseSharding(question.to, mesh), mesh, AlphaBetaOn(mesh))
      .cost;
}

TEST(Reshard, CostsAreThoseOfAlpaWhereItChargesTheBytesMoved) {
  // A tensor of 98304 bytes on 2x3; Alpa charges every gather with the full tensor.
  const std::vector<int64_t> dims = {128, 192};
  EXPECT_EQ(Cost({"2x3", dims, "[x,y]", "[x,y]"}), 0);
  EXPECT_NEAR(Cost({"2x3", dims, "[x,-]", "[x,y]"}), 0, 0.01);
  EXPECT_NEAR(Cost({"2x3", dims, "[x,y]", "[x,-]"}), 1 + 2.0 / 3 * 49152, 0.01);
  EXPECT_NEAR(Cost({"2x3", dims, "[x,y]", "[-,-]"}), 1 + 2.0 / 3 * 49152 + 1 + 49152, 0.01);
  // A split over an axis of size 1 is no split.
  EXPECT_EQ(Cost({"4x1", dims, "[x,y]", "[x,-]"}), 0);
}

TEST(Reshard, TakesTheStepMadeForTheChange) {
  EXPECT_EQ(Answer({"4", {8, 8}, "[-,-]{partial: x}", "[-,-]"}), "all-reduce [-,-]");
  EXPECT_EQ(Answer({"4", {8, 8}, "[-,-]{partial: x}", "[-,x]"}), "reduce-scatter [-,x]");
  EXPECT_EQ(Answer({"4", {8, 8}, "[x,-]", "[-,x]"}), "all-to-all [-,x]");
  EXPECT_EQ(Answer({"4", {8, 6}, "[x,-]", "[-,-]"}), "all-gather [-,-]");
  EXPECT_EQ(Answer({"4", {8, 8}, "[-,-]", "[-,-]{partial: x}"}), "make-partial [-,-]{partial: x}");
  EXPECT_EQ(Answer({"2x2", {8, 8}, "[-,-]{partial: x,y}", "[-,-]"}), "all-reduce [-,-]");
  EXPECT_EQ(Answer({"2x2", {8, 8}, "[x+y,-]", "[-,-]"}), "all-gather [-,-]");
  EXPECT_EQ(Answer({"2x2", {8, 8}, "[-,-]", "[x+y,-]"}), "slice [x+y,-]");
}

TEST(Reshard, OneGroupOfSeveralAxesDoesWhatTheAxesJoinedToOneWould) {
  struct Case {
    const char *from, *to, *steps, *from_joined, *to_joined;
  };
  for (const Case& c : {
           Case{"[-,-]{partial: x,y}", "[x+y,-]", "reduce-scatter [x+y,-]", "[-,-]{partial: x}",
                "[x,-]"},
           Case{"[x+y,-]", "[-,x+y]", "all-to-all [-,x+y]", "[x,-]", "[-,x]"},
           Case{"[x+y,-]", "[-,-]", "all-gather [-,-]", "[x,-]", "[-,-]"},
           Case{"[-,-]{partial: x,y}", "[-,-]", "all-reduce [-,-]", "[-,-]{partial: x}", "[-,-]"},
           Case{"[-,-]", "[-,x+y]", "slice [-,x+y]", "[-,-]", "[-,x]"},
           Case{"[-,-]", "[-,-]{partial: x,y}", "make-partial [-,-]{partial: x,y}", "[-,-]",
                "[-,-]{partial: x}"},
       }) {
    EXPECT_EQ(Answer({"2x4", {64, 64}, c.from, c.to}), c.steps);
    EXPECT_EQ(Cost({"2x4", {64, 64}, c.from, c.to}),
              Cost({"8", {64, 64}, c.from_joined, c.to_joined}));
  }
}

TEST(Reshard, OnlyTheMinorAxisComesAndGoesFreely) {
  // x split already, y must become the major one: not a local slice.
  EXPECT_EQ(Answer({"2x2", {64, 63}, "[x,-]", "[y+x,-]"}),
            "all-gather [-,-], slice [y,-], slice [y+x,-]");
  EXPECT_EQ(Answer({"2x2", {64, 64}, "[x+y,-]", "[y,-]"}),
            "all-to-all [-,x+y], all-to-all [y,x], all-gather [y,-]");
}

// Independent of the search: Bellman-Ford over shardings as structs, without pruning.
class BruteForce {
 public:
  BruteForce(const Shape& shape, const Mesh& mesh) : shape_(shape), mesh_(mesh) {}

  double Cheapest(const Sharding& from, const Sharding& to) {
    cost_.clear();
    std::vector<Sharding> open = {from};
    cost_[from] = 0;
    while (!open.empty()) {
      const Sharding sharding = open.back();
      open.pop_back();
      for (const auto& [next, cost] : Steps(sharding)) {
        const double total = cost_.at(sharding) + cost;
        const auto found = cost_.find(next);
        if (found != cost_.end() && found->second <= total) continue;
        cost_[next] = total;
        open.push_back(next);
      }
    }
    return cost_.at(to);
  }

 private:
  struct Edge {
    Sharding next;
    double cost;
  };

  void Add(std::vector<Edge>& edges, const Sharding& before, const Sharding& after,
           ReshardKind kind, AxisSet axes) {
    if (!Validate(after, shape_, mesh_).ok()) return;
    const int64_t bytes =
        LocalBytes(shape_, kind == ReshardKind::kAllGather ? after : before, mesh_);
    edges.push_back({after, AlphaBeta(mesh_, kind, bytes, axes)});
  }

  // Steps that take up partial or unused axes, all at once.
  void AddOverSet(std::vector<Edge>& edges, const Sharding& before, int bits) {
    AxisSet axes;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (bits >> axis & 1) axes.Insert(axis);
    }
    const bool is_partial = axes.Minus(before.partial).empty();
    if (!is_partial && axes.Minus(before.used_axes()) != axes) return;
    Sharding base = before;
    base.partial = before.partial.Minus(axes);
    if (is_partial) Add(edges, before, base, ReshardKind::kAllReduce, axes);
    for (size_t dim = 0; dim < before.dims.size(); ++dim) {
      Sharding after = base;
      for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
        if (axes.contains(axis)) after.dims[dim].PushMinor(axis);
      }
      Add(edges, before, after, is_partial ? ReshardKind::kReduceScatter : ReshardKind::kSlice,
          axes);
    }
    if (is_partial) return;
    base.partial = base.partial.Union(axes);
    Add(edges, before, base, ReshardKind::kMakePartial, axes);
  }

  std::vector<Edge> Steps(const Sharding& before) {
    std::vector<Edge> edges;
    for (int bits = 1; bits < 1 << mesh_.num_axes(); ++bits) AddOverSet(edges, before, bits);
    for (size_t dim = 0; dim < before.dims.size(); ++dim) {
      AxisList taken;  // minor to major
      Sharding after = before;
      while (!after.dims[dim].empty()) {
        taken.PushMinor(after.dims[dim].minor());
        after.dims[dim].PopMinor();
        Add(edges, before, after, ReshardKind::kAllGather, taken.axes());
        for (size_t to_dim = 0; to_dim < before.dims.size(); ++to_dim) {
          if (to_dim == dim) continue;
          Sharding moved = after;
          for (int i = taken.size() - 1; i >= 0; --i) moved.dims[to_dim].PushMinor(taken[i]);
          Add(edges, before, moved, ReshardKind::kAllToAll, taken.axes());
        }
      }
    }
    return edges;
  }

  const Shape& shape_;
  const Mesh& mesh_;
  std::map<Sharding, double> cost_;
};

using Random = std::mt19937;

int DrawnBelow(Random& random, int limit) { return static_cast<int>(random() % limit); }

Sharding RandomSharding(Random& random, const Shape& shape, const Mesh& mesh) {
  while (true) {
    Sharding sharding = Sharding::Replicated(shape.rank());
    std::vector<int> order(mesh.num_axes());
    for (int axis = 0; axis < mesh.num_axes(); ++axis) order[axis] = axis;
    std::shuffle(order.begin(), order.end(), random);
    for (const int axis : order) {
      const int place = DrawnBelow(random, shape.rank() + 2);
      if (place < shape.rank()) sharding.dims[place].PushMinor(axis);
      if (place == shape.rank()) sharding.partial.Insert(axis);
    }
    if (Validate(sharding, shape, mesh).ok()) return sharding;
  }
}

void CheckPath(const ReshardPath& path, const Shape& shape, const Sharding& from,
               const Sharding& to, const Mesh& mesh) {
  Sharding current = from;
  double cost = 0;
  for (const ReshardStep& step : path.steps) {
    ASSERT_TRUE(Validate(step.result, shape, mesh).ok());
    if (mesh.size(step.axes.axes()) > 1) {
      cost += AlphaBetaOn(mesh)(WorkOfStep(shape, current, step, mesh));
    }
    if (step.kind == ReshardKind::kAllGather) {
      AxisList gathered = step.result.dims[step.dim];
      for (int i = 0; i < step.axes.size(); ++i) gathered.PushMinor(step.axes[i]);
      EXPECT_EQ(gathered, current.dims[step.dim]);
    }
    current = step.result;
  }
  EXPECT_EQ(current, to);
  EXPECT_NEAR(path.cost, cost, 1e-9 * cost);
}

TEST(Reshard, RandomPathsEndAtTheGoalAndAreAsCheapAsBruteForce) {
  Random random(7);
  const std::vector<const char*> meshes = {"2x2", "2x3", "4x2", "2x2x2", "2x3x2"};
  for (int trial = 0; trial < 300; ++trial) {
    const Mesh mesh = *Mesh::Parse(meshes[DrawnBelow(random, static_cast<int>(meshes.size()))]);
    Shape shape{kF32, {}};
    const int rank = DrawnBelow(random, 4);
    for (int dim = 0; dim < rank; ++dim) {
      shape.dims.push_back(std::vector<int64_t>{1, 2, 6, 8, 12, 24}[DrawnBelow(random, 6)]);
    }
    const Sharding from = RandomSharding(random, shape, mesh);
    const Sharding to = RandomSharding(random, shape, mesh);
    SCOPED_TRACE(ToString(shape) + " " + ToString(from, mesh) + " -> " + ToString(to, mesh));
    EXPECT_EQ(*ParseSharding(ToString(from, mesh), mesh), from);
    const ReshardPath path = CheapestReshard(shape, from, to, mesh, AlphaBetaOn(mesh));
    CheckPath(path, shape, from, to, mesh);
    const double best = BruteForce(shape, mesh).Cheapest(from, to);
    EXPECT_NEAR(path.cost, best, 1e-9 * best) << Describe(path, mesh);
    EXPECT_EQ(path.steps, CheapestReshard(shape, from, to, mesh, AlphaBetaOn(mesh)).steps);
    ASSERT_TRUE(SearchesEveryAxis(mesh));
    // A second search finds the steps of the first.
    ReshardDistances distances(shape, mesh, AlphaBetaOn(mesh));
    EXPECT_EQ(distances.Between(to, from),
              CheapestReshard(shape, to, from, mesh, AlphaBetaOn(mesh)).cost);
    EXPECT_EQ(distances.Between(from, to), path.cost);
  }
}

// Noise makes larger groups cheaper than smaller ones, so that it would pay to make sums of more
// axes.
TEST(Reshard, DistancesAreThoseOfThePathsWhateverThePrices) {
  Random random(17);
  for (int trial = 0; trial < 300; ++trial) {
    const Mesh mesh = *Mesh::Parse(trial % 2 == 0 ? "2x4" : "2x2x2");
    const Shape shape{kF32, {8, 24}};
    std::map<StepWork, double> prices;
    const ReshardPrice price = [&](const StepWork& work) {
      const double noise = IsCollective(work.kind) ? DrawnBelow(random, 100) : 1;
      return prices.try_emplace(work, noise).first->second;
    };
    ReshardDistances distances(shape, mesh, price);
    for (int i = 0; i < 10; ++i) {
      const Sharding from = RandomSharding(random, shape, mesh);
      const Sharding to = RandomSharding(random, shape, mesh);
      EXPECT_DOUBLE_EQ(distances.Between(from, to),
                       CheapestReshard(shape, from, to, mesh, price).cost)
          << ToString(from, mesh) << " -> " << ToString(to, mesh);
    }
  }
}

TEST(Reshard, ManyAxesStillReachTheGoal) {
  Random random(11);
  const Mesh mesh = *Mesh::Parse("2x2x2x2x2");
  const Shape shape{kF32, {32, 64, 16}};
  for (int trial = 0; trial < 20; ++trial) {
    const Sharding from = RandomSharding(random, shape, mesh);
    const Sharding to = RandomSharding(random, shape, mesh);
    CheckPath(CheapestReshard(shape, from, to, mesh, AlphaBetaOn(mesh)), shape, from, to, mesh);
  }
}

TEST(Reshard, ThreeAxesAndFourDimsTakeMicroseconds) {
  Random random(13);
  const Mesh mesh = *Mesh::Parse("2x4x2");
  const Shape shape{kF32, {64, 128, 16, 64}};
  const int trials = 1000;
  const std::clock_t begin = std::clock();  // processor time: other programs do not count
  for (int trial = 0; trial < trials; ++trial) {
    const Sharding from = RandomSharding(random, shape, mesh);
    const Sharding to = RandomSharding(random, shape, mesh);
    CheapestReshard(shape, from, to, mesh, AlphaBetaOn(mesh));
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  RecordProperty("us_per_reshard", fmt::format("{:.1f}", seconds / trials * 1e6));
  // About 50 us in optimised builds; a search that has lost its pruning takes far longer.
  EXPECT_LT(seconds / trials * 1e6, 2000);
}

}  // namespace
}  // namespace minka
