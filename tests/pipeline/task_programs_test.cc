#include "minka/lowering/task_programs.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/driver/plan_step.h"
#include "minka/ir/builder.h"
#include "minka/ir/micro_loop.h"
#include "minka/ir/verifier.h"
#include "minka/planner/intra_op/intra_op.h"
#include "tests/pipeline/small_steps.h"

namespace minka {
namespace {

using testing::Contains;

std::vector<TaskProgram> Lower(const PlannedPipeline& planned, int stage) {
  auto programs = LowerTasks(planned.staged.stages[stage], planned.plan.stages[stage].plan.stage,
                             Platform::kCpu);
  EXPECT_TRUE(programs.ok()) << Message(programs.status());
  return *std::move(programs);
}

Alias AliasOf(const TaskProgram& program, const ValueVersion& result,
              const ValueVersion& parameter) {
  const auto number = [](const std::vector<ValueVersion>& values, const ValueVersion& value) {
    return static_cast<int>(std::ranges::find(values, value) - values.begin());
  };
  return {.result = number(program.results, result),
          .parameter = number(program.parameters, parameter)};
}

// Every stage of every case with its programs.
void ForEachStage(const std::function<void(const PlannedStage& stage,
                                           const std::vector<TaskProgram>& programs)>& check) {
  struct Case {
    Step (*make)();
    SmallPipeline pipeline;
  };
  for (const Case& c : {Case{SmallMlp, {.schedule = "zero-bubble-h1"}},
                        Case{SmallMlp, {.num_micro_batches = 1, .mesh = "2"}},
                        Case{SmallGpt, {.num_meshes = 3, .mesh = "2"}},
                        Case{SmallBert, {.schedule = "zero-bubble-h1", .mesh = "2"}},
                        Case{SmallEvaluation, {.schedule = "inference"}}}) {
    const PlannedPipeline planned = PlanSmall(c.make(), c.pipeline);
    for (size_t stage = 0; stage < planned.plan.stages.size(); ++stage) {
      const Module& module = planned.staged.stages[stage].step.module;
      SCOPED_TRACE(module.name);
      check(PlannedStage(module, planned.plan.stages[stage].plan.stage),
            Lower(planned, static_cast<int>(stage)));
    }
  }
}

TEST(TaskPrograms, ComeInOrder) {
  ForEachStage([](const PlannedStage&, const std::vector<TaskProgram>& programs) {
    for (size_t i = 1; i < programs.size(); ++i) {
      EXPECT_LT(programs[i - 1].task, programs[i].task);
    }
    for (const TaskProgram& program : programs) {
      const absl::Status verified = Verify(program.program.module);
      EXPECT_TRUE(verified.ok()) << Message(verified);
    }
  });
}

TEST(TaskPrograms, ParametersAreWhatAProgramReads) {
  ForEachStage([](const PlannedStage& stage, const std::vector<TaskProgram>& programs) {
    for (const TaskProgram& program : programs) {
      const Computation& entry = program.program.module.entry_computation();
      ASSERT_EQ(entry.parameters.size(), program.parameters.size());
      const UseTable uses(entry);
      std::set<ValueVersion> distinct;
      for (size_t i = 0; i < program.parameters.size(); ++i) {
        const ValueVersion& taken = program.parameters[i];
        const Value parameter = {entry.parameters[i]};
        EXPECT_TRUE(distinct.insert(taken).second);
        EXPECT_EQ(entry.shape(parameter), stage.LocalShapeOf(taken));
        EXPECT_TRUE(!uses.uses(parameter).empty() || uses.is_result(parameter))
            << ToString(program.task) << " does not read "
            << stage.instruction(taken.value.instruction).name;
      }
    }
  });
}

// Parameters of the stage and the index are there from the beginning.
TEST(TaskPrograms, WhatAProgramTakesWasMadeBefore) {
  ForEachStage([](const PlannedStage& stage, const std::vector<TaskProgram>& programs) {
    std::set<ValueVersion> made;
    for (InstructionId id = 0; id < stage.entry().num_instructions(); ++id) {
      const bool is_index = stage.loop().IsIndex(id);
      if (is_index || stage.instruction(id).opcode == Opcode::kParameter) made.insert({{id}});
    }
    for (const TaskProgram& program : programs) {
      for (const ValueVersion& taken : program.parameters) {
        EXPECT_THAT(made, Contains(taken)) << ToString(program.task);
      }
      made.insert(program.results.begin(), program.results.end());
    }
    for (size_t i = 0; i < stage.entry().results.size(); ++i) {
      EXPECT_THAT(made, Contains(stage.Result(static_cast<int>(i))));
    }
  });
}

TEST(TaskPrograms, SumsStayInPlace) {
  int num_sums = 0;
  ForEachStage([&](const PlannedStage& stage, const std::vector<TaskProgram>& programs) {
    for (InstructionId id = 0; id < stage.entry().num_instructions(); ++id) {
      if (!stage.loop().LeavesLoop(id)) continue;
      const ValueVersion sum{{id}};
      ++num_sums;
      ASSERT_EQ(programs.front().task, ProgramTask{ProgramKind::kFront});
      EXPECT_THAT(programs.front().results, Contains(sum));
      int num_adding = 0;
      for (const TaskProgram& program : programs) {
        if (!IsPerMicroBatch(program.task.kind)) continue;
        if (std::ranges::find(program.results, sum) == program.results.end()) continue;
        ++num_adding;
        EXPECT_THAT(program.program.module.aliases, Contains(AliasOf(program, sum, sum)));
      }
      EXPECT_EQ(num_adding, 1) << stage.instruction(id).name;
    }
  });
  EXPECT_GT(num_sums, 0);
}

TEST(TaskPrograms, NewStateIsWrittenWhereTheOldOneWas) {
  int num_aliases = 0;
  ForEachStage([&](const PlannedStage& stage, const std::vector<TaskProgram>& programs) {
    for (const Alias& alias : stage.module().aliases) {
      const ValueVersion state{{stage.entry().parameters[alias.parameter]}};
      const ValueVersion next = stage.Result(alias.result);
      const auto maker = std::ranges::find_if(programs, [&](const TaskProgram& program) {
        return std::ranges::find(program.results, next) != program.results.end();
      });
      ASSERT_NE(maker, programs.end());
      ++num_aliases;
      EXPECT_EQ(maker->task.kind, ProgramKind::kApply);
      EXPECT_THAT(maker->program.module.aliases, Contains(AliasOf(*maker, next, state)))
          << stage.instruction(state.value.instruction).name;
    }
  });
  EXPECT_GT(num_aliases, 0);
}

// The aliases of the program of a step that makes v * w of its state v and w.
std::vector<Alias> AliasesOfProduct(
    const std::function<std::vector<Value>(Value v, Value w, Value product)>& results) {
  ModuleBuilder module("m");
  ComputationBuilder b = module.Entry();
  b.SetPart({.phase = Phase::kForward, .layer = 0});
  const Shape shape{ElementType::kF32, {32}};
  const Value v = b.Parameter(shape, "v"), w = b.Parameter(shape, "w");
  b.SetResults(results(v, w, b.Binary(Opcode::kMultiply, v, w)));
  Step step{.results = {{.name = "v"}, {.name = "w"}, {.name = "metric"}}, .num_layers = 1};
  for (const int number : {0, 1}) {
    module.AddAlias({.result = number, .parameter = number});
    step.parameters.push_back({.role = ParameterRole::kState, .state_result = number});
  }
  step.module = std::move(module).Finish().value();
  const StageStep stage = CutIntoStages(step, {.stage_of_layer = {0}}).value().stages[0];
  const Mesh mesh = Mesh::Parse("1").value();
  const auto cost = MakeCostModel({}, Cluster::Local(1), mesh);
  const auto programs =
      LowerTasks(stage, PlanMesh(stage.step, mesh, **cost, {})->stage, Platform::kCpu);
  EXPECT_TRUE(programs.ok()) << Message(programs.status());
  return programs.ok() ? (*programs)[0].program.module.aliases : std::vector<Alias>();
}

TEST(TaskPrograms, OneValueTakesTheMemoryOfOneState) {
  EXPECT_EQ(AliasesOfProduct(
                [](Value, Value, Value product) { return std::vector{product, product, product}; }),
            (std::vector<Alias>{{.result = 0, .parameter = 0}}));
}

TEST(TaskPrograms, StateThatIsAResultTooKeepsItsMemory) {
  EXPECT_EQ(
      AliasesOfProduct([](Value v, Value w, Value product) { return std::vector{product, w, v}; }),
      std::vector<Alias>());
  EXPECT_EQ(
      AliasesOfProduct([](Value, Value w, Value product) { return std::vector{product, w, w}; }),
      (std::vector<Alias>{{.result = 0, .parameter = 0}}));
}

int NumDots(const std::vector<TaskProgram>& programs, ProgramKind kind) {
  int count = 0;
  for (const TaskProgram& program : programs) {
    if (program.task.kind != kind) continue;
    for (const Instruction& instruction : program.program.module.entry_computation().instructions) {
      count += instruction.opcode == Opcode::kDot;
    }
  }
  return count;
}

// Each layer has a dot forward, one for the weights' gradient, and one for the cotangent, which
// nothing needs in front of the first.
TEST(TaskPrograms, ASplitBackwardPassPutsOffWeightGradients) {
  const PlannedPipeline whole = PlanSmall(SmallMlp(), {.num_meshes = 4});
  const PlannedPipeline split =
      PlanSmall(SmallMlp(), {.schedule = "zero-bubble-h1", .num_meshes = 4});
  const int num_layers[] = {3, 2, 2, 1};  // the ninth is the loss
  for (int stage = 0; stage < 4; ++stage) {
    const int layers = num_layers[stage];
    const std::vector<TaskProgram> of_whole = Lower(whole, stage), of_split = Lower(split, stage);
    EXPECT_EQ(NumDots(of_whole, ProgramKind::kForward), layers);
    EXPECT_EQ(NumDots(of_whole, ProgramKind::kBackward), stage == 0 ? 2 * layers - 1 : 2 * layers);
    EXPECT_EQ(NumDots(of_whole, ProgramKind::kWeightGradient), 0);
    EXPECT_EQ(NumDots(of_split, ProgramKind::kForward), layers);
    // Nobody waits for stage 0.
    EXPECT_EQ(NumDots(of_split, ProgramKind::kBackward), stage == 0 ? 0 : layers);
    EXPECT_EQ(NumDots(of_split, ProgramKind::kWeightGradient),
              stage == 0 ? 2 * layers - 1 : layers);
  }
}

TEST(SignaturesOfTasks, AreThoseOfThePrograms) {
  struct Case {
    Step (*make)();
    const char* schedule;
  };
  for (const auto& [make, schedule] : {Case{SmallGpt, "1f1b"}, Case{SmallBert, "zero-bubble-h1"},
                                       Case{SmallEvaluation, "inference"}}) {
    const PlannedPipeline planned = PlanSmall(make(), {.schedule = schedule, .mesh = "2"});
    for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
      const StageStep& stage = planned.staged.stages[i];
      const StagePlan& plan = planned.plan.stages[i].plan.stage;
      const auto programs = LowerTasks(stage, plan, Platform::kCpu);
      ASSERT_TRUE(programs.ok()) << Message(programs.status());
      const std::vector<TaskSignature> signatures =
          SignaturesOfTasks(stage, stage.tasks, plan, Platform::kCpu);
      ASSERT_EQ(signatures.size(), programs->size());
      for (size_t number = 0; number < signatures.size(); ++number) {
        const TaskProgram& program = (*programs)[number];
        const TaskSignature& signature = signatures[number];
        EXPECT_EQ(signature.task, program.task);
        EXPECT_EQ(signature.parameters, program.parameters);
        EXPECT_EQ(signature.results, program.results);
        const Computation& entry = program.program.module.entry_computation();
        ASSERT_EQ(signature.parameter_shapes.size(), entry.parameters.size());
        for (size_t parameter = 0; parameter < entry.parameters.size(); ++parameter) {
          EXPECT_EQ(signature.parameter_shapes[parameter],
                    entry.instructions[entry.parameters[parameter]].shape());
        }
      }
    }
  }
}

}  // namespace
}  // namespace minka
