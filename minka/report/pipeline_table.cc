#include "minka/report/pipeline_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "fmt/format.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {
namespace {

constexpr int kGridWidth = 100;

std::string StageTable(const PipelinePlan& plan, const Schedule& schedule,
                       const std::vector<int64_t>& weight_bytes) {
  std::vector<Column> columns = {{"stage", Align::kRight},   {"layers"},
                                 {"on", Align::kRight},      {"mesh"},
                                 {"forward", Align::kRight}, {"backward", Align::kRight}};
  if (schedule.splits_backward) columns.push_back({"weights", Align::kRight});
  columns.insert(columns.end(), {{"apply", Align::kRight},
                                 {"send up", Align::kRight},
                                 {"down", Align::kRight},
                                 {"in flight", Align::kRight},
                                 {"memory/device", Align::kRight},
                                 {"of it state", Align::kRight},
                                 {"weights", Align::kRight},
                                 {"gap", Align::kRight}});
  Table table(columns);
  const std::vector<MicroBatchesHeld> held = MostHeld(schedule);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PipelineStagePlan& stage = plan.stages[i];
    std::vector<std::string> cells = {
        fmt::to_string(i), LayersText(stage.plan.stage.layers), fmt::to_string(stage.mesh_number),
        MeshText(stage),   FormatTime(stage.forward_us),        FormatTime(stage.backward_us)};
    if (schedule.splits_backward) cells.push_back(FormatTime(stage.weight_gradient_us));
    cells.insert(
        cells.end(),
        {FormatTime(stage.apply_us), FormatTime(stage.send_forward_us),
         FormatTime(stage.send_backward_us), fmt::to_string(held[stage.mesh_number].in_flight),
         FormatBytes(stage.plan.peak_memory_bytes), FormatBytes(stage.plan.state_bytes_per_device),
         FormatBytes(weight_bytes[i]), FormatPercent(stage.plan.sharding_gap)});
    table.Add(std::move(cells));
  }
  return table.ToString();
}

// Equal ones in a row.
std::string SentTable(const PipelinePlan& plan, const std::vector<SentValue>& sent) {
  if (sent.empty()) return "nothing is sent from mesh to mesh\n";
  struct Row {
    std::string name;
    int64_t count = 0;
  };
  using Key = std::tuple<int, int, bool, std::string, std::string, std::string, int64_t>;
  std::map<Key, Row> rows;
  for (const SentValue& value : sent) {
    Row& row = rows[{value.from_mesh, value.to_mesh, !value.per_micro_batch, ToString(value.shape),
                     value.sent_as, value.received_as, value.shape.num_bytes()}];
    if (row.count++ == 0) row.name = value.name;
  }
  Table table({{"from mesh", Align::kRight},
               {"to", Align::kRight},
               {""},
               {"value"},
               {"shape"},
               {"sent as"},
               {"received as"},
               {"messages/step", Align::kRight},
               {"bytes/step", Align::kRight}});
  int64_t all_messages = 0, all_bytes = 0;
  for (const auto& [key, row] : rows) {
    const auto& [from, to, once, shape, sent_as, received_as, bytes] = key;
    const int64_t messages = row.count * (once ? 1 : plan.num_micro_batches);
    all_messages += messages;
    all_bytes += messages * bytes;
    const std::string more = row.count > 1 ? fmt::format(" and {} more", row.count - 1) : "";
    table.Add({fmt::to_string(from), fmt::to_string(to), once ? "once" : "per micro-batch",
               row.name + more, shape, sent_as, received_as, fmt::to_string(messages),
               FormatBytes(messages * bytes)});
  }
  return table.ToString() +
         fmt::format("together {} messages, {} per step\n", all_messages, FormatBytes(all_bytes));
}

std::string Headline(const Step& prepared, const PipelinePlan& plan, const Schedule& schedule) {
  std::string text = fmt::format(
      "{} as a pipeline: {} on {}, {}, schedule {}\n", prepared.module.name,
      FormatNumberOf(static_cast<int64_t>(plan.stages.size()), "stage", "stages"),
      FormatNumberOf(schedule.shape.num_meshes, "mesh", "meshes"),
      FormatNumberOf(plan.num_micro_batches, "micro-batch", "micro-batches"), plan.schedule);
  text +=
      fmt::format("  step time    {} predicted{} (cost model {})\n", FormatTime(plan.step_time_us),
                  plan.meshes_share_cores ? ", all meshes on the same cores" : "", plan.cost_model);
  if (plan.lower_bound_us && plan.gap) {
    text += fmt::format("  lower bound  {}, gap {}\n", FormatTime(*plan.lower_bound_us),
                        FormatPercent(*plan.gap));
  }
  text +=
      fmt::format("  bubble       {} of the meshes' time they wait\n", FormatPercent(plan.bubble));
  text += fmt::format("  peak memory  {} per device ({})\n", FormatBytes(plan.peak_memory_bytes),
                      plan.memory_tier == MemoryTier::kCompiled ? "compiled" : "estimated");
  if (!plan.remat.empty()) text += "  recomputed   " + FormatRemat(plan.remat) + "\n";
  text += fmt::format("  search       {:.1f} s\n", plan.search_seconds);
  return text;
}

char LetterOf(const Task& task) {
  switch (task.kind) {
    case TaskKind::kForward:
      return static_cast<char>('0' + task.micro_batch % 10);
    case TaskKind::kBackward:
      return static_cast<char>('a' + task.micro_batch % 26);
    case TaskKind::kWeightGradient:
      return 'w';
    case TaskKind::kApply:
      break;
  }
  return '#';
}

}  // namespace

std::string MeshText(const PipelineStagePlan& stage) {
  const std::string mesh = stage.plan.stage.mesh.ToString();
  return stage.device.empty() ? mesh : fmt::format("{} of {}", mesh, stage.device);
}

std::string LayersText(const std::vector<int>& layers) {
  if (layers.empty()) return "";
  return layers.size() == 1 ? fmt::to_string(layers.front())
                            : fmt::format("{}-{}", layers.front(), layers.back());
}

std::string TimelineGrid(const Timeline& timeline, int width) {
  std::string text;
  const double scale = timeline.step_time > 0 ? width / timeline.step_time : 0;
  for (size_t mesh = 0; mesh < timeline.meshes.size(); ++mesh) {
    std::string line(width, '.');
    for (const TimedTask& timed : timeline.meshes[mesh]) {
      const int begin = static_cast<int>(std::lround(timed.begin * scale));
      const int end = static_cast<int>(std::lround(timed.end * scale));
      std::fill(line.begin() + std::min(begin, width), line.begin() + std::min(end, width),
                LetterOf(timed.task));
    }
    text += fmt::format("mesh {:<2} |{}|\n", mesh, line);
  }
  return text;
}

std::string PipelineTable(const Step& prepared, const PipelinePlan& plan, const Schedule& schedule,
                          const Timeline& timeline, const PipelineContents& contents) {
  std::string text = Headline(prepared, plan, schedule) + "\n" +
                     StageTable(plan, schedule, contents.weight_bytes) + "\n" +
                     SentTable(plan, contents.sent) +
                     "\none step, predicted (digit: forward of that micro-batch, "
                     "letter: backward, a for 0, w: gradients of weights, #: update, .: waits)\n" +
                     TimelineGrid(timeline, kGridWidth);
  for (const std::string& note : plan.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace minka
