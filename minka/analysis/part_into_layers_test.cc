#include "minka/analysis/part_into_layers.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/phases.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

using testing::ElementsAre;

// Writes a step whose loss is the sum of a value.
class StepWriter {
 public:
  StepWriter() : module_("step"), b_(module_.Entry()) {}

  ComputationBuilder& builder() { return b_; }

  Value Batch(std::vector<int64_t> dims) {
    parameters_.push_back({.role = ParameterRole::kBatch, .name = "x", .batch_dim = 0});
    return b_.Parameter({ElementType::kF32, std::move(dims)}, "x");
  }

  // x w
  Value Dense(Value x, int64_t size) {
    parameters_.push_back({.role = ParameterRole::kState, .name = "w"});
    const Value w = b_.Parameter({ElementType::kF32, {b_.shape(x).dims[1], size}},
                                 "w" + std::to_string(parameters_.size()));
    return b_.Dot(x, w, {{1}, {0}});
  }

  Value Sum(Value x) { return b_.Reduce(x, b_.Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd); }

  Step Finish(Value last) && {
    b_.SetResults({Sum(last)});
    Step step;
    step.module = *std::move(module_).Finish();
    step.parameters = parameters_;
    step.results = {{ResultRole::kLoss, "loss"}};
    return step;
  }

 private:
  ModuleBuilder module_;
  ComputationBuilder b_;
  std::vector<ParameterInfo> parameters_;
};

std::vector<int> LayersOf(const Step& step, int num_layers, const std::vector<Value>& values) {
  const Layers layers = PartIntoLayers(step, ClassifyPhases(step), num_layers);
  EXPECT_EQ(layers.count, num_layers);
  std::vector<int> found;
  for (const Value value : values) found.push_back(layers.layer[value.instruction]);
  return found;
}

TEST(PartIntoLayers, EqualWorkFallsIntoEqualLayers) {
  StepWriter writer;
  std::vector<Value> dots, tanhs;
  Value x = writer.Batch({8, 16});
  for (int i = 0; i < 6; ++i) {
    dots.push_back(writer.Dense(x, 16));
    tanhs.push_back(x = writer.builder().Unary(Opcode::kTanh, dots.back()));
  }
  const Step step = std::move(writer).Finish(x);
  EXPECT_THAT(LayersOf(step, 3, dots), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(LayersOf(step, 3, tanhs), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(LayersOf(step, 6, dots), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(LayersOf(step, 1, dots), ElementsAre(0, 0, 0, 0, 0, 0));
}

// 16 -> 64 -> 16 -> 64 -> ...: cuts lie where tensors are narrow.
TEST(PartIntoLayers, FewBytesCross) {
  StepWriter writer;
  std::vector<Value> dots;
  Value x = writer.Batch({8, 16});
  for (int i = 0; i < 6; ++i) {
    x = writer.builder().Unary(Opcode::kTanh, writer.Dense(x, 64));
    dots.push_back(x);
    dots.push_back(x = writer.Dense(x, 16));
  }
  const Step step = std::move(writer).Finish(x);
  EXPECT_THAT(LayersOf(step, 4, dots), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3));
}

// Between second and third dot the first one's result crosses as well as the second one's.
TEST(PartIntoLayers, ValuesCountForEveryCutThatTheyCross) {
  StepWriter writer;
  const Value first = writer.Dense(writer.Batch({8, 64}), 64);
  const Value second = writer.Dense(first, 64);
  const Value third = writer.Dense(second, 64);
  const Value last = writer.builder().Binary(Opcode::kAdd, third, first);
  const Step step = std::move(writer).Finish(last);
  EXPECT_THAT(LayersOf(step, 2, {first, second, third}), ElementsAre(0, 1, 1));
}

// An auxiliary loss is made where its layer is, though the sum at the end reads it; what a layer
// expands, it expands itself; what the batch alone gives is made where it is read.
TEST(PartIntoLayers, LightOperationsStandWhereLeastIsSent) {
  StepWriter writer;
  ComputationBuilder& b = writer.builder();
  const Value x = writer.Batch({8, 16});
  const Value mask = b.Unary(Opcode::kNegate, x);
  const Value first = writer.Dense(x, 64);
  const Value column = b.Reduce(first, b.Scalar(ElementType::kF32, 0), {1}, Opcode::kAdd);
  const Value narrow = writer.Dense(first, 16);
  const Value second = writer.Dense(writer.Dense(narrow, 64), 16);
  const Value expanded = b.Broadcast(column, {8, 16}, {0});
  const Value masked = b.Binary(Opcode::kMultiply, b.Binary(Opcode::kAdd, second, expanded), mask);
  const Value squares = b.Binary(Opcode::kMultiply, first, first);
  const Value auxiliary = writer.Sum(squares);
  const Step step =
      std::move(writer).Finish(b.Binary(Opcode::kAdd, masked, b.Broadcast(auxiliary, {8, 16}, {})));
  EXPECT_THAT(LayersOf(step, 2, {first, column, squares, auxiliary, narrow}),
              ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(LayersOf(step, 2, {second, expanded, masked, mask}), ElementsAre(1, 1, 1, 1));
}

// More layers than operations with FLOPs: all of them are cut.
TEST(PartIntoLayers, LightOperationsMakeLayersWhereHeavyOnesAreFew) {
  StepWriter writer;
  std::vector<Value> values = {writer.Dense(writer.Batch({8, 16}), 16)};
  for (int i = 0; i < 5; ++i) {
    values.push_back(writer.builder().Unary(Opcode::kTanh, values.back()));
  }
  const Step step = std::move(writer).Finish(values.back());
  const std::vector<int> layers = LayersOf(step, 3, values);
  EXPECT_TRUE(std::ranges::is_sorted(layers));
  EXPECT_EQ(std::set<int>(layers.begin(), layers.end()).size(), 3U);
  EXPECT_EQ(PartIntoLayers(step, ClassifyPhases(step), 99).count, 7);
}

TEST(PartIntoLayers, WhatTheBatchAloneGivesMakesNoLayer) {
  StepWriter writer;
  const Value last = writer.builder().Unary(Opcode::kTanh, writer.Batch({8, 16}));
  const Step step = std::move(writer).Finish(last);
  EXPECT_EQ(PartIntoLayers(step, ClassifyPhases(step), 2).count, 0);
}

}  // namespace
}  // namespace minka
