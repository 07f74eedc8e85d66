#include "minka/driver/prepare.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/driver/prepared_steps.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/stages.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/registry.h"

namespace minka {
namespace {

TEST(Prepare, WhatWasPreparedBeforeIsRefused) {
  const Step step = Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 2}), Sgd()).value().step;
  const auto prepared = Prepare(step, {.micro_batches = {.num_micro_batches = 2}});
  ASSERT_TRUE(prepared.ok()) << Message(prepared.status());
  EXPECT_EQ(Message(Prepare(*prepared).status()),
            fmt::format("the module of {} carries minka.num_micro_batches: the module has been "
                        "prepared before; give the one it was made of",
                        prepared->module.name));
  Step barrier = step;
  Instruction& last = barrier.module.entry_computation().instructions.back();
  last.frontend_attributes["minka.barrier"] = "remat 0";
  EXPECT_EQ(Message(Prepare(barrier).status()),
            fmt::format("'{}' of {} carries minka.barrier: the module has been prepared before; "
                        "give the one it was made of",
                        last.name, step.module.name));
}

TEST(PreparedSteps, GiveWhatPrepareGivesForAnyNumberOfMicroBatches) {
  const Step step = Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 2}), Sgd()).value().step;
  PreparedSteps steps(Simplify(step).value());
  for (const RematChoice& remat : {RematChoice(), RematChoice{RematPolicy::kAll}}) {
    for (const int64_t num_micro_batches : {1, 2, 4}) {
      const MicroBatchOptions micro_batches{.num_micro_batches = num_micro_batches};
      const Step* prepared = steps.With(remat, micro_batches).value();
      const Step expected = Prepare(step, {.micro_batches = micro_batches, .remat = remat}).value();
      EXPECT_EQ(HloText(ToModule(*prepared)), HloText(ToModule(expected)));
      EXPECT_EQ(steps.With(remat, micro_batches).value(), prepared);
    }
  }
}

// Also those of embeddings, which are smaller than what they are made of, so that the layers of a
// transformer are equal from the first on.
TEST(Prepare, GradientsOfWeightsAreMadeInTheLayerOfTheWeights) {
  const Step simplified =
      Simplify(TraceModel("gpt-tiny", {.global_batch = 512})->step, MarkedLayers{}).value();
  const Computation& entry = simplified.module.entry_computation();
  int num_gradients = 0;
  for (const Instruction& instruction : entry.instructions) {
    if (instruction.part.phase != Phase::kApply || instruction.part.layer < 0) continue;
    for (const Value operand : instruction.operands) {
      const Instruction& made = entry.instructions[operand.instruction];
      if (made.part.phase != Phase::kBackward) continue;
      EXPECT_EQ(made.part.layer, instruction.part.layer) << made.name;
      ++num_gradients;
    }
  }
  EXPECT_GE(num_gradients, 100);
}

// A router's auxiliary loss has a gradient that waits for no layer above.
TEST(PrepareWholeBatch, LayersEndBeforeLowerOnesAreComputedAgain) {
  const Step step = TraceModel("moe-10b")->step;
  const Step prepared =
      PrepareWholeBatch(Simplify(step, AutoLayers{18}, /*unrolls_loops=*/true).value(),
                        {RematPolicy::kAll})
          .value();
  const Computation& entry = prepared.module.entry_computation();
  std::map<int, InstructionId> last;  // of backward passes, by layer
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const StepPart& part = entry.instructions[id].part;
    if (part.phase == Phase::kBackward) last[part.layer] = id;
  }
  int num_regions = 0;
  for (const Mark& mark : prepared.marks) {
    if (mark.kind != MarkKind::kRematRegion || !last.contains(mark.index + 2)) continue;
    ++num_regions;
    EXPECT_LT(last[mark.index + 2], mark.value.instruction) << "layer " << mark.index;
  }
  EXPECT_GE(num_regions, 4);
}

// So that each may have its own sharding.
TEST(Prepare, ALoopThatCarriesTheSameZerosTwiceHasTwoOfThem) {
  const Module module = ParseHloText(R"(HloModule m

condition {
  state = (s32[], f32[8], f32[8]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  trips = s32[] constant(5)
  ROOT less = pred[] compare(trip, trips), direction=LT
}

body {
  state = (s32[], f32[8], f32[8]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(trip, one)
  first = f32[8] get-tuple-element(state), index=1
  second = f32[8] get-tuple-element(state), index=2
  sum = f32[8] add(first, second)
  exponential = f32[8] exponential(sum)
  ROOT carried = (s32[], f32[8], f32[8]) tuple(next, sum, exponential)
}

ENTRY e {
  zero = s32[] constant(0)
  nought = f32[] constant(0)
  zeros = f32[8] broadcast(nought), dimensions={}
  initial = (s32[], f32[8], f32[8]) tuple(zero, zeros, zeros)
  loop = (s32[], f32[8], f32[8]) while(initial), condition=condition, body=body
  ROOT result = f32[8] get-tuple-element(loop), index=1
}
)")
                            .value();
  const Step prepared = Prepare(MakeStep(module, {}).value()).value();
  const Computation& entry = prepared.module.entry_computation();
  const auto loop = std::ranges::find(entry.instructions, Opcode::kWhile, &Instruction::opcode);
  ASSERT_NE(loop, entry.instructions.end());
  const std::set<Value> carried(loop->operands.begin(), loop->operands.end());
  EXPECT_EQ(carried.size(), loop->operands.size()) << HloText(prepared.module);
}

// What a step returns are gradients alone; its loss, marked by a barrier that they stand behind,
// says which pass is which, then goes.
TEST(Prepare, ALossThatNobodyReadsSaysWhatTheForwardPassIs) {
  const Module module = ParseHloText(R"(HloModule m, input_output_alias={ {}: (0, {}, may-alias) }

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY e {
  w = f32[8] parameter(0)
  x = f32[8] parameter(1)
  y = f32[8] multiply(w, x)
  zero = f32[] constant(0)
  loss = f32[] reduce(y, zero), dimensions={0}, to_apply=add
  exponential = f32[8] exponential(y)
  gradient = f32[8] opt-barrier(exponential), frontend_attributes={minka.mark="gradient 0"}
  both = (f32[], f32[8]) tuple(loss, gradient)
  marked = (f32[], f32[8]) opt-barrier(both), frontend_attributes={minka.mark="loss 0"}
  behind = f32[8] get-tuple-element(marked), index=1
  ROOT new = f32[8] subtract(w, behind)
}
)")
                            .value();
  const Step step = MakeStep(module, {}).value();
  EXPECT_EQ(std::ranges::count(step.marks, MarkKind::kLoss, &Mark::kind), 1);
  EXPECT_EQ(std::ranges::count(step.marks, MarkKind::kGradient, &Mark::kind), 1);
  const auto instruction = [](const Step& of, Opcode opcode) {
    const std::vector<Instruction>& all = of.module.entry_computation().instructions;
    return std::ranges::find(all, opcode, &Instruction::opcode);
  };
  const Step simplified = Simplify(step).value();
  ASSERT_TRUE(NamesLoss(simplified));
  EXPECT_EQ(instruction(simplified, Opcode::kMultiply)->part.phase, Phase::kForward);
  EXPECT_EQ(instruction(simplified, Opcode::kExponential)->part.phase, Phase::kBackward);
  const Step prepared = PrepareWholeBatch(simplified, {}).value();
  EXPECT_FALSE(NamesLoss(prepared));
  const auto& all = prepared.module.entry_computation().instructions;
  EXPECT_EQ(instruction(prepared, Opcode::kReduce), all.end());
  EXPECT_EQ(instruction(prepared, Opcode::kExponential)->part.phase, Phase::kBackward);
}

TEST(Prepare, ValuesOfTooManyDimensionsAreRefused) {
  const auto step_of_rank = [](int rank) {
    ModuleBuilder module("m");
    ComputationBuilder b = module.Entry();
    const Value x = b.Parameter({ElementType::kF32, std::vector<int64_t>(rank, 1)}, "x");
    b.SetResults({b.Binary(Opcode::kAdd, x, x)});
    return *MakeStep(*std::move(module).Finish(), {});
  };
  EXPECT_TRUE(Prepare(step_of_rank(30)).ok());
  const std::string message = Message(Prepare(step_of_rank(31)).status());
  EXPECT_TRUE(message.ends_with("of m has 31 dimensions; at most 30 can be planned")) << message;
}

// The number of the block of the network, or -1: "jit(step)/jvp(Gpt)/attention_1/out/dot" is 1.
int BlockOf(const std::string& op_name) {
  static const std::regex kBlock("jvp\\([^/]*\\)/(?:[a-z_]+/)*[a-z_]+_([0-9]+)/.*");
  std::smatch match;
  return std::regex_search(op_name, match, kBlock) ? std::stoi(match[1]) : -1;
}

Step ImportedStep(const std::string& name) {
  const auto bytes = ReadFile(fmt::format("{}/{}.pb", JAX_MODULES, name));
  EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
  auto module = ImportHlo(*bytes);
  EXPECT_TRUE(module.ok()) << Message(module.status());
  // The state, then the loss.
  StepFlags flags{.batch_inputs = {"batch*"}};
  flags.loss = static_cast<int64_t>(module->entry_computation().results.size()) - 1;
  for (int i = 0; i < *flags.loss; ++i) flags.states.push_back(fmt::format("{}:{}", i, i));
  auto step = MakeStep(*std::move(module), flags);
  EXPECT_TRUE(step.ok()) << Message(step.status());
  return *std::move(step);
}

// By boundary between layers: the values that cross it for backward operations' sake, apart from
// those that cross it anyway for forward ones.
std::vector<std::vector<Shape>> CrossingShapes(const Step& step) {
  const Computation& entry = step.module.entry_computation();
  std::vector<std::vector<Shape>> crossing(*step.num_layers - 1);
  const UseTable uses(entry);
  for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
    const Instruction& producer = entry.instructions[id];
    for (int32_t i = 0; i < static_cast<int32_t>(producer.results.size()); ++i) {
      std::set<int> forward, all;
      const auto add = [&](StepPart part) {
        if (part.layer >= 0) all.insert(part.layer);
        if (part.layer >= 0 && part.phase == Phase::kForward) forward.insert(part.layer);
      };
      add(producer.part);
      for (const Use& use : uses.uses({id, i})) add(entry.instructions[use.user].part);
      if (producer.part.layer < 0) continue;
      for (int layer = *all.begin(); layer < *all.rbegin(); ++layer) {
        const bool crosses_anyway =
            !forward.empty() && *forward.begin() <= layer && layer < *forward.rbegin();
        if (!crosses_anyway) crossing[layer].push_back(producer.results[i]);
      }
    }
  }
  return crossing;
}

// Every backward operation stands in a layer of its block, recomputed ones too. One cotangent and
// no more crosses each boundary.
TEST(Prepare, LayersOfFlaxModulesAgreeWithTheNamesOfOperations) {
  struct Case {
    const char* module;
    int num_layers, num_backward;
    Shape stream;
  };
  const auto f32 = [](std::vector<int64_t> dims) {
    return Shape{ElementType::kF32, std::move(dims)};
  };
  for (const Case& c : {Case{"small_gpt_adamw", 6, 228, f32({8, 16, 32})},
                        Case{"small_bert_mlm_two_layers", 7, 252, f32({8, 8, 16})},
                        Case{"small_bert_mlm_two_layers_remat", 5, 618, f32({8, 8, 16})}}) {
    const Step step = *Simplify(ImportedStep(c.module));
    EXPECT_EQ(*step.num_layers, c.num_layers) << c.module;
    std::map<int, std::set<int>> layers_of_block;
    int num_backward = 0;
    for (const Instruction& instruction : step.module.entry_computation().instructions) {
      const int block = BlockOf(instruction.op_name);
      const Phase phase = instruction.part.phase;
      const int layer = instruction.part.layer;
      if (block < 0 || layer < 0) continue;
      if (phase == Phase::kForward) layers_of_block[block].insert(layer);
      if (phase != Phase::kBackward) continue;
      ++num_backward;
      EXPECT_TRUE(layers_of_block[block].contains(layer))
          << c.module << ": " << instruction.op_name << " in layer " << layer;
    }
    EXPECT_EQ(num_backward, c.num_backward) << c.module;
    for (const std::vector<Shape>& shapes : CrossingShapes(step))
      EXPECT_EQ(shapes, std::vector{c.stream}) << c.module;
  }
}

constexpr int64_t kStepCounter = 4;  // bytes that every stage gets

// What crosses boundaries between layers, each a stage of its own: once for each that it crosses.
int64_t BytesBetweenLayers(const Step& step) {
  std::vector<int> stage_of_layer(*step.num_layers);
  std::iota(stage_of_layer.begin(), stage_of_layer.end(), 0);
  const auto staged = CutIntoStages(step, {.stage_of_layer = stage_of_layer});
  EXPECT_TRUE(staged.ok()) << Message(staged.status());
  int64_t bytes = 0;
  for (const Border& border : staged->borders) {
    int lowest = border.from.stage, highest = border.from.stage;
    for (const StagePort& to : border.to) {
      lowest = std::min(lowest, to.stage);
      highest = std::max(highest, to.stage);
    }
    bytes += border.shape.num_bytes() * (highest - lowest);
  }
  return bytes;
}

// An activation goes up and its gradient comes down, and so do tied weights and their gradient.
TEST(Prepare, LayersByNumberSendNoMoreThanThoseBetweenBoundaries) {
  struct Case {
    const char* module;
    int64_t stream_bytes, tied_bytes;
    int most_layers;  // that two blocks can be in, each of about equal work
  };
  for (const Case& c : {Case{"small_gpt_adamw", 8 * 16 * 32 * 4, 0, 4},
                        Case{"small_bert_mlm_two_layers", 8 * 8 * 16 * 4, 32 * 16 * 4, 3},
                        Case{"small_bert_mlm_two_layers_remat", 8 * 8 * 16 * 4, 32 * 16 * 4, 3}}) {
    for (int num_layers = 2; num_layers <= c.most_layers; ++num_layers) {
      const auto step = Prepare(ImportedStep(c.module), {.layers = AutoLayers{num_layers}});
      ASSERT_TRUE(step.ok()) << Message(step.status());
      EXPECT_LE(BytesBetweenLayers(*step),
                (num_layers - 1) * (2 * (c.stream_bytes + c.tied_bytes) + kStepCounter))
          << c.module << " in " << num_layers;
    }
  }
}

// Blocks are of equal work: the marks are found again, and with more layers than marks other places
// where as little is sent.
TEST(Prepare, LayersByNumberFindTheMarks) {
  const Step mlp = Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 8}), AdamW({})).value().step;
  const Step marked = *Simplify(mlp), by_number = *Simplify(mlp, AutoLayers{8});
  const std::vector<Instruction>& instructions = by_number.module.entry_computation().instructions;
  for (size_t id = 0; id < instructions.size(); ++id) {
    // The ninth layer is the loss.
    const StepPart& part = marked.module.entry_computation().instructions[id].part;
    EXPECT_EQ(instructions[id].part.layer, std::min(part.layer, 7)) << instructions[id].name;
  }
  const Step gpt = Trace(Gpt({.batch = 8,
                              .sequence = 8,
                              .vocabulary = 48,
                              .hidden = 16,
                              .num_layers = 4,
                              .num_heads = 2}),
                         AdamW({}))
                       .value()
                       .step;
  for (int num_layers = 2; num_layers <= 6; ++num_layers) {
    const auto step = Prepare(gpt, {.layers = AutoLayers{num_layers}});
    ASSERT_TRUE(step.ok()) << Message(step.status());
    EXPECT_EQ(BytesBetweenLayers(*step), (num_layers - 1) * (2 * 8 * 8 * 16 * 4 + kStepCounter))
        << num_layers;
  }
}

TEST(Prepare, LayersThatCannotBeMadeAreRefused) {
  const Step step = Trace(Mlp({.batch = 16, .hidden = 32, .num_layers = 2}), Sgd()).value().step;
  const auto refusal = [&](const Step& of, int num_layers) {
    return Message(Prepare(of, {.layers = AutoLayers{num_layers}}).status());
  };
  EXPECT_EQ(refusal(step, -1), "-1 layers are asked for");
  EXPECT_TRUE(refusal(step, 99).starts_with("99 layers are asked for, but the forward pass of mlp"))
      << refusal(step, 99);
  Step without_batch = step;
  for (ParameterInfo& parameter : without_batch.parameters) {
    parameter = {.role = ParameterRole::kState};
  }
  EXPECT_EQ(refusal(without_batch, 2),
            "mlp has no operations to make layers of: none depends on a batch and on weights "
            "(--batch-input names the inputs that are a batch)");
  Step without_loss = step;
  without_loss.marks.clear();
  for (ResultInfo& result : without_loss.results) {
    if (result.role == ResultRole::kLoss) result.role = ResultRole::kMetric;
  }
  EXPECT_EQ(refusal(without_loss, 2),
            "mlp updates its state, but does not say by which loss, so there is no telling forward "
            "from backward pass; say which result it is (--loss RESULT)");
}

}  // namespace
}  // namespace minka
