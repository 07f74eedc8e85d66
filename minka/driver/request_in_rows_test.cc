#include "minka/driver/request_in_rows.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::ElementsAre;

// "layers/w" and "layers/b" have two rows each, "head/w" has none.
StepRows Rows() { return {.parameters = {{0, 1}, {2, 3}, {4}}}; }
Step Given() {
  return {.parameters = {{.name = "layers/w"}, {.name = "layers/b"}, {.name = "head/w"}}};
}

absl::StatusOr<std::vector<std::string>> PinsInRows(std::vector<std::string> pins) {
  PlanRequest request;
  request.search.pins = std::move(pins);
  ASSIGN_OR_RETURN(request, RequestInRows(request, Given(), Rows()));
  return request.search.pins;
}

TEST(RequestInRows, APinOnAStackIsOneOnAllRows) {
  EXPECT_THAT(PinsInRows({"layers/w=[-,-,x]"}).value(), ElementsAre("layers/w[*]=[-,-,x]"));
}

TEST(RequestInRows, APinOnStacksAndOthersIsBoth) {
  EXPECT_THAT(PinsInRows({"*/w=[-,x]"}).value(), ElementsAre("*/w=[-,x]", "*/w[*]=[-,x]"));
}

TEST(RequestInRows, PinsThatMatchRowsAsTheyAreStay) {
  EXPECT_THAT(PinsInRows({"layers/*=[-,x]", "layers/w[1]=[-,x]", "head/w=[x,-]", "batch"}).value(),
              ElementsAre("layers/*=[-,x]", "layers/w[1]=[-,x]", "head/w=[x,-]", "batch"));
}

TEST(RequestInRows, APinThatSplitsTheLayersIsRefusedWithTheWayOut) {
  for (const char* const glob : {"layers/w", "layers/*"}) {
    EXPECT_EQ(Message(PinsInRows({fmt::format("{}=[x+y,-,z]", glob)}).status()),
              fmt::format("pin \"{0}=[x+y,-,z]\" splits dimension 0 of layers/w, which counts its "
                          "layers; in a pipeline each layer lies on its stage: pin {0}=[-,-,z]",
                          glob));
  }
  EXPECT_EQ(Message(PinsInRows({"layers/b=[x]"}).status()),
            "pin \"layers/b=[x]\" splits dimension 0 of layers/b, which counts its layers; in a "
            "pipeline each layer lies on its stage: pin layers/b=[-]");
}

TEST(RequestInRows, StagesAndLayersNameRowsToo) {
  PlanRequest request;
  request.pipeline = PipelineOptions{.layers = ManualLayers{{"layers/w[1]", "layers/b", "*/w"}},
                                     .stage_search = {{.pins = {"layers/b=[-,x]"}}, {}}};
  const PlanRequest in_rows = RequestInRows(request, Given(), Rows()).value();
  EXPECT_THAT(std::get<ManualLayers>(in_rows.pipeline->layers).starts,
              ElementsAre("layers/w[1]", "layers/b[*]", "*/w"));
  EXPECT_THAT(in_rows.pipeline->stage_search[0].pins, ElementsAre("layers/b[*]=[-,x]"));
}

TEST(GlobInRows, NamesTheRowsOfWhatHasNothingElse) {
  EXPECT_EQ(GlobInRows("layers/w", Given(), Rows()), "layers/w[*]");
  EXPECT_EQ(GlobInRows("head/w", Given(), Rows()), "head/w");
  EXPECT_EQ(GlobInRows("unknown", Given(), Rows()), "unknown");
}

}  // namespace
}  // namespace minka
