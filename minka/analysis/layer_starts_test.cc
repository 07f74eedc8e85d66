#include "minka/analysis/layer_starts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/analysis/phases.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"

namespace minka {
namespace {

const Shape kBlock{ElementType::kF32, {4, 4}};

// x += tanh(x) w_i for three blocks; the loss is a sum of masked squares. The mask comes from the
// labels alone.
class ThreeBlocks : public testing::Test {
 protected:
  ThreeBlocks() {
    ModuleBuilder module("blocks");
    ComputationBuilder b = module.Entry();
    std::vector<Value> weights;
    for (int i = 0; i < 3; ++i) {
      const std::string name = "params/block_" + std::to_string(i) + "/kernel";
      weights.push_back(b.Parameter(kBlock, name));
      step_.parameters.push_back({.role = ParameterRole::kState, .name = name, .state_result = i});
      step_.results.push_back({ResultRole::kState, name});
    }
    Value stream = b.Parameter(kBlock, "x");
    const Value labels = b.Parameter(kBlock, "labels");
    for (const char* name : {"x", "labels"}) {
      step_.parameters.push_back({.role = ParameterRole::kBatch, .name = name, .batch_dim = 0});
    }
    mask = b.Unary(Opcode::kNegate, labels);
    std::vector<Value> read;
    for (int i = 0; i < 3; ++i) {
      b.SetOpName("model/block_" + std::to_string(i) + "/dot");
      read.push_back(b.Unary(Opcode::kTanh, stream));
      const Value kernel = b.Unary(Opcode::kNegate, weights[i]);
      stream = b.Binary(Opcode::kAdd, stream, b.Dot(read[i], kernel, {{1}, {0}}));
      sums.push_back(stream);
    }
    b.SetOpName("");
    const Value masked = b.Binary(Opcode::kMultiply, stream, mask);
    loss = b.Reduce(masked, b.Scalar(ElementType::kF32, 0), {0, 1}, Opcode::kAdd);
    std::vector<Value> results;
    for (int i = 0; i < 3; ++i) {
      results.push_back(b.Binary(Opcode::kSubtract, weights[i], b.Dot(read[i], mask, {{0}, {0}})));
    }
    results.push_back(loss);
    b.SetResults(results);
    step_.module = *std::move(module).Finish();
    step_.results.push_back({ResultRole::kLoss, "loss"});
  }

  absl::StatusOr<Layers> From(const std::vector<std::string>& starts) const {
    return LayersFrom(step_, ClassifyPhases(step_), starts);
  }

  std::vector<int> LayersOfBlocks(const std::vector<std::string>& starts) const {
    const absl::StatusOr<Layers> layers = From(starts);
    EXPECT_TRUE(layers.ok()) << Message(layers.status());
    std::vector<int> of_blocks;
    for (const Value sum : sums) of_blocks.push_back(layers->layer[sum.instruction]);
    // What is made of labels alone stands where it is read.
    EXPECT_EQ(layers->layer[mask.instruction], of_blocks.back());
    EXPECT_EQ(layers->layer[loss.instruction], of_blocks.back());
    EXPECT_EQ(layers->count, of_blocks.back() + 1);
    return of_blocks;
  }

  Step step_;
  Value mask, loss;
  std::vector<Value> sums;
};

using ::testing::ElementsAre;

TEST_F(ThreeBlocks, LayersBeginAtOperationsByTheirNamesInTheModel) {
  EXPECT_THAT(LayersOfBlocks({"model/block_1/*"}), ElementsAre(0, 1, 1));
  EXPECT_THAT(LayersOfBlocks({"*/block_1/*", "*/block_2/*"}), ElementsAre(0, 1, 2));
}

TEST_F(ThreeBlocks, LayersBeginAtWhatReadsAParameter) {
  EXPECT_THAT(LayersOfBlocks({"params/block_2/*"}), ElementsAre(0, 0, 1));
}

TEST_F(ThreeBlocks, NothingNeedLieInFrontOfTheFirst) {
  EXPECT_THAT(LayersOfBlocks({"*/block_0/*", "*/block_2/*"}), ElementsAre(0, 0, 1));
}

TEST_F(ThreeBlocks, NumbersAreThoseOfLayersBetweenBoundaries) {
  step_.marks = {{MarkKind::kLayerBoundary, sums[0], 0}, {MarkKind::kLayerBoundary, sums[1], 1}};
  EXPECT_THAT(LayersOfBlocks({"0", "2"}), ElementsAre(0, 0, 1));
  EXPECT_THAT(LayersOfBlocks({"1", "*/block_2/*"}), ElementsAre(0, 1, 2));
  EXPECT_EQ(Message(From({"3"}).status()),
            "a layer shall begin with layer 3, but blocks has 3 between boundaries");
}

TEST_F(ThreeBlocks, RefusalsNameTheStart) {
  EXPECT_EQ(Message(From({"*/block_7/*"}).status()),
            "a layer shall begin at \"*/block_7/*\", which names nothing in the forward pass of "
            "blocks; there are names of operations, their names in the model and names of "
            "parameters");
  EXPECT_EQ(Message(From({"*/block_2/*", "*/block_1/*"}).status()),
            "nothing is left for the layer that begins at \"*/block_2/*\": all of it depends on "
            "what a later layer begins with; name them in the order of the forward pass of blocks");
}

}  // namespace
}  // namespace minka
