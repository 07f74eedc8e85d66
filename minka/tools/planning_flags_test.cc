#include "minka/tools/planning_flags.h"

#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// A value for each flag other than its default; "": it takes none.
const std::map<std::string, std::string>& Values() {
  static const std::map<std::string, std::string> values = {{"--pipeline-layers", "6"},
                                                            {"--stages", "3,2"},
                                                            {"--submeshes", "1x2,1x4"},
                                                            {"--schedule", "gpipe"},
                                                            {"--dp", "2"},
                                                            {"--submesh-choices", "1x2,1x4"},
                                                            {"--stage-shares", "3,1"},
                                                            {"--op", "2"},
                                                            {"--pp", "2"},
                                                            {"--mesh", "data=2,model=4"},
                                                            {"--num-devices", "16"},
                                                            {"--cluster", "p3.16xlarge:2"},
                                                            {"--method", "zero2,zero3"},
                                                            {"--micro-batches", "4"},
                                                            {"--per-micro-batch", ""},
                                                            {"--narrow-sums", ""},
                                                            {"--remat", "dots"},
                                                            {"--memory-limit", "2GiB"},
                                                            {"--pin", "params/*kernel=[-,model]"},
                                                            {"--no-all-gather", ""},
                                                            {"--no-all-to-all", ""},
                                                            {"--batch-axis", "data"},
                                                            {"--no-sequence-split", ""},
                                                            {"--no-replicated-parameters", ""},
                                                            {"--prefer-reduce-scatter", ""},
                                                            {"--combine-gathers", "16MiB"},
                                                            {"--cost-model", "alpa"},
                                                            {"--alpha", "1,2"},
                                                            {"--beta", "1,0.1"},
                                                            {"--allow-replicated-dots", ""},
                                                            {"--gap", "0.05"},
                                                            {"--work-limit", "123456"},
                                                            {"--time-limit", "7s"},
                                                            {"--threads", "1"}};
  return values;
}

PlanningFlags Parsed(const std::string& flag, const std::string& value) {
  CLI::App command;
  PlanningFlags flags;
  AddPlanningFlags(command, flags, "");
  command.parse(value.empty() ? std::vector<std::string>{flag}
                              : std::vector<std::string>{value, flag});  // CLI11 reads from behind
  return flags;
}

// A plan's options bring back each flag that planning has: what `explain` plans with.
TEST(PlanningFlags, PlansRecordEveryFlag) {
  CLI::App command;
  PlanningFlags defaults;
  AddPlanningFlags(command, defaults, "");
  int num_flags = 0;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() != "Planning") continue;
    ++num_flags;
    const std::string name = option->get_name();
    SCOPED_TRACE(name);
    ASSERT_TRUE(Values().contains(name)) << "give the new flag a value here";
    const auto options = ToOptions(Parsed(name, Values().at(name)));
    EXPECT_NE(options, ToOptions(defaults));
    ASSERT_TRUE(options.contains(name.substr(2)));
    const auto back = PlanningFromOptions(options);
    ASSERT_TRUE(back.ok()) << Message(back.status());
    EXPECT_EQ(ToOptions(*back), options);
  }
  EXPECT_EQ(num_flags, static_cast<int>(Values().size()));
}

}  // namespace
}  // namespace minka
