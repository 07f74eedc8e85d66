// Properties of strategies that hold for every rule, over random small operations.
#include <algorithm>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/shape_inference.h"
#include "minka/sharding/op_rule.h"

namespace minka {
namespace {

using ElementType::kF32;
using ElementType::kS32;

using Random = std::mt19937;

int Below(Random& random, int limit) { return static_cast<int>(random() % limit); }

Value RandomArray(Random& random, ComputationBuilder& b, int rank) {
  Shape shape{kF32, {}};
  for (int dim = 0; dim < rank; ++dim) {
    shape.dims.push_back(std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12}[Below(random, 7)]);
  }
  return b.Parameter(shape, "x");
}

Value RandomTranspose(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 3);
  std::vector<int64_t> permutation = {0, 1, 2};
  std::shuffle(permutation.begin(), permutation.end(), random);
  return b.Transpose(x, permutation);
}

Value RandomDot(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 4);
  const std::vector<int64_t> dims = b.shape(x).dims;
  const Value y = b.Parameter({kF32, {dims[3], 4, dims[0], dims[1]}}, "y");
  return b.Dot(x, y, {{3, 1}, {0, 3}, {0}, {2}});
}

Value RandomReduce(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 3);
  const Opcode reducer = Below(random, 2) == 0 ? Opcode::kAdd : Opcode::kMaximum;
  return b.Reduce(x, b.Scalar(kF32, 0), {Below(random, 3)}, reducer);
}

Value RandomConcatenate(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 3);
  const std::vector<Value> parts = {x, b.Parameter(b.shape(x), "y")};
  return b.Concatenate(parts, Below(random, 3));
}

Value RandomPad(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 2);
  return b.Pad(x, b.Scalar(kF32, 1), {{Below(random, 2), 0}, {0, Below(random, 2)}, {0, 0}});
}

Value RandomScatter(Random& random, ComputationBuilder& b) {
  const Value table = RandomArray(random, b, 2);
  const int64_t columns = b.shape(table).dims[1];
  const Value indices = b.Parameter({kS32, {4, 6, 1}}, "indices");
  ScatterAttributes scatter;
  scatter.update_window_dims = {2};
  scatter.inserted_window_dims = {0};
  scatter.scatter_dims_to_operand_dims = {0};
  scatter.index_vector_dim = 2;
  return b.Scatter(table, indices, b.Parameter({kF32, {4, 6, columns}}, "updates"), scatter,
                   Opcode::kAdd);
}

Value RandomElementwise(Random& random, ComputationBuilder& b) {
  const Value x = RandomArray(random, b, 3);
  const Value y = b.Parameter(b.shape(x), "y");
  switch (Below(random, 3)) {
    case 0:
      return b.Binary(Opcode::kAdd, x, y);
    case 1:
      return b.Select(b.Parameter({ElementType::kPred, {}}, "p"), x, y);
    default:
      return b.Unary(Opcode::kNegate, x);
  }
}

// Operations whose attributes hold no sizes, so that they run on local shapes as they are.
Value RandomOperation(Random& random, ComputationBuilder& b) {
  switch (Below(random, 7)) {
    case 0:
      return RandomTranspose(random, b);
    case 1:
      return RandomDot(random, b);
    case 2:
      return RandomReduce(random, b);
    case 3:
      return RandomConcatenate(random, b);
    case 4:
      return RandomPad(random, b);
    case 5:
      return RandomScatter(random, b);
    default:
      return RandomElementwise(random, b);
  }
}

struct Operation {
  Module module;
  InstructionId id = 0;
  OpRule rule;
  const Instruction& instruction() const { return module.entry_computation().instructions[id]; }
  const Shape& operand(size_t i) const {
    return module.entry_computation().shape(instruction().operands[i]);
  }
};

template <typename Build>
Operation Make(Build build) {
  ModuleBuilder builder("m");
  ComputationBuilder entry = builder.Entry();
  const Value value = build(entry);
  entry.SetResults({value});
  absl::StatusOr<Module> module = std::move(builder).Finish();
  EXPECT_TRUE(module.ok()) << module.status();
  Operation operation{*std::move(module), value.instruction, {}};
  operation.rule = RuleFor(operation.module, operation.module.entry_computation(), operation.id);
  return operation;
}

TEST(Strategy, LocalOperandsGiveLocalResults) {
  Random random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Operation operation =
        Make([&](ComputationBuilder& b) { return RandomOperation(random, b); });
    const Mesh mesh = *Mesh::Parse(trial % 2 == 0 ? "2x2" : "2x3");
    for (const Strategy& strategy : EnumerateStrategies(operation.rule, mesh)) {
      SCOPED_TRACE(ToString(strategy, operation.rule, mesh));
      std::vector<Shape> operands;
      for (size_t i = 0; i < operation.instruction().operands.size(); ++i) {
        const Sharding sharding = OperandSharding(operation.rule, strategy, static_cast<int>(i));
        ASSERT_TRUE(Validate(sharding, operation.operand(i), mesh).ok());
        operands.push_back(LocalShape(operation.operand(i), sharding, mesh));
      }
      const Sharding result = ResultSharding(operation.rule, strategy, 0);
      ASSERT_TRUE(Validate(result, operation.instruction().shape(), mesh).ok());
      const auto inferred = InferShapes(operation.module, operation.instruction(), operands);
      ASSERT_TRUE(inferred.ok()) << inferred.status();
      EXPECT_EQ(inferred->front(), LocalShape(operation.instruction().shape(), result, mesh));
    }
  }
}

TEST(Strategy, TextsOfAllStrategiesParseBackAndDiffer) {
  Random random(4);
  const Mesh mesh = *Mesh::Parse("data=2,model=2");
  for (int trial = 0; trial < 50; ++trial) {
    const Operation operation =
        Make([&](ComputationBuilder& b) { return RandomOperation(random, b); });
    const std::vector<Strategy> strategies = EnumerateStrategies(operation.rule, mesh);
    EXPECT_EQ(ToString(strategies[0], operation.rule, mesh), "idle");
    std::set<Strategy> seen;
    for (const Strategy& strategy : strategies) {
      EXPECT_TRUE(seen.insert(strategy).second);
      const std::string text = ToString(strategy, operation.rule, mesh);
      const auto parsed = ParseStrategy(text, operation.rule, mesh);
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(*parsed, strategy) << text;
    }
  }
}

// The row-major positions of the elements that the device holds, in its own row-major order.
std::vector<int64_t> Positions(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
                               int64_t device) {
  const Shape local = LocalShape(shape, sharding, mesh);
  std::vector<int64_t> positions = {0};
  for (int dim = 0; dim < shape.rank(); ++dim) {
    int64_t part = 0;
    for (int i = 0; i < sharding.dims[dim].size(); ++i) {
      const int axis = sharding.dims[dim][i];
      part = part * mesh.size(axis) + mesh.Coordinate(device, axis);
    }
    std::vector<int64_t> finer;
    for (const int64_t position : positions) {
      for (int64_t i = 0; i < local.dims[dim]; ++i) {
        finer.push_back(position * shape.dims[dim] + part * local.dims[dim] + i);
      }
    }
    positions = std::move(finer);
  }
  return positions;
}

// Both shapes are products of the same numbers in the same order, grouped differently.
std::vector<int64_t> RandomGrouping(Random& random, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> dims = {1};
  for (const int64_t number : numbers) {
    if (Below(random, 2) == 0) dims.push_back(1);
    dims.back() *= number;
  }
  return dims;
}

TEST(Strategy, LocalReshapesMoveNoElement) {
  Random random(5);
  int num_split = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> numbers;
    for (int i = 0; i < 4; ++i) numbers.push_back(std::vector<int64_t>{2, 3, 4}[Below(random, 3)]);
    const std::vector<int64_t> to = RandomGrouping(random, numbers);
    const std::vector<int64_t> from = RandomGrouping(random, numbers);
    const Operation reshape =
        Make([&](ComputationBuilder& b) { return b.Reshape(b.Parameter({kF32, from}, "x"), to); });
    const Mesh mesh = *Mesh::Parse(trial % 2 == 0 ? "2x2" : "2x3");
    for (const Strategy& strategy : EnumerateStrategies(reshape.rule, mesh)) {
      const Sharding before = OperandSharding(reshape.rule, strategy, 0);
      const Sharding after = ResultSharding(reshape.rule, strategy, 0);
      num_split += before.split_axes().empty() ? 0 : 1;
      for (int64_t device = 0; device < mesh.num_devices(); ++device) {
        ASSERT_EQ(Positions(reshape.operand(0), before, mesh, device),
                  Positions(reshape.instruction().shape(), after, mesh, device))
            << ToString(reshape.operand(0)) << ToString(before, mesh) << " -> "
            << ToString(reshape.instruction().shape()) << ToString(after, mesh);
      }
    }
  }
  EXPECT_GT(num_split, 300);
}

TEST(Strategy, LimitsCutAxesOnAFactorAndPartialAxes) {
  const Operation dot = Make([](ComputationBuilder& b) {
    const Value x = b.Parameter({kF32, {8, 8}}, "x");
    return b.Dot(x, b.Parameter({kF32, {8, 8}}, "y"), {{1}, {0}, {}, {}});
  });
  const Mesh mesh = *Mesh::Parse("2x2x2");
  EXPECT_EQ(EnumerateStrategies(dot.rule, mesh).size(), 216u);  // 6 uses of each axis
  const StrategyLimits limits{.max_axes_per_factor = 1, .max_partial_axes = 1};
  for (const Strategy& strategy : EnumerateStrategies(dot.rule, mesh, limits)) {
    const Sharding result = ResultSharding(dot.rule, strategy, 0);
    EXPECT_LE(mesh.size(result.partial), 2);
    for (const AxisList& axes : result.dims) EXPECT_LE(axes.size(), 1);
  }
}

TEST(Strategy, TextNamesWhatItDoesNotKnow) {
  const OpRule rule = Make([](ComputationBuilder& b) {
                        const Value x = b.Parameter({kF32, {8, 6}}, "x");
                        return b.Binary(Opcode::kAdd, x, b.Parameter({kF32, {8, 6}}, "y"));
                      }).rule;
  const Mesh mesh = *Mesh::Parse("data=2,model=4");
  EXPECT_EQ(Message(ParseStrategy("data: dim 7", rule, mesh).status()),
            "strategy: the operation has no factor 'dim 7'; it has: dim 0, dim 1, partial(0,1)");
  EXPECT_EQ(Message(ParseStrategy("date: dim 0", rule, mesh).status()),
            "strategy 'date: dim 0': the mesh data=2,model=4 has no axis 'date'");
  EXPECT_EQ(Message(ParseStrategy("model: dim 1", rule, mesh).status()),
            "strategy 'model: dim 1': dim 1 of size 6 cannot be cut into 4");
}

}  // namespace
}  // namespace minka
