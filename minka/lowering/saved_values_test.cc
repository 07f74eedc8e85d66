#include "minka/lowering/saved_values.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRows = 64, kColumns = 32;
const Shape kMatrix{ElementType::kF32, {kRows, kColumns}};
const Shape kWeight{ElementType::kF32, {kColumns, kColumns}};
const Shape kRow{ElementType::kF32, {kColumns}};

// A stage with one layer; everything from EndForward on is its backward program.
class StageBuilder {
 public:
  StageBuilder() : module_("stage"), b(module_.Entry()) {}

  Value Received(const char* name) {
    const Value value = b.Parameter(kMatrix, name);
    received_.push_back(num_parameters_++);
    return value;
  }
  Value Held(const Shape& shape, const char* name) {
    ++num_parameters_;
    return b.Parameter(shape, name);
  }
  Value Name(Value value, const char* name) {
    names_.emplace_back(value, name);
    return value;
  }
  Value Product(Value x, Value w) {
    return b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  }
  void EndForward() { num_forward_ = Size(); }
  StageStep Finish(std::vector<Value> results) {
    b.SetResults(std::move(results));
    StageStep stage{.step = {.module = std::move(module_).Finish().value()}};
    Computation& entry = stage.step.module.entry_computation();
    for (const auto& [value, name] : names_) entry.instructions[value.instruction].name = name;
    for (int id = 0; id < entry.num_instructions(); ++id) {
      stage.tasks.push_back({id < num_forward_ ? ProgramKind::kForward : ProgramKind::kBackward});
    }
    return SaveLess(std::move(stage), received_);
  }

 private:
  int Size() { return b.Iota(kRow, 0).instruction + 1; }

  ModuleBuilder module_;
  int num_parameters_ = 0, num_forward_ = 0;
  std::vector<int> received_;
  std::vector<std::pair<Value, std::string>> names_;

 public:
  ComputationBuilder b;
};

// Names of what backward instructions read of what the forward program made or received.
std::set<std::string> Saved(const StageStep& stage) {
  const absl::Status verified = Verify(stage.step.module);
  EXPECT_TRUE(verified.ok()) << Message(verified);
  const Computation& entry = stage.step.module.entry_computation();
  EXPECT_EQ(stage.tasks.size(), entry.instructions.size());
  std::set<std::string> names;
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    if (stage.tasks[id].kind != ProgramKind::kBackward) continue;
    for (const Value operand : entry.instructions[id].operands) {
      if (stage.tasks[operand.instruction].kind == ProgramKind::kForward) {
        names.insert(entry.instruction(operand).name);
      }
    }
  }
  return names;
}

// relu(x w + bias): the sum is kept, not the mask nor what the next product reads.
TEST(SaveLess, RepeatsWhatIsComputedElementByElement) {
  StageBuilder stage;
  ComputationBuilder& b = stage.b;
  const Value x = stage.Received("x");
  const Value w = stage.Held(kWeight, "w"), v = stage.Held(kWeight, "v");
  const Value bias = stage.Held(kRow, "bias");
  const Value sum = stage.Name(
      b.Binary(Opcode::kAdd, stage.Product(x, w), b.Broadcast(bias, kMatrix.dims, {1})), "sum");
  const Value mask = b.Compare(CompareAttributes::Direction::kGt, sum, b.FullLike(sum, 0));
  const Value relu = b.Binary(Opcode::kMaximum, sum, b.FullLike(sum, 0));
  const Value y = stage.Name(stage.Product(relu, v), "y");
  stage.EndForward();
  const Value gradient = b.Select(mask, y, b.FullLike(y, 0));
  const Value weight_gradient = b.Dot(relu, y, {.lhs_contracting = {0}, .rhs_contracting = {0}});
  EXPECT_THAT(Saved(stage.Finish({y, gradient, weight_gradient})),
              ::testing::UnorderedElementsAre("sum", "y"));
}

// Where the whole is needed anyway, the cut does not keep more than one of both.
TEST(SaveLess, KeepsTheSmallerSide) {
  StageBuilder stage;
  ComputationBuilder& b = stage.b;
  const Value x = stage.Received("x");
  const Value row =
      stage.Name(b.Reduce(x, b.Scalar(ElementType::kF32, 0), {0}, Opcode::kAdd), "row");
  const Value wide = stage.Name(b.Broadcast(row, kMatrix.dims, {1}), "wide");
  stage.EndForward();
  EXPECT_THAT(Saved(stage.Finish({b.Unary(Opcode::kNegate, wide)})), ElementsAre("row"));
}

TEST(SaveLess, DoesNotRepeatWhatIsDear) {
  StageBuilder stage;
  ComputationBuilder& b = stage.b;
  const Value x = stage.Received("x");
  const Value power = stage.Name(b.Unary(Opcode::kExponential, x), "power");
  stage.EndForward();
  EXPECT_THAT(Saved(stage.Finish({b.Unary(Opcode::kNegate, power)})), ElementsAre("power"));
}

}  // namespace
}  // namespace minka
