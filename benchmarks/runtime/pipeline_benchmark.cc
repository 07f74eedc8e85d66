// What workers cost: the runtime of pipelines, how near a step comes to what its schedule allows,
// and one mesh in a worker.
//
//   pipeline_benchmark                    all
//   pipeline_benchmark --filter 1f1b      what has it in its name
//   pipeline_benchmark --update           also writes the committed table
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/runtime/bubble.h"
#include "benchmarks/runtime/one_mesh.h"
#include "benchmarks/runtime/overhead.h"
#include "benchmarks/runtime/two_cores.h"
#include "benchmarks/support/run_apart.h"
#include "benchmarks/support/table.h"
#include "fmt/format.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> filters;
  std::string binary = MINKA_BINARY;
  int num_rounds = 7;
  TableOptions table{.folder = "benchmarks/runtime/pipeline"};
};

// Times of a machine that may have been busier.
std::vector<Criterion> Criteria() {
  return {{.field = "instruction_us", .relative = 0.5},
          {.field = "step_us", .relative = 0.5, .absolute = 50},
          {.field = "of_schedule", .relative = 0.1, .is_better_large = true},
          {.field = "worker_over_process", .relative = 0.05}};
}

bool IsOverhead(const Json& row) { return row.contains("instruction_us"); }
bool IsOneMesh(const Json& row) { return row.contains("worker_over_process"); }

constexpr char kIntroduction[] =
    "# Pipelines on workers\n\n"
    "Made by `pipeline_benchmark --update`; medians, what is compared measured in turns.\n\n"
    "## The runtime's own cost\n\n"
    "Programs as good as empty, on workers of one device each. Microseconds: the slope of the step "
    "time over the number of\n"
    "instructions of a worker's list, and a step of empty lists (1f1b: the intercept). *One "
    "process* plays the same lists one "
    "after the other, so its slope is\n"
    "over the instructions of all. *Bare launch*: what of it is XLA's, the same executables "
    "launched and awaited without the\n"
    "runtime, over the instructions of all lists. *CPU*: processor time of all workers, for one "
    "instruction; four workers may have to\n"
    "share fewer cores. Lists of sends and receives send to the next worker and receive from the "
    "one before by turns. 1f1b is a\n"
    "training step of an MLP with 1 to 16 micro-batches. The goals are 50 us per instruction and "
    "1000 us per step of four workers.\n\n";

constexpr char kBubbleIntroduction[] =
    "\n## Two workers with a core each\n\n"
    "A GPT of four layers, two in each stage. *Schedule alone*: the step that the schedule would "
    "take with the measured times\n"
    "of its tasks, each run again and again by its pinned worker while the other runs its own, and "
    "transfers that take no time; *of it*:\n"
    "that over the measured step; the goal is 0.95. *Predicted*: by the plan, with costs that "
    "`minka profile` measured in two processes with\n"
    "a core each, at once. *Slowdown*: a reference step of fixed shapes before and after, over "
    "what it took around the profile. *Over\n"
    "measured*: prediction times slowdown over the step; the goal is within 10 %. *Stage 1 / 0*: "
    "work of the stages. ms.\n\n";

constexpr char kOneMeshIntroduction[] =
    "\n## One mesh in a worker\n\n"
    "A training step on two devices, its batch given and its loss read, in this process and in a "
    "worker. ms. The goal is 1.02.\n\n";

std::string Page(const Json& rows) {
  std::string overheads, bubbles, one_mesh;
  for (const Json& row : rows) {
    if (IsOverhead(row)) {
      overheads += OverheadTableRow(row);
    } else if (IsOneMesh(row)) {
      one_mesh += OneMeshTableRow(row);
    } else {
      bubbles += BubbleTableRow(row);
    }
  }
  return fmt::format("{}{}{}{}{}{}{}{}{}", kIntroduction, kOverheadHeader, overheads,
                     kBubbleIntroduction, kBubbleHeader, bubbles, kOneMeshIntroduction,
                     kOneMeshHeader, one_mesh);
}

// A row whose prediction is for the speed that the cores have now.
absl::StatusOr<Json> MeasureBubbleNow(const std::string& name, const Options& options,
                                      const ProfiledCores& cores) {
  ASSIGN_OR_RETURN(const double before_us, ReferenceUsOfTwoCores());
  ASSIGN_OR_RETURN(Json row, RunApart(name, [&] {
                     return MeasureBubble(name, options.binary, cores.calibration,
                                          options.num_rounds);
                   }));
  ASSIGN_OR_RETURN(const double after_us, ReferenceUsOfTwoCores());
  AddSlowdown(std::sqrt(before_us * after_us) / cores.reference_us, row);
  return row;
}

std::vector<std::string> Chosen(std::vector<std::string> names,
                                const std::vector<std::string>& filters) {
  std::erase_if(names, [&](const std::string& name) {
    return !filters.empty() && std::ranges::none_of(filters, [&](const std::string& filter) {
      return name.find(filter) != std::string::npos;
    });
  });
  return names;
}

void Print(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

absl::Status MeasureAll(const Options& options, const std::function<void(Json)>& add) {
  const std::vector<std::string> overheads = Chosen(OverheadNames(), options.filters);
  if (!overheads.empty()) Print(kOverheadHeader);
  for (const std::string& name : overheads) {
    ASSIGN_OR_RETURN(Json row, MeasureOverhead(name, options.binary, options.num_rounds));
    Print(OverheadTableRow(row));
    add(std::move(row));
  }
  const std::vector<std::string> one_mesh = Chosen(OneMeshNames(), options.filters);
  if (!one_mesh.empty()) Print(kOneMeshHeader);
  for (const std::string& name : one_mesh) {
    ASSIGN_OR_RETURN(Json row, RunApart(name, [&] {
                       return MeasureOneMesh(name, options.binary, options.num_rounds);
                     }));
    Print(OneMeshTableRow(row));
    add(std::move(row));
  }
  const std::vector<std::string> bubbles = Chosen(BubbleNames(), options.filters);
  if (bubbles.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ProfiledCores cores, ProfileTwoCores());
  Print(kBubbleHeader);
  for (const std::string& name : bubbles) {
    ASSIGN_OR_RETURN(Json row, MeasureBubbleNow(name, options, cores));
    Print(BubbleTableRow(row));
    add(std::move(row));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace minka

int main(int argc, char** argv) {
  minka::Options options;
  CLI::App app("What workers cost");
  app.add_option("--filter", options.filters, "only what has one of these in its name");
  app.add_option("--binary", options.binary, "minka, which workers run")->capture_default_str();
  app.add_option("--rounds", options.num_rounds, "of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  minka::AddTableOptions(app, options.table);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status =
      minka::MakeTable({.criteria = minka::Criteria(),
                        .measure = [&](const auto& add) { return minka::MeasureAll(options, add); },
                        .page = minka::Page},
                       options.table);
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "error: {}\n", minka::Message(status));
  return EXIT_FAILURE;
}
