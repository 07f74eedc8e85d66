#include "minka/driver/prepare.h"

#include <string>

#include "gtest/gtest.h"
#include "minka/base/status.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/builder.h"
#include "minka/models/mlp.h"

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

}  // namespace
}  // namespace minka
