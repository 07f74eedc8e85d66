#include "minka/plan/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/plan/combine.h"
#include "minka/plan/reshard_text.h"
#include "minka/plan/testing/nested_loops.h"
#include "tests/support/random_modules.h"
#include "tests/support/random_plan.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ElementType::kF32;
constexpr AxisUse kIdle = {};
constexpr AxisUse Factor(int index) { return {AxisUse::Kind::kFactor, index}; }

Mesh DataModel() { return *Mesh::Parse("data=2,model=4"); }

// y = x . w over a split contraction: x [-,model], w [model,-], y partial over model.
struct DotProgram {
  Module module;
  Plan plan;
};
DotProgram MakeDotProgram() {
  ModuleBuilder target("dot");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8, 16}}, "x");
  const Value w = b.Parameter({kF32, {16, 32}}, "w");
  b.SetResults({b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}})});
  Module module = *std::move(target).Finish();
  Plan plan = PlanOfStrategies(module, DataModel(),
                               {{{kIdle, Factor(1)}}, {{kIdle, Factor(0)}}, {{kIdle, Factor(2)}}});
  return {std::move(module), std::move(plan)};
}

// The columns of x are split over model: the inner loop reduce-scatters x w, the outer one gathers
// x.
struct LoopProgram {
  Module module = NestedLoops();
  Plan plan;

  CalledPlan& outer_body() { return plan.stage.ops.back().called[0]; }
  CalledPlan& inner_body() { return outer_body().operations[7].called[0]; }
};
LoopProgram MakeLoopProgram() {
  LoopProgram program;
  const Computation& entry = program.module.entry_computation();
  std::vector<Strategy> strategies = WholeStrategies(program.module, DataModel());
  const InstructionId loop = entry.num_instructions() - 1;
  const OpRule rule = RuleFor(program.module, entry, loop);
  strategies[loop] = *ParseStrategy("model: value 1 dim 1", rule, DataModel());
  program.plan = PlanOfStrategies(program.module, DataModel(), std::move(strategies));
  return program;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(VersionSharding, FollowsStrategyThenReshards) {
  const DotProgram program = MakeDotProgram();
  const StagePlan& stage = program.plan.stage;
  const Value y = program.module.entry_computation().results[0];
  EXPECT_EQ(ToString(VersionSharding(program.module, stage, y, 0), stage.mesh),
            "[-,-]{partial: model}");
  EXPECT_EQ(ToString(VersionSharding(program.module, stage, y, 1), stage.mesh), "[-,-]");
}

TEST(ListCollectives, NamesBytesAndAxesOfTheCompletingAllReduce) {
  const DotProgram program = MakeDotProgram();
  const std::vector<PlannedCollective> list = ListCollectives(program.module, program.plan.stage);
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0].kind, "all-reduce");
  EXPECT_EQ(list[0].bytes, 8 * 32 * 4);
  EXPECT_EQ(list[0].axes, AxisSet::Of(1));
  EXPECT_THAT(list[0].reshards, ElementsAre(0));
}

TEST(ListCollectives, CountsCombiningReductionsWhereTheyArise) {
  ModuleBuilder target("max");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8, 16}}, "x");
  b.SetResults({b.Reduce(x, b.Scalar(kF32, 0), {1}, Opcode::kMaximum)});
  const Module module = *std::move(target).Finish();
  const Plan plan = PlanOfStrategies(
      module, DataModel(), {{{kIdle, Factor(1)}}, {{kIdle, kIdle}}, {{kIdle, Factor(1)}}});
  const std::vector<PlannedCollective> list = ListCollectives(module, plan.stage);
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0].instruction, 2);
  EXPECT_EQ(list[0].bytes, 8 * 4);
}

// a and b are independent, c is computed from b's completed sum: c can join neither.
TEST(LegalCombineGroups, LeavesOutWhatDependsOnAMember) {
  ModuleBuilder target("chain");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {16}}, "x");
  const Value zero = b.Scalar(kF32, 0);
  const Value first = b.Reduce(x, zero, {0}, Opcode::kAdd);
  const Value second = b.Reduce(b.Unary(Opcode::kAbs, x), zero, {0}, Opcode::kAdd);
  const Value spread = b.Broadcast(second, {16}, {});
  const Value third = b.Reduce(b.Binary(Opcode::kMultiply, x, spread), zero, {0}, Opcode::kAdd);
  b.SetResults({first, second, third});
  const Module module = *std::move(target).Finish();
  std::vector<Strategy> strategies = WholeStrategies(module, DataModel());
  for (InstructionId id = 0; id < module.entry_computation().num_instructions(); ++id) {
    if (module.entry_computation().instructions[id].opcode != Opcode::kConstant) {
      strategies[id].axes[1] = Factor(0);
    }
  }
  Plan plan = PlanOfStrategies(module, DataModel(), strategies);
  StagePlan& stage = plan.stage;
  ASSERT_EQ(stage.reshards.size(), 3);
  for (Reshard& reshard : stage.reshards) reshard.combine_group = 0;
  // Reshards in order of their place: second (before the broadcast), then first and third.
  EXPECT_THAT(LegalCombineGroups(module, stage), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_TRUE(CheckPlan(plan, module).ok()) << CheckPlan(plan, module);
}

TEST(ReshardStepText, ParsesBack) {
  const Mesh mesh = DataModel();
  for (const auto& [from, text, to] : std::vector<std::array<std::string, 3>>{
           {"[-,-]{partial: data,model}", "all-reduce data+model", "[-,-]"},
           {"[data,-]{partial: model}", "reduce-scatter model dim 0", "[data+model,-]"},
           {"[data+model,-]", "all-gather data+model dim 0", "[-,-]"},
           {"[data+model,-]", "all-to-all model dim 0 to 1", "[data,model]"},
           {"[data,-]", "slice model dim 1", "[data,model]"},
           {"[-,-]{partial: data,model}", "reduce-scatter model+data dim 1", "[-,model+data]"},
           {"[data+model,-]", "all-to-all data+model dim 0 to 1", "[-,data+model]"},
           {"[-,-]", "slice data+model dim 1", "[-,data+model]"},
           {"[-,-]", "make-partial data+model", "[-,-]{partial: data,model}"},
           {"[data,-]", "make-partial model", "[data,-]{partial: model}"}}) {
    const auto step = ParseReshardStep(text, *ParseSharding(from, mesh), mesh);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(ToString(step->result, mesh), to);
    EXPECT_EQ(ToString(*step, mesh), text);
  }
}

TEST(ReshardStepText, SaysWhatIsWrong) {
  const Mesh mesh = DataModel();
  const auto error = [&](std::string_view text) {
    return Message(ParseReshardStep(text, *ParseSharding("[data+model,-]", mesh), mesh).status());
  };
  EXPECT_EQ(error("all-gather data dim 0"),
            "all-gather of axis data, which is not the minor axis of dimension 0");
  EXPECT_EQ(error("all-gather pipe dim 0"), "mesh data=2,model=4 has no axis 'pipe'");
  EXPECT_EQ(error("all-reduce data"),
            "all-reduce over axis data, over which the value is not partial");
  EXPECT_EQ(error("slice data dim 1"), "slice over axis data, which the value uses already");
  EXPECT_EQ(error("all-gather model dim 7"), "dimension 7 does not exist, the value has 2");
  EXPECT_EQ(error("broadcast data"), "'broadcast data' is not a reshard step");
  EXPECT_EQ(error("slice data"), "'slice data' is not of the form 'slice AXES dim N'");
}

TEST(CheckPlan, NamesTheOperationWhoseOperandDoesNotFit) {
  DotProgram program = MakeDotProgram();
  program.plan.stage.ops[2].strategy.axes[1] = Factor(0);
  EXPECT_EQ(Message(CheckPlan(program.plan, program.module)),
            "stage 0: reshards[0]: reads [-,-]{partial: model} of dot 'dot', but version 0 is "
            "[model,-]");
  program.plan.stage.reshards.clear();
  program.plan.stage.result_versions = {0};
  EXPECT_EQ(Message(CheckPlan(program.plan, program.module)),
            "stage 0: dot 'dot', operand 0: version 0 of parameter 'x' is [-,model], but model: "
            "row needs [model,-]");
}

TEST(CheckPlan, RefusesPartialResultsAndUnequalState) {
  DotProgram program = MakeDotProgram();
  program.plan.stage.result_versions = {0};
  EXPECT_EQ(Message(CheckPlan(program.plan, program.module)),
            "stage 0: result 0 (dot 'dot') is [-,-]{partial: model}: results must be complete");
  ModuleBuilder target("state");
  ComputationBuilder b = target.Entry();
  const Value x = b.Parameter({kF32, {8}}, "x");
  b.SetResults({b.Unary(Opcode::kNegate, x)});
  target.AddAlias({0, 0});
  const Module module = *std::move(target).Finish();
  Plan plan = PlanOfStrategies(module, DataModel(), {{{kIdle, Factor(0)}}, {{Factor(0), kIdle}}});
  plan.stage.result_versions = {0};
  EXPECT_EQ(Message(CheckPlan(plan, module)),
            "stage 0: state parameter 0 (parameter 'x') is [model], but its new value (result 0) "
            "is [data]");
}

TEST(CheckPlan, NamesTheOperationInALoopThatDoesNotFit) {
  const auto error = [](const auto& tamper) {
    LoopProgram program = MakeLoopProgram();
    tamper(program);
    return Message(CheckPlan(program.plan, program.module));
  };
  const std::string outer = "stage 0: while 'outer', computation 'outer_body': ";
  const std::string inner = outer + "while 'inner', computation 'inner_body': ";
  EXPECT_EQ(error([](LoopProgram&) {}), "");
  EXPECT_EQ(error([](LoopProgram& p) { p.plan.stage.ops.back().called.clear(); }),
            "stage 0: while 'outer': the plan says how 0 called computations run, it calls 2");
  EXPECT_EQ(error([](LoopProgram& p) { p.plan.stage.ops[0].called.emplace_back(); }),
            "stage 0: parameter 'x': the plan says how 1 called computations run, it calls 0");
  EXPECT_EQ(error([](LoopProgram& p) { p.inner_body().operations.pop_back(); }),
            inner + "its plan has 5 operations, it has 6");
  EXPECT_EQ(error([](LoopProgram& p) { p.outer_body().parameters[1].dims[1] = {}; }),
            outer + "parameter 'x' is [-,-], but its caller gives [-,model]");
  EXPECT_EQ(
      error([](LoopProgram& p) { p.outer_body().operations[1].strategy.axes[1] = Factor(1); }),
      outer + "parameter 'x' has a strategy, but its caller says how it is split");
  EXPECT_EQ(
      error([](LoopProgram& p) { p.inner_body().operations[5].strategy.axes[1] = Factor(7); }),
      inner + "dot 'dot': factor 7 does not exist, there are 3");
  EXPECT_EQ(error([](LoopProgram& p) { p.outer_body().operations[8].operand_versions[1] = 0; }),
            outer +
                "dot 'product', operand 1: version 0 of parameter 'x' is [-,model], but model: row "
                "needs [-,-]");
  EXPECT_EQ(error([](LoopProgram& p) { p.outer_body().operations[8].operand_versions[1] = 1; }),
            outer + "dot 'product', operand 1: parameter 'x' has no version 1");
  EXPECT_EQ(error([](LoopProgram& p) { p.inner_body().reshards[0].value.result = 1; }),
            inner + "reshards[0]: value 5.1 does not exist");
  EXPECT_EQ(
      error([](LoopProgram& p) { p.inner_body().reshards[0].from.partial = {}; }),
      inner + "reshards[0]: reads [-,-] of dot 'dot', which is made as [-,-]{partial: model}");
  EXPECT_EQ(error([](LoopProgram& p) { p.inner_body().reshards[0].steps[0].dim = 0; }),
            inner +
                "reshards[0]: 'reduce-scatter model dim 0' leads to [model,-], not to "
                "[-,model]");
  EXPECT_EQ(
      error([](LoopProgram& p) { p.inner_body().result_versions[1] = 0; }),
      inner + "result 1 (dot 'dot') is [-,-]{partial: model}, but its caller wants [-,model]");
}

TEST(CheckPlan, RefusesAPlanOfAnotherModule) {
  DotProgram program = MakeDotProgram();
  program.plan.module_hash = "0";
  EXPECT_THAT(Message(CheckPlan(program.plan, program.module)),
              HasSubstr("the plan was made for module 0, this module is "));
}

TEST(PlanJson, HasTheFixedKeysAndParsesBack) {
  const DotProgram program = MakeDotProgram();
  const std::string json = PlanToJson(program.plan, program.module);
  for (const char* key : {"schema_version",   "module_hash",       "options",
                          "step_time_us",     "peak_memory_bytes", "memory_tier",
                          "objective",        "lower_bound",       "gap",
                          "sharding_gap",     "search_seconds",    "collectives",
                          "collective_bytes", "parameters",        "num_parameters",
                          "stages",           "num_micro_batches", "remat",
                          "schedule",         "cost_model"}) {
    EXPECT_THAT(json, HasSubstr(fmt::format("\n \"{}\": ", key)));
  }
  const auto plan = PlanFromJson(json, program.module);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(CheckPlan(*plan, program.module).ok());
  EXPECT_EQ(PlanToJson(*plan, program.module), json);
}

TEST(PlanJson, SaysNarrowSumsWhereSumsAreNarrow) {
  DotProgram program = MakeDotProgram();
  EXPECT_THAT(PlanToJson(program.plan, program.module), Not(HasSubstr("narrow_sums")));
  program.plan.narrow_sums = true;
  const std::string json = PlanToJson(program.plan, program.module);
  EXPECT_THAT(json, HasSubstr("\"narrow_sums\": true"));
  const auto plan = PlanFromJson(json, program.module);
  ASSERT_TRUE(plan.ok()) << Message(plan.status());
  EXPECT_TRUE(plan->narrow_sums);
  EXPECT_TRUE(PlannedPreparationOf(json)->narrow_sums);
}

TEST(PlanJson, KeepsRematerialisationAndAGapThatNothingBounds) {
  DotProgram program = MakeDotProgram();
  program.plan.remat = {RematPolicy::kNone, RematPolicy::kDots, RematPolicy::kAll};
  program.plan.gap.reset();
  const std::string json = PlanToJson(program.plan, program.module);
  EXPECT_THAT(json, HasSubstr("\"remat\": [\"none\",\"dots\",\"all\"]"));
  EXPECT_THAT(json, HasSubstr("\"gap\": null"));
  const auto plan = PlanFromJson(json, program.module);
  ASSERT_TRUE(plan.ok()) << Message(plan.status());
  EXPECT_EQ(plan->remat, program.plan.remat);
  EXPECT_EQ(plan->gap, std::nullopt);
  EXPECT_EQ(PlannedPreparationOf(json)->remat, program.plan.remat);
}

TEST(PlanJson, KeepsWhatLoopsCall) {
  const LoopProgram program = MakeLoopProgram();
  const std::string json = PlanToJson(program.plan, program.module);
  const auto plan = PlanFromJson(json, program.module);
  ASSERT_TRUE(plan.ok()) << Message(plan.status());
  EXPECT_EQ(Message(CheckPlan(*plan, program.module)), "");
  EXPECT_EQ(PlanToJson(*plan, program.module), json);
  EXPECT_THAT(json, HasSubstr("[\"reduce-scatter model dim 1\"]"));
}

TEST(PlanJson, NamesThePlaceOfAMistakeInALoop) {
  const LoopProgram program = MakeLoopProgram();
  const std::string json = PlanToJson(program.plan, program.module);
  const auto error = [&](const std::string& from, const std::string& to) {
    return Message(PlanFromJson(Replaced(json, from, to), program.module).status());
  };
  EXPECT_EQ(error("\"caller\": 7", "\"caller\": 6"),
            "plan: stages[0].called[0].called[0].caller: is 6, should be 7, for while 'inner'");
  EXPECT_EQ(error("reduce-scatter model dim 1", "reduce-scatter data dim 1"),
            "plan: stages[0].called[0].called[0].reshards[0][5][0]: reduce-scatter over axis data, "
            "over which the value is not partial");
  EXPECT_THAT(error("\"model: contraction\"", "\"model: depth\""),
              HasSubstr("plan: stages[0].called[0].called[0].operations[5][1]: "));
  EXPECT_EQ(error("\"called\"", "\"calls\""), "plan: stages[0]: unknown field 'calls'");
  EXPECT_EQ(error("     \"called\"", "     \"calls\""),
            "plan: stages[0].called[0]: unknown field 'calls'");
  const size_t called = json.find(",\n   \"called\"");
  const std::string without = json.substr(0, called) + "}]}";
  EXPECT_EQ(Message(PlanFromJson(without, program.module).status()),
            "plan: stages[0]: 'called' does not say how computation 'outer_body' runs, which while "
            "'outer' calls; plan again");
}

// Examples outlive changes of the format, and of the module's hash, only when they are read.
TEST(PlanJson, ReadsTheDocumentedExampleAndTheFuzzersSeeds) {
  const DotProgram program = MakeDotProgram();
  const std::string page = ReadFile(MINKA_TESTDATA "/../../../docs/plan.md").value();
  const size_t begin = page.find("```json\n") + 8;
  const std::string documented = page.substr(begin, page.find("```", begin) - begin);
  const std::string seed = ReadFile(MINKA_TESTDATA "/plan_fuzzer_corpus/dot.json").value();
  for (const std::string& json : {documented, seed}) {
    const auto plan = PlanFromJson(json, program.module);
    ASSERT_TRUE(plan.ok()) << Message(plan.status());
    EXPECT_EQ(Message(CheckPlan(*plan, program.module)), "");
  }
  const Module loops = NestedLoops();
  const auto plan =
      PlanFromJson(ReadFile(MINKA_TESTDATA "/plan_fuzzer_corpus/loops.json").value(), loops);
  ASSERT_TRUE(plan.ok()) << Message(plan.status());
  EXPECT_EQ(Message(CheckPlan(*plan, loops)), "");
}

TEST(PlanJson, KeepsRandomPlans) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed);
    const Mesh mesh = *Mesh::Parse(seed % 2 == 0 ? "2x2x2" : "4x2");
    const Plan plan = RandomPlan(program.module, mesh, seed);
    ASSERT_TRUE(CheckPlan(plan, program.module).ok()) << CheckPlan(plan, program.module);
    const std::string json = PlanToJson(plan, program.module);
    const auto again = PlanFromJson(json, program.module);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(CheckPlan(*again, program.module).ok());
    EXPECT_EQ(PlanToJson(*again, program.module), json);
    ASSERT_EQ(again->stage.reshards.size(), plan.stage.reshards.size());
    for (size_t i = 0; i < plan.stage.reshards.size(); ++i) {
      EXPECT_EQ(again->stage.reshards[i].steps, plan.stage.reshards[i].steps);
    }
    for (size_t i = 0; i < plan.stage.ops.size(); ++i) {
      EXPECT_EQ(again->stage.ops[i].strategy, plan.stage.ops[i].strategy);
    }
  }
}

TEST(PlanJson, NamesThePlaceOfAMistake) {
  const DotProgram program = MakeDotProgram();
  const std::string json = PlanToJson(program.plan, program.module);
  const auto error = [&](const std::string& from, const std::string& to) {
    return Message(PlanFromJson(Replaced(json, from, to), program.module).status());
  };
  EXPECT_EQ(error("\"gap\": 0.0,", ""), "plan: the document: lacks the field 'gap'");
  EXPECT_EQ(error("\"gap\": 0.0,", "\"gap\": 0.0, \"gaps\": 1,"),
            "plan: the document: unknown field 'gaps'");
  EXPECT_EQ(error("\"gap\": 0.0,", "\"gap\": 0.0, \"\": 1,"),
            "plan: the document: unknown field ''");
  EXPECT_EQ(error("\"gap\": 0.0", "\"gap\": \"0\""), "plan: gap: should be a number, is string");
  EXPECT_EQ(error("\"remat\": []", "\"remat\": [\"all\", \"some\"]"),
            "plan: remat[1]: unknown rematerialisation \"some\"; there are none, dots and all");
  EXPECT_EQ(error("\"schema_version\": 1", "\"schema_version\": 2"),
            "plan: schema_version: is 2, this minka reads version 1");
  EXPECT_EQ(error("\"memory_tier\": \"estimated\"", "\"memory_tier\": \"guessed\""),
            "plan: memory_tier: 'guessed' is not one of estimated, compiled");
  EXPECT_EQ(error("\"mesh\": \"data=2,model=4\"", "\"mesh\": 8"),
            "plan: stages[0].mesh: should be a string, is number");
  EXPECT_THAT(error("\"model: contraction\"", "\"model: depth\""),
              HasSubstr("plan: stages[0].operations[2][1]: "));
  EXPECT_EQ(error("\"all-reduce model\"", "\"all-reduce data\""),
            "plan: stages[0].reshards[0][6][0]: all-reduce over axis data, over which the value "
            "is not partial");
  EXPECT_EQ(error("\"forward\"", "\"sideways\""),
            "plan: stages[0].operations[0][3]: 'sideways' is not one of forward, backward, apply");
  EXPECT_EQ(error("\"sharding\":\"[-,model]\"", "\"sharding\":\"[model]\"").substr(0, 70),
            "plan: parameters[0].sharding: should have 2 dimensions, has 1");
  EXPECT_THAT(Message(PlanFromJson("{", program.module).status()), HasSubstr("plan: not JSON: "));
  EXPECT_THAT(Message(PlanFromJson("1e9999", program.module).status()),
              HasSubstr("plan: not JSON: "));
  EXPECT_EQ(Message(PlanFromJson("[]", program.module).status()),
            "plan: the document: should be an object, is array");
}

}  // namespace
}  // namespace minka
