// Any text is a plan for one of two small modules, or of a pipeline of two stages that are such
// modules, or refused with a message; what is read writes and reads back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "minka/base/check.h"
#include "minka/ir/builder.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/plan/plan.h"
#include "minka/plan/testing/nested_loops.h"

namespace {

minka::Module SmallModule() {
  minka::ModuleBuilder target("fuzzed");
  minka::ComputationBuilder b = target.Entry();
  const minka::Value x = b.Parameter({minka::ElementType::kF32, {8, 16}}, "x");
  const minka::Value w = b.Parameter({minka::ElementType::kF32, {16, 32}}, "w");
  b.SetResults({b.Dot(x, w, {.lhs_contracting = {1}, .rhs_contracting = {0}})});
  return *std::move(target).Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const minka::Module modules[] = {SmallModule(), minka::NestedLoops()};
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  (void)minka::PlannedPreparationOf(json);
  for (const minka::Module& module : modules) {
    const minka::Module* const stages[] = {&module, &module};
    if (const auto pipeline = minka::PipelinePlanFromJson(json, module, stages); pipeline.ok()) {
      MINKA_CHECK(
          minka::PipelinePlanFromJson(minka::PipelinePlanToJson(*pipeline, stages), module, stages)
              .ok());
    }
    const auto plan = minka::PlanFromJson(json, module);
    if (!plan.ok()) continue;
    if (!minka::CheckPlan(*plan, module).ok()) continue;
    minka::ListCollectives(module, plan->stage);
    MINKA_CHECK(minka::PlanFromJson(minka::PlanToJson(*plan, module), module).ok());
  }
  return 0;
}
