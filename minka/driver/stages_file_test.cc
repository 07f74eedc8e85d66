#include "minka/driver/stages_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<PipelineOptions> Read(const std::string& stages) {
  return WithStages({}, "{\"stages\": " + stages + "}", {.no_all_gather = true});
}

std::string Refusal(const std::string& stages) { return Message(Read(stages).status()); }

TEST(StagesFile, SaysLayersMeshesAndOptionsOfEveryStage) {
  const auto options = Read(R"([{"layers": 2, "mesh": "data=2", "submesh": "1x2"},
    {"layers": [2, 3, 4], "mesh": "data=2,model=2", "batch_axis": "data", "no_all_gather": false,
     "pins": ["params/*=[-,model]"], "combine_gathers_bytes": 1024}])");
  ASSERT_TRUE(options.ok()) << Message(options.status());
  EXPECT_THAT(options->stage_of_layer, ElementsAre(0, 0, 1, 1, 1));
  ASSERT_EQ(options->meshes.size(), 2u);
  EXPECT_EQ(options->meshes[1].ToString(), "data=2,model=2");
  EXPECT_TRUE(options->submeshes.empty());
  ASSERT_EQ(options->stage_search.size(), 2u);
  EXPECT_EQ(options->stage_search[0].limits, (SearchLimits{.no_all_gather = true}));
  EXPECT_EQ(options->stage_search[1].limits,
            (SearchLimits{.batch_axis = "data", .combine_gathers_bytes = 1024}));
  EXPECT_THAT(options->stage_search[1].pins, ElementsAre("params/*=[-,model]"));
}

TEST(StagesFile, LaterStagesOfAMeshNeedNotNameIt) {
  const auto options = Read(R"([{"layers": 1, "submesh": "1x2"}, {"layers": 1, "submesh": "2x2"},
                                {"layers": 1}, {"layers": 1}])");
  ASSERT_TRUE(options.ok()) << Message(options.status());
  EXPECT_THAT(options->submeshes, ElementsAre(2, 4));
  EXPECT_THAT(options->stage_of_layer, ElementsAre(0, 1, 2, 3));
}

TEST(StagesFile, RefusalsNameTheField) {
  EXPECT_EQ(Refusal("[]"), "it is no object with a list 'stages' and nothing else");
  EXPECT_EQ(Refusal("[3]"), "stages[0] is no object");
  EXPECT_THAT(Refusal(R"([{"layers": 1, "meshes": "2"}])"),
              testing::StartsWith("stages[0] has a field meshes; layers, submesh, mesh, pins, "));
  EXPECT_EQ(Refusal(R"([{"layers": 0}])"),
            "stages[0].layers is neither a number of layers nor a list of them");
  EXPECT_EQ(Refusal(R"([{"layers": [0, 1]}, {"layers": [1]}])"),
            "stages[1].layers[0] is not 2; stages have consecutive layers, from 0 on");
  EXPECT_EQ(Refusal(R"([{"layers": 1, "mesh": "data=2", "submesh": "1x4"}])"),
            "stages[0]: mesh data=2 has 2 devices, its submesh 4");
  EXPECT_EQ(Refusal(R"([{"layers": 1, "mesh": "data=2"}, {"layers": 1, "submesh": "1x4"}])"),
            "stages[1]: name the mesh of every stage, or of none and its submesh instead");
  EXPECT_EQ(
      Refusal(R"([{"layers": 1}, {"layers": 1, "submesh": "1x4"}])"),
      "stages[1] names its mesh, and an earlier stage does not; the first stages name theirs");
  EXPECT_EQ(Refusal(R"([{"layers": 1, "submesh": "4"}])"),
            "stages[0].submesh: 4 is no hosts x devices per host, such as 1x2");
  EXPECT_EQ(Refusal(R"([{"layers": 1, "pins": "x=[-]"}])"), "stages[0].pins is no list of texts");
  EXPECT_EQ(Refusal(R"([{"layers": 1, "no_all_gather": 1}])"),
            "stages[0].no_all_gather is neither true nor false");
}

}  // namespace
}  // namespace minka
